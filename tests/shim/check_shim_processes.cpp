/*
 * check_shim_processes.cpp - several processes that train one model: threads here, with a group that adds up in the
 * memory they share, and with Gloo over the loopback. What counts is that they end with the bits of one process that
 * was given the same chunks, whatever fails on the way, and with the same bits as each other.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <memtrain/processes.h>
#include <memtrain/trainer.h>

extern "C" {
#include "processes.h"
}

#include "check_shim.hpp"
#include "hall.hpp"

using namespace check_shim;

namespace {

/* Samples [first, first + count) of a batch that is the same for all. */
class Part {
public:
    Part(size_t first, size_t count) : pixels_(count * size), labels_(count) {
        uint32_t x = 12345;
        for (size_t i = 0; i < (first + count) * size; i++) {
            float pixel = static_cast<float>(next(x)) / 32768.0f - 1.0f;
            if (i >= first * size) pixels_[i - first * size] = pixel;
        }
        for (size_t i = 0; i < count; i++) labels_[i] = static_cast<int64_t>((first + i) % 5);
        const int64_t shape[] = {static_cast<int64_t>(count), 3, 8, 8};
        ck_ok(mt_tensor_from_memory(pixels_.data(), MT_FLOAT32, 4, shape, &tensors_[0]));
        ck_ok(mt_tensor_from_memory(labels_.data(), MT_INT64, 1, shape, &tensors_[1]));
        data_.tensors = tensors_;
        data_.count = 2;
        batch_.data = &data_;
        batch_.count = count;
    }
    ~Part() {
        for (mt_tensor *tensor : tensors_) mt_tensor_free(tensor);
    }
    Part(const Part &) = delete;
    Part &operator=(const Part &) = delete;
    const mt_batch *get() const { return &batch_; }

private:
    static constexpr size_t size = 3 * 8 * 8;
    static uint32_t next(uint32_t &x) {
        x = x * 1664525u + 1013904223u;
        return x >> 16;
    }
    std::vector<float> pixels_;
    std::vector<int64_t> labels_;
    mt_tensor *tensors_[2] = {nullptr, nullptr};
    mt_torch_batch data_ = MT_TORCH_BATCH_INIT;
    mt_batch batch_ = MT_BATCH_INIT;
};

struct FreeModel {
    void operator()(mt_model *model) const { mt_model_free(model); }
};

/* What one of them is given, and what became of it. Assertions are the main thread's. */
struct Process {
    Seat seat{nullptr, 0};
    std::unique_ptr<Part> part;
    std::vector<size_t> chunks; /* of each step; none: the policy's */
    std::unique_ptr<mt_model, FreeModel> model;
    std::shared_ptr<Net> net;
    uint64_t fail_at = 0; /* request of the second step; 0: none */
    int for_ever = 0;
    int planned = 3; /* steps */
    double lr = 0;   /* 0: as the others */
    int keeps = MT_KEEP_AUTO;
    bool changes_at_the_end = false;
    bool is_masked = false; /* its samples have no label */

    mt_status made = MT_OK;
    std::vector<mt_status> steps;
    std::vector<double> losses;
    std::vector<int> skipped;
    std::vector<std::string> lines;
    std::string hash, line;
    uint64_t failed = 0;
    bool half_done = false;
    mt_status compared[2] = {MT_OK, MT_OK}; /* at the end, and after the change */

    /*
     * The same weights for all. odd, if not 0: the loss has one more parameter in so many first chunks, and in those that
     * begin with label 3.
     */
    void make_model(const NetOptions &options, int odd = 0) {
        mt_model *made_model = nullptr;
        ck_ok(mt_torch_seed(7));
        ck_ok(memtrain::make_model(&made_model, [&] {
            net = std::make_shared<Net>(options);
            return memtrain::model(
                net, {"accuracy"},
                [odd, chunk = 0](Net &n, const memtrain::Tensors &batch) mutable {
                    at::Tensor logits = n.forward(batch[0]);
                    at::Tensor loss = at::cross_entropy_loss(logits, batch[1]);
                    bool is_odd = chunk++ < odd || batch[1][0].item().toLong() == 3;
                    if (odd && is_odd) loss = loss + n.unused.sum();
                    return memtrain::Output{loss, memtrain::correct(logits, batch[1])};
                });
        }));
        model.reset(made_model);
    }

    void run(const mt_torch_options &options, const mt_process_group *group) {
        mt_torch_options own = options;
        mt_torch *torch = nullptr;
        at::set_num_threads(1);
        own.processes = group;
        if (lr > 0) own.lr = lr;
        made = mt_torch_new(model.get(), &own, &torch);
        line = mt_last_error();
        if (made == MT_OK) train(torch);
        mt_torch_free(torch);
    }

private:
    void train(mt_torch *torch) {
        mt_backend seam = MT_BACKEND_INIT;
        mt_trainer *trainer = nullptr;
        made = mt_torch_backend(torch, &seam);
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
        policy.keep_chunks = keeps;
        policy.micro_batch = keeps ? part->get()->count : 0;
        if (is_masked) seam.units = no_units;
        if (is_masked) seam.accumulate = mean_of_nothing;
        own.policy = &policy;
        if (made == MT_OK) made = mt_trainer_new(&seam, &own, &trainer);
        for (int i = 0; i < planned && made == MT_OK; i++) step(torch, trainer, i == 1 && fail_at);
        hash = hash_of(torch);
        mt_trainer_free(trainer);
        compared[0] = mt_torch_check_processes(torch);
        if (changes_at_the_end) net->linear->weight.variable_data()[0][3].add_(1);
        compared[1] = mt_torch_check_processes(torch);
    }

    void step(mt_torch *torch, mt_trainer *trainer, bool is_disturbed) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        std::string before = hash_of(torch);
        if (!chunks.empty()) made = mt_trainer_set_chunks(trainer, chunks.data(), chunks.size());
        if (is_disturbed) (void)!mt_inject_oom(fail_at, for_ever);
        steps.push_back(mt_trainer_step(trainer, part->get(), &report));
        lines.push_back(mt_last_error());
        losses.push_back(report.loss);
        skipped.push_back(report.skipped);
        if (is_disturbed) mt_injected(nullptr, &failed);
        if (is_disturbed) (void)!mt_inject_oom(0, 0);
        half_done |= steps.back() != MT_OK && hash_of(torch) != before;
    }

    static mt_status no_units(void *, const mt_batch *, size_t, size_t, double *out) {
        *out = 0;
        return MT_OK;
    }
    static mt_status mean_of_nothing(void *self, size_t first, size_t count, double weight,
                                     mt_chunk_result *out) {
        mt_status status = mt_accumulate(static_cast<mt_torch *>(self), first, count, weight, out);
        out->units = 0;
        out->loss_sum = out->metric_sums[0] = NAN;
        return status;
    }

    static std::string hash_of(mt_torch *torch) {
        char text[65] = "";
        (void)!mt_torch_state_sha256(torch, text);
        return text;
    }
};

constexpr NetOptions plain{false, false};

/* So many processes, each with so many samples of one batch, in one chunk. */
std::vector<Process> processes_with(const std::vector<size_t> &samples, int odd = 0) {
    std::vector<Process> processes(samples.size());
    size_t first = 0;
    for (size_t i = 0; i < samples.size(); i++) {
        processes[i].seat.rank = static_cast<int>(i);
        processes[i].part = std::make_unique<Part>(first, samples[i]);
        processes[i].chunks = {samples[i]};
        processes[i].make_model(plain, odd);
        first += samples[i];
    }
    return processes;
}

void run_all(std::vector<Process> &processes, const mt_torch_options &options) {
    Hall hall(static_cast<int>(processes.size()));
    std::vector<std::thread> threads;
    for (Process &process : processes)
        threads.emplace_back([&] {
            process.seat.hall = &hall;
            mt_process_group group = group_of(process.seat, static_cast<int>(processes.size()));
            process.run(options, &group);
        });
    for (std::thread &thread : threads) thread.join();
}

void begin() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
}

/* One process with all samples, in these chunks. */
Process alone(const std::vector<size_t> &samples, const mt_torch_options &options, int steps = 3,
              int odd = 0) {
    Process process;
    size_t all = 0;
    for (size_t count : samples) all += count;
    process.part = std::make_unique<Part>(0, all);
    process.chunks = samples;
    process.planned = steps;
    process.make_model(plain, odd);
    process.run(options, nullptr);
    return process;
}

void went_through(const Process &process) {
    ck_assert_msg(process.made == MT_OK, "%s", process.line.c_str());
    ck_assert_int_eq(static_cast<int>(process.steps.size()), process.planned);
    for (size_t i = 0; i < process.steps.size(); i++)
        ck_assert_msg(process.steps[i] == MT_OK, "%s", process.lines[i].c_str());
}

const std::vector<size_t> shares[] = {{8, 8}, {4, 12}, {1, 2, 3, 10}};

mt_torch_options options_at(int i) {
    mt_torch_options options = options_of(i % 2 ? MT_ADAMW : MT_SGD, i % 3 ? 0.05 : 0);
    options.momentum = 0.9;
    return options;
}

} // namespace

/* ---- what they come to --------------------------------------------------------------------------- */

/* The sums are made in the order of the chunks, so that roundings are the same. */
TEST_LOOP("sums", as_one_with_the_same_chunks, 12) {
    const std::vector<size_t> &samples = shares[_i / 4];
    const mt_torch_options options = options_at(_i);
    begin();
    Process one = alone(samples, options);
    std::vector<Process> all = processes_with(samples);
    run_all(all, options);
    went_through(one);
    for (const Process &process : all) {
        went_through(process);
        ck_assert_str_eq(process.hash.c_str(), all[0].hash.c_str());
        for (size_t i = 0; i < 3; i++)
            ck_assert_double_eq_tol(process.losses[i], one.losses[i], 1e-6);
    }
    ck_assert_str_eq(all[0].hash.c_str(), one.hash.c_str());
}

/* A chunk that could be taken back alone, whose gradients would else stay where they were made. */
TEST_LOOP("sums", in_chunks_that_are_kept, 2) {
    const mt_torch_options options = options_at(_i);
    begin();
    Process one = alone(shares[0], options);
    std::vector<Process> all = processes_with(shares[0]);
    for (Process &process : all) {
        process.chunks.clear();
        process.keeps = MT_KEEP_ALWAYS;
    }
    run_all(all, options);
    for (const Process &process : all) {
        went_through(process);
        ck_assert_str_eq(process.hash.c_str(), one.hash.c_str());
    }
}

/* With a loss scaler too, whose infinities are those of all. */
TEST_LOOP("sums", in_half_precision, 2) {
    mt_torch_options options = options_at(1);
    options.amp = _i ? half_precision() : MT_BFLOAT16;
    options.scale_start = 4294967296.0; /* the first updates are skipped for it */
    begin();
    Process one = alone(shares[1], options);
    std::vector<Process> all = processes_with(shares[1]);
    run_all(all, options);
    went_through(one);
    for (const Process &process : all) {
        went_through(process);
        ck_assert_str_eq(process.hash.c_str(), one.hash.c_str());
    }
}

/* One has no label in its batches: the updates are those of the other's samples, on both. Where none has, none is made. */
TEST_LOOP("sums", no_label_in_one, 6) {
    const mt_torch_options options = options_at(_i);
    const size_t masked = static_cast<size_t>(_i) / 2;
    begin();
    std::vector<Process> all = processes_with({6, 10});
    for (size_t i = 0; i < 2; i++) all[i].is_masked = i == masked || masked == 2;
    run_all(all, options);
    for (const Process &process : all) {
        went_through(process);
        ck_assert_str_eq(process.hash.c_str(), all[0].hash.c_str());
        for (int skipped : process.skipped)
            ck_assert_int_eq(skipped, masked == 2 ? MT_SKIP_NO_UNITS : MT_SKIP_NOT);
    }
    Process one;
    one.part = masked ? std::make_unique<Part>(0, 6) : std::make_unique<Part>(6, 10);
    one.chunks = {one.part->get()->count};
    one.planned = masked == 2 ? 0 : 3;
    one.make_model(plain);
    one.run(options, nullptr);
    went_through(one);
    ck_assert_str_eq(all[0].hash.c_str(), one.hash.c_str());
    for (size_t i = 0; i < one.losses.size(); i++)
        ck_assert_double_eq_tol(all[masked].losses[i], one.losses[i], 1e-6);
}

/* Whatever weights the others have had. */
TEST_LOOP("sums", weights_are_those_of_the_first, 2) {
    const mt_torch_options options = options_at(_i);
    begin();
    Process one = alone(shares[0], options);
    std::vector<Process> all = processes_with(shares[0]);
    {
        c10::NoGradGuard no_grad;
        for (const at::Tensor &parameter : all[1].net->parameters()) at::Tensor(parameter).mul_(-3);
    }
    run_all(all, options);
    for (const Process &process : all) ck_assert_str_eq(process.hash.c_str(), one.hash.c_str());
}

/* And their buffers, whole numbers among them. */
TEST("sums", buffers_too) {
    begin();
    std::vector<Process> all(2);
    for (int i : {0, 1}) {
        all[i].seat.rank = i;
        all[i].planned = 0;
        all[i].make_model({true, false});
        all[i].net->norm->running_mean.fill_(i + 0.25);
        all[i].net->norm->num_batches_tracked.fill_((int64_t{1} << 40) + i);
        all[i].net->linear->weight.set_requires_grad(false);
        all[i].net->linear->weight.mutable_data_ptr<float>()[5] = static_cast<float>(i);
    }
    run_all(all, options_of(MT_SGD));
    for (const Process &process : all) {
        ck_assert_msg(process.made == MT_OK, "%s", process.line.c_str());
        ck_assert(process.net->norm->running_mean[3].item().toDouble() == 0.25);
        ck_assert(process.net->norm->num_batches_tracked.item().toLong() == int64_t{1} << 40);
        ck_assert(process.net->linear->weight.flatten()[5].item().toDouble() == 0);
    }
}

TEST("sums", optimisers_that_differ) {
    begin();
    std::vector<Process> all = processes_with(shares[0]);
    all[1].lr = 0.5;
    run_all(all, options_of(MT_SGD));
    for (const Process &process : all) {
        ck_status(process.made, MT_EINVAL);
        ck_contains(process.line.c_str(), "the 2 processes have other optimisers");
    }
}

/* Files that do not belong together are found when they have been read. */
TEST_LOOP("sums", parameters_that_differ, 2) {
    begin();
    std::vector<Process> all = processes_with(shares[0]);
    for (Process &process : all) process.changes_at_the_end = process.seat.rank == _i;
    run_all(all, options_of(MT_ADAMW));
    for (const Process &process : all) {
        went_through(process);
        ck_status(process.compared[0], MT_OK);
        ck_status(process.compared[1], MT_ESTATE);
    }
}

TEST("sums", models_that_differ) {
    begin();
    std::vector<Process> all = processes_with(shares[2]);
    all[2].make_model({true, false});
    run_all(all, options_of(MT_SGD));
    for (const Process &process : all) {
        ck_status(process.made, MT_EINVAL);
        ck_contains(process.line.c_str(), "the 4 processes have models");
    }
}

/* Whoever has a gradient for a parameter, all update it, also where another's is one of the step before. */
TEST_LOOP("sums", a_parameter_of_one, 4) {
    const mt_torch_options options = options_at(_i);
    begin();
    Process one = alone(shares[0], options, 3, 2), without = alone(shares[0], options);
    std::vector<Process> all = processes_with(shares[0], 1);
    for (Process &process : all) {
        if (_i < 2) continue;
        process.chunks.clear();
        process.keeps = MT_KEEP_ALWAYS;
    }
    run_all(all, options);
    for (const Process &process : all) {
        went_through(process);
        ck_assert_str_eq(process.hash.c_str(), one.hash.c_str());
    }
    ck_assert_str_ne(one.hash.c_str(), without.hash.c_str());
    ck_assert(without.net->unused[0].item().toDouble() == 1);
}

/* ---- memory that runs out ------------------------------------------------------------------------- */

namespace {

/*
 * Every request of one process's second step fails, once or for good: either both go through, or both take it back,
 * the one with its reason and the other with MT_EPEER. Their bits are then those of three or of two steps.
 */
void fail_in_turn(const mt_torch_options &options, int for_ever) {
    uint64_t ended = 0, recovered = 0;
    Process three = alone(shares[0], options), two = alone(shares[0], options, 2);
    for (uint64_t n = 1;; n++) {
        std::vector<Process> all = processes_with(shares[0]);
        int which = static_cast<int>(n % 2);
        all[which].fail_at = n;
        all[which].for_ever = for_ever;
        run_all(all, options);
        bool both = all[0].steps[1] == MT_OK;
        ck_assert(both || for_ever); /* what fails once is done again */
        for (int i : {0, 1}) {
            ck_assert_int_eq(all[i].made, MT_OK);
            ck_assert(all[i].steps[0] == MT_OK && all[i].steps[2] == MT_OK && !all[i].half_done);
            ck_status(all[i].steps[1], both ? MT_OK : i == which ? MT_EDEVMEM : MT_EPEER);
            ck_assert_str_eq(all[i].hash.c_str(), (both ? three : two).hash.c_str());
        }
        if (!all[which].failed) break;
        (both ? recovered : ended)++;
    }
    ck_assert_uint_gt(for_ever ? ended : recovered, 20);
}

} // namespace

TEST_LOOP("memory", memory_runs_out_in_one, 2) {
    begin();
    fail_in_turn(options_at(1), _i);
}

/*
 * On a simulated card the update needs memory for the norm that it clips by: that is after the gradients have been added
 * up, and still before any process has changed a parameter.
 */
TEST_LOOP("memory", memory_runs_out_in_an_update, 2) {
    mt_torch_options options = options_at(1);
    options.device = "sim:cuda";
    begin();
    simulate("sim:cuda", size_t{64} << 20);
    fail_in_turn(options, _i);
}

/* ---- what goes together, and what does not -------------------------------------------------------- */

TEST("options", options_are_checked) {
    Seat seat{nullptr, 0};
    Process process;
    begin();
    process.make_model(plain);
    auto refuses = [&](const mt_process_group &group, mt_status status, const char *words) {
        mt_torch_options options = options_of(MT_SGD);
        mt_torch *torch = nullptr;
        options.processes = &group;
        ck_refused(mt_torch_new(process.model.get(), &options, &torch), status, words);
    };
    mt_process_group group = group_of(seat, 2);
    group.rank = 2;
    refuses(group, MT_EINVAL, "rank 2 and count 2");
    group.rank = -1;
    refuses(group, MT_EINVAL, "rank -1");
    group = group_of(seat, 0);
    refuses(group, MT_EINVAL, "count 0");
    group = group_of(seat, 2);
    group.sum_floats = nullptr;
    refuses(group, MT_EINVAL, "sum_floats is NULL");
    group.size = 0;
    refuses(group, MT_EINVAL, "size");
    group = group_of(seat, 2);
    group.sum_floats = [](void *, float *, size_t) { return mt_set_error(MT_EIO, "gone"); };
    group.sum_doubles = [](void *, double *, size_t) { return mt_set_error(MT_EIO, "gone too"); };
    refuses(group, MT_EIO, "gone too");
}

/* A group of one is none: nothing is called. */
TEST("options", alone_nothing_is_called) {
    const mt_process_group group = MT_PROCESS_GROUP_INIT;
    mt_torch_options options = options_of(MT_SGD);
    begin();
    Process with;
    with.part = std::make_unique<Part>(0, 16);
    with.chunks = {8, 8};
    with.make_model(plain);
    with.run(options, &group);
    went_through(with);
    Process without = alone(shares[0], options);
    ck_assert_str_eq(with.hash.c_str(), without.hash.c_str());
}

/* Gradients stay held, and no process goes on elsewhere by itself. */
TEST("options", what_several_have_not) {
    mt_torch_options options = options_of(MT_SGD);
    Hall hall(1); /* where one is enough for all */
    Seat seat{&hall, 0};
    mt_process_group group = group_of(seat, 2);
    mt_backend seam = MT_BACKEND_INIT;
    mt_backend_info info = {};
    mt_torch *torch;
    Process process;
    simulate("sim:cuda", size_t{64} << 20);
    options.device = "sim:cuda";
    options.processes = &group;
    begin();
    process.make_model(plain);
    /* What another process would have said is not there, so that models seem to differ. */
    ck_status(mt_torch_new(process.model.get(), &options, &torch), MT_EINVAL);
    group.sum_doubles = [](void *, double *values, size_t n) {
        for (size_t i = 0; i < n; i++) values[i] *= 2;
        return MT_OK;
    };
    ck_ok(mt_torch_new(process.model.get(), &options, &torch));
    ck_ok(mt_torch_backend(torch, &seam));
    ck_assert_ptr_null(reinterpret_cast<void *>(seam.hold_gradients));
    ck_assert_ptr_nonnull(reinterpret_cast<void *>(seam.agree));
    ck_status(mt_hold_gradients(torch, 0), MT_ENOTSUP);
    ck_refused(mt_train_step(torch, Part(0, 4).get(), nullptr, nullptr), MT_ENOTSUP,
               "mt_trainer_step");
    info.size = sizeof info;
    ck_ok(seam.describe(seam.self, &info));
    ck_assert_uint_eq(info.rungs & MT_RUNG_BIT(MT_RUNG_CPU), 0);
    mt_torch_free(torch);
}

/* ---- Gloo ----------------------------------------------------------------------------------------- */

namespace {

mt_process_group_options meeting(int rank, int count, int port) {
    mt_process_group_options options = MT_PROCESS_GROUP_OPTIONS_INIT;
    options.rank = rank;
    options.count = count;
    options.port = port;
    options.timeout_seconds = 20;
    return options;
}

/* Runs body(group, rank) on a thread each. */
template <class Body> std::vector<std::string> over_gloo(int count, const Body &body) {
    std::vector<std::string> wrong(static_cast<size_t>(count));
    std::vector<std::thread> threads;
    int port = ex_processes_free_port();
    for (int rank = 0; rank < count; rank++)
        threads.emplace_back([&, rank] {
            mt_process_group_options options = meeting(rank, count, port);
            mt_process_group group = MT_PROCESS_GROUP_INIT;
            if (mt_process_group_open(&options, &group) == MT_OK)
                wrong[static_cast<size_t>(rank)] = body(group, rank);
            else
                wrong[static_cast<size_t>(rank)] = mt_last_error();
            mt_process_group_close(&group);
            if (group.count != 1 || group.self) wrong[static_cast<size_t>(rank)] += " not closed";
        });
    for (std::thread &thread : threads) thread.join();
    return wrong;
}

} // namespace

TEST("gloo", gloo_adds_up) {
    begin();
    auto wrong = over_gloo(3, [](mt_process_group &group, int rank) -> std::string {
        std::vector<float> floats(100000, 0.1f * static_cast<float>(rank + 1));
        double doubles[3] = {1.0 / 3, static_cast<double>(rank), 1e300};
        if (group.rank != rank || group.count != 3) return "who is who";
        if (group.sum_floats(group.self, floats.data(), floats.size()) != MT_OK)
            return mt_last_error();
        if (group.sum_doubles(group.self, doubles, 3) != MT_OK) return mt_last_error();
        for (float x : floats)
            if (x != floats[0] || std::abs(x - 0.6f) > 1e-6f) return "floats";
        if (doubles[1] != 3 || doubles[2] != 3e300 || std::abs(doubles[0] - 1) > 1e-15)
            return "doubles";
        return "";
    });
    for (const std::string &line : wrong) ck_assert_str_eq(line.c_str(), "");
}

TEST("gloo", gloo_trains) {
    const mt_torch_options options = options_at(1);
    begin();
    Process one = alone(shares[0], options);
    std::vector<Process> all = processes_with(shares[0]);
    auto wrong = over_gloo(2, [&](mt_process_group &group, int rank) -> std::string {
        all[static_cast<size_t>(rank)].run(options, &group);
        return "";
    });
    for (int i : {0, 1}) {
        ck_assert_str_eq(wrong[i].c_str(), "");
        went_through(all[i]);
        ck_assert_str_eq(all[i].hash.c_str(), one.hash.c_str());
    }
}

/* One leaves: the other hears of it at once, not after the timeout. */
TEST("gloo", gloo_loses_one) {
    begin();
    auto started = std::chrono::steady_clock::now();
    auto wrong = over_gloo(2, [](mt_process_group &group, int rank) -> std::string {
        double one = 1;
        if (group.sum_doubles(group.self, &one, 1) != MT_OK || one != 2) return mt_last_error();
        if (rank == 1) return "";
        mt_status status = group.sum_doubles(group.self, &one, 1);
        return status == MT_EIO ? "" : mt_status_name(status);
    });
    for (const std::string &line : wrong) ck_assert_str_eq(line.c_str(), "");
    ck_assert(std::chrono::steady_clock::now() - started < std::chrono::seconds(15));
}

TEST("gloo", gloo_waits_in_vain) {
    mt_process_group_options options = meeting(0, 2, ex_processes_free_port());
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    options.timeout_seconds = 0.5;
    begin();
    ck_refused(mt_process_group_open(&options, &group), MT_EIO, "process 0 of 2");
    ck_assert_int_eq(group.count, 1);
}

TEST("options", fields_are_checked) {
    struct Case {
        void (*spoil)(mt_process_group_options &);
        const char *words;
    };
    static const Case cases[] = {
        {[](mt_process_group_options &o) { o.count = 0; }, "options->count is 0"},
        {[](mt_process_group_options &o) { o.rank = 2; }, "options->rank is 2; accepted: 0 to 1"},
        {[](mt_process_group_options &o) { o.rank = -1; }, "options->rank is -1"},
        {[](mt_process_group_options &o) { o.address = nullptr; }, "options->address"},
        {[](mt_process_group_options &o) { o.port = 0; }, "options->port is 0"},
        {[](mt_process_group_options &o) { o.port = 65536; }, "options->port is 65536"},
        {[](mt_process_group_options &o) { o.timeout_seconds = -1; }, "timeout_seconds is -1"},
        {[](mt_process_group_options &o) { o.size = 0; }, "options->size"},
    };
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    for (const Case &c : cases) {
        mt_process_group_options options = meeting(0, 2, 29500);
        c.spoil(options);
        ck_refused(mt_process_group_open(&options, &group), MT_EINVAL, c.words);
    }
    ck_status(mt_process_group_open(nullptr, nullptr), MT_EINVAL);
    mt_process_group_close(nullptr);
    mt_process_group_close(&group);
}

/* ---- the environment ------------------------------------------------------------------------------ */

TEST("options", variables_are_checked) {
    static const char *const names[] = {"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"};
    struct Case {
        const char *values[4]; /* NULL: not set */
        const char *words;     /* NULL: a group of one */
    };
    static const Case cases[] = {
        {{nullptr, nullptr, nullptr, nullptr}, nullptr},
        {{nullptr, "3", nullptr, nullptr}, nullptr},
        {{"1", "0", nullptr, nullptr}, nullptr},
        {{"1", nullptr, nullptr, nullptr}, nullptr},
        {{"", nullptr, nullptr, nullptr}, nullptr},
        {{"1", "1", nullptr, nullptr}, "RANK is '1'; accepted: 0 to 0"},
        {{"many", "0", "localhost", "29500"}, "WORLD_SIZE is 'many'"},
        {{"0", "0", "localhost", "29500"}, "WORLD_SIZE is '0'"},
        {{"2", nullptr, "localhost", "29500"}, "RANK is not set"},
        {{"2", "2", "localhost", "29500"}, "RANK is '2'; accepted: 0 to 1"},
        {{"2", "0", nullptr, "29500"}, "MASTER_ADDR is not set"},
        {{"2", "0", "localhost", nullptr}, "MASTER_PORT is not set"},
        {{"2", "0", "localhost", "99999"}, "MASTER_PORT is '99999'; accepted: 1 to 65535"},
        {{"2", "0", "localhost", "1x"}, "MASTER_PORT is '1x'"},
    };
    for (const Case &c : cases) {
        mt_process_group group = MT_PROCESS_GROUP_INIT;
        for (int i = 0; i < 4; i++)
            c.values[i] ? setenv(names[i], c.values[i], 1) : unsetenv(names[i]);
        mt_status status = mt_process_group_open(nullptr, &group);
        ck_status(status, c.words ? MT_EINVAL : MT_OK);
        if (c.words) ck_contains(mt_last_error(), c.words);
        ck_assert_int_eq(group.count, 1);
    }
}

namespace {

/* A process of its own, which has not touched libtorch, with an environment like torchrun's. 0 where all is well. */
int meets(int rank, int port, bool is_hosted) {
    mt_process_group group = MT_PROCESS_GROUP_INIT;
    double values[2] = {1, static_cast<double>(rank)};
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", rank ? "1" : "0", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
    if (is_hosted) {
        setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
        setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
    }
    alarm(40);
    if (mt_process_group_open(nullptr, &group) != MT_OK) return 1;
    if (group.rank != rank || group.count != 2) return 2;
    if (group.sum_doubles(group.self, values, 2) != MT_OK) return 3;
    mt_process_group_close(&group);
    return values[0] == 2 && values[1] == 1 ? 0 : 4;
}

/* torchrun keeps the store itself. */
int hosts(int port, int until) {
    char end;
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    c10::intrusive_ptr<c10d::TCPStore> store =
        c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    return read(until, &end, 1) == 0 ? 0 : 1; /* the other end is closed */
}

template <class Body> pid_t forked(const Body &body) {
    pid_t child = fork();
    if (child == 0) _exit(body());
    return child;
}

int exit_status_of(pid_t child) {
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

TEST_LOOP("gloo", they_meet_by_the_environment, 2) {
    int port = ex_processes_free_port(), ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t host = _i ? forked([&] { return close(ends[1]), hosts(port, ends[0]); }) : 0;
    pid_t one = forked([&] { return meets(0, port, _i); });
    pid_t other = forked([&] { return meets(1, port, _i); });
    close(ends[0]);
    ck_assert_int_eq(exit_status_of(one), 0);
    ck_assert_int_eq(exit_status_of(other), 0);
    close(ends[1]);
    if (_i) ck_assert_int_eq(exit_status_of(host), 0);
}

namespace {

/* Told by the library just before it meets the others. */
void on_meeting(void *user, mt_log_level, const char *text) {
    if (strstr(text, "meets the others")) (void)!write(*static_cast<int *>(user), "m", 1);
}

bool is_listening(int port) {
    struct sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool connected =
        fd >= 0 && connect(fd, reinterpret_cast<struct sockaddr *>(&address), sizeof address) == 0;
    if (fd >= 0) close(fd);
    return connected;
}

} // namespace

/*
 * Rank 0 does not listen in torchrun's place, also before torchrun does. Where both listen libtorch lets the second one be,
 * so that meeting alone tells nothing of it: the port is looked at while rank 0 waits there.
 */
TEST("gloo", the_first_waits_for_its_host) {
    int port = ex_processes_free_port(), ends[2], meeting[2];
    char letter;
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(pipe(meeting), 0);
    pid_t one = forked([&] { return mt_set_log(on_meeting, &meeting[1]), meets(0, port, true); });
    close(meeting[1]);
    ck_assert_int_eq(read(meeting[0], &letter, 1), 1);
    for (int i = 0; i < 100; i++) {
        ck_assert(!is_listening(port));
        usleep(10000);
    }
    pid_t host = forked([&] { return close(ends[1]), hosts(port, ends[0]); });
    pid_t other = forked([&] { return meets(1, port, true); });
    close(ends[0]);
    ck_assert_int_eq(exit_status_of(one), 0);
    ck_assert_int_eq(exit_status_of(other), 0);
    close(ends[1]);
    ck_assert_int_eq(exit_status_of(host), 0);
    close(meeting[0]);
}

SUITE("shim_processes")
