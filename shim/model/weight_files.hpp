/*
 * weight_files.hpp - the safetensors files of one network: a single one, or several that an index names.
 */
#ifndef MEMTRAIN_SHIM_WEIGHT_FILES_HPP
#define MEMTRAIN_SHIM_WEIGHT_FILES_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <memtrain/safetensors.h>

namespace memtrain::shim {

/* One of them, open and checked. */
class WeightFile {
public:
    explicit WeightFile(const std::string &path);
    ~WeightFile() { mt_safetensors_free(file_); }
    WeightFile(const WeightFile &) = delete;
    WeightFile &operator=(const WeightFile &) = delete;

    const std::string &path() const { return path_; }
    const mt_safetensors *handle() const { return file_; }
    size_t count() const { return mt_safetensors_count(file_); }
    mt_safetensors_tensor entry(size_t index) const;

    /* Where the bytes of a tensor are, and the open file. */
    uint64_t offset(size_t index, int *out_descriptor) const;

    /* Reads bytes of a tensor. */
    void read(size_t index, uint64_t offset, void *data, size_t bytes) const;

private:
    std::string path_;
    mt_safetensors *file_ = nullptr;
};

/* A tensor of one of them. */
struct WeightEntry {
    std::string name;
    std::shared_ptr<const WeightFile> file;
    size_t index;
};

/*
 * All tensors of a file; where its name ends with ".json", those of the files that it names. Throws Failure: an index that is
 * none, a file that is missing or no safetensors file, one that lacks a tensor of the index, a name in two files.
 */
std::vector<WeightEntry> weight_entries(const char *function, const char *path);

inline bool ends_with(const std::string &name, const std::string &end) {
    return name.size() >= end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
}

/* Whether torch does not ask for it, of files without a version: a norm's count of batches. */
inline bool may_be_missing(const std::string &name) {
    return ends_with(name, "num_batches_tracked");
}

/* Whether transformers takes no notice of it: frequencies that follow from the sizes, in files of old. */
inline bool may_be_left_over(const std::string &name) {
    return ends_with(name, "rotary_emb.inv_freq");
}

} // namespace memtrain::shim
#endif
