/*
 * check_shim_contrastive_memory.cpp - a loss over pairs by cached embeddings: the memory and time of a chunk, chunks that a
 * trainer chooses, requests that fail one after another.
 */
#include <map>
#include <numeric>

#include <memtrain/trainer.h>

#include "slow.h"
#include "contrastive_subject.hpp"

using namespace contrastive_subject;

namespace {

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* A chunk is most of what there is, as in a network of some size. */
TowersOptions larger() {
    TowersOptions o;
    o.image.depth = 2;
    o.image.dropout = 0.1;
    return o;
}

size_t peak_of(size_t samples, size_t chunk, double *seconds = nullptr) {
    TowersOptions o = larger();
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(samples, o);
    size_t before = s.memory().allocated_bytes, peak = 0;
    for (int i = 0; i < 2; i++) {
        Sums sums = run(s, pairs, std::vector<size_t>(samples / chunk, chunk));
        apply(s);
        peak = sums.peak - before;
        if (seconds) *seconds = sums.seconds;
    }
    ck_assert_uint_eq(s.memory().allocated_bytes, before);
    return peak;
}

TEST_IF(!suite_on_mps(), "MPS tells no peaks", "memory", memory_of_a_chunk) {
    size_t alone = peak_of(16, 16), many = peak_of(128, 16);
    ck_assert_msg(static_cast<double>(many) < 1.1 * static_cast<double>(alone),
                  "%zu bytes in chunks of 16 of 128, %zu for a batch of 16", many, alone);
    ck_assert_uint_gt(peak_of(128, 128), 4 * many);
}

/* The first pass and the loss of all pairs are part of the seconds that chunks report. */
TEST("memory", time_of_a_chunk) {
    TowersOptions o = larger();
    Subject s(o, options_of(MT_SGD));
    Pairs pairs(64, o);
    run(s, pairs, {32, 32});
    apply(s);
    ck_ok(mt_begin(s.torch, &pairs.batch));
    mt_chunk_result prepared = chunk_result(), chunk = chunk_result();
    const size_t chunks[] = {32, 32};
    double all = 0;
    ck_ok(mt_prepare(s.torch, chunks, 2, &prepared));
    for (size_t i = 0; i < 2; i++) {
        ck_ok(mt_accumulate(s.torch, 32 * i, 32, 0.5, &chunk));
        ck_assert_double_gt(chunk.seconds, 0.3 * prepared.seconds);
        all += chunk.seconds;
    }
    ck_assert_double_gt(all, 1.5 * prepared.seconds);
    ck_ok(mt_rollback(s.torch));
}

/* Six steps of 4 chunks, and what the arena did in the last one. */
std::string planned_steps(int arena, mt_arena_stats *last) {
    TowersOptions o = larger();
    mt_torch_options options = options_of(MT_ADAMW);
    mt_arena_stats before = MT_ARENA_STATS_INIT;
    options.arena = arena;
    Subject s(o, options);
    Pairs pairs(32, o);
    for (int i = 0; i < 6; i++) {
        ck_ok(mt_torch_arena(s.torch, &before));
        run(s, pairs, {8, 8, 8, 8});
        apply(s);
    }
    ck_ok(mt_torch_arena(s.torch, last));
    last->chunks -= before.chunks;
    last->served -= before.served;
    last->missed -= before.missed;
    return s.hash();
}

/* The chunks of the first pass lie in planned memory, as those that follow do; the bits are the heap's. */
TEST_IF(suite_has_arena(), "planned memory is the CPU's", "memory", first_pass_is_planned) {
    mt_arena_stats planned = MT_ARENA_STATS_INIT, heap = MT_ARENA_STATS_INIT;
    std::string hash = planned_steps(MT_ARENA_AUTO, &planned),
                from_heap = planned_steps(MT_ARENA_NEVER, &heap);
    ck_assert_uint_eq(planned.plans, 2);
    ck_assert_uint_eq(planned.chunks, 8);
    ck_assert_uint_eq(planned.missed, 0);
    ck_assert_uint_gt(planned.served, 8 * 20);
    ck_assert_str_eq(from_heap.c_str(), hash.c_str());
    ck_assert_uint_eq(heap.served, 0);
}

struct Steps {
    std::vector<std::vector<size_t>> chunks;
    size_t peak = 0, budget = 0;
    unsigned retries = 0;
    std::string hash;
};

/* Steps of 64 within a budget (0: none), or with chunks that are given. */
Steps steps(size_t beside, const Steps *given) {
    TowersOptions o = larger();
    Subject s(o, options_of(MT_ADAMW));
    Pairs pairs(64, o);
    Steps all;
    mt_trainer *trainer;
    ck_ok(mt_torch_seed(11));
    all.budget = beside ? s.memory().allocated_bytes + beside : 0;
    ck_ok(mt_device_set_budget(suite_device(), all.budget));
    ck_ok(mt_trainer_new(&s.seam, nullptr, &trainer));
    for (size_t i = 0; i < 6; i++) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        if (given)
            ck_ok(mt_trainer_set_chunks(trainer, given->chunks[i].data(), given->chunks[i].size()));
        ck_ok(mt_trainer_step(trainer, &pairs.batch, &report));
        all.chunks.emplace_back(report.chunks, report.chunks + report.chunk_count);
        all.peak = std::max(all.peak, report.peak_bytes);
        all.retries += report.retries;
    }
    mt_trainer_free(trainer);
    ck_ok(mt_device_set_budget(suite_device(), 0));
    all.hash = s.hash();
    return all;
}

/* A trainer in a budget finds its chunks, and a replay of these ends with the same bits. */
TEST_IF(suite_on_cpu(), "the CPU's budget alone is kept to the byte", "memory", chunks_are_chosen) {
    size_t room = peak_of(20, 20);
    Steps within = steps(room, nullptr);
    for (const auto &chunks : within.chunks) {
        ck_assert_uint_ge(chunks.size(), 4);
        ck_assert_uint_eq(std::accumulate(chunks.begin(), chunks.end(), size_t{0}), 64);
    }
    ck_assert_uint_le(within.chunks.back()[0], 20);
    ck_assert_uint_ge(within.chunks.back()[0], 8);
    ck_assert_uint_le(within.peak, within.budget);
    ck_assert_uint_le(within.retries, 1);
    Steps again = steps(0, &within);
    ck_assert(again.hash == within.hash);
}

/* ---- faults -------------------------------------------------------------------------------------------------------- */

/* A step without a fault, after which an optimiser has all the memory that it wants. */
void warm_up(const Subject &s, const Pairs &pairs) {
    run(s, pairs, {6, 6});
    apply(s);
    ck_ok(mt_torch_seed(9));
}

/* The hash after a second step of these chunks. */
std::string replay(const TowersOptions &o, const std::vector<size_t> &chunks) {
    static std::map<std::vector<size_t>, std::string> known;
    if (known.count(chunks)) return known[chunks];
    Subject s(o, options_of(MT_ADAMW, 0.5));
    Pairs pairs(12, o);
    warm_up(s, pairs);
    run(s, pairs, chunks);
    apply(s);
    return known[chunks] = s.hash();
}

/* One step of 12 under a fault, in chunks that are given or chosen. Returns whether it fired. */
bool step_under_fault(const TowersOptions &o, uint64_t n, bool persistent, bool given,
                      uint64_t *requests) {
    Subject s(o, options_of(MT_ADAMW, 0.5));
    Pairs pairs(12, o);
    mt_trainer *trainer;
    mt_step_report report = MT_STEP_REPORT_INIT;
    const size_t chunks[] = {5, 4, 3};
    uint64_t failed = 0;
    warm_up(s, pairs);
    std::string before = s.hash();
    size_t held = s.memory().allocated_bytes;
    ck_ok(mt_trainer_new(&s.seam, nullptr, &trainer));
    if (given) ck_ok(mt_trainer_set_chunks(trainer, chunks, 3));
    ck_ok(mt_inject_oom(n, persistent));
    mt_status status = mt_trainer_step(trainer, &pairs.batch, &report);
    mt_injected(requests, &failed);
    ck_ok(mt_inject_oom(0, 0));
    size_t left = settled(held, [&] { return s.memory().allocated_bytes; });
    ck_assert_msg(left == held, "request %llu: %zu bytes instead of %zu",
                  static_cast<unsigned long long>(n), left, held);
    ck_assert_msg(status == (persistent && failed ? MT_EDEVMEM : MT_OK), "request %llu: %s",
                  static_cast<unsigned long long>(n), mt_last_error());
    if (status == MT_OK) before = replay(o, {report.chunks, report.chunks + report.chunk_count});
    ck_assert_msg(s.hash() == before, "request %llu", static_cast<unsigned long long>(n));
    mt_trainer_free(trainer);
    return failed > 0;
}

/*
 * Requests of a step fail, once or from then on: it ends with a replay's bits, or as it began. Each 5th to
 * 67th in `make check`, all of them in `make check-oom`.
 */
TEST_LOOP("faults", every_allocation_fails, 4) {
    static const struct {
        bool persistent, given;
        uint64_t stride;
    } settings[] = {{false, true, 5}, {true, true, 23}, {false, false, 29}, {true, false, 67}};
    TowersOptions o = towers(0.2, true);
    uint64_t requests = 0, fired = 0, stride = is_slow() ? 1 : settings[_i].stride;
    step_under_fault(o, 0, false, settings[_i].given, &requests);
    ck_assert_uint_gt(requests, 500);
    for (uint64_t n = 1; n <= requests; n += stride)
        fired += step_under_fault(o, n, settings[_i].persistent, settings[_i].given, nullptr);
    ck_assert_uint_ge(fired, requests / stride / 2);
    if (getenv("CHECK_VERBOSE"))
        std::printf("%d: %llu of %llu requests\n", _i, static_cast<unsigned long long>(fired),
                    static_cast<unsigned long long>(requests));
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("faults"), 1800); /* all of them, one after another */
    return suite_run_named("shim_contrastive_memory");
}
