/*
 * check_shim_units.cpp - losses that are means over tokens: however a batch is cut, in C++ (Description::units) and in
 * TorchScript ((loss, units)), loss and gradient are those of the whole batch; chunks and batches without a token;
 * requests for memory that fail; several processes.
 */
#include <cmath>
#include <map>
#include <numeric>
#include <thread>

#include <ATen/ops/embedding.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/modules/embedding.h>

#include <memtrain/check.h>
#include <memtrain/trainer.hpp>

#include "hall.hpp"
#include "script_subject.hpp"

using namespace script_subject;

namespace {

constexpr int64_t words = 50, width = 16, samples = 16, length = 24, ignored = -100;

using Lengths = std::vector<int64_t>; /* labels that count, of each sample */

const Lengths uneven = {1, 24, 3, 17, 24, 2, 9, 20, 5, 5, 13, 24, 1, 8, 22, 11};
const Lengths with_gaps = {0, 0, 0, 0, 24, 2, 9, 0, 5, 5, 13, 24, 0, 8, 0, 0};
const Lengths none(samples, 0);

/* Ids and labels, the same for the same lengths. */
struct Tokens {
    at::Tensor ids, labels;
    memtrain::Tensors tensors;
    std::unique_ptr<memtrain::detail::Handles> handles;
    mt_torch_batch data = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;

    explicit Tokens(const Lengths &lengths, int64_t first = 0, int64_t count = samples) {
        ck_ok(mt_torch_seed(3));
        ids = at::randint(words, {samples, length}, at::kLong);
        labels = at::randint(words, {samples, length}, at::kLong);
        for (int64_t i = 0; i < samples; i++)
            labels[i].slice(0, lengths[static_cast<size_t>(i)]).fill_(ignored);
        ids = ids.narrow(0, first, count).clone();
        labels = labels.narrow(0, first, count).clone();
        tensors = {ids, labels};
        handles = std::make_unique<memtrain::detail::Handles>(tensors);
        data.tensors = handles->get();
        data.count = 2;
        batch.data = &data;
        batch.count = static_cast<size_t>(count);
    }
    double units(size_t first, size_t count) const {
        at::Tensor part =
            labels.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count));
        return part.ne(ignored).sum().item<double>();
    }
};

/* ---- the same network twice ------------------------------------------------------------------------- */

struct Weights {
    at::Tensor table, weight, bias;
    Weights() {
        ck_ok(mt_torch_seed(5));
        table = at::rand({words, width}).sub(0.5);
        weight = at::rand({words, width}).sub(0.5);
        bias = at::zeros({words});
    }
};

struct Speaker : nn::Module {
    nn::Embedding table{register_module("table", nn::Embedding(words, width))};
    nn::Linear linear{register_module("linear", nn::Linear(width, words))};
    explicit Speaker(const Weights &w) {
        table->weight.set_data(w.table.clone());
        linear->weight.set_data(w.weight.clone());
        linear->bias.set_data(w.bias.clone());
    }
    at::Tensor loss(const memtrain::Tensors &batch) {
        at::Tensor logits = linear(table(batch[0])).flatten(0, 1);
        return at::cross_entropy_loss(logits, batch[1].flatten(), {}, at::Reduction::Mean, ignored);
    }
};

/* One metric over tokens, one over samples. */
auto described(const std::shared_ptr<Speaker> &net) {
    auto loss = [](Speaker &speaker, const memtrain::Tensors &batch) {
        at::Tensor value = speaker.loss(batch), right = batch[1].eq(batch[0]).sum();
        at::Tensor long_ones = batch[1].ne(ignored).sum(1).gt(4).sum();
        return memtrain::Output{value, at::stack({right, long_ones}).to(at::kFloat)};
    };
    auto described = memtrain::model(net, {"same", "long"}, loss);
    described.metric_over = {MT_OVER_UNITS, MT_OVER_SAMPLES};
    described.units = memtrain::count_not(ignored);
    return described;
}

const char *const units_of_script[] = {"torch.sum(torch.ne(y, -100))", /* a tensor of one */
                                       "int(torch.sum(torch.ne(y, -100)))",
                                       "float(torch.sum(torch.ne(y, -100)))"};

std::string source_of(const char *result) {
    return std::string("def forward(self, x, y):\n"
                       "    h = torch.linear(torch.embedding(self.table.weight, x), "
                       "self.linear.weight, self.linear.bias)\n"
                       "    loss = torch.cross_entropy_loss(torch.flatten(h, 0, 1), "
                       "torch.flatten(y), None, 1, -100, 0.0)\n"
                       "    return ") +
           result + "\n";
}

std::string saved(const Folder &folder, const char *result) {
    Weights w;
    jit::Module net = root(), table("Table");
    table.register_parameter("weight", w.table.clone().requires_grad_(), false);
    net.register_module("table", table);
    net.register_module("linear", layer("Linear", w.weight, words));
    net.define(source_of(result));
    net.save(folder.file("a.pt"));
    return folder.file("a.pt");
}

mt_model *scripted(const char *result) {
    Folder folder;
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    options.own_loss = 1;
    return loaded(saved(folder, result), &options);
}

mt_model *in_script(size_t kind = 0) {
    return scripted((std::string("(loss, ") + units_of_script[kind] + ")").c_str());
}

/* units: others than those of described(). */
mt_model *in_cpp(const memtrain::Units &units = {}) {
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [&] {
        auto description = described(std::make_shared<Speaker>(Weights()));
        if (units) description.units = units;
        return description;
    }));
    return model;
}

/* As one writes it who does not think of memory. */
mt_model *with_requests() {
    return in_cpp(
        [](const memtrain::Tensors &batch) { return batch[1].ne(ignored).sum().item<double>(); });
}

/* ---- training ---------------------------------------------------------------------------------------- */

/* So large a rate that what a step leaves of the parameters is the gradient. */
constexpr double rate = 1e4;

mt_torch_options gradients_only() {
    mt_torch_options options = memtrain::sgd(rate);
    options.device = suite_device();
    return options;
}

mt_trainer_options options_with(const mt_policy_options &policy) {
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    options.policy = &policy;
    return options;
}

struct Learner {
    memtrain::Trainer trainer;
    bool is_script;

    explicit Learner(mt_model *model, const mt_torch_options &options = gradients_only(),
                     const mt_policy_options &policy = MT_POLICY_OPTIONS_INIT)
        : trainer(make(model, options, policy)), is_script(!info().metric_count) {}

    static memtrain::Trainer make(mt_model *model, const mt_torch_options &options,
                                  const mt_policy_options &policy) {
        mt_trainer_options own = options_with(policy);
        return memtrain::Trainer(model, options, &own);
    }
    mt_backend_info info() const {
        mt_backend seam = MT_BACKEND_INIT;
        mt_backend_info info = {};
        info.size = sizeof info;
        ck_ok(mt_torch_backend(trainer.torch(), &seam));
        ck_ok(seam.describe(seam.self, &info));
        return info;
    }
    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(trainer.torch(), text));
        return text;
    }
    /* Through mt_trainer. */
    mt_status step(const Tokens &tokens, const std::vector<size_t> &chunks,
                   mt_step_report *report = nullptr) const {
        mt_step_report own = MT_STEP_REPORT_INIT;
        if (!chunks.empty())
            ck_ok(mt_trainer_set_chunks(trainer.get(), chunks.data(), chunks.size()));
        mt_status status = mt_trainer_step(trainer.get(), &tokens.batch, &own);
        if (report) *report = own;
        return status;
    }
    /* Through the primitives: the weight is the share of what is known beforehand. */
    double by_hand(const Tokens &tokens, const std::vector<size_t> &chunks,
                   mt_apply_result *out = nullptr) const {
        mt_apply_result applied = apply_result();
        double loss = 0, units = 0;
        size_t first = 0, all = tokens.batch.count;
        ck_ok(mt_begin(trainer.torch(), &tokens.batch));
        for (size_t count : chunks) {
            mt_chunk_result result = chunk_result();
            double share = static_cast<double>(count) / static_cast<double>(all);
            if (!is_script) share = tokens.units(first, count) / tokens.units(0, all);
            ck_ok(mt_accumulate(trainer.torch(), first, count, share, &result));
            ck_assert_double_eq(result.units, tokens.units(first, count));
            loss += result.loss_sum;
            units += result.units;
            first += count;
        }
        ck_ok(mt_apply(trainer.torch(), &applied));
        if (out) *out = applied;
        return loss / units;
    }
    double evaluate(const Tokens &tokens) const {
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_evaluate(trainer.get(), &tokens.batch, &report));
        return report.loss;
    }
};

using State = std::map<std::string, at::Tensor>;

State state_of(const Learner &learner) {
    State state;
    ck_ok(mt_torch_visit_state(
        learner.trainer.torch(),
        [](void *user, const char *name, mt_tensor *handle) {
            (*static_cast<State *>(user))[name] = memtrain::tensor(handle).cpu().clone();
            return MT_OK;
        },
        &state));
    return state;
}

/* Loss and gradients of the whole batch, by autograd in double. */
struct Reference {
    double loss;
    State gradients;
    explicit Reference(const Tokens &tokens) {
        Weights w;
        Speaker net(w);
        net.to(at::kDouble);
        at::Tensor value = net.loss(tokens.tensors);
        value.backward();
        loss = value.item<double>();
        for (const auto &item : net.named_parameters()) gradients[item.key()] = item.value().grad();
    }
    double norm() const {
        double sum = 0;
        for (const auto &named : gradients) sum += named.second.square().sum().item<double>();
        return std::sqrt(sum);
    }
};

/* What a step of gradients_only() has subtracted, against the reference: shares of the largest number. */
double distance(const State &after, const Reference &reference, double factor = rate) {
    Weights w;
    const State before = {
        {"table.weight", w.table}, {"linear.weight", w.weight}, {"linear.bias", w.bias}};
    double worst = 0;
    ck_assert_uint_eq(reference.gradients.size(), before.size());
    for (const auto &named : before) {
        const at::Tensor &expected = reference.gradients.at(named.first);
        at::Tensor got =
            (named.second.to(at::kDouble) - after.at(named.first).to(at::kDouble)) / factor;
        double apart = ((got - expected).abs().max() / expected.abs().max()).item<double>();
        ck_assert_double_finite(apart);
        worst = std::max(worst, apart);
    }
    return worst;
}

constexpr double bound = 1e-6;

const std::vector<size_t> cuts[] = {
    {16}, {4, 4, 4, 4}, {3, 3, 3, 3, 3, 1}, std::vector<size_t>(16, 1)};

/* C++, and the three kinds of units in TorchScript. */
mt_model *subject(int kind) {
    return kind ? in_script(static_cast<size_t>(kind - 1)) : in_cpp();
}

constexpr int subjects = 4, cut_count = 4, ways = 2;

/* ---- a cut does not change the numbers ------------------------------------------------------------------ */

TEST_LOOP("numbers", however_it_is_cut, subjects *cut_count *ways) {
    const auto &chunks = cuts[_i % cut_count];
    int kind = _i / cut_count % subjects, way = _i / cut_count / subjects;
    prepare();
    const Tokens tokens(way == 1 ? with_gaps : uneven);
    Reference reference(tokens);
    {
        Learner learner(subject(kind));
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(learner.step(tokens, chunks, &report));
        ck_assert_double_eq_tol(report.loss, reference.loss, bound * reference.loss);
        ck_assert_int_eq(report.skipped, 0);
        ck_assert_double_le(distance(state_of(learner), reference), bound);
    }
    Learner learner(subject(kind));
    double loss = learner.by_hand(tokens, chunks);
    ck_assert_double_eq_tol(loss, reference.loss, bound * reference.loss);
    ck_assert_double_le(distance(state_of(learner), reference), bound);
}

/* What it was: a mean of means. */
TEST("numbers", without_units_they_differ) {
    prepare();
    const Tokens tokens(uneven);
    Reference reference(tokens);
    Learner learner(scripted("loss"));
    mt_step_report report = MT_STEP_REPORT_INIT;
    ck_ok(learner.step(tokens, cuts[3], &report));
    ck_assert_double_gt(std::fabs(report.loss - reference.loss), 1e-4);
    ck_assert_double_gt(distance(state_of(learner), reference), 1e-2);
}

/* Norm and clipping see the gradient of the mean, on the devices of either kind of update. */
TEST_LOOP("numbers", clipping_sees_the_mean, 6) {
    const char *const devices[] = {suite_device(), "sim:cuda", "sim:mps"};
    prepare();
    const Tokens tokens(uneven);
    Reference reference(tokens);
    double norm = reference.norm(), part = _i % 2 ? 0.5 : 2.0;
    double factor = std::min(part * norm / (norm + 1e-6), 1.0); /* as clip_grad_norm_ has it */
    mt_torch_options options = gradients_only();
    options.device = devices[_i / 2];
    options.clip_norm = part * norm;
    for (const auto &chunks : cuts) {
        Learner learner(in_script(), options);
        mt_apply_result applied = apply_result();
        learner.by_hand(tokens, chunks, &applied);
        ck_assert_double_eq_tol(applied.grad_norm, norm, bound * norm);
        ck_assert_double_le(distance(state_of(learner), reference, rate * factor), bound);
    }
}

TEST_LOOP("numbers", on_every_device, 2) {
    static const char *const devices[] = {"sim:cuda", "sim:mps"};
    prepare();
    const Tokens tokens(uneven);
    Reference reference(tokens);
    mt_torch_options options = gradients_only();
    options.device = devices[_i];
    Learner learner(in_script(), options);
    ck_ok(learner.step(tokens, cuts[2]));
    ck_assert_double_le(distance(state_of(learner), reference), bound);
}

/* Moments see the mean as well: after several steps the runs are still together. */
TEST_LOOP("numbers", several_steps_of_adamw, 2) {
    prepare();
    const Tokens tokens(uneven);
    mt_torch_options options = options_of(MT_ADAMW);
    options.lr = 0.01;
    State states[2];
    for (size_t i = 0; i < 2; i++) {
        Learner learner(_i ? in_script() : in_cpp(), options);
        for (int n = 0; n < 5; n++) ck_ok(learner.step(tokens, cuts[i * 2]));
        states[i] = state_of(learner);
    }
    for (const auto &named : states[0]) {
        double apart = (named.second - states[1].at(named.first)).abs().max().item<double>();
        ck_assert_msg(apart <= 1e-5, "%s: %g", named.first.c_str(), apart);
    }
}

/* mt_torch_check sees units in either way of telling them, and what it is without. */
TEST_LOOP("numbers", the_check_knows_units, subjects) {
    prepare();
    const Tokens tokens(uneven);
    Learner told(subject(_i)), untold(scripted("loss"));
    std::string before = told.hash();
    mt_check_report report = told.trainer.check(tokens.tensors);
    ck_assert_msg(report.fault_count == 0, "%s", report.findings[0].text);
    ck_assert(told.hash() == before);
    report = untold.trainer.check(tokens.tensors);
    ck_assert_uint_eq(report.fault_count, 1);
    ck_assert_int_eq(report.findings[0].kind, MT_CHECK_WEIGHTING);
}

/* ---- what is reported ------------------------------------------------------------------------------------ */

TEST("reports", metrics_over_units_and_samples) {
    prepare();
    const Tokens tokens(with_gaps);
    mt_step_report whole = MT_STEP_REPORT_INIT;
    ck_ok(Learner(in_cpp()).step(tokens, cuts[0], &whole));
    double same = tokens.labels.eq(tokens.ids).sum().item<double>() / tokens.units(0, 16);
    ck_assert_double_gt(same, 0);
    ck_assert_double_eq_tol(whole.metrics[0], same, 1e-12);
    ck_assert_double_eq(whole.metrics[1], 7.0 / 16);
    for (const auto &chunks : cuts) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(Learner(in_cpp()).step(tokens, chunks, &report));
        ck_assert_double_eq(report.metrics[0], whole.metrics[0]);
        ck_assert_double_eq(report.metrics[1], whole.metrics[1]);
    }
}

/* A metric of a chunk without a token is 0/0 as the loss is. */
TEST("reports", a_metric_that_is_no_number_adds_nothing) {
    prepare();
    const Tokens tokens(with_gaps);
    double values[2];
    for (size_t i = 0; i < 2; i++) {
        auto net = std::make_shared<Speaker>(Weights());
        auto loss = [](Speaker &speaker, const memtrain::Tensors &batch) {
            at::Tensor value = speaker.loss(batch), valid = batch[1].ne(ignored).sum();
            return memtrain::Output{value, (value.detach() * valid).reshape({1})};
        };
        auto description = memtrain::model(net, {"again"}, loss);
        description.units = memtrain::count_not(ignored);
        description.metric_over = {MT_OVER_UNITS};
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        policy.micro_batch = i ? 4 : 16;
        mt_trainer_options options = options_with(policy);
        memtrain::Trainer trainer(description, gradients_only(), &options);
        values[i] = trainer.step(tokens.tensors).metrics[0];
    }
    ck_assert_double_eq_tol(values[0], values[1], bound * values[0]);
}

TEST_LOOP("reports", evaluation_in_chunks, subjects) {
    prepare();
    const Tokens tokens(with_gaps);
    Reference reference(tokens);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    for (size_t micro : {16, 4, 3, 1}) {
        policy.micro_batch = micro;
        Learner learner(subject(_i), gradients_only(), policy);
        ck_assert_double_eq_tol(learner.evaluate(tokens), reference.loss, bound * reference.loss);
    }
}

/* ---- no token at all --------------------------------------------------------------------------------------- */

/* The update is left out: parameters, moments and their steps, and the scaler, are as before. */
TEST_LOOP("empty", a_batch_without_a_token, 4) {
    const char *const devices[] = {suite_device(), "sim:cuda"};
    mt_dtype half = _i / 2 ? MT_FLOAT16 : half_precision();
    mt_dtype amp = _i % 2 ? half : MT_DTYPE_NONE;
    prepare();
    const Tokens empty(none), tokens(uneven);
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.device = devices[_i / 2];
    options.amp = amp;
    options.scale_start = amp ? 1024 : 0;
    options.scale_growth_interval = 2;
    options.clip_norm = 1;
    Learner learner(in_script(), options);
    ck_ok(learner.step(tokens, cuts[1]));
    std::string before = learner.hash();
    for (const auto &chunks : cuts) {
        mt_apply_result applied = apply_result();
        ck_assert(std::isnan(learner.by_hand(empty, chunks, &applied)));
        ck_assert_int_eq(applied.skipped, 1);
        ck_assert(std::isnan(applied.grad_norm));
        ck_assert(learner.hash() == before);
    }
    ck_ok(learner.step(tokens, cuts[1]));
    ck_assert(learner.hash() != before);
}

/* A gradient of a mean over nothing is no number, and is not made. */
TEST("empty", nothing_of_an_empty_chunk_is_added) {
    prepare();
    const Tokens tokens(with_gaps);
    Learner learner(in_script());
    ck_ok(mt_begin(learner.trainer.torch(), &tokens.batch));
    mt_chunk_result result = chunk_result();
    ck_ok(mt_accumulate(learner.trainer.torch(), 0, 4, 0.25, &result));
    ck_assert_double_eq(result.units, 0);
    ck_assert_double_eq(result.loss_sum, 0);
    ck_ok(mt_rollback(learner.trainer.torch()));
    ck_assert_double_le(distance(state_of(learner), Reference(tokens), 1e300), 1);
}

/* ---- half precision -------------------------------------------------------------------------------------------- */

/* The units of a sample are no part of what half precision has to hold: 24 tokens cost at most 5 halvings. */
TEST_LOOP("numbers", half_precision_has_room, cut_count) {
    prepare();
    const Tokens tokens(uneven);
    Reference reference(tokens);
    mt_torch_options options = gradients_only();
    options.amp = half_precision();
    Learner learner(in_script(), options);
    mt_step_report report = MT_STEP_REPORT_INIT;
    int skipped = 0;
    do {
        ck_ok(learner.step(tokens, cuts[_i], &report));
        skipped += report.skipped;
    } while (report.skipped && skipped < 6);
    ck_assert_int_lt(skipped, 6);
    ck_assert_double_eq_tol(report.loss, reference.loss, 1e-3 * reference.loss);
    if (suite_on_mps()) /* nothing asks for the norm */
        ck_assert(std::isnan(report.grad_norm));
    else
        ck_assert_double_eq_tol(report.grad_norm, reference.norm(), 1e-2 * reference.norm());
    ck_assert_double_le(distance(state_of(learner), reference), 1e-2);
}

/* ---- requests that fail ------------------------------------------------------------------------------------------ */

const char *const places[] = {suite_device(), "sim:cuda", "sim:mps"};

struct Trial {
    const char *device;
    mt_model *(*model)();
    bool persistent, keeps;

    Learner learner() const {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        options.device = device;
        policy.micro_batch = 6;
        policy.keep_chunks = keeps ? MT_KEEP_ALWAYS : MT_KEEP_NEVER;
        return Learner(model(), options, policy);
    }
    void run(uint64_t stride) const {
        const Tokens tokens(with_gaps);
        std::string before, after;
        {
            Learner expected = learner();
            ck_ok(expected.step(tokens, {}));
            before = expected.hash();
            ck_ok(expected.step(tokens, {}));
            after = expected.hash();
            ck_assert(before != after);
        }
        uint64_t n = 1, failed = 1;
        for (; failed; n += stride) {
            Learner one = learner();
            ck_ok(one.step(tokens, {}));
            ck_ok(mt_inject_oom(n, persistent));
            mt_status status = one.step(tokens, {});
            mt_injected(nullptr, &failed);
            ck_ok(mt_inject_oom(0, 0));
            ck_status(status, failed && persistent ? MT_EDEVMEM : MT_OK);
            ck_assert(one.hash() == (status == MT_OK ? after : before));
        }
        ck_assert_uint_gt(n, 15);
    }
};

mt_model *(*const trials[])() = {[] { return in_script(); }, [] { return in_cpp(); },
                                 with_requests};

/* Every request; on the other devices some. */
void every_request_fails(int i, bool persistent, uint64_t stride) {
    int kinds = static_cast<int>(LENGTH(trials));
    prepare();
    const char *device = places[i / kinds / 2];
    bool keeps = i / kinds % 2 == 0;
    Trial{device, trials[i % kinds], persistent, keeps}.run(i < 2 * kinds ? stride : 7 * stride);
}

constexpr int trial_count = 2 * LENGTH(places) * LENGTH(trials);

TEST_LOOP("faults", a_step_recovers_to_the_bit, trial_count) {
    every_request_fails(_i, false, 1);
}

TEST_LOOP("faults", a_step_that_cannot_be_done_is_taken_back, trial_count) {
    every_request_fails(_i, true, 3);
}

/* ---- several processes -------------------------------------------------------------------------------------------- */

struct Peer {
    Seat seat{nullptr, 0};
    std::unique_ptr<Tokens> tokens;
    mt_model *model = nullptr;
    State state;
    mt_step_report report = MT_STEP_REPORT_INIT;
    std::string failed;

    void run(const std::vector<size_t> &chunks) {
        at::set_num_threads(1);
        mt_process_group group = group_of(seat, 2);
        mt_torch_options options = gradients_only();
        options.processes = &group;
        try {
            Learner learner(model, options);
            memtrain::must(learner.step(*tokens, chunks, &report));
            state = state_of(learner);
        } catch (const std::exception &error) {
            failed = error.what();
        }
    }
};

/* Halves of a batch with other units each: with gaps, all of one half has none. */
TEST_LOOP("processes", two_processes_are_one, 4) {
    Lengths lengths = _i % 2 ? with_gaps : uneven;
    for (size_t i = 8; _i % 2 && i < 16; i++) lengths[i] = 0;
    prepare();
    const Tokens whole(lengths);
    Reference reference(whole);
    Hall hall(2);
    Peer peers[2];
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++) {
        peers[i].seat = {&hall, i};
        peers[i].tokens = std::make_unique<Tokens>(lengths, 8 * i, 8);
        peers[i].model = _i / 2 ? in_cpp() : in_script();
    }
    threads.emplace_back([&] { peers[0].run({8}); });
    threads.emplace_back([&] { peers[1].run({3, 5}); });
    for (std::thread &thread : threads) thread.join();
    for (const Peer &peer : peers) {
        ck_assert_msg(peer.failed.empty(), "%s", peer.failed.c_str());
        ck_assert_double_eq_tol(peer.report.loss, reference.loss, bound * reference.loss);
        ck_assert_double_le(distance(peer.state, reference), bound);
        for (const auto &named : peer.state)
            ck_assert(named.second.equal(peers[0].state.at(named.first)));
    }
}

TEST("processes", two_processes_without_a_token) {
    prepare();
    Hall hall(2);
    Peer peers[2];
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; i++) {
        peers[i].seat = {&hall, i};
        peers[i].tokens = std::make_unique<Tokens>(none, 8 * i, 8);
        peers[i].model = in_script();
    }
    for (Peer &peer : peers) threads.emplace_back([&peer] { peer.run({3, 5}); });
    for (std::thread &thread : threads) thread.join();
    for (const Peer &peer : peers) {
        ck_assert_msg(peer.failed.empty(), "%s", peer.failed.c_str());
        ck_assert_int_eq(peer.report.skipped, MT_SKIP_NO_UNITS);
        ck_assert(peer.state.at("linear.bias").equal(Weights().bias));
    }
}

/* ---- what is wrong -------------------------------------------------------------------------------------------------- */

/* Refused when the file is read. */
TEST("wrong", results_that_are_no_pair) {
    static const char *const results[] = {"(loss, loss, loss)", "(loss,)"};
    Folder folder;
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    prepare();
    options.own_loss = 1;
    for (const char *result : results)
        expect_refused(saved(folder, result), "accepted: the loss, or (loss, units)", &options);
}

/* Refused when it runs, and nothing has happened. */
TEST_LOOP("wrong", units_that_are_none, 5) {
    static const struct {
        const char *result, *words;
    } cases[] = {
        {"(loss, -1)", "the model counts -1 units; accepted: a number, at least 0"},
        {"(loss, torch.sum(y) / 0 * 0)", "nan units; accepted: a number, at least 0"},
        {"(loss, torch.ne(y, -100))", "gives units that are another Tensor; accepted: a number"},
        {"(loss, 'many')", "gives units that are a String; accepted: a number"},
        {"(1.0, 1.0)", "gives a Double; accepted: a tensor"},
    };
    prepare();
    const Tokens tokens(uneven);
    Learner learner(scripted(cases[_i].result));
    std::string before = learner.hash();
    ck_refused(learner.step(tokens, cuts[1]), MT_EINVAL, cases[_i].words);
    ck_assert(learner.hash() == before);
}

/* mt_torch_check finds nothing where units are told, in both ways, also where chunks have none. */
TEST("wrong", checked) {
    prepare();
    for (bool is_script : {false, true}) {
        Learner learner(is_script ? in_script() : in_cpp());
        mt_check_report report = learner.trainer.check(Tokens(uneven).tensors);
        ck_assert_msg(report.count == 0, "%s", report.findings[0].text);
        report = learner.trainer.check(Tokens(with_gaps, 0, 12).tensors);
        ck_assert_msg(report.count == 0, "%s", report.findings[0].text);
        report = learner.trainer.check(Tokens(with_gaps, 0, 3).tensors);
        ck_assert_uint_eq(report.fault_count, 0);
        ck_contains(report.findings[0].text, "the 3 samples that were run have no units");
        report = learner.trainer.check(Tokens(with_gaps, 3, 12).tensors);
        ck_assert_msg(report.count == 0, "%s", report.findings[0].text);
    }
    Learner samples_are_units(in_cpp(
        [](const memtrain::Tensors &batch) { return static_cast<double>(batch[0].size(0)); }));
    mt_check_report report = samples_are_units.trainer.check(Tokens(uneven).tensors);
    ck_assert_uint_eq(report.fault_count, 1);
    ck_assert_int_eq(report.findings[0].kind, MT_CHECK_WEIGHTING);
}

TEST("wrong", counting) {
    at::Tensor labels = at::tensor({3, -100, 0, 7, -100, 1}, at::kLong).reshape({2, 3});
    auto count = [](const at::Tensor &t, int64_t other) {
        return memtrain::count_not(other, 0)({t});
    };
    ck_assert_double_eq(count(labels, -100), 4);
    ck_assert_double_eq(count(labels.t(), -100), 4);
    ck_assert_double_eq(count(labels.to(at::kInt), 0), 5);
    ck_assert_double_eq(count(labels.gt(0), 0), 3);
    ck_assert_double_eq(count(labels.gt(0).to(at::kFloat), 0), 3);
    ck_assert_double_eq(count(at::full({2}, 156, at::kByte), -100), 2);
    ck_assert_double_eq(count(at::empty({0}, at::kLong), 0), 0);
    Batch batch(2);
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    ck_ok(memtrain::make_model(&model, [] {
        auto description = described(std::make_shared<Speaker>(Weights()));
        description.units = memtrain::count_not(0, 2);
        return description;
    }));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_refused(mt_train_step(torch, batch.get(), nullptr, nullptr), MT_ETORCH,
               "count_not: tensor is 2; the batch has 2");
    mt_torch_free(torch);
    mt_model_free(model);
}

/* One that allocates nothing: what a batch of labels needs beside is none of a budget's business. */
TEST("wrong", counting_needs_no_memory) {
    prepare();
    const Tokens tokens(uneven);
    uint64_t requests, failed;
    memtrain::Units units = memtrain::count_not(ignored);
    ck_ok(mt_inject_oom(UINT64_MAX, 0));
    ck_assert_double_eq(units(tokens.tensors), tokens.units(0, 0) + 189);
    mt_injected(&requests, &failed);
    ck_assert_uint_le(requests, 3); /* of tokens.units() */
}

} // namespace

SUITE("shim_units")
