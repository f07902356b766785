/*
 * prsmed_subject.hpp - the network of examples/documents/models/prsmed_net.hpp in small, scenes for it, and both behind the
 * seam. Comes after the C++ headers, since check.h does.
 */
#ifndef PRSMED_SUBJECT_HPP
#define PRSMED_SUBJECT_HPP

#include "prsmed_net.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <memtrain/trainer.h>

#include "networks/batches.hpp"

#include "check_shim.hpp"

namespace prsmed_subject {

using namespace memtrain_models;

constexpr int64_t side = 32, length = 24, samples = 4;

inline prsmed_model_options options_of(int encoder = PRSMED_CONV, double dropout = 0) {
    prsmed_model_options o = PRSMED_MODEL_OPTIONS_INIT;
    o.encoder = encoder;
    o.side = side;
    o.text_width = 64;
    o.text_layers = 1;
    o.dropout = dropout;
    return o;
}

inline void seed(uint64_t number = 1) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(number));
}

inline int64_t count(const torch::nn::Module &module) {
    int64_t elements = 0;
    for (const at::Tensor &parameter : module.parameters()) elements += parameter.numel();
    return elements;
}

inline at::Tensor tokens_of(int64_t rows, int64_t columns = length) {
    return networks::prompts(rows, columns);
}

/* Pictures with a bright rectangle, its mask, and a prompt. */
struct Scenes {
    memtrain::Tensors tensors;
    at::Tensor pictures, masks, tokens;
    networks::TensorBatch batch;

    explicit Scenes(int64_t rows = samples)
        : tensors(networks::prompt_scenes(rows, side, length)), pictures(tensors[0]),
          masks(tensors[1]), tokens(tensors[2]), batch(tensors) {}
};

using State = std::map<std::string, std::vector<char>>;

inline mt_status copy_out(void *user, const char *name, mt_tensor *handle) {
    const at::Tensor t = memtrain::tensor(handle).cpu().contiguous();
    const char *data = static_cast<const char *>(t.const_data_ptr());
    (*static_cast<State *>(user))[name].assign(data, data + t.nbytes());
    return MT_OK;
}

/* A network with its optimiser behind the seam. */
struct Subject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;

    explicit Subject(const prsmed_model_options &o, int checkpointing = MT_CHECKPOINTING_AUTO,
                     mt_optimizer optimizer = MT_SGD, const char *device = suite_device()) {
        mt_torch_options options = check_shim::options_of(optimizer);
        options.device = device;
        options.lr = 0.1;
        options.checkpointing = checkpointing;
        seed(3);
        ck_ok(prsmed_model_new(&o, &model));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_torch_backend(torch, &backend));
        backend.hold_gradients = nullptr; /* what is allocated is compared with what was */
    }
    ~Subject() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;

    State state() const {
        State state;
        ck_ok(mt_torch_visit_state(torch, copy_out, &state));
        return state;
    }

    mt_status step(const Scenes &scenes, const std::vector<size_t> &chunks) const {
        mt_trainer *trainer = nullptr;
        ck_ok(mt_trainer_new(&backend, nullptr, &trainer));
        ck_ok(mt_trainer_set_chunks(trainer, chunks.data(), chunks.size()));
        mt_status status = mt_trainer_step(trainer, scenes.batch.get(), nullptr);
        mt_trainer_free(trainer);
        return status;
    }
};

inline double largest_difference(const State &a, const State &b) {
    double largest = 0;
    for (const auto &item : a) {
        const auto *x = reinterpret_cast<const float *>(item.second.data());
        const auto *y = reinterpret_cast<const float *>(b.at(item.first).data());
        for (size_t i = 0; i < item.second.size() / sizeof(float); i++)
            largest = std::max(largest, std::abs(static_cast<double>(x[i]) - y[i]));
    }
    return largest;
}

} // namespace prsmed_subject

#endif
