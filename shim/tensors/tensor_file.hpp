/*
 * tensor_file.hpp - libtorch's tensors in files of memtrain/safetensors.h.
 */
#ifndef MEMTRAIN_SHIM_TENSOR_FILE_HPP
#define MEMTRAIN_SHIM_TENSOR_FILE_HPP

#include <string>
#include <utility>
#include <vector>

#include <memtrain/safetensors.h>

#include "bytes.hpp"
#include "hash.hpp"
#include "tensor.hpp"

namespace memtrain::shim {

using Texts = std::vector<std::pair<std::string, std::string>>;

/* Writes them under their names, piece by piece. keep: as in mt_safetensors_save_options. */
void save_tensors(const char *path, const std::vector<Named> &list, const Texts &metadata,
                  bool keep);

/* libtorch's name of a file's type; Undefined for one that it does not have. */
c10::ScalarType ours_of(mt_st_dtype type);

/* Whether files have tensors of its type. */
bool has_file_type(const at::Tensor &tensor);

/* A tensor here and where a file has it. */
struct Match {
    at::Tensor tensor;
    size_t index;
};

/* An open file. Functions throw Failure. */
class TensorFile {
public:
    explicit TensorFile(const char *path);
    explicit TensorFile(
        const mt_safetensors *open); /* borrowed: open for as long as this is there */
    ~TensorFile();
    TensorFile(const TensorFile &) = delete;
    TensorFile &operator=(const TensorFile &) = delete;

    size_t count() const { return entries_.size(); }
    const mt_safetensors_tensor &entry(size_t index) const { return entries_[index]; }
    const char *metadata(const char *key) const; /* NULL: there is none */

    /* "F32 [64,3,7,7]" of an entry. */
    std::string description(size_t index) const;

    /* Whether the bytes are those of such a tensor: dtype and shape. */
    bool fits(size_t index, const at::Tensor &tensor) const;

    /*
     * Throws Failure where elements of the tensor share memory and the file has different numbers for them. Other
     * tensors are not looked at. Before anything is read into any.
     */
    void check_shared(const char *function, const char *path, const Match &match) const;

    /* Whether it has the shape, and a smaller type of floats, whose numbers the tensor's type has too. */
    bool widens(size_t index, const at::Tensor &tensor) const;

    /* Copies the numbers into the tensor's memory, which they fit, or widens them. */
    void read(size_t index, const at::Tensor &tensor, Staging &staging) const;

    /*
     * Reads all there is, so that a disk that fails does so before anything is changed.
     * @param hash  is told of all tensors in the order of their names; NULL: nobody is
     */
    void read_through(StateHash *hash, Staging &staging) const;

private:
    void take_entries();
    void read_bytes(size_t index, const at::Tensor &tensor, Staging &staging) const;

    mt_safetensors *own_ = nullptr; /* NULL: file_ is another's */
    const mt_safetensors *file_ = nullptr;
    std::vector<mt_safetensors_tensor> entries_; /* by name */
};

/* "F32 [64,3,7,7]" of a tensor. */
std::string description_of(const at::Tensor &tensor);

/* What differs between a file and a model: the first names of each kind and how many there are. */
class Differences {
public:
    void add_missing(const std::string &name) { missing_.add(name.substr(0, 80)); }
    void add_unexpected(const std::string &name) { unexpected_.add(name.substr(0, 80)); }
    void add_different(const std::string &name, const std::string &there, const std::string &here);

    /* Throws MT_EINVAL with all of them in one line, when there are any. */
    void check(const char *function, const char *path) const;

private:
    struct List {
        std::string names;
        size_t count = 0;
        void add(const std::string &name);
        std::string text(const char *what) const;
    };
    List missing_, unexpected_, different_;
};

} // namespace memtrain::shim
#endif
