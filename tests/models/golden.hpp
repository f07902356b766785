/*
 * golden.hpp - reads golden files and makes the state they were computed from.
 *
 * The C++ half of tests/golden/golden.py, where the format is described: what has a namesake there
 * must give the same bits. A file that is missing or cut off is an exception, and so is a record
 * that is not in it. Nothing in here knows a network or the test framework.
 */
#ifndef MEMTRAIN_TESTS_GOLDEN_HPP
#define MEMTRAIN_TESTS_GOLDEN_HPP

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace golden {

/* ---- the state ------------------------------------------------------------------------------ */

/* FNV-1a. */
inline uint64_t seed_of(const std::string &name) {
    uint64_t h = 0xcbf29ce484222325u;
    for (unsigned char byte : name) h = (h ^ byte) * 0x100000001b3u;
    return h;
}

/* splitmix64: element `index` of the sequence that starts at `seed`. */
inline uint64_t bits(uint64_t seed, int64_t index) {
    uint64_t z = seed + (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Multiples of 2^-15 in [-1, 1), float64; they stay exact in float32, scaled and shifted too. */
inline at::Tensor uniform(const std::string &name, at::IntArrayRef shape) {
    at::Tensor values = at::empty(shape, at::kDouble);
    double *out = values.mutable_data_ptr<double>();
    const uint64_t seed = seed_of(name);
    for (int64_t i = 0; i < values.numel(); i++)
        out[i] = static_cast<double>(bits(seed, i) >> 48) / 32768 - 1;
    return values;
}

/* [count] class numbers below `number`. */
inline at::Tensor classes(const std::string &name, int64_t count, int64_t number) {
    at::Tensor values = at::empty({count}, at::kLong);
    const uint64_t seed = seed_of(name);
    for (int64_t i = 0; i < count; i++)
        values.mutable_data_ptr<int64_t>()[i] =
            static_cast<int64_t>(bits(seed, i) % static_cast<uint64_t>(number));
    return values;
}

inline bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/* The tensor of that name in a network, by what the end of its name and its rank say. */
inline at::Tensor state(const std::string &name, at::IntArrayRef shape) {
    const at::Tensor values = uniform(name, shape);
    if (shape.size() >= 2) { /* 1 to 2 over sqrt(inputs), a power of two, keeps the variance */
        const double inputs = static_cast<double>(values.numel() / shape[0]);
        double scale = 2;
        while (inputs * scale * scale > 4) scale /= 2;
        return values * scale;
    }
    if (ends_with(name, "running_var") || ends_with(name, "weight")) return 1 + values / 2;
    return values / 4;
}

/* Gives every parameter and floating-point buffer of the module its state. */
inline void fill(torch::nn::Module &module) {
    const c10::AutoGradMode off(false);
    for (const auto &list : {module.named_parameters(), module.named_buffers()})
        for (const auto &item : list)
            if (item.value().is_floating_point())
                item.value().copy_(state(item.key(), item.value().sizes()));
}

/* ---- the file ------------------------------------------------------------------------------- */

class File {
public:
    explicit File(const std::string &path) : path_(path) {
        std::ifstream in(path, std::ios::binary);
        data_.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
        if (std::string(take(8), 8) != "MTGOLDEN" || number<uint32_t>() != 1)
            throw std::runtime_error(path_ + ": no golden file of version 1");
        for (uint32_t left = number<uint32_t>(); left > 0; left--) read_record();
    }

    at::Tensor tensor(const std::string &name) const { return find(name).value; }
    std::string text(const std::string &name) const { return find(name).text; }
    bool has(const std::string &name) const { return records_.count(name) > 0; }

private:
    enum : uint32_t { TEXT = 1, INT64 = 2, FLOAT64 = 3 };

    struct Record {
        std::string text; /* of a text */
        at::Tensor value; /* of anything else */
    };

    const char *take(size_t bytes) {
        if (bytes > data_.size() - at_) throw std::runtime_error(path_ + ": missing or cut off");
        at_ += bytes;
        return data_.data() + at_ - bytes;
    }

    /* All machines that libtorch runs on are little-endian, as the file is. */
    template <class Number> Number number() {
        Number value;
        std::memcpy(&value, take(sizeof(value)), sizeof(value));
        return value;
    }

    void read_record() {
        const uint32_t length = number<uint32_t>();
        const std::string name(take(length), length);
        const uint32_t dtype = number<uint32_t>();
        std::vector<int64_t> shape(number<uint32_t>());
        size_t count = 1;
        for (int64_t &size : shape) count *= static_cast<size_t>(size = number<int64_t>());
        Record record;
        if (dtype == TEXT) {
            record.text.assign(take(count), count);
        } else if (dtype != INT64 && dtype != FLOAT64) {
            throw std::runtime_error(path_ + ": unknown type of " + name);
        } else {
            record.value = at::empty(shape, dtype == INT64 ? at::kLong : at::kDouble);
            std::memcpy(record.value.mutable_data_ptr(), take(8 * count), 8 * count);
        }
        records_[name] = std::move(record);
    }

    const Record &find(const std::string &name) const {
        const auto found = records_.find(name);
        if (found == records_.end()) throw std::runtime_error(path_ + ": no record " + name);
        return found->second;
    }

    std::string path_, data_;
    size_t at_ = 0;
    std::map<std::string, Record> records_;
};

/* ---- comparison ----------------------------------------------------------------------------- */

/* Largest difference of an element, relative to the root mean square of what is expected. */
inline double difference(const at::Tensor &actual, const at::Tensor &expected) {
    if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
    const double rms = expected.pow(2).mean().sqrt().item<double>();
    const double largest = (actual.detach().to(at::kDouble) - expected).abs().max().item<double>();
    return rms > 0 ? largest / rms : largest;
}

constexpr int64_t samples = 8;

/* Sum, L2 norm and some elements: [2 + samples], float64. */
inline at::Tensor digest(const std::string &name, const at::Tensor &tensor) {
    const at::Tensor flat = tensor.detach().to(at::kDouble).flatten();
    const at::Tensor where = classes("sample/" + name, samples, flat.numel());
    return at::cat({flat.sum().reshape(1), flat.norm().reshape(1), flat.index_select(0, where)});
}

/*
 * How far a tensor is from the one that the digest is of, relative to what that one is like: the
 * norm's difference to the norm, the sum's to the sum of `count` numbers of the same norm, an
 * element's to itself or the root mean square of all, whichever is larger. Differences from zeros
 * are absolute; so are those from a gradient that is zero but for rounding, such as that of a bias that
 * the next batch norm takes out again: its bits are those of one kind of CPU.
 */
constexpr double rounding =
    1e-12; /* norms are at most this, where the least of any other is 7e-4 */

struct Difference {
    double sum, norm, element;
};

inline Difference digest_difference(const std::string &name, const at::Tensor &actual,
                                    const at::Tensor &expected) {
    const at::Tensor off = (digest(name, actual) - expected).abs();
    const double root = std::sqrt(static_cast<double>(actual.numel()));
    const double length = expected[1].item<double>(), norm = length > rounding ? length : root;
    const at::Tensor elements = expected.slice(0, 2).abs().clamp_min(norm / root);
    return {off[0].item<double>() / (norm * root), off[1].item<double>() / norm,
            (off.slice(0, 2) / elements).max().item<double>()};
}

} // namespace golden

#endif
