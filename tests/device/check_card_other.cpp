/*
 * check_card_other.cpp - an accelerator that this library does not know by name, as third parties bring them: libtorch has a
 * c10::DeviceAllocator for it. The test device plays it, under libtorch's key PrivateUse1 and by the name "custom".
 */
#include <cstdlib>
#include <cstring>
#include <string>

#include <memtrain/safetensors.h>
#include <memtrain/trainer.hpp>

#include "card_suite.hpp"

using namespace card_suite;

/*
 * Its numbers are the CPU's, and it is waited for twice a step, as CUDA is: for all losses, and for the update. It may have no
 * doubles.
 */
TEST("custom", steps_as_on_the_cpu) {
    mt_card_lack_doubles(1);
    Batch batch(16);
    NetOptions plain;
    plain.dropout = false;
    double losses[2];
    for (bool is_card : {false, true}) {
        mt_torch_options options = options_of(MT_ADAMW, 0.5);
        if (!is_card) options.device = "cpu";
        Trainer trainer(options, plain);
        mt_backend seam = seam_of(trainer);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        policy.micro_batch = 2;
        own.policy = &policy;
        mt_trainer *loop = nullptr;
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_new(&seam, &own, &loop));
        ck_ok(mt_trainer_step(loop, batch.get(), &report));
        uint64_t before = counters().waits;
        ck_ok(mt_trainer_step(loop, batch.get(), &report));
        ck_assert_uint_eq(report.chunk_count, 8);
        if (is_card) ck_assert_uint_eq(counters().waits - before, 2);
        losses[is_card] = report.loss;
        mt_trainer_free(loop);
    }
    ck_assert_double_eq_tol(losses[1] / losses[0], 1.0, 1e-5);
    ck_assert_uint_gt(counters().kernels, 100);
}

/* Its allocator takes no limit, which is said; the budget decides the chunks all the same. */
TEST("custom", a_budget_decides_the_chunks) {
    static std::string log;
    mt_set_log([](void *, mt_log_level, const char *text) { log += text; }, nullptr);
    Batch batch(512);
    Trainer trainer(options_of(MT_SGD));
    size_t before = memory_on("custom").allocated_bytes, budget = before + MiB;
    ck_ok(mt_device_set_budget("custom", budget));
    ck_contains(log.c_str(), "the budget of custom:0 is watched, not enforced");
    mt_backend seam = seam_of(trainer);
    mt_trainer *loop = nullptr;
    ck_ok(mt_trainer_new(&seam, nullptr, &loop));
    mt_step_report report = MT_STEP_REPORT_INIT;
    for (int i = 0; i < 8; i++) ck_ok(mt_trainer_step(loop, batch.get(), &report));
    ck_assert_uint_gt(report.chunk_count, 1);
    ck_assert_uint_gt(report.peak_bytes, before);
    ck_assert_uint_le(report.peak_bytes, budget);
    mt_trainer_free(loop);
}

/* Each request of a step is refused in turn: the step is taken back, and made again with the same bits. */
TEST("custom", every_request_fails) {
    std::string wanted;
    uint64_t failed = 1;
    for (uint64_t n = 0; failed; n++) {
        Batch batch(8);
        Trainer trainer(options_of(MT_ADAMW, 0.5));
        ck_ok(train(trainer, batch));
        std::string before = trainer.hash();
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = train(trainer, batch);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        if (failed) {
            ck_status(status, MT_EDEVMEM);
            ck_assert(trainer.hash() == before);
            ck_ok(train(trainer, batch));
        }
        if (!n) wanted = trainer.hash();
        ck_assert_msg(trainer.hash() == wanted, "request %d", static_cast<int>(n));
        failed |= !n;
    }
}

/* Its generator is a seed and an offset, as CUDA's: a step keeps these without asking for memory. */
TEST("custom", its_generator_takes_no_memory) {
    Batch batch(8);
    Trainer trainer(options_of(MT_SGD));
    ck_ok(train(trainer, batch));
    ck_ok(mt_inject_oom(0, 0));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    uint64_t requests = 1;
    mt_injected(&requests, nullptr);
    ck_assert_uint_eq(requests, 0);
    ck_ok(mt_rollback(trainer.torch));
}

/* A file has its generator, and a trainer takes it up. */
TEST("custom", files) {
    Batch batch(8);
    Trainer one(options_of(MT_ADAMW)), other(options_of(MT_ADAMW));
    ck_ok(train(one, batch));
    same_by_file(one, other, "rng.custom.0");
}

/* One that is not here is refused beside those that are. */
TEST("custom", names) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_device_check("custom"));
    char here[64];
    ck_ok(mt_device_here(1, here, sizeof here));
    ck_assert_str_eq(here, "custom:0");
    ck_status(mt_device_here(2, here, sizeof here), MT_EINVAL);
    for (const char *name : {"custom:1", "custom:999"})
        ck_refused(mt_device_check(name), MT_ENOTSUP,
                   "there is 1 CUSTOM device; accepted: cpu, custom:0");
    for (const char *name : {"cuda", "xpu", "mps", "hpu"})
        ck_refused(mt_device_check(name), MT_ENOTSUP, "; accepted: cpu, custom:0");
    ck_refused(mt_device_check("toaster"), MT_EINVAL, "; here: cpu, custom:0");
    ck_refused(mt_device_check("hip"), MT_ENOTSUP, "cards of AMD are named cuda");
}

int main(int, char **argv) {
    return card_main("card_other", argv, {"custom"});
}
