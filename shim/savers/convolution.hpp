/*
 * convolution.hpp - the convolution at the end of a segment (mt_conv): run in the forward pass, and taken
 * back from what it was given, without being run again.
 */
#ifndef MEMTRAIN_SHIM_CONVOLUTION_HPP
#define MEMTRAIN_SHIM_CONVOLUTION_HPP

#include <vector>

#include <ATen/core/Tensor.h>
/* An edge, and the node that it keeps: from libtorch 2.13 on edge.h by itself does not compile where one is dropped. */
#include <torch/csrc/autograd/function.h>

#include <memtrain/torch.h>

namespace memtrain::shim {

class Convolution {
public:
    /* Checks what the caller gives. */
    Convolution(const char *function, const mt_conv &conv);

    /* [B, in, spatial...] -> [B, out, spatial...] */
    at::Tensor operator()(const at::Tensor &input) const;

    /*
     * Where the output's gradient goes in the graph that the input is of: to what the convolution would have
     * left there. Of the gradient only shape and dtype are looked at. Not valid where nothing needs it.
     */
    torch::autograd::Edge backward(const at::Tensor &input, const at::Tensor &gradient) const;

    const at::Tensor &weight() const { return weight_; }
    const at::Tensor &bias() const { return bias_; }

private:
    friend class TakeBack;

    at::Tensor weight_, bias_;
    std::vector<int64_t> stride_, padding_, dilation_;
    int64_t groups_;
};

} // namespace memtrain::shim
#endif
