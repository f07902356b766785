/*
 * check_adopt.cpp - examples/adopt.cpp against examples/adopt_before.cpp, the same loop with libtorch alone:
 * gradients, parameters, losses and accuracies are equal, and a budget that the one keeps stops the other.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <memtrain/schedule.h>
#include <memtrain/trainer.hpp>
#include <torch/torch.h>

extern "C" {
#include "plain/digits.h"
#include "plain/help.h"
}

/* What the programs include stands above, outside of these namespaces. */
#define main program
namespace before {
#include "adopt_before.cpp"
}
namespace adopt {
#include "adopt.cpp"
}
#undef main

#include "suite.h" /* last: its macro fail would break C++ headers */

extern "C" {
#include "program_path.h"
}

namespace {

using torch::data::samplers::RandomSampler;
using torch::data::samplers::SequentialSampler;

constexpr size_t whole = 256, pictures = 600; /* two whole batches and a last one of 88 */
constexpr size_t wide = 256 << 20, narrow = 8 << 20;
constexpr double lr = 0.1, momentum = 0.9;

/* What a run has come to. */
struct Run {
    std::vector<double> figures; /* of each epoch: loss, loss and accuracy of the test */
    std::vector<at::Tensor> parameters;

    template <class Net, class Training, class Testing>
    void epochs(Net &net, Training &&training, Testing &&testing) {
        for (int epoch = 0; epoch < 2; epoch++) {
            figures.push_back(training());
            auto [loss, accuracy] = testing();
            figures.push_back(loss);
            figures.push_back(accuracy);
        }
        for (const at::Tensor &parameter : net.parameters())
            parameters.push_back(parameter.detach().clone());
    }
};

void start(size_t budget) {
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_device_set_budget("cpu", budget));
    torch::manual_seed(1);
}

Run run_before(double dropout) {
    Run run;
    start(wide);
    auto net = std::make_shared<before::Net>(dropout);
    auto training = before::loader<RandomSampler>({1, pictures}, whole);
    auto testing = before::loader<SequentialSampler>({2, 100}, 50);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(lr).momentum(momentum));
    run.epochs(
        *net, [&] { return before::train(*net, *training, optimizer); },
        [&] { return before::test(*net, *testing); });
    return run;
}

/* A trainer of the program's whose chunks have at most so many samples; 0: chosen. */
memtrain::Trainer trainer_of(const std::shared_ptr<adopt::Net> &net, size_t chunk) {
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
    policy.micro_batch = chunk;
    options.policy = &policy;
    auto loss_of = [](adopt::Net &model, const memtrain::Tensors &batch) {
        return memtrain::Output{torch::nll_loss(model.forward(batch[0]), batch[1]), {}};
    };
    return memtrain::Trainer(memtrain::model(net, {}, loss_of), memtrain::sgd(lr, momentum),
                             &options);
}

Run run_adopt(double dropout, size_t chunk) {
    Run run;
    start(wide);
    auto net = std::make_shared<adopt::Net>(dropout);
    auto training = adopt::loader<RandomSampler>({1, pictures}, whole);
    auto testing = adopt::loader<SequentialSampler>({2, 100}, 50);
    memtrain::Trainer trainer = trainer_of(net, chunk);
    run.epochs(
        *net, [&] { return adopt::train(*net, *training, trainer); },
        [&] { return adopt::test(*net, *testing); });
    return run;
}

/* The largest difference, as a share of the largest number of its tensor. */
double distance(const std::vector<at::Tensor> &a, const std::vector<at::Tensor> &b) {
    double worst = 0;
    ck_assert_uint_eq(a.size(), b.size());
    for (size_t i = 0; i < a.size(); i++) {
        at::Tensor apart = (a[i] - b[i]).abs().max() / b[i].abs().max();
        ck_assert_double_finite(apart.item<double>());
        worst = std::max(worst, apart.item<double>());
    }
    return worst;
}

/* ---- the same numbers -------------------------------------------------------------------------- */

/* Figures and parameters are at most so far apart. */
void check_runs(const Run &ours, const Run &plain, double bound) {
    double figures = 0, parameters = distance(ours.parameters, plain.parameters);
    ck_assert_uint_eq(ours.figures.size(), plain.figures.size());
    for (size_t i = 0; i < plain.figures.size(); i++) {
        ck_assert_double_finite(ours.figures[i]);
        figures = std::max(figures, std::abs(ours.figures[i] - plain.figures[i]));
    }
    ck_assert_msg(figures <= bound && parameters <= bound,
                  "figures are %g apart, parameters %g, instead of %g", figures, parameters, bound);
}

/* Gradients are the same bits; libtorch's fused update rounds the last elements of a tensor otherwise on some CPUs. */
TEST("numbers", one_chunk_a_batch_is_the_same_loop) {
    check_runs(run_adopt(0.25, whole), run_before(0.25), 2e-7);
}

/* Which numbers dropout draws depends on the chunks, so it is off. */
TEST("numbers", chunks_add_up_to_the_batch) {
    check_runs(run_adopt(0, 86), run_before(0), 2e-6);
}

memtrain::Tensors first_batch() {
    auto loader = before::loader<SequentialSampler>({1, whole}, whole);
    auto batch = *loader->begin();
    return {batch.data, batch.target};
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module &net) {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor &parameter : net.parameters())
        gradients.push_back(parameter.grad().clone());
    return gradients;
}

std::vector<at::Tensor> gradients_before(double dropout) {
    start(wide);
    memtrain::Tensors batch = first_batch();
    before::Net net(dropout);
    torch::nll_loss(net.forward(batch[0]), batch[1]).backward();
    return gradients_of(net);
}

std::vector<at::Tensor> gradients_adopt(double dropout, size_t chunk) {
    start(wide);
    memtrain::Tensors tensors = first_batch();
    auto net = std::make_shared<adopt::Net>(dropout);
    memtrain::Trainer trainer = trainer_of(net, chunk);
    memtrain::detail::Handles handles(tensors);
    mt_torch_batch data = {sizeof data, handles.get(), tensors.size()};
    mt_batch batch = {sizeof batch, &data, whole, 0};
    ck_ok(mt_begin(trainer.torch(), &batch));
    for (size_t first = 0; first < whole; first += chunk) {
        mt_chunk_result result = {};
        result.size = sizeof result;
        size_t count = std::min(chunk, whole - first);
        ck_ok(mt_accumulate(trainer.torch(), first, count,
                            static_cast<double>(count) / static_cast<double>(whole), &result));
    }
    std::vector<at::Tensor> gradients = gradients_of(*net);
    ck_ok(mt_rollback(trainer.torch()));
    return gradients;
}

TEST("numbers", gradients_of_a_step) {
    ck_assert_double_eq(distance(gradients_adopt(0.25, whole), gradients_before(0.25)), 0);
    ck_assert_double_le(distance(gradients_adopt(0, 86), gradients_before(0)), 1e-5);
}

/* docs/adopt.md has these rates: libtorch's StepLR is a call behind mt_schedule. */
TEST("numbers", step_lr_is_a_call_behind) {
    at::Tensor parameter = torch::zeros({1}).requires_grad_();
    torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(1.0));
    torch::optim::StepLR scheduler(optimizer, 2, 0.5);
    mt_schedule schedule = MT_SCHEDULE_INIT;
    schedule.kind = MT_SCHEDULE_STEP;
    schedule.rate = 1.0;
    schedule.step_every = 2;
    schedule.step_factor = 0.5;
    const double rates[] = {1, 1, 1, 0.5, 0.5, 0.25};
    for (uint64_t epoch = 0; epoch < 6; epoch++) {
        ck_assert_double_eq(optimizer.param_groups()[0].options().get_lr(), rates[epoch]);
        ck_assert_double_eq(mt_schedule_rate(&schedule, epoch ? epoch - 1 : 0), rates[epoch]);
        scheduler.step();
    }
}

/* ---- the budget -------------------------------------------------------------------------------- */

/* An epoch of the loop with libtorch alone; the most bytes of tensors in it. */
size_t peak_before(size_t budget) {
    start(budget);
    auto net = std::make_shared<before::Net>();
    auto training = before::loader<RandomSampler>({1, pictures}, whole);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(lr));
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(mt_device_reset_peak("cpu"));
    before::train(*net, *training, optimizer);
    ck_ok(mt_device_memory("cpu", &memory));
    return memory.peak_bytes;
}

TEST("budget", the_plain_loop_exceeds_the_budget) {
    size_t peak = peak_before(wide);
    ck_assert_msg(peak > 2 * narrow, "%zu bytes", peak);
    bool refused = false;
    try {
        peak_before(narrow);
    } catch (const c10::OutOfMemoryError &) {
        refused = true;
    }
    ck_assert(refused);
}

TEST("budget", chunks_keep_the_budget) {
    start(narrow);
    auto net = std::make_shared<adopt::Net>();
    auto training = adopt::loader<RandomSampler>({1, pictures}, whole);
    memtrain::Trainer trainer = trainer_of(net, 0);
    adopt::train(*net, *training, trainer);
    mt_run_report run = trainer.summary();
    ck_assert_uint_eq(run.samples_trained, pictures);
    ck_assert_uint_eq(run.budget_bytes, narrow);
    ck_assert_uint_le(run.peak_bytes, narrow);
    ck_assert_uint_lt(run.largest_chunk, whole);
}

TEST("budget", a_step_that_does_not_fit_changes_nothing) {
    start(narrow);
    memtrain::Tensors batch = first_batch();
    auto net = std::make_shared<adopt::Net>();
    memtrain::Trainer trainer = trainer_of(net, whole);
    at::Tensor weight = net->fc1->weight.detach().clone();
    mt_status status = MT_OK;
    std::string line;
    try {
        trainer.step(batch);
    } catch (const memtrain::Error &error) {
        status = error.status;
        line = error.what();
    }
    ck_assert_int_eq(status, MT_EDEVMEM);
    ck_assert(!line.empty());
    ck_assert(torch::equal(net->fc1->weight, weight));
}

/* ---- memtrain/trainer.hpp ---------------------------------------------------------------------- */

TEST("trainer", evaluation_is_that_of_the_loop) {
    start(narrow);
    memtrain::Tensors batch = first_batch();
    auto net = std::make_shared<adopt::Net>();
    memtrain::Trainer made = trainer_of(net, 0), trainer = std::move(made);
    mt_eval_report report = trainer.evaluate(batch);
    auto loader = adopt::loader<SequentialSampler>({1, whole}, 50);
    ck_assert_uint_eq(report.samples, whole);
    ck_assert_double_eq_tol(report.loss, adopt::test(*net, *loader).first, 1e-6);
}

TEST("trainer", what_is_wrong_is_thrown) {
    start(wide);
    memtrain::Trainer trainer = trainer_of(std::make_shared<adopt::Net>(), 0);
    for (const memtrain::Tensors &batch :
         {memtrain::Tensors{}, memtrain::Tensors{torch::tensor(1.0)}}) {
        mt_status status = MT_OK;
        try {
            trainer.step(batch);
        } catch (const memtrain::Error &error) {
            status = error.status;
        }
        ck_assert_int_eq(status, MT_EINVAL);
    }
}

/* ---- the programs ------------------------------------------------------------------------------ */

/* What build/examples/NAME prints. */
std::string output_of(const std::string &name, const std::string &flags = "") {
    char self[512], text[512];
    std::string output;
    ck_assert(ex_program_path(nullptr, self, sizeof self));
    std::string path = std::string(self, strrchr(self, '/')) + "/../examples/" + name;
    FILE *pipe = popen(("OMP_NUM_THREADS=1 '" + path + "'" + flags + " 2>&1").c_str(), "r");
    ck_assert_ptr_nonnull(pipe);
    while (fgets(text, sizeof text, pipe)) output += text;
    ck_assert_msg(pclose(pipe) == 0, "%s: %s", name.c_str(), output.c_str());
    return output;
}

/* Reads the lines of six epochs; the rest. Dropout draws other numbers for other chunks. */
std::string after_epochs(const std::string &output) {
    size_t at = 0;
    double loss, test_loss, accuracy = 0;
    for (int epoch = 1; epoch <= 6; epoch++) {
        int number = 0;
        int read = sscanf(output.c_str() + at, "epoch %d loss %lf test loss %lf accuracy %lf %%",
                          &number, &loss, &test_loss, &accuracy);
        ck_assert_msg(read == 4 && number == epoch, "%s", output.c_str());
        at = output.find('\n', at) + 1;
    }
    ck_assert_msg(accuracy > 50, "%s", output.c_str());
    return output.substr(at);
}

TEST("programs", both_programs_learn) {
    size_t smallest, largest, peak, budget;
    ck_assert(after_epochs(output_of("adopt_before")).empty());
    std::string last = after_epochs(output_of("adopt"));
    ck_assert_int_eq(sscanf(last.c_str(), "chunks of %zu to %zu, peak %zu of %zu bytes, OOMs met: ",
                            &smallest, &largest, &peak, &budget),
                     4);
    ck_assert_uint_lt(largest, whole);
    ck_assert_uint_le(peak, budget);
    ck_assert_uint_eq(budget, narrow);
}

/* Nothing is trained. */
TEST("programs", help_is_told) {
    for (const char *name : {"adopt", "adopt_before"}) {
        std::string start = std::string(name) + ": a small network learns to tell digits\n";
        ck_assert_str_eq(output_of(name, " --help").c_str(),
                         (start + "\nUsage: " + name + "\n").c_str());
    }
}

} // namespace

SUITE("adopt")
