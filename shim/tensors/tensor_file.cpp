/* tensor_file.cpp - dtypes by both names, writing and reading of tensors. */
#include "tensor_file.hpp"

#include <algorithm>

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include "guard.hpp"

namespace memtrain::shim {
namespace {

constexpr size_t named_most = 3; /* names of a kind in an error line */

const struct {
    mt_st_dtype theirs;
    c10::ScalarType ours;
} dtypes[] = {
    {MT_ST_BOOL, c10::kBool},
    {MT_ST_U8, c10::kByte},
    {MT_ST_I8, c10::kChar},
    {MT_ST_F8_E5M2, c10::ScalarType::Float8_e5m2},
    {MT_ST_F8_E4M3, c10::ScalarType::Float8_e4m3fn},
    {MT_ST_I16, c10::kShort},
    {MT_ST_U16, c10::ScalarType::UInt16},
    {MT_ST_F16, c10::kHalf},
    {MT_ST_BF16, c10::kBFloat16},
    {MT_ST_I32, c10::kInt},
    {MT_ST_U32, c10::ScalarType::UInt32},
    {MT_ST_F32, c10::kFloat},
    {MT_ST_C64, c10::ScalarType::ComplexFloat},
    {MT_ST_F64, c10::kDouble},
    {MT_ST_I64, c10::kLong},
    {MT_ST_U64, c10::ScalarType::UInt64},
};

mt_st_dtype theirs_of(c10::ScalarType type) {
    for (const auto &row : dtypes)
        if (row.ours == type) return row.theirs;
    return MT_ST_NONE;
}

} // namespace

bool has_file_type(const at::Tensor &tensor) {
    return theirs_of(tensor.scalar_type()) != MT_ST_NONE;
}

c10::ScalarType ours_of(mt_st_dtype type) {
    for (const auto &row : dtypes)
        if (row.theirs == type) return row.ours;
    return c10::ScalarType::Undefined;
}

namespace {

std::string describe(mt_st_dtype dtype, at::IntArrayRef sizes) {
    std::string text = std::string(mt_st_dtype_name(dtype)) + " [";
    for (size_t i = 0; i < sizes.size(); i++) text += (i ? "," : "") + std::to_string(sizes[i]);
    return text + "]";
}

at::IntArrayRef sizes_of(const mt_safetensors_tensor &entry) {
    return {entry.shape, entry.dims};
}

mt_safetensors_tensor entry_of(const Named &named) {
    const at::Tensor &tensor = named.tensor;
    mt_st_dtype dtype =
        tensor.layout() == c10::kStrided ? theirs_of(tensor.scalar_type()) : MT_ST_NONE;
    if (dtype == MT_ST_NONE)
        fail(MT_ENOTSUP, "'%.150s' cannot be saved: files have no %s tensors of dtype %s",
             named.name.c_str(), tensor.layout() == c10::kStrided ? "dense" : "sparse",
             c10::toString(tensor.scalar_type()));
    return {named.name.c_str(),    dtype,           static_cast<size_t>(tensor.dim()),
            tensor.sizes().data(), tensor.nbytes(), nullptr};
}

/* Of a tensor as large as like, what without_repeats() leaves of like. */
at::Tensor firsts_of(const at::Tensor &tensor, const at::Tensor &like) {
    at::Tensor part = tensor;
    for (int64_t i = 0; i < like.dim(); i++)
        if (like.stride(i) == 0 && like.size(i) > 1) part = part.narrow(i, 0, 1);
    return part;
}

/* What fetch needs. */
struct Source {
    const std::vector<Named> &list;
    Staging staging;
};

mt_status fetch(void *user, size_t index, uint64_t offset, const void **out_data,
                size_t *out_bytes) {
    auto &source = *static_cast<Source *>(user);
    return guard([&] {
        c10::NoGradGuard no_grad;
        Staging::Bytes piece =
            source.staging.get(source.list[index].tensor, static_cast<size_t>(offset));
        *out_data = piece.data;
        *out_bytes = piece.count;
    });
}

} // namespace

std::string description_of(const at::Tensor &tensor) {
    return describe(theirs_of(tensor.scalar_type()), tensor.sizes());
}

void save_tensors(const char *path, const std::vector<Named> &list, const Texts &metadata,
                  bool keep) {
    std::vector<mt_safetensors_tensor> entries;
    std::vector<mt_safetensors_text> texts;
    for (const Named &named : list) entries.push_back(entry_of(named));
    for (const auto &text : metadata) texts.push_back({text.first.c_str(), text.second.c_str()});
    Source source{list, {}};
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    options.metadata = texts.data();
    options.metadata_count = texts.size();
    options.fetch = fetch;
    options.user = &source;
    options.keep = keep;
    check(mt_safetensors_save(path, entries.data(), entries.size(), &options));
}

TensorFile::TensorFile(const char *path) {
    check(mt_safetensors_open(path, &own_));
    file_ = own_;
    try {
        take_entries();
    } catch (...) {
        mt_safetensors_free(own_);
        throw;
    }
}

TensorFile::TensorFile(const mt_safetensors *open) : file_(open) {
    take_entries();
}

TensorFile::~TensorFile() {
    mt_safetensors_free(own_);
}

void TensorFile::take_entries() {
    entries_.resize(mt_safetensors_count(file_));
    for (size_t i = 0; i < entries_.size(); i++) check(mt_safetensors_get(file_, i, &entries_[i]));
}

const char *TensorFile::metadata(const char *key) const {
    return mt_safetensors_metadata(file_, key);
}

std::string TensorFile::description(size_t index) const {
    return describe(entries_[index].dtype, sizes_of(entries_[index]));
}

bool TensorFile::fits(size_t index, const at::Tensor &tensor) const {
    const mt_safetensors_tensor &entry = entries_[index];
    return tensor.layout() == c10::kStrided && entry.dtype == theirs_of(tensor.scalar_type()) &&
           sizes_of(entry) == tensor.sizes();
}

bool TensorFile::widens(size_t index, const at::Tensor &tensor) const {
    const mt_safetensors_tensor &entry = entries_[index];
    c10::ScalarType there = ours_of(entry.dtype), here = tensor.scalar_type();
    bool is_half = there == c10::kHalf || there == c10::kBFloat16;
    return tensor.layout() == c10::kStrided && sizes_of(entry) == tensor.sizes() &&
           ((is_half && here == c10::kFloat) ||
            ((is_half || there == c10::kFloat) && here == c10::kDouble));
}

void TensorFile::check_shared(const char *function, const char *path, const Match &match) const {
    c10::NoGradGuard no_grad;
    Staging staging;
    const at::Tensor &model = match.tensor;
    if (!model.numel() || !may_overlap(model)) return;
    at::Tensor here = host_tensor(model.scalar_type(), model.sizes(), model.strides());
    at::Tensor there = host_tensor(model.scalar_type(), model.sizes());
    read_bytes(match.index, there, staging);
    without_repeats(here).copy_(firsts_of(there, model));
    if (!here.equal(there))
        fail(MT_EINVAL,
             "%s: '%.120s' has different numbers for elements of '%.100s' that share memory in the "
             "model; accepted: equal ones, or a tensor made dense (contiguous)",
             function, path, entries_[match.index].name);
}

void TensorFile::read(size_t index, const at::Tensor &tensor, Staging &staging) const {
    c10::NoGradGuard no_grad;
    if (without_repeats(tensor).is_same(tensor)) return read_bytes(index, tensor, staging);
    at::Tensor there = host_tensor(tensor.scalar_type(), tensor.sizes());
    read_bytes(index, there, staging);
    without_repeats(tensor).copy_(firsts_of(there, tensor));
}

/* A piece of the file becomes one of the tensor, in memory outside of the budget. */
void TensorFile::read_bytes(size_t index, const at::Tensor &tensor, Staging &staging) const {
    c10::ScalarType theirs = ours_of(entries_[index].dtype), ours = tensor.scalar_type();
    size_t ratio = c10::elementSize(ours) / c10::elementSize(theirs);
    at::Tensor narrow;
    staging.put(tensor, [&](size_t offset, void *data, size_t count) {
        auto elements = static_cast<int64_t>(count / c10::elementSize(ours));
        if (theirs == ours) return check(mt_safetensors_read(file_, index, offset, data, count));
        if (!narrow.defined() || narrow.numel() < elements)
            narrow = host_tensor(theirs, {elements});
        check(mt_safetensors_read(file_, index, offset / ratio, narrow.mutable_data_ptr(),
                                  count / ratio));
        at::from_blob(data, {elements}, at::dtype(ours)).copy_(narrow.narrow(0, 0, elements));
    });
}

void TensorFile::read_through(StateHash *hash, Staging &staging) const {
    for (size_t i = 0; i < entries_.size(); i++) {
        const mt_safetensors_tensor &entry = entries_[i];
        if (hash) hash->head(entry.name, ours_of(entry.dtype), sizes_of(entry));
        for (uint64_t offset = 0; offset < entry.bytes;) {
            uint64_t left = entry.bytes - offset;
            size_t count = static_cast<size_t>(std::min<uint64_t>(left, Staging::piece_bytes));
            check(mt_safetensors_read(file_, i, offset, staging.buffer(), count));
            if (hash) hash->bytes(staging.buffer(), count);
            offset += count;
        }
    }
}

/* ---- differences ---- */

void Differences::List::add(const std::string &name) {
    if (count++ < named_most) names += (names.empty() ? "" : ", ") + name;
}

std::string Differences::List::text(const char *what) const {
    if (!count) return "";
    std::string more =
        count > named_most ? " and " + std::to_string(count - named_most) + " more" : "";
    return std::string("; ") + what + " " + names + more;
}

void Differences::add_different(const std::string &name, const std::string &there,
                                const std::string &here) {
    different_.add(name.substr(0, 80) + " (" + there + " there, " + here + " here)");
}

void Differences::check(const char *function, const char *path) const {
    std::string text = missing_.text("missing there:") + unexpected_.text("not in the model:") +
                       different_.text("different:");
    if (text.empty()) return;
    fail(MT_EINVAL, "%s: '%.120s' does not fit the model%s", function, path, text.c_str());
}

} // namespace memtrain::shim
