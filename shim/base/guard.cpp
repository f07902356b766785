/*
 * guard.cpp - from exceptions to status codes, and the one function that tells OOM from the rest.
 */
#include "guard.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <memtrain/torch.h>

namespace memtrain::shim {
namespace {

/* Before any dynamic initialisation: who registers himself in one is not forgotten. */
constexpr Witness nobody = {[]() noexcept -> uint64_t { return 0; },
                            [](const Device &) noexcept -> int64_t { return 0; },
                            [](sim::Card *) noexcept -> sim::Card * { return nullptr; }};
Witness witness = nobody;

/* Per thread: how deep guards are nested, and what had been refused when the outermost began. */
struct Watch {
    int depth = 0;
    uint64_t refused = 0;
    Device device = c10::Device(c10::kCPU);
    int64_t ooms = 0; /* of a card with an allocator of libtorch's, or its model */
};

thread_local Watch watch;

Evidence evidence() noexcept {
    if (witness.host_refusals() != watch.refused) return Evidence::host;
    return witness.card_ooms(watch.device) != watch.ooms ? Evidence::card : Evidence::none;
}

/* An OOM is told once: what follows on this thread needs evidence of its own. */
void evidence_is_used() noexcept {
    watch.refused = witness.host_refusals();
    watch.ooms = witness.card_ooms(watch.device);
}

/*
 * The line of a text that says the most: the first that is not empty, but the last one of TorchScript,
 * whose first line only says that something failed.
 */
void best_line(const char *text, const char **out_start, int *out_length) {
    static const char script[] = "The following operation failed in the TorchScript interpreter";
    const char *start = text + std::strspn(text, "\r\n");
    if (std::strncmp(text, script, sizeof script - 1) == 0) {
        for (const char *p = text; *p; p++)
            if (p[0] == '\n' && p[1] && p[1] != '\n') start = p + 1;
    }
    *out_start = start;
    *out_length = static_cast<int>(std::strcspn(start, "\r\n"));
}

const char broken[] =
    "; the device serves this process no more: it has to be started anew, and can go on "
    "from its last checkpoint";
const char too_old_card[] =
    "; this libtorch has no kernels for the card: install one that has (docs/building.md)";
const char too_old_driver[] = "; the driver is older than what this libtorch wants: install a "
                              "newer one, or a libtorch for an "
                              "older one (docs/building.md)";

/* What libtorch's words mean here, and what helps; "" where they say enough. */
const char *remedy(const char *text) noexcept {
    static const struct {
        const char *words, *remedy;
    } table[] = {
        {"Expected more than 1 value per channel when training",
         "; a layer that normalises over the batch has nothing to normalise over in a chunk of "
         "one: a min_micro_batch of at least 2 is accepted, or larger samples; where the batch has "
         "one sample, drop_small or mt_fit's drop_last leaves it out"},
        {" error: an illegal memory access", broken}, /* CUDA error, or HIP error */
        {" error: device-side assert", broken},
        {" error: unspecified launch failure", broken},
        {" error: uncorrectable ECC error", broken},
        {" error: misaligned address", broken},
        {" error: an illegal instruction", broken},
        {" error: the launch timed out", broken},
        {" error: hardware stack error", broken},
        {" error: invalid program counter", broken},
        {" error: operation not supported on global/shared address space", broken},
        {" error: uncorrectable NVLink error", broken},
        {"CUDA-capable device(s) is/are busy or unavailable",
         "; another process may have the card to itself (its compute mode)"},
        /*
         * XPU, by SYCL's Unified Runtime: ur_api.h. Its plugins (PI) had none of these names, and are no part of the SYCL that a
         * supported libtorch is built with.
         */
        {"UR_RESULT_ERROR_DEVICE_LOST", broken},
        {"UR_RESULT_ERROR_DEVICE_REQUIRES_RESET", broken},
        {"no kernel image is available for execution", too_old_card},
        {"driver version is insufficient", too_old_driver},
        {"driver on your system is too old", too_old_driver},
    };
    for (const auto &row : table)
        if (std::strstr(text, row.words)) return row.remedy;
    return "";
}

mt_status describe(bool typed, const char *text) noexcept {
    mt_status status = classify(evidence(), typed, text);
    const char *line;
    int length;
    best_line(text, &line, &length);
    evidence_is_used();
    return mt_set_error(status, "%.*s%s", length, line, remedy(text));
}

const char unseen[] = "memory ran out; the exception that said so is not seen by this library: the "
                      "program has a C++ runtime of its own (-static-libstdc++)";
const char unseen_hint[] =
    " that this library sees; accepted: a call within catch, in a program that shares its C++ "
    "runtime (without -static-libstdc++)";

/* libtorch would print them. */
class LogWarnings : public c10::WarningHandler {
public:
    void process(const c10::Warning &warning) override {
        mt_log(MT_LOG_WARNING, "libtorch: %s", warning.msg().c_str());
    }
};

LogWarnings log_warnings;

} // namespace

void register_witness(const Witness &allocators) noexcept {
    witness = allocators;
}

Failure::Failure(mt_status status) noexcept : status_(status) {
    std::snprintf(line_, sizeof line_, "%s", mt_last_error());
}

void fail(mt_status status, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    throw Failure(mt_set_error(status, "%s", text));
}

void check(mt_status status) {
    if (status != MT_OK) throw Failure(status);
}

namespace {

bool has_one(const char *text, const char *const *list, size_t count) noexcept {
    for (size_t i = 0; i < count; i++)
        if (std::strstr(text, list[i])) return true;
    return false;
}

/*
 * Texts of what throws a plain c10::Error, each with the file of PyTorch's that says it or the library that it comes from. A
 * library that is not initialised could not make its handle, which it does at its first use, and for which a full card has no
 * room. AMD's libraries have CUDA's texts with HIP in place of CU, or names of their own.
 */
const char *const texts_of_memory[] = {
    "out of memory",               /* MPSAllocator.mm; CUDA's and AMD's runtime: CUDAException.cpp;
                                      an OutOfMemoryError that a C++ layer has turned into its text */
    "can't allocate memory",       /* alloc_cpu.cpp */
    "not enough memory",           /* the same on Windows */
    "Invalid buffer size",         /* MPSAllocator.mm: larger than a buffer of Metal's can be */
    "BLAS_STATUS_ALLOC_FAILED",    /* cuBLAS, by ATen/cuda/Exceptions.cpp */
    "BLAS_STATUS_NOT_INITIALIZED", /* the same, at cublasCreate: CublasHandlePool.cpp */
    "SOLVER_STATUS_ALLOC_FAILED",  /* cuSOLVER, by ATen/cuda/Exceptions.cpp */
    "SOLVER_STATUS_NOT_INITIALIZED",
    "when calling `cusolverDnCreate", /* whatever it says of a handle that it could not make: CUDASolverHandlePool.cpp */
    "SPARSE_STATUS_ALLOC_FAILED", /* cuSPARSE, by its cusparseGetErrorString */
    "SPARSE_STATUS_INSUFFICIENT_RESOURCES",
    "FFT_ALLOC_FAILED",          /* cuFFT, by ATen/native/cuda/CuFFTUtils.h */
    "CUDNN_STATUS_ALLOC_FAILED", /* cuDNN, by its cudnnGetErrorString: ATen/cudnn/Exceptions.h */
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", /* from cuDNN 9 on */
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "miopenStatusAllocFailed", /* MIOpen, by its miopenGetErrorString: ATen/miopen/Exceptions.h */
    "miopenStatusNotInitialized",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", /* SYCL's Unified Runtime: ur_api.h */
    "UR_RESULT_ERROR_OUT_OF_HOST_MEMORY",
    "UR_RESULT_ERROR_OUT_OF_RESOURCES",
    "std::bad_alloc", /* libstdc++ and libc++: what() of one that a layer has turned into its text */
};

/* Texts behind which a refusal hides, and other things too. */
const char *const texts_that_hide[] = {
    "The following operation failed in the TorchScript interpreter", /* torch/csrc/jit/runtime/interpreter.cpp */
    "unable to find an engine", /* cuDNN has tried all: ATen/native/cudnn/Conv_v8.cpp */
    "Unable to find a valid cuDNN algorithm", /* ATen/native/cudnn/Conv_v7.cpp */
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "BLAS_STATUS_EXECUTION_FAILED",
    "miopenStatusUnknownError",
    "miopenStatusInternalError",
    "could not create a",                     /* oneDNN: dnnl.hpp */
    "could not execute a primitive",          /* the same */
    "an exception that is no std::exception", /* below: an extension throws what it likes */
};

} // namespace

/*
 * The host's allocator is ours, and whoever it refuses does not go on. A card's counts refusals that a library has met and done
 * without: an error that comes after one is another thing, unless its text is one that hides it.
 */
mt_status classify(Evidence evidence, bool typed, const char *text) noexcept {
    if (typed || evidence == Evidence::host) return MT_EDEVMEM;
    if (has_one(text, texts_of_memory, std::size(texts_of_memory))) return MT_EDEVMEM;
    bool hides = has_one(text, texts_that_hide, std::size(texts_that_hide));
    return hides && evidence == Evidence::card ? MT_EDEVMEM : MT_ETORCH;
}

/*
 * A file's failure in a function of ours that the model's code has called: in C++ it goes on as an exception with our line, and
 * is the same failure still when it comes back.
 */
thread_local char last_io_line[512];

static mt_status remember(const Failure &failure) {
    if (failure.status() == MT_EIO)
        std::snprintf(last_io_line, sizeof last_io_line, "%s", failure.what());
    return mt_set_error(failure.status(), "%s", failure.what());
}

static bool is_last_io(const char *text) {
    return *text && std::strcmp(text, last_io_line) == 0;
}

/* what() of a c10::Error symbolises the backtrace (13 ms): what_without_backtrace() does not. */
mt_status describe_exception() noexcept {
    try {
        throw;
    } catch (const Failure &e) {
        return remember(e);
    } catch (const c10::OutOfMemoryError &e) {
        return describe(true, e.what_without_backtrace());
    } catch (const std::bad_alloc &) {
        return describe(true, "out of host memory");
    } catch (const c10::Error &e) {
        return describe(false, e.what_without_backtrace());
    } catch (const std::exception &e) {
        if (is_last_io(e.what())) return mt_set_error(MT_EIO, "%s", e.what());
        return describe(false, e.what());
    } catch (...) {
        return describe(false, "an exception that is no std::exception");
    }
}

bool is_of_card(const std::exception &error) noexcept {
    auto *torch = dynamic_cast<const c10::Error *>(&error);
    const char *text = torch ? torch->what_without_backtrace() : error.what();
    bool typed = dynamic_cast<const c10::OutOfMemoryError *>(&error) ||
                 dynamic_cast<const std::bad_alloc *>(&error);
    return classify(evidence(), typed, text) == MT_EDEVMEM || *remedy(text);
}

Scope::Scope(const Device &device) noexcept
    : grad_mode_(c10::GradMode::is_enabled()), on_card_(device.card), warnings_(&log_warnings),
      watched_before_(watch.device), ooms_before_(watch.ooms) {
    if (on_card_) card_before_ = witness.swap_card(device.card);
    if (c10::InferenceMode::is_enabled()) normal_.emplace(false);
    if (watch.depth++ == 0) watch.refused = witness.host_refusals();
    if (device.memory() != Memory::allocator) return;
    try {
        if (!device.is_cpu()) device_.emplace(device);
    } catch (...) {
        /* The body will meet the same error, and report it. */
    }
    watch.device = device;
    watch.ooms = witness.card_ooms(device);
}

Scope::~Scope() {
    if (on_card_) witness.swap_card(card_before_);
    watch.depth--;
    watch.device = watched_before_;
    watch.ooms = ooms_before_;
    c10::GradMode::set_enabled(grad_mode_);
    if (watch.depth == 0) watch.refused = witness.host_refusals();
}

} // namespace memtrain::shim

/* What a program with another C++ runtime has caught is none for this one. A refusal is one for both. */
extern "C" mt_status mt_torch_exception(void) {
    using namespace memtrain::shim;
    if (std::current_exception()) return describe_exception();
    if (evidence() != Evidence::none) return describe(true, unseen);
    return mt_set_error(MT_ESTATE, "mt_torch_exception: no exception is in flight%s", unseen_hint);
}
