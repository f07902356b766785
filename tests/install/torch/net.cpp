/*
 * A model in C++ that is trained inside a memory budget: which of two numbers is the larger.
 *
 *     c++ -std=c++20 net.cpp $(pkg-config --cflags --libs memtrain-torch-cxx) -o net && ./net
 */
#include <memtrain/torch.hpp>
#include <memtrain/trainer.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <cstdio>

namespace {

constexpr size_t samples = 512;

struct Net : torch::nn::Module {
    torch::nn::Linear linear{register_module("linear", torch::nn::Linear(2, 2))};
    at::Tensor forward(const at::Tensor &x) { return linear->forward(x); } /* [B, 2] -> [B, 2] */
};

mt_status net_model_new(mt_model **out) {
    return memtrain::make_model(out, [] {
        return memtrain::model(
            std::make_shared<Net>(), {"accuracy"}, [](Net &net, const memtrain::Tensors &batch) {
                auto logits = net.forward(batch.at(0));
                return memtrain::Output{at::cross_entropy_loss(logits, batch.at(1)),
                                        memtrain::correct(logits, batch.at(1))};
            });
    });
}

/* Pairs of numbers between 0 and 1, and the place of the larger one. */
struct Pairs {
    float numbers[samples][2];
    int64_t labels[samples];
    mt_tensor *tensors[2] = {nullptr, nullptr};

    Pairs() {
        uint32_t state = 1;
        for (size_t i = 0; i < samples; i++) {
            for (float &number : numbers[i]) {
                state = state * 1664525 + 1013904223;
                number = static_cast<float>(state >> 8) / (1 << 24);
            }
            labels[i] = numbers[i][1] > numbers[i][0];
        }
    }
    ~Pairs() {
        for (mt_tensor *tensor : tensors) mt_tensor_free(tensor);
    }
    mt_status wrap() {
        const int64_t shape[2] = {samples, 2};
        mt_status status = mt_tensor_from_memory(numbers, MT_FLOAT32, 2, shape, &tensors[0]);
        if (status != MT_OK) return status;
        return mt_tensor_from_memory(labels, MT_INT64, 1, shape, &tensors[1]);
    }
};

mt_status train(mt_trainer *trainer, const Pairs &pairs, mt_step_report *report) {
    mt_torch_batch tensors = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    mt_status status = MT_OK;

    tensors.tensors = pairs.tensors;
    tensors.count = 2;
    batch.data = &tensors;
    batch.count = samples;
    for (int step = 0; step < 100 && status == MT_OK; step++)
        status = mt_trainer_step(trainer, &batch, report);
    return status;
}

} // namespace

int main() {
    Pairs pairs;
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_trainer *trainer = nullptr;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    mt_backend backend = MT_BACKEND_INIT;
    mt_step_report report = MT_STEP_REPORT_INIT;

    options.lr = 0.1;
    mt_status status = mt_device_set_budget("cpu", size_t(16) << 20);
    if (status == MT_OK) status = mt_torch_seed(1);
    if (status == MT_OK) status = pairs.wrap();
    if (status == MT_OK) status = net_model_new(&model);
    if (status == MT_OK) status = mt_torch_new(model, &options, &torch);
    if (status == MT_OK) status = mt_torch_backend(torch, &backend);
    if (status == MT_OK) status = mt_trainer_new(&backend, nullptr, &trainer);
    if (status == MT_OK) status = train(trainer, pairs, &report);
    if (status != MT_OK) std::fprintf(stderr, "%s\n", mt_last_error());
    mt_trainer_free(trainer);
    mt_torch_free(torch);
    mt_model_free(model);
    std::printf("memtrain %s, libtorch %s: accuracy %.1f %%, loss %.3f\n", mt_version_string(),
                mt_torch_version(), 100 * report.metrics[0], report.loss);
    return status != MT_OK || report.metrics[0] < 0.9;
}
