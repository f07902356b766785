/*
 * segment_end.hpp - what a segment ends in: a convolution, a batch norm, or the two one after another. The last of
 * them is not run again.
 */
#ifndef MEMTRAIN_SHIM_SEGMENT_END_HPP
#define MEMTRAIN_SHIM_SEGMENT_END_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "batch_norm.hpp"
#include "convolution.hpp"

namespace memtrain::shim {

/* A parameter that an end is given, or an undefined tensor for NULL. Throws where it is none. */
at::Tensor parameter_of(const char *function, const char *member, const mt_tensor *handle);

class SegmentEnd {
public:
    /* What the caller gives, checked; or none. */
    static std::optional<SegmentEnd> of(const char *function, const mt_segment_ops &ops,
                                        size_t output_count);

    /* In a segment that does not forget. */
    at::Tensor operator()(const at::Tensor &input) const;

    /* In the forward pass of one that does, without a graph. */
    at::Tensor run(const at::Tensor &input);

    /*
     * Where the output's gradient goes in the graph of the input, which was computed again. Of two parts the
     * first is run again. Not valid where nothing needs a gradient.
     */
    torch::autograd::Edge backward(const at::Tensor &input, const at::Tensor &gradient) const;

private:
    at::Tensor given(const at::Tensor &input) const;
    std::vector<at::Tensor> watched() const;

    const char *function_ = nullptr;
    std::vector<uint32_t> versions_; /* of what is watched, when it was run */
    std::optional<Convolution> conv_;
    std::optional<BatchNorm> norm_;
};

} // namespace memtrain::shim
#endif
