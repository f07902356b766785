/*
 * norm_watch.hpp - whether a forward pass normalises over the samples of its chunk by an operator: a
 * torch::batch_norm that is called in forward is no module, so that nothing tells of it beforehand.
 */
#ifndef MEMTRAIN_SHIM_NORM_WATCH_HPP
#define MEMTRAIN_SHIM_NORM_WATCH_HPP

#include <cstdint>
#include <vector>

namespace memtrain::shim {

/*
 * Listens to the operators of the calling thread while it lives. That makes each of them slower by about a
 * microsecond, so one chunk is listened to.
 */
class NormWatch {
public:
    /* on false: does nothing. */
    explicit NormWatch(bool on);
    ~NormWatch();
    NormWatch(const NormWatch &) = delete;
    NormWatch &operator=(const NormWatch &) = delete;

    /* Whether a batch norm in training mode has run. Those within an instance norm see one sample each. */
    bool found() const noexcept;

    /* Where the running means and variances lie that these have been given. */
    const std::vector<const void *> &statistics() const noexcept;

private:
    uint64_t callback_ = 0; /* 0: none */
};

} // namespace memtrain::shim
#endif
