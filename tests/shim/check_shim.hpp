/*
 * check_shim.hpp - a small network and a batch for the suites of the shim.
 *
 * Every test runs in a child of its own, and the parent never touches libtorch: a fork after libtorch
 * has used threads hangs. So all of this is made inside the tests.
 */
#ifndef CHECK_SHIM_HPP
#define CHECK_SHIM_HPP

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <memtrain/torch.hpp>

#include "settled.hpp"

#include "suite.h" /* last: Check defines fail(), a name that the C++ library uses, as a macro */

namespace check_shim {

namespace nn = torch::nn;

struct NetOptions {
    bool norm = true;
    bool dropout = true;
};

/* Images of 3x8x8 to 5 classes: 2 convolutions, BatchNorm, dropout, a linear layer. */
struct Net : nn::Module {
    nn::Conv2d conv1, conv2;
    nn::BatchNorm2d norm;
    nn::Dropout dropout;
    nn::Linear linear;
    at::Tensor unused; /* a parameter that no loss reaches */
    NetOptions options;

    explicit Net(const NetOptions &o)
        : conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)))),
          conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(8, 8, 3).stride(2)))),
          norm(nullptr), dropout(register_module("dropout", nn::Dropout(0.3))),
          linear(register_module("linear", nn::Linear(72, 5))), options(o) {
        unused = register_parameter("unused", at::ones({3}));
        if (o.norm) norm = register_module("norm", nn::BatchNorm2d(8));
    }

    at::Tensor forward(at::Tensor x) {
        x = conv1(x);
        if (options.norm) x = norm(x);
        x = conv2(at::relu(x)).flatten(1);
        return linear(options.dropout ? dropout(x) : x);
    }
};

/* An error line as it is here: behind "here: cpu" come the cards of the device that is tested. */
inline std::string with_cards_here(std::string line) {
    const std::string end = "here: cpu";
    bool is_list = line.size() >= end.size() && line.rfind(end) == line.size() - end.size();
    if (!is_list || !suite_on_card()) return line;
    size_t count = 0;
    std::string type = suite_device();
    type = type.substr(0, type.find(':'));
    ck_ok(mt_device_count(type.c_str(), &count));
    for (size_t i = 0; i < count; i++)
        line += ", " + type + (suite_on_mps() ? "" : ":" + std::to_string(i));
    return line;
}

/* What a test may do inside the loss function, before it is computed. */
using Hook = std::function<void(Net &)>;

inline mt_status net_model_new(const NetOptions &options, mt_model **out,
                               std::shared_ptr<Net> *out_net = nullptr, Hook hook = {}) {
    return memtrain::make_model(out, [&] {
        auto net = std::make_shared<Net>(options);
        if (out_net) *out_net = net;
        return memtrain::model(net, {"accuracy"}, [hook](Net &n, const memtrain::Tensors &batch) {
            if (hook) hook(n);
            auto logits = n.forward(batch[0]);
            return memtrain::Output{at::cross_entropy_loss(logits, batch[1]),
                                    memtrain::correct(logits, batch[1])};
        });
    });
}

/* A batch of made-up images and labels, the same at every call; freed with the object. */
class Batch {
public:
    explicit Batch(size_t samples) : images_(samples * 3 * 8 * 8), labels_(samples) {
        uint32_t x = 12345;
        for (float &pixel : images_) pixel = static_cast<float>(next(x)) / 32768.0f - 1.0f;
        for (int64_t &label : labels_) label = next(x) % 5;
        const int64_t shape[] = {static_cast<int64_t>(samples), 3, 8, 8};
        ck_ok(mt_tensor_from_memory(images_.data(), MT_FLOAT32, 4, shape, &tensors_[0]));
        ck_ok(mt_tensor_from_memory(labels_.data(), MT_INT64, 1, shape, &tensors_[1]));
        data_.tensors = tensors_;
        data_.count = 2;
        batch_.data = &data_;
        batch_.count = samples;
    }
    ~Batch() {
        for (mt_tensor *tensor : tensors_) mt_tensor_free(tensor);
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;

    const mt_batch *get() const { return &batch_; }
    mt_tensor *images() const { return tensors_[0]; }
    mt_tensor *labels() const { return tensors_[1]; }

private:
    static uint32_t next(uint32_t &x) {
        x = x * 1664525u + 1013904223u;
        return x >> 16;
    }
    std::vector<float> images_;
    std::vector<int64_t> labels_;
    mt_tensor *tensors_[2] = {nullptr, nullptr};
    mt_torch_batch data_ = MT_TORCH_BATCH_INIT;
    mt_batch batch_ = MT_BATCH_INIT;
};

/* A seeded network with its optimiser. */
struct Trainer {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    std::shared_ptr<Net> net;

    explicit Trainer(const mt_torch_options &options, const NetOptions &net_options = {},
                     Hook hook = {}) {
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(7));
        ck_ok(net_model_new(net_options, &model, &net, hook));
        ck_ok(mt_torch_new(model, &options, &torch));
    }
    ~Trainer() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Trainer(const Trainer &) = delete;
    Trainer &operator=(const Trainer &) = delete;

    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
};

/* What a trainer drives. */
inline mt_backend seam_of(const Trainer &trainer) {
    mt_backend seam = MT_BACKEND_INIT;
    ck_ok(mt_torch_backend(trainer.torch, &seam));
    return seam;
}

inline mt_torch_options options_of(mt_optimizer optimizer, double clip_norm = 0.0) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    options.device = suite_device();
    options.optimizer = optimizer;
    options.clip_norm = clip_norm;
    return options;
}

/* Half precision that the device takes: of MPS bfloat16 alone, which has no loss scaler. */
inline mt_dtype half_precision() {
    return suite_on_mps() ? MT_BFLOAT16 : MT_FLOAT16;
}

/* Of a test of the loss scaler: whether there is none on the device, which is said. */
inline bool has_no_scaler(const char *test) {
    if (suite_on_mps()) suite_skip(test, "MPS takes bfloat16 alone, which needs no scaler");
    return suite_on_mps();
}

inline mt_chunk_result chunk_result() {
    return MT_CHUNK_RESULT_INIT;
}

inline mt_apply_result apply_result() {
    return MT_APPLY_RESULT_INIT;
}

inline mt_memory memory_on(const char *device) {
    mt_memory memory = MT_MEMORY_INIT;
    ck_ok(mt_device_memory(device, &memory));
    return memory;
}

inline mt_memory cpu_memory() {
    return memory_on("cpu");
}

/* Where the tensors of a trainer on suite_device() are, and those that a test makes for it. */
inline const char *tensor_place() {
    return suite_on_card() ? suite_device() : "cpu";
}

inline at::Device tensor_device() {
    return at::Device(tensor_place());
}

/* Numbers that the generator of that device draws. */
inline at::Tensor noise(at::IntArrayRef sizes) {
    return at::randn(sizes, tensor_device());
}

/* A tensor's numbers, whatever its strides; of none a word. */
inline std::string raw_bytes(const at::Tensor &tensor) {
    if (!tensor.defined()) return "none";
    at::Tensor t = tensor.detach().cpu().contiguous();
    return std::string(static_cast<const char *>(t.data_ptr()), t.nbytes());
}

inline mt_memory tensor_memory() {
    return memory_on(tensor_place());
}

inline at::Device device_of(const Net &net) {
    return net.unused.device();
}

/* A card of so many bytes behind "sim:cuda" or "sim:mps", and all of it the budget. */
inline void simulate(const char *device, size_t bytes) {
    mt_sim_options options = MT_SIM_OPTIONS_INIT;
    options.total_bytes = options.recommended_bytes = bytes;
    ck_ok(mt_device_simulate(device, &options));
    ck_ok(mt_device_set_budget(device, 0));
}

/*
 * Whether the n-th request for memory of fn failed: then it throws libtorch's own type, on MPS an error whose text alone tells,
 * else nothing.
 */
template <class Fn> bool runs_out_at(uint64_t n, const Fn &fn) {
    uint64_t failed;
    bool typed = false;
    ck_ok(mt_inject_oom(n, 0));
    try {
        fn();
    } catch (const c10::OutOfMemoryError &) {
        typed = true;
    } catch (const c10::Error &e) {
        typed = suite_on_mps() && (std::strstr(e.what(), "out of memory") ||
                                   std::strstr(e.what(), "Invalid buffer size"));
        if (!typed) throw;
    }
    mt_injected(nullptr, &failed);
    ck_ok(mt_inject_oom(0, 0));
    ck_assert_int_eq(typed, failed != 0);
    return typed;
}

/* begin, chunks of these sizes, apply: the first status that is not MT_OK, else MT_OK. */
inline mt_status step(const Trainer &trainer, const Batch &batch, const std::vector<size_t> &sizes,
                      mt_chunk_result *last = nullptr) {
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    mt_status status = mt_begin(trainer.torch, batch.get());
    size_t first = 0;
    for (size_t size : sizes) {
        if (status != MT_OK) return status;
        double weight = static_cast<double>(size) / static_cast<double>(batch.get()->count);
        status = mt_accumulate(trainer.torch, first, size, weight, &result);
        first += size;
    }
    if (last) *last = result;
    return status == MT_OK ? mt_apply(trainer.torch, &applied) : status;
}

} // namespace check_shim
#endif
