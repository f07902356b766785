/*
 * canary.hpp - tells whether a GPU has done what it was given, where errors do not say so.
 *
 * Metal tells of memory that runs out while it works on stderr alone, and ignores what it is given from then on: the loss is
 * what lay there before, and each chunk is fast (pytorch#125954). So each chunk, and each update, adds one to a number on the GPU
 * last of all, and the number is read.
 */
#ifndef MEMTRAIN_SHIM_CANARY_HPP
#define MEMTRAIN_SHIM_CANARY_HPP

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "device.hpp"

namespace memtrain::shim {

class Canary {
public:
    bool is_there() const { return number_.defined(); }

    /* Makes the number, before a step. */
    void lay_out(const Device &device);

    /* After everything else that the GPU is given. On other devices than MPS nothing happens. */
    void send(const Device &device);

    /*
     * Waits for it. Throws Failure where it did not come: MT_EDEVMEM, for what can be taken back and done again; MT_EIO for an
     * update, and twice in a row.
     */
    void check(bool is_update);

    /* The same in two parts: sends, and puts the number where it is read with others; then compares what came. */
    void write(const at::Tensor &to);
    void compare(double number, bool is_update);

private:
    at::Tensor number_, one_; /* not there on other devices */
    int64_t sent_ = 0;
    bool was_lost_ = false;
};

} // namespace memtrain::shim
#endif
