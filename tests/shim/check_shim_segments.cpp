/*
 * check_shim_segments.cpp - segments that are chosen by what they keep and cost: the same bits whatever the
 * set, peaks that are as expected, budgets that are kept; memory that runs out while it is measured; chosen
 * segments and the policy.
 */
#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "networks/steps.hpp"

#include "counting_allocator.h"
#include "slow.h"

using namespace check_shim;
using networks::CLASSES;
using networks::hash_of;
using networks::Network;
using networks::step;
using networks::Subject;

namespace {

mt_torch_options options_for(int checkpointing, double share = 0, size_t bytes = 0) {
    mt_torch_options options = options_of(MT_SGD);
    options.checkpointing = checkpointing;
    options.activation_share = share;
    options.activation_bytes = bytes;
    return options;
}

mt_torch_options plain() {
    return options_for(MT_CHECKPOINTING_AUTO);
}

mt_torch_options chosen(double share, size_t bytes = 0) {
    return options_for(MT_CHECKPOINTING_CHOSEN, share, bytes);
}

template <class Loss> auto with_segments(const nn::Sequential &net, Loss loss) {
    auto description = memtrain::model(net.ptr(), {}, loss);
    description.checkpoints = true;
    return description;
}

mt_segments_stats stats_of(const mt_torch *torch) {
    mt_segments_stats stats = MT_SEGMENTS_STATS_INIT;
    ck_ok(mt_torch_segments(torch, &stats));
    return stats;
}

uint64_t shape_of(const Subject &subject, const bench::Batch &batch) {
    mt_shape shape = {};
    ck_ok(subject.backend.shape(subject.torch, &batch.batch, &shape));
    ck_assert_uint_eq(shape.length, 0); /* what is kept is chosen for each */
    return shape.id;
}

/* ---- the same bits --------------------------------------------------------------------------------- */

/* kind: 0 in place, 1 marked, 2 one marked chunk. The first step measures, the others have the set. */
std::string trained(const Network &network, const mt_torch_options &options, int kind,
                    std::vector<double> *losses, mt_segments_stats *out) {
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    const std::vector<size_t> chunks =
        kind == 2 ? std::vector<size_t>{5} : std::vector<size_t>{3, 2};
    for (int i = 0; i < 4; i++) step(subject, batch, chunks, kind > 0, losses);
    mt_arena_stats arena = MT_ARENA_STATS_INIT;
    ck_ok(mt_torch_arena(subject.torch, &arena));
    ck_assert_uint_eq(arena.missed, 0);
    *out = stats_of(subject.torch);
    return hash_of(subject);
}

TEST_LOOP("bits", same_bits, 3 * networks::count + 1) {
    const bool is_large = _i == 3 * networks::count;
    const Network &network = is_large ? networks::resnet50 : networks::all[_i % networks::count];
    int kind = is_large ? 0 : _i / networks::count;
    std::vector<double> expected;
    mt_segments_stats stats;
    std::string hash = trained(network, plain(), kind, &expected, &stats);
    ck_assert_uint_eq(stats.segments, 0);
    for (double share : {0.5, 0.8}) {
        std::vector<double> losses;
        ck_assert(trained(network, chosen(share), kind, &losses, &stats) == hash);
        ck_assert(losses == expected);
        ck_assert_uint_gt(stats.segments, 3);
    }
}

/* Sets of so many segments: each of them where they are few, else none, all, and some of the others. */
std::vector<std::vector<unsigned char>> sets_of(size_t segments) {
    std::vector<std::vector<unsigned char>> sets;
    size_t all = size_t{1} << segments, stride = segments > 4 ? all / 13 : 1;
    for (size_t bits = 0; bits < all; bits += stride) {
        sets.emplace_back(segments);
        for (size_t i = 0; i < segments; i++) sets.back()[i] = bits >> i & 1;
    }
    sets.emplace_back(segments, 1);
    return sets;
}

/* What a chunk of the whole batch takes above its start. */
size_t chunk_peak(const Subject &subject, const bench::Batch &batch, std::vector<double> *losses) {
    size_t before = Subject::allocated(suite_device());
    return step(subject, batch, {batch.batch.count}, false, losses) - before;
}

/* Where no graph is made a card may take an attention kernel that needs less. */
void expect_near(size_t measured, size_t expected, double tolerance, const char *what) {
    double off = static_cast<double>(measured) / static_cast<double>(expected) - 1;
    ck_assert_msg(off <= tolerance && off >= (suite_on_real_card() ? -0.05 : -tolerance),
                  "%s: %zu, expected %zu (%+.1f %%)", what, measured, expected, 100 * off);
}

/* With each set the losses, and in the end all else, are those of a plain run; peaks are as predicted. */
TEST_LOOP("bits", each_set, networks::count) {
    const Network &network = networks::all[_i];
    enum { SIDE = 64, SAMPLES = 8 };
    networks::prepare();
    bench::Batch batch(SAMPLES, SIDE, CLASSES);
    std::vector<double> losses, expected;
    std::string hash;
    size_t steps = 1;
    {
        mt_torch_options options = chosen(1.0);
        Subject subject(network, SIDE, &options);
        chunk_peak(subject, batch, &losses);
        std::set<uint64_t> shapes;
        auto sets = sets_of(stats_of(subject.torch).segments);
        for (const auto &set : sets) {
            ck_ok(mt_torch_set_segments(subject.torch, set.data(), set.size()));
            shapes.insert(shape_of(subject, batch));
            size_t peak = chunk_peak(subject, batch, &losses);
            expect_near(peak, stats_of(subject.torch).peak_bytes, 0.03, network.name);
            steps++;
        }
        ck_assert_uint_eq(shapes.size(),
                          std::set<std::vector<unsigned char>>(sets.begin(), sets.end()).size());
        hash = hash_of(subject);
    }
    networks::prepare();
    mt_torch_options options = plain();
    Subject subject(network, SIDE, &options);
    for (size_t i = 0; i < steps; i++) chunk_peak(subject, batch, &expected);
    ck_assert(losses == expected);
    ck_assert(hash == hash_of(subject));
}

/* ---- the choice -------------------------------------------------------------------------------------- */

/* A step that measures, and one that has the set: what was chosen, and its peak. */
mt_segments_stats choose(const Network &network, const mt_torch_options &options, size_t *peak) {
    enum { SIDE = 64, SAMPLES = 8 };
    networks::prepare();
    Subject subject(network, SIDE, &options);
    bench::Batch batch(SAMPLES, SIDE, CLASSES);
    for (int i = 0; i < 2; i++) *peak = chunk_peak(subject, batch, nullptr);
    mt_segments_stats stats = stats_of(subject.torch);
    ck_assert_uint_eq(stats.samples, SAMPLES);
    double seconds = 0;
    size_t recomputed = 0;
    for (size_t i = 0; i < stats.segments; i++) {
        ck_assert_uint_ge(stats.costs[i].kept_bytes, stats.costs[i].output_bytes);
        ck_assert_uint_gt(stats.costs[i].kept_bytes, 0);
        ck_assert_double_gt(stats.costs[i].seconds, 0);
        recomputed += stats.recompute[i];
        seconds += stats.recompute[i] ? stats.costs[i].seconds : 0;
    }
    ck_assert_uint_eq(stats.recomputed, recomputed);
    ck_assert_double_le(std::fabs(seconds - stats.seconds), 1e-12);
    stats.costs = nullptr; /* gone with the subject */
    stats.recompute = nullptr;
    return stats;
}

TEST_LOOP("choice", budgets, networks::count) {
    const Network &network = networks::all[_i];
    size_t peak, partly = 0;
    mt_segments_stats wide = choose(network, chosen(1.0), &peak);
    ck_assert_uint_eq(wide.recomputed, 0);
    ck_assert_uint_eq(wide.peak_bytes, wide.plain_peak_bytes);
    expect_near(peak, wide.plain_peak_bytes, 0.03, "plain");
    for (int tenths = 9; tenths > 0; tenths -= is_slow() ? 1 : 2) {
        mt_segments_stats stats = choose(network, chosen(tenths / 10.0), &peak);
        expect_near(peak, stats.peak_bytes, 0.03, network.name);
        expect_near(stats.budget_bytes, wide.plain_peak_bytes * (size_t)tenths / 10, 0.001,
                    "budget");
        ck_assert_double_le(stats.seconds, stats.all_seconds);
        if (stats.peak_bytes > stats.budget_bytes) { /* nothing less can be done */
            ck_assert_uint_eq(stats.recomputed, stats.segments);
            ck_assert_uint_gt(stats.least_peak_bytes, stats.budget_bytes);
            ck_assert_uint_eq(stats.peak_bytes, stats.least_peak_bytes);
        } else {
            ck_assert_uint_lt(stats.recomputed, stats.segments); /* the last one never gains */
        }
        partly += stats.recomputed && stats.recomputed < stats.segments;
    }
    ck_assert_uint_gt(partly, 0);
    size_t midway = (wide.least_peak_bytes + wide.plain_peak_bytes) / 2;
    mt_segments_stats bytes = choose(network, chosen(0, midway), &peak);
    ck_assert_uint_eq(bytes.budget_bytes, midway);
    ck_assert_uint_le(bytes.peak_bytes, bytes.budget_bytes);
    expect_near(peak, bytes.peak_bytes, 0.03, "bytes");
}

/*
 * Four ways whose outputs are added up, each sum a new tensor: none of them is kept. In the first step something is
 * let go that was there before.
 */
mt_model *branches(int64_t classes, int64_t) {
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [classes] {
        auto ballast = std::make_shared<at::Tensor>(at::zeros({1 << 20}));
        nn::Sequential net;
        for (int i = 0; i < 4; i++) net->push_back(nn::Conv2d(nn::Conv2dOptions(3, 8, 3)));
        net->push_back(nn::Linear(8, classes));
        auto loss = [ballast](nn::SequentialImpl &n, const memtrain::Tensors &b) {
            auto fn = [](const at::Tensor &x) { return x.sin().cos(); };
            at::Tensor y;
            for (size_t i = 0; i < 4; i++) {
                nn::Conv2d conv(n.ptr<nn::Conv2dImpl>(i));
                at::Tensor one = memtrain::checkpoint_conv(fn, b[0], conv);
                y = y.defined() ? y + one : one;
                if (i == 2) ballast->reset();
            }
            y = n.ptr<nn::LinearImpl>(4)->forward(y.mean({2, 3}));
            return memtrain::Output{at::cross_entropy_loss(y, b[1]), {}};
        };
        return with_segments(net, loss);
    }));
    return model;
}

TEST("choice", outputs_that_go) {
    const Network network = {"branches", branches, 64, false, 0};
    for (double share : {1.0, 0.8, 0.01}) {
        size_t peak;
        mt_segments_stats stats = choose(network, chosen(share), &peak);
        ck_assert_uint_eq(stats.segments, 4);
        ck_assert_uint_eq(stats.recomputed, share == 1.0 ? 0 : share == 0.8 ? 3 : 4);
        expect_near(peak, stats.peak_bytes, 0.03, network.name);
    }
}

/* A model that carries a segment's output, with its graph, from one chunk to the next. */
mt_model *carrying(int64_t classes, int64_t) {
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [classes] {
        auto carried = std::make_shared<at::Tensor>();
        nn::Sequential net(nn::Linear(3, 8), nn::Linear(8, classes));
        auto loss = [carried](nn::SequentialImpl &n, const memtrain::Tensors &b) {
            at::Tensor x = b[0].mean({2, 3});
            at::Tensor now = memtrain::checkpoint(n.ptr<nn::LinearImpl>(0), x);
            at::Tensor used = carried->defined() ? *carried : now.detach();
            *carried = now;
            at::Tensor y = n.ptr<nn::LinearImpl>(1)->forward(used);
            return memtrain::Output{at::cross_entropy_loss(y, b[1]), {}};
        };
        return with_segments(net, loss);
    }));
    return model;
}

/* The first chunk is measured to its end; the second one's backward pass goes through its segment after that. */
TEST("choice", graph_of_an_earlier_chunk) {
    const Network network = {"carrying", carrying, 8, false, 0};
    networks::prepare();
    mt_torch_options options = chosen(1.0);
    Subject subject(network, 8, &options);
    bench::Batch batch(8, 8, CLASSES);
    std::vector<double> losses;
    step(subject, batch, {4, 4}, false, &losses);
    ck_assert_uint_eq(losses.size(), 2);
    ck_assert_uint_eq(stats_of(subject.torch).segments, 1);
}

/* A norm of another kind at the end, and no modules named: all buffers are watched, so fn's count once. */
mt_model *with_group_norm(int64_t classes, int64_t) {
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [classes] {
        nn::Sequential net(nn::BatchNorm2d(3), nn::Conv2d(nn::Conv2dOptions(3, 8, 3)),
                           nn::GroupNorm(2, 8), nn::Linear(8, classes));
        nn::BatchNorm2d before(std::dynamic_pointer_cast<nn::BatchNorm2dImpl>(net->ptr(0)));
        nn::Conv2d conv(net->ptr<nn::Conv2dImpl>(1));
        nn::GroupNorm norm(net->ptr<nn::GroupNormImpl>(2));
        nn::Linear head(net->ptr<nn::LinearImpl>(3));
        auto loss = [=](nn::SequentialImpl &, const memtrain::Tensors &b) mutable {
            auto fn = [before](const at::Tensor &x) mutable { return before(x).relu_(); };
            at::Tensor y = memtrain::checkpoint_conv_norm(fn, b[0], conv, norm);
            return memtrain::Output{at::cross_entropy_loss(head(y.mean({2, 3})), b[1]), {}};
        };
        return with_segments(net, loss);
    }));
    return model;
}

TEST("choice", buffers_count_once) {
    const Network network = {"group norm", with_group_norm, 32, true, 0};
    mt_segments_stats stats;
    std::string plainly = trained(network, plain(), 0, nullptr, &stats);
    ck_assert(trained(network, options_for(MT_CHECKPOINTING_ON), 0, nullptr, &stats) == plainly);
    ck_assert(trained(network, chosen(0.5), 0, nullptr, &stats) == plainly);
    ck_assert_uint_eq(stats.segments, 1);
}

int warnings;

void on_log(void *, mt_log_level level, const char *line) {
    warnings += level == MT_LOG_WARNING && strstr(line, "more than that cannot be done");
}

/* Where even all of them take more than the budget, it is all of them, and the log says so. */
TEST("choice", too_tight) {
    size_t peak;
    mt_set_log(on_log, nullptr);
    mt_segments_stats stats = choose(networks::all[2], chosen(0, 1), &peak);
    ck_assert_uint_eq(stats.recomputed, stats.segments);
    ck_assert_uint_eq(stats.peak_bytes, stats.least_peak_bytes);
    ck_assert_int_eq(warnings, 1);
}

/* Chosen once: the first step has all, and from the second on nothing changes. */
TEST("choice", once) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = chosen(0.7);
    Subject subject(network, network.side, &options);
    bench::Batch small(6, 32, CLASSES);
    uint64_t before = shape_of(subject, small);
    ck_assert_uint_eq(stats_of(subject.torch).segments, 0);
    ck_ok(mt_begin(subject.torch, &small.batch));
    mt_chunk_result result = chunk_result();
    ck_ok(networks::accumulate(subject, small, 0, 4, &result));
    ck_assert_uint_eq(stats_of(subject.torch).segments, 0); /* fixed within a step */
    ck_assert_uint_eq(shape_of(subject, small), before);
    ck_ok(networks::accumulate(subject, small, 4, 2, &result));
    mt_apply_result applied = apply_result();
    ck_ok(mt_apply(subject.torch, &applied));
    mt_segments_stats stats = stats_of(subject.torch);
    uint64_t after = shape_of(subject, small);
    ck_assert_uint_eq(stats.samples, 4); /* the largest chunk's */
    ck_assert_uint_eq(stats.segments, 4);
    ck_assert_uint_ne(after, before);
    step(subject, small, {6}, false);
    ck_assert_mem_eq(stats_of(subject.torch).recompute, stats.recompute, stats.segments);
    ck_assert_uint_eq(stats_of(subject.torch).samples, 4);
    ck_assert_uint_eq(shape_of(subject, small), after);
}

/* Each shape has a choice of its own. */
TEST("choice", shapes) {
    const Network &network = networks::all[1];
    networks::prepare();
    mt_torch_options options = chosen(0.6);
    Subject subject(network, 32, &options);
    bench::Batch small(4, 32, CLASSES), large(4, 64, CLASSES);
    step(subject, small, {4}, false);
    mt_segments_stats first = stats_of(subject.torch);
    ck_ok(mt_begin(subject.torch, &large.batch));
    ck_assert_uint_eq(stats_of(subject.torch).segments, 0);
    ck_ok(mt_rollback(subject.torch));
    step(subject, large, {4}, false);
    ck_assert_uint_gt(stats_of(subject.torch).plain_peak_bytes, 2 * first.plain_peak_bytes);
    step(subject, small, {4}, false);
    ck_assert_uint_eq(stats_of(subject.torch).plain_peak_bytes, first.plain_peak_bytes);
}

/* ---- segments within segments -------------------------------------------------------------------------- */

struct Runs {
    int outer = 0, inner = 0;
};

mt_model *nested(Runs *runs) {
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [runs] {
        nn::Sequential net(nn::Linear(192, 64), nn::Linear(64, 4));
        auto loss = [runs](nn::SequentialImpl &n, const memtrain::Tensors &b) {
            auto inner = [&n, runs](const at::Tensor &x) {
                runs->inner++;
                return n.forward(x).sin();
            };
            auto outer = [inner, runs](const at::Tensor &x) {
                runs->outer++;
                return memtrain::checkpoint(inner, x).cos();
            };
            at::Tensor y = memtrain::checkpoint(outer, b[0].flatten(1));
            return memtrain::Output{at::cross_entropy_loss(y, b[1]), {}};
        };
        return with_segments(net, loss);
    }));
    return model;
}

/* Chosen ones have those within them run as they are, computed again or not. */
TEST("choice", within_segments) {
    networks::prepare();
    Runs runs;
    mt_model *model = nested(&runs);
    mt_torch *torch = nullptr;
    mt_torch_options options = chosen(1.0);
    bench::Batch batch(4, 8, 4);
    const struct {
        int set, outer, inner; /* -1: measured; 2: the rung */
    } table[] = {{-1, 2, 2}, {1, 2, 2}, {0, 1, 1}, {2, 2, 3}};
    ck_ok(mt_torch_new(model, &options, &torch));
    for (const auto &row : table) {
        unsigned char set = row.set == 1;
        mt_backend seam = MT_BACKEND_INIT;
        ck_ok(mt_torch_backend(torch, &seam));
        if (row.set == 0 || row.set == 1) ck_ok(mt_torch_set_segments(torch, &set, 1));
        ck_ok(seam.set_rung(torch, MT_RUNG_CHECKPOINTING, row.set == 2));
        runs = Runs();
        ck_ok(mt_train_step(torch, &batch.batch, nullptr, nullptr));
        ck_assert_int_eq(runs.outer, row.outer);
        ck_assert_int_eq(runs.inner, row.inner);
        ck_assert_uint_eq(stats_of(torch).segments, 1);
    }
    mt_torch_free(torch);
    mt_model_free(model);
}

/* ---- memory that runs out ------------------------------------------------------------------------------ */

/* Each 29th request of the step that measures fails: the step is taken back, and nothing is known. */
TEST_LOOP("memory", while_measuring, 2) {
    const Network &network = networks::all[1 + _i];
    networks::prepare();
    bench::Batch batch(4, network.side, CLASSES);
    mt_torch_options without = plain(), options = chosen(0.6);
    std::string before, after;
    {
        Subject expected(network, network.side, &without);
        ck_ok(mt_torch_seed(5));
        for (int i = 0; i < 2; i++) step(expected, batch, {4}, false);
        after = hash_of(expected);
    }
    uint64_t failed = 1, failures = 0;
    for (uint64_t n = 1; failed; n += 29) {
        networks::prepare();
        Subject subject(network, network.side, &options);
        ck_ok(mt_torch_seed(5));
        before = hash_of(subject);
        auto allocated = [] { return Subject::allocated(suite_device()); };
        size_t held = allocated();
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_train_step(subject.torch, &batch.batch, nullptr, nullptr);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_status(status, failed ? MT_EDEVMEM : MT_OK);
        failures += failed;
        if (!failed) break;
        ck_assert(hash_of(subject) == before);
        ck_assert_uint_eq(stats_of(subject.torch).segments, 0);
        ck_assert_uint_eq(settled(held, allocated), held);
        if (n % 5 != 1) continue;
        for (int i = 0; i < 2; i++) step(subject, batch, {4}, false);
        ck_assert(hash_of(subject) == after);
        ck_assert_uint_gt(stats_of(subject.torch).segments, 0);
    }
    ck_assert_uint_gt(failures, 5);
}

/* Without memory of the host for it the choice waits, and steps go on. */
TEST("memory", without_host_memory) {
    ck_ok(counting_install());
    networks::prepare();
    const Network &network = networks::all[2];
    mt_torch_options options = chosen(0.7);
    Subject subject(network, network.side, &options);
    bench::Batch batch(4, network.side, CLASSES);
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    size_t failures = 0;
    for (size_t n = 1; !stats_of(subject.torch).segments; n++) {
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_ok(networks::accumulate(subject, batch, 0, 4, &result));
        counting_fail_at(n, 0);
        ck_ok(mt_apply(subject.torch, &applied));
        failures += counting_fired() != 0;
        counting_fail_at(0, 0);
    }
    ck_assert_uint_gt(failures, 3);
    ck_assert_uint_eq(stats_of(subject.torch).segments, 4);
}

/* ---- in a trainer -------------------------------------------------------------------------------------- */

/*
 * What a policy has recorded of one set is not taken for another: no OOM, and peaks as predicted. Segments of a card's
 * allocator take room of their own, and are met by OOMs.
 */
TEST_LOOP("trainer", with_a_policy, networks::count) {
    const Network &network = networks::all[_i];
    enum { SIDE = 32, SAMPLES = 32, STEPS = 6 };
    std::vector<std::vector<size_t>> chunks;
    std::string hashes[2];
    bench::Batch batch(SAMPLES, SIDE, CLASSES);
    const size_t card_room = suite_on_cpu() ? 0 : size_t{60} << 20;
    size_t peaks[2]; /* of 4 samples and of all: work spaces differ from CPU to CPU */
    for (int whole = 0; whole < 2; whole++) {
        networks::prepare();
        mt_torch_options options = plain();
        Subject subject(network, SIDE, &options);
        bench::Batch some(whole ? SAMPLES : 4, SIDE, CLASSES);
        for (int i = 0; i < 2; i++) peaks[whole] = chunk_peak(subject, some, nullptr);
    }
    for (int again = 0; again < 2; again++) {
        networks::prepare();
        ck_ok(mt_device_set_budget(suite_device(), size_t{4} << 30));
        mt_torch_options options = again ? plain() : chosen(0.7);
        Subject subject(network, SIDE, &options);
        if (!again) Subject::set_budget((peaks[0] + peaks[1]) / 2 + card_room, suite_device());
        mt_trainer *trainer = subject.trainer();
        for (size_t i = 0; i < STEPS; i++) {
            mt_step_report report = MT_STEP_REPORT_INIT;
            if (again) ck_ok(mt_trainer_set_chunks(trainer, chunks[i].data(), chunks[i].size()));
            ck_ok(mt_trainer_step(trainer, &batch.batch, &report));
            if (again) continue;
            chunks.emplace_back(report.chunks, report.chunks + report.chunk_count);
            if (!suite_on_cpu()) continue;
            ck_assert_uint_eq(report.retries, 0);
            ck_assert_uint_eq(report.rungs, 0);
            if (i > 2)
                expect_near(report.peak_bytes, report.predicted_peak_bytes, 0.02, network.name);
        }
        if (!again) ck_assert_uint_gt(stats_of(subject.torch).recomputed, 0);
        hashes[again] = hash_of(subject);
        mt_trainer_free(trainer);
    }
    ck_assert(hashes[0] == hashes[1]);
}

/* As a rung all of them forget; the set is there again when it is left. */
TEST("trainer", the_rung) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = chosen(1.0);
    Subject subject(network, 64, &options);
    bench::Batch batch(8, 64, CLASSES);
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(subject.backend.describe(subject.torch, &info));
    ck_assert(info.rungs & MT_RUNG_BIT(MT_RUNG_CHECKPOINTING));
    for (int i = 0; i < 4; i++) {
        ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_CHECKPOINTING, i == 2));
        size_t peak = chunk_peak(subject, batch, nullptr);
        mt_segments_stats stats = stats_of(subject.torch);
        bool all = i == 0 || i == 2;
        expect_near(peak, all ? stats.least_peak_bytes : stats.plain_peak_bytes, 0.03, "peak");
    }
}

/* What is measured is what lies on the card. */
TEST("trainer", on_a_simulated_card) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = chosen(0.6);
    options.device = "sim:cuda";
    Subject subject(network, 64, &options);
    bench::Batch batch(8, 64, CLASSES);
    for (int i = 0; i < 2; i++) step(subject, batch, {8}, false);
    mt_segments_stats stats = stats_of(subject.torch);
    ck_assert_uint_eq(stats.segments, 4);
    ck_assert_uint_gt(stats.recomputed, 0);
    ck_assert_uint_lt(stats.recomputed, 4);
    ck_assert_uint_gt(stats.plain_peak_bytes, stats.least_peak_bytes);
}

/* ---- what is refused ------------------------------------------------------------------------------------- */

/* MPS tells no peaks, so that nothing could be chosen by them. */
TEST("refused", without_peaks) {
    networks::prepare();
    mt_torch_options options = chosen(0.6);
    mt_torch *torch = nullptr;
    mt_model *model = networks::vit(CLASSES, 64);
    options.device = suite_on_mps() ? suite_device() : "sim:mps";
    ck_refused(mt_torch_new(model, &options, &torch), MT_ENOTSUP, "MPS tells no peaks");
    mt_model_free(model);
}

TEST("refused", refused_options) {
    const struct {
        int checkpointing;
        double share;
        size_t bytes;
        const char *words;
    } table[] = {
        {3, 0.5, 0, "options->checkpointing is 3"},
        {-1, 0.5, 0, "options->checkpointing is -1"},
        {MT_CHECKPOINTING_CHOSEN, 0, 0, "one of them"},
        {MT_CHECKPOINTING_CHOSEN, 0.5, 100, "one of them"},
        {MT_CHECKPOINTING_CHOSEN, 1.5, 0, "activation_share is 1.5"},
        {MT_CHECKPOINTING_CHOSEN, -0.5, 0, "activation_share is -0.5"},
        {MT_CHECKPOINTING_CHOSEN, std::nan(""), 0, "activation_share is"},
    };
    networks::prepare();
    mt_model *model = networks::vit(CLASSES, 32);
    for (const auto &row : table) {
        mt_torch *torch = nullptr;
        mt_torch_options options = options_for(row.checkpointing, row.share, row.bytes);
        ck_refused(mt_torch_new(model, &options, &torch), MT_EINVAL, row.words);
        ck_assert_ptr_null(torch);
    }
    mt_model_free(model);
}

TEST("refused", refused_calls) {
    networks::prepare();
    const Network &network = networks::all[2];
    mt_torch_options options = chosen(0.5), without = plain();
    Subject subject(network, 32, &options), other(network, 32, &without);
    bench::Batch batch(4, 32, CLASSES);
    unsigned char set[4] = {1, 0, 1, 0};
    mt_segments_stats unset = MT_SEGMENTS_STATS_INIT;
    unset.size = 0;
    ck_status(mt_torch_set_segments(nullptr, set, 4), MT_EINVAL);
    ck_status(mt_torch_set_segments(subject.torch, nullptr, 4), MT_EINVAL);
    ck_refused(mt_torch_set_segments(subject.torch, set, 0), MT_EINVAL, "count is 0");
    ck_refused(mt_torch_set_segments(other.torch, set, 4), MT_ESTATE, "MT_CHECKPOINTING_CHOSEN");
    ck_status(mt_torch_segments(nullptr, &unset), MT_EINVAL);
    ck_status(mt_torch_segments(subject.torch, nullptr), MT_EINVAL);
    ck_status(mt_torch_segments(subject.torch, &unset), MT_EINVAL);
    ck_ok(mt_begin(subject.torch, &batch.batch));
    ck_status(mt_torch_set_segments(subject.torch, set, 4), MT_ESTATE);
    ck_ok(mt_rollback(subject.torch));
    ck_ok(mt_torch_set_segments(subject.torch, set, 4));
    step(subject, batch, {4}, false);
    ck_assert_uint_eq(stats_of(subject.torch).segments, 0); /* nothing to be measured */
    ck_ok(mt_torch_set_segments(subject.torch, nullptr, 0));
    step(subject, batch, {4}, false);
    ck_assert_uint_eq(stats_of(subject.torch).segments, 4);
}

} // namespace

int main() {
    if (!suite_has_peaks()) {
        suite_skip("shim_segments", "nothing tells peaks to choose segments by");
        return EXIT_SUCCESS;
    }
    for (const char *slow : {"bits", "choice", "memory", "trainer"})
        tcase_set_timeout(suite_case_named(slow), 240);
    return suite_run_named("shim_segments");
}
