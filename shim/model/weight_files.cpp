/* weight_files.cpp - the index of several files (its "weight_map"), and the files. */
#include "weight_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

#include "guard.hpp"

#include "json.h"
#include "safetensors.h"

namespace memtrain::shim {

WeightFile::WeightFile(const std::string &path) : path_(path) {
    check(mt_safetensors_open(path.c_str(), &file_));
}

mt_safetensors_tensor WeightFile::entry(size_t index) const {
    mt_safetensors_tensor entry;
    check(mt_safetensors_get(file_, index, &entry));
    return entry;
}

uint64_t WeightFile::offset(size_t index, int *out_descriptor) const {
    uint64_t offset = 0;
    check(mt__st_place(file_, index, out_descriptor, &offset));
    return offset;
}

void WeightFile::read(size_t index, uint64_t offset, void *data, size_t bytes) const {
    check(mt_safetensors_read(file_, index, offset, data, bytes));
}

namespace {

constexpr size_t most_index_bytes = size_t{100} << 20; /* as of a header */

/* {tensor: file}. */
using Names = std::map<std::string, std::string>;

class Index {
public:
    Index(const char *function, const char *path) : function_(function), path_(path) {
        std::ifstream file(path, std::ios::binary);
        if (!file)
            fail(MT_EINVAL, "%s: cannot open the index '%.200s': %s", function, path,
                 std::strerror(errno));
        try {
            text_.assign(std::istreambuf_iterator<char>(file), {});
        } catch (const std::ios_base::failure &) { /* such as of a folder */
            file.setstate(std::ios::badbit);
        }
        if (file.bad()) fail(MT_EIO, "%s: cannot read the index '%.200s'", function, path);
        if (text_.size() > most_index_bytes) refuse("it is larger than 100 MiB");
        if (text_.find('\0') != std::string::npos) refuse("a byte of 0");
        json_ = {text_.data(), text_.size(), 0, nullptr};
        need(mt__json_expect(&json_, '{', "'{' is expected"));
        take_members([this](const std::string &key) {
            if (key == "weight_map")
                take_names();
            else
                skip_value(0);
        });
        need(mt__json_end(&json_));
        if (names_.empty()) refuse("it has no \"weight_map\" with names in it");
    }

    const Names &names() const { return names_; }

private:
    [[noreturn]] void refuse(const char *reason) const {
        fail(MT_EINVAL, "%s: '%.200s' is no index of safetensors files: %s", function_, path_,
             reason);
    }
    void need(int went_well) const {
        if (!went_well) refuse(json_.problem ? json_.problem : "it ends before its end");
    }
    std::string take_string() {
        char *text = nullptr;
        need(mt__json_string(&json_, &text));
        return text;
    }
    /* Behind the opening brace. */
    template <class Take> void take_members(Take &&take) {
        if (mt__json_take(&json_, '}')) return;
        do {
            std::string key = take_string();
            need(mt__json_expect(&json_, ':', "':' is expected"));
            take(key);
        } while (mt__json_take(&json_, ','));
        need(mt__json_expect(&json_, '}', "',' or '}' is expected"));
    }
    void take_names() {
        need(mt__json_expect(&json_, '{', "'{' is expected"));
        take_members([this](const std::string &name) {
            std::string file = take_string();
            if (file.empty() || file.find('/') != std::string::npos)
                refuse("the name of a file is empty, or has a '/' in it");
            if (!names_.emplace(name, file).second) refuse("a tensor has two files");
        });
    }
    /* Metadata may be anything. */
    void skip_value(int depth) {
        if (depth > 100) refuse("values are nested too deeply");
        if (mt__json_take(&json_, '{'))
            return take_members([&](const std::string &) { skip_value(depth + 1); });
        if (mt__json_take(&json_, '[')) {
            if (mt__json_take(&json_, ']')) return;
            do skip_value(depth + 1);
            while (mt__json_take(&json_, ','));
            return need(mt__json_expect(&json_, ']', "',' or ']' is expected"));
        }
        if (json_.at < json_.length && json_.text[json_.at] == '"') return (void)take_string();
        size_t length = std::strspn(json_.text + json_.at, "+-.0123456789Eaeflnrstu");
        if (!length) refuse("a value is expected");
        json_.at += length;
    }

    const char *function_, *path_;
    std::string text_;
    mt__json json_ = {nullptr, 0, 0, nullptr};
    Names names_;
};

std::string folder_of(const std::string &path) {
    size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

void append(std::vector<WeightEntry> &list, const std::shared_ptr<const WeightFile> &file) {
    for (size_t i = 0; i < file->count(); i++) list.push_back({file->entry(i).name, file, i});
}

/* What the index says of a tensor holds, it says so of all tensors of its files, and no tensor is in two of them. */
void check_names(const char *function, const char *path, const Names &names,
                 const std::vector<WeightEntry> &list) {
    std::map<std::string, std::string> found;
    const std::string folder = folder_of(path);
    for (const WeightEntry &entry : list)
        if (!found.emplace(entry.name, entry.file->path()).second)
            fail(MT_EINVAL, "%s: '%.100s' is in '%.120s' and in '%.120s'; accepted: one of them",
                 function, entry.name.c_str(), found[entry.name].c_str(),
                 entry.file->path().c_str());
    for (const auto &[name, file] : names) {
        auto where = found.find(name);
        if (where == found.end() || where->second != folder + file)
            fail(MT_EINVAL,
                 "%s: '%.150s' says that '%.100s' is in '%.100s', which does not have it", function,
                 path, name.c_str(), file.c_str());
    }
    for (const WeightEntry &entry : list)
        if (!names.count(entry.name))
            fail(MT_EINVAL,
                 "%s: '%.150s' leaves out '%.100s' of '%.120s'; accepted: an index of all tensors "
                 "of its files",
                 function, path, entry.name.c_str(), entry.file->path().c_str());
}

} // namespace

std::vector<WeightEntry> weight_entries(const char *function, const char *path) {
    std::vector<WeightEntry> list;
    if (!ends_with(path, ".json")) {
        append(list, std::make_shared<WeightFile>(path));
        return list;
    }
    const Index index(function, path);
    std::map<std::string, bool> seen;
    for (const auto &[name, file] : index.names())
        if (!seen[file]) {
            seen[file] = true;
            append(list, std::make_shared<WeightFile>(folder_of(path) + file));
        }
    check_names(function, path, index.names(), list);
    return list;
}

} // namespace memtrain::shim
