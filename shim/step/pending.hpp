/*
 * pending.hpp - figures of chunks that were not waited for. They lie on the card, a row a chunk, until all of them are read
 * at once.
 */
#ifndef MEMTRAIN_SHIM_PENDING_HPP
#define MEMTRAIN_SHIM_PENDING_HPP

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <memtrain/torch.h>

#include "canary.hpp"
#include "device.hpp"
#include "model.hpp"

namespace memtrain::shim {

/*
 * Units and the sum of the loss, of which the mean is given, beside metrics that are there. With 0 units the mean is 0/0, and so
 * may be a metric: they add nothing.
 */
void set_sums(double loss, double units, mt_chunk_result &result);

class Pending {
public:
    /* Makes the rows, before a step; none for a device that is the host, or a simulated card. */
    void lay_out(const Device &device, size_t metrics);

    bool is_there() const { return values_.defined(); }

    /* A chunk begins, or what is prepared for the first one. Where all rows are in use they are read first. */
    void begin(Canary &canary);

    /* Its last work on the card: its figures go into the next row. They count once keep() is called. */
    void put(const Loss &values, double units, size_t samples, Canary &canary);
    void keep() { rows_.push_back(last_); }

    /* Waits for the card, and looks whether it has done what it was given. Without a pending chunk nothing happens. */
    void read(Canary &canary) { read(canary, {}); }

    /* The same, and one more number of the card's, by the same wait; 0 for an undefined tensor. */
    double read(Canary &canary, const at::Tensor &more);
    bool has_rows() const { return !rows_.empty(); }

    /* The oldest that was not taken yet; read() comes first. */
    bool is_empty() const { return next_ == read_.size(); }
    mt_chunk_result take() { return read_[next_++]; }

    void clear();

private:
    struct Row {
        double units;
        size_t samples;
        bool is_told; /* metrics that the model gave on the host, which are not read of the card */
        std::array<double, MT_METRICS_MAX> told;
    };
    void add_result(const double *values, const Row &row, double seconds);

    at::Tensor
        values_; /* [most][loss, metrics..., canary]: float64, or float32 where there are no doubles */
    size_t metrics_ = 0;
    std::vector<Row> rows_; /* of values_, those that are in use */
    Row last_ = {};         /* that was put, and is to be kept or not */
    std::optional<std::chrono::steady_clock::time_point> start_; /* of the first of them */
    std::vector<mt_chunk_result> read_;
    size_t next_ = 0; /* of read_ */
};

} // namespace memtrain::shim
#endif
