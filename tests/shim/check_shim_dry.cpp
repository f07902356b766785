/*
 * check_shim_dry.cpp - chunks of a dry run take what real ones take, for each network, plain, with segments, and with
 * activations in a file;
 * real kernels come back when it ends.
 */
#include <cmath>
#include <cstring>

#include <memtrain/torch_dry.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>

#include "networks/networks.hpp"

#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

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
