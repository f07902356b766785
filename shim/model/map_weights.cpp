/*
 * map_weights.cpp - which of a model's tensors are in the files, which of these become views, and which are read.
 * Everything that can fail comes before anything changes.
 */
#include "model.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "arguments.hpp"
#include "bytes.hpp"
#include "guard.hpp"
#include "mapping.hpp"
#include "tensor_file.hpp"
#include "weight_files.hpp"

namespace memtrain::shim {
namespace {

constexpr char name_of[] = "mt_model_map_weights";
constexpr size_t piece_bytes = size_t{4} << 20; /* of a tensor that is read */

/* What is to become of a tensor of the model's. */
struct Change {
    Named named;
    const WeightEntry *entry;
    c10::ScalarType dtype; /* in the file */
    bool maps;
    at::Tensor content; /* that it gets */
};

/* Undefined: none of those that are taken. */
c10::ScalarType float_of(mt_st_dtype dtype) {
    switch (dtype) {
    case MT_ST_F32:
        return c10::kFloat;
    case MT_ST_F16:
        return c10::kHalf;
    case MT_ST_BF16:
        return c10::kBFloat16;
    default:
        return c10::ScalarType::Undefined;
    }
}

/* A name without its prefix; NULL: it has another beginning. */
const char *behind(const std::string &name, const char *prefix) {
    size_t length = prefix ? std::strlen(prefix) : 0;
    return name.compare(0, length, prefix ? prefix : "") == 0 ? name.c_str() + length : nullptr;
}

class Request {
public:
    Request(mt_model &model, const char *path, const mt_map_options &options)
        : model_(model), path_(path), options_(options), entries_(weight_entries(name_of, path)) {}

    void carry_out() {
        c10::NoGradGuard no_grad;
        match();
        refuse_trained();
        tell_unaligned();
        std::shared_ptr<Mapping> mapping = model_.mapping;
        if (!mapping) mapping = std::make_shared<Mapping>();
        for (Change &change : changes_)
            change.content = change.maps ? map(change, mapping) : read(change);
        if (mapped_) room_ = look_for_room();
        model_.mapping = mapping; /* nothing fails from here on */
        add_figures(*mapping);
        for (Change &change : changes_) change.named.tensor.set_data(change.content);
    }

private:
    bool is_skipped(const char *name) const {
        return options_.skip && std::strncmp(name, options_.skip, std::strlen(options_.skip)) == 0;
    }

    void match() {
        Differences differences;
        std::map<std::string, const WeightEntry *> there;
        for (const WeightEntry &entry : entries_) {
            const char *name = behind(entry.name, options_.prefix);
            if (name && !is_skipped(name)) there[name] = &entry;
            if (!name && options_.strict) differences.add_unexpected(entry.name);
        }
        std::vector<Named> wanted = weights_of(model_);
        std::map<std::string, bool> is_used;
        for (const Named &named : wanted) {
            const char *name = behind(named.name, options_.model_prefix);
            auto found = name && !is_skipped(name) ? there.find(name) : there.end();
            if (found == there.end()) continue;
            is_used[found->first] = true;
            if (!is_matched(named.tensor)) add(named, *found->second, differences);
        }
        if (options_.strict) {
            for (const Named &named : wanted) {
                const char *name = behind(named.name, options_.model_prefix);
                if (name && !is_skipped(name) && !may_be_missing(name) && !is_used.count(name) &&
                    !is_matched(named.tensor))
                    differences.add_missing(named.name);
            }
            for (const auto &[name, entry] : there)
                if (!is_used.count(name) && !may_be_left_over(name))
                    differences.add_unexpected(entry->name);
        }
        differences.check(name_of, path_);
        if (changes_.empty())
            fail(MT_EINVAL, "%s: '%.200s' has no tensor under a name of the model's", name_of,
                 path_);
    }

    /* Tied weights are one tensor under several names. */
    bool is_matched(const at::Tensor &tensor) const {
        return std::any_of(changes_.begin(), changes_.end(), [&](const Change &change) {
            return change.named.tensor.is_same(tensor);
        });
    }

    void add(const Named &named, const WeightEntry &entry, Differences &differences) {
        mt_safetensors_tensor there = entry.file->entry(entry.index);
        c10::ScalarType dtype = float_of(there.dtype);
        const at::Tensor &here = named.tensor;
        at::IntArrayRef sizes(there.shape, there.dims);
        bool fits = here.layout() == c10::kStrided && sizes == here.sizes();
        bool is_float = here.is_floating_point() && dtype != c10::ScalarType::Undefined;
        /* A counter of batches, or a mask, is no weight: read as it is. */
        bool is_same = !here.is_floating_point() && ours_of(there.dtype) == here.scalar_type();
        if (is_same) dtype = here.scalar_type();
        if (!fits || (!is_float && !is_same))
            return differences.add_different(named.name, describe(there), description_of(here));
        changes_.push_back({named, &entry, dtype, false, {}});
        changes_.back().maps = can_map(changes_.back());
    }

    static std::string describe(const mt_safetensors_tensor &there) {
        std::string text = std::string(mt_st_dtype_name(there.dtype)) + " [";
        for (size_t i = 0; i < there.dims; i++)
            text += (i ? "," : "") + std::to_string(there.shape[i]);
        return text + "]";
    }

    bool is_parameter(const at::Tensor &tensor) {
        if (parameters_.empty()) parameters_ = parameters_of(model_);
        return std::any_of(parameters_.begin(), parameters_.end(), [&](const Named &parameter) {
            return parameter.tensor.is_same(tensor);
        });
    }

    bool can_map(const Change &change) {
        if (options_.load || change.named.tensor.requires_grad() || !change.named.tensor.numel() ||
            !is_parameter(change.named.tensor))
            return false;
        int descriptor = -1;
        uint64_t offset = change.entry->file->offset(change.entry->index, &descriptor);
        if (offset % c10::elementSize(change.dtype) == 0) return true;
        if (!unaligned_++) first_unaligned_ = change.entry;
        return false;
    }

    void tell_unaligned() const {
        if (!unaligned_) return;
        mt_log(MT_LOG_WARNING,
               "%s: tensors that are not aligned in their file are loaded: %zu, the first is "
               "'%.100s' in '%.150s'; accepted: a file whose header is padded, as "
               "mt_safetensors_save writes it",
               name_of, unaligned_, first_unaligned_->name.c_str(),
               first_unaligned_->file->path().c_str());
    }

    void refuse_trained() const {
        std::string names;
        size_t count = 0;
        for (const Change &change : changes_)
            if (change.named.tensor.requires_grad() && ++count <= 3)
                names += (names.empty() ? "" : ", ") + change.named.name.substr(0, 80);
        if (!count || options_.load || options_.trained == MT_MAP_TRAINED_LOAD) return;
        if (count > 3) names += " and " + std::to_string(count - 3) + " more";
        fail(MT_EINVAL,
             "%s: these parameters train and are in '%.120s': %s; accepted: frozen ones "
             "(requires_grad is false), options->skip, or options->trained = MT_MAP_TRAINED_LOAD",
             name_of, path_, names.c_str());
    }

    at::Tensor map(const Change &change, const std::shared_ptr<Mapping> &mapping) {
        const WeightFile &file = *change.entry->file;
        int descriptor = -1;
        uint64_t offset = file.offset(change.entry->index, &descriptor);
        std::shared_ptr<MappedFile> &mapped = files_[&file].file;
        if (!mapped)
            mapped = std::make_shared<MappedFile>(name_of, file.path().c_str(), descriptor);
        uint64_t bytes = file.entry(change.entry->index).bytes;
        files_[&file].bytes += bytes;
        all_bytes_ += bytes;
        mapped_++;
        auto view = std::make_unique<MappedView>(
            MappedView{mapping, mapped, offset, bytes, change.named.tensor.scalar_type()});
        return tensor_of(std::move(view), change.dtype, change.named.tensor.sizes());
    }

    /* In the model's type and in memory of the device's, a few MiB at a time. */
    at::Tensor read(const Change &change) {
        const at::Tensor &old = change.named.tensor;
        at::Tensor made = at::empty(old.sizes(), old.options().requires_grad(false));
        at::Tensor flat = made.view({-1});
        auto piece_elements = static_cast<int64_t>(piece_bytes / c10::elementSize(change.dtype));
        at::Tensor piece = host_tensor(change.dtype, {std::min(piece_elements, flat.numel())});
        for (int64_t at = 0; at < flat.numel(); at += piece.numel()) {
            at::Tensor part = piece.narrow(0, 0, std::min(piece.numel(), flat.numel() - at));
            change.entry->file->read(change.entry->index,
                                     static_cast<uint64_t>(at) * part.element_size(),
                                     part.mutable_data_ptr(), part.nbytes());
            flat.narrow(0, at, part.numel()).copy_(part);
        }
        loaded_bytes_ += made.nbytes();
        return made;
    }

    /* Whether files this large would push out of the page cache what is needed sooner. */
    bool look_for_room() const {
        if (options_.drop != MT_MAP_DROP_AUTO) return options_.drop == MT_MAP_DROP_NEVER;
        mt_host_memory host = MT_HOST_MEMORY_INIT;
        if (mt_host_memory_read(nullptr, &host) != MT_OK) return true;
        return all_bytes_ <= std::min(host.available_bytes, host.cgroup_room_bytes) / 2;
    }

    void add_figures(Mapping &mapping) {
        for (auto &[file, mapped] : files_)
            mapping.add_file(std::move(mapped.file), mapped.bytes, !room_);
        mapping.add_tensors(mapped_, loaded_bytes_);
    }

    struct Mapped {
        std::shared_ptr<MappedFile> file;
        uint64_t bytes = 0;
    };

    mt_model &model_;
    const char *path_;
    const mt_map_options &options_;
    std::vector<WeightEntry> entries_;
    std::vector<Named> parameters_;
    std::vector<Change> changes_;
    std::map<const WeightFile *, Mapped> files_;
    size_t mapped_ = 0, unaligned_ = 0;
    const WeightEntry *first_unaligned_ = nullptr;
    uint64_t all_bytes_ = 0, loaded_bytes_ = 0;
    bool room_ = true;
};

void check_options(const mt_map_options &o) {
    if (o.strict != 0 && o.strict != 1)
        fail(MT_EINVAL, "%s: options->strict is %d; accepted: 0 and 1", name_of, o.strict);
    if (o.load != 0 && o.load != 1)
        fail(MT_EINVAL, "%s: options->load is %d; accepted: 0 and 1", name_of, o.load);
    if (o.trained != MT_MAP_TRAINED_REFUSE && o.trained != MT_MAP_TRAINED_LOAD)
        fail(MT_EINVAL,
             "%s: options->trained is %d; accepted: MT_MAP_TRAINED_REFUSE (0), "
             "MT_MAP_TRAINED_LOAD (1)",
             name_of, o.trained);
    if (o.drop < MT_MAP_DROP_AUTO || o.drop > MT_MAP_DROP_NEVER)
        fail(MT_EINVAL,
             "%s: options->drop is %d; accepted: MT_MAP_DROP_AUTO (0), MT_MAP_DROP_ALWAYS (1), "
             "MT_MAP_DROP_NEVER (2)",
             name_of, o.drop);
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_model_map_weights(mt_model *model, const char *path,
                                          const mt_map_options *options) {
    mt_map_options own = MT_MAP_OPTIONS_INIT;
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, name_of, "model"));
    MT_RETURN_IF_FAILED(check_not_null(path, name_of, "path"));
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, name_of, "options"));
        copy_in(own, options);
    }
    if (model->in_use)
        return mt_set_error(
            MT_ESTATE, "%s: an mt_torch uses the model; accepted: before mt_torch_new", name_of);
    return guard([&] {
        check_options(own);
        Request(*model, path, own).carry_out();
    });
}

extern "C" mt_status mt_model_map_stats(const mt_model *model, mt_map_stats *out) {
    mt_map_stats own = MT_MAP_STATS_INIT;
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, "mt_model_map_stats", "model"));
    MT_RETURN_IF_FAILED(check_sized(out, "mt_model_map_stats", "out"));
    if (model->mapping) own = model->mapping->stats();
    hand_over(own, out);
    return MT_OK;
}

extern "C" mt_status mt_model_check_mapped(const mt_model *model) {
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, "mt_model_check_mapped", "model"));
    return guard([&] {
        if (model->mapping) model->mapping->check();
    });
}
