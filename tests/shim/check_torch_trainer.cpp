/*
 * check_torch_trainer.cpp - the trainer over libtorch: budgets kept, peaks predicted, chunks equal to
 * the batch, memory that others take and give back, a job that cannot fit.
 */
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "bench.hpp"

#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

/* Without a layer that sees the batch: chunks of a batch give the gradient of the batch. */
struct Plain : torch::nn::Module {
    torch::nn::Conv2d conv{nullptr};
    torch::nn::Linear linear{nullptr};
    Plain() {
        conv = register_module(
            "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)));
        linear = register_module("linear", torch::nn::Linear(8 * 16 * 16, 10));
    }
    at::Tensor forward(const at::Tensor &x) { /* [B, 3, 32, 32] -> [B, 10] */
        return linear->forward(at::flatten(at::relu(conv->forward(x)), 1));
    }
};

mt_model *plain() {
    mt_model *model = nullptr;
    bench::must(memtrain::make_model(&model,
                                     [] {
                                         return memtrain::model(
                                             std::make_shared<Plain>(), {"accuracy"},
                                             [](Plain &net, const memtrain::Tensors &batch) {
                                                 auto logits = net.forward(batch.at(0));
                                                 return memtrain::Output{
                                                     at::cross_entropy_loss(logits, batch.at(1)),
                                                     memtrain::correct(logits, batch.at(1))};
                                             });
                                     }),
                "make_model");
    return model;
}

struct Trained {
    mt_model *model;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;
    mt_trainer *trainer = nullptr;

    Trained(mt_model *m, const mt_policy_options *policy, size_t beside_bytes) : model(m) {
        mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
        mt_torch_options torch_options = MT_TORCH_OPTIONS_INIT;
        torch_options.device = suite_device();
        torch_options.optimizer = MT_SGD;
        torch_options.lr = 0.01;
        options.policy = policy;
        bench::must(mt_torch_new(model, &torch_options, &torch), "torch");
        if (beside_bytes) set_budget(beside_bytes);
        bench::must(mt_torch_backend(torch, &backend), "backend");
        bench::must(mt_trainer_new(&backend, &options, &trainer), "trainer");
    }
    ~Trained() {
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
    }
    static mt_memory memory() {
        mt_memory m = {};
        m.size = sizeof m;
        bench::must(mt_device_memory(suite_device(), &m), "memory");
        return m;
    }
    /* So many bytes more than what is in use now. */
    static void set_budget(size_t beside_bytes) {
        size_t bytes = memory().allocated_bytes + beside_bytes;
        bench::must(mt_device_set_budget(suite_device(), bytes), "budget");
    }
    mt_step_report step(const mt_batch &batch) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        bench::must(mt_trainer_step(trainer, &batch, &report), "step");
        return report;
    }
};

void prepare() {
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    bench::must(mt_torch_seed(1), "seed");
}

mt_status collect(void *user, const char *, mt_tensor *handle) {
    static_cast<std::vector<at::Tensor> *>(user)->push_back(memtrain::tensor(handle).clone());
    return MT_OK;
}

TEST_LOOP("trainer", chunks_equal_the_batch, 5) {
    static const size_t cuts[] = {1, 3, 4, 7, 12};
    prepare();
    bench::Batch batch(12, 32, 10);
    std::vector<at::Tensor> whole;
    for (size_t micro : {size_t{12}, cuts[_i]}) {
        bench::must(mt_torch_seed(1), "seed");
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        policy.micro_batch = micro;
        Trained t(plain(), &policy, 0);
        double loss = 0;
        for (int i = 0; i < 3; i++) loss = t.step(batch.batch).loss;
        std::vector<at::Tensor> state;
        bench::must(mt_torch_visit_state(t.torch, collect, &state), "visit");
        if (whole.empty()) {
            whole = state;
            continue;
        }
        ck_assert(std::isfinite(loss));
        ck_assert_uint_eq(state.size(), whole.size());
        /* Sums in another order: fp32 rounding of some hundred terms. */
        for (size_t i = 0; i < state.size(); i++)
            ck_assert_msg(
                at::allclose(state[i].to(at::kFloat), whole[i].to(at::kFloat), 1e-4, 1e-6),
                "tensor %zu differs at micro-batch %zu", i, micro);
    }
}

/*
 * What two steps in the smallest chunks take beside what there is before them. It is another number on another
 * CPU: oneDNN's kernels have work spaces of their own, of which one takes 36 MiB here with AVX2.
 */
size_t least_beside(const mt_batch &batch) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 2;
    Trained t(bench::resnet18(10), &policy, 0);
    size_t before = t.memory().allocated_bytes, peak = 0;
    for (int i = 0; i < 2; i++) {
        size_t bytes = t.step(batch).peak_bytes;
        if (bytes > peak) peak = bytes;
    }
    return peak - before;
}

/* A card's allocator takes segments of 20 MiB, so a budget that a few of these fill is met by OOMs; it is kept all the same. */
static size_t room_for_segments() {
    return suite_on_cpu() ? 0 : size_t{60} << 20;
}

static const char too_small_for_mps[] =
    "MPS reserves up to 1 GiB at a time: the budget is too small";

TEST_LOOP_IF(!suite_on_mps(), "MPS tells no peaks to choose a budget by", "trainer",
             a_budget_is_kept_without_an_oom, 4) {
    static const size_t above_least_mib[] = {1, 4, 16, 76};
    prepare();
    bench::Batch batch(32, 64, 10);
    size_t least = least_beside(batch.batch);
    Trained t(bench::resnet18(10), nullptr,
              room_for_segments() + least + (above_least_mib[_i] << 20));
    for (int i = 0; i < 6; i++) {
        mt_step_report r = t.step(batch.batch);
        ck_assert_uint_le(r.peak_bytes, r.budget_bytes);
        ck_assert_uint_eq(r.samples, 32);
        if (!suite_on_cpu()) {
            ck_assert_uint_le(Trained::memory().reserved_bytes, r.budget_bytes);
            continue;
        }
        ck_assert_uint_eq(r.retries, 0);
        ck_assert_uint_le(r.discarded, i ? 0 : 8);
        /* Recordings of two sizes may not pair in the first step, and then nothing is foretold. */
        if (i) ck_assert_uint_gt(r.predicted_peak_bytes, 0);
        if (!r.predicted_peak_bytes) continue;
        /* The prediction is of the chunks; the peak has the step's own snapshot in it too. */
        double off =
            static_cast<double>(r.peak_bytes) / static_cast<double>(r.predicted_peak_bytes);
        ck_assert_msg(std::fabs(off - 1) < 0.005, "step %d: peak %zu, predicted %zu", i,
                      r.peak_bytes, r.predicted_peak_bytes);
    }
    mt_run_report run = MT_RUN_REPORT_INIT;
    bench::must(mt_trainer_summary(t.trainer, &run), "summary");
    ck_assert_uint_eq(run.samples_trained, 6 * 32);
    if (!suite_on_cpu()) return;
    ck_assert_uint_eq(run.ooms, 0);
    ck_assert_uint_le(run.samples_discarded, 8);
}

TEST_IF(!suite_on_mps(), too_small_for_mps, "trainer",
        evaluation_keeps_the_budget_and_counts_once) {
    prepare();
    bench::Batch batch(50, 64, 10);
    Trained t(bench::resnet18(10), nullptr, room_for_segments() + (12 << 20));
    mt_eval_report small = MT_EVAL_REPORT_INIT, large = MT_EVAL_REPORT_INIT;
    bench::must(mt_trainer_evaluate(t.trainer, &batch.batch, &small), "evaluate");
    if (suite_on_cpu()) ck_assert_uint_gt(small.chunk_count, 1);
    ck_assert_uint_le(small.peak_bytes, t.memory().budget_bytes);
    t.set_budget(size_t{400} << 20);
    bench::must(mt_trainer_evaluate(t.trainer, &batch.batch, &large), "evaluate");
    ck_assert_uint_eq(small.samples, 50);
    ck_assert_uint_eq(large.samples, 50);
    ck_assert_double_eq_tol(small.loss, large.loss, 1e-5);
    ck_assert_double_eq(small.metrics[0], large.metrics[0]);
}

TEST_IF(suite_on_cpu(), "the memory that is taken is the CPU's", "trainer",
        memory_taken_between_steps_shrinks_the_chunks_and_gives_them_back) {
    prepare();
    bench::Batch batch(32, 64, 10);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.deterministic = 1;
    Trained t(bench::resnet18(10), &policy, least_beside(batch.batch) + (size_t{36} << 20));
    (void)t.step(batch.batch); /* in which a chunk of 16 may run first */
    size_t free_chunk = t.step(batch.batch).chunks[0];
    mt_step_report crowded;
    {
        at::Tensor hog = at::empty({35 << 20}, at::kByte);
        crowded = t.step(batch.batch);
        ck_assert_uint_eq(crowded.retries, 0);
        ck_assert_uint_eq(crowded.reason, MT_PLAN_BUDGET);
        ck_assert_uint_lt(crowded.chunks[0], free_chunk);
        ck_assert_uint_le(crowded.peak_bytes, crowded.budget_bytes);
    }
    mt_step_report again = t.step(batch.batch);
    ck_assert_uint_eq(again.chunks[0], free_chunk);
    ck_assert_uint_eq(again.reason, MT_PLAN_GROWTH);
}

TEST_IF(!suite_on_mps(), too_small_for_mps, "trainer", what_cannot_fit_is_explained) {
    prepare();
    bench::Batch batch(8, 64, 10);
    Trained t(bench::resnet18(10), nullptr, 1 << 20);
    mt_step_report report = MT_STEP_REPORT_INIT;
    char before[65], after[65], text[2048];
    bench::must(mt_torch_state_sha256(t.torch, before), "hash");
    ck_assert_int_eq(mt_trainer_step(t.trainer, &batch.batch, &report), MT_EDEVMEM);
    bench::must(mt_torch_state_sha256(t.torch, after), "hash");
    ck_assert_str_eq(before, after);
    ck_assert_uint_gt(mt_trainer_explain(t.trainer, text, sizeof text), 0);
    const char *more =
        suite_on_cpu() ? "a budget of" : "more memory"; /* of segments nothing is told */
    for (const char *word : {"budget", "parameters", "gradients", "optimiser state", more})
        ck_assert_msg(std::strstr(text, word), "'%s' is not in:\n%s", word, text);
    /* What it asks for is enough. */
    t.set_budget(size_t{200} << 20);
    ck_assert_int_eq(mt_trainer_step(t.trainer, &batch.batch, &report), MT_OK);
}

/* Recorded and measured peaks are the same bytes, for chunks of any size. */
TEST_LOOP_IF(!suite_on_mps(), "MPS has neither recordings nor peaks", "trainer",
             a_recording_has_the_measured_peak, 3) {
    static const size_t sizes[] = {2, 3, 8};
    prepare();
    bench::Batch batch(8, 32, 10);
    Trained t(bench::resnet18(10), nullptr, 0);
    mt_recording *recording;
    bench::must(mt_recording_new(&recording), "recording");
    for (int round = 0; round < 2; round++) {
        mt_chunk_result result = {};
        result.size = sizeof result;
        bench::must(t.backend.begin(t.backend.self, &batch.batch), "begin");
        bench::must(mt_recording_start(recording, sizes[_i]), "start");
        mt_event_sink sink = {recording, [](void *user, void *address, int64_t bytes) {
                                  mt_recording_event(static_cast<mt_recording *>(user), address,
                                                     bytes);
                              }};
        size_t before = t.memory().allocated_bytes;
        bench::must(t.backend.record(t.backend.self, &sink), "record");
        bench::must(t.backend.accumulate(t.backend.self, 0, sizes[_i], 1.0, &result), "accumulate");
        bench::must(t.backend.record(t.backend.self, nullptr), "record");
        bench::must(t.backend.rollback(t.backend.self), "rollback");
        ck_assert_uint_eq(mt_recording_peak_bytes(recording), result.peak_bytes - before);
    }
    mt_recording_free(recording);
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("trainer"), 180);
    return suite_run_named("torch_trainer");
}
