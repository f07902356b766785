/*
 * check_oom_networks.cpp - every single allocation of a step fails in turn, for each network and
 * each optimiser.
 *
 * Transient: the step recovers and ends bit-equal to a replay of its chunks without a fault.
 * Persistent: it gives up with MT_EDEVMEM within bounded retries, and everything is as it was
 * before. Both for steps whose chunks are given, for the first step of a trainer that chooses them
 * (recordings included), for steps with segments that are computed again, with saved tensors that wait
 * elsewhere, and for evaluation. `make check` runs all transient faults of ResNet-18 with SGD and given chunks,
 * every 61st that lasts there, and every 293rd of the others, 586th with savers, 879th where
 * sizes are chosen; MT_TEST_SLOW=1 (make check-oom) all of them. ResNet-18 is narrow, but with MT_TEST_SLOW=1 in a
 * plain step of given chunks with SGD.
 */
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/Context.h>

#include "slow.h"
#include "networks/networks.hpp"

#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

using networks::Network;
using networks::Subject;

const struct {
    const char *name;
    mt_optimizer optimizer;
} optimizers[] = {{"sgd", MT_SGD}, {"adam", MT_ADAM}, {"adamw", MT_ADAMW}};

enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers, STRIDE = 293 };
enum { SETTINGS = OPTIMIZERS * networks::count };
/* Of lasting faults of ResNet-18 with SGD and given chunks, whose transient ones are all run. */
enum { LASTING_STRIDE = 61 };
enum { FIXED = 5, CHOSEN = 10, ROOM_FOR = 4 }; /* samples */
enum { MOST_OOMS = 2 * 17 };                   /* max_retries + 1, without the rung and with it */

const std::vector<size_t> given = {3, 2};

/* ---- the state, by name --------------------------------------------------------------------------- */

using State = std::map<std::string, std::vector<char>>;

std::vector<char> bytes_of(const at::Tensor &t) {
    const char *data = static_cast<const char *>(t.data_ptr());
    return std::vector<char>(data, data + t.nbytes());
}

mt_status copy_out(void *user, const char *name, mt_tensor *handle) {
    (*static_cast<State *>(user))[name] = bytes_of(memtrain::tensor(handle));
    return MT_OK;
}

mt_status copy_in(void *user, const char *name, mt_tensor *handle) {
    const at::Tensor &t = memtrain::tensor(handle);
    std::memcpy(t.data_ptr(), (*static_cast<State *>(user))[name].data(), t.nbytes());
    return MT_OK;
}

/* The first name whose bytes differ from those in the state given, or "". */
struct Comparison {
    const State *expected;
    std::string different;
    size_t tensors;
};

void compare_bytes(Comparison &c, const char *name, const at::Tensor &t) {
    const std::vector<char> &expected = c.expected->at(name);
    c.tensors++;
    if (c.different.empty() &&
        (expected.size() != t.nbytes() || std::memcmp(t.data_ptr(), expected.data(), t.nbytes())))
        c.different = name;
}

mt_status compare(void *user, const char *name, mt_tensor *handle) {
    compare_bytes(*static_cast<Comparison *>(user), name, memtrain::tensor(handle));
    return MT_OK;
}

at::Generator generator() {
    return at::globalContext().defaultGenerator(at::kCPU);
}

/* What mt_torch_state_sha256 hashes, byte by byte: hashing would take longer than the step. */
State state_of(const Subject &s) {
    State state;
    bench::must(mt_torch_visit_state(s.torch, copy_out, &state), "visit");
    state["rng"] = bytes_of(generator().get_state());
    return state;
}

void restore(const Subject &s, State &state) {
    bench::must(mt_torch_visit_state(s.torch, copy_in, &state), "visit");
    at::Tensor rng = generator().get_state();
    std::memcpy(rng.data_ptr(), state["rng"].data(), rng.nbytes());
    generator().set_state(rng);
}

/* ---- a trainer under faults ----------------------------------------------------------------------- */

void count_oom(void *user, const char *line) {
    if (std::strstr(line, "\"event\":\"oom\"")) ++*static_cast<unsigned *>(user);
}

/* What the loop runs: a step with given chunks, with chosen ones, or an evaluation. */
enum Kind { GIVEN, CHOSEN_STEP, CHOSEN_EVALUATION };
const char *const kinds[] = {"given", "chosen", "evaluation"};

struct Outcome {
    mt_status status = MT_OK;
    uint64_t requests = 0, failed = 0;
    size_t waiting = 0; /* bytes that offload holds */
    unsigned ooms = 0;
    std::vector<size_t> chunks; /* of a step that went through */
    double loss = 0;
    size_t samples = 0;
};

struct Fixture {
    Kind kind;
    std::string name;
    Subject subject;
    bench::Batch batch;
    State before;
    size_t baseline = 0;
    std::map<std::vector<size_t>, State> replays;

    static mt_torch_options options(int optimizer) {
        mt_torch_options o = MT_TORCH_OPTIONS_INIT;
        o.optimizer = optimizers[optimizer].optimizer;
        o.clip_norm = 1.0;
        return o;
    }
    Fixture(const Network &network, int optimizer, const mt_torch_options &o, Kind k)
        : kind(k),
          name(std::string(network.name) + ", " + optimizers[optimizer].name + ", " + kinds[k]),
          subject(network, network.side, &o), batch(k == GIVEN ? FIXED : CHOSEN, network.side, 10) {
        /* What is allocated is compared with what was, so gradients stay held: check_shim_hold has the rest. */
        subject.backend.hold_gradients = nullptr;
        step(given, FIXED); /* sets the kernels up, fills the optimiser's state */
        before = state_of(subject);
        baseline = Subject::allocated();
    }

    /* A step without a fault on the first samples of the batch. */
    void step(const std::vector<size_t> &chunks, size_t samples) {
        mt_batch first = batch.batch;
        first.count = samples;
        mt_trainer *trainer = subject.trainer();
        bench::must(mt_trainer_set_chunks(trainer, chunks.data(), chunks.size()), "chunks");
        bench::must(mt_trainer_step(trainer, &first, nullptr), "step");
        mt_trainer_free(trainer);
    }

    /* The state after a step of these chunks that met no fault. */
    const State &replay(const std::vector<size_t> &chunks) {
        auto found = replays.find(chunks);
        if (found != replays.end()) return found->second;
        restore(subject, before);
        step(chunks, batch.batch.count);
        return replays[chunks] = state_of(subject);
    }

    void run(mt_trainer *trainer, uint64_t fault, int persistent, Outcome &out) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        mt_eval_report evaluation = MT_EVAL_REPORT_INIT;
        if (kind == GIVEN)
            bench::must(mt_trainer_set_chunks(trainer, given.data(), given.size()), "chunks");
        bench::must(mt_inject_oom(fault, persistent), "inject");
        out.status = kind == CHOSEN_EVALUATION
                         ? mt_trainer_evaluate(trainer, &batch.batch, &evaluation)
                         : mt_trainer_step(trainer, &batch.batch, &report);
        mt_injected(&out.requests, &out.failed);
        bench::must(mt_inject_oom(0, 0), "inject");
        mt_offload_stats stats = MT_OFFLOAD_STATS_INIT;
        bench::must(mt_torch_offload_stats(subject.torch, &stats), "stats");
        out.waiting = stats.packed_bytes;
        out.chunks.assign(report.chunks, report.chunks + report.chunk_count);
        out.loss = evaluation.loss;
        out.samples = kind == CHOSEN_EVALUATION ? evaluation.samples : report.samples;
    }

    /* A new trainer each time: what it learns from one fault must not reach the next. */
    Outcome attempt(uint64_t fault, int persistent) {
        Outcome out;
        mt_trainer_options o = MT_TRAINER_OPTIONS_INIT;
        o.trace = count_oom;
        o.trace_user = &out.ooms;
        mt_trainer *trainer = subject.trainer(&o);
        run(trainer, fault, persistent, out);
        mt_trainer_free(trainer);
        return out;
    }

    void expect(const State &state, uint64_t fault) {
        Comparison c{&state, "", 0};
        bench::must(mt_torch_visit_state(subject.torch, compare, &c), "visit");
        compare_bytes(c, "rng", generator().get_state());
        ck_assert_msg(c.different.empty(), "%s, fault %llu: %s differs", name.c_str(),
                      static_cast<unsigned long long>(fault), c.different.c_str());
        ck_assert_uint_eq(c.tensors, state.size());
    }
};

#define EXPECT(condition, f, n, o)                                                                 \
    ck_assert_msg(condition, "%s, fault %llu: %s: %s after %u OOMs: '%s'", (f).name.c_str(),       \
                  static_cast<unsigned long long>(n), #condition, mt_status_name((o).status),      \
                  (o).ooms, mt_last_error())

/* ---- what must hold ------------------------------------------------------------------------------- */

void check_recovered(Fixture &f, uint64_t n, const Outcome &o, const Outcome &clean) {
    EXPECT(o.status == MT_OK, f, n, o);
    EXPECT(o.ooms == 1, f, n, o);
    EXPECT(o.samples == f.batch.batch.count, f, n, o);
    if (f.kind == CHOSEN_EVALUATION) {
        /* Other chunks after the fault than before it: other roundings. */
        EXPECT(std::abs(o.loss - clean.loss) < 1e-5 * std::abs(clean.loss), f, n, o);
        f.expect(f.before, n);
        return;
    }
    bool is_new = !f.replays.count(o.chunks);
    State after = is_new ? state_of(f.subject) : State();
    const State &expected = f.replay(o.chunks);
    if (is_new) restore(f.subject, after);
    f.expect(expected, n);
    restore(f.subject, f.before);
}

void check_given_up(Fixture &f, uint64_t n, const Outcome &o) {
    EXPECT(o.status == MT_EDEVMEM, f, n, o);
    EXPECT(o.ooms >= 1 && o.ooms <= MOST_OOMS, f, n, o);
    f.expect(f.before, n);
}

/*
 * Faults first, first + stride and so on, as long as one fires; returns how many did. Where chunks are
 * chosen by time, a run may be done before the n-th request although the clean one was not.
 */
uint64_t all_faults(Fixture &f, uint64_t first, uint64_t stride, int persistent,
                    const Outcome &clean) {
    uint64_t fired = 0;
    for (uint64_t n = first;; n += stride) {
        Outcome o = f.attempt(n, persistent);
        EXPECT(Subject::allocated() == f.baseline, f, n, o);
        EXPECT(o.waiting == 0, f, n, o);
        if (!o.failed && n > clean.requests) return fired;
        if (!o.failed) {
            EXPECT(f.kind != GIVEN && o.status == MT_OK, f, n, o);
            restore(f.subject, f.before);
            continue;
        }
        fired++;
        persistent ? check_given_up(f, n, o) : check_recovered(f, n, o, clean);
    }
}

/* Room for so many samples, so that the trainer has to choose several chunks. */
void set_budget(Fixture &f) {
    mt_mode mode = f.kind == CHOSEN_EVALUATION ? MT_EVALUATE : MT_TRAIN;
    mt_trainer *trainer = f.subject.trainer();
    Outcome o;
    f.run(trainer, 0, 0, o);
    ck_assert_int_eq(o.status, MT_OK);
    Subject::set_budget(mt_policy_predict_bytes(mt_trainer_policy(trainer), mode, ROOM_FOR));
    mt_trainer_free(trainer);
    restore(f.subject, f.before);
}

void run_setting(int index, Kind kind, int persistent, int checkpointing = MT_CHECKPOINTING_AUTO,
                 int offload = MT_OFFLOAD_AUTO) {
    const bool is_saving = checkpointing || offload;
    const bool is_first = index == 0 && kind == GIVEN && !is_saving;
    const bool is_wide = index / OPTIMIZERS || (is_first && is_slow());
    /* As many requests as the wide one, whose state would take longer to compare than to compute. */
    const Network &network =
        is_wide ? networks::all[index / OPTIMIZERS] : networks::resnet18_narrow;
    int optimizer = index % OPTIMIZERS;
    networks::prepare();
    mt_torch_options options = Fixture::options(optimizer);
    options.checkpointing = checkpointing;
    options.offload = offload;
    Fixture f(network, optimizer, options, kind);
    if (checkpointing) f.name += ", segments";
    if (offload) f.name += ", offload " + std::to_string(offload);
    if (kind != GIVEN) set_budget(f);
    Outcome clean = f.attempt(0, 0);
    ck_assert_int_eq(clean.status, MT_OK);
    restore(f.subject, f.before);
    /* The optimisers take turns where they share; 199 and 3 have no common divisor. */
    uint64_t stride = is_slow() ? 1 : is_first ? (persistent ? LASTING_STRIDE : 1) : STRIDE;
    if (kind == CHOSEN_STEP && !is_slow()) stride *= OPTIMIZERS;
    if (is_saving && !is_slow()) stride *= 2;
    uint64_t first = stride == 1 ? 1 : static_cast<uint64_t>(optimizer) + 1;
    uint64_t fired = all_faults(f, first, stride, persistent, clean);
    std::printf("%s, %s: %llu faults of N = %llu\n", f.name.c_str(),
                persistent ? "persistent" : "transient", static_cast<unsigned long long>(fired),
                static_cast<unsigned long long>(clean.requests));
    std::fflush(stdout);
    ck_assert_uint_gt(fired, clean.requests / stride / 2);
}

TEST_LOOP("given", a_fault_is_recovered_from, SETTINGS) {
    run_setting(_i, GIVEN, 0);
}

TEST_LOOP("given", a_lasting_fault_changes_nothing, SETTINGS) {
    run_setting(_i, GIVEN, 1);
}

TEST_LOOP("chosen", a_fault_while_sizes_are_learnt, SETTINGS) {
    run_setting(_i, CHOSEN_STEP, 0);
}

TEST_LOOP("lasting", a_lasting_fault_while_sizes_are_learnt, SETTINGS) {
    run_setting(_i, CHOSEN_STEP, 1);
}

/* In the second run of a segment, and the backward pass inside the backward pass, as anywhere. */
TEST_LOOP("segments", a_fault_in_segments, networks::count) {
    run_setting(_i * OPTIMIZERS, GIVEN, 0, MT_CHECKPOINTING_ON);
}

TEST_LOOP("segments", a_lasting_fault_in_segments, networks::count) {
    run_setting(_i * OPTIMIZERS, GIVEN, 1, MT_CHECKPOINTING_ON);
}

TEST_LOOP("segments", a_fault_in_segments_while_sizes_are_learnt, networks::count) {
    run_setting(_i * OPTIMIZERS, CHOSEN_STEP, 0, MT_CHECKPOINTING_ON);
}

/* With saved tensors that wait elsewhere: requests for their memory fail too. */
const int places[] = {MT_OFFLOAD_HOST, MT_OFFLOAD_FILE, MT_OFFLOAD_PACK};

TEST_LOOP("offload", a_fault_in_offload, 3 * networks::count) {
    run_setting(_i / 3 * OPTIMIZERS, GIVEN, 0, MT_CHECKPOINTING_AUTO, places[_i % 3]);
}

TEST_LOOP("offload", a_lasting_fault_in_offload, 3 * networks::count) {
    run_setting(_i / 3 * OPTIMIZERS, GIVEN, 1, MT_CHECKPOINTING_AUTO, places[_i % 3]);
}

/* Not ResNet-18, whose gradients are most of what is left: a batch that fits alone does without them. */
TEST_LOOP("learnt", a_fault_in_offload_while_sizes_are_learnt, networks::count - 1) {
    run_setting((_i + 1) * OPTIMIZERS, CHOSEN_STEP, 0, MT_CHECKPOINTING_ON, MT_OFFLOAD_HOST);
}

/* Evaluation has no optimiser: one each network. */
TEST_LOOP("evaluation", a_fault_in_evaluation, networks::count) {
    run_setting(_i * OPTIMIZERS, CHOSEN_EVALUATION, 0);
}

TEST_LOOP("evaluation", a_lasting_fault_in_evaluation, networks::count) {
    run_setting(_i * OPTIMIZERS, CHOSEN_EVALUATION, 1);
}

/* Keeps freed pages: thousands of steps would spend a third of their time on page faults. */
void keep_pages() {
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

} // namespace

int main() {
    keep_pages();
    for (const char *name :
         {"given", "chosen", "lasting", "offload", "segments", "learnt", "evaluation"})
        tcase_set_timeout(suite_case_named(name), 1800);
    return suite_run_named("oom_networks");
}
