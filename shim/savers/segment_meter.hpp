/*
 * segment_meter.hpp - what the segments of one chunk keep and cost, measured while all of them are
 * computed again: then each is alone with its activations, and nothing needs the room of a plain run.
 *
 * The chunk is a chain: what is before the first segment, it, what is between it and the next one, and so
 * on to what follows the last. Peaks are those above what is left behind by the parts before.
 */
#ifndef MEMTRAIN_SHIM_SEGMENT_METER_HPP
#define MEMTRAIN_SHIM_SEGMENT_METER_HPP

#include <chrono>
#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memtrain/segments.h>

#include "device.hpp"

namespace memtrain::shim {

/*
 * Segments and the parts between them by turns: part 2 i + 1 is segment i. What lies between segments
 * leaves all behind that it keeps, and takes no time worth a second run.
 */
using Chain = std::vector<mt_segment_cost>;

inline size_t segments_of(const Chain &chain) {
    return chain.size() / 2;
}

/* Of one chunk; used by one thread at a time. */
class SegmentMeter {
public:
    explicit SegmentMeter(const Device &device);

    /* Around a segment in the forward pass; leave() gives its number. Its outputs are watched, not kept. */
    void enter();
    size_t leave(const std::vector<at::Tensor> &outputs);

    /*
     * Around its part of the backward pass, and in that around the second run. gradient_bytes: of its
     * outputs' gradients, which it is handed. gives_output: the second run has made the output too, which a
     * plain run keeps with the rest.
     */
    void begin_backward(size_t segment, size_t gradient_bytes);
    void begin_again();
    void end_again(size_t segment, bool gives_output);
    void end_backward(size_t segment);

    /*
     * The chunk is through. The chain; and its highest peak, as bytes allocated. A graph that the model keeps, and
     * goes back through with a later chunk, is not measured any more.
     */
    Chain finish();
    size_t peak() const { return peak_; }

private:
    struct Output {
        c10::weak_intrusive_ptr<c10::StorageImpl> storage;
        size_t bytes, part;
    };
    bool is_over() const { return chain_.empty(); }
    size_t lap();
    void let_go();
    static void raise(mt_segment_cost &part, size_t peak, size_t behind);

    Device device_;
    Chain chain_;
    std::vector<Output> outputs_; /* of segments, as long as they are there */
    size_t start_;                /* allocated before the chunk */
    size_t mark_;                 /* allocated when the part before ended in the forward pass */
    size_t behind_;               /* in the backward pass: allocated below the part that it is at */
    size_t before_ = 0;
    size_t peak_ = 0;
    std::chrono::steady_clock::time_point since_;
};

} // namespace memtrain::shim
#endif
