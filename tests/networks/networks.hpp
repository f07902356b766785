/*
 * networks.hpp - the networks that suites and benchmarks loop over, each as an mt_model that takes
 * pictures [B, 3, side, side] and labels [B] and counts the right answers.
 */
#ifndef NETWORKS_HPP
#define NETWORKS_HPP

#include <memory>

#include "bench.hpp"

#include "depthwise.hpp"
#include "vit.hpp"

namespace networks {

struct Network {
    const char *name;
    mt_model *(*make)(int64_t classes, int64_t side); /* new reference */
    int64_t side;    /* the smallest pictures, for suites that run thousands of steps */
    bool normalises; /* BatchNorm: chunks of 1 are illegal, and recordings are taken back */
    size_t change;   /* first chunk size whose kernels are not those of 2 and 4 samples; 0: none */
};

/* Net: a torch::nn module with forward(images) -> logits. */
template <class Net>
mt_model *classifier(std::shared_ptr<Net> (*build)(int64_t, int64_t), int64_t classes,
                     int64_t side) {
    mt_model *model = nullptr;
    mt_status status = memtrain::make_model(&model, [&] {
        auto description = memtrain::model(
            build(classes, side), {"accuracy"}, [](Net &net, const memtrain::Tensors &batch) {
                auto logits = net.forward(batch.at(0));
                return memtrain::Output{at::cross_entropy_loss(logits, batch.at(1)),
                                        memtrain::correct(logits, batch.at(1))};
            });
        description.checkpoints = true;
        return description;
    });
    bench::must(status, "make_model");
    return model;
}

inline mt_model *resnet18(int64_t classes, int64_t) {
    return bench::resnet18(classes);
}

inline mt_model *depthwise(int64_t classes, int64_t side) {
    auto build = +[](int64_t n, int64_t) { return std::make_shared<DepthwiseImpl>(n); };
    return classifier<DepthwiseImpl>(build, classes, side);
}

inline mt_model *vit(int64_t classes, int64_t side) {
    auto build = +[](int64_t n, int64_t s) {
        VitOptions options;
        options.classes = n;
        options.side = s;
        return std::make_shared<VitImpl>(options);
    };
    return classifier<VitImpl>(build, classes, side);
}

/*
 * On one thread libtorch computes 1x1 convolutions of stride 1 by itself below 16 samples and with
 * oneDNN, which needs other temporaries, from 16 on. ResNet-18 has none of those.
 */
constexpr Network all[] = {
    {"resnet18", resnet18, 32, true, 0},
    {"depthwise", depthwise, 32, true, 16},
    {"vit", vit, 32, false, 0},
};
constexpr int count = sizeof all / sizeof all[0];

/* The same requests as ResNet-18, and 1 / 16 of its parameters to update, keep and compare. */
inline mt_model *resnet18_narrow_model(int64_t classes, int64_t) {
    return bench::resnet(18, classes, 16);
}
constexpr Network resnet18_narrow = {"resnet18 of width 16", resnet18_narrow_model, 32, true, 0};

/* What is trained in that type: without kernels of its own for bfloat16 a CPU is slow with wide convolutions. */
inline const Network &trained_in(mt_dtype type, const Network &network) {
    return type == MT_BFLOAT16 && &network == &all[0] ? resnet18_narrow : network;
}

/* Too large to be looped over. */
inline mt_model *resnet50_model(int64_t classes, int64_t) {
    return bench::resnet(50, classes);
}
constexpr Network resnet50 = {"resnet50", resnet50_model, 32, true, 16};

/* A network with its optimiser behind the seam; made and used by one test process. */
struct Subject {
    mt_model *model;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;

    Subject(const Network &network, int64_t side, const mt_torch_options *options = nullptr)
        : model(network.make(10, side)) {
        bench::must(mt_torch_new(model, options, &torch), "torch");
        bench::must(mt_torch_backend(torch, &backend), "backend");
    }
    ~Subject() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;

    mt_trainer *trainer(const mt_trainer_options *options = nullptr) const {
        mt_trainer *made = nullptr;
        bench::must(mt_trainer_new(&backend, options, &made), "trainer");
        return made;
    }
    static size_t allocated(const char *device = "cpu") {
        mt_memory memory = {};
        memory.size = sizeof memory;
        bench::must(mt_device_memory(device, &memory), "memory");
        return memory.allocated_bytes;
    }
    /* So many bytes more than what is in use now. */
    static void set_budget(size_t beside_bytes, const char *device = "cpu") {
        bench::must(mt_device_set_budget(device, allocated(device) + beside_bytes), "budget");
    }
};

/* One thread and a seed, so that a step is a function of state and chunks. */
inline void prepare() {
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    bench::must(mt_torch_seed(1), "seed");
}

} // namespace networks
#endif
