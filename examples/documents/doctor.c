/*
 * doctor.c - tells what is here, and what it means for training inside a memory budget.
 *
 *     build/examples/doctor
 *     build/examples/doctor --configurations     and which of plan's fit here, which takes minutes
 *     build/examples/doctor --budget 600MiB      and what a process holds whose tensors take that
 *
 * What the process holds is read first and printed late: asking a card for its memory takes memory.
 * Nothing is trained and nothing is changed.
 */
#include "child.h"
#include "cores.h"
#include "device.h"
#include "options.h"
#include "output.h"
#include "program_path.h"

#include <memtrain/torch.h>
#include <errno.h>
#include <fcntl.h>
#include <memtrain/trainer.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "doctor"

/* Where text begins in a row, and where it is broken. */
enum { COLUMN = 22, REASON_COLUMN = 6, WIDTH = 96 };

/* How the process was before anything else happened, and what came of starting libtorch. */
typedef struct start {
    size_t resident; /* before; 0: not known */
    mt_status init;
    mt_resident held; /* after */
    size_t files;     /* of that code and libraries; 0: not known */
    mt_status held_status;
    char failure[512], warning[512]; /* lines of init, of held, or ""; what was logged last */
    mt_host_memory host;
    mt_status host_status;
} start;

/* ---- rows -------------------------------------------------------------------------------------- */

static void section(const char *title) {
    printf("\n%s\n", title);
}

/* Words from column on, broken before WIDTH; the cursor stands at column already. */
static void print_wrapped(const char *text, size_t column) {
    size_t at = column;
    while (*text) {
        size_t length = strcspn(text, " ");
        int is_first = at == column;
        if (!is_first && at + 1 + length > WIDTH) {
            printf("\n%*s", (int)column, "");
            at = column;
        } else if (!is_first) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)length, text);
        at += length;
        text += length + strspn(text + length, " ");
    }
    putchar('\n');
}

static void row(const char *label, const char *format, ...) MT_PRINTF(2, 3);

static void row(const char *label, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strlen(label) < COLUMN - 2)
        printf("  %-*s", COLUMN - 2, label);
    else
        printf("  %s\n%*s", label, COLUMN, "");
    print_wrapped(text, COLUMN);
}

/* The error line without the name of the function that wrote it. */
static const char *last_reason(void) {
    const char *line = mt_last_error(), *colon = strstr(line, ": ");
    return colon && strncmp(line, "mt_", 3) == 0 ? colon + 2 : line;
}

typedef struct size_text {
    char text[32];
} size_text;

/* A struct, so that one call of printf can have several. */
static size_text in_words(size_t bytes) {
    size_text words = {"none"};
    if (bytes != SIZE_MAX) mt_format_size(bytes, words.text, sizeof words.text);
    return words;
}

/* ---- the start of libtorch --------------------------------------------------------------------- */

/* mt_device_resident starts libtorch, so what was held before has to be read without it. */
static size_t resident_now(void) {
    unsigned long all, resident;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    int fields = fscanf(file, "%lu %lu", &all, &resident);
    fclose(file);
    return fields == 2 ? (size_t)resident * (size_t)sysconf(_SC_PAGESIZE) : 0;
}

/* Resident bytes of mappings that have a file behind them, whatever was written to them since. */
static size_t mapped_files(void) {
    char line[4096];
    unsigned long from, to;
    size_t bytes = 0, kib;
    int is_file = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_file = strchr(line, '/') != NULL;
        else if (is_file && sscanf(line, "Rss: %zu kB", &kib) == 1)
            bytes += kib << 10;
    }
    fclose(file);
    return bytes;
}

/* Why a part of libtorch was left out is told to the log, too. */
static void on_log(void *user, mt_log_level level, const char *text) {
    start *s = user;
    if (level == MT_LOG_WARNING) snprintf(s->warning, sizeof s->warning, "%s", text);
}

static void open_start(start *s) {
    *s = (start){.held = MT_RESIDENT_INIT, .host = {.size = sizeof s->host}};
    s->resident = resident_now();
    mt_set_log(on_log, s);
    s->init = mt_torch_init(NULL);
    s->held_status = mt_device_resident("cpu", &s->held);
    if (s->held_status != MT_OK) snprintf(s->failure, sizeof s->failure, "%s", last_reason());
    s->files = mapped_files();
    s->host_status = mt_host_memory_read(NULL, &s->host);
}

/* ---- the library ------------------------------------------------------------------------------- */

/* What libtorch takes by itself, which follows the affinity and not the quota; the programs set theirs. */
static void print_threads(void) {
    const ex_cores c = ex_cores_read();
    char quota[64] = "";
    if (c.quota) snprintf(quota, sizeof quota, ", %d by the control group's quota", c.quota);
    row("threads", "%d by libtorch itself; --threads auto: %d", mt_torch_get_threads(), c.usable);
    row("  cores", "%d, of which the process may run on %d%s", c.online, c.allowed, quota);
}

static void print_library(const start *s) {
    section("Library");
    row("libmemtrain", "%s%s", mt_version_string(),
        mt_version_number() == MT_VERSION_NUMBER ? "" : ", this program is of " MT_VERSION_STRING);
    if (s->init == MT_OK)
        row("libtorch", "%s", mt_torch_version());
    else
        row("libtorch", "%s is not usable: %s", mt_torch_version(), s->failure);
    if (*s->warning) row("warning", "%s", s->warning);
    print_threads();
    row("CPU budget", "%s",
        mt_torch_enforces_budget() ? "enforced by our allocator: what exceeds it is refused"
                                   : "watched, not enforced: libtorch keeps its allocator");
    row("planned memory", "%s",
        mt_torch_enforces_budget() ? "for chunks on the CPU, unless a program turns it off"
                                   : "none: it needs our allocator");
    row("at most", "%d tensors a batch, %d metrics a model", MT_TENSORS_MAX, MT_METRICS_MAX);
}

/* ---- devices ----------------------------------------------------------------------------------- */

typedef struct device {
    const char *name;
    const char *run_on, *with; /* where it last ran, and with what */
} device;

/* docs/devices.md says the same, and tests/programs/check_ex_doctor.c compares the two. */
static const device devices[] = {
    {"cpu", "x86-64 Linux, 2 cores", "libtorch 2.11.0 and 2.15.0: all suites, food101"},
    {"cuda", "one NVIDIA H200, x86-64 Linux",
     "libtorch 2.11.0: the five programs; 1,029 of 1,034 tests"},
    {"xpu",
     "never run on a card; check_card and check_shim_xpu have devices of their own in its place",
     NULL},
    {"mps", "never run on a Mac; check_shim_mps has hooks of its own in their place", NULL},
    {"sim:cuda", "x86-64 Linux",
     "libtorch 2.11.0: check_sim, check_shim_sim, make check DEVICE=sim:cuda, food101"},
    {"sim:mps", "x86-64 Linux",
     "libtorch 2.11.0: check_sim, check_shim_sim, make check DEVICE=sim:mps, food101"},
};

/* What is free of a simulated card is the card's; libtorch's figure on MPS would be the host's. */
static void print_card(const char *name, size_t budget) {
    mt_sim_stats stats = MT_SIM_STATS_INIT;
    if (mt_device_sim_stats(name, &stats) != MT_OK) {
        row("  memory", "%s", last_reason());
        return;
    }
    row("  memory", "a model of %s, %s free; budget by default %s",
        in_words(stats.total_bytes).text, in_words(stats.free_bytes).text, in_words(budget).text);
    if (stats.recommended_bytes)
        row("  recommended", "%s as the working set", in_words(stats.recommended_bytes).text);
}

static void print_memory(const char *name, const start *s) {
    mt_memory memory = MT_MEMORY_INIT;
    if (mt_device_memory(name, &memory) != MT_OK)
        row("  memory", "%s", last_reason());
    else if (strncmp(name, "sim:", 4) == 0)
        print_card(name, memory.budget_bytes);
    else if (strcmp(name, "cpu") == 0 && s->host_status == MT_OK)
        row("  memory", "%s, %s free; budget by default %s", in_words(s->host.total_bytes).text,
            in_words(memory.free_bytes).text, in_words(memory.budget_bytes).text);
    else
        row("  memory", "%s free; budget by default %s", in_words(memory.free_bytes).text,
            in_words(memory.budget_bytes).text);
}

/* Whether it is usable. */
static int print_use(const char *name, const start *s) {
    if (mt_device_check(name) != MT_OK) {
        row(name, "not usable: %s", last_reason());
        return 0;
    }
    row(name, "usable");
    print_memory(name, s);
    return 1;
}

static void print_device(const device *d, const start *s) {
    print_use(d->name, s);
    row("  run so far", "%s%s%s", d->run_on, d->with ? "; " : "", d->with ? d->with : "");
}

/* Whether the table has the type of that device. */
static int is_in_table(const char *name) {
    size_t length = strcspn(name, ":");
    for (size_t i = 0; i < EX_ROWS(devices); i++)
        if (strncmp(devices[i].name, name, length) == 0 && !devices[i].name[length]) return 1;
    return 0;
}

/* Those of third parties have names that libtorch alone knows. */
static void print_other_cards(const start *s) {
    device card = {
        NULL,
        "never run on a card of a third party; check_card_other has a device of its own in "
        "its place",
        NULL};
    char name[64];
    for (size_t i = 1; mt_device_here(i, name, sizeof name) == MT_OK; i++) {
        card.name = name;
        if (!is_in_table(name)) print_device(&card, s);
    }
}

static void print_devices(const start *s) {
    section("Devices");
    for (size_t i = 0; i < EX_ROWS(devices); i++) print_device(&devices[i], s);
    print_other_cards(s);
}

/* ---- host memory ------------------------------------------------------------------------------- */

static int group_is_least(const mt_host_memory *host) {
    return host->cgroup_room_bytes < host->available_bytes;
}

static void print_group(const mt_host_memory *host) {
    if (host->cgroup_limit_bytes == SIZE_MAX) {
        row("control group", "no limit");
        return;
    }
    row("control group", "limit %s, room %s; %s", in_words(host->cgroup_limit_bytes).text,
        in_words(host->cgroup_room_bytes).text,
        group_is_least(host) ? "it binds, since the host has more"
                             : "it does not bind, since the host has less");
    if (host->cgroup_peak_bytes)
        row("  its peak", "%s, page cache and other processes included",
            in_words(host->cgroup_peak_bytes).text);
}

/* docs/policy.md, "Where the budget comes from", and docs/memory.md, "A limit for the process". */
static const char *budget_rule(const mt_host_memory *host) {
    if (host->pressed)
        return group_is_least(host)
                   ? "the smaller of the two for a control group and for pressure: tasks wait"
                   : "0.75 of the available memory, since tasks wait for it";
    return group_is_least(host) ? "0.95 of what the process holds and the control group has left, "
                                  "less code, libraries and heap"
                                : "0.9 of the available memory, and what the process holds already";
}

/* A file as weights are: mapped, read ahead, given back. @return 0; what was refused as errno */
static int try_mapping(const char *path, int *out_is_mapped) {
    struct stat info = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC), error = 0;
    void *begin = MAP_FAILED;
    if (file >= 0 && fstat(file, &info) == 0)
        begin = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, file, 0);
    *out_is_mapped = begin != MAP_FAILED;
    if (!*out_is_mapped || madvise(begin, (size_t)info.st_size, MADV_WILLNEED) != 0 ||
        madvise(begin, (size_t)info.st_size, MADV_DONTNEED) != 0)
        error = errno;
    if (*out_is_mapped) munmap(begin, (size_t)info.st_size);
    if (file >= 0) close(file);
    return error;
}

/* docs/savers.md, "Frozen weights that are mapped". The file that is tried is this program's own. */
static void print_mapped(const start *s, const char *argv0) {
    const char *label = "mapped weights";
    char path[4096];
    int is_mapped = 0;
    if (!ex_program_path(argv0, path, sizeof path)) {
        row(label, "not known: the file of this program is not found");
        return;
    }
    int error = try_mapping(path, &is_mapped);
    if (error) {
        row(label, is_mapped ? "can be mapped, and not given back: %s" : "cannot be mapped: %s",
            strerror(error));
        return;
    }
#ifdef POSIX_FADV_DONTNEED
    size_t room = s->host.available_bytes;
    if (s->host_status == MT_OK && s->host.cgroup_room_bytes < room)
        room = s->host.cgroup_room_bytes;
    if (s->host_status == MT_OK)
        row(label, "can be mapped and given back; files above %s are dropped after use",
            in_words(room / 2).text);
    else
        row(label, "can be mapped and given back; the page cache keeps the files");
#else
    (void)s;
    row(label, "can be mapped; the process gives them back, the page cache drops them by itself");
#endif
}

static void print_host(const start *s) {
    mt_memory cpu = MT_MEMORY_INIT;
    section("Host memory");
    if (s->host_status != MT_OK) {
        row("memory", "not known here");
        return;
    }
    row("in all", "%s", in_words(s->host.total_bytes).text);
    row("available", "%s", in_words(s->host.available_bytes).text);
    print_group(&s->host);
    if (s->host.pressure > 0)
        row("pressure", "tasks waited for memory in %.1f %% of the last 10 seconds",
            100 * s->host.pressure);
    else
        row("pressure", "none in the last 10 seconds, or not told");
    if (mt_device_memory("cpu", &cpu) != MT_OK || !mt_torch_enforces_budget()) return;
    row("budget by default", "%s for tensors on the CPU", in_words(cpu.budget_bytes).text);
    row("  its rule", "%s", budget_rule(&s->host));
}

/* ---- this process ------------------------------------------------------------------------------ */

static void print_process(const start *s) {
    const mt_resident *held = &s->held;
    section("This process");
    if (s->resident)
        row("at its start", "%s, code and libraries, libtorch among them",
            in_words(s->resident).text);
    if (s->held_status != MT_OK) {
        row("libtorch prepared", "not known: %s", s->failure);
        return;
    }
    row("libtorch prepared", "%s", in_words(held->resident_bytes).text);
    size_t files = s->files < held->other_bytes ? s->files : 0;
    if (files) row("  code, libraries", "%s", in_words(files).text);
    row("  heap", "%s%s", in_words(held->other_bytes - files).text,
        files ? "" : ", code and libraries included");
    row("  tensors", "%s", in_words(held->tensor_bytes).text);
    row("  arenas", "%s", in_words(held->arena_bytes).text);
    if (held->peak_bytes) row("  at most so far", "%s", in_words(held->peak_bytes).text);
    row("  limit", "%s",
        held->limit_bytes ? in_words(held->limit_bytes).text : "none (--budget-resident sets one)");
}

/* ---- environment ------------------------------------------------------------------------------- */

#define MATTERS "matters"
#define NOTHING "does nothing"
#define HARM "does harm"

typedef struct variable {
    const char *name;
    const char *device; /* that alone reads it; NULL: any */
    const char *verdict, *reason;
    int (*holds)(const char *value); /* for which values; NULL: any */
} variable;

static int sleeps(const char *value) {
    return strcasecmp(value, "passive") == 0;
}

static int spins(const char *value) {
    return !sleeps(value);
}

static int is_above_one(const char *value) {
    return atoi(value) > 1;
}

static int brings_a_heap(const char *value) {
    return strstr(value, "jemalloc") || strstr(value, "tcmalloc") || strstr(value, "mimalloc");
}

static const variable variables[] = {
    {"PYTORCH_CUDA_ALLOC_CONF", "cuda", MATTERS,
     "a budget undoes its roundup_power2_divisions and max_non_split_rounding_mb", NULL},
    {"PYTORCH_ALLOC_CONF", "cuda", MATTERS,
     "as PYTORCH_CUDA_ALLOC_CONF, which libtorch 2.11 reads first", NULL},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "cuda", HARM,
     "CUDA's allocator counts nothing then, so no peak is known", NULL},
    {"CUDA_VISIBLE_DEVICES", NULL, MATTERS,
     "CUDA sees the cards that it names alone; the first is cuda:0", NULL},
    {"CUDA_LAUNCH_BLOCKING", "cuda", MATTERS,
     "with 1 each kernel is waited for, which is for debugging and slow", NULL},
    {"PYTORCH_MPS_HIGH_WATERMARK_RATIO", "mps", MATTERS,
     "a budget replaces it; below the low ratio, but not 0, MPS does not start", NULL},
    {"PYTORCH_MPS_LOW_WATERMARK_RATIO", "mps", MATTERS,
     "cached buffers are collected from there on; above the high ratio MPS does not start", NULL},
    {"PYTORCH_MPS_ALLOCATOR_POLICY", NULL, NOTHING, "MPS's allocator reads no such variable", NULL},
    {"PYTORCH_ENABLE_MPS_FALLBACK", "mps", MATTERS,
     "with 1 operators that MPS lacks run on the CPU, slower, inside the CPU's budget", NULL},
    {"OMP_NUM_THREADS", NULL, MATTERS,
     "the threads of a program that sets none; food101 does (--threads)", NULL},
    {"MKL_NUM_THREADS", NULL, MATTERS,
     "as OMP_NUM_THREADS, and before it; food101 sets its own (--threads)", NULL},
    {"OMP_WAIT_POLICY", NULL, MATTERS,
     "threads sleep while they wait, which keeps them fast beside other programs", sleeps},
    {"OMP_WAIT_POLICY", NULL, HARM,
     "threads spin while they wait: two were up to 60 times slower on a busy machine", spins},
    {"GOMP_SPINCOUNT", NULL, MATTERS,
     "how long threads spin while they wait; 0 is best beside other programs", NULL},
    {"MALLOC_TRIM_THRESHOLD_", NULL, MATTERS,
     "kept as set; freed pages go back above it, up to a fifth of a small step's time", NULL},
    {"MALLOC_MMAP_THRESHOLD_", NULL, MATTERS,
     "kept as set; larger requests of the heap are mapped anew, with page faults each", NULL},
    {"GLIBC_TUNABLES", NULL, MATTERS,
     "glibc.malloc.trim_threshold and mmap_threshold are kept as set, as the two above", NULL},
    {"LD_PRELOAD", NULL, HARM,
     "not the C library's heap: clearing (malloc_trim) gives none of its pages back",
     brings_a_heap},
    {"LD_LIBRARY_PATH", NULL, MATTERS,
     "a libtorch there is loaded before the one that the program was built with", NULL},
    {"WORLD_SIZE", NULL, MATTERS,
     "the programs wait for so many processes, which RANK, MASTER_ADDR and MASTER_PORT are for too",
     is_above_one},
    {"TORCH_SHOW_CPP_STACKTRACES", NULL, NOTHING, "our error lines never have the stack", NULL},
};

/* 1 when it is set to such a value. */
static int print_variable(const variable *v) {
    char text[256];
    const char *value = getenv(v->name);
    if (!value || (v->holds && !v->holds(value))) return 0;
    printf("  %s=%.50s%s\n%*s", v->name, value, strlen(value) > 50 ? "..." : "", REASON_COLUMN, "");
    if (v->device && mt_device_check(v->device) != MT_OK)
        snprintf(text, sizeof text, NOTHING ": it is for %s, which is not usable here", v->device);
    else
        snprintf(text, sizeof text, "%s: %s", v->verdict, v->reason);
    print_wrapped(text, REASON_COLUMN);
    return 1;
}

static void print_environment(void) {
    int found = 0;
    section("Environment");
    for (size_t i = 0; i < EX_ROWS(variables); i++) found += print_variable(&variables[i]);
    if (!found) printf("  none set of the variables that matter\n");
}

/* ---- what follows ------------------------------------------------------------------------------ */

/* A budget is one of tensors; the system counts the process. name: of the device that it is for */
static void print_budget(const start *s, const char *name, const char *label, size_t budget,
                         const char *reason) {
    size_t bytes, group = s->host_status == MT_OK ? s->host.cgroup_limit_bytes : SIZE_MAX;
    row(label, "%s for tensors%s", in_words(budget).text, reason);
    if (strcmp(name, "cpu") != 0) return;
    if (mt_device_predict_resident("cpu", budget, &bytes) != MT_OK)
        row("  the process", "not known: %s", last_reason());
    else if (bytes > group)
        row("  the process",
            "%s at most, pages of files among them that others have read first: the control group "
            "does not pay for these",
            in_words(bytes).text);
    else
        row("  the process", "%s at most: --budget-resident of so much leaves tensors that budget",
            in_words(bytes).text);
}

/* What the device has free; 0: not known. */
static size_t free_bytes(const start *s, const char *name, const mt_memory *memory) {
    const mt_host_memory *host = &s->host;
    if (strcmp(name, "cpu") != 0) return memory->free_bytes;
    if (s->host_status != MT_OK) return 0;
    return group_is_least(host) ? host->cgroup_room_bytes : host->available_bytes;
}

/* As a run would be warned, with what does instead. */
static void print_excess(size_t budget, size_t room) {
    if (!room || budget <= room) return;
    row("  warning",
        "%s are free now: with this budget the system may swap or stop the run; "
        "--budget auto keeps below that",
        in_words(room).text);
}

/* Of a run that is asked about. */
static void print_asked(const start *s, const char *name, size_t budget) {
    mt_memory memory = MT_MEMORY_INIT;
    int is_known = mt_device_memory(name, &memory) == MT_OK;
    print_budget(s, name, "--budget", budget, " (a program's --explain tells what it needs)");
    print_excess(budget, is_known ? free_bytes(s, name, &memory) : 0);
}

/* budget: of a run that is asked about; 0: none. */
static void print_advice(const start *s, size_t budget) {
    mt_memory memory = MT_MEMORY_INIT;
    const char *name = ex_device_auto();
    section("A run here");
    row("--device auto", "%s", name);
    if (budget) print_asked(s, name, budget);
    if (mt_device_memory(name, &memory) == MT_OK && memory.budget_bytes)
        print_budget(s, name, "--budget auto", memory.budget_bytes, "");
    if (s->held_status == MT_OK)
        row("--budget-resident", "more than %s, which code and libraries take",
            in_words(s->held.other_bytes).text);
    row("configurations",
        "of the scripts that the examples follow: doctor --configurations, or plan");
}

/* What the scripts that the examples follow would need, inside what may be used here. */
static int print_configurations(const char *argv0) {
    mt_memory memory = MT_MEMORY_INIT;
    char path[4096], budget[32];
    section("Configurations");
    if (!ex_child_path(argv0, "plan", path, sizeof path) ||
        mt_device_memory("cpu", &memory) != MT_OK || !memory.budget_bytes) {
        printf("  not known: neither where plan is nor how much may be used\n");
        return 0;
    }
    snprintf(budget, sizeof budget, "%zu", memory.budget_bytes);
    char *const argv[] = {path, (char *)"--budget", budget, NULL};
    pid_t child = ex_child_start(path, argv, NULL);
    int status = child > 0 ? ex_child_wait(child, NULL) : EX_CANNOT_BE_RUN;
    if (status == EX_CANNOT_BE_RUN || status == EX_IS_NOT_THERE)
        printf("  not known: plan is not there to be run: `make` builds it\n");
    return status == 0 || status == 3;
}

/* ---- main -------------------------------------------------------------------------------------- */

typedef struct flags {
    int configurations, help, version;
    const char *device; /* NULL: not asked about alone */
    size_t budget;      /* bytes; 0: not asked about */
} flags;

static int read_size(const char *text, void *target) {
    return mt_parse_size(text, 0, target) == MT_OK && *(size_t *)target >= (size_t)1 << 20;
}

static const ex_option rows[] = {
    {.section = "Flags"},
    EX_FLAG("configurations", EX_SWITCH, flags, configurations, NULL,
            "and what the scripts that the examples follow would need, and whether it fits",
            .most = 1),
    EX_FLAG("device", EX_TEXT, flags, device, "NAME",
            "that device alone; the exit status is 1 if it is not usable"),
    EX_FLAG("budget", EX_PARSED, flags, budget, "SIZE",
            "and what the process of a run holds whose tensors take so much", .read = read_size,
            .accepts = "a size with its unit, like 600MiB", .by_default = ""),
    EX_FLAG("help", EX_SWITCH, flags, help, NULL, "this list", .most = 1),
    EX_FLAG("version", EX_SWITCH, flags, version, NULL, "versions of the library and of libtorch",
            .most = 1),
};

static void diagnose(size_t budget, const char *argv0) {
    start s;
    open_start(&s);
    printf(NAME ": what is here, and what it means for training inside a memory budget\n");
    print_library(&s);
    print_devices(&s);
    print_host(&s);
    print_mapped(&s, argv0);
    print_process(&s);
    print_environment();
    print_advice(&s, budget);
    mt_set_log(NULL, NULL);
}

static int diagnose_device(const char *name, size_t budget) {
    start s;
    open_start(&s);
    int is_usable = print_use(name, &s);
    if (is_usable && budget) print_asked(&s, name, budget);
    mt_set_log(NULL, NULL);
    return is_usable;
}

static void print_help(const ex_table *tables) {
    printf(NAME ": tells what is here, and what it means for training inside a memory budget\n\n"
                "Usage: " NAME " [--configurations] [--device NAME] [--budget SIZE]\n");
    ex_options_help(tables, stdout);
    printf("\nExit status: 0 done, 1 standard output could not be written, plan failed or the "
           "device is not usable, 2 wrong flag.\n");
}

int main(int argc, char **argv) {
    flags given = {0, 0, 0, NULL, 0};
    int is_told = 1;
    ex_error error;
    const ex_table tables[] = {{rows, EX_ROWS(rows), &given}, {NULL, 0, NULL}};
    if (ex_options_parse(NAME, tables, argc, argv, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    if (given.help)
        print_help(tables);
    else if (given.version)
        printf(NAME ": libmemtrain %s, libtorch %s\n", mt_version_string(), mt_torch_version());
    else if (given.device)
        is_told = diagnose_device(given.device, given.budget);
    else
        diagnose(given.budget, argv[0]);
    if (given.configurations && !given.help && !given.version)
        is_told &= print_configurations(argv[0]);
    return ex_output_end(NAME) && is_told ? 0 : 1;
}
