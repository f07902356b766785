/*
 * check_shim_amp.cpp - autocast: dtypes inside and outside, nesting, state put back whatever ends
 * the body, and training with options.amp.
 */
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

/* A linear layer with a weight that wants a gradient: only such weights go to the cache. */
struct Layer {
    nn::Linear linear = nn::Linear(16, 16);
    at::Tensor input = at::randn({4, 16});
    c10::ScalarType type() { return linear(input).scalar_type(); }
};

mt_status under(mt_dtype dtype, std::function<mt_status()> body) {
    return mt_amp_autocast(
        "cpu", dtype,
        [](void *user) { return (*static_cast<std::function<mt_status()> *>(user))(); }, &body);
}

bool is_off(void) {
    return !at::autocast::is_autocast_enabled(c10::kCPU);
}

void init(void) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
}

} // namespace

TEST("autocast", inside_and_outside) {
    Layer layer;
    ck_ok(under(MT_BFLOAT16, [&] {
        ck_assert(layer.type() == c10::kBFloat16);
        return MT_OK;
    }));
    ck_assert(is_off());
    ck_assert(layer.type() == c10::kFloat);
}

/* An inner autocast of another dtype must not find the outer one's weights in the cache. */
TEST("autocast", nesting) {
    Layer layer;
    mt_status inner[2] = {MT_EINVAL, MT_EINVAL};
    auto sees = [&](c10::ScalarType type) { return layer.type() == type ? MT_OK : MT_EUSER; };
    ck_ok(under(MT_BFLOAT16, [&] {
        ck_assert(layer.type() == c10::kBFloat16);
        inner[0] = under(MT_FLOAT16, [&] { return sees(c10::kHalf); });
        ck_assert(layer.type() == c10::kBFloat16);
        inner[1] = under(MT_BFLOAT16, [&] { return sees(c10::kBFloat16); });
        layer.linear(layer.input).sum().backward();
        return MT_OK;
    }));
    ck_ok(inner[0]);
    ck_ok(inner[1]);
    ck_assert(layer.linear->weight.grad().scalar_type() == c10::kFloat);
    ck_assert(is_off());
}

TEST("autocast", whatever_ends_the_body) {
    Layer layer;
    ck_status(under(MT_BFLOAT16, [] { return mt_set_error(MT_EUSER, "enough"); }), MT_EUSER);
    ck_assert(is_off());
    ck_status(under(MT_BFLOAT16, []() -> mt_status { throw std::runtime_error("no"); }), MT_ETORCH);
    ck_assert_str_eq(mt_last_error(), "no");
    ck_assert(is_off());
    ck_ok(mt_inject_oom(2, 0));
    ck_status(under(MT_BFLOAT16, [&] { return layer.type(), MT_OK; }), MT_EDEVMEM);
    ck_assert(is_off());
    ck_ok(mt_inject_oom(0, 0));
    ck_assert(layer.type() == c10::kFloat);
}

/* Weights that were cast are dropped with the outermost autocast. */
TEST("autocast", cache_is_dropped) {
    Layer layer;
    size_t before = cpu_memory().allocated_bytes;
    ck_ok(under(MT_BFLOAT16, [&] {
        layer.type();
        ck_assert_uint_gt(cpu_memory().allocated_bytes, before);
        return MT_OK;
    }));
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
}

TEST("autocast", arguments) {
    auto nothing = [](void *) { return MT_OK; };
    ck_status(mt_amp_autocast(nullptr, MT_BFLOAT16, nothing, nullptr), MT_EINVAL);
    ck_status(mt_amp_autocast("cpu", MT_FLOAT32, nothing, nullptr), MT_EINVAL);
    ck_status(mt_amp_autocast("cpu", MT_BFLOAT16, nullptr, nullptr), MT_EINVAL);
    ck_status(mt_amp_autocast("toaster", MT_BFLOAT16, nothing, nullptr), MT_EINVAL);
}

/* Training under autocast: parameters and gradients stay float32, the loss is near the other. */
TEST("autocast", training) {
    double losses[2];
    for (int amp = 0; amp < 2; amp++) {
        mt_torch_options options = options_of(MT_ADAMW);
        NetOptions plain;
        plain.dropout = false;
        c10::ScalarType seen = c10::kFloat;
        options.amp = amp ? MT_BFLOAT16 : MT_DTYPE_NONE;
        Trainer trainer(options, plain, [&](Net &net) {
            seen = net.conv1(at::randn({1, 3, 8, 8}, device_of(net))).scalar_type();
        });
        Batch batch(8);
        mt_chunk_result result = chunk_result();
        for (int i = 0; i < 5; i++) ck_ok(step(trainer, batch, {4, 4}, &result));
        losses[amp] = result.loss_sum;
        ck_assert(is_off());
        ck_assert(seen == (amp ? c10::kBFloat16 : c10::kFloat));
        for (const at::Tensor &parameter : trainer.net->parameters()) {
            ck_assert(parameter.scalar_type() == c10::kFloat);
            ck_assert(parameter.grad().scalar_type() == c10::kFloat);
        }
    }
    ck_assert_double_eq_tol(losses[1] / losses[0], 1.0, 0.05);
}

/*
 * A product of matrices that gets no memory inside of oneDNN: libtorch would compute it in another way and leave oneDNN off
 * from then on. Every request of a step fails in turn; what goes through has the bits of the same chunks without a fault.
 */
namespace {

/* Products of bfloat16 that are large enough for oneDNN. */
struct Deep {
    std::vector<float> pixels = std::vector<float>(64 * 256, 0.5f);
    mt_tensor *tensor = nullptr;
    mt_torch_batch own = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;
    std::shared_ptr<nn::SequentialImpl> net;
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;

    Deep() {
        const int64_t shape[] = {64, 256};
        init();
        ck_ok(mt_torch_seed(3));
        ck_ok(mt_tensor_from_memory(pixels.data(), MT_FLOAT32, 2, shape, &tensor));
        own.tensors = &tensor;
        own.count = 1;
        batch.data = &own;
        batch.count = 64;
        mt_status status = memtrain::make_model(&model, [&] {
            net = std::make_shared<nn::SequentialImpl>(nn::Linear(256, 256), nn::ReLU(),
                                                       nn::Linear(256, 1));
            return memtrain::model(
                net, {}, [](nn::SequentialImpl &n, const memtrain::Tensors &given) {
                    return memtrain::Output{n.forward(given.at(0)).to(at::kFloat).square().mean(),
                                            {}};
                });
        });
        ck_ok(status);
        mt_torch_options options = options_of(MT_SGD);
        options.amp = MT_BFLOAT16;
        ck_ok(mt_torch_new(model, &options, &torch));
    }
    ~Deep() {
        mt_torch_free(torch);
        mt_model_free(model);
        mt_tensor_free(tensor);
    }
    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
};

} // namespace

TEST("autocast", onednn_stays_on) {
    std::string before, after;
    uint64_t requests = 0, failed = 0, ooms = 0;
    {
        Deep clean;
        before = clean.hash();
        ck_ok(mt_train_step(clean.torch, &clean.batch, nullptr, nullptr));
        after = clean.hash();
    }
    for (uint64_t n = 1;; n++) {
        Deep deep;
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_train_step(deep.torch, &deep.batch, nullptr, nullptr);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_msg(at::globalContext().userEnabledMkldnn(), "request %d", static_cast<int>(n));
        if (!failed) break;
        ck_status(status, MT_EDEVMEM);
        ck_assert(deep.hash() == before);
        ck_ok(mt_train_step(deep.torch, &deep.batch, nullptr, nullptr));
        ck_assert_msg(deep.hash() == after, "request %d", static_cast<int>(n));
        ooms++;
    }
    ck_assert_uint_gt(ooms, 10);
}

int main() {
    tcase_add_checked_fixture(suite_case_named("autocast"), init, nullptr);
    return suite_run_named("shim_amp");
}
