/*
 * check_shim_metrics.cpp - the metrics of memtrain/torch.hpp against figures worked out by hand, and
 * that their sums do not depend on how a batch is cut.
 */
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

double value(const at::Tensor &metric, int64_t i = 0) {
    return metric[i].item().toDouble();
}

TEST("sums", top_k) {
    at::Tensor logits = at::tensor({0.1, 0.5, 0.2, 0.9, 0.3, 0.4, 0.3, 0.2, 0.1}).reshape({3, 3});
    at::Tensor target = at::tensor({1, 2, 2}, at::kLong);
    ck_assert_double_eq(value(memtrain::correct(logits, target)), 1.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, target, 1)), 1.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, target, 2)), 2.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, target, 9)), 3.0);
}

/* The same numbers, and neither graph nor device behind them. */
TEST("sums", on_the_cpu) {
    at::Tensor logits = at::tensor({0.1, 0.5, 0.9, 0.4}).reshape({2, 2}).requires_grad_();
    at::Tensor target = at::tensor({1, 1}, at::kLong);
    at::Tensor there = memtrain::on_cpu(logits * 2);
    ck_assert(there.is_cpu() && !there.requires_grad());
    ck_assert_double_eq(value(memtrain::correct(there, memtrain::on_cpu(target))), 1.0);
}

TEST("sums", errors) {
    at::Tensor output = at::tensor({1.0, 2.0, 3.0, 5.0}).reshape({2, 2});
    at::Tensor target = at::tensor({0.0, 4.0, 3.0, 1.0}).reshape({2, 2});
    ck_assert_double_eq(value(memtrain::absolute_error(output, target)), 1.5 + 2.0);
    ck_assert_double_eq(value(memtrain::squared_error(output, target)), 2.5 + 8.0);
}

TEST("sums", overlap) {
    at::Tensor output = at::tensor({1, 1, 0, 0, 1, 0}).reshape({2, 3});
    at::Tensor target = at::tensor({1, 0, 0, 1, 1, 0}).reshape({2, 3});
    at::Tensor sums = memtrain::intersection_union(output, target);
    ck_assert_double_eq(value(sums, 0), 2.0);
    ck_assert_double_eq(value(sums, 1), 4.0);
}

/* 2^24 + 1 is the first whole number that a float does not hold. */
TEST("sums", overlap_of_many) {
    at::Tensor all = at::ones({1, (1 << 24) + 3}, at::kBool);
    at::Tensor sums = memtrain::intersection_union(all, all);
    ck_assert_double_eq(value(sums, 0), 16777219.0);
    ck_assert_double_eq(value(sums, 1), 16777219.0);
    at::Tensor beside = at::cat({sums, at::tensor({0.5F})});
    ck_assert_double_eq(value(beside, 1), 16777219.0);
}

/* 1000 samples of one value each: bfloat16 stops counting at 256, half at 2048. */
static const struct {
    at::ScalarType output, target;
    double error; /* of each, exact in both types */
} halves[] = {
    {at::kBFloat16, at::kBFloat16, 1.0}, {at::kHalf, at::kHalf, 4.0},
    {at::kBFloat16, at::kFloat, 1.5},    {at::kFloat, at::kHalf, 1.5},
    {at::kHalf, at::kLong, 3.0},         {at::kDouble, at::kFloat, 1.5},
};

TEST_LOOP("sums", errors_in_half_precision, LENGTH(halves)) {
    at::Tensor target = at::ones({1000, 2}).to(halves[_i].target);
    at::Tensor output = at::full({1000, 2}, 1.0 + halves[_i].error).to(halves[_i].output);
    double error = halves[_i].error;
    ck_assert_double_eq(value(memtrain::absolute_error(output, target)), 1000 * error);
    ck_assert_double_eq(value(memtrain::squared_error(output, target)), 1000 * error * error);
}

using Metric = at::Tensor (*)(const at::Tensor &, const at::Tensor &);

at::Tensor top_2(const at::Tensor &logits, const at::Tensor &target) {
    return memtrain::top_k(logits, target, 2);
}

static const struct {
    const char *name;
    Metric metric;
    std::vector<int64_t> output, target;
    const char *shapes[2];
} misfits[] = {
    {"absolute_error", memtrain::absolute_error, {8, 1}, {8}, {"[8, 1]", "[8]"}},
    {"squared_error", memtrain::squared_error, {8}, {8, 1}, {"[8]", "[8, 1]"}},
    {"squared_error", memtrain::squared_error, {8, 3}, {1, 3}, {"[8, 3]", "[1, 3]"}},
    {"intersection_union", memtrain::intersection_union, {2, 1, 4, 4}, {2, 4, 4}, {"1, 4", "2, 4"}},
    {"correct", memtrain::correct, {8, 5}, {8, 1}, {"[8, 5]", "[8, 1]"}},
    {"correct", memtrain::correct, {8, 5}, {1}, {"[8, 5]", "[1]"}},
    {"correct", memtrain::correct, {8}, {8}, {"[8]", "[8]"}},
    {"top_k", top_2, {8, 5, 3}, {8}, {"[8, 5, 3]", "[8]"}},
};

TEST_LOOP("sums", shapes_that_differ_are_refused, LENGTH(misfits)) {
    std::string text;
    try {
        misfits[_i].metric(at::zeros(misfits[_i].output), at::zeros(misfits[_i].target, at::kLong));
    } catch (const std::invalid_argument &e) {
        text = e.what();
    }
    ck_contains(text.c_str(), misfits[_i].name);
    for (const char *shape : misfits[_i].shapes) ck_contains(text.c_str(), shape);
}

/* A label for each pixel is no misfit. */
TEST("sums", labels_of_pixels) {
    at::Tensor logits = at::zeros({2, 3, 4, 4}), labels = at::zeros({2, 4, 4}, at::kLong);
    ck_assert_double_eq(value(memtrain::correct(logits, labels)), 32.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, labels, 3)), 32.0);
}

TEST("sums", sums_of_chunks) {
    at::Tensor output = at::tensor({0.5, 0.25, -1.0, 2.0, 0.0, 1.0}).reshape({6, 1});
    at::Tensor target = at::tensor({0.0, 0.25, 1.0, 1.0, 0.5, 1.0}).reshape({6, 1});
    for (int64_t first : {1, 2, 5}) {
        double sum = 0.0;
        for (auto [from, to] : {std::pair<int64_t, int64_t>{0, first}, {first, 6}})
            sum += value(
                memtrain::absolute_error(output.slice(0, from, to), target.slice(0, from, to)));
        ck_assert_double_eq_tol(sum, value(memtrain::absolute_error(output, target)), 1e-6);
    }
}

} // namespace

SUITE("shim_metrics")
