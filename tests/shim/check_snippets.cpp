/*
 * check_snippets.cpp - the fragments of C++ that the pages in docs/ show, and those of C that want a
 * model in C++, each in a place where it can run. setup/check_pages.sh takes them out of the pages.
 */
#include <cstdio>

#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <memtrain/safetensors.h>
#include <memtrain/torch_map.hpp>
#include <memtrain/trainer.hpp>

#include "script_subject.hpp"

using namespace check_shim;

/* ---- first-steps.md ------------------------------------------------------------------------------- */

namespace readme {

struct Net : nn::Module {
    nn::Linear linear{register_module("linear", nn::Linear(3 * 8 * 8, 5))};
    at::Tensor forward(const at::Tensor &images) { return linear(images.flatten(1)); }
};

#include "readme_model.cpp"

int batches_left;
std::unique_ptr<Batch> current;

extern "C" int next_batch(mt_batch *batch);
#define main readme_main
extern "C" {
#include "readme.c"
}
#undef main

int next_batch(mt_batch *batch) {
    current = batches_left-- > 0 ? std::make_unique<Batch>(8) : nullptr;
    if (current) *batch = *current->get();
    return current != nullptr;
}

} // namespace readme

TEST("pages", readme_program) {
    readme::batches_left = 3;
    ck_assert_msg(readme::readme_main() == 0, "%s", mt_last_error());
    ck_assert_int_eq(readme::batches_left, -1);
    ck_assert_uint_eq(cpu_memory().budget_bytes, size_t(600) << 20);
}

/* ---- docs/savers.md --------------------------------------------------------------------------------- */

namespace {

struct Segmented : nn::Module {
    nn::Linear stem{register_module("stem", nn::Linear(64, 16))};
    nn::Sequential blocks{
        register_module("blocks", nn::Sequential(nn::Linear(16, 16), nn::Linear(16, 16)))};
    nn::Linear fc{register_module("fc", nn::Linear(64, 5))};

#include "model_segments.cpp"

    torch::Tensor plain(const torch::Tensor &images) {
        return fc(blocks->forward(stem(images)).flatten(1));
    }
};

struct EndsWithConvolution : nn::Module {
    nn::Conv2d conv1{register_module("conv1", nn::Conv2d(3, 4, 1))};
    nn::BatchNorm2d bn1{register_module("bn1", nn::BatchNorm2d(4))};
    nn::Conv2d conv2{register_module("conv2", nn::Conv2d(4, 5, 3))};

    torch::Tensor forward(torch::Tensor x) {
#include "conv_end.cpp"
        return x;
    }
    torch::Tensor plain(const torch::Tensor &x) {
        return conv2(bn1(conv1(x)).relu_());
    }
};

struct EndsWithNorm : nn::Module {
    nn::BatchNorm2d bn2{register_module("bn2", nn::BatchNorm2d(3))};
    nn::Conv2d conv3{register_module("conv3", nn::Conv2d(3, 4, 1))};
    nn::BatchNorm2d bn3{register_module("bn3", nn::BatchNorm2d(4))};

    torch::Tensor forward(torch::Tensor x) {
#include "norm_end.cpp"
        return x;
    }
    torch::Tensor plain(const torch::Tensor &x) {
        return bn3(conv3(bn2(x).relu_()));
    }
};

struct Frozen : nn::Module {
    nn::Linear text{register_module("text", nn::Linear(4, 4))};
    nn::Sequential blocks{
        register_module("blocks", nn::Sequential(nn::Linear(4, 4), nn::Linear(4, 4)))};
    nn::Linear fc{register_module("fc", nn::Linear(4, 2))};

#include "frozen_blocks.cpp"

    torch::Tensor plain(const torch::Tensor &x) {
        return fc(blocks->forward(x));
    }
};

struct Pairs : nn::Module {
    nn::Linear towers{register_module("towers", nn::Linear(4, 4))};
    at::Tensor image(const at::Tensor &x) { return towers(x); }
    at::Tensor text(const at::Tensor &x) { return towers(x); }
    static at::Tensor loss(const at::Tensor &images, const at::Tensor &texts) {
        return at::cross_entropy_loss(images.matmul(texts.t()), at::arange(images.size(0)));
    }
};

auto described() {
    using Net = Pairs;
#include "pairs.cpp"
}

/* ---- docs/adopt.md ---------------------------------------------------------------------------------- */

struct Reader : nn::Module {
    nn::Linear linear{register_module("linear", nn::Linear(4, 6))};
    at::Tensor forward(const at::Tensor &x) { return linear(x); }
};

memtrain::Trainer over_tokens(const std::shared_ptr<Reader> &net) {
    using Net = Reader;
#include "tokens.cpp"
}

} // namespace

TEST("pages", frozen_weights) {
    const int64_t shape[] = {4, 4};
    const float numbers[16] = {1, 2, 3, 4};
    const mt_safetensors_tensor file[] = {
        {"weight", MT_ST_F32, 2, shape, sizeof numbers, numbers},
        {"bias", MT_ST_F32, 1, shape, 4 * sizeof *numbers, numbers}};
    char folder[] = "/tmp/check_snippets.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_ok(mt_safetensors_save("text.safetensors", file, 2, nullptr));
    ck_ok(mt_torch_init(nullptr));
    auto net = std::make_shared<Frozen>();
    for (at::Tensor &parameter : net->text->parameters()) parameter.set_requires_grad(false);
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [&] {
        return memtrain::model(net, {}, [](Frozen &n, const memtrain::Tensors &batch) {
            return memtrain::Output{n.forward(batch.at(0)).sum(), {}};
        });
    }));
    mt_status status = MT_OK;
#include "mapped.c"
    std::remove("text.safetensors");
    ck_assert_int_eq(rmdir(folder), 0);
    ck_ok(status);
    ck_assert_float_eq(net->text->weight[0][3].item<float>(), 4.0f);
    at::Tensor x = at::rand({3, 4});
    ck_assert(net->forward(x).equal(net->plain(x)));
    mt_model_free(model);
}

TEST("pages", segments) {
    ck_ok(mt_torch_init(nullptr));
    Segmented net;
    at::Tensor images = at::rand({2, 4, 64});
    ck_assert(net.forward(images).equal(net.plain(images)));
    EndsWithConvolution other;
    images = at::rand({2, 3, 6, 6});
    ck_assert(other.forward(images).equal(other.plain(images)));
    EndsWithNorm third;
    ck_assert(third.forward(images).equal(third.plain(images)));
}

TEST("pages", pairs) {
    mt_model *model;
    mt_torch *torch;
    mt_backend backend = MT_BACKEND_INIT;
    mt_trainer *trainer;
    mt_torch_batch data = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    float numbers[8][4] = {{0}};
    const int64_t shape[] = {8, 4};
    mt_tensor *tensors[2];
    for (mt_tensor *&tensor : tensors)
        ck_ok(mt_tensor_from_memory(numbers, MT_FLOAT32, 2, shape, &tensor));
    data.tensors = tensors, data.count = 2;
    batch.data = &data, batch.count = 8;
    ck_ok(memtrain::make_model(&model, described));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_torch_backend(torch, &backend));
    ck_ok(mt_trainer_new(&backend, nullptr, &trainer));
    ck_ok(mt_trainer_step(trainer, &batch, nullptr));
    mt_trainer_free(trainer);
    mt_torch_free(torch);
    mt_model_free(model);
    for (mt_tensor *tensor : tensors) mt_tensor_free(tensor);
}

/* ---- docs/faq.md ------------------------------------------------------------------------------------ */

TEST("pages", time_major) {
    struct Last : nn::Module {
        nn::Linear linear{register_module("linear", nn::Linear(12, 4))};
    };
    ck_ok(mt_torch_init(nullptr));
    memtrain::Trainer trainer(memtrain::model(
        std::make_shared<Last>(), {}, [](Last &net, const memtrain::Tensors &batch) {
            ck_assert_int_eq(batch[0].size(1), 50);
            at::Tensor logits = net.linear(batch[0].select(1, 49));
            return memtrain::Output{at::cross_entropy_loss(logits, batch[1]), {}};
        }));
#include "time_major.cpp"
}

/* ---- docs/script.md --------------------------------------------------------------------------------- */

TEST("pages", script) {
    char folder[] = "/tmp/check_snippets.XXXXXX";
    mt_model *model, *again;
    mt_torch *torch;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    script_subject::prepare();
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    script_subject::net_of(script_subject::Values(5)).save("net.pt");
#include "script.c"
    ck_ok(s);
    ck_ok(mt_script_load("trained.pt", nullptr, &again));
    unlink("net.pt");
    unlink("trained.pt");
    rmdir(folder);
    mt_torch_free(torch);
    mt_model_free(model);
    mt_model_free(again);
}

TEST("pages", script_from_cpp) {
    char folder[] = "/tmp/check_snippets.XXXXXX";
    script_subject::prepare();
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    at::Tensor ids = at::rand({8, 3, 4}), labels = at::randint(6, {8, 3}, at::kLong);
    script_subject::jit::Module net = script_subject::root();
    net.register_module("part", script_subject::layer("Part", at::rand({6, 4}), 6));
    net.define("def forward(self, x, y):\n"
               "    z = torch.flatten(torch.linear(x, self.part.weight, self.part.bias), 0, 1)\n"
               "    loss = torch.cross_entropy_loss(z, torch.flatten(y))\n"
               "    return loss, torch.numel(y)\n");
    net.save("net.pt");
    {
#include "script_trainer.cpp"
        ck_assert_int_eq(access("trained.pt", F_OK), 0);
    }
    unlink("net.pt");
    unlink("trained.pt");
    rmdir(folder);
}

/* Half of the labels are none. */
TEST("pages", tokens) {
    script_subject::prepare();
    at::Tensor x = at::rand({8, 3, 4}), labels = at::randint(6, {8, 3}, at::kLong);
    labels.slice(0, 4).fill_(-100);
    auto net = std::make_shared<Reader>();
    memtrain::Trainer trainer = over_tokens(net);
    double expected = at::cross_entropy_loss(net->forward(x.slice(0, 0, 4)).flatten(0, 1),
                                             labels.slice(0, 0, 4).flatten())
                          .item<double>();
    const size_t chunks[] = {3, 3, 2};
    ck_ok(mt_trainer_set_chunks(trainer.get(), chunks, 3));
    ck_assert_double_eq_tol(trainer.step({x, labels}).loss, expected, 1e-6);
}

/* ---- docs/fit.md ------------------------------------------------------------------------------------ */

TEST("pages", fit) {
    char folder[] = "/tmp/check_snippets.XXXXXX";
    script_subject::prepare();
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    at::Tensor images = at::rand({40, 3, 8, 8}), labels = at::randint(5, {40}, at::kLong);
    at::Tensor other_images = images.slice(0, 0, 8), other_labels = labels.slice(0, 0, 8);
    memtrain::Trainer trainer(memtrain::model(
        std::make_shared<readme::Net>(), {}, [](readme::Net &net, const memtrain::Tensors &batch) {
            return memtrain::Output{at::cross_entropy_loss(net.forward(batch[0]), batch[1]), {}};
        }));
#include "fit_trainer.cpp"
    ck_assert_uint_eq(report.steps, 2);
#include "fit_own.cpp"
    ck_assert_uint_eq(report.steps, 2);
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    is_over = true;
    report = trainer.fit(pictures, options, watch);
    ck_assert_int_eq(report.end, MT_FIT_STOPPED);
    ck_assert_uint_eq(report.steps, 0);
    ck_assert_int_eq(access("run.ckpt", F_OK), 0);
    unlink("run.ckpt");
    unlink("run.ckpt.1");
    rmdir(folder);
}

SUITE("snippets")
