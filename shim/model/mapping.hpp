/*
 * mapping.hpp - weights that are views of mapped files: how a tensor is one, what is read ahead, and what is given
 * back.
 */
#ifndef MEMTRAIN_SHIM_MAPPING_HPP
#define MEMTRAIN_SHIM_MAPPING_HPP

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <memtrain/torch_map.h>

#include "bus_error.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

/* A file, read-only and shared with whoever else maps it. Functions throw Failure. */
class MappedFile {
public:
    /* function: for error lines. descriptor: of the open file, which may be closed afterwards. */
    MappedFile(const char *function, const char *path, int descriptor);
    ~MappedFile();
    MappedFile(const MappedFile &) = delete;
    MappedFile &operator=(const MappedFile &) = delete;

    const char *at(uint64_t offset) const { return begin_ + offset; }
    const std::string &path() const { return path_; }

    /* MT_EIO where size or time of the file are others than when it was mapped, or a page could not be read. */
    void check() const;

    /* Asks the system to read these bytes; to forget that this process has them, and with drop, to forget them. */
    void read_ahead(uint64_t offset, uint64_t bytes) const noexcept;
    void give_back(uint64_t offset, uint64_t bytes, bool drop) const noexcept;

private:
    struct Stamp {
        uint64_t bytes;
        int64_t seconds, nanoseconds;
    };
    Stamp stamp() const;

    const char *function_; /* a literal */
    std::string path_;
    int descriptor_ = -1;
    Stamp mapped_ = {0, 0, 0};
    char *begin_ = nullptr;
    std::unique_ptr<WatchedRange> range_; /* of addresses */
};

class Mapping;

/* What the storage of such a tensor belongs to. */
struct MappedView {
    std::shared_ptr<Mapping> mapping;
    std::shared_ptr<MappedFile> file;
    uint64_t offset, bytes;
    c10::ScalarType computes; /* the type of the parameter that it has become */
};

/* A tensor whose memory is that of the view, which is this tensor's from now on. */
at::Tensor tensor_of(std::unique_ptr<MappedView> view, c10::ScalarType dtype,
                     at::IntArrayRef sizes);

/* NULL: it is no such tensor. */
const MappedView *mapped_view(const at::Tensor &tensor);

/* The list without them. */
std::vector<Named> without_mapped(std::vector<Named> list);

/* All that a model has of mapped files, and the order in which its frozen blocks use them. */
class Mapping {
public:
    void add_file(std::shared_ptr<MappedFile> file, uint64_t tensor_bytes, bool drop);
    void add_tensors(size_t mapped, uint64_t loaded_bytes);

    /* MT_EIO where a file has changed. */
    void check() const;

    /*
     * A block with these views begins: its files are checked, and what came next after it and the one before it, the
     * last time, is read ahead. No views: nothing happens. Where memory is too short for the files, a pass begins by giving
     * back what the heap keeps for nothing: in a control group that would push out what is read ahead, before it is used.
     */
    void begin(const std::vector<const MappedView *> &views);

    /* It is through. */
    void end(const std::vector<const MappedView *> &views);

    void note_casts(uint64_t bytes);

    mt_map_stats stats() const { return stats_; }

private:
    using Key = const void *; /* a block by its first view */
    struct Range {
        std::shared_ptr<MappedFile> file;
        uint64_t offset, bytes;
    };
    using Ranges = std::vector<Range>;

    static Ranges ranges_of(const std::vector<const MappedView *> &views);

    std::vector<std::shared_ptr<MappedFile>> files_;
    std::map<Key, Ranges> blocks_;
    std::map<std::pair<Key, Key>, Key> next_; /* after two blocks in a row */
    Key first_ = nullptr;                     /* with which a pass begins */
    std::pair<Key, Key> last_ = {nullptr, nullptr};
    mt_map_stats stats_ = MT_MAP_STATS_INIT;
};

} // namespace memtrain::shim
#endif
