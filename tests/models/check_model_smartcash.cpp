/*
 * check_model_smartcash.cpp - the detector of examples/documents/models/smartcash_model.*: sizes and names of its
 * backbones, gradients in both phases, chunks that add up to the batch, and every allocation of a step that
 * fails. What it loses and how it is scored is in check_model_detection.cpp.
 */
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "cspdarknet.hpp"
#include "detector.hpp"
#include "efficientnet.hpp"
#include "smartcash_model.h"

#include <memtrain/trainer.h>

#include "networks/batches.hpp"

#include "check_shim.hpp"
#include "model_faults.hpp"

using namespace memtrain_models;

namespace {

/* ---- backbones ----------------------------------------------------------------------------------- */

int64_t elements(const torch::nn::Module &net, const std::string &begin = "") {
    int64_t count = 0;
    for (const auto &item : net.named_parameters())
        if (item.key().compare(0, begin.size(), begin) == 0) count += item.value().numel();
    return count;
}

void expect_parts(const torch::nn::Module &net, const std::string &begin,
                  const std::vector<int64_t> &parts) {
    for (size_t i = 0; i < parts.size(); i++)
        ck_assert_int_eq(elements(net, begin + std::to_string(i) + "."), parts[i]);
}

void expect_tensor(const torch::nn::Module &net, const char *name,
                   const std::vector<int64_t> &shape) {
    auto parameters = net.named_parameters(), buffers = net.named_buffers();
    const at::Tensor *t = parameters.find(name) ? parameters.find(name) : buffers.find(name);
    ck_assert_msg(t && t->sizes() == at::IntArrayRef(shape), "%s is %s", name,
                  t ? "another one" : "not there");
}

} // namespace

TEST("backbones", efficientnet_b4_is_torchvisions) {
    EfficientNet net(EfficientNetOptions{1.4, 1.8, 0.2, true});
    expect_parts(net, "features.",
                 {1392, 4146, 66238, 197586, 1059898, 2306724, 8636228, 4470004, 806400});
    ck_assert_int_eq(elements(net), 17548616);
    ck_assert_uint_eq(net.parameters().size(), 416);
    ck_assert_uint_eq(net.parameters().size() + net.buffers().size(), 704);
    expect_tensor(net, "features.0.0.weight", {48, 3, 3, 3});
    expect_tensor(net, "features.0.1.num_batches_tracked", {});
    expect_tensor(net, "features.1.0.block.0.0.weight", {48, 1, 3, 3});
    expect_tensor(net, "features.1.0.block.1.fc1.weight", {12, 48, 1, 1});
    expect_tensor(net, "features.1.0.block.2.1.running_var", {24});
    expect_tensor(net, "features.4.5.block.2.fc2.bias", {672});
    expect_tensor(net, "features.7.1.block.3.0.weight", {448, 2688, 1, 1});
    expect_tensor(net, "features.8.0.weight", {1792, 448, 1, 1});
    ck_assert_int_eq(elements(net) - elements(net, "features.8."), 16742216);
}

TEST("backbones", efficientnet_b0_is_torchvisions) {
    EfficientNet net(EfficientNetOptions{1, 1, 0.2, true});
    ck_assert_int_eq(elements(net), 4007548);
    ck_assert_int_eq(elements(EfficientNet(EfficientNetOptions{1, 1})), 4007548 - 412160);
    expect_tensor(net, "features.8.0.weight", {1280, 320, 1, 1});
}

TEST("backbones", cspdarknet_is_timms) {
    CspDarknet net;
    ck_assert_int_eq(elements(net), 26617184);
    expect_parts(net, "stages.", {60224, 193920, 1758976, 7024128, 17579008});
    expect_tensor(net, "stem.conv1.conv.weight", {32, 3, 3, 3});
    expect_tensor(net, "stem.conv1.bn.running_mean", {32});
    expect_tensor(net, "stages.0.conv_down.conv.weight", {64, 32, 3, 3});
    expect_tensor(net, "stages.0.conv_exp.conv.weight", {128, 64, 1, 1});
    expect_tensor(net, "stages.0.blocks.0.conv1.conv.weight", {32, 64, 1, 1});
    expect_tensor(net, "stages.2.blocks.7.conv2.bn.weight", {128});
    expect_tensor(net, "stages.4.conv_transition_b.conv.weight", {512, 512, 1, 1});
    expect_tensor(net, "stages.4.conv_transition.bn.bias", {1024});
}

static const smartcash_backbone small_ones[] = {SMARTCASH_EFFICIENTNET_B0,
                                                SMARTCASH_CSPDARKNET_SMALL};

namespace {

std::shared_ptr<Backbone> small_backbone(int i) {
    if (small_ones[i] == SMARTCASH_EFFICIENTNET_B0)
        return std::make_shared<EfficientNet>(EfficientNetOptions{1, 1, 0});
    return std::make_shared<CspDarknet>(CspDarknetOptions{0.25, {1, 1, 2, 2, 1}});
}

constexpr int64_t side = 64, classes = 4, most_boxes = 3;

DetectorOptions head() {
    return {classes, 64, side, {0.25F, 0.35F, 0.35F, 0.5F, 0.5F, 0.6F}};
}

memtrain::Tensors scenes(int64_t count) {
    return networks::card_scenes(count, side, classes, most_boxes);
}

void near(double actual, double expected) {
    ck_assert_msg(std::abs(actual - expected) < 1e-5, "%.8g instead of %.8g", actual, expected);
}

void seed() {
    at::set_num_threads(1);
    torch::manual_seed(3);
}

} // namespace

TEST_LOOP("backbones", maps_have_the_right_sizes, LENGTH(small_ones)) {
    seed();
    auto backbone = small_backbone(_i);
    Maps maps = backbone->maps(at::rand({1, 3, 2 * side, side}));
    ck_assert(maps.fine.sizes() == at::IntArrayRef({1, backbone->fine_channels, 8, 4}));
    ck_assert(maps.coarse.sizes() == at::IntArrayRef({1, backbone->coarse_channels, 4, 2}));
}

/* Stochastic depth leaves a block out whole, and what stays is as large on average. */
TEST("backbones", blocks_are_left_out_by_the_sample) {
    seed();
    MBConv block(MBConvOptions{8, 8, 1, 3, 1, 0.5});
    at::Tensor x = at::rand({64, 8, 4, 4});
    at::Tensor y = (block(x) - x).flatten(1).abs().sum(1);
    int64_t left_out = y.eq(0).sum().item<int64_t>();
    ck_assert_int_gt(left_out, 16);
    ck_assert_int_lt(left_out, 48);
    block->eval();
    ck_assert_int_eq((block(x) - x).flatten(1).abs().sum(1).eq(0).sum().item<int64_t>(), 0);
}

/* ---- the network ---------------------------------------------------------------------------------- */

namespace {

at::Tensor loss_of(Detector &net, const memtrain::Tensors &batch) {
    DetectionLoss loss = detection_loss(net.forward(batch[0]), batch[1], net.anchors);
    return (loss.box + loss.object + loss.label).mean();
}

bool is_head(const std::string &name) {
    return name.compare(0, 4, "head") == 0;
}

} // namespace

TEST_LOOP("network", gradients_reach_what_is_trained, 2 * LENGTH(small_ones)) {
    seed();
    bool frozen = _i % 2;
    Detector net(small_backbone(_i / 2), head());
    for (auto &item : net.named_parameters())
        item.value().set_requires_grad(!frozen || is_head(item.key()));
    loss_of(net, scenes(4)).backward();
    for (const auto &item : net.named_parameters()) {
        const at::Tensor &gradient = item.value().grad();
        bool is_there = gradient.defined() && gradient.abs().max().item<double>() > 0;
        ck_assert_msg(is_there == (!frozen || is_head(item.key())), "%s", item.key().c_str());
    }
}

/* Running statistics stay while the backbone is frozen, and move when it is not. */
TEST_LOOP("network", a_frozen_backbone_is_in_evaluation, LENGTH(small_ones)) {
    seed();
    Detector net(small_backbone(_i), head());
    auto batch = scenes(4);
    auto freeze = [&](bool on) {
        for (auto &item : net.named_parameters())
            item.value().set_requires_grad(!on || is_head(item.key()));
    };
    auto statistics = [&] {
        at::Tensor sum = at::zeros({});
        for (const auto &item : net.named_buffers())
            if (item.key().find("running_mean") != std::string::npos)
                sum += item.value().abs().sum();
        return sum.item<double>();
    };
    freeze(true);
    net.train();
    loss_of(net, batch);
    near(statistics(), 0);
    freeze(false);
    loss_of(net, batch);
    ck_assert_double_gt(statistics(), 0);
    net.eval();
    double before = statistics();
    loss_of(net, batch);
    near(statistics(), before);
}

TEST("network", options_are_checked) {
    smartcash_model_options options = SMARTCASH_MODEL_OPTIONS_INIT;
    mt_model *model = nullptr;
    options.backbone = static_cast<smartcash_backbone>(5);
    ck_refused(smartcash_model_new(&options, &model), MT_EINVAL, "backbone is 5");
    options = SMARTCASH_MODEL_OPTIONS_INIT;
    options.side = 100;
    ck_refused(smartcash_model_new(&options, &model), MT_EINVAL, "side is 100");
    options = SMARTCASH_MODEL_OPTIONS_INIT;
    options.classes = 1;
    ck_status(smartcash_model_new(&options, &model), MT_EINVAL);
    options = SMARTCASH_MODEL_OPTIONS_INIT;
    options.anchors[1][1] = 0;
    ck_refused(smartcash_model_new(&options, &model), MT_EINVAL, "an anchor is");
    ck_assert_ptr_null(model);
}

/* ---- chunks, and memory that runs out -------------------------------------------------------------- */

namespace {

/* A model with its optimiser and a batch; the state can be put back. */
struct Subject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;
    std::unique_ptr<networks::TensorBatch> batch;

    Subject(smartcash_backbone backbone, int64_t count, mt_optimizer optimizer) {
        smartcash_model_options options = SMARTCASH_MODEL_OPTIONS_INIT;
        mt_torch_options torch_options = MT_TORCH_OPTIONS_INIT;
        torch_options.device = suite_device();
        ck_ok(mt_torch_init(nullptr));
        seed();
        options.backbone = backbone;
        options.side = side;
        options.classes = classes;
        options.least_chunk = 1;
        torch_options.optimizer = optimizer;
        ck_ok(smartcash_model_new(&options, &model));
        ck_ok(mt_torch_new(model, &torch_options, &torch));
        ck_ok(mt_torch_backend(torch, &backend));
        batch = std::make_unique<networks::TensorBatch>(scenes(count));
    }
    ~Subject() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;

    void freeze(smartcash_backbone backbone) const {
        for (const char *const *part = smartcash_model_parts(backbone); *part; part++)
            ck_ok(mt_torch_freeze(torch, *part, 1));
    }
    static mt_status keep(void *user, const char *, mt_tensor *handle) {
        static_cast<std::vector<at::Tensor> *>(user)->push_back(
            memtrain::tensor(handle).detach().clone());
        return MT_OK;
    }
    static mt_status put_back(void *user, const char *, mt_tensor *handle) {
        auto &next = *static_cast<const at::Tensor **>(user);
        memtrain::tensor(handle).detach().copy_(*next++);
        return MT_OK;
    }
    std::vector<at::Tensor> state() const {
        std::vector<at::Tensor> list;
        ck_ok(mt_torch_visit_state(torch, keep, &list));
        return list;
    }
    void restore(const std::vector<at::Tensor> &list) const {
        const at::Tensor *next = list.data();
        ck_ok(mt_torch_visit_state(torch, put_back, &next));
        seed();
    }
    mt_status step(const std::vector<size_t> &chunks, mt_step_report *report) const {
        mt_trainer *trainer = nullptr;
        ck_ok(mt_trainer_new(&backend, nullptr, &trainer));
        ck_ok(mt_trainer_set_chunks(trainer, chunks.data(), chunks.size()));
        mt_status status = mt_trainer_step(trainer, batch->get(), report);
        mt_trainer_free(trainer);
        return status;
    }
};

bool equal(const std::vector<at::Tensor> &a, const std::vector<at::Tensor> &b) {
    bool all = a.size() == b.size();
    for (size_t i = 0; all && i < a.size(); i++) all = a[i].equal(b[i]);
    return all;
}

const std::vector<std::vector<size_t>> cuts = {{6}, {1, 2, 3}, {5, 1}, {1, 1, 1, 1, 1, 1}};

} // namespace

/* While the backbone is frozen no picture is computed with another: any chunks give the batch's step. */
TEST_LOOP("memory", chunks_add_up_to_the_batch, LENGTH(small_ones)) {
    Subject subject(small_ones[_i], 6, MT_SGD);
    subject.freeze(small_ones[_i]);
    std::vector<at::Tensor> before = subject.state(), expected;
    mt_step_report whole = MT_STEP_REPORT_INIT;
    for (const auto &chunks : cuts) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        subject.restore(before);
        ck_ok(subject.step(chunks, &report));
        std::vector<at::Tensor> after = subject.state();
        if (expected.empty()) {
            expected = after;
            whole = report;
            ck_assert(!equal(after, before));
        }
        near(report.loss, whole.loss);
        near(report.metrics[SMARTCASH_THERE], whole.metrics[SMARTCASH_THERE]);
        near(report.metrics[SMARTCASH_REPORTED], whole.metrics[SMARTCASH_REPORTED]);
        for (size_t i = 0; i < after.size(); i++)
            ck_assert_msg(after[i].allclose(expected[i], 1e-4, 1e-6), "tensor %zu", i);
    }
}

/*
 * Every 701st request of the first two of these in `make check`; of all four, and all requests, in
 * `make check-oom`: each network, kind of fault and phase comes twice.
 */
TEST_LOOP("memory", a_fault_changes_nothing, (is_slow() ? 2 : 1) * LENGTH(small_ones)) {
    static const char *const names[] = {"efficientnet-b0", "cspdarknet-small",
                                        "efficientnet-b0, frozen", "cspdarknet-small, frozen"};
    const smartcash_backbone backbone = small_ones[_i % 2];
    const int frozen = _i / 2, persistent = (_i % 2) ^ frozen;
    Subject subject(backbone, 5, MT_ADAMW);
    if (frozen) subject.freeze(backbone);
    model_faults::every_allocation_fails(
        {subject.torch, subject.backend, subject.batch->get(), {3, 2}}, 701, persistent, names[_i]);
}

int main() {
    tcase_set_timeout(suite_case_named("memory"), 1800);
    return suite_run_named("model_smartcash");
}
