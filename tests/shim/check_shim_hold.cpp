/*
 * check_shim_hold.cpp - without the memory in which gradients of several chunks are added up: whole
 * batches give the same bits, parts are refused, and every allocation may fail.
 */
#include <memtrain/trainer.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

const mt_optimizer optimizers[] = {MT_SGD, MT_ADAM, MT_ADAMW};

mt_memory memory_of(const mt_backend &seam) {
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(seam.memory(seam.self, &memory));
    return memory;
}

size_t gradient_bytes(const mt_backend &seam) {
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(seam.describe(seam.self, &info));
    return info.gradient_bytes;
}

mt_status plain_step(const Trainer &trainer, const Batch &batch) {
    return mt_train_step(trainer.torch, batch.get(), nullptr, nullptr);
}

void check_gradients(const Trainer &trainer, bool are_there) {
    for (const at::Tensor &parameter : trainer.net->parameters())
        ck_assert_int_eq(parameter.grad().defined(), are_there);
}

} // namespace

/* Given back they take nothing, taken again they are zeros, and the state does not see it. */
TEST("steps", there_and_back) {
    Trainer trainer(options_of(MT_ADAMW));
    mt_backend seam = seam_of(trainer);
    size_t before = memory_of(seam).allocated_bytes;
    std::string hash = trainer.hash();
    for (int i = 0; i < 2; i++) { /* cards round up */
        ck_ok(mt_hold_gradients(trainer.torch, 0));
        ck_assert_uint_le(memory_of(seam).allocated_bytes, before - gradient_bytes(seam));
        check_gradients(trainer, false);
    }
    for (int i = 0; i < 2; i++) {
        ck_ok(mt_hold_gradients(trainer.torch, 1));
        ck_assert_uint_eq(memory_of(seam).allocated_bytes, before);
        check_gradients(trainer, true);
    }
    ck_assert(trainer.hash() == hash);
}

/* Steps of both ways in turn give the bits of one way. */
TEST_LOOP("steps", same_bits, 6) {
    mt_torch_options options = options_of(optimizers[_i % 3], _i < 3 ? 0.0 : 0.01);
    Trainer plain(options);
    Batch batch(12);
    for (int i = 0; i < 6; i++) ck_ok(plain_step(plain, batch));
    std::string expected = plain.hash();
    Trainer other(options);
    for (int i = 0; i < 6; i++) {
        ck_ok(mt_hold_gradients(other.torch, i % 3 == 1));
        ck_ok(plain_step(other, batch));
    }
    ck_assert(other.hash() == expected);
}

/* Gradients are where the chunk made them until the update, and gone then. */
TEST("steps", released_after_the_update) {
    Trainer trainer(options_of(MT_SGD));
    mt_backend seam = seam_of(trainer);
    Batch batch(12);
    ck_ok(mt_hold_gradients(trainer.torch, 0));
    size_t before = memory_of(seam).allocated_bytes;
    for (int taken_back = 0; taken_back < 2; taken_back++) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_ok(mt_mark(trainer.torch));
        ck_ok(mt_accumulate(trainer.torch, 0, 12, 1.0, &result));
        ck_assert_uint_gt(memory_of(seam).allocated_bytes, before);
        mt_apply_result applied = apply_result();
        ck_ok(taken_back ? mt_rollback(trainer.torch) : mt_apply(trainer.torch, &applied));
        ck_assert_uint_eq(memory_of(seam).allocated_bytes, before);
        check_gradients(trainer, false);
    }
}

TEST("steps", out_of_order) {
    Trainer trainer(options_of(MT_SGD));
    Batch batch(12);
    mt_chunk_result result = chunk_result();
    ck_status(mt_hold_gradients(nullptr, 0), MT_EINVAL);
    ck_ok(mt_hold_gradients(trainer.torch, 0));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_status(mt_hold_gradients(trainer.torch, 1), MT_ESTATE);
    ck_status(mt_accumulate(trainer.torch, 0, 12, 1.0, &result), MT_ESTATE);
    ck_ok(mt_mark(trainer.torch));
    ck_status(mt_accumulate(trainer.torch, 0, 6, 0.5, &result), MT_ESTATE);
    ck_assert_ptr_nonnull(strstr(mt_last_error(), "mt_hold_gradients"));
    ck_ok(mt_accumulate(trainer.torch, 0, 12, 1.0, &result));
    ck_ok(mt_rollback(trainer.torch));
}

/* All samples have been one marked chunk: what came after it would not be added to its gradients. */
TEST("steps", nothing_after_the_whole) {
    Trainer trainer(options_of(MT_SGD));
    Batch batch(12);
    mt_chunk_result result = chunk_result();
    for (int marked = 0; marked < 2; marked++) {
        ck_ok(mt_begin(trainer.torch, batch.get()));
        ck_ok(mt_mark(trainer.torch));
        ck_ok(mt_accumulate(trainer.torch, 0, 12, 0.5, &result));
        if (marked) ck_ok(mt_mark(trainer.torch));
        ck_status(mt_accumulate(trainer.torch, 0, 12, 0.5, &result), MT_ESTATE);
        ck_ok(mt_rollback(trainer.torch));
    }
    /* The other way round they are added up. */
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_accumulate(trainer.torch, 0, 12, 0.5, &result));
    at::Tensor gradient = trainer.net->linear->weight.grad();
    double half = gradient.abs().sum().item().toDouble();
    ck_ok(mt_mark(trainer.torch));
    ck_ok(mt_accumulate(trainer.torch, 0, 12, 0.5, &result));
    ck_assert_double_gt(trainer.net->linear->weight.grad().abs().sum().item().toDouble(), half);
    ck_ok(mt_rollback(trainer.torch));
}

/* Two parameters whose gradients libtorch gives one memory. */
struct Shared : nn::Module {
    at::Tensor a, b;
    Shared() {
        a = register_parameter("a", at::ones({12}));
        b = register_parameter("b", at::ones({12}));
    }
};

std::string shared_gradients(bool hold, bool mark) {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_torch_options options = options_of(MT_SGD, 0.01);
    Batch batch(12);
    char hash[65];
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_seed(7));
    ck_ok(memtrain::make_model(&model, [] {
        return memtrain::model(std::make_shared<Shared>(), {},
                               [](Shared &net, const memtrain::Tensors &inputs) {
                                   at::Tensor sum = net.a.view({2, 6}) + net.b.view({2, 6});
                                   at::Tensor loss = (sum - 3 + inputs[0].mean()).square().sum();
                                   return memtrain::Output{loss, {}};
                               });
    }));
    ck_ok(mt_torch_new(model, &options, &torch));
    ck_ok(mt_hold_gradients(torch, hold));
    for (int i = 0; i < 3; i++) {
        mt_chunk_result result = chunk_result();
        mt_apply_result applied = apply_result();
        ck_ok(mt_begin(torch, batch.get()));
        if (mark) ck_ok(mt_mark(torch));
        ck_ok(mt_accumulate(torch, 0, 12, 1.0, &result));
        ck_ok(mt_apply(torch, &applied));
    }
    ck_ok(mt_torch_state_sha256(torch, hash));
    mt_torch_free(torch);
    mt_model_free(model);
    return hash;
}

/* They are clipped once each, wherever they are. */
TEST("steps", gradients_that_share_memory) {
    std::string expected = shared_gradients(true, false);
    ck_assert(shared_gradients(true, true) == expected);
    ck_assert(shared_gradients(false, true) == expected);
}

/* Every request of a step fails in turn, once or from then on: nothing has happened, or all of it. */
TEST_LOOP("fails", every_allocation_fails, 6) {
    Trainer trainer(options_of(optimizers[_i % 3], 0.5));
    mt_backend seam = seam_of(trainer);
    Batch batch(12);
    ck_ok(mt_hold_gradients(trainer.torch, 0));
    ck_ok(plain_step(trainer, batch));
    size_t held = memory_of(seam).allocated_bytes;
    uint64_t failed = 1, failures = 0;
    for (uint64_t n = 1; failed; n++) {
        std::string before = trainer.hash();
        ck_ok(mt_inject_oom(n, _i / 3));
        mt_status status = plain_step(trainer, batch);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        size_t left = settled(held, [&] { return memory_of(seam).allocated_bytes; });
        ck_assert_uint_eq(left, held);
        if (status == MT_OK) continue;
        ck_assert_int_eq(status, MT_EDEVMEM);
        ck_assert(trainer.hash() == before);
        check_gradients(trainer, false);
        failures++;
    }
    ck_assert_uint_gt(failures, suite_on_card() ? 40 : 50);
}

/* Where the memory is not there any more, nothing has changed, and whole batches go on. */
TEST("fails", not_taken_again) {
    Trainer trainer(options_of(MT_ADAM));
    mt_backend seam = seam_of(trainer);
    Batch batch(12);
    ck_ok(mt_hold_gradients(trainer.torch, 0));
    size_t held = memory_of(seam).allocated_bytes;
    uint64_t failures = 0;
    for (uint64_t n = 1;; n++) {
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_hold_gradients(trainer.torch, 1);
        ck_ok(mt_inject_oom(0, 0));
        if (status == MT_OK) break;
        ck_assert_int_eq(status, MT_EDEVMEM);
        ck_assert_uint_eq(memory_of(seam).allocated_bytes, held);
        check_gradients(trainer, false);
        ck_ok(plain_step(trainer, batch));
        failures++;
    }
    ck_assert_uint_gt(failures, 0);
    ck_ok(step(trainer, batch, {6, 6}));
}

/* From a card to the CPU and back, gradients stay where they are: nowhere. */
TEST("policy", on_another_device) {
    mt_sim_options card = MT_SIM_OPTIONS_INIT;
    card.total_bytes = card.recommended_bytes = 200 << 20;
    ck_ok(mt_device_simulate("sim:cuda", &card));
    mt_torch_options options = options_of(MT_ADAM);
    options.device = "sim:cuda";
    Trainer trainer(options);
    mt_backend seam = seam_of(trainer);
    Batch batch(12);
    ck_ok(mt_hold_gradients(trainer.torch, 0));
    size_t held = memory_of(seam).allocated_bytes;
    for (int on : {1, 0}) {
        ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, on));
        check_gradients(trainer, false);
        ck_ok(plain_step(trainer, batch));
    }
    ck_assert_uint_eq(memory_of(seam).allocated_bytes, held);
    ck_ok(mt_hold_gradients(trainer.torch, 1));
    ck_ok(step(trainer, batch, {6, 6}));
}

/* ---- through the policy ---- */

struct Run {
    std::vector<std::vector<size_t>> chunks;
    std::vector<size_t> peaks, predicted, allocated;
    std::string hash;
};

/* On the CPU, whose budget is kept to the byte. */
mt_torch_options on_the_cpu() {
    mt_torch_options options = options_of(MT_ADAMW);
    options.device = "cpu";
    return options;
}

/* Steps of 12 within a budget, or with chunks that are given. */
Run run(size_t budget, const Run *given) {
    Trainer trainer(on_the_cpu(), {false, true});
    mt_backend seam = seam_of(trainer);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    mt_trainer *runner;
    Batch batch(12);
    Run run;
    policy.deterministic = 1;
    own.policy = &policy;
    ck_ok(mt_device_set_budget("cpu", budget));
    ck_ok(mt_trainer_new(&seam, &own, &runner));
    for (size_t i = 0; i < 5; i++) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        if (given)
            ck_ok(mt_trainer_set_chunks(runner, given->chunks[i].data(), given->chunks[i].size()));
        ck_ok(mt_trainer_step(runner, batch.get(), &report));
        run.chunks.emplace_back(report.chunks, report.chunks + report.chunk_count);
        run.peaks.push_back(report.peak_bytes);
        run.predicted.push_back(report.predicted_peak_bytes);
        run.allocated.push_back(report.allocated_bytes);
        ck_assert_uint_eq(report.retries, 0);
    }
    mt_trainer_free(runner);
    run.hash = trainer.hash();
    return run;
}

/*
 * With room for all a batch is one chunk alone; given, it is one chunk beside held gradients, which stay in more by just
 * these. In a budget of what it takes alone it is alone too; with a byte less it is cut.
 */
TEST("policy", one_chunk_in_less) {
    Run roomy = run(64 << 20, nullptr);
    size_t gradients;
    {
        Trainer trainer(on_the_cpu(), {false, true});
        gradients = gradient_bytes(seam_of(trainer));
    }
    for (const auto &chunks : roomy.chunks) ck_assert_uint_eq(chunks.size(), 1);
    Run beside = run(64 << 20, &roomy);
    ck_assert(beside.hash == roomy.hash);
    for (size_t i : {1, 2, 3, 4}) {
        ck_assert_uint_eq(roomy.allocated[i], beside.allocated[i] - gradients);
        ck_assert_uint_eq(roomy.predicted[i], roomy.peaks[i]);
    }
    Run tight = run(roomy.peaks[4], nullptr);
    ck_assert_uint_eq(tight.chunks[1].size(), 1);
    ck_assert_uint_eq(tight.peaks[1], roomy.peaks[4]);
    ck_assert_uint_eq(tight.predicted[1], tight.peaks[1]);
    Run tighter = run(roomy.peaks[4] - 1, nullptr);
    ck_assert_uint_gt(tighter.chunks.back().size(), 1);
    ck_assert(run(64 << 20, &tight).hash == tight.hash);
}

SUITE("shim_hold")
