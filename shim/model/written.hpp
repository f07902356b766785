/*
 * written.hpp - parameters that the model's own code writes to while a chunk runs: a momentum encoder, an average
 * of weights, weights that are clipped. A step that is taken back takes them back too.
 *
 * Of a parameter that is known to be written to a step keeps a copy, as of a buffer. Of all others it compares the
 * version counter and the place in memory, which is what writing in place and set_data() change. So that the
 * first chunk that writes can be taken back as well, each operator is looked at before it runs until one chunk
 * has gone through, and what it is about to write to is copied.
 */
#ifndef MEMTRAIN_SHIM_WRITTEN_HPP
#define MEMTRAIN_SHIM_WRITTEN_HPP

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "snapshot.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

class WrittenParameters {
public:
    /* The state that is put back: as the step found it, or as the marked chunk did. */
    enum When { step, chunk };

    /* Follows these, and goes on with what is known of those of the same name. */
    void follow(const std::vector<Named> &parameters);

    /* A step begins, or a chunk is marked. Allocates copies of those that are known to be written to. */
    void take(When when);

    /* A chunk has gone through: what has changed since the step began is known to be written to. */
    void end_chunk();

    /* Whether operators are looked at, in training and in evaluation, which may write to others. */
    using Learning = std::array<bool, 2>; /* [training] */
    void learn(Learning learning = {true, true}) { learns_ = learning; }
    void is_learnt(bool training) { learns_[training] = false; }
    bool learns(bool training) const { return learns_[training]; }
    Learning learning() const { return learns_; }

    /* Sees what has changed, for put_back(). Not once the update has begun, which changes parameters too. */
    void compare();

    /* Allocates nothing. Throws Failure with the name of one that was written to and never copied. */
    void put_back(When when);

    /* Of the copies that each step keeps. */
    size_t bytes() const;

    /* Of those that are known to be written to. */
    std::vector<std::string> names() const;

    /* A number that is another one where one of them has been written to since. */
    uint64_t stamp() const;

    /* The operator that runs next writes to the tensor. */
    void before_write(const at::Tensor &tensor) noexcept;

private:
    struct Entry {
        Named named;
        Kept kept[2];    /* by When */
        bool is_kept[2]; /* there is a copy of this step's */
        uint32_t version = 0;
        bool changed = false; /* since the step began, as far as anyone has looked */
        bool outside = false; /* the copy was made before a first write, in plain memory */
        bool written = false; /* known to be, from now on */
    };
    void begin(Entry &entry);
    void put_back(Entry &entry, const Entry *&lost);

    std::vector<Entry> entries_;
    Learning learns_ = {true, true};
    bool warned_ = false;
    uint64_t writes_ = 0;
};

/* Whether a buffer is a norm's statistic by the name that libtorch's modules give it. */
bool is_named_as_a_norms(const std::string &name);

/*
 * Buffers that a step's chunks change one after the other, such as a counter or an average of weights: a step that is
 * taken back takes them back, and one in more chunks changes them more often. One line of the log tells of it.
 * Statistics of batch norms are meant to be so.
 */
class WrittenBuffers {
public:
    /* A step begins with these. */
    void begin(std::vector<Named> &&buffers);

    /* A chunk has gone through. statistics: where those of norms lie that are no modules. */
    void end_chunk(const std::vector<const void *> &statistics);

private:
    struct Entry {
        Named named;
        uint32_t version;
        const void *place;
        bool changed; /* by a chunk of this step */
    };
    std::vector<Entry> entries_;
    bool warned_ = false;
};

/* Looks at operators of this thread, and of those that backward uses for it, as long as it lives. NULL: at none. */
class WatchWrites {
public:
    explicit WatchWrites(WrittenParameters *written);
    ~WatchWrites();
    WatchWrites(const WatchWrites &) = delete;
    WatchWrites &operator=(const WatchWrites &) = delete;

private:
    WrittenParameters *before_;
    uint64_t handle_ = 0;
};

} // namespace memtrain::shim
#endif
