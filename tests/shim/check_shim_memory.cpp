/*
 * check_shim_memory.cpp - the budgeted CPU allocator: budget and peak, evidence of a refusal,
 * injection, foreign blocks, recordings, and what mt_device_memory tells of all that.
 */
#include <cstring>
#include <map>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

/* A tensor of that many bytes, or an undefined one when the budget refuses it. */
at::Tensor take(size_t bytes) {
    try {
        return at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    } catch (const c10::OutOfMemoryError &) {
        return {};
    }
}

void init(void) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
}

/* What a recorder makes of the events: the highest sum of blocks made since it began. */
struct Recorder {
    std::map<const void *, int64_t> live;
    int64_t in_use = 0, peak = 0;
    size_t events = 0, handed_over = 0;

    static void event(void *user, void *address, int64_t bytes) {
        auto &self = *static_cast<Recorder *>(user);
        self.events++;
        if (bytes > 0) {
            self.live[address] = bytes;
            self.in_use += bytes;
            self.peak = std::max(self.peak, self.in_use);
        } else if (bytes == 0) {
            self.handed_over += self.live.count(address);
        } else if (self.live.erase(address)) {
            self.in_use += bytes;
        }
    }
    mt_event_sink sink() { return {this, event}; }
};

/* The reporter of libtorch's own profiler. */
struct Profiler : c10::MemoryReportingInfoBase {
    int64_t in_use = 0, events = 0;
    void reportMemoryUsage(void *, int64_t bytes, size_t, size_t, c10::Device) override {
        in_use += bytes;
        events++;
    }
    bool memoryProfilingEnabled() const override { return true; }
};

} // namespace

TEST("budget", budget_is_enforced) {
    ck_assert_int_eq(mt_torch_enforces_budget(), 1);
    size_t base = cpu_memory().allocated_bytes;
    ck_ok(mt_device_set_budget("cpu", base + 4 * MiB));
    ck_ok(mt_device_reset_peak("cpu"));
    {
        at::Tensor exact = take(4 * MiB);
        ck_assert(exact.defined());
        ck_assert_uint_eq(cpu_memory().allocated_bytes, base + 4 * MiB);
        ck_assert(!take(1).defined());
    }
    ck_assert(!take(4 * MiB + 1).defined());
    ck_assert(!take(SIZE_MAX / 4).defined());
    mt_memory memory = cpu_memory();
    ck_assert_uint_eq(memory.budget_bytes, base + 4 * MiB);
    ck_assert_uint_eq(memory.allocated_bytes, base);
    ck_assert_uint_eq(memory.reserved_bytes, base);
    ck_assert_uint_eq(memory.peak_bytes, memory.budget_bytes);
    ck_assert_uint_gt(memory.free_bytes, 0);
    ck_ok(mt_device_reset_peak("cpu"));
    ck_assert_uint_eq(cpu_memory().peak_bytes, base);
}

/* A budget of one byte is one that was set: nobody else is to blame. */
TEST("budget", the_budget_is_to_blame) {
    ck_ok(mt_device_set_budget("cpu", 1));
    try {
        at::Tensor tensor = at::empty({100});
        ck_abort_msg("no exception");
    } catch (const c10::OutOfMemoryError &error) {
        ck_contains(error.what(), "in use of 1 B");
        ck_assert_ptr_null(std::strstr(error.what(), "the rest of the process"));
    }
}

/* A limit below what is there refuses everything until enough has been released. */
TEST("budget", budget_below_allocated) {
    size_t base = cpu_memory().allocated_bytes;
    at::Tensor large = take(8 * MiB), small = take(MiB);
    ck_ok(mt_device_set_budget("cpu", base + 2 * MiB));
    ck_assert(!take(1).defined());
    large.reset();
    ck_assert(take(MiB).defined());
    ck_assert(!take(MiB + 1).defined());
}

TEST("budget", default_budget) {
    mt_host_memory host = {};
    host.size = sizeof host;
    ck_ok(mt_host_memory_read(nullptr, &host));
    size_t budget = cpu_memory().budget_bytes;
    ck_assert_uint_gt(budget, host.budget_bytes / 2);
    ck_assert_uint_lt(budget / 2, host.budget_bytes);
    ck_ok(mt_device_set_budget("cpu", MiB));
    ck_assert_uint_eq(cpu_memory().budget_bytes, MiB);
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_assert_uint_gt(cpu_memory().budget_bytes, MiB);
}

/* Many threads at the edge of the budget: the peak never passes it, and nothing is lost. */
TEST("budget", budget_with_threads) {
    size_t base = cpu_memory().allocated_bytes;
    ck_ok(mt_device_set_budget("cpu", base + MiB));
    ck_ok(mt_device_reset_peak("cpu"));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([] {
            for (int round = 0; round < 300; round++) {
                at::Tensor a = take(300000), b = take(300000);
            }
        });
    for (std::thread &thread : threads) thread.join();
    mt_memory memory = cpu_memory();
    ck_assert_uint_le(memory.peak_bytes, memory.budget_bytes);
    ck_assert_uint_gt(memory.peak_bytes, base + 500000);
    ck_assert_uint_eq(memory.allocated_bytes, base);
}

/* The n-th request of this thread, once or from then on; requests of 0 bytes do not count. */
TEST_LOOP("budget", injection, 2) {
    uint64_t requests, failed;
    ck_ok(mt_inject_oom(2, _i));
    ck_assert(take(10).defined());
    ck_assert(take(0).defined());
    ck_assert(!take(10).defined());
    ck_assert_int_eq(take(10).defined(), !_i);
    mt_injected(&requests, &failed);
    ck_assert_uint_eq(requests, 3);
    ck_assert_uint_eq(failed, _i ? 2 : 1);
    bool other = false;
    std::thread thread(
        [&] { other = take(10).defined() && take(10).defined() && take(10).defined(); });
    thread.join();
    ck_assert(other);
    ck_ok(mt_inject_oom(0, 0));
    ck_assert(take(10).defined());
    mt_injected(&requests, nullptr);
    mt_injected(nullptr, &failed);
    ck_assert_uint_eq(requests, 1);
    ck_assert_uint_eq(failed, 0);
}

/* A chunk that dies tells how much was asked for and what was there. */
TEST("budget", evidence) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(8);
    mt_chunk_result result = chunk_result();
    size_t before = cpu_memory().allocated_bytes;

    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_inject_oom(3, 0));
    ck_refused(mt_accumulate(trainer.torch, 0, 8, 1.0, &result), MT_EDEVMEM, "budget: injected");
    ck_assert_uint_eq(result.refused, 1);
    ck_assert_uint_gt(result.refused_bytes, 0);
    ck_assert_uint_gt(result.refused_in_use_bytes, before);
    ck_assert_uint_le(result.refused_bytes + result.refused_in_use_bytes,
                      cpu_memory().budget_bytes);
    ck_assert_double_eq(result.loss_sum, 0.0);
    ck_ok(mt_rollback(trainer.torch));

    ck_ok(mt_device_set_budget("cpu", before + 20000));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    result = chunk_result();
    ck_refused(mt_accumulate(trainer.torch, 0, 8, 1.0, &result), MT_EDEVMEM, "budget: ");
    ck_assert_uint_ge(result.refused, 1);
    ck_assert_uint_gt(result.refused_bytes + result.refused_in_use_bytes, before + 20000);
    ck_ok(mt_rollback(trainer.torch));
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);

    ck_ok(mt_device_set_budget("cpu", 0));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    result = chunk_result();
    ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &result));
    ck_assert_uint_eq(result.refused, 0);
}

/* Blocks that libtorch's allocator made are freed by libc's free, through both ways. */
TEST("rest", foreign_blocks) {
    c10::Allocator *theirs = c10::GetDefaultCPUAllocator(), *ours = c10::GetCPUAllocator();
    size_t base = cpu_memory().allocated_bytes;
    for (size_t bytes : {size_t{1}, size_t{100}, size_t{5000}, 3 * MiB}) {
        void *data = theirs->raw_allocate(bytes);
        memset(data, 0x55, bytes);
        ours->raw_deallocate(data);
        void *own = ours->raw_allocate(bytes);
        ck_assert_uint_eq(reinterpret_cast<uintptr_t>(own) % 64, 0);
        ck_assert_uint_eq(cpu_memory().allocated_bytes, base + bytes);
        ours->raw_deallocate(own);
    }
    ours->raw_deallocate(nullptr);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, base);
}

TEST("rest", profiler_is_told) {
    auto profiler = std::make_shared<Profiler>();
    {
        c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
        at::Tensor a = at::ones({1000});
        ck_assert_int_eq(profiler->in_use, 4000);
    }
    ck_assert_int_ge(profiler->events, 2);
    ck_assert_int_eq(profiler->in_use, 0);
}

/* The recording's peak is the chunk's, above what was there before, to the byte. */
TEST("rest", recording_is_exact) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(16);
    mt_backend backend = MT_BACKEND_INIT;
    ck_ok(mt_torch_backend(trainer.torch, &backend));
    ck_ok(step(trainer, batch, {16})); /* what oneDNN makes once */
    for (size_t count : {size_t{2}, size_t{5}, size_t{16}}) {
        Recorder recorder;
        mt_event_sink sink = recorder.sink();
        mt_chunk_result result = chunk_result();
        ck_ok(mt_begin(trainer.torch, batch.get()));
        size_t before = cpu_memory().allocated_bytes;
        ck_ok(backend.record(backend.self, &sink));
        ck_ok(backend.accumulate(backend.self, 0, count, 0.5, &result));
        ck_ok(backend.record(backend.self, nullptr));
        size_t events = recorder.events;
        ck_assert_uint_gt(events, 50);
        ck_assert_uint_eq(before + static_cast<size_t>(recorder.peak), result.peak_bytes);
        ck_assert_int_eq(recorder.in_use, 0);
        ck_ok(mt_rollback(trainer.torch));
        ck_assert_uint_eq(recorder.events, events);
        ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
    }
}

/* A chunk's own peak does not disturb the one that is counted from reset_peak on. */
TEST("rest", two_peaks) {
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(16);
    mt_chunk_result large = chunk_result(), small = chunk_result();
    ck_ok(mt_device_reset_peak("cpu"));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_accumulate(trainer.torch, 0, 14, 0.9, &large));
    ck_ok(mt_accumulate(trainer.torch, 14, 2, 0.1, &small));
    ck_ok(mt_rollback(trainer.torch));
    ck_assert_uint_lt(small.peak_bytes, large.peak_bytes);
    ck_assert_uint_eq(cpu_memory().peak_bytes, large.peak_bytes);
}

TEST("rest", empty_cache) {
    mt_clear_result result = {};
    result.size = sizeof result;
    {
        std::vector<at::Tensor> held;
        for (int i = 0; i < 2000; i++) held.push_back(at::zeros({4096}));
    }
    ck_ok(mt_empty_cache("cpu", &result));
    ck_assert_double_gt(result.seconds, 0.0);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    ck_assert_uint_gt(result.released_bytes, MiB);
#endif
    ck_ok(mt_empty_cache("cpu", nullptr));
}

TEST("rest", new_that_does_not_fit) {
    ck_ok(mt_torch_seed(1));
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    ck_ok(net_model_new({}, &model));
    size_t base = cpu_memory().allocated_bytes;
    ck_ok(mt_device_set_budget("cpu", base + 2000));
    ck_status(mt_torch_new(model, nullptr, &torch), MT_EDEVMEM);
    ck_assert_ptr_null(torch);
    for (const char *word : {"parameters 4.7 KiB", "gradients", "optimiser state", "buffers",
                             "other tensors 0 B; together ", "budget", "activations come on top"})
        ck_contains(mt_last_error(), word);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, base);
    std::string told = mt_last_error();
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    mt_backend_info info = {};
    mt_backend backend = MT_BACKEND_INIT;
    info.size = sizeof info;
    ck_ok(mt_torch_backend(torch, &backend));
    ck_ok(backend.describe(backend.self, &info));
    char sum[32];
    mt_format_size(info.parameter_bytes + info.gradient_bytes + info.optimizer_bytes +
                       info.buffer_bytes,
                   sum, sizeof sum);
    ck_contains(told.c_str(), ("; together " + std::string(sum) + ", budget").c_str());
    mt_torch_free(torch);
    mt_model_free(model);
}

/* Without our allocator: nothing is refused, what is known is told, chunks are watched. */
TEST("watched", watched_only) {
    mt_torch_init_options keep = MT_TORCH_INIT_OPTIONS_INIT;
    keep.keep_allocator = 1;
    ck_ok(mt_torch_init(&keep));
    ck_assert_int_eq(mt_torch_enforces_budget(), 0);
    ck_assert_uint_eq(cpu_memory().budget_bytes, 0);
    ck_ok(mt_device_set_budget("cpu", MiB));
    ck_assert_uint_eq(cpu_memory().budget_bytes, MiB);
    ck_status(mt_inject_oom(1, 0), MT_ENOTSUP);
    ck_assert(take(2 * MiB).defined());

    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(16);
    mt_backend backend = MT_BACKEND_INIT;
    mt_memory memory = {};
    memory.size = sizeof memory;
    Recorder recorder;
    mt_event_sink sink = recorder.sink();
    mt_chunk_result result = chunk_result();
    ck_ok(mt_torch_backend(trainer.torch, &backend));
    ck_ok(backend.begin(backend.self, batch.get()));
    ck_ok(backend.record(backend.self, &sink));
    ck_ok(backend.accumulate(backend.self, 0, 16, 1.0, &result));
    ck_ok(backend.record(backend.self, nullptr));
    ck_ok(backend.rollback(backend.self));
    ck_ok(backend.memory(backend.self, &memory));
    ck_assert_uint_gt(memory.allocated_bytes, 4 * 4900);
    ck_assert_uint_eq(result.peak_bytes,
                      memory.allocated_bytes + static_cast<size_t>(recorder.peak));
    ck_assert_uint_eq(memory.peak_bytes, result.peak_bytes);
}

int main() {
    if (!suite_on_cpu()) {
        printf("SKIP: shim_memory: of the CPU's allocator alone\n");
        return EXIT_SUCCESS;
    }
    tcase_add_checked_fixture(suite_case_named("budget"), init, nullptr);
    tcase_add_checked_fixture(suite_case_named("rest"), init, nullptr);
    return suite_run_named("shim_memory");
}
