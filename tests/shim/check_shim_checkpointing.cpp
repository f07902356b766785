/*
 * check_shim_checkpointing.cpp - segments: the same bits as without, what is put back after the second
 * run, what is refused, memory that runs out anywhere; alone, in an mt_torch, and as a rung.
 */
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include "networks/steps.hpp"
#include "owned.hpp"

using namespace check_shim;
using memtrain::checkpoint;
using memtrain::Tensors;

namespace {

at::Generator generator() {
    return at::globalContext().defaultGenerator(tensor_device());
}

/* One thread, and our allocator. */
void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(7));
}

/* ---- alone: the same bits -------------------------------------------------------------------------- */

/* Convolution, BatchNorm, relu in place, dropout. */
struct BlockImpl : nn::Module {
    nn::Conv2d conv;
    nn::BatchNorm2d norm;

    BlockImpl(int64_t in, int64_t out)
        : conv(register_module("conv", nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)))),
          norm(register_module("norm", nn::BatchNorm2d(out))) {}
    at::Tensor forward(at::Tensor x) {
        return at::dropout(norm(conv(x)).relu_(), 0.3, is_training());
    }
};
TORCH_MODULE(Block);

nn::Sequential three_blocks(int64_t last) {
    return nn::Sequential(Block(3, 8), Block(8, 8), Block(8, last));
}

using Way = std::function<at::Tensor(nn::Sequential &, at::Tensor)>;

/* How three blocks are run; the first one is the plain way. */
const struct {
    const char *name;
    Way run;
} ways[] = {
    {"plain", [](nn::Sequential &net, at::Tensor x) { return net->forward(x); }},
    {"each",
     [](nn::Sequential &net, at::Tensor x) {
         for (auto &one : *net) x = checkpoint(one, x);
         return x;
     }},
    {"as one", [](nn::Sequential &net, at::Tensor x) { return checkpoint(net, x); }},
    {"two of three",
     [](nn::Sequential &net, at::Tensor x) { return memtrain::checkpoint_sequential(net, 2, x); }},
    {"shared_ptr", [](nn::Sequential &net, at::Tensor x) { return checkpoint(net.ptr(), x); }},
    {"function",
     [](nn::Sequential &net, at::Tensor x) {
         auto run = [net](const at::Tensor &t) mutable { return net->forward(t); };
         return checkpoint(run, x, {net.ptr()});
     }},
    {"nested",
     [](nn::Sequential &net, at::Tensor x) {
         auto run = [net](const at::Tensor &t) {
             return memtrain::checkpoint_sequential(net, 3, t);
         };
         return checkpoint(run, x, {net.ptr()});
     }},
    {"nested twice",
     [](nn::Sequential &net, at::Tensor x) {
         auto inner = [net](const at::Tensor &t) {
             return memtrain::checkpoint_sequential(net, 3, t);
         };
         auto outer = [net, inner](const at::Tensor &t) {
             return checkpoint(inner, t, {net.ptr()});
         };
         return checkpoint(outer, x, {net.ptr()});
     }},
};

/* What a training step leaves behind, bytes by name. */
using Result = std::map<std::string, std::string>;

struct Setting {
    bool input_needs_gradient, autocast;
};
const Setting settings[] = {{false, false}, {true, false}, {false, true}, {true, true}};

at::Tensor forward(const Way &way, nn::Sequential &net, const at::Tensor &x, bool autocast) {
    struct Call {
        const Way &way;
        nn::Sequential &net;
        const at::Tensor &x;
        at::Tensor y;
    } call{way, net, x, {}};
    auto body = [](void *user) {
        auto &c = *static_cast<Call *>(user);
        c.y = c.way(c.net, c.x);
        return MT_OK;
    };
    if (!autocast) return way(net, x);
    ck_ok(mt_amp_autocast(tensor_place(), MT_BFLOAT16, body, &call));
    return call.y;
}

/* Two steps, so that gradients are added as well as stored. */
Result train(const Way &way, const Setting &setting) {
    ck_ok(mt_torch_seed(3));
    nn::Sequential net = three_blocks(4);
    net->to(tensor_device());
    at::Tensor x = noise({5, 3, 8, 8}).set_requires_grad(setting.input_needs_gradient);
    Result result;
    for (int i = 0; i < 2; i++) {
        at::Tensor y = forward(way, net, x, setting.autocast);
        ck_assert(y.requires_grad());
        result["output " + std::to_string(i)] = raw_bytes(y);
        at::Tensor drawn = at::rand({}, tensor_device()); /* after all dropouts */
        (y.to(at::kFloat).square().sum() * drawn).backward();
        result["drawn " + std::to_string(i)] = raw_bytes(at::rand({4}, tensor_device()));
    }
    result["input"] = raw_bytes(x.grad());
    for (const auto &p : net->named_parameters()) result[p.key()] = raw_bytes(p.value().grad());
    for (const auto &b : net->named_buffers()) result[b.key()] = raw_bytes(b.value());
    result["rng"] = raw_bytes(generator().get_state());
    return result;
}

TEST_LOOP("alone", same_bits_alone, LENGTH(settings)) {
    const Setting &setting = settings[_i];
    prepare();
    Result expected = train(ways[0].run, setting);
    for (int way = 1; way < LENGTH(ways); way++) {
        Result result = train(ways[way].run, setting);
        ck_assert_uint_eq(result.size(), expected.size());
        for (const auto &[name, bytes] : expected)
            ck_assert_msg(result[name] == bytes, "%s: %s differs", ways[way].name, name.c_str());
    }
}

/* A weight that a segment uses and its successor too: the first run's cast of it has no graph. */
TEST("alone", casts_are_not_left_behind) {
    prepare();
    nn::Linear linear(8, 8);
    linear->to(tensor_device());
    at::Tensor x = noise({4, 8}), expected;
    for (int forget = 0; forget < 2; forget++) {
        at::Tensor y;
        auto body = [&] {
            y = forget ? checkpoint(linear, x) : linear(x);
            y = linear(y);
        };
        ck_ok(mt_amp_autocast(
            tensor_place(), MT_BFLOAT16,
            [](void *user) {
                (*static_cast<decltype(body) *>(user))();
                return MT_OK;
            },
            &body));
        y.to(at::kFloat).square().sum().backward();
        if (forget) ck_assert(linear->weight.grad().allclose(expected, 0.05, 0.05));
        expected = linear->weight.grad().clone();
        linear->weight.mutable_grad().reset();
    }
}

/* Without the names of its buffers a function's running statistics count twice: so they are needed. */
TEST("alone", buffers_are_asked_for) {
    prepare();
    Way unnamed = [](nn::Sequential &net, at::Tensor x) {
        return checkpoint([net](const at::Tensor &t) mutable { return net->forward(t); }, x);
    };
    Result expected = train(ways[0].run, settings[0]), result = train(unnamed, settings[0]);
    ck_assert(result["0.norm.running_mean"] != expected["0.norm.running_mean"]);
    ck_assert(result["0.conv.weight"] == expected["0.conv.weight"]);
}

size_t held_after(const Way &way, nn::Sequential &net, const at::Tensor &x) {
    size_t before = tensor_memory().allocated_bytes;
    at::Tensor y = way(net, x);
    return tensor_memory().allocated_bytes - before;
}

/* After the forward pass only the boundaries are there; when the graph goes, nothing. */
TEST("alone", memory) {
    prepare();
    nn::Sequential net = three_blocks(8);
    net->to(tensor_device());
    at::Tensor x = noise({5, 3, 16, 16});
    size_t boundary = 5 * 8 * 16 * 16 * sizeof(float), start = tensor_memory().allocated_bytes;
    size_t plain = held_after(ways[0].run, net, x), each = held_after(ways[1].run, net, x);
    ck_assert_uint_le(each, 3 * boundary + 4096);
    ck_assert_uint_gt(plain, 2 * each);
    ck_assert_uint_eq(tensor_memory().allocated_bytes, start);
    ck_assert_uint_le(held_after(ways[2].run, net, x), boundary + 4096);
}

/* ---- several inputs and outputs ---------------------------------------------------------------------- */

/* One output is integral, one is not used, one is an input. */
Tensors several(const Tensors &in) {
    at::Tensor product = in[0] * in[1];
    return {product.sin(), product.argmax(1), product.cos(), in[0]};
}

TEST("alone", several_tensors) {
    prepare();
    at::Tensor a = noise({3, 4}).set_requires_grad(true), b = noise({3, 4});
    for (int forget = 0; forget < 2; forget++) {
        for (bool both : {false, true}) {
            a.mutable_grad().reset();
            Tensors out = forget ? checkpoint(several, Tensors{a, b}, 4) : several({a, b});
            ck_assert(!out[1].requires_grad());
            at::Tensor loss = both ? (out[0] + out[3]).sum() : out[3].sum();
            loss.backward();
            at::Tensor expected = both ? b * (a * b).cos() + 1 : at::ones_like(a);
            ck_assert(a.grad().allclose(expected));
            ck_assert(out[1].equal((a * b).argmax(1)));
        }
    }
}

/* ---- from C ------------------------------------------------------------------------------------------ */

/* y = w x, twice as many columns the second time where that is asked for. */
struct Scale {
    at::Tensor w;
    int runs = 0, destroyed = 0;
    mt_status result = MT_OK;
    bool in_place = false, empty = false, changes_shape = false, changes_dtype = false;

    static mt_status run(void *self, mt_tensor *const *in, size_t, mt_tensor *const *out, size_t) {
        Scale &s = *static_cast<Scale *>(self);
        at::Tensor x = memtrain::tensor(in[0]), y = x * s.w;
        bool again = s.runs++ > 0;
        if (s.in_place) x.add_(1);
        if (s.changes_shape && again) y = at::cat({y, y}, 1);
        if (s.changes_dtype && again) y = y.to(at::kHalf);
        if (s.result != MT_OK && again) return mt_set_error(s.result, "the segment says no");
        if (!s.empty) memtrain::tensor(out[0]) = y;
        return MT_OK;
    }
    static void destroy(void *self) { static_cast<Scale *>(self)->destroyed++; }

    mt_segment_ops ops() const {
        mt_segment_ops o = MT_SEGMENT_OPS_INIT;
        o.run = run;
        o.destroy = destroy;
        return o;
    }
};

struct Handles {
    mt_tensor *in = nullptr, *out = nullptr;
    explicit Handles(const at::Tensor &x) {
        ck_ok(mt_tensor_new(&in));
        ck_ok(mt_tensor_new(&out));
        memtrain::tensor(in) = x;
    }
    ~Handles() {
        mt_tensor_free(in);
        mt_tensor_free(out);
    }
    Handles(const Handles &) = delete;
    Handles &operator=(const Handles &) = delete;
};

mt_status run(Scale &scale, Handles &handles) {
    mt_segment_ops ops = scale.ops();
    return mt_checkpoint(&ops, &scale, &handles.in, 1, &handles.out, 1);
}

Scale scale() {
    Scale s;
    s.w = noise({2, 3}).set_requires_grad(true);
    return s;
}

TEST("alone", from_c) {
    prepare();
    Scale s = scale();
    {
        Handles h(noise({2, 3}));
        ck_ok(run(s, h));
        ck_assert_int_eq(s.runs, 1);
        at::Tensor y = memtrain::tensor(h.out);
        y.sum().backward({}, /*retain_graph=*/true);
        y.sum().backward(); /* the first one has kept the segment */
        ck_assert_int_eq(s.runs, 3);
        ck_assert_int_eq(s.destroyed, 1);
        ck_assert(s.w.grad().allclose(2 * memtrain::tensor(h.in)));
    }
    ck_assert_int_eq(s.destroyed, 1);
}

/* Without a graph the segment is run and forgotten. */
TEST("alone", without_a_graph) {
    prepare();
    Scale s = scale();
    Handles h(noise({2, 3}));
    ck_assert_int_eq(mt_checkpoint_forgets(), 1);
    {
        c10::NoGradGuard no_graph;
        ck_assert_int_eq(mt_checkpoint_forgets(), 0);
        ck_ok(run(s, h));
    }
    ck_assert(!memtrain::tensor(h.out).requires_grad());
    ck_assert_int_eq(s.destroyed, 1);
}

/* A graph that is dropped destroys its segments. */
TEST("alone", dropped) {
    prepare();
    Scale s = scale();
    Handles h(noise({2, 3}));
    ck_ok(run(s, h));
    ck_assert_int_eq(s.destroyed, 0);
    memtrain::tensor(h.out).reset();
    ck_assert_int_eq(s.destroyed, 1);
}

TEST("alone", refused_at_once) {
    prepare();
    at::Tensor x = noise({2, 3});
    {
        Scale s = scale();
        Handles h(x);
        s.in_place = true;
        ck_refused(run(s, h), MT_EINVAL, "in place");
        ck_assert_int_eq(s.destroyed, 1);
        ck_assert(!memtrain::tensor(h.out).defined());
    }
    {
        Scale s = scale();
        Handles h(x);
        s.empty = true;
        ck_refused(run(s, h), MT_EINVAL, "outputs[0]");
        ck_assert_int_eq(s.destroyed, 1);
    }
    Scale s = scale();
    Handles h(x);
    mt_segment_ops ops = s.ops();
    mt_tensor *gone = nullptr;
    ck_status(mt_checkpoint(nullptr, &s, &h.in, 1, &h.out, 1), MT_EINVAL);
    ck_refused(mt_checkpoint(&ops, &s, nullptr, 1, &h.out, 1), MT_EINVAL, "inputs is NULL");
    ck_refused(mt_checkpoint(&ops, &s, &gone, 1, &h.out, 1), MT_EINVAL, "inputs[0]");
    ck_refused(mt_checkpoint(&ops, &s, &h.in, 1, &gone, 1), MT_EINVAL, "outputs[0]");
    ops.run = nullptr;
    ck_refused(mt_checkpoint(&ops, &s, &h.in, 1, &h.out, 1), MT_EINVAL, "ops->run");
    ck_assert_int_eq(s.destroyed, 4);
    ck_assert_int_eq(s.runs, 0);
    ck_status(mt_tensor_new(nullptr), MT_EINVAL);
}

TEST_LOOP("alone", refused_in_the_backward_pass, 4) {
    const struct {
        void (*set)(Scale &);
        const char *words[2];
    } table[] = {
        {[](Scale &s) { s.changes_shape = true; }, {"[2, 3]", "[2, 6]"}},
        {[](Scale &s) { s.changes_dtype = true; }, {"Float", "Half"}},
        {[](Scale &s) { s.empty = true; }, {"outputs[0]", "empty"}},
        {[](Scale &s) { s.result = MT_EUSER; }, {"the segment says no", ""}},
    };
    prepare();
    Scale s = scale();
    Handles h(noise({2, 3}));
    if (_i != 2) table[_i].set(s);
    ck_ok(run(s, h));
    if (_i == 2) table[_i].set(s);
    at::Tensor y = memtrain::tensor(h.out);
    std::string words = thrown_by([&] { y.sum().backward(); });
    for (const char *word : table[_i].words) ck_contains(words.c_str(), word);
    ck_assert(!s.w.grad().defined());
}

TEST("alone", other_backward_passes) {
    prepare();
    Scale s = scale();
    Handles h(noise({2, 3}).set_requires_grad(true));
    ck_ok(run(s, h));
    at::Tensor x = memtrain::tensor(h.in), y = memtrain::tensor(h.out);
    std::string words = thrown_by([&] { y.sum().backward({}, true, /*create_graph=*/true); });
    ck_contains(words.c_str(), "gradients of gradients");
    words = thrown_by([&] { torch::autograd::grad({y.sum()}, {x}, {}, true); });
    ck_contains(words.c_str(), "some inputs");
    y.sum().backward();
    words = thrown_by([&] { y.sum().backward(); });
    ck_contains(words.c_str(), "second time");
    ck_assert(x.grad().allclose(s.w));
}

/* What the input was is needed again. */
TEST("alone", input_changed_later) {
    prepare();
    Scale s = scale();
    Handles h(noise({2, 3}));
    ck_ok(run(s, h));
    memtrain::tensor(h.in).add_(1);
    std::string words = thrown_by([&] { memtrain::tensor(h.out).sum().backward(); });
    ck_contains(words.c_str(), "modified by an inplace operation");
}

/* ---- errors of C++ ----------------------------------------------------------------------------------- */

TEST("alone", what_fn_throws) {
    prepare();
    at::Tensor x = noise({2, 3}).set_requires_grad(true);
    bool caught = false;
    try {
        checkpoint([](const at::Tensor &) -> at::Tensor { throw std::out_of_range("far"); }, x);
    } catch (const std::out_of_range &e) {
        caught = true;
        ck_assert_str_eq(e.what(), "far");
    }
    ck_assert(caught);
    int runs = 0;
    auto later = [&runs](const at::Tensor &t) -> at::Tensor {
        if (runs++) throw std::out_of_range("later");
        return t * 2;
    };
    at::Tensor y = checkpoint(later, x);
    ck_assert(thrown_by([&] { y.sum().backward(); }) == "later");
    auto wrong = [](const Tensors &in) { return in; };
    ck_contains(thrown_by([&] { checkpoint(wrong, Tensors{x}, 2); }).c_str(), "1 tensors");
    nn::Sequential net(nn::Linear(3, 3));
    for (size_t segments : {0, 2})
        ck_contains(thrown_by([&] { memtrain::checkpoint_sequential(net, segments, x); }).c_str(),
                    "accepted: 1 to 1");
}

/* A module that learns nothing and whose input needs no gradient is run as it is. */
TEST("alone", frozen) {
    prepare();
    nn::Linear linear(3, 2);
    linear->to(tensor_device());
    at::Tensor x = noise({4, 3});
    for (at::Tensor &parameter : linear->parameters()) parameter.set_requires_grad(false);
    ck_assert(!checkpoint(linear, x).requires_grad());
    x.set_requires_grad(true);
    checkpoint(linear, x).sum().backward();
    ck_assert(x.grad().defined());
    auto constant = [](const at::Tensor &t) { return t.detach() * 2; };
    (checkpoint(constant, x) + x).sum().backward(); /* the segment has no graph to go through */
}

/* Each request fails in turn: the type is libtorch's, nothing is left over, and a new try has the bits. */
TEST_LOOP("alone", memory_runs_out_alone, 2) {
    prepare();
    Result expected = train(ways[0].run, settings[1]);
    const Way &way = ways[_i ? 6 : 1].run; /* nested, or each */
    uint64_t n = 1;
    train(way, settings[1]);
    size_t held = tensor_memory().allocated_bytes;
    for (; runs_out_at(n, [&] { train(way, settings[1]); }); n += 7) {
        if (n % 5 != 1) continue;
        Result result = train(way, settings[1]);
        for (const auto &[name, bytes] : expected)
            ck_assert_msg(result[name] == bytes, "request %llu: %s", (unsigned long long)n,
                          name.c_str());
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
    }
    ck_assert_uint_gt(n, 7 * (suite_on_card() ? 30 : 50)); /* a card's kernels ask for nothing */
}

/* ---- in an mt_torch ---------------------------------------------------------------------------------- */

using networks::CLASSES;
using networks::hash_of;
using networks::Ladder;
using networks::Network;
using networks::step;
using networks::Subject;

mt_torch_options options_for(int checkpointing, mt_dtype amp = MT_DTYPE_NONE) {
    mt_torch_options options = options_of(MT_SGD, 1.0);
    options.checkpointing = checkpointing;
    options.amp = amp;
    return options;
}

struct Trained {
    std::string hash;
    std::vector<double> losses;
    size_t peak;
    mt_arena_stats arena;
};

/* Enough steps for the arena to have plans; kind: 0 in place, 1 marked, 2 one marked chunk. */
Trained train(const Network &network, int checkpointing, int kind, mt_dtype amp) {
    networks::prepare();
    mt_torch_options options = options_for(checkpointing, amp);
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    Trained trained = {"", {}, 0, MT_ARENA_STATS_INIT};
    const std::vector<size_t> chunks =
        kind == 2 ? std::vector<size_t>{5} : std::vector<size_t>{3, 2};
    for (int i = 0; i < 5; i++)
        trained.peak = step(subject, batch, chunks, kind > 0, &trained.losses);
    trained.hash = hash_of(subject);
    ck_ok(mt_torch_arena(subject.torch, &trained.arena));
    return trained;
}

TEST_LOOP("torch", same_bits, 3 * networks::count) {
    int kind = _i / networks::count;
    for (mt_dtype amp : {MT_DTYPE_NONE, MT_BFLOAT16}) {
        const Network &network = networks::trained_in(amp, networks::all[_i % networks::count]);
        Trained plain = train(network, MT_CHECKPOINTING_AUTO, kind, amp);
        Trained again = train(network, MT_CHECKPOINTING_ON, kind, amp);
        ck_assert(again.losses == plain.losses);
        ck_assert(again.hash == plain.hash);
        if (kind == 0 && suite_has_peaks())
            ck_assert_uint_lt(again.peak, plain.peak); /* else gradients are most of it */
        ck_assert_uint_eq(again.arena.missed, 0);
        if (!suite_has_arena()) continue;
        ck_assert_uint_gt(again.arena.served, 0);
        ck_assert_uint_lt(again.arena.recorded, again.arena.chunks);
    }
}

/* Turned on and off between steps it is all the same bits, and evaluation is what it was. */
TEST_LOOP("torch", on_and_off, networks::count) {
    const Network &network = networks::all[_i];
    std::string hashes[2];
    for (int changes = 0; changes < 2; changes++) {
        networks::prepare();
        mt_torch_options options = options_for(MT_CHECKPOINTING_AUTO);
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        size_t peaks[2];
        for (int i = 0; i < 4; i++) {
            mt_chunk_result result = chunk_result();
            if (changes)
                ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_CHECKPOINTING, i % 2));
            size_t peak = step(subject, batch, {3, 2}, i > 1, nullptr);
            if (i < 2) peaks[i] = peak; /* those of marked chunks are gradients for the most part */
            ck_ok(mt_evaluate(subject.torch, &batch.batch, 0, 5, &result));
        }
        if (changes && suite_has_peaks()) ck_assert_uint_lt(peaks[1], peaks[0]);
        hashes[changes] = hash_of(subject);
    }
    ck_assert(hashes[0] == hashes[1]);
}

/* What segments compute again lies on the card too, and is gone from it. */
TEST("torch", on_a_simulated_card) {
    const Network &network = networks::all[2];
    std::string hashes[2];
    size_t peaks[2];
    for (int on : {MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON}) {
        networks::prepare();
        mt_torch_options options = options_for(on);
        options.device = "sim:cuda";
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        mt_sim_stats stats = {};
        stats.size = sizeof stats;
        step(subject, batch, {3, 2}, false, nullptr);
        ck_ok(mt_device_sim_stats("sim:cuda", &stats));
        size_t held = stats.allocated_bytes;
        peaks[on] = step(subject, batch, {3, 2}, false, nullptr);
        ck_ok(mt_device_sim_stats("sim:cuda", &stats));
        ck_assert_uint_eq(stats.allocated_bytes, held);
        hashes[on] = hash_of(subject);
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_uint_lt(peaks[1], peaks[0]);
}

unsigned rungs_of(const mt_torch *torch, const mt_backend &seam) {
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(seam.describe(const_cast<mt_torch *>(torch), &info));
    return info.rungs & MT_RUNG_BIT(MT_RUNG_CHECKPOINTING);
}

/* The rung is there for a model with segments, unless they are on anyway. */
TEST("torch", whose_rung_it_is) {
    const Network &network = networks::all[2];
    bench::Batch batch(5, network.side, CLASSES);
    for (int on : {MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON}) {
        mt_torch_options options = options_for(on);
        Subject subject(network, network.side, &options);
        ck_assert_int_eq(rungs_of(subject.torch, subject.backend) == 0, on);
        ck_status(subject.backend.set_rung(subject.torch, MT_RUNG_CHECKPOINTING, 1),
                  on ? MT_ENOTSUP : MT_OK);
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_status(subject.backend.set_rung(subject.torch, MT_RUNG_CHECKPOINTING, 0), MT_ESTATE);
        ck_ok(mt_rollback(subject.torch));
    }
    Trainer without(options_of(MT_SGD));
    mt_backend seam = MT_BACKEND_INIT;
    ck_ok(mt_torch_backend(without.torch, &seam));
    ck_assert_uint_eq(rungs_of(without.torch, seam), 0);
    ck_refused(seam.set_rung(seam.self, MT_RUNG_CHECKPOINTING, 1), MT_ENOTSUP, "checkpointing");
    mt_torch_options options = options_for(7);
    mt_torch *torch = nullptr;
    mt_model *model = network.make(CLASSES, network.side);
    ck_refused(mt_torch_new(model, &options, &torch), MT_EINVAL, "options->checkpointing is 7");
    mt_model_free(model);
}

/* A function names no buffers: inside an mt_torch all those of the model are watched. */
TEST("torch", functions_in_a_model) {
    std::string hashes[2];
    for (int on : {MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON}) {
        networks::prepare();
        mt_model *model = nullptr;
        mt_torch *torch = nullptr;
        mt_torch_options options = options_for(on);
        bench::Batch batch(5, 8, 4);
        char text[65];
        ck_ok(memtrain::make_model(&model, [] {
            auto net = three_blocks(4).ptr();
            return memtrain::model(net, {}, [](nn::SequentialImpl &n, const Tensors &b) {
                auto run = [&n](const at::Tensor &x) { return n.forward(x); };
                at::Tensor y = checkpoint(run, b[0]).flatten(2).mean(2);
                return memtrain::Output{at::cross_entropy_loss(y, b[1]), {}};
            });
        }));
        ck_ok(mt_torch_new(model, &options, &torch));
        for (int i = 0; i < 3; i++) ck_ok(mt_train_step(torch, &batch.batch, nullptr, nullptr));
        ck_ok(mt_torch_state_sha256(torch, text));
        hashes[on] = text;
        mt_torch_free(torch);
        mt_model_free(model);
    }
    ck_assert(hashes[0] == hashes[1]);
}

/* ---- the ladder -------------------------------------------------------------------------------------- */

/* Where even the smallest chunk does not fit, segments do; the bits are those of a run that had them. */
TEST_LOOP("ladder", as_a_rung, networks::count - 1) {
    if (!suite_has_peaks()) return suite_skip("as_a_rung", "no peaks to set a budget by");
    Ladder ladder(networks::all[_i + 1], [](int on) { return options_for(on); });
    unsigned rungs = 0;
    size_t plain = ladder.smallest(MT_CHECKPOINTING_AUTO);
    size_t least = ladder.smallest(MT_CHECKPOINTING_ON);
    ck_assert_uint_lt(least + least / 2, plain);
    if (Ladder::is_too_small(plain))
        return suite_skip("as_a_rung",
                          "the card's segments of 20 MiB are too coarse for these chunks");
    std::string climbed = ladder.run(MT_CHECKPOINTING_AUTO, Ladder::between(plain, least), &rungs);
    ck_assert_uint_eq(rungs, MT_RUNG_BIT(MT_RUNG_CHECKPOINTING));
    ck_ok(mt_device_set_budget(suite_device(), size_t{4} << 30));
    ck_assert(ladder.run(MT_CHECKPOINTING_ON, 0, &rungs) == climbed);
    ck_assert(ladder.run(MT_CHECKPOINTING_AUTO, 0, &rungs) == climbed);
    ck_assert_uint_eq(rungs, 0);
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("torch"), 240);
    tcase_set_timeout(suite_case_named("ladder"), 240);
    return suite_run_named("shim_checkpointing");
}
