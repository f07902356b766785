/*
 * rehearse.c - batches of small pictures, cut from one large picture; see rehearse.h.
 */
#include "rehearse.h"

#include <stdlib.h>
#include <string.h>

/* Sides of the small pictures. */
enum { LONGEST = 160 };
static const int64_t sides[MT_REHEARSAL_LENGTHS] = {96, 128, LONGEST};

int ex_rehearse_wants(int64_t mode, int64_t side) {
    return mode == EX_REHEARSE_ON || (mode == EX_REHEARSE_AUTO && side > 256);
}

int ex_rehearse_is_dry(int64_t mode, int64_t side) {
    return mode == EX_REHEARSE_AUTO && side > LONGEST;
}

/* The same tensor of a smaller picture. */
static ex_tensor shrink(const ex_tensor *tensor, int64_t from, int64_t to) {
    ex_tensor small = *tensor;
    for (size_t d = 0; d < small.dims; d++)
        if (small.shape[d] == from) small.shape[d] = to;
    return small;
}

/* The upper left corner, in each dimension. */
static void cut(const ex_tensor *large, const ex_tensor *small, size_t dim, const char *from,
                char *to) {
    if (dim == large->dims) {
        memcpy(to, from, large->dtype == MT_INT64 ? 8 : 4);
        return;
    }
    ex_tensor inner_large = *large, inner_small = *small;
    for (size_t d = 0; d <= dim; d++) inner_large.shape[d] = inner_small.shape[d] = 1;
    size_t stride = ex_tensor_bytes(&inner_large), step = ex_tensor_bytes(&inner_small);
    for (int64_t i = 0; i < small->shape[dim]; i++)
        cut(large, small, dim + 1, from + (size_t)i * stride, to + (size_t)i * step);
}

static void free_batch(ex_rehearsal *r) {
    for (size_t t = 0; t < EX_TENSORS; t++) {
        mt_tensor_free(r->tensors[t]);
        free(r->buffers[t]);
        r->tensors[t] = NULL;
        r->buffers[t] = NULL;
    }
}

/* All samples are the same one: what a chunk allocates does not depend on what is in it. */
static mt_status make_tensor(ex_rehearsal *r, size_t t, int64_t side) {
    const ex_tensor *large = &r->source.tensors[t];
    ex_tensor small = shrink(large, r->side, side);
    size_t bytes = ex_tensor_bytes(&small), samples = r->batch.count;
    int64_t shape[EX_DIMS + 1] = {(int64_t)samples};
    memcpy(shape + 1, small.shape, sizeof small.shape);
    char *buffer = malloc(bytes * samples);
    if (!buffer) return mt_set_error(MT_ENOMEM, "out of host memory");
    r->buffers[t] = buffer;
    cut(large, &small, 0, r->sample[t], buffer);
    for (size_t i = 1; i < samples; i++) memcpy(buffer + i * bytes, buffer, bytes);
    return mt_tensor_from_memory(buffer, small.dtype, small.dims + 1, shape, &r->tensors[t]);
}

/* pixels: the square of the side. */
static mt_status make_batch(void *user, size_t pixels, mt_batch *out) {
    ex_rehearsal *r = user;
    mt_status status = MT_OK;
    int64_t side = 0;
    for (size_t i = 0; i < MT_REHEARSAL_LENGTHS; i++)
        if ((size_t)(sides[i] * sides[i]) == pixels) side = sides[i];
    free_batch(r);
    for (size_t t = 0; t < r->source.tensor_count && status == MT_OK; t++)
        status = make_tensor(r, t, side);
    r->torch = (mt_torch_batch){sizeof r->torch, r->tensors, r->source.tensor_count};
    *out = (mt_batch){sizeof *out, &r->torch, r->batch.count, 0};
    return status;
}

/* Pixels become floats, as they do in a batch. */
static mt_status show(ex_rehearsal *r, size_t t) {
    ex_tensor *tensor = &r->source.tensors[t], seen = ex_tensor_seen(tensor);
    if (seen.dtype == tensor->dtype) return MT_OK;
    void *floats = malloc(ex_tensor_bytes(&seen));
    if (!floats) return mt_set_error(MT_ENOMEM, "out of host memory");
    ex_tensor_normalise(tensor, 1, r->sample[t], floats);
    free(r->sample[t]);
    r->sample[t] = floats;
    *tensor = seen;
    return MT_OK;
}

static mt_status render(ex_rehearsal *r) {
    ex_error error;
    mt_status status = MT_OK;
    for (size_t t = 0; t < r->source.tensor_count; t++)
        if (!(r->sample[t] = malloc(ex_tensor_bytes(&r->source.tensors[t]))))
            return mt_set_error(MT_ENOMEM, "out of host memory");
    if (r->source.fill(r->source.self, EX_TRAINING, 1, 0, 1, r->sample, &error) != EX_OK)
        return mt_set_error(MT_EINVAL, "a sample could not be rendered: %s", error.text);
    for (size_t t = 0; t < r->source.tensor_count && status == MT_OK; t++) status = show(r, t);
    return status;
}

static mt_status try_chunk(const ex_rehearsal *r, size_t samples) {
    const mt_backend *b = &r->backend;
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    mt_status status = b->begin(b->self, &r->batch);
    if (status != MT_OK) return status;
    status = b->accumulate(b->self, 0, samples, (double)samples / (double)r->batch.count, &result);
    mt_status back = b->rollback(b->self);
    return back != MT_OK ? back : status;
}

mt_status ex_rehearse_open(const mt_backend *backend, const ex_source *source, int64_t side,
                           size_t samples, size_t least, ex_rehearsal *out) {
    mt_rehearsal_options options = MT_REHEARSAL_OPTIONS_INIT;
    memset(out, 0, sizeof *out);
    if (side % 32 || side < LONGEST)
        return mt_set_error(
            MT_ENOTSUP,
            "pictures of %lld pixels cannot be rehearsed; accepted: a multiple of 32, "
            "at least %d",
            (long long)side, LONGEST);
    out->source = *source;
    out->side = side;
    out->batch = (mt_batch){sizeof out->batch, NULL, samples, 0};
    options.backend = backend;
    options.batch = make_batch;
    options.user = out;
    options.length = (size_t)(side * side);
    for (size_t i = 0; i < MT_REHEARSAL_LENGTHS; i++)
        options.short_lengths[i] = (size_t)(sides[i] * sides[i]);
    mt_status status = render(out);
    if (status == MT_OK) status = mt_rehearsal_new(&options, &out->rehearsal);
    if (status == MT_OK) status = mt_rehearsal_backend(out->rehearsal, &out->backend);
    return status == MT_OK ? try_chunk(out, least) : status;
}

void ex_rehearse_close(ex_rehearsal *r) {
    mt_rehearsal_free(r->rehearsal);
    free_batch(r);
    for (size_t t = 0; t < EX_TENSORS; t++) free(r->sample[t]);
    memset(r, 0, sizeof *r);
}
