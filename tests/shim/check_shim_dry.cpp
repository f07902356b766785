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
    /* With activations in a file the peak lies in a depthwise convolution, see memtrain/torch_dry.h. */
    bool is_in_scratch = _i % 3 == 2 && std::strcmp(network.name, "depthwise") == 0;
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
        ck_assert_double_le(std::fabs(grows_dry / grows - 1), is_in_scratch ? 0.13 : 0.01);
    }
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
