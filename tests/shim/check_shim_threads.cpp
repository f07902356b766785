/*
 * check_shim_threads.cpp - two trainers in two threads: each goes its way as if alone, memory that runs out in one is
 * no matter of the other's, and each thread reads its own errors.
 */
#include <thread>

#include <ATen/Parallel.h>

#include <memtrain/tensor.h>
#include <memtrain/trainer.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

constexpr int steps = 12;

/* Dropout would draw from the generator of the process. */
struct Run {
    Trainer trainer{options_of(MT_ADAMW), {true, false}};
    Batch batch{12};
    uint64_t ooms = 0;
    std::string wrong; /* assertions are the main thread's */

    /* Every third step a request fails. A bad argument in between leaves a line that is the thread's own. */
    void train(double lr) {
        char expected[100];
        snprintf(expected, sizeof expected, "mt_torch_set_lr: lr is %g, must be above 0", lr);
        mt_backend seam = MT_BACKEND_INIT;
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
        mt_run_report run = MT_RUN_REPORT_INIT;
        mt_trainer *handle = nullptr;
        policy.micro_batch = 4;
        options.policy = &policy;
        at::set_num_threads(1);
        expect(mt_torch_backend(trainer.torch, &seam) == MT_OK, "the seam");
        expect(mt_trainer_new(&seam, &options, &handle) == MT_OK, "the trainer");
        for (int step = 1; step <= steps && wrong.empty(); step++) {
            if (step % 3 == 0) expect(mt_inject_oom(20, 0) == MT_OK, "the injection");
            expect(mt_trainer_step(handle, batch.get(), nullptr) == MT_OK, "a step");
            expect(mt_torch_set_lr(trainer.torch, lr) == MT_EINVAL, "a bad rate");
            expect(std::string(mt_last_error()) == expected, "the line");
        }
        expect(mt_trainer_summary(handle, &run) == MT_OK, "the summary");
        ooms = run.ooms;
        mt_trainer_free(handle);
    }

private:
    void expect(bool is_so, const char *what) {
        if (!is_so && wrong.empty()) wrong = std::string(what) + ": " + mt_last_error();
    }
};

} // namespace

TEST("threads", two_trainers) {
    Run alone, one, other;
    alone.train(-3);
    ck_assert_str_eq(alone.wrong.c_str(), "");
    ck_assert_uint_eq(alone.ooms, steps / 3);
    std::string before = mt_last_error();
    std::thread first([&] { one.train(-1); }), second([&] { other.train(-2); });
    first.join();
    second.join();
    for (Run *run : {&one, &other}) {
        ck_assert_str_eq(run->wrong.c_str(), "");
        ck_assert_uint_eq(run->ooms, alone.ooms);
        ck_assert(run->trainer.hash() == alone.trainer.hash());
    }
    ck_assert_str_eq(mt_last_error(), before.c_str());
}

/* Handles that are made and freed at the same time, over memory that each thread gets back. */
TEST("threads", tensors_in_threads) {
    constexpr int rounds = 2000;
    int released[2] = {0, 0}, failed[2] = {0, 0};
    auto work = [&](int me) {
        float data[4] = {1, 2, 3, static_cast<float>(me)}, out[4];
        const int64_t shape[] = {4};
        mt_tensor_memory memory = MT_TENSOR_MEMORY_INIT;
        memory.data = data, memory.dtype = MT_FLOAT32, memory.dims = 1, memory.shape = shape;
        memory.release = [](void *user) { ++*static_cast<int *>(user); };
        memory.user = &released[me];
        for (int i = 0; i < rounds; i++) {
            mt_tensor *tensor, *copy = nullptr;
            bool is_right = mt_tensor_wrap(&memory, &tensor) == MT_OK &&
                            mt_tensor_copy(tensor, nullptr, MT_DTYPE_NONE, &copy) == MT_OK &&
                            mt_tensor_read(copy, MT_FLOAT32, out, sizeof out) == MT_OK &&
                            out[3] == static_cast<float>(me);
            failed[me] += !is_right;
            mt_tensor_free(tensor);
            mt_tensor_free(copy);
        }
    };
    ck_ok(mt_torch_init(nullptr));
    std::thread first(work, 0), second(work, 1);
    first.join();
    second.join();
    for (int me : {0, 1}) {
        ck_assert_int_eq(failed[me], 0);
        ck_assert_int_eq(released[me], rounds);
    }
    ck_assert_uint_eq(cpu_memory().allocated_bytes, 0);
}

SUITE("shim_threads")
