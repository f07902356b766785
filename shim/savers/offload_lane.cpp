/* offload_lane.cpp - see offload_lane.hpp. */
#include "offload_lane.hpp"

#include <algorithm>
#include <utility>

#include <c10/core/StreamGuard.h>

#include "device_memory.hpp"
#include "pinned.hpp"
#include "streams.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t most_going = 2;

} // namespace

/*
 * The memory on the card is of the stream that computes there, and goes back once that stream has waited for the copy: it needs
 * no other stream's memory, and a chunk asks for the same whatever the copies take.
 */
class OnLane final : public Stored {
public:
    OnLane(std::shared_ptr<Lane> lane, const at::Tensor &tensor);
    ~OnLane() override;

    /* Throws where it was changed before it was out: what the host has may be these numbers or others. */
    at::Tensor still_there() override;
    bool comes_by_itself() override;
    void begin(const at::Tensor &to) override;
    void end() override;
    void read(const at::Tensor &to) override {
        begin(to);
        end();
    }

    /* It is out: what it had on the card goes back. */
    void is_out();

private:
    bool is_changed() const { return there_.defined() && there_._version() != version_; }

    std::shared_ptr<Lane> lane_;
    at::Tensor there_; /* while it goes out */
    int64_t version_;
    bool was_changed_ = false; /* before it was out */
    PinnedBytes counted_;      /* longer than host_ is there */
    at::Tensor host_;
    c10::Event out_, back_;
};

OnLane::OnLane(std::shared_ptr<Lane> lane, const at::Tensor &tensor)
    : lane_(std::move(lane)), there_(tensor.tensor_data()), version_(tensor._version()),
      counted_(tensor.device().type(), tensor.nbytes()),
      host_(counted_.make(tensor.sizes(), tensor.strides(), tensor.scalar_type())),
      out_(tensor.device().type()), back_(tensor.device().type()) {
    follow(lane_->out_, current_stream(lane_->device_));
    c10::StreamGuard on(lane_->out_);
    host_.copy_(there_, /*non_blocking=*/true);
    out_.record(lane_->out_);
}

OnLane::~OnLane() {
    lane_->remove(*this);
    try {
        if (there_.defined()) out_.block(current_stream(lane_->device_));
    } catch (const c10::Error &) {
        /* The card is lost, and whatever comes next says so. */
    }
}

void OnLane::is_out() {
    out_.synchronize();
    was_changed_ = is_changed();
    there_.reset();
}

bool OnLane::comes_by_itself() {
    std::lock_guard<std::mutex> lock(lane_->mutex_);
    return !there_.defined();
}

at::Tensor OnLane::still_there() {
    std::lock_guard<std::mutex> lock(lane_->mutex_);
    TORCH_CHECK(!was_changed_ && !is_changed(),
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: a tensor of ",
                host_.scalar_type(), " ", host_.sizes(), " was on its way to the host");
    return there_;
}

void OnLane::begin(const at::Tensor &to) {
    follow(lane_->in_, current_stream(lane_->device_));
    out_.block(lane_->in_);
    c10::StreamGuard on(lane_->in_);
    to.copy_(host_, /*non_blocking=*/true);
    back_.record(lane_->in_);
}

void OnLane::end() {
    back_.block(current_stream(lane_->device_));
}

std::shared_ptr<Lane> Lane::open(const c10::Device &device) {
    if (!has_pinned_memory(device)) return nullptr;
    try {
        c10::impl::VirtualGuardImpl guard(device.type());
        c10::Stream out = guard.getStreamFromGlobalPool(device);
        c10::Stream in = guard.getStreamFromGlobalPool(device);
        follow(in, out);
        return std::shared_ptr<Lane>(new Lane(device, out, in));
    } catch (const c10::Error &) {
        return nullptr; /* so it has no streams, or no events */
    }
}

std::unique_ptr<Stored> Lane::send(const at::Tensor &tensor) {
    make_room();
    auto stored = std::make_unique<OnLane>(shared_from_this(), tensor);
    std::lock_guard<std::mutex> lock(mutex_);
    going_.push_back(stored.get());
    return stored;
}

void Lane::make_room() {
    std::lock_guard<std::mutex> lock(mutex_);
    while (going_.size() >= most_going) {
        going_.front()->is_out();
        going_.pop_front();
    }
}

void Lane::remove(const OnLane &tensor) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    going_.erase(std::remove(going_.begin(), going_.end(), &tensor), going_.end());
}

} // namespace memtrain::shim
