/*
 * check_shim_channels_last.cpp - mt_torch_options.channels_last: convolutions in the order that tensor cores
 * want, from the caller's memory where that has it, with the numbers, files and guarantees of the other order.
 */
#include <cmath>
#include <memory>

#include <unistd.h>

#include "check_shim.hpp"
#include "networks/batches.hpp"

using namespace check_shim;

namespace {

constexpr auto channels_last = at::MemoryFormat::ChannelsLast;

mt_torch_options ordered(const char *device = nullptr) {
    mt_torch_options options = options_of(MT_ADAM);
    options.channels_last = 1;
    if (device) options.device = device;
    return options;
}

/* The same pictures in the other order. */
networks::TensorBatch reordered(const Batch &batch) {
    auto &images = *static_cast<at::Tensor *>(mt_tensor_get(batch.images()));
    auto &labels = *static_cast<at::Tensor *>(mt_tensor_get(batch.labels()));
    return networks::TensorBatch({images.contiguous(channels_last), labels});
}

/* Weights, and their gradients where there are some. */
void is_ordered(const Trainer &trainer, bool on) {
    for (const auto &conv : {trainer.net->conv1, trainer.net->conv2}) {
        const at::Tensor &gradient = conv->weight.grad();
        ck_assert_int_eq(conv->weight.is_contiguous(channels_last), on);
        ck_assert(!gradient.defined() || gradient.strides() == conv->weight.strides());
    }
    ck_assert(trainer.net->linear->weight.is_contiguous());
}

/* The same training but for rounding, chunk by chunk and whole. */
TEST_LOOP("order", same_numbers, 3) {
    const std::vector<size_t> cuts[] = {{12}, {6, 6}, {5, 4, 3}};
    mt_chunk_result last[2] = {chunk_result(), chunk_result()};
    std::vector<at::Tensor> ends[2];
    for (int on : {0, 1}) {
        mt_torch_options options = ordered();
        options.channels_last = on;
        Trainer trainer(options);
        Batch batch(12);
        is_ordered(trainer, on);
        for (int i = 0; i < 5; i++) ck_ok(step(trainer, batch, cuts[_i], &last[on]));
        is_ordered(trainer, on);
        for (const at::Tensor &parameter : trainer.net->parameters())
            ends[on].push_back(parameter.detach().clone());
    }
    ck_assert_double_eq_tol(last[0].loss_sum, last[1].loss_sum, 1e-4 * last[0].loss_sum);
    for (size_t i = 0; i < ends[0].size(); i++)
        ck_assert(at::allclose(ends[0][i], ends[1][i], 1e-3, 1e-4));
}

/* The model sees the order asked for; memory that has it already is the caller's own. */
TEST("order", what_the_model_sees) {
    const void *seen = nullptr;
    bool is_ordered_there = false;
    mt_model *model;
    mt_torch *torch;
    mt_torch_options options = ordered();
    mt_chunk_result result = chunk_result();
    Batch plain(12);
    networks::TensorBatch other = reordered(plain);
    auto net = std::make_shared<Net>(NetOptions());
    ck_ok(memtrain::make_model(&model, [&] {
        return memtrain::model(net, {}, [&](Net &n, const memtrain::Tensors &batch) {
            seen = batch[0].data_ptr();
            is_ordered_there = batch[0].is_contiguous(channels_last);
            ck_assert(batch[1].is_contiguous());
            return memtrain::Output{at::cross_entropy_loss(n.forward(batch[0]), batch[1]), {}};
        });
    }));
    ck_ok(mt_torch_new(model, &options, &torch));
    const mt_batch *batches[] = {plain.get(), other.get()};
    for (const mt_batch *batch : batches) {
        auto *data = static_cast<const mt_torch_batch *>(batch->data);
        const void *own = static_cast<at::Tensor *>(mt_tensor_get(data->tensors[0]))->data_ptr();
        ck_ok(mt_evaluate(torch, batch, 0, 12, &result));
        ck_assert(is_ordered_there);
        if (!suite_on_card()) ck_assert_int_eq(seen == own, batch == other.get());
    }
    mt_torch_free(torch);
    mt_model_free(model);
}

/* Copies of pictures are a chunk's memory as any, and a batch without them is of another shape. */
TEST("order", copies_are_counted) {
    Trainer trainer(ordered());
    mt_backend seam = seam_of(trainer);
    Batch plain(12);
    networks::TensorBatch other = reordered(plain);
    mt_chunk_result copied = chunk_result(), given = chunk_result();
    mt_shape shapes[2] = {};
    ck_ok(mt_train_step(trainer.torch, plain.get(), &copied, nullptr));
    ck_ok(mt_train_step(trainer.torch, other.get(), &given, nullptr));
    ck_ok(seam.shape(seam.self, plain.get(), &shapes[0]));
    ck_ok(seam.shape(seam.self, other.get(), &shapes[1]));
    ck_assert_uint_ne(shapes[0].id, shapes[1].id);
    ck_assert_uint_ne(shapes[0].family, shapes[1].family);
    /* To a card both are copied. */
    size_t copy = suite_on_card() || !suite_has_peaks() ? 0 : 12 * 3 * 8 * 8 * sizeof(float);
    ck_assert_uint_ge(copied.peak_bytes, given.peak_bytes + copy);
}

/* From planned memory and from the heap, in either order of the caller's, the same bits. */
TEST("order", same_bits) {
    std::string expected;
    for (int arena : {MT_ARENA_AUTO, MT_ARENA_NEVER})
        for (bool is_given : {false, true}) {
            mt_torch_options options = ordered();
            options.arena = arena;
            Trainer trainer(options);
            Batch plain(12);
            networks::TensorBatch other = reordered(plain);
            mt_chunk_result result = chunk_result();
            for (int i = 0; i < 4; i++)
                ck_ok(mt_train_step(trainer.torch, is_given ? other.get() : plain.get(), &result,
                                    nullptr));
            if (expected.empty()) expected = trainer.hash();
            ck_assert(trainer.hash() == expected);
        }
}

/* The gradient of a mean over pixels is expanded. A segment hands it on as it is, so what comes before has the kernels of a plain run. */
TEST("order", segments_change_no_bit) {
    struct Pooled : nn::Module {
        nn::Conv2d one{nullptr}, two{nullptr};
        nn::BatchNorm2d norm{nullptr};
        nn::Linear last{nullptr};
        Pooled() {
            one = register_module("one", nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)));
            two = register_module("two", nn::Conv2d(nn::Conv2dOptions(16, 16, 3).padding(1)));
            norm = register_module("norm", nn::BatchNorm2d(16));
            last = register_module("last", nn::Linear(16, 16));
        }
        at::Tensor forward(const at::Tensor &x) {
            auto head = [this](const at::Tensor &t) { return last(t.mean({2, 3})); };
            return memtrain::checkpoint(head, norm(two(one(x).relu())));
        }
    };
    std::string hashes[2];
    Batch batch(12);
    for (int on : {0, 1}) {
        mt_model *model = nullptr;
        mt_torch *torch = nullptr;
        mt_torch_options options = ordered();
        char text[65];
        options.checkpointing = on ? MT_CHECKPOINTING_ON : MT_CHECKPOINTING_AUTO;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(7));
        mt_status status = memtrain::make_model(&model, [] {
            auto described = memtrain::model(
                std::make_shared<Pooled>(), {}, [](Pooled &net, const memtrain::Tensors &given) {
                    return memtrain::Output{at::cross_entropy_loss(net.forward(given[0]), given[1]),
                                            {}};
                });
            described.checkpoints = true;
            return described;
        });
        ck_ok(status);
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_train_step(torch, batch.get(), nullptr, nullptr));
        ck_ok(mt_torch_state_sha256(torch, text));
        hashes[on] = text;
        mt_torch_free(torch);
        mt_model_free(model);
    }
    ck_assert_str_eq(hashes[0].c_str(), hashes[1].c_str());
}

/* Every request of a step fails in turn, those for copies among them; the update makes none. */
TEST("order", a_fault_anywhere) {
    std::string expected, before;
    Batch batch(12);
    uint64_t failed = 1, failures = 0;
    {
        Trainer plain(ordered());
        before = plain.hash();
        ck_ok(step(plain, batch, {6, 6}));
        expected = plain.hash();
    }
    for (uint64_t n = 1; failed; n++) {
        Trainer trainer(ordered());
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = step(trainer, batch, {6, 6});
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_int_eq(status, failed ? MT_EDEVMEM : MT_OK);
        if (failed) {
            failures++;
            /* A begin that fails has begun nothing. */
            mt_status rolled = mt_rollback(trainer.torch);
            ck_assert(rolled == MT_OK || rolled == MT_ESTATE);
            ck_assert(trainer.hash() == before);
            is_ordered(trainer, true);
            ck_ok(step(trainer, batch, {6, 6}));
        }
        ck_assert_msg(trainer.hash() == expected, "request %llu", (unsigned long long)n);
    }
    ck_assert_uint_gt(failures, 50);
}

/* On a card, and on the CPU after it. */
TEST_LOOP("order", on_a_card, 2) {
    const char *const cards[] = {"sim:cuda", "sim:mps"};
    simulate(cards[_i], size_t{200} << 20);
    Trainer trainer(ordered(cards[_i]));
    mt_backend seam = seam_of(trainer);
    Batch batch(12);
    ck_ok(step(trainer, batch, {6, 6}));
    is_ordered(trainer, true);
    std::string before = trainer.hash();
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
    is_ordered(trainer, true);
    ck_assert(trainer.hash() == before);
    ck_ok(step(trainer, batch, {6, 6}));
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 0));
    is_ordered(trainer, true);
    ck_ok(step(trainer, batch, {12}));
}

/* Weights of the one order are read into the other, and stay so without an mt_torch. */
TEST("order", files_are_row_major) {
    char path[] = "/tmp/check_channels_last.XXXXXX";
    int made = mkstemp(path);
    ck_assert_int_ge(made, 0);
    close(made);
    Batch batch(12);
    Trainer one(ordered()), other(options_of(MT_ADAM));
    ck_ok(step(one, batch, {12}));
    ck_ok(mt_model_save_weights(one.model, path));
    ck_ok(mt_model_load_weights(other.model, path, nullptr));
    unlink(path);
    is_ordered(other, false);
    std::vector<at::Tensor> left = one.net->parameters(), right = other.net->parameters();
    for (size_t i = 0; i < left.size(); i++) ck_assert(at::equal(left[i], right[i]));
    mt_torch_free(one.torch);
    one.torch = nullptr;
    ck_assert(one.net->conv1->weight.is_contiguous(channels_last));
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("order"), 120);
    return suite_run_named("shim_channels_last");
}
