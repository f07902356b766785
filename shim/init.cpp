/*
 * init.cpp - the process: version check, the parts of libtorch for CUDA, ROCm and XPU, the allocator,
 * autograd's engine, seed, threads.
 */
#include "init.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>

#include <dlfcn.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "arguments.hpp"
#include "compat.hpp"
#include "cpu_memory.hpp"
#include "guard.hpp"
#include "injection.hpp"
#include "offload.hpp"
#include "openmp.hpp"

namespace memtrain::shim {
namespace {

std::atomic<bool> done{false};
std::mutex once;

/* Python's torch makes tensors before we are called, and may free them after we are gone. */
bool python_torch_is_loaded() {
#ifdef __APPLE__
    for (uint32_t i = 0; i < _dyld_image_count(); i++)
        if (std::strstr(_dyld_get_image_name(i), "libtorch_python.")) return true;
    return false;
#else
    void *library = dlopen("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) dlclose(library);
    return library != nullptr;
#endif
}

/*
 * What libtorch has for cards of a type in a library of its own, which is of no use without their driver. A libtorch for AMD's
 * cards calls them CUDA too; it has no other part, and brings the libraries of their driver along.
 */
struct Part {
    c10::DeviceType type;
    const char *library, *maker, *driver, *other_driver;
    std::string missing; /* why it is not loaded, once that was tried */
};

Part parts[] = {
    {c10::kCUDA, "libtorch_hip.so", "AMD", nullptr, nullptr, {}},
    {c10::kCUDA, "libtorch_cuda.so", "NVIDIA", "libcuda.so.1", nullptr, {}},
    {c10::kXPU, "libtorch_xpu.so", "Intel", "libze_loader.so.1", "libze_intel_gpu.so.1", {}},
};

#ifndef __APPLE__
/* For as long as the part is loaded with it. NULL: there is none. */
void *open_driver(const Part &part) {
    void *driver = dlopen(part.driver, RTLD_LAZY | RTLD_LOCAL);
    if (driver || !part.other_driver) return driver;
    return dlopen(part.other_driver, RTLD_LAZY | RTLD_LOCAL);
}

/* For the end of a line that begins with what is to be installed. */
std::string and_libtorch(const Part &part) {
    return ", and a libtorch for " + c10::DeviceTypeName(part.type) + " (docs/building.md)";
}

/*
 * A libtorch for another card, or for none, is no reason to warn: whoever wants this one is told by mt_device_check. Of two parts
 * for one type the one is told of that is there, or else NVIDIA's.
 */
void tell_missing(Part &part, const std::string &why) {
    bool is_absent = why.rfind(part.library, 0) == 0;
    if (is_absent && !part.driver) return;
    part.missing =
        "it cannot be loaded (" + why + "): install what is missing" + and_libtorch(part);
    mt_log(is_absent ? MT_LOG_INFO : MT_LOG_WARNING, "%s is left out: %s",
           c10::DeviceTypeName(part.type).c_str(), part.missing.c_str());
}
#endif

/*
 * libtorch asks for its part once, at the first query, so it has to be loaded before any other
 * call. Without the driver it is left alone: loading CUDA's takes seconds and 2 GB of address
 * space. A part that misses one of its own libraries stays away, and the CPU remains.
 */
void load(Part &part) {
#ifdef __APPLE__
    if (part.driver) part.missing = "macOS has no driver of " + std::string(part.maker) + "'s";
#else
    void *driver = part.driver ? open_driver(part) : nullptr;
    if (part.driver && !driver) {
        part.missing = std::string(part.maker) + "'s driver is missing (" + part.driver +
                       "): install it" + and_libtorch(part);
        return;
    }
    if (!dlopen(part.library, RTLD_NOW | RTLD_GLOBAL)) tell_missing(part, dlerror());
    if (driver) dlclose(driver);
#endif
}

mt_status check_version() {
    uint64_t version = compat::loaded();
    if (version == compat::built_for) return MT_OK;
    return mt_set_error(MT_ENOTSUP, "mt_torch_init: built for libtorch %d.%d, loaded is %d.%d",
                        TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, static_cast<int>(version >> 8),
                        static_cast<int>(version & 0xff));
}

mt_status init_once(const mt_torch_init_options &options) {
    std::lock_guard<std::mutex> lock(once);
    if (done) return MT_OK;
    MT_RETURN_IF_FAILED(check_version());
    for (Part &part : parts)
        if (options.cuda) load(part);
    bool is_python = python_torch_is_loaded();
    if (!options.keep_allocator && !is_python) cpu::install();
    if (!is_python) install_saving_hooks();
    if (!is_python) warn_of_spinning(0);
    done = true;
    return MT_OK;
}

} // namespace

mt_status ensure_init() noexcept {
    return done.load(std::memory_order_acquire) ? MT_OK : mt_torch_init(nullptr);
}

std::string why_absent(c10::DeviceType type) {
    std::string name = c10::DeviceTypeName(type);
    bool is_known = false;
    for (const Part &part : parts) {
        is_known |= part.type == type;
        if (part.type == type && !part.missing.empty())
            return name + " is not loaded: " + part.missing;
    }
    if (is_known)
        return name + " is not loaded: mt_torch_init was told to leave it (options->cuda is 0)";
    if (type == c10::kHIP) return "cards of AMD are named cuda";
    return "no library that brings " + name +
           " is loaded, with a c10::DeviceAllocator: load it before mt_torch_init";
}

std::string why_no_card(c10::DeviceType type) {
    std::string name = c10::DeviceTypeName(type);
    return "libtorch's part for " + name +
           " finds no card: there is none, or its driver is older than this libtorch wants (a "
           "warning to mt_set_log may say so): install a newer driver, or a libtorch for an older "
           "one (docs/building.md)";
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_init(const mt_torch_init_options *options) {
    mt_torch_init_options own = MT_TORCH_INIT_OPTIONS_INIT;
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, "mt_torch_init", "options"));
        copy_in(own, options);
    }
    return guard([&] { return init_once(own); });
}

extern "C" const char *mt_torch_version(void) {
    return TORCH_VERSION;
}

extern "C" int mt_torch_enforces_budget(void) {
    return cpu::installed();
}

extern "C" mt_status mt_torch_seed(uint64_t seed) {
    MT_RETURN_IF_FAILED(ensure_init());
    return guard([&] { at::manual_seed(seed); });
}

extern "C" mt_status mt_torch_set_threads(int threads) {
    if (threads < 1)
        return mt_set_error(MT_EINVAL, "mt_torch_set_threads: threads is %d, must be at least 1",
                            threads);
    MT_RETURN_IF_FAILED(ensure_init());
    if (!python_torch_is_loaded()) warn_of_spinning(threads);
    return guard([&] { at::set_num_threads(threads); });
}

extern "C" int mt_torch_get_threads(void) {
    int threads = 1;
    if (ensure_init() != MT_OK || guard([&] { threads = at::get_num_threads(); }) != MT_OK)
        return 1;
    return threads;
}

extern "C" mt_status mt_inject_oom(uint64_t nth, int persistent) {
    MT_RETURN_IF_FAILED(ensure_init());
    if (!cpu::installed())
        return mt_set_error(MT_ENOTSUP, "mt_inject_oom: our CPU allocator is not installed");
    return guard([&] {
        injection::reach_cards();
        injection::arm(nth, persistent != 0);
    });
}

extern "C" void mt_injected(uint64_t *out_requests, uint64_t *out_failed) {
    injection::read(out_requests, out_failed);
}
