/*
 * batch_norm.hpp - the batch norm at the end of a segment (mt_batch_norm): run in the forward pass, which keeps
 * the statistics of each channel, and taken back from them and its input, without being run again.
 */
#ifndef MEMTRAIN_SHIM_BATCH_NORM_HPP
#define MEMTRAIN_SHIM_BATCH_NORM_HPP

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
/* An edge, and the node that it keeps: from libtorch 2.13 on edge.h by itself does not compile where one is dropped. */
#include <torch/csrc/autograd/function.h>

#include <memtrain/torch.h>

namespace memtrain::shim {

class BatchNorm {
public:
    /* Checks what the caller gives. */
    BatchNorm(const char *function, const mt_batch_norm &norm);

    /* [B, channels, ...] -> the same. */
    at::Tensor operator()(const at::Tensor &input) const;

    /* The same once, without a graph: keeps what backward needs beside the input. */
    at::Tensor run(const at::Tensor &input);

    /*
     * After run: where the output's gradient goes in the graph that the input is of, to what the norm would
     * have left there. Of the gradient only shape and dtype are looked at. Not valid where nothing needs it.
     */
    torch::autograd::Edge backward(const at::Tensor &input, const at::Tensor &gradient) const;

    /* The caller's tensors that backward needs as they were. */
    std::vector<at::Tensor> needed() const;

private:
    friend class TakeBackNorm;

    void check_values(const at::Tensor &input) const;

    const char *function_;
    at::Tensor weight_, bias_, running_mean_, running_var_;
    bool training_;
    double momentum_, epsilon_;

    /* Of run, as libtorch's own implementation gives them to its backward pass. */
    at::Tensor mean_, deviation_, reserve_;
    int64_t implementation_ = 0;
};

} // namespace memtrain::shim
#endif
