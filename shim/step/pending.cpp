/* pending.cpp - see pending.hpp. */
#include "pending.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

namespace memtrain::shim {
namespace {

constexpr size_t most = 64; /* chunks; then the card is waited for */

using Clock = std::chrono::steady_clock;

} // namespace

void Pending::lay_out(const Device &device, size_t metrics) {
    clear();
    values_.reset();
    if (device.is_cpu()) return;
    auto type = device.has_doubles() ? at::kDouble : at::kFloat;
    metrics_ = metrics;
    rows_.reserve(most);
    values_ = at::zeros({static_cast<int64_t>(most), static_cast<int64_t>(metrics) + 2},
                        at::device(device).dtype(type));
}

void Pending::begin(Canary &canary) {
    if (rows_.size() == most) read(canary);
    if (!start_) start_ = Clock::now();
}

void Pending::put(const Loss &values, double units, size_t samples, Canary &canary) {
    at::NoGradGuard no_grad;
    int64_t metrics = static_cast<int64_t>(metrics_);
    at::Tensor row = values_[static_cast<int64_t>(rows_.size())];
    row.narrow(0, 0, 1).copy_(values.loss.detach().reshape({1}), /*non_blocking=*/true);
    bool is_told = values.metrics.defined() && values.metrics.is_cpu();
    if (values.metrics.defined() && !is_told)
        row.narrow(0, 1, metrics).copy_(values.metrics.reshape({-1}), /*non_blocking=*/true);
    else
        row.narrow(0, 1, metrics).zero_();
    canary.write(row[metrics + 1]);
    last_ = {units, samples, is_told, {}};
    if (!is_told) return;
    at::Tensor told = values.metrics.to(at::kDouble).contiguous();
    std::copy_n(told.const_data_ptr<double>(), metrics_, last_.told.begin());
}

void set_sums(double loss, double units, mt_chunk_result &result) {
    result.units = units;
    result.loss_sum = units > 0.0 ? loss * units : 0.0;
    for (double &sum : result.metric_sums)
        if (units == 0.0 && !std::isfinite(sum)) sum = 0.0;
}

void Pending::add_result(const double *values, const Row &row, double seconds) {
    mt_chunk_result result = MT_CHUNK_RESULT_INIT;
    std::copy_n(row.is_told ? row.told.data() : values + 1, metrics_, result.metric_sums);
    set_sums(values[0], row.units, result);
    result.seconds = seconds;
    read_.push_back(result);
}

double Pending::read(Canary &canary, const at::Tensor &more) {
    auto start = std::exchange(start_, std::nullopt);
    if (rows_.empty()) return 0.0;
    size_t width = metrics_ + 2, samples = 0;
    at::Tensor used = values_.narrow(0, 0, static_cast<int64_t>(rows_.size())).reshape({-1});
    if (more.defined()) used = at::cat({used, more.to(used.scalar_type()).reshape({1})});
    at::Tensor host = used.to(at::kCPU).to(at::kDouble); /* waits for the card */
    double seconds = std::chrono::duration<double>(Clock::now() - *start).count();
    const double *values = host.const_data_ptr<double>();
    std::vector<Row> rows;
    rows.reserve(most);
    rows.swap(rows_);
    canary.compare(values[rows.size() * width - 1], false);
    for (const Row &row : rows) samples += row.samples;
    for (size_t i = 0; i < rows.size(); i++)
        add_result(values + i * width, rows[i],
                   seconds * static_cast<double>(rows[i].samples) / static_cast<double>(samples));
    return more.defined() ? values[rows.size() * width] : 0.0;
}

void Pending::clear() {
    rows_.clear();
    read_.clear();
    next_ = 0;
    start_.reset();
}

} // namespace memtrain::shim
