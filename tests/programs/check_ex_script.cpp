/*
 * check_ex_script.cpp - build/examples/train_script as a person runs it: a TorchScript file in a budget, memory
 * that runs out, what is written and read again, files and flags that are wrong.
 */
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <ATen/ops/rand.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memtrain/script.h>

extern "C" {
#include "cli.h"
}

#include "suite.h"

namespace jit = torch::jit;

namespace {

constexpr int64_t CHANNELS = 16;

void run(int status, std::vector<const char *> arguments) {
    arguments.push_back(nullptr);
    cli_expect(status, arguments.data());
}

std::string file(const char *name) {
    return std::string(cli_root) + "/" + name;
}

/* A small classifier, written as torch.jit.script writes one. */
std::string net_of(int64_t classes) {
    std::string path = file("net.pt");
    jit::Module net("Net");
    auto add = [&](const char *name, const at::Tensor &tensor) {
        net.register_parameter(name, tensor.requires_grad_(), false);
    };
    net.register_attribute("training", c10::BoolType::get(), true);
    add("conv", at::rand({CHANNELS, 3, 3, 3}).sub_(0.5));
    add("scale", at::ones({CHANNELS}));
    add("shift", at::zeros({CHANNELS}));
    add("linear", at::rand({classes, CHANNELS}).sub_(0.5));
    net.register_buffer("mean", at::zeros({CHANNELS}));
    net.register_buffer("var", at::ones({CHANNELS}));
    net.define(R"(
def forward(self, x):
    x = torch.conv2d(x, self.conv, None, [1, 1], [1, 1])
    x = torch.batch_norm(x, self.scale, self.shift, self.mean, self.var, self.training, 0.1, 1e-05, True)
    x = torch.dropout(torch.relu(x).mean([2, 3]), 0.1, self.training)
    return torch.linear(x, self.linear)
)");
    net.save(path);
    return path;
}

const std::vector<const char *> small = {
    "--device",        "cpu",      "--image-size", "32",       "--threads", "1",
    "--deterministic", "--budget", "8MiB",         "--epochs", "1",         "--model"};

std::vector<const char *> with(const std::string &model, const std::vector<const char *> &more) {
    std::vector<const char *> list = small;
    list.push_back(model.c_str());
    list.insert(list.end(), more.begin(), more.end());
    return list;
}

double number_after(const char *text, const char *word) {
    double value = -1;
    const char *at = std::strstr(text, word);
    ck_assert_msg(at && std::sscanf(at + std::strlen(word), "%lf", &value) == 1, "%s in %s", word,
                  text);
    return value;
}

/* Chunks fit where the batch does not; the peak is below the budget; and the files are the network. */
TEST("program", it_trains_in_its_budget) {
    std::string model = net_of(8), script = file("out.pt"), weights = file("out.safetensors");
    run(0, with(model, {"--save-script", script.c_str(), "--save-weights", weights.c_str(),
                        "--trace", cli_trace}));
    ck_contains(cli_out, "net.pt at 32 pixels");
    ck_contains(cli_out, "the trained network is in ");
    ck_assert_double_le(number_after(cli_out, "peak "), number_after(cli_out, "budget "));
    ck_assert_double_lt(number_after(cli_out, "chunks of "), 32);
    ck_contains(cli_out, "; 0 OOMs met");
    jit::Module trained = jit::load(script), before = jit::load(model);
    ck_assert(!trained.attr("conv").toTensor().equal(before.attr("conv").toTensor()));
    ck_assert(!trained.attr("mean").toTensor().equal(before.attr("mean").toTensor()));
}

/* A request of the third step fails: the run ends as the one that was given its chunks from the start. */
TEST("program", memory_runs_out) {
    std::string model = net_of(8);
    run(0, with(model, {"--inject-oom", "3:9", "--trace", cli_trace}));
    ck_contains(cli_out, "; 1 OOM met");
    run(0, with(model, {"--replay", cli_trace, "--trace", cli_replayed}));
    cli_same_state();
}

/* From weights of a file: later they are those of the state. */
TEST("program", a_run_goes_on) {
    std::string state = file("run.safetensors"), weights = file("weights.safetensors");
    mt_model *other = nullptr;
    ck_ok(mt_script_load(net_of(8).c_str(), nullptr, &other));
    ck_ok(mt_model_save_weights(other, weights.c_str()));
    mt_model_free(other);
    std::string model = net_of(8);
    run(0, with(model, {"--micro-batch", "8", "--weights", weights.c_str(), "--trace", cli_trace}));
    run(0, with(model, {"--micro-batch", "8", "--weights", weights.c_str(), "--steps", "4",
                        "--save", state.c_str()}));
    run(0, with(model, {"--micro-batch", "8", "--resume", state.c_str(), "--trace", cli_replayed}));
    cli_same_state();
}

/* --check trains nothing; exit status 4 where a parameter has no gradient. */
TEST("program", check_names_what_is_wrong) {
    run(0, with(net_of(8), {"--check"}));
    ck_contains(cli_out, "checked with 6 samples: 0 faults found");
    ck_assert_ptr_null(std::strstr(cli_out, "epoch 1"));
    jit::Module net = jit::load(net_of(8));
    net.register_parameter("spare", at::ones({3}).requires_grad_(), false);
    net.save(file("net.pt"));
    run(4, with(file("net.pt"), {"--check"}));
    ck_contains(cli_out, "fault: parameter 'spare' without a gradient");
}

TEST("program", help_and_no_model) {
    run(0, {"--help"});
    ck_contains(cli_out, "train_script: a model from Python (TorchScript)");
    for (const char *word : {"--model FILE", "--save-script FILE", "--save-weights FILE"})
        ck_contains(cli_out, word);
    run(2, {"--epochs", "1"});
    ck_contains(cli_err, "train_script: --model: a TorchScript file must be given");
}

/* One line that names the flag, and nothing is trained. */
void expect_refused(const std::vector<const char *> &arguments, const char *flag,
                    const char *words) {
    run(2, arguments);
    ck_assert_msg(std::strncmp(cli_err, "train_script: --", 16) == 0, "%s", cli_err);
    ck_contains(cli_err, flag);
    ck_contains(cli_err, words);
    ck_assert_ptr_eq(std::strchr(cli_err, '\n'), cli_err + std::strlen(cli_err) - 1);
}

const struct {
    const char *bytes, *words;
} wrong_files[] = {
    {"PK\003\004 cut off", "is an archive that is cut off or damaged"},
};

TEST_LOOP("program", wrong_files_exit_2, LENGTH(wrong_files)) {
    std::string path = file("wrong.pt");
    std::ofstream(path, std::ios::binary) << wrong_files[_i].bytes;
    expect_refused(with(path, {}), "--model: ", wrong_files[_i].words);
}

TEST("program", wrong_values_exit_2) {
    std::string model = net_of(5), none = file("none/out"), folder = cli_root;
    expect_refused(with(model, {}), "--model: ", "gives logits of 5 classes, and the data has 8");
    expect_refused(with(model, {"--save-script", none.c_str()}), "--save-script: ", "cannot write");
    expect_refused(with(model, {"--save-weights", folder.c_str()}),
                   "--save-weights: ", "not a regular file");
    expect_refused(with(model, {"--weights", "a", "--resume", "b"}), "--weights: ", "--resume");
}

} // namespace

int main() {
    cli_program = "train_script";
    cli_case_named("program");
    return suite_run_named("ex_script");
}
