/*
 * needed.c - one network without the budget, and a forecast of its chunks; see needed.h.
 */
#include "needed.h"

#include <memtrain/forecast.h>
#include <stdio.h>
#include <stdlib.h>

static const size_t mib = (size_t)1 << 20;

/* The first samples as a batch, which is the source's. */
static mt_status load(const ex_needed *run, mt_batch *out) {
    size_t count = run->batch < run->source->samples ? run->batch : run->source->samples;
    size_t *index = calloc(count + 1, sizeof *index);
    if (!index) return mt_set_error(MT_ENOMEM, "out of host memory");
    for (size_t i = 0; i < count; i++) index[i] = i;
    *out = (mt_batch){.size = sizeof *out, .count = count};
    mt_status status = run->source->load(run->source->self, index, count, out);
    free(index);
    return status;
}

/* The finest cut of the batch, or the batch as a whole, which needs no second set of gradients. */
static mt_status least_of(const mt_forecast *f, size_t count, size_t least, size_t *out) {
    mt_chunk_need fine = MT_CHUNK_NEED_INIT, whole = MT_CHUNK_NEED_INIT;
    size_t chunks = least > 1 && least < count ? count / least : least < count ? count : 1;
    mt_status status = mt_forecast_need(f, count, (count + chunks - 1) / chunks, &fine);
    if (status == MT_OK) status = mt_forecast_need(f, count, count, &whole);
    *out = fine.peak_bytes < whole.peak_bytes ? fine.peak_bytes : whole.peak_bytes;
    *out = (*out + mib - 1) / mib * mib;
    return status;
}

static mt_status forecast(const ex_needed *run, const mt_backend *backend, size_t *state,
                          size_t *all) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_backend_info info = {.size = sizeof info};
    mt_forecast *f = NULL;
    mt_batch batch;
    mt_plan plan;
    policy.keep_chunks = MT_KEEP_NEVER;
    mt_status status = backend->describe(backend->self, &info);
    if (status == MT_OK) {
        *state = info.parameter_bytes + info.buffer_bytes + info.gradient_bytes;
        *state += info.optimizer_bytes;
        status = load(run, &batch);
    }
    if (status == MT_OK) status = mt_forecast_new(backend, &batch, &policy, &f);
    if (status == MT_OK) status = mt_forecast_step(f, &plan);
    if (status == MT_OK) status = mt_forecast_record(f);
    if (status == MT_OK) status = least_of(f, batch.count, info.min_micro_batch, all);
    mt_forecast_free(f);
    return status;
}

void ex_needed_budget(const ex_needed *run, size_t *state, size_t *all) {
    mt_backend backend = MT_BACKEND_INIT;
    mt_model *model = NULL;
    mt_torch *torch = NULL;
    *state = *all = 0;
    mt_status status = mt_device_set_budget("cpu", 0);
    if (status == MT_OK) status = run->model(run->user, &model);
    if (status == MT_OK) status = mt_torch_new(model, run->options, &torch);
    if (status == MT_OK) status = mt_torch_backend(torch, &backend);
    if (status == MT_OK) status = forecast(run, &backend, state, all);
    if (status != MT_OK) *all = 0;
    mt_torch_free(torch);
    mt_model_free(model);
}

void ex_needed_print(const char *program, const ex_needed *run, size_t budget) {
    char text[3][32];
    size_t state, all;
    ex_needed_budget(run, &state, &all);
    mt_format_size(state, text[0], sizeof text[0]);
    mt_format_size(budget, text[1], sizeof text[1]);
    mt_format_size(all, text[2], sizeof text[2]);
    if (state > budget)
        fprintf(stderr,
                "%s: the network alone, with its gradients and the optimiser's state, takes %s, "
                "above the budget of %s\n",
                program, text[0], text[1]);
    if (all) fprintf(stderr, "%s: a budget of %s fits, with activations\n", program, text[2]);
}
