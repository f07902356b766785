/*
 * vic.hpp - variance, invariance and covariance of features (Bardes et al. 2021, arXiv 2105.04906), each as a
 * number for each of B sets of m rows of d features.
 */
#ifndef MEMTRAIN_MODELS_VIC_HPP
#define MEMTRAIN_MODELS_VIC_HPP

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>

namespace memtrain_models {

/* z [B, m, d] less the mean of its rows. */
inline at::Tensor vic_centred(const at::Tensor &z) {
    return z - z.mean(1, true);
}

/* Mean over the features of how much their deviation lacks to `level`; centred [B, m, d] -> [B]. */
inline at::Tensor vic_variance(const at::Tensor &centred, double level = 1) {
    at::Tensor var = centred.square().sum(1) / static_cast<double>(centred.size(1) - 1);
    return (level - (var + 1e-4).sqrt()).relu().mean(1);
}

/* Mean squared distance of the support to its class' mean; support [B, n, k, d] -> [B]. */
inline at::Tensor vic_invariance(const at::Tensor &support) {
    return (support - support.mean(2, true)).square().mean({1, 2, 3});
}

/*
 * Sum of the squared covariances of different features, over d; centred [B, m, d] -> [B].
 *
 * The sum of all squares is that of the m x m products of the rows as well as that of the d x d products of
 * the columns: |Z Z'|^2 = |Z' Z|^2. So nothing of d x d is made: for m = 25 rows of d = 25,088 features
 * 2.5 KB in place of 2.35 GiB.
 */
inline at::Tensor vic_covariance(const at::Tensor &centred) {
    const double m = static_cast<double>(centred.size(1)), d = static_cast<double>(centred.size(2));
    at::Tensor all = at::matmul(centred, centred.transpose(1, 2)).square().sum({1, 2});
    at::Tensor same = centred.square().sum(1).square().sum(1);
    return (all - same) / ((m - 1) * (m - 1) * d);
}

/* The same by the matrix of all covariances, as it is usually written: d x d numbers for each set. */
inline at::Tensor vic_covariance_by_matrix(const at::Tensor &centred) {
    const double m = static_cast<double>(centred.size(1)), d = static_cast<double>(centred.size(2));
    at::Tensor covariance = at::matmul(centred.transpose(1, 2), centred) / (m - 1);
    at::Tensor same = covariance.diagonal(0, 1, 2).square().sum(1);
    return (covariance.square().sum({1, 2}) - same) / d;
}

} // namespace memtrain_models

#endif
