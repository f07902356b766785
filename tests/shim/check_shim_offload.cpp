/*
 * check_shim_offload.cpp - saved tensors that wait elsewhere: the same bits from the host's memory and from a
 * file, a bound for bf16, what is packed once and what is left alone, errors of memory and of files; alone,
 * in an mt_torch, and as a rung.
 */
#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/container/sequential.h>

#include "networks/steps.hpp"

using namespace check_shim;
using memtrain::Tensors;

namespace {

const struct {
    const char *name;
    int kind;
} kinds[] = {{"host", MT_OFFLOAD_HOST}, {"file", MT_OFFLOAD_FILE}, {"pack", MT_OFFLOAD_PACK}};

enum { KINDS = 3, EXACT = 2 };

void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(7));
}

/* The words of what a function throws; "" when it does not. */
template <class Body> std::string thrown_by(Body &&body) {
    try {
        body();
    } catch (const c10::Error &e) {
        return e.what_without_backtrace();
    } catch (const std::exception &e) {
        return e.what();
    }
    return "";
}

/* ---- alone ----------------------------------------------------------------------------------------- */

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

START_TEST(same_gradients) {
    prepare();
    at::Tensor plain = gradient_of(_i, MT_OFFLOAD_NEVER);
    for (const auto &kind : kinds) {
        at::Tensor other = gradient_of(_i, kind.kind);
        double error = ((other - plain).norm() / plain.norm()).item().toDouble();
        ck_assert_msg(kind.kind == MT_OFFLOAD_PACK ? error < 0.01 : other.equal(plain),
                      "%s, %s: %g", functions[_i].name, kind.name, error);
    }
}
END_TEST

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
START_TEST(memory) {
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
END_TEST

/* Only on the thread, and only as long as the function runs. */
START_TEST(where_it_is_on) {
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
END_TEST

/* Every number of bf16 is within 2^-8. */
START_TEST(how_near_bf16_is) {
    prepare();
    at::Tensor x = (at::rand({ROWS, COLUMNS}, tensor_device()) * 160 - 80).exp2();
    at::Tensor one = ones().set_requires_grad(true), y;
    offloaded(MT_OFFLOAD_PACK, [&] { y = one * x; });
    y.sum().backward(); /* the gradient of one is x as it comes back */
    double most = ((one.grad() - x).abs() / x).max().item().toDouble();
    ck_assert_double_le(most, 1.0 / 256);
    ck_assert_double_gt(most, 1.0 / 1024);
}
END_TEST

/* What waits keeps the numbers that were saved; what stays, or is on its way yet, is refused, in libtorch's words. */
START_TEST(changed_in_place) {
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
END_TEST

/* The same tensor, changed between two saves, is two. */
START_TEST(changed_between) {
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
END_TEST

START_TEST(other_backward_passes) {
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
END_TEST

START_TEST(refused) {
    auto body = [](void *) { return MT_OK; };
    auto stops = [](void *) { return mt_set_error(MT_EUSER, "stop"); };
    prepare();
    const char *place = tensor_place();
    ck_status(mt_offload(place, MT_OFFLOAD_HOST, nullptr, nullptr, nullptr), MT_EINVAL);
    for (int kind : {MT_OFFLOAD_NEVER, MT_OFFLOAD_AUTO, MT_OFFLOAD_AUTO_PACK, 17}) {
        ck_status(mt_offload(place, kind, nullptr, body, nullptr), MT_EINVAL);
        ck_contains(mt_last_error(), "accepted: MT_OFFLOAD_HOST");
    }
    ck_status(mt_offload("nowhere", MT_OFFLOAD_HOST, nullptr, body, nullptr), MT_EINVAL);
    ck_status(mt_offload(place, MT_OFFLOAD_HOST, nullptr, stops, nullptr), MT_EUSER);
    ck_status(mt_offload(place, MT_OFFLOAD_FILE, "/no/such/folder", body, nullptr), MT_EIO);
    ck_contains(mt_last_error(), "'/no/such/folder': No such file");
}
END_TEST

/* ---- in an mt_torch ---------------------------------------------------------------------------------- */

using networks::CLASSES;
using networks::accumulate;
using networks::hash_of;
using networks::Ladder;
using networks::Network;
using networks::step;
using networks::Subject;

mt_torch_options options_for(int offload, mt_dtype amp = MT_DTYPE_NONE, int checkpointing = 0) {
    mt_torch_options options = options_of(MT_SGD, 1.0);
    options.offload = offload;
    options.amp = amp;
    options.checkpointing = checkpointing;
    return options;
}

mt_offload_stats stats_of(const mt_torch *torch) {
    mt_offload_stats stats = MT_OFFLOAD_STATS_INIT;
    ck_ok(mt_torch_offload_stats(torch, &stats));
    return stats;
}

struct Trained {
    std::string hash;
    size_t peak = 0;
    mt_arena_stats arena = MT_ARENA_STATS_INIT;
    mt_offload_stats offload = MT_OFFLOAD_STATS_INIT;
};

/* Enough steps for the arena to have plans; way: 0 in place, 1 marked, 2 one marked chunk. */
Trained train(const Network &network, int way, const mt_torch_options &options) {
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    Trained trained;
    const std::vector<size_t> chunks =
        way == 2 ? std::vector<size_t>{5} : std::vector<size_t>{3, 2};
    for (int i = 0; i < 5; i++) trained.peak = step(subject, batch, chunks, way > 0);
    trained.hash = hash_of(subject);
    ck_ok(mt_torch_arena(subject.torch, &trained.arena));
    trained.offload = stats_of(subject.torch);
    return trained;
}

void expect_same(const Trained &plain, const Trained &other, const char *what) {
    ck_assert_msg(other.hash == plain.hash, "%s: another state", what);
    ck_assert_uint_gt(other.offload.packed, 0);
    ck_assert_uint_ge(other.offload.packed + other.offload.shared, other.offload.unpacked);
    ck_assert_uint_eq(other.offload.packed_bytes, 0);
    ck_assert_uint_gt(other.offload.peak_packed_bytes, 0);
    ck_assert_uint_eq(other.arena.missed, 0);
    if (!suite_has_arena()) return;
    ck_assert_uint_gt(other.arena.served, 0);
    ck_assert_uint_lt(other.arena.recorded, other.arena.chunks);
}

START_TEST(same_bits) {
    int way = _i / networks::count;
    for (mt_dtype amp : {MT_DTYPE_NONE, MT_BFLOAT16}) {
        if (amp != MT_DTYPE_NONE && way != 0) break; /* autocast does not know the ways apart */
        const Network &network = networks::trained_in(amp, networks::all[_i % networks::count]);
        Trained plain = train(network, way, options_for(MT_OFFLOAD_NEVER, amp));
        ck_assert_int_eq(plain.offload.kind, MT_OFFLOAD_NEVER);
        for (int i = 0; i < EXACT; i++)
            for (int segments : {MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON}) {
                Trained other = train(network, way, options_for(kinds[i].kind, amp, segments));
                expect_same(plain, other, kinds[i].name);
                ck_assert_int_eq(other.offload.kind, kinds[i].kind);
                if (way == 0 && suite_has_peaks()) ck_assert_uint_lt(other.peak, plain.peak);
            }
    }
}
END_TEST

/* The gradients of one chunk by name. */
using Gradients = std::map<std::string, at::Tensor>;

mt_status collect_gradient(void *user, const char *name, mt_tensor *handle) {
    const at::Tensor &gradient = memtrain::tensor(handle).grad();
    if (gradient.defined()) (*static_cast<Gradients *>(user))[name] = gradient.clone();
    return MT_OK;
}

Gradients gradients_of(const Network &network, const mt_torch_options &options,
                       mt_offload_stats *out) {
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(8, network.side, CLASSES);
    mt_chunk_result result = chunk_result();
    Gradients gradients;
    ck_ok(mt_begin(subject.torch, &batch.batch));
    ck_ok(accumulate(subject, batch, 0, 8, &result));
    ck_ok(mt_torch_visit_state(subject.torch, collect_gradient, &gradients));
    *out = stats_of(subject.torch);
    return gradients;
}

/*
 * Of bf16 the gradient as a whole is within 1 %, and half of the bytes are gone. What segments start from
 * again is not rounded: relu would let other elements through.
 */
START_TEST(gradients_of_packed) {
    const Network &network = networks::all[_i % networks::count];
    int segments = _i / networks::count;
    mt_offload_stats stats;
    Gradients plain = gradients_of(network, options_for(MT_OFFLOAD_NEVER), &stats);
    Gradients packed =
        gradients_of(network, options_for(MT_OFFLOAD_PACK, MT_DTYPE_NONE, segments), &stats);
    double error = 0, sum = 0;
    for (const auto &[name, gradient] : plain) {
        error += (packed.at(name) - gradient).square().sum().item().toDouble();
        sum += gradient.square().sum().item().toDouble();
    }
    std::printf(
        "%s%s: gradients of bf16 are off by %.5f; %llu packed, %llu shared, %llu left alone\n",
        network.name, segments ? " with segments" : "", std::sqrt(error / sum),
        (unsigned long long)stats.packed, (unsigned long long)stats.shared,
        (unsigned long long)stats.left_alone);
    std::fflush(stdout);
    ck_assert_double_gt(error, 0);
    ck_assert_double_lt(std::sqrt(error / sum), 0.01);
    ck_assert_uint_eq(2 * stats.total_packed_bytes, stats.total_original_bytes);
}
END_TEST

/* A model of one function: the batch is the picture x [n, 3, 64, 64]. */
mt_torch *torch_of(mt_model **model, const mt_torch_options &options,
                   std::function<at::Tensor(nn::LinearImpl &, const at::Tensor &)> run) {
    mt_torch *torch = nullptr;
    ck_ok(memtrain::make_model(model, [&] {
        auto net = std::make_shared<nn::LinearImpl>(64, 64);
        return memtrain::model(net, {}, [run](nn::LinearImpl &n, const Tensors &b) {
            return memtrain::Output{run(n, b[0]).mean(), {}};
        });
    }));
    ck_ok(mt_torch_new(*model, &options, &torch));
    return torch;
}

/* What is packed, what is shared, what stays, tensor by tensor. */
START_TEST(which_tensors) {
    const struct {
        const char *name;
        at::Tensor (*run)(nn::LinearImpl &, const at::Tensor &);
        uint64_t packed, shared, left;
    } table[] = {
        {"the batch", [](nn::LinearImpl &n, const at::Tensor &x) { return n.forward(x); }, 0, 0, 1},
        {"one output", [](nn::LinearImpl &n, const at::Tensor &x) { return n.forward(x).tanh(); },
         1, 0, 1},
        {"output and input",
         [](nn::LinearImpl &n, const at::Tensor &x) { return n.forward(x).relu().sin(); }, 1, 1, 1},
        {"twice in one",
         [](nn::LinearImpl &n, const at::Tensor &x) {
             at::Tensor y = n.forward(x);
             return y * y;
         },
         1, 1, 1},
        {"small",
         [](nn::LinearImpl &n, const at::Tensor &x) {
             return n.forward(x).slice(2, 0, 2).slice(1, 0, 1).contiguous().tanh();
         },
         0, 0, 2},
        {"the parameter itself",
         [](nn::LinearImpl &n, const at::Tensor &x) {
             return n.forward(x).sum() + n.weight.square().sum() + n.weight.t().sin().sum();
         },
         0, 0, 3},
    };
    networks::prepare();
    bench::Batch batch(4, 64, CLASSES);
    for (const auto &row : table) {
        mt_model *model = nullptr;
        mt_chunk_result result = chunk_result();
        mt_torch *torch = torch_of(&model, options_for(MT_OFFLOAD_HOST), row.run);
        ck_ok(mt_begin(torch, &batch.batch));
        ck_ok(mt_accumulate(torch, 0, 4, 1.0, &result));
        mt_offload_stats stats = stats_of(torch);
        ck_assert_msg(stats.packed == row.packed && stats.shared == row.shared &&
                          stats.left_alone == row.left,
                      "%s: %llu packed, %llu shared, %llu left alone", row.name,
                      (unsigned long long)stats.packed, (unsigned long long)stats.shared,
                      (unsigned long long)stats.left_alone);
        ck_assert_uint_eq(stats.packed_bytes, 0);
        mt_torch_free(torch);
        mt_model_free(model);
    }
}
END_TEST

/* Chunks of all sizes pack the same tensors, so that the peak of one can be told from others. */
START_TEST(sizes_do_not_matter) {
    const Network &network = networks::all[_i];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_HOST);
    Subject subject(network, network.side, &options);
    bench::Batch batch(64, network.side, CLASSES);
    uint64_t before = 0, packed = 0;
    for (size_t size : {2, 4, 7, 64}) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_ok(accumulate(subject, batch, 0, size, &result));
        ck_ok(mt_rollback(subject.torch));
        uint64_t now = stats_of(subject.torch).packed;
        if (before) ck_assert_uint_eq(now - before, packed);
        packed = now - before;
        before = now;
    }
    ck_assert_uint_gt(packed, 5);
}
END_TEST

START_TEST(evaluation_is_left_alone) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_HOST);
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    mt_chunk_result result = chunk_result();
    ck_ok(mt_evaluate(subject.torch, &batch.batch, 0, 5, &result));
    mt_offload_stats stats = stats_of(subject.torch);
    ck_assert_uint_eq(stats.packed + stats.left_alone, 0);
    ck_assert_int_eq(stats.on, 1);
}
END_TEST

/* A graph that outlives its mt_torch keeps what it needs. */
START_TEST(a_graph_that_is_kept) {
    networks::prepare();
    for (const auto &kind : kinds) {
        at::Tensor kept, weight;
        mt_model *model = nullptr;
        bench::Batch batch(4, 64, CLASSES);
        mt_torch *torch =
            torch_of(&model, options_for(kind.kind), [&](nn::LinearImpl &n, const at::Tensor &x) {
                kept = n.forward(x).sin().exp().sum();
                weight = n.weight;
                return n.forward(x);
            });
        ck_ok(mt_train_step(torch, &batch.batch, nullptr, nullptr));
        ck_assert_uint_gt(stats_of(torch).packed_bytes, 0);
        mt_torch_free(torch);
        weight.mutable_grad().reset();
        kept.backward();
        ck_assert(weight.grad().defined());
        kept.reset();
        mt_model_free(model);
    }
}
END_TEST

/* ---- errors ------------------------------------------------------------------------------------------ */

/*
 * Each request of a chunk fails in turn: the chunk is taken back alone where it was marked, else the step,
 * nothing waits any more, and the same again has the bits.
 */
START_TEST(memory_runs_out) {
    const auto &kind = kinds[_i / 2];
    const Network &network = networks::all[2];
    bool marked = _i % 2;
    mt_torch_options options = options_for(kind.kind, MT_DTYPE_NONE, MT_CHECKPOINTING_ON);
    Trained plain;
    uint64_t failed = 1, failures = 0;
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    step(subject, batch, {5}, marked);
    size_t held = tensor_memory().allocated_bytes;
    std::string before = hash_of(subject);
    for (uint64_t n = 1; failed; n += 5) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_begin(subject.torch, &batch.batch));
        if (marked) ck_ok(mt_mark(subject.torch));
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = accumulate(subject, batch, 0, 5, &result);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_int_eq(status, failed ? MT_EDEVMEM : MT_OK);
        if (failed && marked) ck_ok(mt_rewind(subject.torch));
        auto waiting = [&] { return stats_of(subject.torch).packed_bytes; };
        if (failed) ck_assert_uint_eq(settled(0, waiting), 0);
        ck_ok(mt_rollback(subject.torch));
        ck_assert_uint_eq(settled(0, waiting), 0);
        failures += failed;
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
        if (n % 4 == 1) ck_assert(hash_of(subject) == before);
    }
    ck_assert_uint_gt(failures, 50);
    step(subject, batch, {5}, marked);
    std::string after = hash_of(subject);
    networks::prepare();
    Subject clean(network, network.side, &options);
    step(clean, batch, {5}, marked);
    step(clean, batch, {5}, marked);
    ck_assert(hash_of(clean) == after);
}
END_TEST

/* A disk that is full after so many bytes, by the system's limit on files. */
START_TEST(disk_full) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_FILE);
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    struct rlimit limit;
    int failures = 0;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    step(subject, batch, {5}, false);
    std::string before = hash_of(subject);
    size_t most = stats_of(subject.torch).peak_packed_bytes;
    size_t held = tensor_memory().allocated_bytes;
    for (size_t bytes = 0; bytes < most; bytes += most / 23) {
        struct rlimit small = {bytes, limit.rlim_max};
        mt_status status;
        setrlimit(RLIMIT_FSIZE, &small);
        status = mt_train_step(subject.torch, &batch.batch, nullptr, nullptr);
        setrlimit(RLIMIT_FSIZE, &limit);
        ck_status(status, MT_EIO);
        ck_contains(mt_last_error(), "offload: cannot write");
        ck_contains(mt_last_error(), "File too large");
        ck_assert_uint_eq(settled(0, [&] { return stats_of(subject.torch).packed_bytes; }), 0);
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
        ck_assert(hash_of(subject) == before);
        failures++;
    }
    ck_assert_int_gt(failures, 20);
    step(subject, batch, {5}, false);
}
END_TEST

/* The file of this process that has no name; -1: none. */
int nameless_file() {
    DIR *folder = opendir("/proc/self/fd");
    int found = -1;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char target[512];
        std::string path = std::string("/proc/self/fd/") + entry->d_name;
        ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        if (std::strstr(target, "memtrain-") && std::strstr(target, "(deleted)"))
            found = std::atoi(entry->d_name);
    }
    if (folder) closedir(folder);
    return found;
}

/* Somebody cuts the file off between the passes: what is read back is not there. */
START_TEST(cannot_be_read) {
    networks::prepare();
    mt_model *model = nullptr;
    bool cut = true;
    bench::Batch batch(4, 64, CLASSES);
    mt_torch *torch = torch_of(&model, options_for(MT_OFFLOAD_FILE),
                               [&cut](nn::LinearImpl &n, const at::Tensor &x) {
                                   at::Tensor y = n.forward(x).sin().exp();
                                   if (cut) ck_assert_int_eq(ftruncate(nameless_file(), 100), 0);
                                   return y;
                               });
    if (nameless_file() < 0) {
        std::printf("SKIP: cannot_be_read: no /proc\n");
    } else {
        ck_status(mt_train_step(torch, &batch.batch, nullptr, nullptr), MT_EIO);
        ck_contains(mt_last_error(), "offload: cannot read");
        ck_assert_uint_eq(stats_of(torch).packed_bytes, 0);
        cut = false;
        ck_ok(mt_train_step(torch, &batch.batch, nullptr, nullptr));
    }
    mt_torch_free(torch);
    ck_assert_int_eq(nameless_file(), -1);
    mt_model_free(model);
}
END_TEST

/* The folder that was named has the file, and no name is left in it. */
START_TEST(the_folder) {
    const Network &network = networks::all[2];
    char folder[] = "/tmp/memtrain-test-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_FILE);
    options.offload_dir = folder;
    {
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        step(subject, batch, {3, 2}, false);
        ck_assert_uint_gt(stats_of(subject.torch).packed, 0);
    }
    ck_assert_int_eq(rmdir(folder), 0); /* it is empty */
    mt_torch *torch = nullptr;
    mt_model *model = network.make(CLASSES, network.side);
    ck_status(mt_torch_new(model, &options, &torch), MT_EIO);
    ck_contains(mt_last_error(), folder);
    ck_contains(mt_last_error(), "No such file");
    mt_model_free(model);
}
END_TEST

/* ---- cards, and the rung ------------------------------------------------------------------------------ */

/* What waits on the host is not on the card. */
START_TEST(on_a_simulated_card) {
    const char *device = _i % 2 ? "sim:mps" : "sim:cuda";
    const Network &network = networks::all[_i / 2];
    std::string hashes[2];
    size_t peaks[2] = {0, 0};
    for (int on = 0; on < 2; on++) {
        networks::prepare();
        mt_torch_options options = options_for(on ? MT_OFFLOAD_HOST : MT_OFFLOAD_NEVER);
        mt_sim_stats stats = {};
        options.device = device;
        stats.size = sizeof stats;
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        step(subject, batch, {3, 2}, false);
        ck_ok(mt_device_sim_stats(device, &stats));
        size_t held = stats.allocated_bytes;
        peaks[on] = step(subject, batch, {3, 2}, false);
        ck_ok(mt_device_sim_stats(device, &stats));
        ck_assert_uint_eq(stats.allocated_bytes, held);
        hashes[on] = hash_of(subject);
    }
    ck_assert(hashes[0] == hashes[1]);
    if (_i % 2 == 0) ck_assert_uint_lt(peaks[1], peaks[0]); /* MPS has no peaks */
}
END_TEST

unsigned rungs_of(const Subject &subject) {
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(subject.backend.describe(subject.torch, &info));
    return info.rungs & MT_RUNG_BIT(MT_RUNG_OFFLOAD);
}

START_TEST(whose_rung_it_is) {
    const struct {
        const char *device;
        int offload;
        const char *folder;
        bool has_rung;
        int kind;
    } table[] = {
        {"cpu", MT_OFFLOAD_AUTO, nullptr, false, MT_OFFLOAD_NEVER},
        {"cpu", MT_OFFLOAD_AUTO, "/tmp", true, MT_OFFLOAD_FILE},
        {"cpu", MT_OFFLOAD_AUTO_PACK, nullptr, true, MT_OFFLOAD_PACK},
        {"cpu", MT_OFFLOAD_NEVER, "/tmp", false, MT_OFFLOAD_NEVER},
        {"cpu", MT_OFFLOAD_HOST, nullptr, false, MT_OFFLOAD_HOST},
        {"cpu", MT_OFFLOAD_FILE, nullptr, false, MT_OFFLOAD_FILE},
        {"cpu", MT_OFFLOAD_PACK, nullptr, false, MT_OFFLOAD_PACK},
        {"sim:cuda", MT_OFFLOAD_AUTO, nullptr, true, MT_OFFLOAD_HOST},
        {"sim:mps", MT_OFFLOAD_AUTO, "/tmp", true, MT_OFFLOAD_HOST},
        {suite_device(), MT_OFFLOAD_AUTO, "/tmp", true,
         suite_on_cpu() ? MT_OFFLOAD_FILE : MT_OFFLOAD_HOST},
        {suite_device(), MT_OFFLOAD_PACK, nullptr, false, MT_OFFLOAD_PACK},
        {"sim:cuda", MT_OFFLOAD_AUTO_PACK, nullptr, true, MT_OFFLOAD_PACK},
        {"sim:cuda", MT_OFFLOAD_NEVER, nullptr, false, MT_OFFLOAD_NEVER},
    };
    const Network &network = networks::all[2];
    bench::Batch batch(5, network.side, CLASSES);
    networks::prepare();
    for (const auto &row : table) {
        mt_torch_options options = options_for(row.offload);
        options.device = row.device;
        options.offload_dir = row.folder;
        Subject subject(network, network.side, &options);
        mt_offload_stats stats = stats_of(subject.torch);
        bool is_fixed = row.kind != MT_OFFLOAD_NEVER && !row.has_rung;
        ck_assert_int_eq(stats.kind, row.kind);
        ck_assert_int_eq(stats.on, is_fixed);
        ck_assert_int_eq(rungs_of(subject) != 0, row.has_rung);
        ck_status(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 1),
                  row.has_rung ? MT_OK : MT_ENOTSUP);
        step(subject, batch, {3, 2}, false);
        stats = stats_of(subject.torch);
        ck_assert_int_eq(stats.packed > 0, row.has_rung || is_fixed);
        if (!row.has_rung) continue;
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_status(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 0), MT_ESTATE);
        ck_ok(mt_rollback(subject.torch));
        ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 0));
        step(subject, batch, {3, 2}, false);
        ck_assert_uint_eq(stats_of(subject.torch).packed, stats.packed);
    }
    mt_torch_options options = options_for(7);
    mt_torch *torch = nullptr;
    mt_model *model = network.make(CLASSES, network.side);
    ck_status(mt_torch_new(model, &options, &torch), MT_EINVAL);
    ck_contains(mt_last_error(), "options->offload is 7");
    mt_model_free(model);
    ck_status(mt_torch_offload_stats(nullptr, nullptr), MT_EINVAL);
}
END_TEST

/* An accelerator's rung puts nothing into the memory of the CPU that the state has moved to. */
START_TEST(moved_to_the_cpu) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_AUTO);
    options.device = suite_on_card() ? suite_device() : "sim:cuda";
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, 1));
    step(subject, batch, {3, 2}, false);
    uint64_t packed = stats_of(subject.torch).packed;
    ck_assert_uint_gt(packed, 0);
    ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_CPU, 1));
    step(subject, batch, {3, 2}, false);
    ck_assert_uint_eq(stats_of(subject.torch).packed, packed);
    ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_CPU, 0));
    step(subject, batch, {3, 2}, false);
    ck_assert_uint_gt(stats_of(subject.torch).packed, packed);
}
END_TEST

/* Where another engine is asked for hooks, as Python's torch has one, there is no offload. */
START_TEST(without_hooks) {
    const Network &network = networks::all[2];
    networks::prepare();
    torch::autograd::set_default_engine_stub(&torch::autograd::Engine::get_base_engine);
    mt_model *model = network.make(CLASSES, network.side);
    mt_torch *torch = nullptr;
    for (const auto &kind : kinds) {
        mt_torch_options options = options_for(kind.kind);
        ck_status(mt_torch_new(model, &options, &torch), MT_ENOTSUP);
        ck_contains(mt_last_error(), "Python's torch");
    }
    ck_status(mt_offload(
                  tensor_place(), MT_OFFLOAD_HOST, nullptr, [](void *) { return MT_OK; }, nullptr),
              MT_ENOTSUP);
    mt_model_free(model);
    mt_torch_options options = options_for(MT_OFFLOAD_AUTO);
    options.device = suite_on_card() ? suite_device() : "sim:cuda";
    Subject subject(network, network.side, &options);
    ck_assert_uint_eq(rungs_of(subject), 0);
}
END_TEST

/* On and off between steps it is all the same bits. */
START_TEST(on_and_off) {
    const Network &network = networks::all[_i];
    std::string hashes[2];
    for (int changes = 0; changes < 2; changes++) {
        networks::prepare();
        mt_torch_options options = options_for(MT_OFFLOAD_AUTO);
        options.offload_dir = "/tmp";
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        for (int i = 0; i < 6; i++) {
            if (changes) ck_ok(subject.backend.set_rung(subject.torch, MT_RUNG_OFFLOAD, i % 2));
            step(subject, batch, {3, 2}, i > 2);
        }
        hashes[changes] = hash_of(subject);
    }
    ck_assert(hashes[0] == hashes[1]);
}
END_TEST

/* ---- the ladder -------------------------------------------------------------------------------------- */

/* Where even the smallest chunk does not fit, the rung does; the bits are those of a run without it. */
START_TEST(as_a_rung) {
    if (!suite_has_peaks()) return suite_skip("as_a_rung", "no peaks to set a budget by");
    const Network &network = networks::all[_i];
    auto options = [](int offload) {
        mt_torch_options o = options_for(offload);
        o.offload_dir = "/tmp";
        return o;
    };
    Ladder ladder(network, options, MT_RUNG_BIT(MT_RUNG_CHECKPOINTING));
    unsigned rungs = 0;
    size_t plain = ladder.smallest(MT_OFFLOAD_NEVER), least = ladder.smallest(MT_OFFLOAD_FILE);
    std::printf("%s: the smallest chunk takes %zu, and %zu with the rung\n", network.name, plain,
                least);
    std::fflush(stdout);
    ck_assert_uint_lt(least + plain / 20, plain);
    if (Ladder::is_too_small(plain))
        return suite_skip("as_a_rung",
                          "the card's segments of 20 MiB are too coarse for these chunks");
    std::string climbed = ladder.run(MT_OFFLOAD_AUTO, Ladder::between(plain, least), &rungs);
    ck_assert_uint_eq(rungs, MT_RUNG_BIT(MT_RUNG_OFFLOAD));
    ck_ok(mt_device_set_budget(suite_device(), size_t{4} << 30));
    ck_assert(ladder.run(MT_OFFLOAD_FILE, 0, &rungs) == climbed);
    ck_assert(ladder.run(MT_OFFLOAD_NEVER, 0, &rungs) == climbed);
    ck_assert_uint_eq(rungs, 0);
}
END_TEST

Suite *suite_offload() {
    Suite *suite = suite_create("shim_offload");
    TCase *alone = suite_case(suite, "alone"), *torch = suite_case(suite, "torch");
    TCase *errors = suite_case(suite, "errors"), *ladder = suite_case(suite, "ladder");
    for (TCase *slow : {torch, errors, ladder}) tcase_set_timeout(slow, 300);
    tcase_add_loop_test(alone, same_gradients, 0, LENGTH(functions));
    tcase_add_test(alone, memory);
    tcase_add_test(alone, where_it_is_on);
    tcase_add_test(alone, how_near_bf16_is);
    tcase_add_test(alone, changed_in_place);
    tcase_add_test(alone, changed_between);
    tcase_add_test(alone, other_backward_passes);
    tcase_add_test(alone, refused);
    tcase_add_loop_test(torch, same_bits, 0, 3 * networks::count);
    tcase_add_loop_test(torch, gradients_of_packed, 0, 2 * networks::count);
    tcase_add_test(torch, which_tensors);
    tcase_add_loop_test(torch, sizes_do_not_matter, 0, networks::count);
    tcase_add_test(torch, evaluation_is_left_alone);
    tcase_add_test(torch, a_graph_that_is_kept);
    tcase_add_loop_test(errors, memory_runs_out, 0, 2 * KINDS);
    tcase_add_test(errors, disk_full);
    tcase_add_test(errors, cannot_be_read);
    tcase_add_test(errors, the_folder);
    tcase_add_loop_test(torch, on_a_simulated_card, 0, 2 * networks::count);
    tcase_add_test(torch, whose_rung_it_is);
    tcase_add_test(torch, moved_to_the_cpu);
    tcase_add_test(torch, without_hooks);
    tcase_add_loop_test(torch, on_and_off, 0, networks::count);
    tcase_add_loop_test(ladder, as_a_rung, 0, networks::count);
    return suite;
}

} // namespace

int main() {
    return suite_run(suite_offload());
}
