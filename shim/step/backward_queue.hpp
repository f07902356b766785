/*
 * backward_queue.hpp - what a backward that died leaves behind.
 *
 * It leaves the tasks that it had queued, with the gradients in them, in the thread's queue, and
 * libtorch drops them only when the next backward begins: until then their memory is gone from the
 * budget. (Seen with ResNet-18, whose branches queue more than one task; on devices other than the
 * CPU the engine's own threads drop them.)
 */
#ifndef MEMTRAIN_SHIM_BACKWARD_QUEUE_HPP
#define MEMTRAIN_SHIM_BACKWARD_QUEUE_HPP

#include <memory>
#include <utility>

#include <torch/csrc/autograd/engine.h>

namespace memtrain::shim {

/*
 * A queue given to init_local_ready_queue takes the old one's place, which goes with all that it
 * holds. The function is protected: a member pointer taken in a derived class reaches it.
 */
class BackwardQueue : private torch::autograd::Engine {
public:
    using Pointer = std::shared_ptr<torch::autograd::ReadyQueue>;

    static Pointer make() { return std::make_shared<torch::autograd::ReadyQueue>(); }

    /* Inside a backward (re-entrant use) the queue is in use and must not be replaced. */
    static void replace(Pointer queue) {
        auto function = &BackwardQueue::init_local_ready_queue;
        (torch::autograd::Engine::get_default_engine().*function)(std::move(queue));
    }
};

} // namespace memtrain::shim
#endif
