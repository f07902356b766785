/*
 * check_efficientnet.cpp - the EfficientNet-B4 of examples/documents/models against torchvision's.
 *
 * The expected numbers are those of tests/golden/efficientnet_b4.bin, written by gen_efficientnet.py beside
 * it in float64, as those of check_resnet.cpp.
 */
#include "efficientnet.hpp"
#include "golden.hpp"

#include <ATen/Parallel.h>
#include <cmath>

#include "golden_checks.hpp" /* last: check.h has macros with short names */

using namespace golden_checks;
using memtrain_models::EfficientNet;
using memtrain_models::EfficientNetOptions;
using memtrain_models::Maps;

static const int64_t size = 96, batch = 2;

static const EfficientNetOptions b4 = {1.4, 1.8, 0, true};

static golden::File golden_file() {
    at::set_num_threads(1);
    return golden::File("tests/golden/efficientnet_b4.bin");
}

TEST("structure", names_and_shapes) {
    const golden::File file = golden_file();
    const auto net = std::make_shared<EfficientNet>(b4); /* named_modules() asks for that */
    same_lines(describe_state(*net), file.text("state"));
    same_lines(describe_parameters(*net), file.text("parameters"));
}

/*
 * Largest differences that are allowed, as in check_resnet.cpp. float32 is for the shape of the run, float64
 * for the numbers.
 */
struct Tolerance {
    at::ScalarType type;
    double eval, train, gradient, gradient_element, buffer;
};

static const Tolerance tolerances[] = {
    {at::kDouble, 1e-10, 1e-10, 1e-8, 1e-8, 1e-10},
    {at::kFloat, 1e-3, 1e-1, HUGE_VAL, HUGE_VAL, 1e-2},
};

static at::Tensor mean_product(const char *name, const at::Tensor &maps) {
    return (maps * golden::uniform(name, maps.sizes()).to(maps.scalar_type())).mean();
}

static void map_within(const golden::File &file, const std::string &mode, const char *name,
                       const at::Tensor &maps, double tolerance) {
    const golden::Difference off =
        golden::digest_difference(name, maps, file.tensor(mode + "." + name));
    within(mode + "." + name + ", norm", off.norm, tolerance);
    within(mode + "." + name + ", an element", off.element, tolerance);
}

/* The loss of one forward pass, after it and the maps were compared. */
static at::Tensor loss_as_expected(EfficientNet &net, const golden::File &file,
                                   const std::string &mode, at::ScalarType type, double tolerance) {
    const Maps maps = net.maps(golden::uniform("images", {batch, 3, size, size}).to(type));
    const at::Tensor loss = mean_product("fine", maps.fine) + mean_product("coarse", maps.coarse);
    map_within(file, mode, "fine", maps.fine, tolerance);
    map_within(file, mode, "coarse", maps.coarse, tolerance);
    within(mode + ".loss",
           std::abs(loss.item<double>() - file.tensor(mode + ".loss").item<double>()), tolerance);
    return loss;
}

TEST_LOOP("numbers", passes, LENGTH(tolerances)) {
    const Tolerance &allowed = tolerances[_i];
    const golden::File file = golden_file();
    EfficientNet net(b4);
    golden::fill(net);
    net.to(allowed.type);

    net.eval();
    loss_as_expected(net, file, "eval", allowed.type, allowed.eval);
    net.train();
    loss_as_expected(net, file, "train", allowed.type, allowed.train).backward();

    for (const auto &item : net.named_parameters())
        digest_within(file, "grad", item.key(), item.value().grad(), allowed.gradient,
                      allowed.gradient_element);
    for (const auto &item : net.named_buffers())
        digest_within(file, "buffer", item.key(), item.value(), allowed.buffer, allowed.buffer);
}

SUITE("efficientnet")
