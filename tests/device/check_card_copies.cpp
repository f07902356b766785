/*
 * check_card_copies.cpp - what the shim copies beside a card that computes, on the test device: batches, and when they are the
 * caller's again, pinned memory, saved tensors on their way, sums of processes.
 */
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>

#include <memtrain/processes.h>
#include <memtrain/trainer.hpp>

#include "card_suite.hpp"

using namespace card_suite;

namespace {

/*
 * A batch of two samples that the card copies while the host goes on: in pinned memory, on MPS in any. And a model that fails after
 * its copy where it is told to.
 */
struct LentBatch {
    bool fails = false;
    std::function<void()> before; /* the next forward pass */
    at::Tensor kept, data = at::full({2, 4}, 3.0);
    std::optional<memtrain::Trainer> trainer;
    memtrain::detail::Handle handle{data = suite_on_mps() ? data : data.pin_memory()};
    mt_tensor *tensors[1] = {handle.get()};
    mt_torch_batch rows = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    mt_chunk_result result = chunk_result();
    LentBatch() {
        ck_ok(mt_torch_init(nullptr));
        trainer.emplace(
            memtrain::model(std::make_shared<Half>(), {},
                            [this](Half &half, const memtrain::Tensors &given) {
                                if (auto call = std::exchange(before, {})) call();
                                kept = given[0];
                                TORCH_CHECK(!fails, "no loss");
                                return memtrain::Output{at::mul(half.weight, kept).sum(), {}};
                            }),
            options_of(MT_SGD));
        rows.tensors = tensors;
        rows.count = 1;
        batch.count = 2;
        batch.data = &rows;
    }
};

} // namespace

/*
 * A batch is the caller's again when a chunk has failed: the card has read it. The first chunk of a step zeroes gradients, which is
 * a kernel that the copy is done before; it is the second that fails.
 */
TEST(suite_device(), batch_of_a_chunk_that_fails) {
    LentBatch of;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 1, 0.5, &of.result));
    of.fails = true;
    of.result.deferred = 1; /* so that nobody has waited before it */
    ck_status(mt_accumulate(of.trainer->torch(), 1, 1, 0.5, &of.result), MT_ETORCH);
    ck_contains(mt_last_error(), "no loss");
    of.data.fill_(5.0);
    ck_assert_double_eq(of.kept.sum().item().toDouble(), 12.0);
    ck_ok(mt_rollback(of.trainer->torch()));
}

/* The same of an evaluation. */
TEST(suite_device(), batch_of_an_evaluation_that_fails) {
    LentBatch of;
    of.fails = true;
    ck_status(mt_evaluate(of.trainer->torch(), &of.batch, 0, 2, &of.result), MT_ETORCH);
    ck_contains(mt_last_error(), "no loss");
    of.data.fill_(5.0);
    ck_assert_double_eq(of.kept.sum().item().toDouble(), 24.0);
}

/* And of one that a model makes within another, and goes on from. */
TEST(suite_device(), batch_of_an_evaluation_within_another) {
    LentBatch of;
    at::Tensor inner;
    memtrain::detail::Handle outer(at::ones({2, 4}));
    mt_tensor *tensors[] = {outer.get()};
    mt_torch_batch rows = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    rows.tensors = tensors;
    rows.count = 1;
    batch.count = 2;
    batch.data = &rows;
    of.before = [&] {
        of.fails = true;
        ck_status(mt_evaluate(of.trainer->torch(), &of.batch, 0, 2, &of.result), MT_ETORCH);
        ck_contains(mt_last_error(), "no loss");
        of.fails = false;
        of.data.fill_(5.0);
        inner = of.kept;
    };
    ck_ok(mt_evaluate(of.trainer->torch(), &batch, 0, 2, &of.result));
    ck_assert_double_eq(inner.sum().item().toDouble(), 24.0);
}

/* A rollback waits: of the chunks before it some may not have been waited for. */
TEST(suite_device(), rollback_waits) {
    LentBatch of;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    of.result.deferred = 1;
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 1, 0.5, &of.result));
    uint64_t before = counters().waits;
    ck_ok(mt_rollback(of.trainer->torch()));
    ck_assert_uint_gt(counters().waits, before);
}

/* So do an update without a gradient, and the end of a trainer within a step. */
TEST_LOOP(suite_device(), others_wait, 2) {
    LentBatch of;
    mt_apply_result applied = MT_APPLY_RESULT_INIT;
    ck_ok(mt_begin(of.trainer->torch(), &of.batch));
    of.result.deferred = 1;
    ck_ok(mt_accumulate(of.trainer->torch(), 0, 2, _i ? 0.5 : 0.0, &of.result));
    uint64_t before = counters().waits;
    if (_i)
        of.trainer.reset();
    else
        ck_ok(mt_apply(of.trainer->torch(), &applied));
    ck_assert_uint_gt(counters().waits, before);
}

/*
 * Chunks are copied while the card computes those before, so that slow copies cost a step of eight that of the first chunk. Numbers
 * are those of copies that cost nothing; what is counted on the card does not grow, and the host waits for no slot.
 */
TEST_IF(!suite_on_mps(), "MPS copies on the stream that computes", suite_device(),
        copies_beside_kernels) {
    uint64_t time = 0, kernels = 0;
    size_t peaks[2];
    std::string hashes[2];
    for (bool is_slow : {false, true}) {
        Loop loop(0.5, true);
        for (int i = 0; i < 2; i++) loop.step();
        mt_card_counters before = counters();
        const mt_card_costs costs = {10, 1000, is_slow ? uint64_t{8000} << 10 : 0, 0};
        mt_card_start_clock(&costs);
        ck_ok(mt_torch_seed(7));
        ck_ok(mt_device_reset_peak(suite_device()));
        loop.step();
        mt_card_clock clock = {};
        mt_card_read_clock(&clock);
        mt_card_start_clock(nullptr);
        ck_assert_uint_eq(counters().waits - before.waits, 2);
        ck_assert_uint_eq(counters().event_waits - before.event_waits, 0);
        hashes[is_slow] = loop.trainer.hash();
        peaks[is_slow] = memory_on(suite_device()).peak_bytes;
        kernels = clock.kernels;
        time = clock.host;
        if (is_slow) ck_assert_uint_gt(clock.to_card, 8 * 10000);
    }
    ck_assert_uint_le(time, kernels + 20000);
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_uint_eq(peaks[0], peaks[1]);
}

namespace {

/* A kernel takes long, and a copy of a chunk too: the host is ahead of both. */
constexpr mt_card_costs slow = {10, 1000, uint64_t{8000} << 10, 0};

/* Of Loop: a power of two above 2 x 3 x 8 x 8 floats and 2 labels. */
constexpr size_t slot_of_loop = 2048;

} // namespace

/*
 * The CPU's budget knows of the pinned memory: one slot where chunks are waited for, and one for each chunk of the batch where the
 * host is ahead of the card. libtorch keeps it after the trainer, until the cache is emptied.
 */
TEST_IF(!suite_on_mps(), "on MPS there are no slots of pinned memory", suite_device(),
        pinned_memory_is_counted) {
    size_t before = cpu_memory().allocated_bytes;
    {
        Loop loop(0.0, true);
        size_t empty = cpu_memory().allocated_bytes;
        for (int i = 0; i < 2; i++) loop.step();
        ck_assert_uint_eq(cpu_memory().allocated_bytes - empty, slot_of_loop);
        for (int i = 0; i < 3; i++) {
            mt_card_start_clock(&slow);
            loop.step();
            mt_card_start_clock(nullptr);
            ck_assert_uint_eq(cpu_memory().allocated_bytes - empty, 8 * slot_of_loop);
        }
        /* Those that are over are libtorch's again with the next chunk, which fills one. */
        loop.step();
        ck_ok(mt_empty_cache(suite_device(), nullptr));
        ck_assert_uint_eq(cpu_memory().allocated_bytes - empty, slot_of_loop);
    }
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before + slot_of_loop);
    uint64_t clears = counters().pinned_clears;
    ck_ok(mt_empty_cache(suite_device(), nullptr));
    ck_assert_uint_eq(counters().pinned_clears, clears + 1);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
}

/* No more slots than the batch has chunks, however far the host is ahead: then it waits for the oldest. */
TEST_IF(!suite_on_mps(), "on MPS there are no slots of pinned memory", suite_device(),
        slots_are_bounded_by_the_batch) {
    Batch batch(4);
    Trainer trainer(options_of(MT_SGD));
    ck_ok(train(trainer, batch));
    ck_ok(mt_empty_cache(suite_device(), nullptr));
    mt_card_counters before = counters();
    mt_card_start_clock(&slow);
    ck_ok(mt_begin(trainer.torch, batch.get()));
    for (size_t i = 0; i < 6; i++) {
        mt_chunk_result result = chunk_result();
        result.deferred = 1;
        ck_ok(mt_accumulate(trainer.torch, i % 2 * 2, 2, 0.5, &result));
        ck_assert_int_eq(result.deferred, 1);
    }
    mt_card_start_clock(nullptr);
    ck_assert_uint_eq(counters().event_waits - before.event_waits, 4);
    ck_assert_uint_le(counters().pinned_bytes - before.pinned_bytes, 2 * slot_of_loop);
    ck_ok(mt_rollback(trainer.torch));
}

namespace {

/* A convolution of pictures, which shows each chunk that it is given. */
struct Shown {
    std::function<void(const at::Tensor &)> sees;
    std::optional<memtrain::Trainer> trainer;
    explicit Shown(size_t micro, int channels_last = 0) {
        mt_torch_options options = options_of(MT_SGD);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        options.channels_last = channels_last;
        policy.micro_batch = micro;
        ck_ok(mt_torch_init(nullptr));
        auto net = std::make_shared<nn::Conv2dImpl>(nn::Conv2dOptions(3, 4, 3));
        trainer.emplace(
            memtrain::model(net, {},
                            [this](nn::Conv2dImpl &conv, const memtrain::Tensors &given) {
                                if (sees) sees(given[0]);
                                return memtrain::Output{conv.forward(given[0]).square().mean(), {}};
                            }),
            options, policy);
    }
};

} // namespace

/* A host that goes on alone, on the CPU, has its memory back; and who ends a trainer waits for the copies that its slots are read by. */
TEST_LOOP_IF(!suite_on_mps(), "on MPS there are no slots of pinned memory", suite_device(),
             slots_that_are_no_longer_needed, 2) {
    size_t before = counters().pinned_bytes;
    {
        Loop loop(0.0, true);
        for (int i = 0; i < 2; i++) loop.step();
        mt_card_start_clock(&slow);
        loop.step();
        mt_backend seam = seam_of(loop.trainer);
        if (_i) {
            mt_chunk_result result = chunk_result();
            result.deferred = 1;
            ck_ok(mt_evaluate(loop.trainer.torch, loop.batch.get(), 0, 2, &result));
        } else {
            ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
            ck_ok(mt_empty_cache("cpu", nullptr));
            ck_assert_uint_eq(counters().pinned_bytes, before);
        }
        before = counters().event_waits;
    }
    mt_card_start_clock(nullptr);
    ck_assert_uint_eq(counters().event_waits - before, _i);
}

/* A batch that is pinned, and in the right order, is sent from where it lies, and takes no slot. */
TEST_LOOP_IF(!suite_on_mps(), "on MPS there are no slots of pinned memory", suite_device(),
             pinned_batches_take_no_slot, 4) {
    const int net_is_last = _i & 1, batch_is_last = _i >> 1;
    auto order = batch_is_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    Shown of(2, net_is_last);
    at::Tensor pictures = at::randn({4, 3, 8, 8}).contiguous(order).pin_memory();
    uint64_t before = counters().pinned_bytes;
    bool is_same = true;
    of.sees = [&](const at::Tensor &given) {
        at::Tensor here = given.cpu();
        is_same &= here.equal(pictures.narrow(0, 0, 2)) || here.equal(pictures.narrow(0, 2, 2));
    };
    for (int i = 0; i < 2; i++) (void)of.trainer->step({pictures});
    ck_assert(is_same);
    if (net_is_last && !batch_is_last)
        ck_assert_uint_gt(counters().pinned_bytes, before);
    else
        ck_assert_uint_eq(counters().pinned_bytes, before);
}

/*
 * Somebody else holds a chunk's tensor longer than the chunk, uses it when others have been copied, and gives it up. It has its own
 * numbers, and its memory is nobody's before the card is through with it.
 */
TEST(suite_device(), tensors_that_outlive_their_chunk) {
    Shown of(1);
    at::Tensor kept, pictures = at::randn({8, 3, 8, 8});
    for (int i = 0; i < 3; i++) (void)of.trainer->step({pictures});
    of.sees = [&](const at::Tensor &given) {
        if (!kept.defined()) kept = given;
    };
    mt_card_start_clock(&slow);
    (void)of.trainer->step({pictures});
    ck_assert(kept.cpu().equal(pictures.narrow(0, 0, 1)));
    at::Tensor sum = kept.sum();
    kept.reset();
    (void)of.trainer->step({pictures});
    mt_card_start_clock(nullptr);
    ck_assert_double_eq_tol(sum.item().toDouble(), pictures[0].sum().item().toDouble(), 1e-4);
}

namespace {

/* Eight layers of 512 numbers, of which each saves some that are large enough to be put away. */
struct Chain : torch::nn::Module {
    std::vector<nn::Linear> linears;
    Chain() {
        for (int i = 0; i < 8; i++)
            linears.push_back(register_module("linear" + std::to_string(i), nn::Linear(512, 512)));
    }
};

struct ChainLoop {
    memtrain::Tensors batch;
    std::optional<memtrain::Trainer> trainer;
    /* micro: samples of a chunk; 0: chosen */
    explicit ChainLoop(int offload, size_t micro = 4) {
        mt_torch_options options = options_of(MT_SGD);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        options.offload = offload;
        policy.micro_batch = micro;
        own.policy = &policy;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_seed(3));
        batch = {at::randn({16, 512})};
        trainer.emplace(memtrain::model(std::make_shared<Chain>(), {},
                                        [](Chain &net, const memtrain::Tensors &tensors) {
                                            at::Tensor x = tensors[0];
                                            for (nn::Linear &linear : net.linears)
                                                x = at::sigmoid(linear->forward(x));
                                            return memtrain::Output{x.square().mean(), {}};
                                        }),
                        options, &own);
    }
    std::string hash() const {
        char hash[65];
        ck_ok(mt_torch_state_sha256(trainer->torch(), hash));
        return hash;
    }
};

} // namespace

/*
 * Tensors of 8 KiB that wait in pinned memory are in the CPU's budget: those of one chunk, and no more with the next step. So is
 * the slot, of 8 KiB too, which is still in use when the cache is emptied.
 */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), offload_is_counted) {
    size_t before = 0, after = 0;
    {
        ChainLoop loop(MT_OFFLOAD_HOST);
        before = cpu_memory().allocated_bytes;
        (void)loop.trainer->step(loop.batch);
        after = cpu_memory().allocated_bytes;
        ck_assert_uint_ge(after - before, (1 + 8) * 8192);
        ck_assert_uint_eq((after - before) % 8192, 0);
        (void)loop.trainer->step(loop.batch);
        ck_assert_uint_eq(cpu_memory().allocated_bytes, after);
        /* As on the rung that goes on on the CPU. */
        ck_ok(mt_empty_cache("cpu", nullptr));
        ck_assert_uint_eq(cpu_memory().allocated_bytes, before + 8192);
    }
}

/*
 * A block that is given back while the card reads it is kept until that is through, and libtorch makes one more: slow copies take
 * more pinned memory than fast ones. It is in the CPU's budget, whatever there is of it.
 */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), pinned_memory_that_is_read) {
    const mt_card_costs costs = {10, 1000, uint64_t{8000} << 10, 10};
    ChainLoop loop(MT_OFFLOAD_HOST);
    size_t before = cpu_memory().allocated_bytes - counters().pinned_bytes;
    (void)loop.trainer->step(loop.batch);
    uint64_t fast = counters().pinned_bytes;
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before + fast);
    mt_card_start_clock(&costs);
    for (int i = 0; i < 3; i++) (void)loop.trainer->step(loop.batch);
    mt_card_start_clock(nullptr);
    ck_assert_uint_gt(counters().pinned_bytes, fast);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before + counters().pinned_bytes);
    ck_ok(mt_empty_cache(suite_device(), nullptr));
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before + counters().pinned_bytes);
    ck_assert_uint_lt(counters().pinned_bytes, fast);
}

/* Where one more is more than the budget has room for, the host waits until one is free. */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(),
        pinned_memory_within_a_budget) {
    const mt_card_costs costs = {10, 1000, uint64_t{8000} << 10, 10};
    ChainLoop loop(MT_OFFLOAD_HOST), other(MT_OFFLOAD_HOST);
    for (int i = 0; i < 2; i++) (void)loop.trainer->step(loop.batch);
    for (int i = 0; i < 5; i++) (void)other.trainer->step(other.batch);
    size_t budget = cpu_memory().allocated_bytes + 4096;
    ck_ok(mt_device_set_budget("cpu", budget));
    ck_ok(mt_device_reset_peak("cpu"));
    mt_card_start_clock(&costs);
    for (int i = 0; i < 3; i++) (void)loop.trainer->step(loop.batch);
    mt_card_start_clock(nullptr);
    ck_assert_uint_le(cpu_memory().peak_bytes, budget);
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_assert(loop.hash() == other.hash());
}

/* A request above the CPU's budget is refused before it is made, as a tensor's is. The step is taken back, and the next one goes. */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), pinned_memory_is_refused) {
    ChainLoop loop(MT_OFFLOAD_HOST);
    (void)loop.trainer->step(loop.batch);
    ck_ok(mt_empty_cache("cpu", nullptr));
    std::string before = loop.hash();
    uint64_t bytes = counters().pinned_bytes;
    ck_ok(mt_device_set_budget("cpu", cpu_memory().allocated_bytes + 1024));
    mt_status status = MT_OK;
    std::string words;
    try {
        (void)loop.trainer->step(loop.batch);
    } catch (const memtrain::Error &error) {
        status = error.status;
        words = error.what();
    }
    ck_assert_uint_le(counters().pinned_bytes, bytes);
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_status(status, MT_EDEVMEM);
    ck_contains(words.c_str(), "budget: there is no room for a request for ");
    ck_assert(loop.hash() == before);
    (void)loop.trainer->step(loop.batch);
    ck_assert(loop.hash() != before);
}

/*
 * Chunks go to the card from where they are where there is room for no slot, and take turns in one, or in a few, where the host
 * waits for the oldest: nothing is cut for that, and the bits are the same.
 */
TEST_LOOP_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), little_room_for_slots,
             4) {
    const size_t slot = 4 * 512 * sizeof(float), slots = static_cast<size_t>(_i);
    const uint64_t waits[] = {0, 3, 2, 1}; /* of 4 chunks */
    const mt_card_costs costs = {10, 1000, uint64_t{8000} << 10, 10};
    ChainLoop loop(MT_OFFLOAD_NEVER), other(MT_OFFLOAD_NEVER);
    for (int i = 0; i < 4; i++) (void)other.trainer->step(other.batch);
    ck_ok(mt_empty_cache("cpu", nullptr));
    /* Each slot after the first leaves the host as much room as those before it take. */
    size_t room = slots ? (2 * slots - 1) * slot : 0;
    size_t budget = cpu_memory().allocated_bytes + room + slot / 2;
    ck_ok(mt_device_set_budget("cpu", budget));
    ck_ok(mt_device_reset_peak("cpu"));
    mt_card_start_clock(&costs);
    for (int i = 0; i < 4; i++) {
        uint64_t before = counters().event_waits;
        mt_step_report report = loop.trainer->step(loop.batch);
        ck_assert_uint_eq(report.chunk_count, 4);
        ck_assert_uint_eq(report.retries, 0);
        if (i == 3) ck_assert_uint_eq(counters().event_waits - before, waits[slots]);
    }
    mt_card_start_clock(nullptr);
    ck_assert_uint_le(cpu_memory().peak_bytes, budget);
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_assert(loop.hash() == other.hash());
}

/* One more slot takes nothing that waits for others: what offload has given back stays, and the host waits for a slot instead. */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), slots_leave_what_waits) {
    ChainLoop offloads(MT_OFFLOAD_HOST);
    (void)offloads.trainer->step(offloads.batch);
    Loop loop(0.0, true);
    for (int i = 0; i < 2; i++) loop.step();
    ck_ok(mt_device_set_budget("cpu", cpu_memory().allocated_bytes + slot_of_loop - 1));
    mt_card_counters before = counters();
    mt_card_start_clock(&slow);
    loop.step();
    mt_card_start_clock(nullptr);
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_assert_uint_eq(counters().pinned_clears, before.pinned_clears);
    ck_assert_uint_eq(counters().event_waits - before.event_waits, 7);
}

/*
 * A slot that the system has no memory for is done without: others are filled again, and no chunk is cut. Of the four slots of this
 * step the first is there already, and three are asked for.
 */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), a_slot_that_is_refused) {
    int done_without = 0;
    const at::Tensor pictures = at::ones({4, 3, 8, 8});
    std::string wanted;
    for (uint64_t n = 0, fired = 1; (fired || n == 1) && done_without < 3; n++) {
        char hash[65];
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_seed(3));
        Shown of(1);
        (void)of.trainer->step({pictures});
        mt_card_start_clock(&slow);
        ck_ok(mt_inject_oom(n, 0));
        mt_step_report report = of.trainer->step({pictures});
        mt_injected(nullptr, &fired);
        ck_ok(mt_inject_oom(0, 0));
        mt_card_start_clock(nullptr);
        ck_ok(mt_torch_state_sha256(of.trainer->torch(), hash));
        if (!n) wanted = hash;
        ck_assert(hash == wanted);
        done_without += fired && !report.retries;
    }
    ck_assert_int_eq(done_without, 3);
}

/* A step over, what slots took is to be had: mt_empty_cache gives it back, all but one. */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), slots_are_given_back) {
    const size_t slot = 4 * 512 * sizeof(float);
    const mt_card_costs costs = {10, 1000, uint64_t{8000} << 10, 10};
    ChainLoop loop(MT_OFFLOAD_NEVER);
    mt_card_start_clock(&costs);
    for (int i = 0; i < 2; i++) (void)loop.trainer->step(loop.batch);
    mt_card_start_clock(nullptr);
    ck_assert_uint_eq(counters().pinned_bytes, 4 * slot);
    ck_ok(mt_empty_cache("cpu", nullptr));
    ck_assert_uint_eq(counters().pinned_bytes, slot);
}

/* A request that the host had no room for says nothing of the card's memory: chunks are cut to what the host can hold, and no more. */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(), a_host_with_little_room) {
    ck_ok(mt_device_set_budget(suite_device(), uint64_t{512} << 20));
    ChainLoop loop(MT_OFFLOAD_HOST, 0);
    for (int i = 0; i < 4; i++) (void)loop.trainer->step(loop.batch);
    size_t most = counters().pinned_bytes;
    ck_ok(mt_empty_cache("cpu", nullptr));
    ck_ok(mt_device_set_budget("cpu", cpu_memory().allocated_bytes + most / 4));
    unsigned retries = 0;
    for (int i = 0; i < 12; i++) {
        mt_step_report report = loop.trainer->step(loop.batch);
        ck_assert_uint_le(report.chunk_count, 8);
        retries += report.retries;
    }
    ck_assert_uint_gt(retries, 0);
    ck_ok(mt_device_set_budget("cpu", 0));
    ck_ok(mt_device_set_budget(suite_device(), 0));
}

/* What is not staged goes through pinned memory too, and is counted: a batch that wants a gradient. */
TEST_IF(!suite_on_mps(), "MPS has no pinned memory", suite_device(),
        pinned_memory_of_a_batch_with_a_gradient) {
    ChainLoop loop(MT_OFFLOAD_NEVER);
    loop.batch[0].requires_grad_(true);
    size_t before = cpu_memory().allocated_bytes;
    (void)loop.trainer->step(loop.batch);
    size_t gradient = loop.batch[0].grad().nbytes();
    ck_assert_uint_gt(counters().pinned_bytes, 0);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before + gradient + counters().pinned_bytes);
}

namespace {

/* What it computes of a sample has 2^18 numbers. */
struct Wide : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({1, 1 << 18}));
};

} // namespace

/* What kernels of the card need meanwhile is the card's: a CPU that has room for little sees a step go through. */
TEST(suite_device(), kernels_take_nothing_of_the_host) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 4;
    ck_ok(mt_torch_init(nullptr));
    memtrain::Trainer trainer(
        memtrain::model(std::make_shared<Wide>(), {},
                        [](Wide &net, const memtrain::Tensors &batch) {
                            at::Tensor x = at::mul(net.weight, batch[0]);
                            return memtrain::Output{at::sigmoid(x).square().mean(), {}};
                        }),
        options_of(MT_SGD), policy);
    const memtrain::Tensors batch = {at::randn({16, 1})};
    (void)trainer.step(batch);
    size_t most = cpu_memory().allocated_bytes + (64 << 10);
    ck_ok(mt_device_set_budget("cpu", most));
    ck_ok(mt_device_reset_peak("cpu"));
    for (int i = 0; i < 2; i++) ck_assert_uint_eq(trainer.step(batch).chunk_count, 4);
    ck_assert_uint_le(cpu_memory().peak_bytes, most);
}

/* Saved tensors go out and come back while the card computes: slow copies cost little time, and change no bit. */
TEST_IF(!suite_on_mps(), "MPS copies on the stream that computes", suite_device(),
        offload_beside_kernels) {
    uint64_t times[2];
    std::string hashes[2];
    for (int offload : {MT_OFFLOAD_NEVER, MT_OFFLOAD_HOST}) {
        const mt_card_costs costs = {10, 1000, uint64_t{1500} << 7,
                                     10}; /* 1500 a tensor of 8 KiB */
        ChainLoop loop(offload);
        for (int i = 0; i < 3; i++) (void)loop.trainer->step(loop.batch);
        mt_card_counters before = counters();
        mt_card_start_clock(&costs);
        for (int i = 0; i < 2; i++) (void)loop.trainer->step(loop.batch);
        mt_card_clock clock = {};
        mt_card_read_clock(&clock);
        mt_card_start_clock(nullptr);
        ck_assert_uint_eq(counters().waits - before.waits, 4);
        times[offload != MT_OFFLOAD_NEVER] = clock.host;
        hashes[offload != MT_OFFLOAD_NEVER] = loop.hash();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_uint_le(times[1], times[0] + times[0] / 8);
}

/* What was changed in place keeps the numbers that were saved once it is out, which is when two others have followed it. */
TEST_IF(!suite_on_mps(), "MPS copies on the stream that computes", suite_device(),
        changed_once_it_is_out) {
    ck_ok(mt_torch_init(nullptr));
    mt_card_let_race(1);
    auto options = at::device(c10::Device(suite_device()));
    for (bool others_follow : {true, false}) {
        at::Tensor sum, x = at::ones({64, 512}, options).requires_grad_(true), wanted;
        bool is_changed = false;
        auto body = [&] {
            at::Tensor y = x.exp();
            sum = (y * y).sum();
            if (others_follow) sum = sum + x.sin().tanh().tanh().tanh().sum();
            c10::NoGradGuard no_graph;
            if (is_changed) y.add_(1);
        };
        auto call = [](void *user) {
            (*static_cast<decltype(body) *>(user))();
            return MT_OK;
        };
        body();
        sum.backward();
        wanted = x.grad();
        x.mutable_grad() = at::Tensor();
        is_changed = true;
        ck_ok(mt_offload(suite_device(), MT_OFFLOAD_HOST, nullptr, call, &body));
        std::string words;
        try {
            sum.backward();
            ck_assert(x.grad().equal(wanted));
        } catch (const c10::Error &error) {
            words = error.what();
        }
        if (others_follow)
            ck_assert_str_eq(words.c_str(), "");
        else
            ck_contains(words.c_str(), "was on its way to the host");
    }
}

namespace {

/* 36 MiB, three pieces of a sum. */
struct Long : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({9 << 20}));
};

/* Another process that has the same numbers; how many copies have been given when the pieces of a gradient are summed. */
struct Twin {
    std::vector<uint64_t> copies;
    template <class Number> static mt_status sum(void *self, Number *values, size_t n) {
        if (n > 1000) static_cast<Twin *>(self)->copies.push_back(counters().to_host);
        for (size_t i = 0; i < n; i++) values[i] *= 2;
        return MT_OK;
    }
};

} // namespace

/* While a piece is summed the next one is on its way, and none is lost or taken twice. */
TEST_IF(!suite_on_mps(), "gradients of MPS are not copied in pieces", suite_device(),
        sums_of_processes) {
    Twin twin;
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    group.self = &twin;
    group.count = 2;
    group.sum_floats = &Twin::sum<float>;
    group.sum_doubles = &Twin::sum<double>;
    mt_torch_options options = options_of(MT_SGD);
    options.processes = &group;
    ck_ok(mt_torch_init(nullptr));
    auto net = std::make_shared<Long>();
    memtrain::Trainer trainer(
        memtrain::model(net, {},
                        [](Long &self, const memtrain::Tensors &batch) {
                            at::Tensor mean = self.weight.mean();
                            return memtrain::Output{mean * batch[0].mean(), {}};
                        }),
        options);
    for (int i = 0; i < 2; i++) {
        at::Tensor before = net->weight.detach().clone();
        twin.copies.clear();
        (void)trainer.step({at::full({2, 1}, 1e6)});
        ck_assert_uint_eq(twin.copies.size(), 3);
        ck_assert_uint_eq(twin.copies[1] - twin.copies[0], 1);
        ck_assert_uint_eq(twin.copies[2] - twin.copies[1], 0);
        at::Tensor change = (net->weight.detach() - before).cpu();
        ck_assert_double_lt(change[0].item().toDouble(), 0.0);
        ck_assert_double_eq(change.min().item().toDouble(), change.max().item().toDouble());
    }
}

int main(int, char **argv) {
    return card_main("card_copies", argv);
}
