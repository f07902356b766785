/*
 * check_shim_offload_rung.cpp - saved tensors that wait elsewhere, as a rung: on which devices there is one, on and off, and
 * on the ladder.
 */
#include <string>

#include <torch/csrc/autograd/engine.h>

#include "offload_subject.hpp"

using namespace offload_subject;

namespace {

/* What waits on the host is not on the card. */
TEST_LOOP("torch", on_a_simulated_card, 2 * networks::count) {
    const char *device = _i % 2 ? "sim:mps" : "sim:cuda";
    const Network &network = networks::all[_i / 2];
    std::string hashes[2];
    size_t peaks[2] = {0, 0};
    for (int on = 0; on < 2; on++) {
        networks::prepare();
        mt_torch_options options = options_for(on ? MT_OFFLOAD_HOST : MT_OFFLOAD_NEVER);
        mt_sim_stats stats = {};
        options.device = device;
        stats.size = sizeof stats;
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        step(subject, batch, {3, 2}, false);
        ck_ok(mt_device_sim_stats(device, &stats));
        size_t held = stats.allocated_bytes;
        peaks[on] = step(subject, batch, {3, 2}, false);
        ck_ok(mt_device_sim_stats(device, &stats));
        ck_assert_uint_eq(stats.allocated_bytes, held);
        hashes[on] = hash_of(subject);
    }
    ck_assert(hashes[0] == hashes[1]);
    if (_i % 2 == 0) ck_assert_uint_lt(peaks[1], peaks[0]); /* MPS has no peaks */
}

unsigned rungs_of(const Subject &subject) {
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(subject.backend.describe(subject.torch, &info));
    return info.rungs & MT_RUNG_BIT(MT_RUNG_OFFLOAD);
}

TEST("torch", whose_rung_it_is) {
    const struct {
        const char *device;
        int offload;
        const char *folder;
        bool has_rung;
        int kind;
    } table[] = {
        {"cpu", MT_OFFLOAD_AUTO, nullptr, false, MT_OFFLOAD_NEVER},
        {"cpu", MT_OFFLOAD_AUTO, "/tmp", true, MT_OFFLOAD_FILE},
        {"cpu", MT_OFFLOAD_AUTO_PACK, nullptr, true, MT_OFFLOAD_PACK},
        {"cpu", MT_OFFLOAD_NEVER, "/tmp", false, MT_OFFLOAD_NEVER},
        {"cpu", MT_OFFLOAD_HOST, nullptr, false, MT_OFFLOAD_HOST},
        {"cpu", MT_OFFLOAD_FILE, nullptr, false, MT_OFFLOAD_FILE},
        {"cpu", MT_OFFLOAD_PACK, nullptr, false, MT_OFFLOAD_PACK},
        {"sim:cuda", MT_OFFLOAD_AUTO, nullptr, true, MT_OFFLOAD_HOST},
        {"sim:mps", MT_OFFLOAD_AUTO, "/tmp", true, MT_OFFLOAD_HOST},
        {suite_device(), MT_OFFLOAD_AUTO, "/tmp", true,
         suite_on_cpu() ? MT_OFFLOAD_FILE : MT_OFFLOAD_HOST},
        {suite_device(), MT_OFFLOAD_PACK, nullptr, false, MT_OFFLOAD_PACK},
        {"sim:cuda", MT_OFFLOAD_AUTO_PACK, nullptr, true, MT_OFFLOAD_PACK},
        {"sim:cuda", MT_OFFLOAD_NEVER, nullptr, false, MT_OFFLOAD_NEVER},
    };
    const Network &network = networks::all[2];
    bench::Batch batch(5, network.side, CLASSES);
    networks::prepare();
    for (const auto &row : table) {
        mt_torch_options options = options_for(row.offload);
        options.device = row.device;
        options.offload_dir = row.folder;
        Subject subject(network, network.side, &options);
        mt_offload_stats stats = stats_of(subject.torch);
        bool is_fixed = row.kind != MT_OFFLOAD_NEVER && !row.has_rung;
        ck_assert_int_eq(stats.kind, row.kind);
        ck_assert_int_eq(stats.on, is_fixed);
        ck_assert_int_eq(rungs_of(subject) != 0, row.has_rung);
        ck_status(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 1),
                  row.has_rung ? MT_OK : MT_ENOTSUP);
        step(subject, batch, {3, 2}, false);
        stats = stats_of(subject.torch);
        ck_assert_int_eq(stats.packed > 0, row.has_rung || is_fixed);
        if (!row.has_rung) continue;
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_status(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 0), MT_ESTATE);
        ck_ok(mt_rollback(subject.torch));
        ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 0));
        step(subject, batch, {3, 2}, false);
        ck_assert_uint_eq(stats_of(subject.torch).packed, stats.packed);
    }
    mt_torch_options options = options_for(7);
    mt_torch *torch = nullptr;
    mt_model *model = network.make(CLASSES, network.side);
    ck_refused(mt_torch_new(model, &options, &torch), MT_EINVAL, "options->offload is 7");
    mt_model_free(model);
    ck_status(mt_torch_offload_stats(nullptr, nullptr), MT_EINVAL);
}

/* An accelerator's rung puts nothing into the memory of the CPU that the state has moved to. */
TEST("torch", moved_to_the_cpu) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_AUTO);
    options.device = suite_on_card() ? suite_device() : "sim:cuda";
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 1));
    step(subject, batch, {3, 2}, false);
    uint64_t packed = stats_of(subject.torch).packed;
    ck_assert_uint_gt(packed, 0);
    ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_CPU, 1));
    step(subject, batch, {3, 2}, false);
    ck_assert_uint_eq(stats_of(subject.torch).packed, packed);
    ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_CPU, 0));
    step(subject, batch, {3, 2}, false);
    ck_assert_uint_gt(stats_of(subject.torch).packed, packed);
}

/* Where another engine is asked for hooks, as Python's torch has one, there is no offload. */
TEST("torch", without_hooks) {
    const Network &network = networks::all[2];
    networks::prepare();
    torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
    mt_model *model = network.make(CLASSES, network.side);
    mt_torch *torch = nullptr;
    for (const auto &kind : kinds) {
        mt_torch_options options = options_for(kind.kind);
        ck_refused(mt_torch_new(model, &options, &torch), MT_ENOTSUP, "Python's torch");
    }
    ck_status(mt_offload(
                  tensor_place(), MT_OFFLOAD_HOST, nullptr, [](void *) { return MT_OK; }, nullptr),
              MT_ENOTSUP);
    mt_model_free(model);
    mt_torch_options options = options_for(MT_OFFLOAD_AUTO);
    options.device = suite_on_card() ? suite_device() : "sim:cuda";
    Subject subject(network, network.side, &options);
    ck_assert_uint_eq(rungs_of(subject), 0);
}

/* On and off between steps it is all the same bits. */
TEST_LOOP("torch", on_and_off, networks::count) {
    const Network &network = networks::all[_i];
    std::string hashes[2];
    for (int changes = 0; changes < 2; changes++) {
        networks::prepare();
        mt_torch_options options = options_for(MT_OFFLOAD_AUTO);
        options.offload_dir = "/tmp";
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        for (int i = 0; i < 6; i++) {
            if (changes) ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, i % 2));
            step(subject, batch, {3, 2}, i > 2);
        }
        hashes[changes] = hash_of(subject);
    }
    ck_assert(hashes[0] == hashes[1]);
}

/* ---- the ladder -------------------------------------------------------------------------------------- */

/* Where even the smallest chunk does not fit, the rung does; the bits are those of a run without it. */
TEST_LOOP("ladder", as_a_rung, networks::count) {
    if (!suite_has_peaks()) return suite_skip("as_a_rung", "no peaks to set a budget by");
    const Network &network = networks::all[_i];
    auto options = [](int offload) {
        mt_torch_options o = options_for(offload);
        o.offload_dir = "/tmp";
        return o;
    };
    Ladder ladder(network, options, MT_RUNG_BIT(MT_RUNG_CHECKPOINTING));
    unsigned rungs = 0;
    size_t plain = ladder.smallest(MT_OFFLOAD_NEVER), least = ladder.smallest(MT_OFFLOAD_FILE);
    std::printf("%s: the smallest chunk takes %zu, and %zu with the rung\n", network.name, plain,
                least);
    std::fflush(stdout);
    ck_assert_uint_lt(least + plain / 20, plain);
    if (Ladder::is_too_small(plain))
        return suite_skip("as_a_rung",
                          "the card's segments of 20 MiB are too coarse for these chunks");
    std::string climbed = ladder.run(MT_OFFLOAD_AUTO, Ladder::between(plain, least), &rungs);
    ck_assert_uint_eq(rungs, MT_RUNG_BIT(MT_RUNG_OFFLOAD));
    ck_ok(mt_device_set_budget(suite_device(), size_t{4} << 30));
    ck_assert(ladder.run(MT_OFFLOAD_FILE, 0, &rungs) == climbed);
    ck_assert(ladder.run(MT_OFFLOAD_NEVER, 0, &rungs) == climbed);
    ck_assert_uint_eq(rungs, 0);
}

} // namespace

int main() {
    for (const char *slow : {"torch", "ladder"}) tcase_set_timeout(suite_case_named(slow), 300);
    return suite_run_named("shim_offload_rung");
}
