/*
 * fit.cpp - an mt_torch as mt_fit wants it: files with a position, and the rate.
 */
#include <cstdio>

#include <memtrain/safetensors.h>
#include <memtrain/torch_fit.h>

#include "arguments.hpp"

namespace memtrain::shim {
namespace {

mt_status save(void *state, const char *path, const char *position) {
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    options.extra = position;
    return mt_torch_save(static_cast<mt_torch *>(state), path, &options);
}

/* A text that is longer is none of mt_fit's. */
mt_status position(void *, const char *path, char *text, size_t capacity) {
    mt_safetensors *file = nullptr;
    MT_RETURN_IF_FAILED(mt_safetensors_open(path, &file));
    const char *extra = mt_safetensors_metadata(file, "memtrain.extra");
    bool fits = extra && std::strlen(extra) < capacity;
    std::snprintf(text, capacity, "%s", fits ? extra : "");
    mt_safetensors_free(file);
    return MT_OK;
}

mt_status load(void *state, const char *path) {
    return mt_torch_load(static_cast<mt_torch *>(state), path, nullptr, 0);
}

mt_status set_lr(void *state, double rate) {
    return mt_torch_set_lr(static_cast<mt_torch *>(state), rate);
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_callbacks(mt_torch *torch, mt_fit_callbacks *out) {
    static const char name[] = "mt_torch_callbacks";
    constexpr size_t least = offsetof(mt_fit_callbacks, set_lr) + sizeof out->set_lr;
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, name, "torch"));
    MT_RETURN_IF_FAILED(check_not_null(out, name, "out"));
    if (out->size < least)
        return mt_set_error(MT_EINVAL,
                            "%s: out->size is %zu; accepted: that of MT_FIT_CALLBACKS_INIT", name,
                            out->size);
    out->state = torch;
    out->save = save;
    out->position = position;
    out->load = load;
    out->set_lr = set_lr;
    return MT_OK;
}
