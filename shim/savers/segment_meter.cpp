/* segment_meter.cpp - the course of a chunk, in laps from one end of a part to the next. */
#include "segment_meter.hpp"

#include <algorithm>
#include <utility>

#include "device_memory.hpp"

namespace memtrain::shim {
namespace {

constexpr double never_again =
    1e-9; /* seconds of what is no segment: more than the nothing that it gains */

size_t above(size_t bytes, size_t level) {
    return bytes - std::min(bytes, level);
}

} // namespace

SegmentMeter::SegmentMeter(const Device &device)
    : device_(device), chain_(1), start_(device_allocated(device)), mark_(start_), behind_(start_) {
    chain_[0].seconds = never_again;
}

/* The peak since the last lap. */
size_t SegmentMeter::lap() {
    size_t peak = call_peak(device_);
    peak_ = std::max(peak_, peak);
    start_call_peak(device_);
    return peak;
}

void SegmentMeter::raise(mt_segment_cost &part, size_t peak, size_t behind) {
    part.work_bytes = std::max(part.work_bytes, above(peak, behind));
}

/* What nobody holds any more is nothing that its segment leaves behind: an output that was added to another. */
void SegmentMeter::let_go() {
    auto is_gone = [this](const Output &output) {
        if (!output.storage.expired()) return false;
        mt_segment_cost &part = chain_[output.part];
        size_t gone = std::min(output.bytes, part.output_bytes);
        part.output_bytes -= gone;
        part.kept_bytes -= gone;
        mark_ = above(mark_, gone);
        return true;
    };
    outputs_.erase(std::remove_if(outputs_.begin(), outputs_.end(), is_gone), outputs_.end());
}

void SegmentMeter::enter() {
    size_t now = device_allocated(device_);
    mt_segment_cost &between = chain_.back();
    let_go();
    raise(between, lap(), mark_);
    between.kept_bytes = between.output_bytes = above(now, mark_);
    mark_ = now;
}

size_t SegmentMeter::leave(const std::vector<at::Tensor> &outputs) {
    size_t now = device_allocated(device_), left = above(now, mark_);
    mt_segment_cost segment = {left, left, 0.0, 0}, between = {0, 0, never_again, 0};
    raise(segment, lap(), mark_);
    for (const at::Tensor &output : outputs)
        if (output.has_storage())
            outputs_.push_back(
                {output.storage().getWeakStorageImpl(), output.storage().nbytes(), chain_.size()});
    chain_.push_back(segment);
    chain_.push_back(between);
    mark_ = now;
    return segments_of(chain_) - 1;
}

/* What comes between this segment and the one that was gone back through before has ended, too. */
void SegmentMeter::begin_backward(size_t segment, size_t gradient_bytes) {
    if (is_over()) return;
    size_t peak = lap(), part = 2 * segment + 1;
    bool is_last = part + 2 == chain_.size();
    behind_ = above(device_allocated(device_), gradient_bytes);
    raise(chain_[part + 1], peak, is_last ? mark_ : behind_ + chain_[part].output_bytes);
}

void SegmentMeter::begin_again() {
    if (is_over()) return;
    synchronize(device_);
    before_ = device_allocated(device_);
    since_ = std::chrono::steady_clock::now();
}

void SegmentMeter::end_again(size_t segment, bool gives_output) {
    if (is_over()) return;
    mt_segment_cost &part = chain_[2 * segment + 1];
    synchronize(device_);
    part.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
    size_t left = above(device_allocated(device_), before_);
    part.kept_bytes = gives_output ? std::max(part.output_bytes, left) : part.output_bytes + left;
}

/* What comes below has gradients of parameters beside it, where those have a place of their own. */
void SegmentMeter::end_backward(size_t segment) {
    if (is_over()) return;
    raise(chain_[2 * segment + 1], lap(), behind_);
    behind_ = std::max(start_, above(device_allocated(device_), chain_[2 * segment].kept_bytes));
}

Chain SegmentMeter::finish() {
    raise(chain_[0], lap(), behind_);
    Chain whole;
    whole.swap(chain_);
    return whole;
}

} // namespace memtrain::shim
