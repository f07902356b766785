/*
 * steps.hpp - what suites do with the networks of networks.hpp: a step of given chunks, the state's hash,
 * and a saver as a rung. Comes after the C++ headers, since check.h does.
 */
#ifndef NETWORKS_STEPS_HPP
#define NETWORKS_STEPS_HPP

#include <functional>
#include <string>
#include <vector>

#include "networks/networks.hpp"

#include "check_shim.hpp"

namespace networks {

enum { CLASSES = 10 };

inline std::string hash_of(const Subject &subject) {
    char text[65];
    ck_ok(mt_torch_state_sha256(subject.torch, text));
    return text;
}

inline mt_status accumulate(const Subject &subject, const bench::Batch &batch, size_t first,
                            size_t size, mt_chunk_result *result) {
    double weight = static_cast<double>(size) / static_cast<double>(batch.batch.count);
    return mt_accumulate(subject.torch, first, size, weight, result);
}

/* A step of these chunks, marked or not; losses are appended. Returns the highest peak. */
inline size_t step(const Subject &subject, const bench::Batch &batch,
                   const std::vector<size_t> &chunks, bool marked,
                   std::vector<double> *losses = nullptr) {
    size_t first = 0, peak = 0;
    ck_ok(mt_begin(subject.torch, &batch.batch));
    for (size_t size : chunks) {
        mt_chunk_result result = check_shim::chunk_result();
        if (marked) ck_ok(mt_mark(subject.torch));
        ck_ok(accumulate(subject, batch, first, size, &result));
        first += size;
        peak = std::max(peak, result.peak_bytes);
        if (losses) losses->push_back(result.loss_sum);
    }
    mt_apply_result applied = check_shim::apply_result();
    ck_ok(mt_apply(subject.torch, &applied));
    return peak;
}

/*
 * Runs of a network whose saver is off, on, or a rung: a number that options makes options of. Those in a
 * budget remember their chunks, those without are given them. options are for suite_device().
 */
struct Ladder {
    enum { SAMPLES = 4, STEPS = 3 };
    const int64_t side = suite_on_cpu() ? 64 : 192;
    const Network &network;
    std::function<mt_torch_options(int)> options;
    unsigned forbidden; /* rungs */
    bench::Batch batch{SAMPLES, side, CLASSES};
    std::vector<std::vector<size_t>> chunks = {};

    Ladder(const Network &n, std::function<mt_torch_options(int)> o, unsigned forbid = 0)
        : network(n), options(std::move(o)), forbidden(forbid) {}

    /* beside: the budget, beside the state; 0: none. */
    std::string run(int saver, size_t beside, unsigned *out_rungs) {
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options trainer_options = MT_TRAINER_OPTIONS_INIT;
        policy.forbid_rungs = forbidden;
        policy.keep_chunks = MT_KEEP_NEVER; /* or the batch alone would go before a rung */
        trainer_options.policy = &policy;
        prepare();
        mt_torch_options own = options(saver);
        Subject subject(network, side, &own);
        if (beside) Subject::set_budget(beside, suite_device());
        mt_trainer *trainer = subject.trainer(&trainer_options);
        for (size_t i = 0; i < STEPS; i++) {
            mt_step_report report = MT_STEP_REPORT_INIT;
            if (!beside) ck_ok(mt_trainer_set_chunks(trainer, chunks[i].data(), chunks[i].size()));
            ck_ok(mt_trainer_step(trainer, &batch.batch, &report));
            ck_assert_uint_eq(report.samples, SAMPLES);
            if (beside) chunks.emplace_back(report.chunks, report.chunks + report.chunk_count);
            *out_rungs = report.rungs;
        }
        std::string hash = hash_of(subject);
        mt_trainer_free(trainer);
        return hash;
    }

    /* Whether a card's segments of 20 MiB are too coarse for a budget between two chunks. */
    static bool is_too_small(size_t plain) {
        return suite_on_real_card() && plain < size_t{80} << 20;
    }

    /*
     * A budget in which no chunk fits that takes plain bytes, and one does that takes least. A card's allocator takes
     * segments of 20 MiB, of which parts are left over.
     */
    static size_t between(size_t plain, size_t least) {
        return suite_on_cpu() ? (plain + least) / 2 : plain - plain / 16;
    }

    /* What the smallest legal chunk takes beside the state. */
    size_t smallest(int saver) const {
        prepare();
        mt_torch_options own = options(saver);
        Subject subject(network, side, &own);
        mt_chunk_result result = check_shim::chunk_result();
        size_t before = Subject::allocated(suite_device());
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_ok(mt_accumulate(subject.torch, 0, network.normalises ? 2 : 1, 0.5, &result));
        return result.peak_bytes - before;
    }
};

} // namespace networks
#endif
