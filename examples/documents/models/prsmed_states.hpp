/*
 * prsmed_states.hpp - what a language model has said of prompts, in a file for the next run.
 *
 * A safetensors file: "prompts" has their tokens, "states" and "exist" the words of each, "mean" and "scale" what these were
 * centred and scaled by. Its metadata says what it is of, which has to be the same, and has a checksum of the numbers.
 */
#ifndef MEMTRAIN_MODELS_PRSMED_STATES_HPP
#define MEMTRAIN_MODELS_PRSMED_STATES_HPP

#include "content.h"
#include "prsmed_words.hpp"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include <memtrain/safetensors.h>
#include <unistd.h>

namespace memtrain_models {

/* The file, and what it is of. */
struct StatesFile {
    std::string path;
    std::array<std::pair<const char *, std::string>, 3> of; /* names and values of its metadata */
    int64_t length, width;                                  /* of a prompt; of a state */
};

struct States {
    std::vector<std::pair<std::string, Words>> prompts; /* by the bytes of their tokens */
    torch::Tensor mean, scale;                          /* [width] */
};

inline std::string hash_text(uint64_t hash) {
    char text[17];
    std::snprintf(text, sizeof text, "%016" PRIx64, hash);
    return text;
}

namespace states {

constexpr size_t parts = 5;
constexpr const char *sum_name = "sum";

struct Part {
    const char *name;
    mt_st_dtype dtype;
    std::vector<int64_t> shape;
};

inline std::array<Part, parts> parts_of(const StatesFile &file, int64_t count) {
    return {{{"prompts", MT_ST_I64, {count, file.length}},
             {"states", MT_ST_F32, {count, most_words, file.width}},
             {"exist", MT_ST_BOOL, {count, most_words}},
             {"mean", MT_ST_F32, {file.width}},
             {"scale", MT_ST_F32, {file.width}}}};
}

/* Where the bytes of each part lie: of a prompt's, a piece for each. */
struct Piece {
    void *data;
    size_t bytes;
};
using Pieces = std::array<std::vector<Piece>, parts>;

inline Piece piece_of(torch::Tensor &tensor) {
    tensor = tensor.contiguous();
    return {tensor.mutable_data_ptr(), tensor.nbytes()};
}

inline Pieces pieces_of(States &s) {
    Pieces pieces;
    for (auto &[tokens, words] : s.prompts) {
        pieces[0].push_back({tokens.data(), tokens.size()});
        pieces[1].push_back(piece_of(words.states));
        pieces[2].push_back(piece_of(words.exist));
    }
    pieces[3].push_back(piece_of(s.mean));
    pieces[4].push_back(piece_of(s.scale));
    return pieces;
}

inline std::string sum_of(const Pieces &pieces) {
    uint64_t hash = EX_HASH_INIT;
    for (const auto &part : pieces)
        for (const Piece &piece : part) hash = ex_hash(hash, piece.data, piece.bytes);
    return hash_text(hash);
}

inline mt_status fetch(void *user, size_t index, uint64_t offset, const void **out_data,
                       size_t *out_bytes) {
    const auto &part = (*static_cast<Pieces *>(user))[index];
    const Piece &piece = part[static_cast<size_t>(offset / part[0].bytes)];
    *out_data = piece.data;
    *out_bytes = piece.bytes;
    return MT_OK;
}

inline mt_status check_metadata(const StatesFile &file, const mt_safetensors *opened) {
    for (const auto &[name, value] : file.of) {
        const char *theirs = mt_safetensors_metadata(opened, name);
        if (!theirs || value != theirs)
            return mt_set_error(MT_EINVAL, "its %s is '%.60s', and this run's is '%s'", name,
                                theirs ? theirs : "", value.c_str());
    }
    return MT_OK;
}

inline mt_status read_part(const mt_safetensors *opened, const Part &part,
                           const std::vector<Piece> &pieces) {
    mt_safetensors_tensor there;
    size_t index = 0;
    uint64_t offset = 0;
    mt_status status = mt_safetensors_find(opened, part.name, &index);
    if (status == MT_OK) status = mt_safetensors_get(opened, index, &there);
    if (status != MT_OK) return status;
    if (there.dtype != part.dtype ||
        std::vector<int64_t>(there.shape, there.shape + there.dims) != part.shape)
        return mt_set_error(MT_EINVAL, "its '%s' has another type or shape than this run's",
                            part.name);
    for (size_t i = 0; i < pieces.size() && status == MT_OK; i++, offset += pieces[i - 1].bytes)
        status = mt_safetensors_read(opened, index, offset, pieces[i].data, pieces[i].bytes);
    return status;
}

/* As many prompts as the file has, without numbers yet. */
inline States empty_states(const StatesFile &file, size_t count) {
    States s;
    for (size_t i = 0; i < count; i++)
        s.prompts.push_back({std::string(static_cast<size_t>(file.length) * sizeof(int64_t), '\0'),
                             {at::empty({most_words, file.width}, at::kFloat),
                              at::empty({most_words}, at::kBool)}});
    s.mean = at::empty({file.width}, at::kFloat);
    s.scale = at::empty({file.width}, at::kFloat);
    return s;
}

inline mt_status read_all(const StatesFile &file, const mt_safetensors *opened, States &out) {
    mt_safetensors_tensor tokens;
    size_t index = 0;
    mt_status status = check_metadata(file, opened);
    if (status == MT_OK) status = mt_safetensors_find(opened, "prompts", &index);
    if (status == MT_OK) status = mt_safetensors_get(opened, index, &tokens);
    if (status != MT_OK) return status;
    if (tokens.dims != 2 || tokens.shape[1] != file.length)
        return mt_set_error(MT_EINVAL, "its 'prompts' has another shape than this run's");
    const int64_t count = tokens.shape[0];
    States s = empty_states(file, static_cast<size_t>(count));
    const Pieces pieces = pieces_of(s);
    const auto all = parts_of(file, count);
    for (size_t i = 0; i < parts && status == MT_OK; i++)
        status = read_part(opened, all[i], pieces[i]);
    if (status != MT_OK) return status;
    const char *sum = mt_safetensors_metadata(opened, sum_name);
    if (!sum || sum_of(pieces) != sum) return mt_set_error(MT_EINVAL, "it is damaged");
    out = std::move(s);
    return MT_OK;
}

/* Whether a file that cannot be read was one of states: its header has begun so. An empty one is free. */
inline bool is_ours(const char *path, const char *name) {
    std::string begin(1024, '\0');
    FILE *file = std::fopen(path, "rb");
    if (!file) return true; /* the system says why */
    begin.resize(std::fread(begin.data(), 1, begin.size(), file));
    std::fclose(file);
    return begin.empty() || begin.find(name) != std::string::npos;
}

} // namespace states

/*
 * What an earlier run has left there, if anything. A file that is damaged, or of something else, is left out with a line.
 * @return MT_OK; MT_EINVAL for a file that never had states, which is not to be replaced; MT_ENOMEM
 */
inline mt_status read_states(const StatesFile &file, States &out) {
    const char *path = file.path.c_str();
    mt_safetensors *opened = nullptr;
    if (access(path, F_OK) != 0) return MT_OK;
    mt_status status = mt_safetensors_open(path, &opened);
    const std::unique_ptr<mt_safetensors, void (*)(mt_safetensors *)> owner(opened,
                                                                            mt_safetensors_free);
    if (status == MT_OK ? !mt_safetensors_metadata(opened, file.of[0].first)
                        : status == MT_EINVAL && !states::is_ours(path, file.of[0].first))
        return mt_set_error(MT_EINVAL,
                            "--cache-frozen-file: '%.200s' is a file of something else; accepted: "
                            "one that this flag has written, or a name that is free",
                            path);
    if (status == MT_OK) status = states::read_all(file, opened, out);
    if (status == MT_OK || status == MT_ENOMEM) return status;
    mt_log(MT_LOG_INFO, "'%s' is left out: %s", path, mt_last_error());
    return mt_set_error(MT_OK, "%s", "");
}

/* Replaces the file as a whole. There is one prompt at least. */
inline mt_status write_states(const StatesFile &file, States s) {
    states::Pieces pieces = states::pieces_of(s);
    const std::string sum = states::sum_of(pieces);
    const auto all = states::parts_of(file, static_cast<int64_t>(s.prompts.size()));
    std::vector<mt_safetensors_tensor> tensors;
    for (size_t i = 0; i < states::parts; i++)
        tensors.push_back({all[i].name, all[i].dtype, all[i].shape.size(), all[i].shape.data(),
                           uint64_t{pieces[i].size()} * pieces[i][0].bytes, nullptr});
    std::vector<mt_safetensors_text> texts;
    for (const auto &[name, value] : file.of) texts.push_back({name, value.c_str()});
    texts.push_back({states::sum_name, sum.c_str()});
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    options.metadata = texts.data();
    options.metadata_count = texts.size();
    options.fetch = states::fetch;
    options.user = &pieces;
    return mt_safetensors_save(file.path.c_str(), tensors.data(), tensors.size(), &options);
}

} // namespace memtrain_models

#endif
