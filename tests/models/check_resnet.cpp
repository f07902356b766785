/*
 * check_resnet.cpp - the ResNets of examples/documents/models against torchvision's.
 *
 * The expected numbers are those of tests/golden/resnet*.bin, written by gen_resnet.py beside them.
 * They were computed in float64. The network is run in float64, where any mistake shows, and in
 * float32, as it is used.
 *
 * libtorch is used in the tests only: each is a process of its own, and a fork of one that had
 * started libtorch's threads would hang.
 */
#include "resnet.hpp"
#include "golden.hpp"

#include <ATen/Parallel.h>
#include <cmath>

#include "golden_checks.hpp" /* last: check.h has macros with short names */

using namespace golden_checks;
using memtrain_models::ResNet;
using memtrain_models::ResNetOptions;

static const int64_t classes = 101, size = 64;

static const struct {
    int depth;
    int64_t batch;
    int64_t elements, parameters, entries; /* at 1000 classes */
} networks[] = {
    {18, 4, 11689512, 62, 122},
    {34, 2, 21797672, 110, 218},
    {50, 2, 25557032, 161, 320},
};

static golden::File golden_file(int i) {
    at::set_num_threads(1); /* the order of sums, and the time, are then always the same */
    return golden::File("tests/golden/resnet" + std::to_string(networks[i].depth) + ".bin");
}

/* ---- what there is -------------------------------------------------------------------------- */

TEST_LOOP("structure", names_and_shapes, LENGTH(networks)) {
    const golden::File file = golden_file(_i);
    const ResNet net(ResNetOptions{networks[_i].depth, classes});
    same_lines(describe_state(*net), file.text("state"));
    same_lines(describe_parameters(*net), file.text("parameters"));
}

TEST_LOOP("structure", counts, LENGTH(networks)) {
    at::set_num_threads(1);
    const ResNet net(ResNetOptions{networks[_i].depth, 1000});
    const std::vector<at::Tensor> parameters = net->parameters();
    int64_t elements = 0;
    for (const at::Tensor &parameter : parameters) elements += parameter.numel();
    ck_assert_int_eq(elements, networks[_i].elements);
    ck_assert_int_eq(parameters.size(), networks[_i].parameters);
    ck_assert_int_eq(parameters.size() + net->buffers().size(), networks[_i].entries);
}

TEST("structure", depth_refused) {
    bool refused = false;
    try {
        ResNet net(ResNetOptions{19, classes});
    } catch (const c10::ValueError &) {
        refused = true;
    }
    ck_assert(refused);
}

/* ---- what it computes ----------------------------------------------------------------------- */

/*
 * Largest differences that are allowed, in the units of golden.hpp: seven times the largest or more
 * that were seen with and without oneDNN, and with the kernels for AVX-512, AVX2 and no vectors.
 *
 * float64: the same sums in another order, 1e-16 each. Seen: 4e-13 (logits), 5e-12 (gradients).
 *
 * float32 rounds by 6e-8. With running statistics it stays near that: 2e-6. Statistics of the batch
 * make it more, for they divide by deviations of 8 numbers in layer4 (16 for ResNet-18), at 2 x 2
 * pixels: 2e-4 for the logits, 1e-5 for the loss, 3e-5 for the running statistics. In the gradients
 * an input of a relu that is this close to zero can fall on its other side; what comes from there
 * is then present or missing as a whole. Norms were off by 7e-3. Single elements were off by 5e-2
 * and may be by any amount, so they are compared in float64 alone, by the same code.
 */
struct Tolerance {
    at::ScalarType type;
    double eval_logits, train_logits, loss, gradient, gradient_element, buffer;
};

static const Tolerance tolerances[] = {
    {at::kDouble, 1e-11, 1e-11, 1e-12, 1e-10, 1e-10, 1e-11},
    {at::kFloat, 2e-5, 2e-3, 1e-4, 5e-2, HUGE_VAL, 3e-4},
};

/*
 * The same random numbers are drawn in the same order. The vectorised log and cos that make normal
 * ones of them differ in the last bits: 3e-5 was seen.
 */
TEST_LOOP("numbers", initial_values, LENGTH(networks)) {
    const golden::File file = golden_file(_i);
    torch::manual_seed(0);
    const ResNet net(ResNetOptions{networks[_i].depth, classes});
    for (const auto &item : net->named_parameters())
        digest_within(file, "init", item.key(), item.value(), 3e-4, 3e-4);
}

/* The loss of one forward pass, after it and the logits were compared. */
static at::Tensor loss_as_expected(ResNet &net, const golden::File &file, const std::string &mode,
                                   int64_t batch, const Tolerance &allowed) {
    const at::Tensor images = golden::uniform("images", {batch, 3, size, size}).to(allowed.type);
    const at::Tensor targets = golden::classes("targets", batch, classes);
    const at::Tensor logits = net->forward(images);
    const at::Tensor loss = at::cross_entropy_loss(logits, targets);
    within(mode + ".logits", golden::difference(logits, file.tensor(mode + ".logits")),
           net->is_training() ? allowed.train_logits : allowed.eval_logits);
    within(mode + ".loss", golden::difference(loss, file.tensor(mode + ".loss")), allowed.loss);
    return loss;
}

/* Each network in each type, _i counting through both. */
TEST_LOOP("numbers", passes, LENGTH(networks) * LENGTH(tolerances)) {
    const int network = _i / LENGTH(tolerances);
    const Tolerance &allowed = tolerances[_i % LENGTH(tolerances)];
    const golden::File file = golden_file(network);
    ResNet net(ResNetOptions{networks[network].depth, classes});
    golden::fill(*net); /* first: to() makes floating-point buffers of the others, too */
    net->to(allowed.type);

    net->eval();
    loss_as_expected(net, file, "eval", networks[network].batch, allowed);
    net->train();
    loss_as_expected(net, file, "train", networks[network].batch, allowed).backward();

    for (const auto &item : net->named_parameters())
        digest_within(file, "grad", item.key(), item.value().grad(), allowed.gradient,
                      allowed.gradient_element);
    for (const auto &item : net->named_buffers())
        digest_within(file, "buffer", item.key(), item.value(), allowed.buffer, allowed.buffer);
}

int main() {
    tcase_set_timeout(suite_case_named("structure"), 120);
    tcase_set_timeout(suite_case_named("numbers"), 120);
    return suite_run_named("resnet");
}
