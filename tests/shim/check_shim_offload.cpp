/*
 * check_shim_offload.cpp - saved tensors that wait elsewhere, in functions alone: the same gradients from the host's memory
 * and from a file, a bound for bf16, what is changed meanwhile, what is refused.
 */
#include <string>
#include <thread>

#include <unistd.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <torch/csrc/autograd/autograd.h>

#include "card.h"
#include "offload_subject.hpp"
#include "owned.hpp"

using namespace offload_subject;

namespace {

/* Runs body with the saver on; MT_OFFLOAD_NEVER: without. */
template <class Body> void offloaded(int kind, Body body) {
    auto call = [](void *user) {
        (*static_cast<Body *>(user))();
        return MT_OK;
    };
    if (kind == MT_OFFLOAD_NEVER) return body();
    ck_ok(mt_offload(tensor_place(), kind, nullptr, call, &body));
}

enum { ROWS = 64, COLUMNS = 512 }; /* 128 KiB */

at::Tensor ones() {
    return at::ones({ROWS, COLUMNS}, tensor_device());
}

at::Tensor large() {
    return noise({ROWS, COLUMNS}).set_requires_grad(true);
}

/* A function of one large tensor, whose gradient must have the same bits. */
const struct {
    const char *name;
    at::Tensor (*run)(const at::Tensor &x);
} functions[] = {
    {"the same thrice",
     [](const at::Tensor &x) {
         at::Tensor y = x.sin();
         return y * y + y.exp();
     }},
    {"transposed", [](const at::Tensor &x) { return (x * 2).t().matmul((x * 3)); }},
    {"columns with gaps",
     [](const at::Tensor &x) {
         at::Tensor y = x.tanh();
         return y.slice(1, 0, 500) * y.slice(1, 12, 512);
     }},
    {"few columns of many",
     [](const at::Tensor &x) {
         return x.repeat({4, 4}).slice(1, 3, 300).square();
     }},
    {"rows", [](const at::Tensor &x) { return x.tanh().slice(0, 1, 60).square(); }},
    {"expanded",
     [](const at::Tensor &x) {
         return x.exp().unsqueeze(0).expand({3, ROWS, COLUMNS}).square().square();
     }},
    {"unfolded", [](const at::Tensor &x) { return x.exp().unfold(1, 8, 4).square(); }},
    {"channels last",
     [](const at::Tensor &x) {
         at::Tensor y = x.view({2, 32, 16, 32}).tanh();
         return y.contiguous(at::MemoryFormat::ChannelsLast).square();
     }},
    {"heads",
     [](const at::Tensor &x) {
         at::Tensor all = x.repeat({1, 3}).view({4, 16, 3, 4, 128}).permute({2, 0, 3, 1, 4});
         return (all[0] * all[1]).tanh() * all[2];
     }},
    {"changed in place afterwards, and saved again",
     [](const at::Tensor &x) {
         at::Tensor y = x * 1;
         at::Tensor z = (y * y).detach(); /* of the first numbers, without a graph */
         y = y.clone().relu_();
         return y * y * z;
     }},
    {"an output", [](const at::Tensor &x) { return x.sigmoid().square() * x.softmax(1); }},
    {"a leaf without a gradient", [](const at::Tensor &x) { return x * ones(); }},
    {"doubles", /* MPS has none */
     [](const at::Tensor &x) {
         return x.to(suite_on_mps() ? at::kFloat : at::kDouble).exp().square();
     }},
};

at::Tensor gradient_of(int i, int kind) {
    ck_ok(mt_torch_seed(3));
    at::Tensor x = large(), y;
    offloaded(kind, [&] { y = functions[i].run(x); });
    y.to(at::kFloat).square().sum().backward();
    return x.grad();
}

TEST_LOOP("alone", same_gradients, LENGTH(functions)) {
    prepare();
    at::Tensor plain = gradient_of(_i, MT_OFFLOAD_NEVER);
    for (const auto &kind : kinds) {
        at::Tensor other = gradient_of(_i, kind.kind);
        double error = ((other - plain).norm() / plain.norm()).item().toDouble();
        ck_assert_msg(kind.kind == MT_OFFLOAD_PACK ? error < 0.01 : other.equal(plain),
                      "%s, %s: %g", functions[_i].name, kind.name, error);
    }
}

/* From a card that copies beside what it computes two tensors are on their way, and there until then. */
bool on_lane() {
    return suite_on_card() && !suite_on_mps();
}

/* Bytes of tensors that a graph holds beside its output. */
size_t held_by(int kind, at::Tensor (*run)(const at::Tensor &)) {
    at::Tensor x = large(), y;
    size_t before = tensor_memory().allocated_bytes;
    offloaded(kind, [&] { y = run(x); });
    return tensor_memory().allocated_bytes - before - y.nbytes();
}

/* What waits elsewhere is gone from the budget, in whole or by half. */
TEST("alone", memory) {
    prepare();
    auto run = [](const at::Tensor &x) { return x.sin().exp().tanh().exp().tanh().sin(); };
    const size_t bytes = ROWS * COLUMNS * sizeof(float);
    size_t start = tensor_memory().allocated_bytes;
    ck_assert_uint_eq(held_by(MT_OFFLOAD_NEVER, run), 4 * bytes);
    ck_assert_uint_eq(held_by(MT_OFFLOAD_HOST, run), on_lane() ? 2 * bytes : 0);
    ck_assert_uint_eq(held_by(MT_OFFLOAD_FILE, run), 0);
    size_t packed = held_by(MT_OFFLOAD_PACK, run);
    ck_assert_uint_ge(packed, 2 * bytes);
    ck_assert_uint_lt(packed,
                      suite_on_mps() ? 4 * bytes : 2 * bytes + 1); /* MPS reuses larger buffers */
    ck_assert_uint_eq(tensor_memory().allocated_bytes, start);
}

/* Only on the thread, and only as long as the function runs. */
TEST("alone", where_it_is_on) {
    prepare();
    auto run = [](const at::Tensor &x) { return x.sin().exp().tanh().exp().tanh().sin(); };
    size_t elsewhere = 0, after;
    offloaded(MT_OFFLOAD_HOST, [&] {
        std::thread([&] { elsewhere = held_by(MT_OFFLOAD_NEVER, run); }).join();
        after = held_by(MT_OFFLOAD_NEVER, run);
    });
    ck_assert_uint_gt(elsewhere, 0);
    ck_assert_uint_eq(after, on_lane() ? elsewhere / 2 : 0);
    ck_assert_uint_gt(held_by(MT_OFFLOAD_NEVER, run), after);
    auto throws = [](void *) -> mt_status { throw std::runtime_error("user"); };
    ck_status(mt_offload(tensor_place(), MT_OFFLOAD_HOST, nullptr, throws, nullptr), MT_ETORCH);
    ck_assert_uint_gt(held_by(MT_OFFLOAD_NEVER, run), after);
}

/* Every number of bf16 is within 2^-8. */
TEST("alone", how_near_bf16_is) {
    prepare();
    at::Tensor x = (at::rand({ROWS, COLUMNS}, tensor_device()) * 160 - 80).exp2();
    at::Tensor one = ones().set_requires_grad(true), y;
    offloaded(MT_OFFLOAD_PACK, [&] { y = one * x; });
    y.sum().backward(); /* the gradient of one is x as it comes back */
    double most = ((one.grad() - x).abs() / x).max().item().toDouble();
    ck_assert_double_le(most, 1.0 / 256);
    ck_assert_double_gt(most, 1.0 / 1024);
}

/* What waits keeps the numbers that were saved; what stays, or is on its way yet, is refused, in libtorch's words. */
TEST("alone", changed_in_place) {
    if (mt_card_let_race) mt_card_let_race(1);
    prepare();
    for (bool is_large : {true, false}) {
        at::Tensor x = (is_large ? large() : noise({2, 3}).set_requires_grad(true));
        at::Tensor y, z, expected;
        offloaded(MT_OFFLOAD_HOST, [&] {
            y = x.exp();
            expected = (x * 1).detach().exp() * 2 * (x * 1).detach().exp();
            z = y * y;
            c10::NoGradGuard no_graph;
            y.add_(1);
        });
        std::string words = thrown_by([&] { z.sum().backward(); });
        if (is_large && !on_lane()) {
            ck_assert_str_eq(words.c_str(), "");
            ck_assert(x.grad().allclose(expected));
        } else {
            ck_contains(words.c_str(), "modified by an inplace operation");
        }
    }
}

/* The same tensor, changed between two saves, is two. */
TEST("alone", changed_between) {
    prepare();
    at::Tensor w = large(), x = noise({ROWS, COLUMNS}), y;
    at::Tensor first = x.clone();
    offloaded(MT_OFFLOAD_FILE, [&] {
        y = w * x;
        x.add_(5);
        y = y + w * x;
    });
    y.sum().backward();
    ck_assert(w.grad().equal(first + x));
}

TEST("alone", other_backward_passes) {
    prepare();
    for (const auto &kind : kinds) {
        at::Tensor x = large(), y;
        offloaded(kind.kind, [&] { y = x.sin().square(); });
        y.sum().backward({}, /*retain_graph=*/true);
        at::Tensor once = x.grad().clone();
        y.sum().backward();
        ck_assert(x.grad().equal(2 * once));
        ck_contains(thrown_by([&] { y.sum().backward(); }).c_str(), "second time");

        at::Tensor z, g;
        offloaded(kind.kind, [&] {
            z = x.sin().square();
            g = torch::autograd::grad({z.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
        });
        at::Tensor second = torch::autograd::grad({g.sum()}, {x})[0];
        double tolerance = kind.kind == MT_OFFLOAD_PACK ? 0.05 : 1e-5;
        ck_assert(second.allclose(2 * (2 * x).cos(), tolerance, tolerance));
    }
}

TEST("alone", refused) {
    auto body = [](void *) { return MT_OK; };
    auto stops = [](void *) { return mt_set_error(MT_EUSER, "stop"); };
    prepare();
    const char *place = tensor_place();
    ck_status(mt_offload(place, MT_OFFLOAD_HOST, nullptr, nullptr, nullptr), MT_EINVAL);
    for (int kind : {MT_OFFLOAD_NEVER, MT_OFFLOAD_AUTO, MT_OFFLOAD_AUTO_PACK, 17}) {
        ck_refused(mt_offload(place, kind, nullptr, body, nullptr), MT_EINVAL,
                   "accepted: MT_OFFLOAD_HOST");
    }
    ck_status(mt_offload("nowhere", MT_OFFLOAD_HOST, nullptr, body, nullptr), MT_EINVAL);
    ck_status(mt_offload(place, MT_OFFLOAD_HOST, nullptr, stops, nullptr), MT_EUSER);
    ck_refused(mt_offload(place, MT_OFFLOAD_FILE, "/no/such/folder", body, nullptr), MT_EIO,
               "'/no/such/folder': No such file");
}

} // namespace

SUITE("shim_offload")
