/*
 * probe.c - a step by the primitives of memtrain/torch.h, without a policy; see probe.h.
 */
#include "probe.h"

#include <string.h>

/* One optimiser step in chunks of equal size. */
static mt_status take_step(mt_torch *torch, const mt_batch *batch, size_t micro, ex_probed *out) {
    mt_apply_result applied = MT_APPLY_RESULT_INIT;
    mt_status status = mt_begin(torch, batch);
    if (status != MT_OK) return status;
    out->peak_bytes = 0;
    out->seconds = 0;
    for (size_t first = 0; first < batch->count && status == MT_OK; first += micro) {
        mt_chunk_result chunk = MT_CHUNK_RESULT_INIT;
        size_t count = batch->count - first < micro ? batch->count - first : micro;
        status = mt_accumulate(torch, first, count, (double)count / (double)batch->count, &chunk);
        if (chunk.peak_bytes > out->peak_bytes) out->peak_bytes = chunk.peak_bytes;
        out->seconds += chunk.seconds;
    }
    if (status != MT_OK) {
        mt_status back = mt_rollback(torch);
        return back != MT_OK ? back : status;
    }
    status = mt_apply(torch, &applied);
    out->seconds += applied.seconds;
    return status;
}

static mt_status describe(mt_torch *torch, mt_backend_info *out) {
    mt_backend backend = MT_BACKEND_INIT;
    mt_status status = mt_torch_backend(torch, &backend);
    out->size = sizeof *out;
    return status == MT_OK ? backend.describe(backend.self, out) : status;
}

static mt_status measure(const ex_probe *how, mt_torch *torch, const mt_batch *batch,
                         ex_probed *out) {
    mt_memory memory = MT_MEMORY_INIT;
    size_t micro = how->micro_batch ? how->micro_batch : batch->count;
    mt_status status = how->frozen ? mt_torch_freeze(torch, how->frozen, 1) : MT_OK;
    if (status == MT_OK) status = describe(torch, &out->info);
    if (status == MT_OK && how->visit)
        status = mt_torch_visit_state(torch, how->visit, how->visit_user);
    if (status == MT_OK) status = take_step(torch, batch, micro, out);
    if (status == MT_OK) status = mt_device_memory(how->options.device, &memory);
    if (status == MT_OK) status = take_step(torch, batch, micro, out);
    if (status != MT_OK) return status;
    if (out->peak_bytes > memory.allocated_bytes)
        out->chunk_bytes = out->peak_bytes - memory.allocated_bytes;
    return MT_OK;
}

mt_status ex_probe_step(const ex_probe *how, const mt_batch *batch, ex_probed *out) {
    mt_model *model = NULL;
    mt_torch *torch = NULL;
    memset(out, 0, sizeof *out);
    mt_status status = how->model(how->user, &model);
    if (status == MT_OK) status = mt_torch_new(model, &how->options, &torch);
    if (status == MT_OK) status = measure(how, torch, batch, out);
    mt_torch_free(torch);
    mt_model_free(model);
    return status;
}
