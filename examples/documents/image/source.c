/*
 * source.c - the tensors of a sample; see source.h.
 */
#include "source.h"

static size_t element_bytes(mt_dtype dtype) {
    return dtype == MT_INT64 ? sizeof(int64_t) : dtype == MT_UINT8 ? 1 : sizeof(float);
}

size_t ex_tensor_bytes(const ex_tensor *tensor) {
    size_t bytes = element_bytes(tensor->dtype);
    for (size_t i = 0; i < tensor->dims; i++) bytes *= (size_t)tensor->shape[i];
    return bytes;
}

ex_tensor ex_tensor_seen(const ex_tensor *tensor) {
    ex_tensor seen = *tensor;
    if (seen.dtype == MT_UINT8) seen.dtype = MT_FLOAT32;
    return seen;
}

void ex_tensor_normalise(const ex_tensor *tensor, size_t samples, unsigned char *pixels,
                         float *floats) {
    size_t bytes = ex_tensor_bytes(tensor);
    for (size_t i = 0; i < samples; i++) {
        const ex_image picture = {(int)tensor->shape[2], (int)tensor->shape[1], pixels + i * bytes};
        ex_image_normalise(&picture, floats + i * bytes);
    }
}
