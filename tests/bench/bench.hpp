/*
 * bench.hpp - what the benchmarks share: a ResNet behind the C API, a batch, a clock.
 */
#ifndef BENCH_HPP
#define BENCH_HPP

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <memtrain/torch.hpp>
#include <memtrain/trainer.h>

#include "resnet.hpp"

namespace bench {

inline double now() {
    using clock = std::chrono::steady_clock;
    return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
    return v[v.size() / 2];
}

/* Ends the benchmark with the library's own words. */
inline void must(mt_status status, const char *what) {
    if (status == MT_OK) return;
    std::fprintf(stderr, "%s: %s: %s\n", what, mt_status_name(status), mt_last_error());
    std::exit(1);
}

inline mt_model *resnet(int depth, int64_t classes, int64_t width = 64) {
    mt_model *model = nullptr;
    must(memtrain::make_model(
             &model,
             [&] {
                 memtrain_models::ResNetOptions options;
                 options.depth = depth;
                 options.classes = classes;
                 options.width = width;
                 auto description = memtrain::model(
                     std::make_shared<memtrain_models::ResNetImpl>(options), {"accuracy"},
                     [](memtrain_models::ResNetImpl &net, const memtrain::Tensors &batch) {
                         auto logits = net.forward(batch.at(0));
                         return memtrain::Output{at::cross_entropy_loss(logits, batch.at(1)),
                                                 memtrain::correct(logits, batch.at(1))};
                     });
                 description.checkpoints = true;
                 return description;
             }),
         "make_model");
    return model;
}

inline mt_model *resnet18(int64_t classes) {
    return resnet(18, classes);
}

/* A batch of noise: pictures [count, 3, side, side] and labels [count]. */
struct Batch {
    std::vector<float> pixels;
    std::vector<int64_t> labels;
    mt_tensor *tensors[2] = {nullptr, nullptr};
    mt_torch_batch torch_batch = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;

    Batch(int64_t count, int64_t side, int64_t classes)
        : pixels(static_cast<size_t>(count * 3 * side * side)), labels(static_cast<size_t>(count)) {
        uint64_t state = 1;
        auto draw = [&] {
            return (state = state * 6364136223846793005u + 1442695040888963407u) >> 40;
        };
        for (auto &p : pixels) p = static_cast<float>(draw()) / 8388608.0f - 1.0f;
        for (auto &l : labels) l = static_cast<int64_t>(draw() % static_cast<uint64_t>(classes));
        const int64_t shape[4] = {count, 3, side, side};
        must(mt_tensor_from_memory(pixels.data(), MT_FLOAT32, 4, shape, &tensors[0]), "pixels");
        must(mt_tensor_from_memory(labels.data(), MT_INT64, 1, shape, &tensors[1]), "labels");
        torch_batch.tensors = tensors;
        torch_batch.count = 2;
        batch.data = &torch_batch;
        batch.count = static_cast<size_t>(count);
    }
    ~Batch() {
        mt_tensor_free(tensors[0]);
        mt_tensor_free(tensors[1]);
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;
};

} // namespace bench
#endif
