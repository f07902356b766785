/*
 * recompute.hpp - segments of a model that forget their activations and are computed again in the
 * backward pass; here the part that a step sees of it.
 */
#ifndef MEMTRAIN_SHIM_RECOMPUTE_HPP
#define MEMTRAIN_SHIM_RECOMPUTE_HPP

#include <functional>
#include <memory>
#include <vector>

#include "segment_choice.hpp"
#include "segment_meter.hpp"
#include "tensor.hpp"
#include "written.hpp"

namespace memtrain::shim {

/* Which segments forget their activations. */
struct Forgetting {
    bool on = false;                       /* false: none */
    bool inner = true;                     /* segments within segments that forget do so, too */
    std::shared_ptr<const SegmentSet> set; /* those that do, by number; NULL: all */
    std::shared_ptr<SegmentMeter> meter = nullptr; /* where all do and are measured, else NULL */
};

/*
 * While it lives, segments on this thread forget their activations, or do not. buffers: those that a
 * segment may change that does not name its own. written: parameters that none may write to, or NULL. Outside of
 * any, segments forget, and have none.
 *
 * Segments are numbered in the order in which a forward pass comes to them, from 0; those within others
 * are not.
 */
class Checkpointing {
public:
    Checkpointing(Forgetting rule, std::vector<Named> buffers,
                  const WrittenParameters *written = nullptr);
    ~Checkpointing();
    Checkpointing(const Checkpointing &) = delete;
    Checkpointing &operator=(const Checkpointing &) = delete;

    const Forgetting &rule() const { return rule_; }
    const std::vector<Named> &buffers() const { return buffers_; }
    const WrittenParameters *written() const { return written_; }

    /* The next segment's turn; whether it forgets. */
    bool take_turn();

private:
    Forgetting rule_;
    size_t next_ = 0;
    std::vector<Named> buffers_;
    const WrittenParameters *written_;
    Checkpointing *before_;
};

/* What is there while a segment runs, and while a gradient passes through it; given back when it goes. */
class Surroundings {
public:
    virtual ~Surroundings() = default;
    Surroundings(const Surroundings &) = delete;
    Surroundings &operator=(const Surroundings &) = delete;

    /* The segment has gone through. Throws Failure where what it has computed with was not what it seemed. */
    virtual void finish() = 0;

protected:
    Surroundings() = default;
};
using Surround = std::function<std::unique_ptr<Surroundings>()>;

/*
 * Runs a segment. Where it forgets it is computed again in the backward pass, whatever mt_checkpoint would do, and is
 * not numbered; else it runs without a graph.
 */
mt_status run_surrounded(const char *function, const mt_segment_ops &ops, void *self,
                         mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
                         size_t output_count, const Surround &surround, bool forgets);

} // namespace memtrain::shim
#endif
