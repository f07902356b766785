/*
 * check_shim_convolution.cpp - segments that end with a convolution, a batch norm or both: the same bits as
 * without, the end run once, what is kept, what is refused, memory that runs out anywhere.
 */
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>

#include "networks/steps.hpp"

using namespace check_shim;
using memtrain::checkpoint_conv;
using memtrain::checkpoint_conv_norm;

namespace {

/* One thread, and our allocator. */
void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    at::globalContext().setDeterministicCuDNN(true); /* as mt_torch_new does */
}

at::Tensor ones(at::IntArrayRef sizes) {
    return at::ones(sizes, tensor_device());
}

/* Which tensors need a gradient, by bits. */
enum { INPUT = 1, SCALE = 2, WEIGHT = 4, BIAS = 8 };

/*
 * A scale, BatchNorm, relu and dropout, and then a convolution of 8 channels, with another norm behind it or
 * without; two steps, so that gradients are added as well as stored. All that is left of them.
 */
template <class Norm, class Conv> struct Net {
    at::Tensor x, scale;
    Norm norm{8};
    Conv conv;
    Norm last{nullptr};

    Net(Conv own, at::IntArrayRef shape, int needs, Norm behind = nullptr)
        : x(noise(shape)), scale(noise({1})), conv(std::move(own)), last(std::move(behind)) {
        norm->to(tensor_device());
        conv->to(tensor_device());
        if (last) last->to(tensor_device());
        x.set_requires_grad(needs & INPUT);
        scale.set_requires_grad(needs & SCALE);
        conv->weight.set_requires_grad(needs & WEIGHT);
        if (conv->bias.defined()) conv->bias.set_requires_grad(needs & BIAS);
        for (at::Tensor &parameter : norm->parameters()) parameter.set_requires_grad(needs & SCALE);
    }
    at::Tensor forward(bool forgets) {
        auto fn = [this](const at::Tensor &t) {
            return at::dropout(norm(t * scale).relu_(), 0.3, true);
        };
        if (last)
            return forgets ? checkpoint_conv_norm(fn, x, conv, last, {norm.ptr()})
                           : last(conv(fn(x)));
        return forgets ? checkpoint_conv(fn, x, conv, {norm.ptr()}) : conv(fn(x));
    }
    /* Strides, by which a kernel may choose its order of adding. */
    void note_order(const at::Tensor &t) {
        for (int64_t stride : t.strides()) orders += " " + std::to_string(stride);
        orders += ";";
    }
    std::string orders;
    std::map<std::string, std::string> train(bool forgets) {
        std::map<std::string, std::string> left;
        for (int i = 0; i < 2; i++) {
            at::Tensor y = forward(forgets);
            left["output " + std::to_string(i)] = raw_bytes(y);
            note_order(y);
            if (y.requires_grad()) y.register_hook([this](const at::Tensor &g) { note_order(g); });
            y.to(at::kFloat).square().sum().backward();
        }
        left["input"] = raw_bytes(x.grad());
        left["scale"] = raw_bytes(scale.grad());
        left["weight"] = raw_bytes(conv->weight.grad());
        if (conv->bias.defined()) left["bias"] = raw_bytes(conv->bias.grad());
        left["norm"] = raw_bytes(norm->weight.grad());
        left["mean"] = raw_bytes(norm->running_mean);
        if (last) {
            for (const auto &named : last->named_parameters())
                left["last " + named.key()] = raw_bytes(named.value().grad());
            for (const auto &named : last->named_buffers())
                left["last " + named.key()] = raw_bytes(named.value());
        }
        left["drawn"] = raw_bytes(at::rand({4}, tensor_device()));
        return left;
    }
};

template <class Body> void with_autocast(bool on, Body &&body) {
    auto call = [](void *user) {
        (*static_cast<std::remove_reference_t<Body> *>(user))();
        return MT_OK;
    };
    if (on)
        ck_ok(mt_amp_autocast(tensor_place(), MT_BFLOAT16, call, &body));
    else
        body();
}

namespace nn = torch::nn;

template <class Norm, class Options, class Conv>
void compare(const Options &options, at::IntArrayRef shape, int needs, bool autocast) {
    std::map<std::string, std::string> left[2];
    std::string orders[2];
    with_autocast(autocast, [&] {
        for (int forgets = 0; forgets < 2; forgets++) {
            ck_ok(mt_torch_seed(5));
            Net<Norm, Conv> net(Conv(options), shape, needs);
            left[forgets] = net.train(forgets);
            orders[forgets] = net.orders;
        }
    });
    ck_assert_uint_eq(left[0].size(), left[1].size());
    std::string other;
    for (const auto &[name, bytes] : left[0])
        if (left[1][name] != bytes) other += " " + name;
    ck_assert_msg(other.empty(),
                  "needs %d, autocast %d, %zu dimensions: other%s; strides%s and with less kept%s",
                  needs, autocast, shape.size() - 2, other.c_str(), orders[0].c_str(),
                  orders[1].c_str());
}

/* Each set of tensors that need a gradient, with and without autocast. */
TEST_LOOP("from C++", same_bits, 2) {
    bool autocast = _i & 1;
    prepare();
    for (int needs = 1; needs < 16; needs++) {
        compare<nn::BatchNorm1d, nn::Conv1dOptions, nn::Conv1d>(nn::Conv1dOptions(8, 6, 3),
                                                                {5, 8, 9}, needs, autocast);
        compare<nn::BatchNorm2d, nn::Conv2dOptions, nn::Conv2d>(
            nn::Conv2dOptions(8, 12, {3, 1}).stride({1, 2}).padding({1, 0}), {5, 8, 9, 7}, needs,
            autocast);
        compare<nn::BatchNorm3d, nn::Conv3dOptions, nn::Conv3d>(nn::Conv3dOptions(8, 4, 2),
                                                                {3, 8, 4, 5, 3}, needs, autocast);
        if (needs & BIAS) continue;
        compare<nn::BatchNorm2d, nn::Conv2dOptions, nn::Conv2d>(
            nn::Conv2dOptions(8, 8, 3).groups(8).dilation(2).bias(false), {5, 8, 9, 7}, needs,
            autocast);
        compare<nn::BatchNorm2d, nn::Conv2dOptions, nn::Conv2d>(
            nn::Conv2dOptions(8, 4, 1).bias(false), {20, 8, 6, 6}, needs, autocast);
    }
}

using Plane = Net<nn::BatchNorm2d, nn::Conv2d>;

/* ends: 1 a convolution, 2 a norm behind it. */
Plane plane(int ends) {
    ck_ok(mt_torch_seed(5));
    return Plane(nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)), {5, 8, 16, 16},
                 INPUT | SCALE | WEIGHT | BIAS,
                 ends == 2 ? nn::BatchNorm2d(8) : nn::BatchNorm2d(nullptr));
}

/* Norms of each kind, of which the convolution's and the norm's parameters learn, or nothing but the norm's. */
template <class Norm, class Conv, class Options>
void compare_norm(const Options &options, at::IntArrayRef shape, const nn::BatchNormOptions &norm,
                  bool training, int needs, bool autocast) {
    std::map<std::string, std::string> left[2];
    with_autocast(autocast, [&] {
        for (int forgets = 0; forgets < 2; forgets++) {
            ck_ok(mt_torch_seed(5));
            Norm last(norm);
            for (at::Tensor &buffer : last->buffers())
                if (buffer.is_floating_point()) buffer.uniform_(0.5, 1.5);
            last->train(training);
            left[forgets] = Net<Norm, Conv>(Conv(options), shape, needs, last).train(forgets);
        }
    });
    ck_assert_uint_eq(left[0].size(), left[1].size());
    for (const auto &[name, bytes] : left[0])
        ck_assert_msg(
            left[1][name] == bytes,
            "needs %d, autocast %d, training %d, momentum %g, affine %d, tracks %d: %s differs",
            needs, autocast, training, norm.momentum().value_or(-1), norm.affine(),
            norm.track_running_stats(), name.c_str());
}

TEST_LOOP("from C++", same_bits_with_a_norm, 4) {
    bool autocast = _i & 1, training = _i & 2;
    const nn::BatchNormOptions kinds[] = {
        nn::BatchNormOptions(6), nn::BatchNormOptions(6).momentum(std::nullopt),
        nn::BatchNormOptions(6).affine(false).eps(2.0), nn::BatchNormOptions(6).momentum(0.7),
        nn::BatchNormOptions(6).track_running_stats(false)};
    prepare();
    for (const auto &kind : kinds)
        for (int needs = kind.affine() ? 0 : 1; needs < 16; needs++) {
            compare_norm<nn::BatchNorm1d, nn::Conv1d>(nn::Conv1dOptions(8, 6, 3), {5, 8, 9}, kind,
                                                      training, needs, autocast);
            compare_norm<nn::BatchNorm2d, nn::Conv2d>(nn::Conv2dOptions(8, 6, 3).padding(1),
                                                      {5, 8, 9, 7}, kind, training, needs,
                                                      autocast);
            compare_norm<nn::BatchNorm3d, nn::Conv3d>(nn::Conv3dOptions(8, 6, 2), {3, 8, 4, 5, 3},
                                                      kind, training, needs, autocast);
        }
}

/* One parameter of the norm learns, and nothing else does. */
TEST_LOOP("from C++", one_parameter, 2) {
    prepare();
    at::Tensor gradients[2];
    for (int forgets = 0; forgets < 2; forgets++) {
        ck_ok(mt_torch_seed(5));
        nn::Conv2d conv(nn::Conv2dOptions(3, 8, 3));
        nn::BatchNorm2d norm(8);
        conv->to(tensor_device());
        norm->to(tensor_device());
        at::Tensor x = noise({2, 3, 6, 6});
        auto fn = [](const at::Tensor &t) { return t.relu(); };
        at::Tensor &one = _i ? norm->bias : norm->weight;
        for (at::Tensor &parameter : conv->parameters()) parameter.set_requires_grad(false);
        for (at::Tensor &parameter : norm->parameters()) parameter.set_requires_grad(false);
        one.set_requires_grad(true);
        (forgets ? checkpoint_conv_norm(fn, x, conv, norm) : norm(conv(fn(x))))
            .square()
            .sum()
            .backward();
        gradients[forgets] = one.grad();
        ck_assert(!conv->weight.grad().defined());
    }
    ck_assert(gradients[0].equal(gradients[1]));
}

/* Nothing to take a mean of. */
TEST("from C++", no_samples) {
    prepare();
    for (bool affine : {false, true}) {
        nn::Conv2d conv(nn::Conv2dOptions(3, 8, 3));
        nn::BatchNorm2d norm(nn::BatchNormOptions(8).affine(affine));
        conv->to(tensor_device());
        norm->to(tensor_device());
        at::Tensor x = noise({0, 3, 6, 6}).set_requires_grad(true);
        auto fn = [](const at::Tensor &t) { return t.relu(); };
        at::Tensor y = checkpoint_conv_norm(fn, x, conv, norm);
        ck_assert(y.sizes() == at::IntArrayRef({0, 8, 4, 4}));
        y.sum().backward();
        ck_assert(x.grad().defined() && x.grad().sizes() == x.sizes());
        ck_assert(conv->weight.grad().equal(at::zeros_like(conv->weight)));
    }
}

template <class Body> std::string refusal(Body &&body) {
    try {
        body();
    } catch (const std::exception &e) {
        return e.what();
    }
    return "not refused";
}

/* As the modules themselves do. */
TEST("from C++", other_dimensions) {
    prepare();
    nn::Conv2d conv(nn::Conv2dOptions(8, 8, 3));
    conv->to(tensor_device());
    auto fn = [](const at::Tensor &t) { return t.relu(); };
    std::string one = refusal([&] {
        (void)checkpoint_conv_norm(fn, noise({2, 8, 10, 10}), conv, nn::BatchNorm1d(8));
    });
    ck_contains(one.c_str(), "gives 4 dimensions, the norm wants 3");
    std::string unbatched = refusal([&] {
        (void)checkpoint_conv_norm(fn, noise({8, 10, 10}), conv, nn::BatchNorm2d(8));
    });
    ck_contains(unbatched.c_str(), "a tensor of 3 dimensions");
}

/* What the backward pass needs as it was; the bias of a convolution only where that is run again. */
TEST("from C++", changed_in_between) {
    const struct {
        int ends;
        bool training;
        at::Tensor (*changed)(Plane &);
        bool is_refused;
    } rows[] = {
        {1, true, [](Plane &p) { return p.conv->weight; }, true},
        {1, true, [](Plane &p) { return p.conv->bias; }, false},
        {2, true, [](Plane &p) { return p.conv->weight; }, true},
        {2, true, [](Plane &p) { return p.conv->bias; }, true},
        {2, true, [](Plane &p) { return p.last->weight; }, true},
        {2, true, [](Plane &p) { return p.last->bias; }, false},
        {2, true, [](Plane &p) { return p.last->running_var; }, false},
        {2, false, [](Plane &p) { return p.last->running_mean; }, true},
        {2, false, [](Plane &p) { return p.last->running_var; }, true},
    };
    prepare();
    for (const auto &row : rows) {
        Plane net = plane(row.ends);
        if (net.last) net.last->train(row.training);
        at::Tensor y = net.forward(true);
        {
            c10::NoGradGuard no_graph;
            row.changed(net).add_(1);
        }
        std::string words = refusal([&] { y.sum().backward(); });
        ck_contains(words.c_str(), row.is_refused ? "changed in place between" : "not refused");
    }
}

/* Any other module behind a convolution is a part of the segment like others. */
TEST("from C++", another_norm) {
    prepare();
    at::Tensor results[2], gradients[2];
    for (int forgets = 0; forgets < 2; forgets++) {
        ck_ok(mt_torch_seed(5));
        nn::Conv2d conv(nn::Conv2dOptions(3, 8, 3));
        nn::GroupNorm norm(2, 8);
        conv->to(tensor_device());
        norm->to(tensor_device());
        at::Tensor x = noise({2, 3, 6, 6});
        auto fn = [](const at::Tensor &t) { return t.relu(); };
        results[forgets] = forgets ? checkpoint_conv_norm(fn, x, conv, norm) : norm(conv(fn(x)));
        results[forgets].square().sum().backward();
        gradients[forgets] = conv->weight.grad();
    }
    ck_assert(results[0].equal(results[1]) && gradients[0].equal(gradients[1]));
}

int convolutions, norms;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction &call) {
    convolutions += std::string(call.name()) == "aten::conv2d";
    norms += std::string(call.name()) == "aten::native_batch_norm" ||
             std::string(call.name()) == "aten::cudnn_batch_norm";
    return nullptr;
}

/*
 * The rest is run again: that is what it is for. So is a convolution that a norm is behind, but not that norm; the
 * other norm is.
 */
TEST_LOOP("from C++", runs_once, 2) {
    const int ends = _i + 1;
    prepare();
    Plane net = plane(ends);
    auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(count));
    at::Tensor y = net.forward(true);
    ck_assert_int_eq(convolutions, 1);
    ck_assert_int_eq(norms, ends);
    y.sum().backward();
    at::removeCallback(handle);
    ck_assert_int_eq(convolutions, ends);
    ck_assert_int_eq(norms, ends + 1);
    ck_assert(net.conv->weight.grad().defined());
}

/* After the forward pass the output alone is there; when the graph goes, nothing. */
TEST_LOOP("from C++", memory, 2) {
    prepare();
    Plane net = plane(_i + 1);
    size_t one = 5 * 8 * 16 * 16 * sizeof(float), start = tensor_memory().allocated_bytes;
    {
        at::Tensor y = net.forward(true);
        ck_assert_uint_le(tensor_memory().allocated_bytes - start, one + 4096);
    }
    ck_assert_uint_eq(tensor_memory().allocated_bytes, start);
    at::Tensor y = net.forward(false);
    ck_assert_uint_gt(tensor_memory().allocated_bytes - start, 3 * one);
}

/* Each request fails in turn: the type is libtorch's, nothing is left over, and a new try has the bits. */
TEST_LOOP("from C++", memory_runs_out, 2) {
    const int ends = _i + 1;
    prepare();
    auto expected = plane(ends).train(false);
    uint64_t n = 1;
    (void)plane(ends).train(true);
    size_t held = tensor_memory().allocated_bytes;
    for (; runs_out_at(n, [&] { (void)plane(ends).train(true); }); n++) {
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
        if (n % 9 == 1) ck_assert(plane(ends).train(true) == expected);
    }
    ck_assert_uint_gt(n, 40);
}

/* ---- from C ------------------------------------------------------------------------------------------ */

/* The segment gives its input, or another shape the second time. */
struct Same {
    bool changes_shape = false, empty = false;
    int runs = 0, destroyed = 0;

    static mt_status run(void *self, mt_tensor *const *in, size_t, mt_tensor *const *out, size_t) {
        Same &s = *static_cast<Same *>(self);
        at::Tensor x = memtrain::tensor(in[0]);
        if (s.runs++ && s.changes_shape) x = x.narrow(0, 0, 1);
        if (!s.empty) memtrain::tensor(out[0]) = x * 2;
        return MT_OK;
    }
    static void destroy(void *self) { static_cast<Same *>(self)->destroyed++; }
};

struct Call {
    Same same;
    memtrain::detail::Handle in, out, other, weight, bias, gamma, mean;
    mt_segment_ops ops = MT_SEGMENT_OPS_INIT;
    mt_conv conv = MT_CONV_INIT;
    mt_batch_norm norm = MT_BATCH_NORM_INIT;

    Call() : in(noise({2, 3, 5})), weight(noise({4, 3, 2}).set_requires_grad(true)) {
        ops.run = Same::run;
        ops.destroy = Same::destroy;
        ops.conv = &conv;
        conv.weight = weight.get();
        memtrain::tensor(gamma.get()) = ones({4}).set_requires_grad(true);
        memtrain::tensor(mean.get()) = at::zeros({4}, tensor_device());
    }
    /* With a norm as well, or with that alone. */
    Call &with_norm(bool alone = false) {
        ops.batch_norm = &norm;
        norm.weight = gamma.get();
        if (alone) {
            ops.conv = nullptr;
            memtrain::tensor(gamma.get()) = ones({3}).set_requires_grad(true);
        }
        return *this;
    }
    mt_status operator()(size_t outputs = 1) {
        mt_tensor *inputs[] = {in.get()}, *results[] = {out.get(), other.get()};
        return mt_checkpoint(&ops, &same, inputs, 1, results, outputs);
    }
};

TEST("from C", from_c) {
    prepare();
    Call call;
    ck_ok(call());
    ck_assert_int_eq(call.same.runs, 1);
    at::Tensor y = memtrain::tensor(call.out.get());
    ck_assert(y.sizes() == at::IntArrayRef({2, 4, 4}));
    y.sum().backward();
    ck_assert_int_eq(call.same.runs, 2);
    ck_assert_int_eq(call.same.destroyed, 1);
    ck_assert(memtrain::tensor(call.weight.get()).grad().defined());
    {
        c10::NoGradGuard no_graph;
        ck_ok(call());
    }
    ck_assert(memtrain::tensor(call.out.get()).equal(y));
}

/* Of what run gives itself. */
TEST("from C", norm_alone) {
    prepare();
    Call call;
    ck_ok(call.with_norm(true)());
    at::Tensor y = memtrain::tensor(call.out.get());
    at::Tensor x = memtrain::tensor(call.in.get()) * 2, one = ones({3}).set_requires_grad(true);
    at::Tensor expected = at::batch_norm(x, one, {}, {}, {}, true, 0.1, 1e-5, true);
    ck_assert(y.equal(expected));
    y.square().sum().backward();
    expected.square().sum().backward();
    ck_assert(memtrain::tensor(call.gamma.get()).grad().equal(one.grad()));
    ck_assert_int_eq(call.same.runs, 2);
}

/* With the running statistics one value is enough. */
TEST("from C", one_value) {
    prepare();
    Call call;
    memtrain::detail::Handle variance(at::full({3}, 4.0, tensor_device()));
    call.with_norm(true);
    memtrain::tensor(call.in.get()) = ones({1, 3, 1});
    memtrain::tensor(call.mean.get()) = at::zeros({3}, tensor_device());
    call.norm.training = 0;
    call.norm.epsilon = 0;
    call.norm.running_mean = call.mean.get();
    call.norm.running_var = variance.get();
    ck_ok(call());
    ck_assert(memtrain::tensor(call.out.get()).equal(ones({1, 3, 1})));
}

TEST("from C", refused) {
    const struct {
        void (*set)(Call &);
        size_t outputs;
        mt_status status;
        const char *words;
    } rows[] = {
        {[](Call &c) { c.conv.weight = nullptr; }, 1, MT_EINVAL, "ops->conv->weight"},
        {[](Call &c) { memtrain::tensor(c.weight.get()).reset(); }, 1, MT_EINVAL, "0 dimensions"},
        {[](Call &c) {
             memtrain::tensor(c.weight.get()) = noise({4, 3});
         },
         1, MT_EINVAL, "2 dimensions; accepted: 3 to 5"},
        {[](Call &c) {
             at::Tensor &w = memtrain::tensor(c.weight.get());
             w = w * 2;
         },
         1, MT_ENOTSUP, "weight is computed from other tensors"},
        {[](Call &c) {
             memtrain::tensor(c.bias.get()) = noise({4}).set_requires_grad(true) * 2;
             c.conv.bias = c.bias.get();
         },
         1, MT_ENOTSUP, "bias is computed from other tensors"},
        {[](Call &c) { c.conv.size = 3; }, 1, MT_EINVAL, "ops->conv"},
        {[](Call &) {}, 2, MT_EINVAL, "output_count is 2; accepted: 1"},
        {[](Call &c) { c.same.empty = true; }, 1, MT_EINVAL, "outputs[0] empty"},
        {[](Call &c) { c.conv.groups = 2; }, 1, MT_EUSER, "groups"},
        {[](Call &c) { c.with_norm().norm.size = 3; }, 1, MT_EINVAL, "ops->batch_norm"},
        {[](Call &c) { c.with_norm(true); }, 2, MT_EINVAL,
         "ops->batch_norm is given and output_count"},
        {[](Call &c) {
             c.with_norm();
             at::Tensor &w = memtrain::tensor(c.gamma.get());
             w = w * 2;
         },
         1, MT_ENOTSUP, "ops->batch_norm->weight is computed"},
        {[](Call &c) {
             c.with_norm().norm.running_mean = c.gamma.get();
             c.norm.running_var = c.mean.get();
         },
         1, MT_EINVAL, "running_mean needs a gradient"},
        {[](Call &c) { c.with_norm().norm.momentum = NAN; }, 1, MT_EINVAL, "momentum is nan"},
        {[](Call &c) { c.with_norm().norm.epsilon = -1; }, 1, MT_EINVAL, "epsilon is -1"},
        {[](Call &c) { c.with_norm().norm.epsilon = INFINITY; }, 1, MT_EINVAL, "epsilon is inf"},
        {[](Call &c) { c.with_norm().norm.training = 0; }, 1, MT_EINVAL, "no running_mean"},
        {[](Call &c) { c.with_norm().norm.running_var = c.mean.get(); }, 1, MT_EINVAL,
         "no running_mean and a running_var"},
        {[](Call &c) {
             c.with_norm();
             memtrain::tensor(c.gamma.get()) = ones({5});
         },
         1, MT_EUSER, "weight"},
        {[](Call &c) {
             c.with_norm(true);
             memtrain::tensor(c.in.get()) = ones({1, 3, 1});
         },
         1, MT_EINVAL, "one value a channel"},
        {[](Call &c) {
             c.with_norm(true);
             memtrain::tensor(c.in.get()) = ones({3});
         },
         1, MT_EINVAL, "1 dimensions"},
    };
    prepare();
    for (const auto &row : rows) {
        Call call;
        row.set(call);
        mt_status status = call(row.outputs);
        ck_contains(mt_last_error(), row.words);
        if (row.status != MT_EUSER) ck_assert_int_eq(status, row.status);
        ck_assert_int_ne(status, MT_OK);
        ck_assert_int_eq(call.same.destroyed, 1);
        ck_assert(!memtrain::tensor(call.out.get()).defined());
    }
}

TEST("from C", refused_in_the_backward_pass) {
    prepare();
    Call call;
    call.same.changes_shape = true;
    ck_ok(call());
    std::string words = refusal([&] { memtrain::tensor(call.out.get()).sum().backward(); });
    ck_contains(words.c_str(), "[2, 3, 5]");
    ck_contains(words.c_str(), "[1, 3, 5]");
}

/* Paddings that are no number of zeros. */
TEST("from C++", other_paddings) {
    prepare();
    nn::Conv2dOptions same = nn::Conv2dOptions(8, 8, 3).padding(torch::kSame);
    nn::Conv2dOptions around = nn::Conv2dOptions(8, 8, 3).padding(1).padding_mode(torch::kCircular);
    for (const auto &options : {same, around}) {
        Plane net(nn::Conv2d(options), {2, 8, 5, 5}, WEIGHT);
        bool is_refused = false;
        try {
            (void)net.forward(true);
        } catch (const std::invalid_argument &e) {
            ck_contains(e.what(), "padding");
            is_refused = true;
        }
        ck_assert(is_refused);
    }
}

} // namespace

SUITE("shim_convolution")
