/*
 * check_shim_sizes.cpp - callers of an older version: every struct of libmemtrain_torch that begins with its size,
 * at each size that it can have, against the end of its memory.
 */
#include <cstddef>

#include <memtrain/tensor.h>

#include "check_shim.hpp"
#include "edge.h"

using namespace check_shim;

namespace {

Trainer *trainer;
Batch *batch;
mt_model_ops least_ops = MT_MODEL_OPS_INIT;

/* A model of one parameter, as far as its ops go. */
struct One {
    at::Tensor weight = at::ones({2}).requires_grad_();

    One() {
        least_ops.visit_parameters = [](void *self, mt_visit_fn fn, void *user) {
            return mt_visit_tensor(&static_cast<One *>(self)->weight, "weight", fn, user);
        };
        least_ops.loss = [](void *self, mt_tensor *const *, size_t, mt_tensor *loss, mt_tensor *) {
            memtrain::tensor(loss) = static_cast<One *>(self)->weight.sum();
            return MT_OK;
        };
    }
} * one;

mt_status train(mt_model *model, const mt_torch_options *options) {
    mt_torch *torch;
    mt_status status = mt_torch_new(model, options, &torch);
    if (status == MT_OK) status = mt_train_step(torch, batch->get(), nullptr, nullptr);
    mt_torch_free(torch);
    return status;
}

mt_status made(const mt_model_ops *ops, const mt_model_traits *traits) {
    mt_model *model;
    mt_status status = mt_model_new(ops, one, traits, &model);
    if (status == MT_OK) status = train(model, nullptr);
    mt_model_free(model);
    return status;
}

template <class Struct> const Struct *as(void *given) {
    return static_cast<const Struct *>(given);
}
template <class Struct> Struct *into(void *given) {
    return static_cast<Struct *>(given);
}

mt_status of_options(const mt_torch_options *options) {
    mt_model *model;
    ck_ok(mt_model_new(&least_ops, one, nullptr, &model));
    mt_status status = train(model, options);
    mt_model_free(model);
    return status;
}

mt_status of_group(void *given) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.groups = as<mt_parameter_group>(given);
    options.group_count = 1;
    return of_options(&options);
}

mt_status of_wrap(void *given) {
    mt_tensor *tensor;
    mt_status status = mt_tensor_wrap(as<mt_tensor_memory>(given), &tensor);
    mt_tensor_free(tensor);
    return status;
}

mt_status of_batch_data(void *given) {
    mt_batch own = *batch->get();
    own.data = given;
    return mt_train_step(trainer->torch, &own, nullptr, nullptr);
}

mt_status of_file(const mt_torch_save_options *saving, const mt_weights_options *loading) {
    char path[] = "/tmp/check_shim_sizes.XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    mt_status status = saving ? mt_torch_save(trainer->torch, path, saving)
                              : mt_model_save_weights(trainer->model, path);
    if (status == MT_OK && loading) status = mt_model_load_weights(trainer->model, path, loading);
    unlink(path);
    unlink((std::string(path) + ".1").c_str());
    return status;
}

/* Inside a step: a chunk's result, and that of the update. */
mt_status of_chunk(void *given) {
    ck_ok(mt_begin(trainer->torch, batch->get()));
    mt_status status = mt_accumulate(trainer->torch, 0, 4, 1.0, into<mt_chunk_result>(given));
    ck_ok(mt_rollback(trainer->torch));
    return status;
}

mt_status of_apply(void *given) {
    mt_chunk_result chunk = chunk_result();
    ck_ok(mt_begin(trainer->torch, batch->get()));
    ck_ok(mt_accumulate(trainer->torch, 0, 4, 1.0, &chunk));
    return mt_apply(trainer->torch, into<mt_apply_result>(given));
}

mt_status of_segment(void *given) {
    mt_tensor *tensors[2];
    for (mt_tensor *&tensor : tensors) ck_ok(mt_tensor_new(&tensor));
    memtrain::tensor(tensors[0]) = at::ones({2}).requires_grad_();
    mt_status status =
        mt_checkpoint(as<mt_segment_ops>(given), nullptr, tensors, 1, tensors + 1, 1);
    if (status == MT_OK) memtrain::tensor(tensors[1]).sum().backward();
    for (mt_tensor *tensor : tensors) mt_tensor_free(tensor);
    return status;
}

mt_status of_end(const mt_conv *conv, const mt_batch_norm *norm) {
    mt_segment_ops ops = MT_SEGMENT_OPS_INIT;
    mt_tensor *tensors[2];
    for (mt_tensor *&tensor : tensors) ck_ok(mt_tensor_new(&tensor));
    memtrain::tensor(tensors[0]) = at::ones({2, 3, 4}).requires_grad_();
    ops.run = [](void *, mt_tensor *const *in, size_t, mt_tensor *const *out, size_t) {
        memtrain::tensor(out[0]) = memtrain::tensor(in[0]) * 2;
        return MT_OK;
    };
    ops.conv = conv;
    ops.batch_norm = norm;
    mt_status status = mt_checkpoint(&ops, nullptr, tensors, 1, tensors + 1, 1);
    for (mt_tensor *tensor : tensors) mt_tensor_free(tensor);
    return status;
}

mt_status of_conv(void *given) {
    return of_end(as<mt_conv>(given), nullptr);
}

mt_status of_batch_norm(void *given) {
    return of_end(nullptr, as<mt_batch_norm>(given));
}

/* As the library hands it out, of each size. */
template <class Struct>
void each(const char *name, size_t least, const Struct &initial, mt_status (*call)(void *)) {
    edge_row row = {name, sizeof initial, least, &initial, call};
    edge_each(&row);
}

} // namespace

/* While no tensor lies on the card. */
TEST("sizes", a_card) {
    mt_sim_options card = MT_SIM_OPTIONS_INIT;
    each("mt_sim_options", 0, card,
         [](void *given) { return mt_device_simulate("sim", as<mt_sim_options>(given)); });
}

TEST("sizes", what_comes_in) {
    Trainer own(options_of(MT_SGD));
    Batch four(4);
    One model;
    trainer = &own, batch = &four, one = &model;
    float number = 1;
    mt_torch_init_options init = MT_TORCH_INIT_OPTIONS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    mt_parameter_group group = MT_PARAMETER_GROUP_INIT;
    mt_torch_save_options saving = MT_TORCH_SAVE_OPTIONS_INIT;
    mt_weights_options loading = MT_WEIGHTS_OPTIONS_INIT;
    mt_segment_ops segment = MT_SEGMENT_OPS_INIT;
    mt_tensor_memory memory = MT_TENSOR_MEMORY_INIT;
    memtrain::detail::Handle weight(at::ones({2, 3, 2}));
    mt_conv conv = MT_CONV_INIT;
    mt_batch_norm norm = MT_BATCH_NORM_INIT;
    conv.weight = weight.get();
    memory.data = &number, memory.dtype = MT_FLOAT32;
    group.pattern = "w";
    segment.run = [](void *, mt_tensor *const *in, size_t, mt_tensor *const *out, size_t) {
        memtrain::tensor(out[0]) = memtrain::tensor(in[0]) * 2;
        return MT_OK;
    };
    each("mt_torch_init_options", 0, init,
         [](void *given) { return mt_torch_init(as<mt_torch_init_options>(given)); });
    each("mt_model_ops", offsetof(mt_model_ops, units), least_ops,
         [](void *given) { return made(as<mt_model_ops>(given), nullptr); });
    each("mt_model_traits", 0, traits,
         [](void *given) { return made(&least_ops, as<mt_model_traits>(given)); });
    each("mt_torch_options", 0, options,
         [](void *given) { return of_options(as<mt_torch_options>(given)); });
    each("mt_parameter_group", offsetof(mt_parameter_group, lr_factor), group, of_group);
    each("mt_torch_save_options", 0, saving,
         [](void *given) { return of_file(as<mt_torch_save_options>(given), nullptr); });
    each("mt_weights_options", 0, loading,
         [](void *given) { return of_file(nullptr, as<mt_weights_options>(given)); });
    each("mt_segment_ops", offsetof(mt_segment_ops, visit_buffers), segment, of_segment);
    each("mt_conv", offsetof(mt_conv, bias), conv, of_conv);
    each("mt_batch_norm", offsetof(mt_batch_norm, weight), norm, of_batch_norm);
    each("mt_tensor_memory", offsetof(mt_tensor_memory, dims), memory, of_wrap);
    each("mt_batch", sizeof(mt_batch), *four.get(), [](void *given) {
        return mt_train_step(trainer->torch, as<mt_batch>(given), nullptr, nullptr);
    });
    each("mt_torch_batch", sizeof(mt_torch_batch),
         *static_cast<const mt_torch_batch *>(four.get()->data), of_batch_data);
}

TEST("sizes", what_goes_out) {
    Trainer own(options_of(MT_SGD));
    Batch four(4);
    trainer = &own, batch = &four;
    mt_tensor_info info = MT_TENSOR_INFO_INIT;
    mt_arena_stats arena = MT_ARENA_STATS_INIT;
    mt_segments_stats segments = MT_SEGMENTS_STATS_INIT;
    mt_offload_stats offload = MT_OFFLOAD_STATS_INIT;
    mt_resident resident = MT_RESIDENT_INIT;
    mt_backend seam = MT_BACKEND_INIT;
    mt_memory memory = {};
    mt_clear_result cleared = {};
    mt_sim_stats card = {};
    each("mt_backend", 0, seam,
         [](void *given) { return mt_torch_backend(trainer->torch, into<mt_backend>(given)); });
    each("mt_arena_stats", 0, arena,
         [](void *given) { return mt_torch_arena(trainer->torch, into<mt_arena_stats>(given)); });
    each("mt_segments_stats", 0, segments, [](void *given) {
        return mt_torch_segments(trainer->torch, into<mt_segments_stats>(given));
    });
    each("mt_offload_stats", 0, offload, [](void *given) {
        return mt_torch_offload_stats(trainer->torch, into<mt_offload_stats>(given));
    });
    each("mt_memory", 0, memory,
         [](void *given) { return mt_device_memory("cpu", into<mt_memory>(given)); });
    each("mt_clear_result", 0, cleared,
         [](void *given) { return mt_empty_cache("cpu", into<mt_clear_result>(given)); });
    each("mt_sim_stats", 0, card,
         [](void *given) { return mt_device_sim_stats("sim", into<mt_sim_stats>(given)); });
    each("mt_tensor_info", 0, info, [](void *given) {
        return mt_tensor_describe(batch->images(), into<mt_tensor_info>(given));
    });
    each("mt_chunk_result", 0, chunk_result(), of_chunk);
    each("mt_apply_result", 0, apply_result(), of_apply);
    if (mt_device_resident("cpu", &resident) == MT_OK)
        each("mt_resident", 0, resident,
             [](void *given) { return mt_device_resident("cpu", into<mt_resident>(given)); });
}

SUITE("shim_sizes")
