/*
 * init.cpp - the process: version check, CUDA's part of libtorch, the allocator,
 * autograd's engine, seed, threads.
 */
#include "init.hpp"

#include <atomic>
#include <cstring>
#include <mutex>

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
 * libtorch asks for its CUDA part once, at the first query, so it has to be loaded before any other
 * call. Without NVIDIA's driver it is left alone: loading it takes seconds and 2 GB of address
 * space. A part that misses one of its own libraries stays away, and the CPU remains.
 */
void load_cuda() {
#ifndef __APPLE__
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!driver) return;
    if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
        mt_log(MT_LOG_WARNING, "CUDA is left out: %s", dlerror());
    dlclose(driver);
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
    if (options.cuda) load_cuda();
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
    cpu::inject(nth, persistent != 0);
    return MT_OK;
}

extern "C" void mt_injected(uint64_t *out_requests, uint64_t *out_failed) {
    cpu::injected(out_requests, out_failed);
}
