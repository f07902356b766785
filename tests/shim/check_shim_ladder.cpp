/*
 * check_shim_ladder.cpp - chunks that are taken back alone, the rungs that the shim has (the CPU from
 * a simulated card, one thread), the factor of the learning rate, and the shapes of batches.
 */
#include <cmath>

#include <ATen/ops/empty.h>

#include <memtrain/trainer.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

/* A marked chunk of the batch of 12, its weight the share of its samples. */
mt_status marked(const Trainer &trainer, size_t first, size_t count) {
    mt_chunk_result result = chunk_result();
    ck_ok(mt_mark(trainer.torch));
    return mt_accumulate(trainer.torch, first, count, static_cast<double>(count) / 12.0, &result);
}

void apply(const Trainer &trainer) {
    mt_apply_result applied = apply_result();
    ck_ok(mt_apply(trainer.torch, &applied));
}

const std::vector<size_t> cuts[] = {{12}, {6, 6}, {5, 4, 3}};
const mt_optimizer optimizers[] = {MT_SGD, MT_ADAM, MT_ADAMW};

/* Marked or not, the same chunks give the same bits. */
TEST_LOOP("keep", same_bits, 9) {
    for (double clip : {0.0, 0.01}) {
        mt_torch_options options = options_of(optimizers[_i % 3], clip);
        Trainer plain(options);
        Batch batch(12);
        for (int i = 0; i < 3; i++) ck_ok(step(plain, batch, cuts[_i / 3]));
        std::string expected = plain.hash();
        Trainer other(options);
        for (int i = 0; i < 3; i++) {
            size_t first = 0;
            ck_ok(mt_begin(other.torch, batch.get()));
            for (size_t size : cuts[_i / 3]) {
                ck_ok(marked(other, first, size));
                first += size;
            }
            apply(other);
        }
        ck_assert(other.hash() == expected);
    }
}

/* Every request of the last chunk fails in turn; the chunks before it stay, and the bits are those. */
TEST("keep", a_chunk_alone) {
    mt_torch_options options = options_of(MT_SGD, 0.5);
    std::string expected;
    Batch batch(12);
    {
        Trainer plain(options);
        ck_ok(step(plain, batch, {6, 6}));
        expected = plain.hash();
    }
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        Trainer trainer(options);
        size_t held = tensor_memory().allocated_bytes;
        uint64_t failed = 0;
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_ok(marked(trainer, 0, 6));
        mt_chunk_result result = chunk_result();
        ck_ok(mt_mark(trainer.torch));
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_accumulate(trainer.torch, 6, 6, 0.5, &result);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        if (status != MT_OK) {
            ck_assert_int_eq(status, MT_EDEVMEM);
            ck_ok(mt_rewind(trainer.torch));
            ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
            ck_ok(marked(trainer, 6, 6));
        }
        apply(trainer);
        ck_assert_msg(trainer.hash() == expected, "request %llu", (unsigned long long)n);
        failures += failed;
        if (!failed) break;
    }
    ck_assert_uint_gt(failures, suite_on_card() ? 30 : 50);
}

TEST("keep", out_of_order) {
    Trainer trainer(options_of(MT_SGD));
    Batch batch(12);
    ck_status(mt_mark(trainer.torch), MT_ESTATE);
    ck_status(mt_rewind(trainer.torch), MT_ESTATE);
    ck_status(mt_mark(nullptr), MT_EINVAL);
    ck_status(mt_rewind(nullptr), MT_EINVAL);
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_status(mt_rewind(trainer.torch), MT_ESTATE);
    ck_ok(marked(trainer, 0, 12));
    ck_status(mt_rewind(trainer.torch), MT_ESTATE); /* it went through */
    ck_ok(mt_rollback(trainer.torch));
    for (const at::Tensor &parameter : trainer.net->parameters())
        ck_assert_double_eq(parameter.grad().abs().sum().item().toDouble(), 0.0);
}

/* The gradients of a chunk of the whole batch are gone after the update. */
TEST("keep", second_set_is_released) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(12);
    size_t before = tensor_memory().allocated_bytes;
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(marked(trainer, 0, 12));
    ck_assert_uint_gt(tensor_memory().allocated_bytes, before);
    apply(trainer);
    ck_assert_uint_eq(tensor_memory().allocated_bytes, before);
}

/* ---- rungs ---- */

size_t on_card(const char *device) {
    mt_sim_stats stats = {};
    stats.size = sizeof stats;
    ck_ok(mt_device_sim_stats(device, &stats));
    return stats.allocated_bytes;
}

const char *const cards[] = {"sim:cuda", "sim:mps"};

/* To the CPU and back: nothing is left on the card, and the state is the same to the bit. */
TEST_LOOP("rungs", to_the_cpu_and_back, 2) {
    simulate(cards[_i], 200 * MiB);
    mt_torch_options options = options_of(MT_ADAM);
    options.device = cards[_i];
    Batch batch(12);
    Trainer trainer(options);
    mt_backend seam = seam_of(trainer);
    mt_backend_info info = {};
    mt_memory memory = {};
    info.size = sizeof info;
    memory.size = sizeof memory;
    ck_ok(seam.describe(seam.self, &info));
    ck_assert(info.rungs & MT_RUNG_BIT(MT_RUNG_CPU));
    ck_ok(step(trainer, batch, {12}));
    std::string before = trainer.hash();
    size_t held = on_card(cards[_i]);
    ck_assert_uint_gt(held, 0);

    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
    ck_assert_uint_eq(on_card(cards[_i]), 0);
    ck_assert(trainer.hash() == before);
    ck_ok(seam.memory(seam.self, &memory));
    ck_assert_uint_gt(memory.budget_bytes, 200 * MiB);
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1)); /* once more is nothing */

    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 0));
    ck_assert_uint_eq(on_card(cards[_i]), held);
    ck_assert(trainer.hash() == before);
    ck_ok(step(trainer, batch, {12}));
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
    ck_ok(step(trainer, batch, {6, 6}));
}

/* Every request of the way back fails in turn: then the model is still on the CPU, and whole. */
TEST("rungs", no_way_back) {
    simulate("sim:cuda", 200 * MiB);
    mt_torch_options options = options_of(MT_ADAM);
    options.device = "sim:cuda";
    Batch batch(12);
    Trainer trainer(options);
    mt_backend seam = seam_of(trainer);
    ck_ok(step(trainer, batch, {12}));
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
    std::string before = trainer.hash();
    uint64_t failed = 1, failures = 0;
    for (uint64_t n = 1; failed; n++) {
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = seam.set_rung(seam.self, MT_RUNG_CPU, 0);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert(trainer.hash() == before);
        if (status == MT_OK) continue;
        ck_assert_int_eq(status, MT_EDEVMEM);
        ck_assert_uint_eq(on_card("sim:cuda"), 0);
        failures++;
    }
    ck_assert_uint_gt(failures, 5);
    ck_assert_uint_gt(on_card("sim:cuda"), 0);
    ck_ok(step(trainer, batch, {12}));
}

/* What does not fit the card at all is trained on the CPU where that is allowed, and not lost. */
TEST_LOOP("rungs", falls_to_the_cpu, 2) {
    simulate(cards[_i], 30 * MiB);
    mt_torch_options options = options_of(MT_SGD);
    options.device = cards[_i];
    options.offload = MT_OFFLOAD_NEVER; /* a rung before that */
    bool crowded = false;
    Trainer trainer(options, {}, [&](Net &) {
        if (crowded) at::empty({40 << 20}, at::kByte);
    });
    Batch batch(12);
    mt_backend seam = seam_of(trainer);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_trainer *runner;
    mt_step_report report = MT_STEP_REPORT_INIT;
    policy.allow_rungs = MT_RUNG_BIT(MT_RUNG_CPU) | MT_RUNG_BIT(MT_RUNG_MINIMAL);
    own.policy = &policy;
    ck_ok(mt_trainer_new(&seam, &own, &runner));
    ck_ok(mt_trainer_step(runner, batch.get(), &report));
    ck_assert_uint_eq(report.rungs, 0);
    crowded = true;
    ck_ok(mt_trainer_step(runner, batch.get(), &report));
    ck_assert_uint_eq(report.rungs, MT_RUNG_BIT(MT_RUNG_CPU));
    ck_assert_uint_eq(report.samples, 12);
    ck_assert_uint_eq(on_card(cards[_i]), 0);
    for (int i = 0; i < 4; i++) {
        ck_ok(mt_trainer_step(runner, batch.get(), &report));
        ck_assert_uint_eq(report.retries, 0);
        ck_assert_uint_eq(report.predicted_peak_bytes, report.peak_bytes);
    }
    mt_trainer_free(runner);
}

TEST("rungs", one_thread) {
    Trainer trainer(options_of(MT_SGD));
    mt_backend seam = seam_of(trainer);
    ck_ok(mt_torch_set_threads(2));
    ck_ok(seam.set_rung(seam.self, MT_RUNG_MINIMAL, 1));
    ck_assert_int_eq(mt_torch_get_threads(), 1);
    ck_ok(seam.set_rung(seam.self, MT_RUNG_MINIMAL, 0));
    ck_assert_int_eq(mt_torch_get_threads(), 2);
    if (suite_on_cpu()) ck_status(seam.set_rung(seam.self, MT_RUNG_OFFLOAD, 1), MT_ENOTSUP);
    ck_status(seam.set_rung(nullptr, MT_RUNG_MINIMAL, 1), MT_EINVAL);
}

/* A factor is the same as a learning rate times it. */
TEST_LOOP("rungs", rate, 3) {
    mt_torch_options options = options_of(optimizers[_i]);
    Batch batch(12);
    options.weight_decay = 0.0;
    Trainer one(options);
    mt_backend seam = seam_of(one);
    ck_ok(seam.set_rate(seam.self, 0.5));
    ck_ok(step(one, batch, {12}));
    std::string expected = one.hash();
    options.lr *= 0.5;
    Trainer other(options);
    ck_ok(step(other, batch, {12}));
    ck_assert(other.hash() == expected);
    for (double factor : {0.0, -1.0, (double)INFINITY, (double)NAN})
        ck_status(seam.set_rate(seam.self, factor), MT_EINVAL);
}

TEST("rungs", shapes) {
    Trainer trainer(options_of(MT_SGD));
    mt_backend seam = seam_of(trainer);
    Batch twelve(12), four(4);
    mt_shape a = {}, b = {}, c = {};
    ck_ok(seam.shape(seam.self, twelve.get(), &a));
    ck_ok(seam.shape(seam.self, four.get(), &b));
    ck_assert_uint_eq(a.id, b.id); /* the number of samples is no part of it */
    ck_assert_uint_eq(a.length, b.length);
    std::vector<float> pixels(4 * 3 * 6 * 6);
    const int64_t shape[] = {4, 3, 6, 6};
    mt_tensor *images;
    ck_ok(mt_tensor_from_memory(pixels.data(), MT_FLOAT32, 4, shape, &images));
    mt_tensor *tensors[] = {images, four.labels()};
    mt_torch_batch data = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    data.tensors = tensors;
    data.count = 2;
    batch.data = &data;
    batch.count = 4;
    ck_ok(seam.shape(seam.self, &batch, &c));
    ck_assert_uint_ne(a.id, c.id);
    ck_assert_uint_eq(a.family, c.family); /* they differ in their pixels alone */
    ck_assert_uint_eq(a.length, 3 * 8 * 8 + 1);
    ck_assert_uint_eq(c.length, 3 * 6 * 6 + 1);
    mt_tensor_free(images);
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("keep"), 120);
    return suite_run_named("shim_ladder");
}
