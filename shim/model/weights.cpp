/*
 * weights.cpp - parameters and buffers alone in a file, under the names that they have in Python too.
 */
#include "model.hpp"

#include <algorithm>
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

/* A file that stays open for its tensors. */
struct File {
    std::shared_ptr<const WeightFile> open;
    std::unique_ptr<const TensorFile> tensors;
};
using Files = std::vector<File>;

/* "a,b" -> "a", "b". */
std::vector<std::string> split(const std::string &text) {
    std::vector<std::string> parts;
    for (size_t at = 0, comma; at <= text.size(); at = comma + 1) {
        comma = std::min(text.find(',', at), text.size());
        parts.push_back(text.substr(at, comma - at));
    }
    return parts;
}

/* Of names, as a caller gives them: "stem.,stages."; "": of all. NULL: of none. */
class Beginnings {
public:
    explicit Beginnings(const char *text) {
        if (text) list_ = split(text);
    }
    bool has(const std::string &name) const {
        for (const std::string &beginning : list_)
            if (begins_with(name, beginning.c_str())) return true;
        return false;
    }
    std::string text() const {
        std::string all;
        for (const std::string &beginning : list_)
            all += (all.empty() ? "" : " or ") + ("'" + beginning.substr(0, 60) + "'");
        return all;
    }

private:
    std::vector<std::string> list_;
};

/* One file, or those that an index names. */
Files files_of(const char *path) {
    Files files;
    for (const WeightEntry &entry : weight_entries(name_of, path))
        if (files.empty() ||
            files.back().open != entry.file) /* a file's tensors follow one another */
            files.push_back({entry.file, std::make_unique<TensorFile>(entry.file->handle())});
    return files;
}

/* A tensor of a file. */
struct Entry {
    const TensorFile *file;
    size_t index;
};

/* What files have, by the names that are the model's. */
using Entries = std::map<std::string, Entry>;

Entries entries_of(const Files &files, const mt_weights_options &options,
                   Differences &differences) {
    Entries entries;
    const char *prefix = options.prefix ? options.prefix : "";
    for (const auto &file : files)
        for (size_t i = 0; i < file.tensors->count(); i++) {
            std::string name = file.tensors->entry(i).name;
            if (begins_with(name, prefix))
                entries.emplace(name.substr(std::strlen(prefix)), Entry{file.tensors.get(), i});
            else if (options.strict)
                differences.add_unexpected(name);
        }
    return entries;
}

/* Of a tensor of the model: under its name, or under another one that the caller knows. */
const Entry *find_named(const Entries &entries, const std::string &name,
                        const mt_weights_options &options) {
    char other[512] = "";
    auto entry = entries.find(name);
    if (entry != entries.end()) return &entry->second;
    if (options.other_name) options.other_name(options.user, name.c_str(), other, sizeof other);
    if (!*other) return nullptr;
    if (entry = entries.find(other); entry != entries.end()) return &entry->second;
    for (const std::string &one : split(other))
        if (entry = entries.find(one); entry != entries.end()) return &entry->second;
    return nullptr;
}

/* A tensor of the model, and where its bytes are. */
struct Found {
    Match match;
    const TensorFile *file;
};

/* Tied weights are one tensor under several names: the first that the file has counts. */
class Matches {
public:
    bool has(const at::Tensor &tensor) const {
        return tensors_.count(tensor.unsafeGetTensorImpl()) > 0;
    }
    void add(const at::Tensor &tensor, const Entry &entry) {
        if (tensors_.insert(tensor.unsafeGetTensorImpl()).second)
            list.push_back({{tensor, entry.index}, entry.file});
    }
    std::vector<Found> list;

private:
    std::set<const c10::TensorImpl *> tensors_;
};

/* Of what the caller says that the file must have: how many there are, how many are missing, and the first of these. */
class Required {
public:
    explicit Required(const char *beginnings) : beginnings_(beginnings) {}

    void add(const std::string &name, bool is_found) {
        if (!beginnings_.has(name)) return;
        count_++;
        if (!is_found && !missing_++) first_ = name;
    }

    void check(const char *path) const {
        if (!missing_) return;
        std::string which = beginnings_.has("") ? "" : " that begin with " + beginnings_.text();
        fail(MT_EINVAL,
             "%s: '%.200s' lacks %zu of the %zu tensors of the model%.150s, the first is '%.120s'; "
             "accepted: a file that has all of them",
             name_of, path, missing_, count_, which.c_str(), first_.c_str());
    }

private:
    Beginnings beginnings_;
    std::string first_;
    size_t count_ = 0, missing_ = 0;
};

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

/* What may be read into a tensor of the model, and what may not. */
void add_match(const char *path, const Named &named, const Entry &entry, Matches &matches,
               Differences &differences) {
    if (mapped_view(named.tensor))
        fail(MT_ESTATE,
             "%s: '%.120s' has '%.100s', which is mapped (mt_model_map_weights) and cannot be "
             "written to; accepted: options->skip, or a model that is made anew",
             name_of, path, named.name.c_str());
    if (entry.file->fits(entry.index, named.tensor) ||
        entry.file->widens(entry.index, named.tensor))
        matches.add(named.tensor, entry);
    else
        differences.add_different(named.name, entry.file->description(entry.index),
                                  description_of(named.tensor));
}

std::vector<Found> match(const std::vector<Named> &model, const Files &files, const char *path,
                         const mt_weights_options &options) {
    Differences differences;
    const Entries entries = entries_of(files, options, differences);
    Matches matches;
    const Beginnings skipped(options.skip);
    std::set<const Entry *> used;
    std::vector<const Named *> absent;
    Parts parts;
    Required required(options.required);
    auto add_part = [&](const Named &named, bool is_found) {
        if (may_be_missing(named.name) || mapped_view(named.tensor)) return;
        parts.add(named.name, is_found);
        required.add(named.name, is_found);
        if (options.strict && !is_found) differences.add_missing(named.name);
    };
    for (const Named &named : model) {
        if (skipped.has(named.name)) continue;
        const Entry *entry = find_named(entries, named.name, options);
        if (entry) {
            used.insert(entry);
            add_match(path, named, *entry, matches, differences);
            add_part(named, true);
        } else {
            absent.push_back(&named);
        }
    }
    for (const Named *named : absent) add_part(*named, matches.has(named->tensor));
    for (const auto &[name, entry] : entries)
        if (options.strict && !used.count(&entry) && !skipped.has(name) && !may_be_left_over(name))
            differences.add_unexpected(name);
    differences.check(name_of, path);
    if (matches.list.empty())
        fail(MT_EINVAL, "%s: '%.200s' has no tensor under a name of the model's", name_of, path);
    required.check(path);
    parts.tell(path);
    return std::move(matches.list);
}

void load_weights(const mt_model &model, const char *path, const mt_weights_options &options) {
    Staging staging;
    const Files files = files_of(path);
    std::vector<Found> matches = match(weights_of(model), files, path, options);
    for (const File &file : files) file.tensors->read_through(nullptr, staging);
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
