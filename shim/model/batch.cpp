/* batch.cpp - checks of a batch and of a part of it. */
#include "batch.hpp"

#include "arguments.hpp"
#include "fnv.hpp"
#include "guard.hpp"
#include "tensor.hpp"

namespace memtrain::shim {
namespace {

/* Samples of tensor i: its size in dimension 0. */
uint64_t samples_of(const char *function, const mt_torch_batch &batch, size_t i) {
    const mt_tensor *handle = batch.tensors[i];
    if (!handle) fail(MT_EINVAL, "%s: tensor %zu of the batch is NULL", function, i);
    if (!mt__handle_is(handle, MT__KIND_TENSOR))
        fail(MT_EINVAL, "%s: tensor %zu of the batch is not a live handle", function, i);
    const at::Tensor &tensor = handle->tensor;
    if (!tensor.defined()) fail(MT_EINVAL, "%s: tensor %zu of the batch is undefined", function, i);
    if (tensor.layout() != c10::kStrided || tensor.is_meta())
        fail(MT_EINVAL,
             "%s: tensor %zu of the batch is %s; accepted: a dense tensor with data, of which "
             "samples can be taken",
             function, i,
             tensor.is_meta() ? "a meta tensor, which has no data" : "not strided (sparse, say)");
    if (tensor.dim() < 1)
        fail(MT_EINVAL, "%s: tensor %zu of the batch has no dimension of samples", function, i);
    return static_cast<uint64_t>(tensor.size(0));
}

/* All tensors have the same samples, of which a step may take the first ones. */
void check_tensors(const char *function, const mt_torch_batch &batch, size_t count) {
    const uint64_t samples = samples_of(function, batch, 0);
    for (size_t i = 1; i < batch.count; i++) {
        const uint64_t other = samples_of(function, batch, i);
        if (other != samples)
            fail(MT_EINVAL,
                 "%s: tensor 0 has %llu samples, tensor %zu has %llu; accepted: as many in "
                 "dimension 0 "
                 "of each, the batch first",
                 function, static_cast<unsigned long long>(samples), i,
                 static_cast<unsigned long long>(other));
    }
    if (count > samples)
        fail(MT_EINVAL, "%s: batch->count is %zu; accepted: 1 to %llu, the samples of the tensors",
             function, count, static_cast<unsigned long long>(samples));
}

} // namespace

mt_torch_batch batch_of(const char *function, const mt_batch *batch) {
    check(check_sized(batch, function, "batch"));
    if (batch->size < offsetof(mt_batch, id))
        fail(MT_EINVAL, "%s: batch->size is %zu; accepted: sizeof(mt_batch)", function,
             batch->size);
    if (!batch->count) fail(MT_EINVAL, "%s: batch->count is 0; accepted: at least 1", function);
    const auto *data = static_cast<const mt_torch_batch *>(batch->data);
    check(check_sized(data, function, "batch->data"));
    mt_torch_batch own = MT_TORCH_BATCH_INIT;
    copy_in(own, data);
    check(check_not_null(own.tensors, function, "batch->data->tensors"));
    if (own.count < 1 || own.count > MT_TENSORS_MAX)
        fail(MT_EINVAL, "%s: batch->data->count is %zu; accepted: 1 to %d tensors", function,
             own.count, MT_TENSORS_MAX);
    check_tensors(function, own, batch->count);
    return own;
}

mt_shape shape_of(const mt_torch_batch &batch) {
    Fnv id, family;
    size_t length = 0;
    for (size_t i = 0; i < batch.count; i++) {
        const at::Tensor &tensor = batch.tensors[i]->tensor;
        auto type = static_cast<uint64_t>(tensor.scalar_type());
        size_t elements = 1;
        id.add(type);
        family.add(type);
        family.add(static_cast<uint64_t>(tensor.dim()));
        for (int64_t size : tensor.sizes().slice(1)) {
            id.add(static_cast<uint64_t>(size));
            elements *= static_cast<size_t>(size);
        }
        length += elements;
    }
    return {id.value(), family.value(), length};
}

void check_samples(const char *function, size_t first, size_t count, size_t samples) {
    if (first >= samples)
        fail(MT_EINVAL, "%s: first is %zu; accepted: 0 to %zu", function, first, samples - 1);
    if (count < 1 || count > samples - first)
        fail(MT_EINVAL, "%s: count is %zu; accepted: 1 to %zu from sample %zu on", function, count,
             samples - first, first);
}

} // namespace memtrain::shim
