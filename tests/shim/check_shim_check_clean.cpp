/*
 * check_shim_check_clean.cpp - mt_torch_check: in models that can be trained in chunks nothing is found, and nothing has
 * changed afterwards, wherever memory runs out.
 */
#include <memtrain/check.h>

#include "networks/batches.hpp"
#include "networks/networks.hpp"
#include "networks/towers.hpp"

#include "check_shim.hpp"

using namespace check_shim;

/* ---- networks that are as they should be ---- */

static void is_clean(mt_torch *torch, const mt_batch *batch, size_t notes) {
    mt_check_report report = MT_CHECK_REPORT_INIT;
    char before[65], after[65], text[8192];
    ck_ok(mt_torch_state_sha256(torch, before));
    ck_ok(mt_torch_check(torch, batch, &report));
    ck_ok(mt_torch_state_sha256(torch, after));
    ck_assert_str_eq(before, after);
    mt_check_explain(&report, text, sizeof text);
    ck_assert_msg(report.fault_count == 0 && report.count == notes, "%s", text);
}

enum { SETTINGS = 6 };

static mt_torch_options setting(int i) {
    mt_torch_options options = options_of(MT_SGD);
    if (i == 1) options.amp = MT_BFLOAT16;
    if (i == 2) options.checkpointing = MT_CHECKPOINTING_ON;
    if (i == 3) options.channels_last = 1;
    if (i == 4) options.offload = MT_OFFLOAD_FILE;
    if (i == 5) {
        options.checkpointing = MT_CHECKPOINTING_CHOSEN;
        options.activation_share = 0.5;
    }
    return options;
}

TEST_LOOP("networks", clean_networks, (SETTINGS)*networks::count) {
    if (suite_on_mps() && _i % SETTINGS == 5)
        return suite_skip("clean_networks", "nothing tells peaks to choose segments by");
    const networks::Network &network = networks::all[_i / SETTINGS];
    mt_torch_options options = setting(_i % SETTINGS);
    networks::prepare();
    networks::Subject subject(network, network.side, &options);
    bench::Batch batch(7, network.side, 10);
    is_clean(subject.torch, &batch.batch, network.normalises);
}

/* After steps, with two threads, and where no gradients are held. */
TEST_LOOP("networks", clean_after_steps, networks::count) {
    const networks::Network &network = networks::all[_i];
    mt_torch_options options = setting(0);
    networks::prepare();
    ck_ok(mt_torch_set_threads(2));
    networks::Subject subject(network, network.side, &options);
    bench::Batch batch(7, network.side, 10);
    for (int i = 0; i < 3; i++) ck_ok(mt_train_step(subject.torch, &batch.batch, nullptr, nullptr));
    ck_ok(mt_hold_gradients(subject.torch, 0));
    is_clean(subject.torch, &batch.batch, network.normalises);
    ck_ok(mt_train_step(subject.torch, &batch.batch, nullptr, nullptr));
}

/* The loss scaler's scale is no part of what is compared. */
TEST("networks", clean_in_half_precision) {
    if (suite_on_mps()) return suite_skip("clean_in_half_precision", "MPS takes bfloat16 alone");
    mt_torch_options options = setting(0);
    options.amp = MT_FLOAT16;
    networks::prepare();
    networks::Subject subject(networks::all[2], networks::all[2].side, &options);
    bench::Batch batch(7, networks::all[2].side, 10);
    is_clean(subject.torch, &batch.batch, 0);
    ck_assert_double_eq(mt_torch_scale(subject.torch), 65536.0);
}

/* ---- embeddings ---- */

/* Two towers, trained by cached embeddings or by a loss of each chunk; whole: that must not be cut. */
static mt_torch *towers(mt_model **model, bool cached, bool whole) {
    networks::TowersOptions options;
    mt_torch *torch = nullptr;
    networks::prepare();
    options.image.depth = 1;
    ck_ok(cached ? memtrain::make_model(model,
                                        [&] {
                                            return networks::contrastive(
                                                std::make_shared<networks::TowersImpl>(options));
                                        })
                 : memtrain::make_model(model, [&] {
                       auto plain_towers =
                           networks::plain(std::make_shared<networks::TowersImpl>(options));
                       plain_towers.needs_whole_batch = whole;
                       return plain_towers;
                   }));
    mt_torch_options own = options_of(MT_SGD);
    ck_ok(mt_torch_new(*model, &own, &torch));
    return torch;
}

TEST_LOOP("networks", two_towers, 3) {
    mt_model *model = nullptr;
    mt_check_report report = MT_CHECK_REPORT_INIT;
    mt_torch *torch = towers(&model, _i == 0, _i == 1);
    networks::Pairs pairs(4, {});
    if (_i < 2) {
        is_clean(torch, &pairs.batch, _i);
    } else {
        ck_ok(mt_torch_check(torch, &pairs.batch, &report));
        ck_assert_uint_eq(report.fault_count, 1); /* the recall of a chunk is another one as well */
        ck_assert_int_eq(report.findings[0].kind, MT_CHECK_COUPLING);
    }
    mt_torch_free(torch);
    mt_model_free(model);
}

/* ---- memory ---- */

constexpr int shares = 4; /* that the requests are tried in */

/* Every request fails in turn, once or from then on: MT_OK by fewer samples or MT_EDEVMEM, and nothing has changed. */
TEST_LOOP("memory", memory_runs_out, shares + 1) {
    bool goes_on = _i == shares;
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(8);
    ck_ok(step(trainer, batch, {4, 4}));
    std::string before = trainer.hash();
    uint64_t failed = 1, first = goes_on ? 0 : static_cast<uint64_t>(_i),
             stride = goes_on ? 7 : shares;
    unsigned fewer = 0;
    for (uint64_t n = 1 + first; failed; n += stride) {
        mt_check_report report = MT_CHECK_REPORT_INIT;
        ck_ok(mt_inject_oom(n, goes_on));
        mt_status status = mt_torch_check(trainer.torch, batch.get(), &report);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_msg(status == MT_OK || status == MT_EDEVMEM, "%llu: %s",
                      static_cast<unsigned long long>(n), mt_last_error());
        ck_assert_int_eq(status == MT_EDEVMEM, goes_on && failed);
        if (failed && goes_on)
            ck_contains(mt_last_error(), "the smallest chunk, 2 samples, does not fit");
        if (status == MT_OK) ck_assert_uint_eq(report.fault_count, 1); /* Net's unused parameter */
        fewer += status == MT_OK && report.samples == 4;
        ck_assert(trainer.hash() == before);
    }
    if (!goes_on) ck_assert_uint_gt(fewer, 100 / shares);
}

/* A budget that has room for two parts and not for three, for one and not for two, for none. */
TEST("memory", budget_for_fewer) {
    networks::prepare();
    const networks::Network &network = networks::all[2];
    networks::Subject subject(network, network.side);
    bench::Batch batch(6, network.side, 10);
    mt_check_report report = MT_CHECK_REPORT_INIT;
    mt_chunk_result result = chunk_result();
    size_t peaks[2], before = networks::Subject::allocated();
    for (size_t i = 0; i < 2; i++) {
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_ok(mt_accumulate(subject.torch, 0, 2 + i, 1.0, &result));
        peaks[i] = result.peak_bytes - before;
        ck_ok(mt_rollback(subject.torch));
    }
    networks::Subject::set_budget((peaks[0] + peaks[1]) / 2);
    ck_ok(mt_torch_check(subject.torch, &batch.batch, &report));
    ck_assert_uint_eq(report.samples, 2);
    ck_assert_uint_eq(report.fault_count, 0);
    networks::Subject::set_budget(peaks[0] - peaks[0] / 8);
    ck_ok(mt_torch_check(subject.torch, &batch.batch, &report));
    ck_assert_uint_eq(report.samples, 3);
    ck_assert_uint_eq(report.count, 1);
    ck_contains(report.findings[0].text, "losses are compared");
    networks::Subject::set_budget(peaks[0] / 4);
    ck_refused(mt_torch_check(subject.torch, &batch.batch, &report), MT_EDEVMEM,
               "the smallest chunk, 1 sample, does not fit");
    ck_assert_uint_eq(report.count, 0);
}

int main(void) {
    tcase_set_timeout(suite_case_named("memory"), 240); /* all of them, one after another */
    return suite_run_named("shim_check_clean");
}
