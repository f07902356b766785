/*
 * check_shim_dry.cpp - chunks of a dry run take what real ones take, for each network, plain, with segments, and with
 * activations in a file;
 * real kernels come back when it ends.
 */
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <memtrain/torch_dry.h>

#include <ATen/ATen.h>

#include "networks/networks.hpp"
#include "owned.hpp"

#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

using check_shim::thrown_by;
using networks::Network;
using networks::Subject;

size_t peak_of(const Subject &s, const mt_batch &batch, size_t count) {
    const mt_backend &b = s.backend;
    mt_chunk_result result = {};
    result.size = sizeof result;
    size_t before = Subject::allocated();
    bench::must(b.begin(b.self, &batch), "begin");
    bench::must(b.accumulate(b.self, 0, count, 1.0, &result), "chunk");
    bench::must(b.rollback(b.self), "rollback");
    return result.peak_bytes - before;
}

constexpr size_t counts[] = {5, 10, 15};
enum { COUNTS = sizeof counts / sizeof *counts };

/*
 * What a sample adds is that of real chunks. The same for each number of samples is left out on some CPUs: scratch memory of
 * kernels, see memtrain/torch_dry.h.
 */
TEST_LOOP("dry", samples_take_what_they_really_take, 3 * networks::count) {
    const Network &network = networks::all[_i / 3];
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    size_t real[COUNTS], dry[COUNTS];
    options.checkpointing = _i % 3 == 1 ? MT_CHECKPOINTING_ON : MT_CHECKPOINTING_AUTO;
    if (_i % 3 == 2) options.offload = MT_OFFLOAD_FILE;
    networks::prepare();
    for (int threads : {1, 2}) {
        bench::must(mt_torch_set_threads(threads), "threads");
        Subject s(network, 2 * network.side, &options);
        bench::Batch batch(20, 2 * network.side, 10);
        for (size_t i = 0; i < COUNTS; i++) real[i] = peak_of(s, batch.batch, counts[i]);
        bench::must(mt_dry_run(1), "dry");
        for (size_t i = 0; i < COUNTS; i++) dry[i] = peak_of(s, batch.batch, counts[i]);
        bench::must(mt_dry_run(0), "real");
        for (size_t i = 0; i < COUNTS; i++) {
            std::printf("%s, %d threads, %zu samples: %zu, dry %zu\n", network.name, threads,
                        counts[i], real[i], dry[i]);
            std::fflush(stdout);
            ck_assert_uint_le(dry[i], real[i] + real[i] / 100);
        }
        double grows = static_cast<double>(real[2] - real[1]);
        double grows_dry = static_cast<double>(dry[2] - dry[1]);
        ck_assert_double_le(std::fabs(grows_dry / grows - 1), 0.01);
    }
}

/* How the input of a norm and its gradient lie in memory. */
const struct {
    const char *name;
    at::MemoryFormat input, grad;
} orders[] = {
    {"row-major", at::MemoryFormat::Contiguous, at::MemoryFormat::Contiguous},
    {"channels last", at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast},
    {"input alone channels last", at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous},
    {"gradient alone channels last", at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast},
};

size_t peak_of_norm_backward(const at::Tensor &input, const at::Tensor &grad) {
    at::Tensor weight = at::ones({input.size(1)});
    mt_memory memory = {};
    memory.size = sizeof memory;
    bench::must(mt_device_reset_peak("cpu"), "reset");
    size_t before = Subject::allocated();
    at::native_batch_norm_backward(grad, input, weight, {}, {}, weight, weight, true, 1e-5,
                                   {true, true, true});
    bench::must(mt_device_memory("cpu", &memory), "memory");
    return memory.peak_bytes - before;
}

/*
 * libtorch makes the gradient of the input twice where input and gradient lie alike. Sums of a channel, 64 bytes each, are
 * left out.
 */
TEST_LOOP("dry", the_gradient_of_a_norm_takes_what_it_really_takes, LENGTH(orders)) {
    at::Tensor ones = at::ones({8, 16, 32, 32});
    at::Tensor input = ones.contiguous(orders[_i].input), grad = ones.contiguous(orders[_i].grad);
    size_t real = peak_of_norm_backward(input, grad);
    bench::must(mt_dry_run(1), "dry");
    size_t dry = peak_of_norm_backward(input, grad);
    bench::must(mt_dry_run(0), "real");
    ck_assert_msg(dry <= real && real - dry <= 64, "%s: %zu, dry %zu", orders[_i].name, real, dry);
}

/* ---- operators --------------------------------------------------------------------------------- */

using at::Tensor;
using Tensors = std::vector<Tensor>;

/* How two operands of 8 x 16 x 64 x 64, 2 MiB each, lie in memory. */
enum Order { rows, channels_last, one_of_each, transposed, broadcast, ORDERS };

struct Pair {
    Tensor a = at::rand({8, 16, 64, 64}), b = at::rand({8, 16, 64, 64}) + 1;

    explicit Pair(int order) {
        if (order == channels_last || order == one_of_each)
            b = b.contiguous(at::MemoryFormat::ChannelsLast);
        if (order == channels_last) a = a.contiguous(at::MemoryFormat::ChannelsLast);
        if (order == transposed) a = a.transpose(2, 3), b = b.transpose(2, 3);
        if (order == broadcast) b = b.narrow(0, 0, 1);
    }
    Tensor whole() const { /* b of a's shape */
        return b.expand_as(a);
    }
};

/* A batch of heads, as they come out of one product: three views of it, and a mask. */
Tensors heads(int64_t length) {
    Tensor all = at::rand({2, length, 3, 4, 32});
    return {all.select(2, 0).transpose(1, 2), all.select(2, 1).transpose(1, 2),
            all.select(2, 2).transpose(1, 2), at::rand({2, 4, length, length})};
}

/* Forward and backward, by autograd. */
Tensors attended(int64_t length, bool masked, bool causal) {
    Tensors in = heads(length);
    for (int i = 0; i < 3; i++) in[i] = in[i].detach().requires_grad_();
    Tensor out = at::scaled_dot_product_attention(
        in[0], in[1], in[2], masked ? std::optional<Tensor>(in[3]) : std::nullopt, 0, causal);
    out.backward(at::ones_like(out));
    return {out.detach(), in[0].grad(), in[1].grad(), in[2].grad()};
}

const struct {
    const char *name;
    Tensors (*run)(const Pair &);
} operators[] = {
    {"add", [](const Pair &p) { return Tensors{p.a + p.b}; }},
    {"add, one with a factor", [](const Pair &p) { return Tensors{at::add(p.b, p.a, 2)}; }},
    {"add, in place", [](const Pair &p) { return Tensors{p.a.clone().add_(p.b)}; }},
    {"add of a number", [](const Pair &p) { return Tensors{p.a + 1.5}; }},
    {"add of a double", [](const Pair &p) { return Tensors{p.a + p.b.to(at::kDouble)}; }},
    {"add of a double, in place",
     [](const Pair &p) { return Tensors{p.a.clone().add_(p.b.to(at::kDouble))}; }},
    {"add to whole numbers", [](const Pair &p) { return Tensors{p.a.to(at::kLong) + p.b}; }},
    {"sub", [](const Pair &p) { return Tensors{p.a - p.b}; }},
    {"mul", [](const Pair &p) { return Tensors{p.a * p.b}; }},
    {"mul, in place", [](const Pair &p) { return Tensors{p.a.clone().mul_(p.b)}; }},
    {"mul by a tensor of one number",
     [](const Pair &p) { return Tensors{p.a * at::ones({}, at::kDouble)}; }},
    {"div", [](const Pair &p) { return Tensors{p.a / p.b}; }},
    {"div, in place", [](const Pair &p) { return Tensors{p.a.clone().div_(2)}; }},
    {"div of a mean's gradient",
     [](const Pair &p) {
         return Tensors{p.a.narrow(2, 0, 1).narrow(3, 0, 1).expand_as(p.a) / 4096};
     }},
    {"backward of a mean",
     [](const Pair &p) {
         Tensor a = p.a.detach().requires_grad_();
         at::adaptive_avg_pool2d(a, {1, 1}).sum().backward();
         return Tensors{a.grad()};
     }},
    {"neg", [](const Pair &p) { return Tensors{-p.a}; }},
    {"exp and log",
     [](const Pair &p) {
         return Tensors{p.a.exp(), p.b.log()};
     }},
    {"roots",
     [](const Pair &p) {
         return Tensors{p.a.sqrt(), p.b.rsqrt(), p.b.reciprocal()};
     }},
    {"pow",
     [](const Pair &p) {
         return Tensors{p.b.pow(2), p.b.pow(2.5)};
     }},
    {"sigmoid",
     [](const Pair &p) {
         return Tensors{p.a.sigmoid(), at::sigmoid_backward(p.a, p.whole())};
     }},
    {"silu",
     [](const Pair &p) {
         Tensor given = p.a.clone();
         return Tensors{at::silu(p.a), at::silu_backward(p.a, p.whole()), at::silu_(given)};
     }},
    {"tanh",
     [](const Pair &p) {
         return Tensors{p.a.tanh(), at::tanh_backward(p.a, p.whole())};
     }},
    {"gelu",
     [](const Pair &p) {
         return Tensors{at::gelu(p.a), at::gelu_backward(p.a, p.whole())};
     }},
    {"gelu by tanh",
     [](const Pair &p) {
         return Tensors{at::gelu(p.a, "tanh"), at::gelu_backward(p.a, p.whole(), "tanh")};
     }},
    {"relu",
     [](const Pair &p) {
         return Tensors{at::relu(p.a), at::threshold_backward(p.a, p.whole(), 0)};
     }},
    {"softmax of the last dimension",
     [](const Pair &p) {
         return Tensors{p.a.softmax(-1),
                        at::_softmax_backward_data(p.a, p.whole(), -1, at::kFloat)};
     }},
    {"softmax of channels",
     [](const Pair &p) {
         return Tensors{p.a.softmax(1), at::_softmax_backward_data(p.a, p.whole(), 1, at::kFloat)};
     }},
    {"log of softmax",
     [](const Pair &p) {
         return Tensors{p.a.log_softmax(1),
                        at::_log_softmax_backward_data(p.a, p.whole(), 1, at::kFloat)};
     }},
    {"dropout", [](const Pair &p) { return Tensors{at::dropout(p.a, 0.5, true)}; }},
    {"cross entropy of a sigmoid",
     [](const Pair &p) { return Tensors{at::binary_cross_entropy(p.a.sigmoid(), p.a)}; }},
    {"a draw of a softmax",
     [](const Pair &p) { return Tensors{at::multinomial(p.a.softmax(-1).flatten(0, 2), 1)}; }},
    {"product of matrices that are no rows",
     [](const Pair &p) {
         return Tensors{at::mm(p.a.flatten(0, 2).slice(0, 0, 64, 2).slice(1, 0, 64, 2),
                               at::rand({64, 2048}).slice(0, 0, 64, 2).slice(1, 0, 2048, 2))};
     }},
    {"max pool",
     [](const Pair &p) {
         Tensor a = p.a.detach().requires_grad_();
         Tensor out = at::max_pool2d(a, 3, 2, 1);
         out.backward(at::ones_like(out));
         return Tensors{out.detach(), a.grad()};
     }},
    {"max pool under a sum",
     [](const Pair &p) {
         Tensor a = p.a.detach().requires_grad_();
         at::max_pool2d(a, 2).sum().backward();
         return Tensors{a.grad()};
     }},
    {"max pool under rows",
     [](const Pair &p) {
         Tensor a = p.a.detach().requires_grad_();
         Tensor out = at::max_pool2d(a, 2);
         out.backward(at::ones(out.sizes()));
         return Tensors{a.grad()};
     }},
    {"convolution of stride 2",
     [](const Pair &p) {
         Tensor a = p.a.contiguous().detach().requires_grad_(); /* others have scratch memory */
         Tensor weight = at::ones({32, 16, 3, 3}, at::requires_grad());
         at::conv2d(a, weight, {}, 2, 1).sum().backward();
         return Tensors{a.grad()};
     }},
    {"max pool of rows",
     [](const Pair &p) { return Tensors{at::max_pool1d(p.a.flatten(1, 2), 2)}; }},
    {"norm of an evaluation",
     [](const Pair &p) {
         Tensor ones = at::ones({16});
         return Tensors{at::batch_norm(p.a, ones, ones, ones, ones, false, 0.1, 1e-5, false)};
     }},
    {"attention of rows",
     [](const Pair &p) {
         Tensor q = p.a.transpose(0, 1),
                out = at::scaled_dot_product_attention(q, p.a.clone().transpose(0, 1), q);
         return Tensors{out, out.transpose(1, 2).reshape({16, 64, 512})};
     }},
    {"attention of heads that share keys",
     [](const Pair &p) {
         Tensor keys = at::rand({8, 4, 64, 64});
         return Tensors{at::scaled_dot_product_attention(p.a, keys, keys, {}, 0, false, {}, true)};
     }},
    {"attention, 256 words", [](const Pair &) { return attended(256, false, false); }},
    {"attention, 1000 words, causal", [](const Pair &) { return attended(1000, false, true); }},
    {"attention, 100 words, a mask", [](const Pair &) { return attended(100, true, false); }},
};

/* What lies in memory when it is there, and what was there at most meanwhile. */
struct Outcome {
    std::string shapes;
    size_t peak;
};

Outcome outcome_of(Tensors (*run)(const Pair &), int order) {
    std::ostringstream shapes;
    mt_memory memory = {};
    memory.size = sizeof memory;
    const Pair pair(order);
    bench::must(mt_device_reset_peak("cpu"), "reset");
    size_t before = Subject::allocated();
    const Tensors out = run(pair);
    bench::must(mt_device_memory("cpu", &memory), "memory");
    for (const Tensor &tensor : out)
        shapes << tensor.scalar_type() << " " << tensor.sizes() << " by " << tensor.strides()
               << "\n";
    return {shapes.str(), memory.peak_bytes - before};
}

TEST_LOOP("dry", operators_take_what_they_really_take, LENGTH(operators)) {
    for (int order = 0; order < ORDERS; order++) {
        const Outcome real = outcome_of(operators[_i].run, order);
        bench::must(mt_dry_run(1), "dry");
        const Outcome dry = outcome_of(operators[_i].run, order);
        bench::must(mt_dry_run(0), "real");
        ck_assert_msg(real.shapes == dry.shapes, "%s, order %d: %s, dry %s", operators[_i].name,
                      order, real.shapes.c_str(), dry.shapes.c_str());
        double ratio = static_cast<double>(dry.peak) / static_cast<double>(real.peak);
        ck_assert_msg(std::fabs(ratio - 1) < 0.001, "%s, order %d: %zu, dry %zu",
                      operators[_i].name, order, real.peak, dry.peak);
    }
}

/* What cannot be done is refused in libtorch's words, as ever. */
TEST("dry", operands_that_do_not_belong_together_are_refused) {
    const Tensor a = at::ones({1024, 1024}), b = at::ones({1024, 1023});
    bench::must(mt_dry_run(1), "dry");
    for (const std::string &refusal : {thrown_by([&] { a + b; }), thrown_by([&] { a.mul(b); })})
        ck_contains(refusal.c_str(), "must match the size of tensor b");
    ck_assert(!thrown_by([&] { at::max_pool2d(at::ones({1024}), 2); }).empty());
    ck_assert(!thrown_by([&] { at::max_pool2d(a.view({1, 1024, 1024}), {2, 2, 2}); }).empty());
    ck_assert(!thrown_by([&] { at::addmm(at::ones({3}), a, b); }).empty());
    ck_assert(!thrown_by([&] { at::ones({1024, 1024}).bernoulli_(1.5); }).empty());
    bench::must(mt_dry_run(0), "real");
}

TEST("dry", real_kernels_come_back) {
    at::Tensor a = at::arange(4.0).view({2, 2}), b = at::ones({2, 2});
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mt_dry_run(1), MT_OK);
        ck_assert_int_eq(mt_dry_run(1), MT_OK);
        ck_assert_double_eq(at::matmul(a, b).sum().item<double>(), 0);
        ck_assert_int_eq(mt_dry_run(0), MT_OK);
        ck_assert_int_eq(mt_dry_run(0), MT_OK);
        ck_assert_double_eq(at::matmul(a, b).sum().item<double>(), 12);
    }
}

TEST("dry", other_numbers_are_refused) {
    ck_assert_int_eq(mt_dry_run(2), MT_EINVAL);
    ck_contains(mt_last_error(), "mt_dry_run: on is 2; accepted: 0 and 1");
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("dry"), 600);
    return suite_run_named("shim_dry");
}
