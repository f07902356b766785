/*
 * check_shim_amp.cpp - autocast: dtypes inside and outside, nesting, state put back whatever ends
 * the body, and training with options.amp.
 */
#include <ATen/autocast_mode.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>

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

int main() {
    tcase_add_checked_fixture(suite_case_named("autocast"), init, nullptr);
    return suite_run_named("shim_amp");
}
