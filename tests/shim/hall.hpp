/* hall.hpp - threads of a test as the processes of one training: where they meet to add up. */
#ifndef HALL_HPP
#define HALL_HPP

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include <memtrain/processes.h>

namespace check_shim {

/* Where they meet: each brings numbers and leaves with the sums, which are taken in the order of ranks. */
class Hall {
public:
    explicit Hall(int count) : count_(count), brought_(static_cast<size_t>(count)) {}

    template <class Number> void sum(int rank, Number *values, size_t n) {
        std::unique_lock<std::mutex> lock(mutex_);
        brought_[static_cast<size_t>(rank)] = values;
        uint64_t round = round_;
        if (++here_ == count_) {
            std::vector<Number> sums(n, Number(0));
            for (void *numbers : brought_)
                for (size_t i = 0; i < n; i++) sums[i] += static_cast<Number *>(numbers)[i];
            for (void *numbers : brought_) std::memcpy(numbers, sums.data(), n * sizeof(Number));
            here_ = 0;
            round_++;
            all_.notify_all();
        }
        all_.wait(lock, [&] { return round_ != round; });
    }
    uint64_t rounds() const { return round_; }

private:
    std::mutex mutex_;
    std::condition_variable all_;
    int count_, here_ = 0;
    uint64_t round_ = 0;
    std::vector<void *> brought_;
};

struct Seat {
    Hall *hall;
    int rank;
};

inline mt_status sum_floats(void *self, float *values, size_t n) {
    auto *seat = static_cast<Seat *>(self);
    seat->hall->sum(seat->rank, values, n);
    return MT_OK;
}

inline mt_status sum_doubles(void *self, double *values, size_t n) {
    auto *seat = static_cast<Seat *>(self);
    seat->hall->sum(seat->rank, values, n);
    return MT_OK;
}

inline mt_process_group group_of(Seat &seat, int count) {
    return {sizeof(mt_process_group), &seat, seat.rank, count, sum_floats, sum_doubles};
}

} // namespace check_shim
#endif
