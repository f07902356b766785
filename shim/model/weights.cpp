/*
 * weights.cpp - parameters and buffers alone in a file, under the names that they have in Python too.
 */
#include "model.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "arguments.hpp"
#include "guard.hpp"
#include "tensor_file.hpp"
#include "weight_files.hpp"

namespace memtrain::shim {
namespace {

constexpr char name_of[] = "mt_model_load_weights";

bool begins_with(const std::string &text, const char *start) {
    return text.compare(0, std::strlen(start), start) == 0;
}

using Files = std::vector<std::unique_ptr<TensorFile>>;

/* One file, or those that an index names. */
Files files_of(const char *path) {
    Files files;
    std::set<std::string> paths;
    for (const WeightEntry &entry : weight_entries(name_of, path))
        if (paths.insert(entry.file->path()).second)
            files.push_back(std::make_unique<TensorFile>(entry.file->path().c_str()));
    return files;
}

/* What files have, by the names that are the model's. */
struct Entry {
    std::string name;
    const TensorFile *file;
    size_t index;
};

std::vector<Entry> entries_of(const Files &files, const mt_weights_options &options,
                              Differences &differences) {
    std::vector<Entry> list;
    const char *prefix = options.prefix ? options.prefix : "";
    for (const auto &file : files)
        for (size_t i = 0; i < file->count(); i++) {
            std::string name = file->entry(i).name;
            if (begins_with(name, prefix))
                list.push_back({name.substr(std::strlen(prefix)), file.get(), i});
            else if (options.strict)
                differences.add_unexpected(name);
        }
    return list;
}

const Entry *find(const std::vector<Entry> &list, const std::string &name) {
    for (const Entry &entry : list)
        if (entry.name == name) return &entry;
    return nullptr;
}

/* Of a tensor of the model: under its name, or under another one that the caller knows. */
const Entry *find_named(const std::vector<Entry> &list, const std::string &name,
                        const mt_weights_options &options) {
    char other[512] = "";
    const Entry *entry = find(list, name);
    if (entry || !options.other_name) return entry;
    options.other_name(options.user, name.c_str(), other, sizeof other);
    return *other ? find(list, other) : nullptr;
}

/* A tensor of the model, and where its bytes are. */
struct Found {
    Match match;
    const TensorFile *file;
};

/* Tied weights are one tensor under several names: the first that the file has counts. */
bool is_there(const std::vector<Found> &matches, const at::Tensor &tensor) {
    for (const Found &found : matches)
        if (found.match.tensor.is_same(tensor)) return true;
    return false;
}

/*
 * What a file that need not have all has of each part of the model, which is the first word of its tensors' names. A part of
 * which some are missing is likely another network's.
 */
class Parts {
public:
    void add(const std::string &name, bool is_found) {
        Part &part = parts_[name.substr(0, name.find('.'))];
        part.count++;
        if (is_found)
            part.found++;
        else if (part.first.empty())
            part.first = name;
    }

    void tell(const char *path) const {
        std::string absent;
        for (const auto &[name, part] : parts_) {
            if (!part.found) absent += (absent.empty() ? "" : ", ") + name.substr(0, 40);
            if (part.found && part.found < part.count)
                mt_log(MT_LOG_WARNING,
                       "%s: '%.200s' has %zu of %zu tensors of '%.40s', the first that it lacks is "
                       "'%.120s': what it lacks stays as it was",
                       name_of, path, part.found, part.count, name.c_str(), part.first.c_str());
        }
        if (!absent.empty())
            mt_log(MT_LOG_INFO, "%s: '%.200s' has nothing of %.200s, which stays as it was",
                   name_of, path, absent.c_str());
    }

private:
    struct Part {
        size_t count = 0, found = 0;
        std::string first; /* that is missing */
    };
    std::map<std::string, Part> parts_;
};

std::vector<Found> match(const std::vector<Named> &model, const Files &files, const char *path,
                         const mt_weights_options &options) {
    Differences differences;
    std::vector<Entry> entries = entries_of(files, options, differences);
    std::vector<Found> matches;
    auto is_skipped = [&](const std::string &name) {
        return options.skip && begins_with(name, options.skip);
    };
    std::set<const Entry *> used;
    for (const Named &named : model) {
        if (is_skipped(named.name)) continue;
        const Entry *entry = find_named(entries, named.name, options);
        if (entry) used.insert(entry);
        if (entry && mapped_view(named.tensor))
            fail(MT_ESTATE,
                 "%s: '%.120s' has '%.100s', which is mapped (mt_model_map_weights) and cannot be "
                 "written to; accepted: options->skip, or a model that is made anew",
                 name_of, path, named.name.c_str());
        if (entry && !entry->file->fits(entry->index, named.tensor) &&
            !entry->file->widens(entry->index, named.tensor))
            differences.add_different(named.name, entry->file->description(entry->index),
                                      description_of(named.tensor));
        else if (entry && !is_there(matches, named.tensor))
            matches.push_back({{named.tensor, entry->index}, entry->file});
    }
    Parts parts;
    for (const Named &named : model) {
        if (is_skipped(named.name) || may_be_missing(named.name) || mapped_view(named.tensor))
            continue;
        bool is_found = find_named(entries, named.name, options) || is_there(matches, named.tensor);
        parts.add(named.name, is_found);
        if (options.strict && !is_found) differences.add_missing(named.name);
    }
    for (const Entry &entry : entries)
        if (options.strict && !used.count(&entry) && !is_skipped(entry.name))
            differences.add_unexpected(entry.name);
    differences.check(name_of, path);
    if (matches.empty())
        fail(MT_EINVAL, "%s: '%.200s' has no tensor under a name of the model's", name_of, path);
    parts.tell(path);
    return matches;
}

void load_weights(const mt_model &model, const char *path, const mt_weights_options &options) {
    Staging staging;
    const Files files = files_of(path);
    std::vector<Found> matches = match(weights_of(model), files, path, options);
    for (const auto &file : files) file->read_through(nullptr, staging);
    for (const Found &found : matches) found.file->check_shared(name_of, path, found.match);
    for (const Found &found : matches)
        found.file->read(found.match.index, found.match.tensor, staging);
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_model_save_weights(mt_model *model, const char *path) {
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, "mt_model_save_weights", "model"));
    MT_RETURN_IF_FAILED(check_not_null(path, "mt_model_save_weights", "path"));
    return guard([&] { save_tensors(path, weights_of(*model), {{"format", "pt"}}, false); });
}

extern "C" mt_status mt_model_load_weights(mt_model *model, const char *path,
                                           const mt_weights_options *options) {
    mt_weights_options own = MT_WEIGHTS_OPTIONS_INIT;
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, name_of, "model"));
    MT_RETURN_IF_FAILED(check_not_null(path, name_of, "path"));
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, name_of, "options"));
        copy_in(own, options);
    }
    return guard([&] { load_weights(*model, path, own); });
}
