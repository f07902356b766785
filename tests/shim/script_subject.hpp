/*
 * script_subject.hpp - a network in TorchScript, its files and its training, for check_shim_script*.cpp.
 */
#ifndef SCRIPT_SUBJECT_HPP
#define SCRIPT_SUBJECT_HPP

#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <ATen/ops/dropout.h>
#include <ATen/ops/rand.h>
#include <torch/csrc/jit/api/module.h>

#include <memtrain/script.h>
#include <memtrain/trainer.h>

#include "check_shim.hpp"

namespace script_subject {

using namespace check_shim;
namespace jit = torch::jit;

/* ---- a network in TorchScript, and the same in C++ ------------------------------------------------- */

constexpr char forward_source[] = R"(
def forward(self, x):
    x = torch.conv2d(x, self.conv.weight, self.conv.bias, [2, 2], [1, 1])
    x = torch.batch_norm(x, self.norm.weight, self.norm.bias, self.norm.running_mean,
                         self.norm.running_var, self.training, 0.1, 1e-05, True)
    x = torch.dropout(torch.flatten(torch.relu(x), 1), 0.3, self.training)
    return torch.linear(x, self.linear.weight, self.linear.bias)
)";

struct Values {
    at::Tensor conv = at::rand({8, 3, 3, 3}).sub(0.5), linear;
    explicit Values(int64_t classes) : linear(at::rand({classes, 128}).sub(0.5)) {}
};

inline jit::Module layer(const char *name, const at::Tensor &weight, int64_t outputs) {
    jit::Module module(name);
    module.register_parameter("weight", weight.clone().requires_grad_(), false);
    module.register_parameter("bias", at::zeros({outputs}).requires_grad_(), false);
    return module;
}

/* As torch.jit.script makes it. */
inline jit::Module root() {
    jit::Module module("Net");
    module.register_attribute("training", c10::BoolType::get(), true);
    return module;
}

inline jit::Module net_of(const Values &values, const char *source = forward_source) {
    jit::Module net = root(), norm = layer("Norm", at::ones({8}), 8);
    norm.register_buffer("running_mean", at::zeros({8}));
    norm.register_buffer("running_var", at::ones({8}));
    net.register_module("conv", layer("Conv", values.conv, 8));
    net.register_module("norm", norm);
    net.register_module("linear", layer("Linear", values.linear, values.linear.size(0)));
    net.define(source);
    return net;
}

struct Twin : nn::Module {
    nn::Conv2d conv;
    nn::BatchNorm2d norm;
    nn::Linear linear;
    explicit Twin(const Values &values)
        : conv(
              register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)))),
          norm(register_module("norm", nn::BatchNorm2d(8))),
          linear(register_module("linear", nn::Linear(128, values.linear.size(0)))) {
        conv->weight.set_data(values.conv.clone());
        conv->bias.set_data(at::zeros({8}));
        linear->weight.set_data(values.linear.clone());
        linear->bias.set_data(at::zeros({values.linear.size(0)}));
    }
    at::Tensor forward(const at::Tensor &x) {
        at::Tensor y = at::relu(norm(conv(x))).flatten(1);
        return linear(at::dropout(y, 0.3, is_training()));
    }
};

inline mt_status twin_new(const Values &values, mt_model **out) {
    return memtrain::make_model(out, [&] {
        return memtrain::model(std::make_shared<Twin>(values), {"accuracy"},
                               [](Twin &net, const memtrain::Tensors &batch) {
                                   at::Tensor logits = net.forward(batch[0]);
                                   return memtrain::Output{at::cross_entropy_loss(logits, batch[1]),
                                                           memtrain::correct(logits, batch[1])};
                               });
    });
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* In a folder of the test's own, which goes with the object. */
class Folder {
public:
    Folder() {
        const char *parent = std::getenv("TMPDIR");
        path_ = std::string(parent ? parent : "/tmp") + "/memtrain.XXXXXX";
        ck_assert_ptr_nonnull(mkdtemp(path_.data()));
    }
    ~Folder() {
        for (const char *name : {"a.pt", "b.pt", "b.pt.memtrain-tmp"})
            std::remove(file(name).c_str());
        rmdir(path_.c_str());
    }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    std::string file(const char *name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

inline std::string bytes_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

inline void write_bytes(const std::string &path, const std::string &bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

inline void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(7));
}

inline std::string saved_net(const Folder &folder, int64_t classes = 5) {
    std::string path = folder.file("a.pt");
    net_of(Values(classes)).save(path);
    return path;
}

/* ---- training --------------------------------------------------------------------------------------- */

/* A model with its optimiser and a trainer whose batches are cut into chunks of 5 and 3. */
struct Run {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_trainer *trainer = nullptr;
    Batch batch{8};

    explicit Run(mt_model *own, const char *device = suite_device(), mt_dtype amp = MT_DTYPE_NONE)
        : model(own) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        mt_backend backend = MT_BACKEND_INIT;
        options.device = device;
        options.amp = amp;
        ck_ok(mt_torch_seed(11));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_torch_backend(torch, &backend));
        ck_ok(mt_trainer_new(&backend, nullptr, &trainer));
    }
    ~Run() {
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;

    mt_status step(double *loss = nullptr) const {
        static const size_t chunks[] = {5, 3};
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
        mt_status status = mt_trainer_step(trainer, batch.get(), &report);
        if (loss) *loss = report.loss;
        return status;
    }
    /* Its n-th request for memory fails, and with persistent all after it. */
    mt_status step_with_fault(uint64_t n, bool persistent, uint64_t *failed) const {
        uint64_t requests;
        ck_ok(mt_inject_oom(n, persistent));
        mt_status status = step();
        mt_injected(&requests, failed);
        ck_ok(mt_inject_oom(0, 0));
        return status;
    }
    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
    double evaluate() const {
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_evaluate(trainer, batch.get(), &report));
        return report.loss;
    }
};

inline mt_model *loaded(const std::string &path, const mt_script_options *options = nullptr) {
    mt_model *model = nullptr;
    ck_ok(mt_script_load(path.c_str(), options, &model));
    return model;
}

inline size_t allocated() {
    return cpu_memory().allocated_bytes;
}

inline void expect_refused(const std::string &path, const char *words,
                           const mt_script_options *options = nullptr) {
    mt_model *model = nullptr;
    ck_status(mt_script_load(path.c_str(), options, &model), MT_EINVAL);
    ck_assert_ptr_null(model);
    ck_contains(mt_last_error(), words);
    ck_contains(mt_last_error(), path.c_str());
    ck_assert_ptr_null(std::strchr(mt_last_error(), '\n'));
}

} // namespace script_subject
#endif
