# libmemtrain: `make` builds, `make check` tests, `make run` trains, `make help` lists the rest.
#
# Everything is found by wildcard: a new .c or .cpp in its folder needs no change here.
#   libmemtrain/*.c             -> build/lib/libmemtrain.a, .so     (C11, libc and libm only)
#   libmemtrain_memory/*.c      -> build/lib/libmemtrain_memory.a, .so (C11, libmemtrain beside these)
#   shim/*.cpp, shim/*/*.cpp    -> build/lib/libmemtrain_torch.so   (C++, links libtorch)
#   examples/*.c                -> build/examples/NAME              (with all folders of examples/documents)
#   examples/documents/*.c      -> build/examples/NAME              (the same)
#   examples/plain_*.c          -> build/examples/NAME              (core only, with plain/*.c)
#   examples/documents/memtrain-report.c -> build/examples/memtrain-report (with documents/draw, the core and jansson)
#   examples/conv.c             -> build/examples/NAME              (with those in C, plain/digits.c; no C++)
#   examples/*.cpp              -> build/examples/NAME              (libtorch, plain/digits.c)
#   tests/core, memory/*.c      -> build/tests/check_NAME           (libraries in C, no libtorch)
#   tests/programs/*.c          -> build/tests/check_NAME           (with the examples, libtorch)
#   tests/FOLDER/check_*.cpp    -> build/tests/check_NAME           (the same)
#   tests/fuzz/*.c              -> build/tests/NAME                 (core only, no libtorch)
#   tests/bench/*.c             -> build/tests/bench/NAME          (core only, no libtorch)
#   tests/bench/*.cpp           -> build/tests/bench/NAME
# Works with GNU make 3.81 (macOS) and later. Variables are described in docs/building.md.

ifneq ($(firstword $(sort 3.81 $(MAKE_VERSION))),3.81)
$(error GNU make 3.81 or later is needed, this is $(MAKE_VERSION))
endif
ifneq ($(words $(CURDIR)),1)
$(error The path of this folder has a blank in it, which make cannot handle: $(CURDIR))
endif

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
.PHONY: FORCE

# ---- what can be set ---------------------------------------------------------------------------

BUILD ?= build
# Where it is noted which libtorch is used: the same for all variants of a build.
NOTES ?= build
ifeq ($(origin CC),default)
CC := cc
endif
ifeq ($(origin CXX),default)
CXX := c++
endif
# A flag, where the compiler has it.
known = $(shell $(CC) -Werror $(1) -E -x c /dev/null >/dev/null 2>&1 && echo '$(1)')
# The libraries in C are made for size: a step waits for none of it. Who sets CFLAGS has them made with these.
ifeq ($(origin CORE_CFLAGS):$(origin CFLAGS),undefined:undefined)
CORE_CFLAGS := $(or $(call known,-Oz),-Os) -g $(call known,-fno-asynchronous-unwind-tables)
OTHER_FLAGS :=
else
CORE_CFLAGS ?= $(CFLAGS)
OTHER_FLAGS = $(CORE_CFLAGS)
endif
CFLAGS ?= -O2 -g
# Lines alone: what -g says of libtorch's types takes longer to compile than all else.
CXXFLAGS ?= -O2 -g1
WERROR ?= -Werror
PYTHON ?= python3
LIBTORCH ?=
WHEELS ?=
VERSIONS ?=
KEEP ?=
DEVICE ?=
SUITES ?=
FUZZ_SEEDS ?= 1 3000
RUN_FLAGS ?=
RUNS ?=
REPORT_OUT ?= run.html
SANITIZE ?=
COVERAGE ?=
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
BINDIR ?= $(PREFIX)/bin
DESTDIR ?=
INSTALL_RPATH ?= $(TORCH_LIB)
V ?= 0

ifeq ($(V),0)
Q := @
say = @echo "  $(1)  $(2)"
else
Q :=
say = @:
endif

# One job per core as far as memory goes; -jN on the command line has precedence.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell sh setup/jobs.sh)
endif

OS := $(shell uname -s)
version_of = $(shell sed -n 's/^.define MT_VERSION_$(1) *\([0-9][0-9]*\).*/\1/p' \
    include/memtrain/status.h 2>/dev/null)
MAJOR := $(or $(call version_of,MAJOR),0)
MINOR := $(or $(call version_of,MINOR),0)
VERSION := $(MAJOR).$(MINOR).$(or $(call version_of,PATCH),0)
# What programs are linked to: the part of the version that changes with the ABI.
SOVERSION := $(if $(filter 0,$(MAJOR)),0.$(MINOR),$(MAJOR))

# ---- sources -----------------------------------------------------------------------------------

CORE_SRC := $(sort $(wildcard libmemtrain/*.c))
MEMORY_SRC := $(sort $(wildcard libmemtrain_memory/*.c))
SHIM_SRC := $(sort $(wildcard shim/*.cpp shim/*/*.cpp))
PLAIN_SRC := $(sort $(wildcard examples/plain_*.c))
PLAIN_PART_SRC := $(sort $(wildcard examples/plain/*.c))
LOOP_SRC := $(sort $(wildcard examples/*.cpp))
CALL_SRC := $(wildcard examples/conv.c)
REPORT_SRC := examples/documents/memtrain-report.c
EXAMPLE_SRC := $(filter-out $(PLAIN_SRC) $(CALL_SRC) $(REPORT_SRC),$(sort $(wildcard examples/*.c examples/documents/*.c)))
COMMON_SRC := $(sort $(wildcard examples/documents/*/*.c))
MODEL_SRC := $(sort $(wildcard examples/documents/models/*.cpp))
HELPER_SRC := $(sort $(wildcard tests/support/*.c))
TEST_EX_SRC := $(sort $(wildcard tests/programs/check_ex_*.c))
TEST_CORE_SRC := $(filter-out $(TEST_EX_SRC),$(sort $(wildcard tests/*/check_*.c)))
TEST_TORCH_SRC := $(sort $(wildcard tests/*/check_*.cpp))
FUZZ_SRC := $(wildcard tests/fuzz/*.c)
BENCH_SRC := $(sort $(wildcard tests/bench/*.c tests/bench/*.cpp))

OBJ := $(BUILD)/obj
objects = $(patsubst %,$(OBJ)/%.o,$(1))
CORE_OBJ := $(call objects,$(CORE_SRC))
MEMORY_OBJ := $(call objects,$(MEMORY_SRC))
SHIM_OBJ := $(call objects,$(SHIM_SRC))
COMMON_OBJ := $(call objects,$(COMMON_SRC))
MODEL_OBJ := $(call objects,$(MODEL_SRC))
PLAIN_PART_OBJ := $(call objects,$(PLAIN_PART_SRC))
DRAW_OBJ := $(call objects,$(wildcard examples/documents/draw/*.c))
DIGITS_OBJ := $(call objects,examples/plain/digits.c)
HELPER_OBJ := $(call objects,$(HELPER_SRC))
# A suite finds the program that it runs as the examples find what lies beside them.
HELPER_PARTS := $(HELPER_OBJ) $(call objects,examples/documents/cli/program_path.c)
APP_C_OBJ := $(call objects,$(EXAMPLE_SRC) $(REPORT_SRC) $(CALL_SRC) $(PLAIN_SRC) $(TEST_EX_SRC) $(TEST_CORE_SRC) $(FUZZ_SRC) \
    $(filter %.c,$(BENCH_SRC))) $(COMMON_OBJ) $(PLAIN_PART_OBJ) $(HELPER_OBJ)
APP_CXX_OBJ := $(call objects,$(TEST_TORCH_SRC) $(filter %.cpp,$(BENCH_SRC)) $(LOOP_SRC)) $(MODEL_OBJ)

# The registry of handles is internal to each library: the others carry a copy of it.
SHARED_OBJ := $(call objects,$(wildcard libmemtrain/handle.c))

# Programs and suites lie flat, whatever folder their source is in. $(call main_of,PROGRAM): the object of its source.
programs = $(foreach source,$(1),$(BUILD)/$(firstword $(subst /, ,$(source)))/$(basename $(notdir $(source))))
MAIN_SRC := $(EXAMPLE_SRC) $(REPORT_SRC) $(PLAIN_SRC) $(LOOP_SRC) $(CALL_SRC) $(TEST_EX_SRC) $(TEST_CORE_SRC) $(TEST_TORCH_SRC) $(FUZZ_SRC)
main_of = $(call objects,$(filter %/$(notdir $(1)).c %/$(notdir $(1)).cpp,$(MAIN_SRC)))
EXAMPLES := $(call programs,$(EXAMPLE_SRC))
PLAIN := $(call programs,$(PLAIN_SRC))
LOOPS := $(call programs,$(LOOP_SRC))
CALLS := $(call programs,$(CALL_SRC))
TESTS_CORE := $(call programs,$(TEST_CORE_SRC))
TESTS_EX := $(call programs,$(TEST_EX_SRC))
TESTS_TORCH := $(call programs,$(TEST_TORCH_SRC))
TESTS := $(TESTS_CORE) $(TESTS_EX) $(TESTS_TORCH)
FUZZ := $(call programs,$(FUZZ_SRC))
bench_programs = $(addprefix $(BUILD)/,$(basename $(1)))
BENCHES := $(call bench_programs,$(BENCH_SRC))
BENCHES_CORE := $(call bench_programs,$(filter %.c,$(BENCH_SRC)))
HELPER_A := $(if $(HELPER_SRC),$(OBJ)/tests/support.a)
COMMON_A := $(if $(COMMON_SRC),$(OBJ)/examples/documents.a)

real_devices := cpu mps $(foreach type,cuda xpu,$(type) $(addprefix $(type):,0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15))
ifneq ($(words $(DEVICE))-$(DEVICE),$(words $(firstword $(DEVICE)))-$(filter $(real_devices) sim:cuda sim:mps test:cuda test:xpu test:mps,$(DEVICE)))
$(error DEVICE is '$(DEVICE)'; accepted: cpu, cuda, cuda:N, xpu, xpu:N with N from 0 to 15, mps, sim:cuda, sim:mps, test:cuda, test:xpu, test:mps)
endif
ifneq ($(filter sim:% test:%,$(DEVICE)),)
ifneq ($(filter check-card card-bundle,$(MAKECMDGOALS)),)
$(error check-card is for a real card, and DEVICE is '$(DEVICE)'; accepted: $(MAKE) check DEVICE=$(DEVICE))
endif
endif

# The test device, a card under libtorch's own key (tests/device/card.hpp): DEVICE=test:cuda, test:xpu, test:mps.
CARD := $(patsubst test:%,%,$(filter test:%,$(DEVICE)))
CARD_SRC := $(filter-out tests/device/check_%,$(sort $(wildcard tests/device/*.cpp)))
DEVICE_CHECKS := $(basename $(notdir $(sort $(wildcard tests/device/check_*.cpp))))
# Where a device is named, the suites that ask for it. Under one key there is one device: check_shim_cuda, check_shim_xpu and
# check_shim_mps have hooks of their own for it; the suites of tests/device have the test device.
ASK_DEVICE := $(if $(DEVICE),$(addprefix %/,$(shell sh setup/device_suites.sh)))
OWN_DEVICE := $(if $(filter-out sim:%,$(DEVICE)),%/check_shim_cuda %/check_shim_xpu %/check_shim_mps %/check_card_other $(if $(CARD),,$(addprefix %/,$(DEVICE_CHECKS))))
on_device = $(if $(DEVICE),$(filter-out $(OWN_DEVICE),$(filter $(ASK_DEVICE),$(TESTS))),$(TESTS))
card_so = $(BUILD)/tests/libcard_$(1).so
CARD_SO := $(if $(CARD),$(call card_so,$(CARD)))

LIB := $(BUILD)/lib
ifeq ($(OS),Darwin)
so = $(LIB)/lib$(1).dylib
so_file = lib$(1).dylib
else
so = $(LIB)/lib$(1).so
so_file = lib$(1).so.$(VERSION)
endif
CORE_A := $(if $(CORE_SRC),$(LIB)/libmemtrain.a)
CORE_SO := $(if $(CORE_SRC),$(call so,memtrain))
MEMORY_A := $(if $(MEMORY_SRC),$(LIB)/libmemtrain_memory.a)
MEMORY_SO := $(if $(MEMORY_SRC),$(call so,memtrain_memory))
C_LIBS := $(CORE_A) $(CORE_SO) $(MEMORY_A) $(MEMORY_SO)
SHIM_SO := $(if $(SHIM_SRC),$(call so,memtrain_torch))
SHIM_INSTALLED := $(if $(SHIM_SRC),$(BUILD)/install/$(call so_file,memtrain_torch))

# ---- libtorch and the system's packages --------------------------------------------------------

# These goals need no libtorch; for all others it is looked for, or fetched, first.
NO_TORCH := report help clean distclean format check-format data core check-core check-fuzz fuzz check-valgrind \
    coverage bench-core install-core installcheck-core uninstall dist distcheck check-versions words \
    check-python wheel $(C_LIBS) $(TESTS_CORE) $(FUZZ) $(BENCHES_CORE)
# Of these, the ones that build no test, or nothing: they need a compiler and no package.
CC_ALONE := core install-core installcheck-core $(C_LIBS)
NO_BUILD := help clean distclean format check-format data uninstall dist distcheck words check-python wheel bench-peers
ifneq ($(filter-out $(NO_TORCH),$(or $(MAKECMDGOALS),all)),)
include $(NOTES)/libtorch.mk
# Looked for again when it has gone, and by `make setup` (once: make starts anew after it).
ifeq ($(and $(TORCH_VERSION_FILE),$(wildcard $(TORCH_VERSION_FILE))),)
$(NOTES)/libtorch.mk: FORCE
else ifeq ($(filter setup,$(MAKECMDGOALS))$(MAKE_RESTARTS),setup)
$(NOTES)/libtorch.mk build/setup.ok: FORCE
endif
PACKAGES := build/setup.ok
else ifeq ($(filter-out $(CC_ALONE) $(NO_BUILD),$(MAKECMDGOALS)),)
PACKAGES := build/setup-cc.ok
else
PACKAGES := build/setup-core.ok
endif

setup_env = CC='$(CC)' CXX='$(CXX)' PYTHON='$(PYTHON)' LIBTORCH='$(LIBTORCH)' WHEELS='$(WHEELS)'

# A stamp is written only when its text changes; what depends on it is made again then.
stamp = $(Q)mkdir -p $(dir $@) && printf '%s\n' '$(1)' >$@.new && \
    if cmp -s $@.new $@; then rm -f $@.new; else mv -f $@.new $@; fi

# `sudo make install` after `make LIBTORCH=DIR` installs what was built, and looks for no other libtorch.
BUILT := $(if $(LIBTORCH)$(filter-out install,$(or $(MAKECMDGOALS),all)),,$(wildcard $(NOTES)/libtorch.mk))
$(NOTES)/setup.key: $(if $(BUILT),,FORCE)
	$(call stamp,$(LIBTORCH) $(PYTHON))

build/setup.ok: setup/system.sh
	$(Q)$(setup_env) sh setup/system.sh all $@

build/setup-core.ok: setup/system.sh
	$(Q)$(setup_env) sh setup/system.sh core $@

build/setup-cc.ok: setup/system.sh
	$(Q)$(setup_env) sh setup/system.sh cc $@

$(NOTES)/libtorch.mk: $(NOTES)/setup.key build/setup.ok setup/libtorch.sh setup/fetch.sh \
    setup/libtorch.txt $(wildcard $(TORCH_VERSION_FILE))
	$(Q)$(setup_env) sh setup/libtorch.sh $@

# Each library is asked for alone: where one is not there, the others are.
package = $(shell pkg-config $(1) 2>/dev/null)
JSON_CFLAGS = $(eval JSON_CFLAGS := $(call package,--cflags jansson))$(JSON_CFLAGS)
JSON_LIBS = $(eval JSON_LIBS := $(call package,--libs jansson))$(JSON_LIBS)
CHECK_CFLAGS = $(eval CHECK_CFLAGS := $(call package,--cflags check))$(CHECK_CFLAGS)
CHECK_LIBS = $(eval CHECK_LIBS := $(call package,--libs check))$(CHECK_LIBS)
IMAGE_CFLAGS = $(eval IMAGE_CFLAGS := $(call package,--cflags libjpeg libpng))$(IMAGE_CFLAGS)
IMAGE_LIBS = $(eval IMAGE_LIBS := $(call package,--libs libjpeg libpng))$(IMAGE_LIBS)
ifneq ($(OS),Darwin)
CRYPTO_CFLAGS = $(eval CRYPTO_CFLAGS := $(call package,--cflags libcrypto))$(CRYPTO_CFLAGS)
CRYPTO_LIBS = $(eval CRYPTO_LIBS := $(call package,--libs libcrypto))$(CRYPTO_LIBS)
endif

# What draws traces needs jansson, and libtorch no more than the core does. Without jansson it is left out.
REPORT := $(if $(JSON_LIBS),$(BUILD)/examples/memtrain-report)

# ---- flags -------------------------------------------------------------------------------------

# Results must not depend on the optimiser: no fast-math, no contraction into fused multiply-add.
EXACT := -ffp-contract=off
WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wwrite-strings -Wvla $(WERROR)
WARN_C := $(WARN) -Wstrict-prototypes -Wmissing-prototypes
DEPEND = -MMD -MP -MF $(@:.o=.d)
INSTRUMENT := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all \
    -fno-omit-frame-pointer) $(if $(COVERAGE),--coverage -fprofile-update=atomic -O0)
ifneq ($(findstring undefined,$(SANITIZE)),)
INSTRUMENT += -fno-sanitize=vptr
endif
# gcc sees through less of libtorch's headers then, and takes what they guard for uninitialised.
INSTRUMENT_CXX := $(if $(SANITIZE),$(call known,-Wno-maybe-uninitialized))
# libtorch's headers have fences, of which the thread sanitizer knows nothing.
INSTRUMENT_CXX += $(if $(findstring thread,$(SANITIZE)),$(call known,-Wno-tsan))

library_flags = -std=c11 -fPIC -fvisibility=hidden $(EXACT) -Wpedantic -Wfloat-conversion $(WARN_C) \
    $(1) $(INSTRUMENT) -Iinclude -Ilibmemtrain -iquote .
CORE_FLAGS = $(call library_flags,$(CORE_CFLAGS))
MEMORY_FLAGS = $(call library_flags,$(CFLAGS))
TORCH_FLAGS = -std=$(TORCH_STD) $(addprefix -isystem ,$(TORCH_INCLUDE))
CXX_COMMON = -fPIC $(EXACT) $(WARN) $(CXXFLAGS) $(INSTRUMENT) $(INSTRUMENT_CXX) -Iinclude -iquote .
# Headers are included by their names alone, which differ; setup/check_layers.sh looks which folder may see which.
folders = $(addprefix -iquote ,$(patsubst %/,%,$(sort $(dir $(wildcard $(1))))))
SHIM_DIRS := $(call folders,shim/*/*.hpp)
SHIM_FLAGS = $(CXX_COMMON) -fvisibility=hidden -fvisibility-inlines-hidden -Ishim $(SHIM_DIRS) -Ilibmemtrain \
    $(TORCH_FLAGS)
APP_DIRS := $(call folders,tests/*/*.h tests/*/*.hpp examples/documents/*/*.h examples/documents/*/*.hpp) \
    -iquote tests -iquote examples
APP_FLAGS = -std=gnu11 $(EXACT) $(WARN_C) $(CFLAGS) $(INSTRUMENT) -Iinclude -iquote . $(APP_DIRS)
APPXX_FLAGS = $(CXX_COMMON) $(APP_DIRS) $(TORCH_FLAGS)

# Programs lie beside lib/; a libtorch below build/ is found relative to them, so that the tree can
# be moved. UP leads from a variant such as build/asan to build/.
UP := $(subst $() ,,$(patsubst %,../,$(wordlist 2,9,$(subst /, ,$(filter build/%,$(BUILD))))))
INSIDE = $(if $(filter build build/%,$(BUILD)),$(filter $(CURDIR)/build/%,$(TORCH_LIB)))
ifeq ($(OS),Darwin)
HERE := @loader_path
# As the version scripts below; ld(1) knows [a-z] and no exclusion.
soname = -dynamiclib -install_name @rpath/lib$(1).dylib -current_version $(VERSION) \
    '-Wl,-exported_symbol,_mt_[a-z]*' $(if $(private_$(1)),'-Wl$(comma)-exported_symbol$(comma)_mt__*')
TORCH_LINK = -L$(TORCH_LIB) -ltorch_cpu -lc10
LAZY := -Wl,-dead_strip_dylibs
else
HERE := $$ORIGIN
soname = -shared -Wl,-soname,lib$(1).so.$(SOVERSION) -Wl,--version-script=$(OBJ)/$(1).map \
    -Wl,-Bsymbolic-functions $(if $(SANITIZE),,-Wl,-z,defs)
TORCH_LINK = -L$(TORCH_LIB) -Wl,--push-state,--no-as-needed -ltorch_cpu -lc10 -Wl,--pop-state
LAZY := -Wl,--as-needed
# Code and constants in one segment: two gaps of up to a page less.
TOGETHER := -Wl,-z,noseparate-code
endif
TORCH_RPATH = $(if $(INSIDE),$(HERE)/../$(UP)$(patsubst $(CURDIR)/build/%,%,$(TORCH_LIB)),$(TORCH_LIB))
rpath = '-Wl,-rpath,$(HERE)/$(DEEPER)../lib' \
    '-Wl,-rpath,$(patsubst $(HERE)/%,$(HERE)/$(DEEPER)%,$(TORCH_RPATH))'
C_LINK = $(if $(MEMORY_SO),-lmemtrain_memory) $(if $(CORE_SO),-lmemtrain)
LIBS_LINK = -L$(LIB) $(if $(SHIM_SO),-lmemtrain_torch) $(C_LINK)

comma := ,
# $(call link_so,NAME,COMMAND): the file with the full version, and the two links to it.
ifeq ($(OS),Darwin)
link_so = $(Q)$(2) -o $(LIB)/lib$(1).dylib
else
link_so = $(Q)$(2) -o $(LIB)/lib$(1).so.$(VERSION) && cd $(LIB) && \
    ln -sf lib$(1).so.$(VERSION) lib$(1).so.$(SOVERSION) && ln -sf lib$(1).so.$(VERSION) lib$(1).so
endif

# ---- targets -----------------------------------------------------------------------------------

.PHONY: all setup core run report data documents check check-core check-torch check-oom check-asan check-tsan
.PHONY: check-python check-card card-bundle wheel bench-peers check-valgrind check-fuzz fuzz check-quick check-versions bench bench-core coverage format check-format symbols clean distclean
.PHONY: install install-core uninstall installcheck installcheck-core dist distcheck man help tests words

all: core $(SHIM_SO) $(EXAMPLES) $(LOOPS) $(CALLS) $(REPORT) ## the libraries and the examples (default)

core: $(C_LIBS) $(PLAIN) ## the libraries in C, and the example that needs no more

tests: $(TESTS)

setup: $(NOTES)/libtorch.mk ## look for what is needed, and fetch or install what is not there
	@:

run: core $(SHIM_SO) $(BUILD)/examples/food101 ## build, then train on the pictures that come with it (RUN_FLAGS)
	OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} $(BUILD)/examples/food101 $(RUN_FLAGS)

report: $(BUILD)/examples/memtrain-report ## draw traces: RUNS="a.jsonl b.jsonl" as REPORT_OUT (run.html)
	@$(if $(RUNS),,echo 'report: RUNS: empty; accepted: traces, as in make report RUNS="run.jsonl"' >&2; exit 2)
	$(BUILD)/examples/memtrain-report -o $(REPORT_OUT) $(RUNS)

data: ## fetch the pictures that those in examples/data were taken from (130 MB), for --data
	@sh setup/data.sh

documents: all ## the documents' configurations at their own size, theirs beside ours: hours (ROWS="food-224 clip")
	@OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} sh setup/documents.sh $(BUILD) $(ROWS)

# SUITES="check_policy_oom check_trace" runs these alone.
STATIC := setup/check_headers.sh setup/check_symbols.sh setup/check_links.sh setup/check_layers.sh \
    setup/check_pages.sh setup/check_adopt.sh setup/check_format.sh setup/check_install.sh \
    setup/check_man.sh setup/check_abi.sh setup/check_python.sh setup/check_python_package.sh setup/check_range.sh \
    setup/check_readme.sh setup/check_documents.sh setup/check_targets.sh
chosen = $(if $(SUITES),$(filter $(addprefix %/,$(SUITES)),$(1)),$(1))
static_env = CC='$(CC)' CXX='$(CXX)' OTHER_FLAGS='$(OTHER_FLAGS) $(INSTRUMENT)' LIB='$(LIB)' \
    TORCH_FLAGS='$(TORCH_FLAGS)' MAKE='$(MAKE)' SOVERSION='$(SOVERSION)' PYTHON='$(PYTHON)' \
    TORCH_LIB='$(TORCH_LIB)'
# One at a time where they share a card. What is compared with the CPU is computed in whole floats.
suite_env = OMP_WAIT_POLICY=PASSIVE $(if $(DEVICE),MT_TEST_DEVICE='$(or $(CARD),$(DEVICE))') \
    $(if $(filter-out sim:% test:%,$(DEVICE)),JOBS=1) $(if $(CARD),WRAP='env LD_PRELOAD=$(CURDIR)/$(CARD_SO)')
install_env = DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' LIBDIR='$(LIBDIR)' \
    INCLUDEDIR='$(INCLUDEDIR)' MANDIR='$(MANDIR)' BINDIR='$(BINDIR)' REPORT='$(REPORT)' VERSION='$(VERSION)' SOVERSION='$(SOVERSION)' LIB='$(LIB)' \
    SHIM='$(SHIM_INSTALLED)' TORCH_INCLUDE='$(TORCH_INCLUDE)' TORCH_LIB='$(TORCH_LIB)' \
    TORCH_STD='$(TORCH_STD)' INSTALL_RPATH='$(INSTALL_RPATH)'
outside_env = $(static_env) OMP_WAIT_POLICY=PASSIVE TORCH_STD='$(TORCH_STD)'
run_tests = $(static_env) $(suite_env) sh setup/run_tests.sh

# Two run at a time: the longest come first, so that none is left alone at the end.
LONG := $(addprefix $(BUILD)/tests/,check_ex_cli check_ex_ends check_ex_processes check_ex_resume check_peaks)
longest_first = $(foreach long,$(LONG),$(filter $(long),$(1))) $(filter-out $(LONG),$(1))

# Some of the suites that ask for a device, on the test device too: all of them take minutes (DEVICE=test:cuda).
ALSO_CUDA := check_shim_step check_shim_offload check_shim_amp check_shim_channels_last check_shim_card_memory
ALSO_XPU := check_shim_step check_shim_offload
ALSO_MPS := check_shim_step check_shim_amp check_shim_card_memory check_torch_trainer
also_on_cards := $(if $(filter Darwin,$(OS)),,$(addprefix $(BUILD)/tests/,$(addsuffix @cuda,$(ALSO_CUDA)) $(addsuffix @xpu,$(ALSO_XPU)) $(addsuffix @mps,$(ALSO_MPS))))

# A run of a few suites builds these alone. Those of the core need no program.
few_checked = $(call chosen,$(on_device)) $(if $(filter-out $(TESTS_CORE),$(call chosen,$(on_device))),all $(CARD_SO))
checked = $(if $(SUITES),$(few_checked),all $(if $(DEVICE),$(on_device),tests) $(CARD_SO))
no_suites = $(filter-out $(notdir $(TESTS)),$(SUITES))

# A real card that is not there is told once, and not by each suite, and before more is built than what tells it. ASKED: it is there.
real_card := $(filter-out cpu sim:% test:%,$(DEVICE))
ask_card := $(if $(ASKED),,$(and $(real_card),$(call chosen,$(on_device))))
ifneq ($(ask_card),)
check: $(BUILD)/examples/doctor
	@$(BUILD)/examples/doctor --device $(real_card)
	+@$(MAKE) --no-print-directory ASKED=1 check
else
check: $(checked) ## all tests and static checks (DEVICE=cuda|xpu|mps|sim:cuda|sim:mps|test:cuda|test:xpu|test:mps, SUITES="check_a check_b")
	@$(if $(no_suites),echo 'check: SUITES: there is no $(no_suites)' >&2; exit 2)
	@$(run_tests) $(call longest_first,$(call chosen,$(on_device))) $(if $(SUITES)$(DEVICE),,$(also_on_cards) $(STATIC))
endif

# On a real card, or packed for a machine that has one.
CARD_SUITES := $(addprefix $(BUILD)/tests/,$(shell SUITES='$(SUITES)' sh setup/card.sh --list))
ifeq ($(ASKED),)
check-card: $(BUILD)/examples/doctor ## the most telling suites on a real card, in one table (DEVICE=cuda, SUITES, SECONDS_MOST=450, JOBS=4)
	@DEVICE='$(DEVICE)' sh setup/card.sh --ask
	+@$(MAKE) --no-print-directory ASKED=1 check-card
else
check-card: all $(CARD_SUITES)
	@DEVICE='$(DEVICE)' SUITES='$(SUITES)' ASKED=1 sh setup/card.sh
endif

card-bundle: all $(CARD_SUITES) ## the same as build/card.tar.gz, for a machine without a compiler
	@sh setup/card_bundle.sh $(CARD_SUITES)

check-python: ## the package for Python's own torch, and the libraries from ctypes where they are built (PYTHON=DIR/bin/python3)
	@PYTHON='$(PYTHON)' sh setup/check_python_package.sh
	@PYTHON='$(PYTHON)' LIB='$(LIB)' CC='$(CC)' sh setup/check_python.sh

WHEEL_DIR ?= build/wheels-python
wheel: ## the package for the torch of PYTHON, in build/wheels-python
	$(Q)$(PYTHON) -m pip --disable-pip-version-check wheel --no-build-isolation --no-deps -w $(WHEEL_DIR) ./python

bench-peers: ## accelerate, transformers and Lightning beside the package, in tables (PYTHON); fetches them
	@PYTHON='$(PYTHON)' sh tests/bench/peers/run.sh

# The suites that touch most of libtorch in least time. A whole suite, or a case of one.
QUICK := check_shim_step check_shim_state check_shim_amp check_shim_errors check_shim_checkpointing \
    check_shim_arena check_shim_call check_shim_script check_shim_tensor check_shim_dlpack check_shim_sim \
    check_shim_offload:alone check_shim_processes:gloo
QUICK_TESTS := $(addprefix $(BUILD)/tests/,$(QUICK))

check-quick: core $(SHIM_SO) $(foreach test,$(QUICK_TESTS),$(firstword $(subst :, ,$(test)))) ## some of the suites that use libtorch
	@$(run_tests) $(QUICK_TESTS)

# What differs between versions are headers and what libtorch does: code of ours is not optimised unless
# flags are given, which halves the time. None of the suites has a model of the examples in it.
unoptimised = $(if $(filter file,$(origin $(1))),-O0,$($(1)))
check-versions: ## the core's suites, and check-quick with each supported libtorch (VERSIONS="2.9 2.15", KEEP=1)
	+@$(setup_env) MAKE='$(MAKE)' VERSIONS='$(VERSIONS)' KEEP='$(KEEP)' QUICK_CFLAGS='$(call unoptimised,CFLAGS)' \
	    QUICK_CXXFLAGS='$(call unoptimised,CXXFLAGS)' sh setup/check_versions.sh

check-core: core $(TESTS_CORE) ## the suites of the core, without libtorch
	@$(run_tests) $(call chosen,$(TESTS_CORE))

check-torch: all $(TESTS_EX) $(TESTS_TORCH) $(CARD_SO) ## the suites that use libtorch or the examples
	@$(run_tests) $(call chosen,$(TESTS_EX) $(TESTS_TORCH))

OOM_TESTS := $(filter $(BUILD)/tests/check_oom% $(BUILD)/tests/check_model% \
    %/check_shim_contrastive_memory,$(TESTS))
# The longest by its cases, so that two of them run at a time.
OOM_LONG := $(BUILD)/tests/check_oom_networks
# A lone parenthesis would end the call.
OOM_CASES = $(shell sed -n 's/^TEST_LOOP."\([a-z]*\)".*/\1/p' tests/models/check_oom_networks.cpp | uniq)
OOM_NEXT := $(addprefix $(BUILD)/tests/,check_model_smartcash check_model_profoct)
by_cases = $(patsubst %,$(OOM_LONG):%,$(if $(filter $(OOM_LONG),$(1)),$(OOM_CASES))) \
    $(filter $(OOM_NEXT),$(1)) $(filter-out $(OOM_LONG) $(OOM_NEXT),$(1))
check-oom: all $(OOM_TESTS) ## every single allocation fails in turn (slow)
	@MT_TEST_SLOW=1 $(run_tests) $(call by_cases,$(call chosen,$(OOM_TESTS)))

# gcc's and clang's sanitizers; libtorch itself is not instrumented, and it keeps memory to the end.
# Code of ours is not optimised unless flags are given: most of the time is libtorch's.
check-asan: ## all suites under the sanitizers of addresses and of undefined behaviour, in build/asan
	+@UBSAN_OPTIONS=print_stacktrace=1 CK_TIMEOUT_MULTIPLIER=10 \
	    $(MAKE) --no-print-directory BUILD=build/asan SANITIZE=address,undefined check-core
	+@ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1 CK_TIMEOUT_MULTIPLIER=10 \
	    $(MAKE) --no-print-directory BUILD=build/asan SANITIZE=address,undefined \
	    CFLAGS='$(call unoptimised,CFLAGS)' CXXFLAGS='$(call unoptimised,CXXFLAGS)' check-torch

# Threads: the core whole, and of the rest the suites of the shim and of what runs threads of its own. libtorch is not
# instrumented, and of OpenMP's threads there is one: their barriers cannot be seen.
TSAN := $(basename $(notdir $(wildcard tests/shim/check_shim_*.cpp tests/programs/check_ex_batches.cpp)))
TSAN_OPTIONS_SET := suppressions=$(CURDIR)/tests/tsan.suppressions:halt_on_error=0:exitcode=66
check-tsan: ## the core's suites and the shim's under the thread sanitizer, in build/tsan (SUITES="check_shim_threads")
	+@$(if $(SUITES),,TSAN_OPTIONS='$(TSAN_OPTIONS_SET)' CK_TIMEOUT_MULTIPLIER=20 \
	    $(MAKE) --no-print-directory BUILD=build/tsan SANITIZE=thread check-core)
	+@TSAN_OPTIONS='$(TSAN_OPTIONS_SET)' OMP_NUM_THREADS=1 CK_TIMEOUT_MULTIPLIER=20 \
	    $(MAKE) --no-print-directory BUILD=build/tsan SANITIZE=thread CFLAGS='$(call unoptimised,CFLAGS)' \
	    CXXFLAGS='$(call unoptimised,CXXFLAGS)' QUICK='$(or $(SUITES),$(TSAN))' SUITES= check-quick

# FUZZ_SEEDS="FROM COUNT": seeds from one on, and how many.
fuzz: $(FUZZ) ## random backends that refuse memory and then do not (FUZZ_SEEDS="1 3000": from, count)
	@$(FUZZ) $(FUZZ_SEEDS)

check-fuzz: ## the same under the sanitizers of addresses and undefined behaviour, in build/fuzz
	+@$(MAKE) --no-print-directory BUILD=build/fuzz SANITIZE=address,undefined FUZZ_SEEDS='$(FUZZ_SEEDS)' fuzz

VALGRIND := valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,possible
check-valgrind: core $(TESTS_CORE) ## the suites of the core under valgrind
	@CK_TIMEOUT_MULTIPLIER=20 WRAP='$(VALGRIND)' $(run_tests) $(call chosen,$(TESTS_CORE))

bench: all $(BENCHES) ## run the benchmarks on one core
	@CC='$(CC)' sh setup/run_bench.sh $(BENCHES)

bench-core: core $(BENCHES_CORE) ## those of the core, without libtorch
	@CC='$(CC)' sh setup/run_bench.sh $(BENCHES_CORE)

coverage: ## lines and branches of the libraries in C that the suites of the core reach (build/coverage)
	@[ ! -d build/coverage ] || find build/coverage -name '*.gcda' -exec rm -f {} +
	+@$(MAKE) --no-print-directory BUILD=build/coverage COVERAGE=1 check-core
	@sh setup/coverage.sh build/coverage/obj

symbols: all ## write the lists of exported symbols, fields and numbers anew (tests/symbols, tests/abi)
	@LIB='$(LIB)' sh setup/check_symbols.sh --write
	@CC='$(CC)' sh setup/check_abi.sh --write

words: ## how long the sentences of the pages are: median, 90 %, share above 24 words
	@sh setup/count_words.sh

format: ## rewrite the sources with clang-format
	@sh setup/check_format.sh --write

check-format: ## verify the format
	@sh setup/check_format.sh

install: $(C_LIBS) $(REPORT) $(SHIM_INSTALLED) ## install below PREFIX (default /usr/local), LIBDIR, INCLUDEDIR; DESTDIR
	$(Q)$(install_env) sh setup/install.sh core memory torch

install-core: $(C_LIBS) $(REPORT) ## the same for the libraries in C, without libtorch
	$(Q)$(install_env) sh setup/install.sh core memory

man: core ## manual pages: of the headers, and of the programs that are built (build/man)
	@sh setup/man.sh $(BUILD)/man $(wildcard $(EXAMPLES) $(CALLS) $(PLAIN) $(REPORT))
	@echo "  MAN      $(BUILD)/man"

uninstall: ## remove what install wrote
	$(Q)$(install_env) sh setup/install.sh --remove

installcheck: $(C_LIBS) $(SHIM_INSTALLED) ## install into a temporary folder; build and run programs against it; uninstall
	+@$(outside_env) sh setup/check_install.sh core torch

installcheck-core: $(C_LIBS) ## the same for the libraries in C, without libtorch
	+@$(outside_env) sh setup/check_install.sh core

dist: ## build/memtrain-VERSION.tar.gz from the last commit, the same bytes each time
	@sh setup/dist.sh

distcheck: ## make it twice and compare; build, install and check the core from what it holds
	+@MAKE='$(MAKE)' sh setup/dist.sh --check

clean: ## remove what was compiled; keep the fetched libtorch
	$(Q)rm -rf build/asan build/tsan build/coverage build/fuzz \
	    $(foreach build,$(BUILD) $(wildcard build/versions/*),$(addprefix $(build)/,obj lib install examples tests pages))

distclean: ## remove build/ altogether
	$(Q)rm -rf build

help: ## this list
	@echo "make [TARGET] [LIBTORCH=DIR] [PYTHON=python3] [DEVICE=cuda] [V=1]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' Makefile

# ---- objects -----------------------------------------------------------------------------------

$(OBJ)/core.flags: FORCE
	$(call stamp,$(CC) $(CORE_FLAGS))
$(OBJ)/memory.flags: FORCE
	$(call stamp,$(CC) $(MEMORY_FLAGS))
$(OBJ)/shim.flags: FORCE
	$(call stamp,$(CXX) $(SHIM_FLAGS) $(TORCH_VERSION))
$(OBJ)/app.flags: FORCE
	$(call stamp,$(CC) $(APP_FLAGS))
$(OBJ)/appxx.flags: FORCE
	$(call stamp,$(CXX) $(APPXX_FLAGS) $(TORCH_VERSION))
$(OBJ)/core.link: FORCE
	$(call stamp,$(VERSION) $(CORE_OBJ))
$(OBJ)/shim.link: FORCE
	$(call stamp,$(VERSION) $(SHIM_OBJ) $(TORCH_LIB) $(TORCH_VERSION))
$(OBJ)/install.link: FORCE
	$(call stamp,$(INSTALL_RPATH))
$(OBJ)/memory.link: FORCE
	$(call stamp,$(VERSION) $(MEMORY_OBJ))
# One version of all symbols for each soname, so that two of them can live in one process and packagers'
# tools see which one a program needs. What libmemtrain_memory uses of the inside of libmemtrain is for that of
# the same version alone.
private_memtrain = MEMTRAIN_$(VERSION)_PRIVATE { global: mt__*; };
$(patsubst %,$(OBJ)/%.map,memtrain memtrain_memory memtrain_torch): $(OBJ)/%.map: FORCE
	$(call stamp,MEMTRAIN_$(SOVERSION) { global: mt_[!_]*; local: *; }; $(private_$*))
$(OBJ)/parts.link: FORCE
	$(call stamp,$(COMMON_OBJ) $(HELPER_PARTS))
$(OBJ)/app.link: FORCE
	$(call stamp,$(COMMON_OBJ) $(MODEL_OBJ) $(TORCH_LIB) $(TORCH_VERSION))

# What a log function throws ends here (mt_set_log): without these tables an exception finds no way through mt_log,
# whatever CFLAGS are.
$(OBJ)/libmemtrain/status.c.o: BARRIER := $(call known,-fno-asynchronous-unwind-tables)

$(CORE_OBJ): $(OBJ)/%.o: % $(OBJ)/core.flags | $(PACKAGES)
	$(call say,CC  ,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CORE_FLAGS) $(BARRIER) $(DEPEND) -c -o $@ $<

$(MEMORY_OBJ): $(OBJ)/%.o: % $(OBJ)/memory.flags | $(PACKAGES)
	$(call say,CC  ,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(MEMORY_FLAGS) $(DEPEND) -c -o $@ $<

$(SHIM_OBJ): $(OBJ)/%.o: % $(OBJ)/shim.flags | $(PACKAGES)
	$(call say,CXX ,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(SHIM_FLAGS) $(CRYPTO_CFLAGS) $(DEPEND) -c -o $@ $<

# libtorch is built with NDEBUG; without it at::RecordFunction has a member here that it has not there.
$(OBJ)/shim/model/written.cpp.o: private SHIM_FLAGS += -DNDEBUG

# Tests of the core see its internal headers; the examples see the public ones only.
$(call objects,$(TEST_CORE_SRC) $(FUZZ_SRC) $(filter %.c,$(BENCH_SRC)) $(HELPER_SRC)): INTERNAL := -Ilibmemtrain
$(call objects,$(TEST_TORCH_SRC) $(filter %.cpp,$(BENCH_SRC))): INTERNAL := -Ilibmemtrain -Ishim $(SHIM_DIRS)

# CUDA's headers come with a libtorch that was fetched.
$(OBJ)/tests/shim/check_shim_cuda.cpp.o: INTERNAL += $(addprefix -isystem ,$(wildcard $(TORCH_LIB)/../../nvidia/*/include))

# Snippets of the pages, for the suites that include them; each file is written only when it changes.
SNIPPETS := $(OBJ)/snippets
$(SNIPPETS)/names: setup/check_pages.sh setup/snippets.awk $(wildcard *.md docs/*.md)
	$(Q)sh setup/check_pages.sh --extract $(@D) && touch $@
$(SNIPPETS)/%: $(SNIPPETS)/names ;
$(call objects,$(wildcard tests/*/*snippets.c tests/*/*snippets.cpp)): INTERNAL += -I$(SNIPPETS)
$(call objects,$(wildcard tests/*/*snippets.c tests/*/*snippets.cpp)): | $(SNIPPETS)/names

$(APP_C_OBJ): $(OBJ)/%.o: % $(OBJ)/app.flags | $(PACKAGES)
	$(call say,CC  ,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(APP_FLAGS) $(INTERNAL) $(CHECK_CFLAGS) $(JSON_CFLAGS) $(IMAGE_CFLAGS) $(DEPEND) -c -o $@ $<

$(APP_CXX_OBJ): $(OBJ)/%.o: % $(OBJ)/appxx.flags | $(PACKAGES)
	$(call say,CXX ,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(APPXX_FLAGS) $(INTERNAL) $(CHECK_CFLAGS) $(JSON_CFLAGS) $(IMAGE_CFLAGS) $(DEPEND) -c -o $@ $<

# ---- libraries ---------------------------------------------------------------------------------

archive = $(Q)mkdir -p $(@D) && rm -f $@ && ar rcs $@ $(filter %.o,$^)

$(LIB)/libmemtrain.a: $(CORE_OBJ) $(OBJ)/core.link
	$(call say,AR  ,$@)
	$(archive)

$(LIB)/libmemtrain_memory.a: $(MEMORY_OBJ) $(OBJ)/memory.link
	$(call say,AR  ,$@)
	$(archive)

$(OBJ)/tests/support.a: $(HELPER_PARTS) $(OBJ)/parts.link
	$(archive)

$(OBJ)/examples/documents.a: $(COMMON_OBJ) $(OBJ)/parts.link
	$(archive)

$(call so,memtrain): $(CORE_OBJ) $(OBJ)/core.link $(OBJ)/memtrain.map
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(call link_so,memtrain,$(CC) $(call soname,memtrain) $(TOGETHER) $(INSTRUMENT) $(LDFLAGS) $(CORE_OBJ) -lm)

$(call so,memtrain_memory): $(MEMORY_OBJ) $(SHARED_OBJ) $(CORE_SO) $(OBJ)/memory.link $(OBJ)/memtrain_memory.map
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(call link_so,memtrain_memory,$(CC) $(call soname,memtrain_memory) '-Wl$(comma)-rpath$(comma)$(HERE)' \
	    $(INSTRUMENT) $(LDFLAGS) $(MEMORY_OBJ) $(SHARED_OBJ) -L$(LIB) -lmemtrain -lm)

# $(call shim_command,FOLDER_OF_LIBTORCH...)
shim_command = $(CXX) $(call soname,memtrain_torch) $(patsubst %,'-Wl$(comma)-rpath$(comma)%',$(HERE) $(1)) \
    $(INSTRUMENT) $(LDFLAGS) $(SHIM_OBJ) $(SHARED_OBJ) -L$(LIB) $(C_LINK) $(TORCH_LINK) $(CRYPTO_LIBS)

$(call so,memtrain_torch): $(SHIM_OBJ) $(SHARED_OBJ) $(CORE_SO) $(MEMORY_SO) \
    $(addprefix $(OBJ)/,shim.link memtrain_torch.map)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(call link_so,memtrain_torch,$(call shim_command,$(TORCH_RPATH)))

# The one that is installed looks for libtorch where this build found it, or where INSTALL_RPATH says.
$(SHIM_INSTALLED): $(SHIM_OBJ) $(SHARED_OBJ) $(CORE_SO) $(MEMORY_SO) \
    $(addprefix $(OBJ)/,shim.link install.link memtrain_torch.map)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(call shim_command,$(INSTALL_RPATH)) -o $@

# ---- programs ----------------------------------------------------------------------------------

.SECONDEXPANSION:

# It tells whether there is a card before all else is built.
$(BUILD)/examples/doctor: $$(call main_of,$$@) $(COMMON_A) $(CORE_SO) $(MEMORY_SO) $(SHIM_SO) $(OBJ)/app.link
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(INSTRUMENT) $(rpath) $(LDFLAGS) -o $@ $(filter %.o,$^) $(COMMON_A) $(LAZY) \
	    $(LIBS_LINK) $(IMAGE_LIBS) $(JSON_LIBS) -lm -lpthread

$(filter-out $(BUILD)/examples/doctor,$(EXAMPLES)): %: $$(call main_of,$$@) $(COMMON_OBJ) $(MODEL_OBJ) $(CORE_SO) $(MEMORY_SO) $(SHIM_SO) $(OBJ)/app.link
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(INSTRUMENT) $(rpath) $(LDFLAGS) -o $@ $(filter %.o,$^) $(LIBS_LINK) \
	    $(TORCH_LINK) $(IMAGE_LIBS) $(JSON_LIBS) -lm -lpthread

$(PLAIN): %: $$(call main_of,$$@) $(PLAIN_PART_OBJ) $(CORE_SO)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(INSTRUMENT) '-Wl,-rpath,$(HERE)/../lib' $(LDFLAGS) -o $@ $(filter %.o,$^) \
	    -L$(LIB) -lmemtrain -lm

# One that uses libtorch alone loads nothing of ours.
$(LOOPS): %: $$(call main_of,$$@) $(DIGITS_OBJ) $(CORE_SO) $(MEMORY_SO) $(SHIM_SO) $(OBJ)/app.link
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(INSTRUMENT) $(rpath) $(LDFLAGS) -o $@ $(filter %.o,$^) $(TORCH_LINK) $(LAZY) \
	    $(LIBS_LINK) -lm -lpthread

# With the core inside, so that it runs wherever it is put.
$(BUILD)/examples/memtrain-report: $$(call main_of,$$@) $(DRAW_OBJ) $(CORE_A)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(INSTRUMENT) $(LDFLAGS) -o $@ $^ $(JSON_LIBS) -lm

# What computes is in the shim: the program is C, and linked as such.
$(CALLS): %: $$(call main_of,$$@) $(DIGITS_OBJ) $(COMMON_A) $(CORE_SO) $(MEMORY_SO) $(SHIM_SO)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(INSTRUMENT) $(rpath) $(LDFLAGS) -o $@ $(filter %.o,$^) $(COMMON_A) $(LAZY) \
	    $(LIBS_LINK) $(JSON_LIBS) -lm -lpthread

$(TESTS_CORE) $(FUZZ): %: $$(call main_of,$$@) $(HELPER_A) $(MEMORY_A) $(CORE_A)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(INSTRUMENT) $(LDFLAGS) -o $@ $^ $(CHECK_LIBS) $(JSON_LIBS) -lm -lpthread

# The archive of the core comes last: only what is internal is taken from it, the rest from the
# shared library, so that there is one state. An example's test that uses no libtorch loads none.
$(TESTS_EX): %: $$(call main_of,$$@) $(HELPER_A) $(COMMON_A) $(CORE_A) $(CORE_SO) $(MEMORY_SO) $(SHIM_SO)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(INSTRUMENT) $(rpath) $(LDFLAGS) -o $@ $< $(filter $(DIGITS_OBJ),$^) $(HELPER_A) \
	    $(COMMON_A) $(LAZY) \
	    $(LIBS_LINK) $(CORE_A) $(CHECK_LIBS) $(IMAGE_LIBS) $(JSON_LIBS) -lm -lpthread

torch_program = $(Q)mkdir -p $(@D) && $(CXX) $(INSTRUMENT) $(rpath) $(LDFLAGS) -o $@ $< \
    $(filter $(DIGITS_OBJ),$^) \
    $(MODEL_OBJ) $(HELPER_A) $(COMMON_A) $(LIBS_LINK) $(CORE_A) $(TORCH_LINK) $(CHECK_LIBS) \
    $(IMAGE_LIBS) $(JSON_LIBS) $(CRYPTO_LIBS) -lm -lpthread
TORCH_PARTS := $(HELPER_A) $(COMMON_A) $(MODEL_OBJ) $(CORE_A) $(CORE_SO) $(MEMORY_SO) $(SHIM_SO) $(OBJ)/app.link

$(TESTS_TORCH): %: $$(call main_of,$$@) $(TORCH_PARTS)
	$(call say,LINK,$@)
	$(torch_program)

# $(call card_rules,NAME,KEY OF LIBTORCH,FLAGS): what is in the archives stays inside.
define card_rules
$(OBJ)/card_$(1)/%.o: % $(OBJ)/appxx.flags | $(PACKAGES)
	$$(call say,CXX ,$$<)
	@mkdir -p $$(@D)
	$$(Q)$$(CXX) $$(APPXX_FLAGS) $$(SHIM_DIRS) -fvisibility=hidden -DCARD=$(2) $(3) $$(DEPEND) -c -o $$@ $$<

# Where a benchmark needs it, make would give it the benchmark's path.
$(call card_so,$(1)): DEEPER :=
$(call card_so,$(1)): $(patsubst %,$(OBJ)/card_$(1)/%.o,$(CARD_SRC)) $(MEMORY_A) $(CORE_A)
	$$(call say,LINK,$$@)
	@mkdir -p $$(@D)
	$$(Q)$$(CXX) -shared $$(INSTRUMENT) $$(rpath) $$(LDFLAGS) -Wl,-Bsymbolic-functions -Wl,--exclude-libs,ALL -o $$@ \
	    $$^ $$(TORCH_LINK) -lm -ldl

-include $(patsubst %,$(OBJ)/card_$(1)/%.d,$(CARD_SRC))
endef
# They start themselves again with the test device.
PLAYED := cuda xpu mps custom
$(addprefix $(BUILD)/tests/,$(DEVICE_CHECKS) bench/card): | $(if $(filter Darwin,$(OS)),,$(foreach card,$(PLAYED),$(call card_so,$(card))))

$(eval $(call card_rules,cuda,CUDA))
$(eval $(call card_rules,xpu,XPU,-DCARD_IS_XPU))
$(eval $(call card_rules,mps,MPS,-DCARD_IS_MPS))
$(eval $(call card_rules,custom,PrivateUse1,-DCARD_IS_OTHER))

# They have examples in them.
$(BUILD)/tests/check_adopt $(BUILD)/tests/check_ex_conv: $(DIGITS_OBJ)

# One folder deeper than the other programs.
$(BENCHES): DEEPER := ../

# It starts a program with the shared library.
$(BUILD)/tests/bench/start: | $(CORE_SO)

$(BENCHES_CORE): $(BUILD)/%: $(OBJ)/%.c.o $(HELPER_A) $(MEMORY_A) $(CORE_A)
	$(call say,LINK,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(INSTRUMENT) $(LDFLAGS) -o $@ $^ -lm -lpthread

$(call bench_programs,$(filter %.cpp,$(BENCH_SRC))): $(BUILD)/%: $(OBJ)/%.cpp.o $(TORCH_PARTS)
	$(call say,LINK,$@)
	$(torch_program)

-include $(patsubst %.o,%.d,$(CORE_OBJ) $(MEMORY_OBJ) $(SHIM_OBJ) $(APP_C_OBJ) $(APP_CXX_OBJ))
