/*
 * check_shim_metrics.cpp - the metrics of memtrain/torch.hpp against figures worked out by hand, and
 * that their sums do not depend on how a batch is cut.
 */
#include <ATen/ops/tensor.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

double value(const at::Tensor &metric, int64_t i = 0) {
    return metric[i].item().toDouble();
}

START_TEST(top_k) {
    at::Tensor logits = at::tensor({0.1, 0.5, 0.2, 0.9, 0.3, 0.4, 0.3, 0.2, 0.1}).reshape({3, 3});
    at::Tensor target = at::tensor({1, 2, 2}, at::kLong);
    ck_assert_double_eq(value(memtrain::correct(logits, target)), 1.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, target, 1)), 1.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, target, 2)), 2.0);
    ck_assert_double_eq(value(memtrain::top_k(logits, target, 9)), 3.0);
}
END_TEST

START_TEST(errors) {
    at::Tensor output = at::tensor({1.0, 2.0, 3.0, 5.0}).reshape({2, 2});
    at::Tensor target = at::tensor({0.0, 4.0, 3.0, 1.0}).reshape({2, 2});
    ck_assert_double_eq(value(memtrain::absolute_error(output, target)), 1.5 + 2.0);
    ck_assert_double_eq(value(memtrain::squared_error(output, target)), 2.5 + 8.0);
}
END_TEST

START_TEST(overlap) {
    at::Tensor output = at::tensor({1, 1, 0, 0, 1, 0}).reshape({2, 3});
    at::Tensor target = at::tensor({1, 0, 0, 1, 1, 0}).reshape({2, 3});
    at::Tensor sums = memtrain::intersection_union(output, target);
    ck_assert_double_eq(value(sums, 0), 2.0);
    ck_assert_double_eq(value(sums, 1), 4.0);
}
END_TEST

START_TEST(sums_of_chunks) {
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
END_TEST

Suite *suite_metrics() {
    Suite *suite = suite_create("shim_metrics");
    TCase *sums = suite_case(suite, "sums");
    tcase_add_test(sums, top_k);
    tcase_add_test(sums, errors);
    tcase_add_test(sums, overlap);
    tcase_add_test(sums, sums_of_chunks);
    return suite;
}

} // namespace

int main() {
    return suite_run(suite_metrics());
}
