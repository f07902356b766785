/* prsmed_lm.cpp - the network of mistral.hpp for C programs; see prsmed_lm.h. */
#include "mistral.hpp"
#include "prsmed_lm.h"
#include "prsmed_states.hpp"

#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <string>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>

#include <memtrain/safetensors.h>

using namespace memtrain_models;

struct prsmed_lm {
    Mistral net{nullptr};
    mt_model *model = nullptr;
    MistralOptions options{};
    bool keeps = false, half = false, dry = false;
    torch::Tensor centred_by;  /* [count, length], to centre by; undefined: none */
    torch::Tensor mean, scale; /* [width] */
    /* By the bytes of its tokens: states [words, width] and which words there are. */
    std::map<std::string, Words> kept;
    StatesFile file{};     /* path "": none */
    bool has_more = false; /* than the file */
    uint64_t passes = 0, prompts = 0, disk_bytes = 0;
    double seconds = 0;

    ~prsmed_lm() { mt_model_free(model); }
};

namespace {

static_assert(PRSMED_LM_WORDS == most_words, "both are the decoder's");

const char *name_of(int model) {
    switch (model) {
    case PRSMED_LM_TINY:
        return "tiny";
    case PRSMED_LM_500M:
        return "500m";
    case PRSMED_LM_1_1B:
        return "1.1b";
    case PRSMED_LM_7B:
        return "7b";
    default:
        return nullptr;
    }
}

mt_status check(const char *function, int model) {
    if (name_of(model)) return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "%s: model is %d; accepted: PRSMED_LM_TINY (1) to PRSMED_LM_7B (4)",
                        function, model);
}

/* Exceptions end here. */
template <class Body> mt_status guard(Body &&body) {
    try {
        return body();
    } catch (...) {
        return mt_torch_exception();
    }
}

/* Padding of all rows is left out: it comes last, and no token sees what follows it. */
torch::Tensor without_padding(const torch::Tensor &tokens) {
    const int64_t most = tokens.ne(token_padding).sum(1).max().item<int64_t>();
    return tokens.narrow(1, 0, std::max<int64_t>(most, 1));
}

/* As Llama's vocabulary has bytes. */
torch::Tensor byte_tokens(const torch::Tensor &tokens) {
    torch::Tensor bytes = tokens + 3;
    bytes = bytes.masked_fill(tokens.eq(token_begin), 1);
    return bytes.masked_fill(tokens.eq(token_end), 2).masked_fill(tokens.eq(token_padding), 0);
}

/* That this process has read from disks, pages of mapped files included. 0: the system does not tell. */
uint64_t disk_bytes() {
    std::ifstream io("/proc/self/io");
    std::string name;
    for (uint64_t bytes; io >> name >> bytes;)
        if (name == "read_bytes:") return bytes;
    return 0;
}

/* Adds to the figures what happens while it lives. */
class Pass {
public:
    Pass(prsmed_lm &lm, int64_t prompts) : lm_(lm), bytes_(disk_bytes()) {
        lm.passes++;
        lm.prompts += static_cast<uint64_t>(prompts);
    }
    ~Pass() {
        lm_.disk_bytes += disk_bytes() - bytes_;
        lm_.seconds += std::chrono::duration<double>(Clock::now() - begin_).count();
    }
    Pass(const Pass &) = delete;
    Pass &operator=(const Pass &) = delete;

private:
    using Clock = std::chrono::steady_clock;
    prsmed_lm &lm_;
    uint64_t bytes_;
    Clock::time_point begin_ = Clock::now();
};

/* One pass over the weights, whatever the number of rows. */
Words read(prsmed_lm &lm, const torch::Tensor &tokens) {
    torch::NoGradGuard no_grad;
    torch::Tensor text = without_padding(tokens);
    if (lm.dry) return mean_words(text, at::zeros({text.size(0), text.size(1), lm.options.width}));
    const Pass pass(lm, tokens.size(0));
    Words words = mean_words(text, lm.net->forward(byte_tokens(text)).to(at::kFloat));
    if (lm.mean.defined()) words.states = (words.states - lm.mean) * lm.scale;
    return words;
}

mt_status centre(prsmed_lm &lm) {
    const Words words = read(lm, lm.centred_by);
    torch::Tensor all = words.states.index({words.exist}); /* [words, width] */
    if (!all.isfinite().all().item<bool>())
        return mt_set_error(MT_EINVAL,
                            "the language model says numbers that are not finite, of %lld prompts: "
                            "its weights may have such numbers",
                            static_cast<long long>(lm.centred_by.size(0)));
    lm.mean = all.mean(0);
    lm.scale = 1 / (all - lm.mean).square().mean(0).sqrt().clamp_min(1e-6);
    return MT_OK;
}

torch::Tensor rows_of(const int64_t *tokens, size_t count, size_t length) {
    return at::from_blob(const_cast<int64_t *>(tokens),
                         {static_cast<int64_t>(count), static_cast<int64_t>(length)}, at::kLong);
}

std::string key_of(const int64_t *row, size_t length) {
    return {reinterpret_cast<const char *>(row), length * sizeof *row};
}

/* Those that are not kept yet, each once, in one pass. */
void keep(prsmed_lm &lm, const int64_t *tokens, size_t count, size_t length) {
    std::map<std::string, size_t> missing;
    for (size_t i = 0; i < count; i++) {
        std::string key = key_of(tokens + i * length, length);
        if (!lm.kept.count(key)) missing.emplace(std::move(key), i);
    }
    if (missing.empty()) return;
    std::vector<torch::Tensor> rows;
    for (const auto &[key, i] : missing) rows.push_back(rows_of(tokens + i * length, 1, length));
    const Words words = read(lm, at::cat(rows));
    int64_t row = 0;
    for (const auto &[key, i] : missing) {
        lm.kept[key] = {words.states[row].clone(), words.exist[row].clone()};
        row++;
    }
    lm.has_more = true;
}

void write_out(const Words &words, float *states, float *exist) {
    torch::Tensor flat = words.states.contiguous(), there = words.exist.to(at::kFloat).contiguous();
    std::memcpy(states, flat.const_data_ptr(), flat.nbytes());
    std::memcpy(exist, there.const_data_ptr(), there.nbytes());
}

/* What is centred by other prompts is something else. */
StatesFile states_file(const prsmed_lm_options &o, int64_t width) {
    const uint64_t prompts =
        ex_hash(EX_HASH_INIT, o.prompts, o.prompt_count * o.prompt_length * sizeof *o.prompts);
    return {o.states,
            {{{"states_of", o.states_of},
              {"read_in", o.half ? "bf16" : "float32"},
              {"centred_by", hash_text(prompts)}}},
            static_cast<int64_t>(o.prompt_length),
            width};
}

mt_status take_states(prsmed_lm &lm) {
    States states;
    mt_status status = read_states(lm.file, states);
    lm.mean = states.mean;
    lm.scale = states.scale;
    for (auto &[tokens, words] : states.prompts) lm.kept.emplace(tokens, words);
    return status;
}

mt_status build(const prsmed_lm_options &o, prsmed_lm &lm) {
    lm.options = mistral_options(name_of(o.model));
    lm.keeps = o.keep != 0;
    lm.half = o.half != 0;
    lm.dry = o.dry != 0;
    mt_status status = memtrain::make_model(&lm.model, [&] {
        lm.net = Mistral(lm.options, o.half ? at::kBFloat16 : at::kFloat);
        if (!o.weights) lm.dry ? lm.net->allocate() : lm.net->draw();
        return memtrain::model(lm.net.ptr(), {},
                               [](MistralImpl &net, const memtrain::Tensors &batch) {
                                   return memtrain::Output{net.loss(batch.at(0)), {}};
                               });
    });
    mt_map_options map = MT_MAP_OPTIONS_INIT;
    map.load = o.load;
    if (status == MT_OK && o.weights) status = mt_model_map_weights(lm.model, o.weights, &map);
    if (status != MT_OK || !o.prompt_count) return status;
    return guard([&] {
        if (o.states) lm.file = states_file(o, lm.options.width);
        lm.centred_by = rows_of(o.prompts, o.prompt_count, o.prompt_length).clone();
        return MT_OK;
    });
}

mt_status begin(prsmed_lm &lm) {
    mt_status status = MT_OK;
    lm.dry = false;
    lm.kept.clear();
    lm.has_more = false;
    if (!lm.file.path.empty()) status = take_states(lm);
    if (status == MT_OK && lm.centred_by.defined() && !lm.mean.defined()) status = centre(lm);
    return status;
}

/* ---- random weights -------------------------------------------------------------------------------- */

/* bfloat16: the upper half of a float's bits. */
uint16_t upper_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>((bits + 0x8000) >> 16);
}

/* Four numbers from each of its 64 bits (xorshift64, Marsaglia 2003). */
class Drawer {
public:
    Drawer() : values_(1 << 16), piece_(1 << 21) {
        for (size_t i = 0; i < values_.size(); i++)
            values_[i] = upper_half((static_cast<float>(i) + 0.5F - 32768) / 32768 * 0.0346F);
    }
    const std::vector<uint16_t> &draw() {
        for (size_t i = 0; i < piece_.size(); i += 4) {
            state_ ^= state_ << 13;
            state_ ^= state_ >> 7;
            state_ ^= state_ << 17;
            for (size_t j = 0; j < 4; j++) piece_[i + j] = values_[state_ >> (16 * j) & 0xffff];
        }
        return piece_;
    }
    const std::vector<uint16_t> &ones() {
        std::fill(piece_.begin(), piece_.end(), upper_half(1));
        return piece_;
    }

private:
    std::vector<uint16_t> values_, piece_;
    uint64_t state_ = 0x9e3779b97f4a7c15;
};

struct Writing {
    const std::vector<mt_safetensors_tensor> &tensors;
    Drawer drawer;
};

mt_status fetch(void *user, size_t index, uint64_t offset, const void **out_data,
                size_t *out_bytes) {
    auto &writing = *static_cast<Writing *>(user);
    const mt_safetensors_tensor &tensor = writing.tensors[index];
    const auto &piece = tensor.dims == 1 ? writing.drawer.ones() : writing.drawer.draw();
    *out_data = piece.data();
    *out_bytes = static_cast<size_t>(std::min<uint64_t>(tensor.bytes - offset, 2 * piece.size()));
    return MT_OK;
}

} // namespace

mt_status prsmed_lm_new(const prsmed_lm_options *options, prsmed_lm **out) {
    *out = nullptr;
    if (!options || options->size < sizeof *options)
        return mt_set_error(MT_EINVAL, "prsmed_lm_new: use PRSMED_LM_OPTIONS_INIT");
    if (options->states && (!options->keep || !options->states_of || !options->prompt_count))
        return mt_set_error(MT_EINVAL,
                            "prsmed_lm_new: states need keep, states_of and prompts to centre by");
    mt_status status = check("prsmed_lm_new", options->model);
    auto *lm = status == MT_OK ? new (std::nothrow) prsmed_lm() : nullptr;
    if (status == MT_OK && !lm)
        status = mt_set_error(MT_ENOMEM, "prsmed_lm_new: out of host memory");
    if (status == MT_OK) status = build(*options, *lm);
    if (status == MT_OK && !options->dry) status = prsmed_lm_begin(lm);
    if (status == MT_OK)
        *out = lm;
    else
        prsmed_lm_free(lm);
    return status;
}

mt_status prsmed_lm_begin(prsmed_lm *lm) {
    return guard([&] { return begin(*lm); });
}

void prsmed_lm_free(prsmed_lm *lm) {
    delete lm;
}

int64_t prsmed_lm_width(int model) {
    return name_of(model) ? mistral_options(name_of(model)).width : 0;
}

mt_status prsmed_lm_figures_of(const prsmed_lm *lm, prsmed_lm_figures *out) {
    mt_map_stats stats = MT_MAP_STATS_INIT;
    mt_status status = mt_model_map_stats(lm->model, &stats);
    if (status != MT_OK) return status;
    return guard([&] {
        const int64_t parameters = lm->net->size();
        const uint64_t held = stats.tensors || stats.loaded_bytes
                                  ? stats.loaded_bytes
                                  : (lm->half ? 2 : 4) * static_cast<uint64_t>(parameters);
        *out = {sizeof *out, lm->options.width, parameters,  stats.mapped_bytes, held,
                lm->passes,  lm->prompts,       lm->seconds, lm->disk_bytes,     lm->kept.size()};
        return MT_OK;
    });
}

mt_status prsmed_lm_words(prsmed_lm *lm, const int64_t *tokens, size_t count, size_t length,
                          float *states, float *exist) {
    mt_status status = mt_model_check_mapped(lm->model);
    if (status != MT_OK) return status;
    const auto row = static_cast<size_t>(PRSMED_LM_WORDS * lm->options.width);
    return guard([&] {
        if (!lm->keeps) {
            write_out(read(*lm, rows_of(tokens, count, length)), states, exist);
            return MT_OK;
        }
        keep(*lm, tokens, count, length);
        for (size_t i = 0; i < count; i++)
            write_out(lm->kept.at(key_of(tokens + i * length, length)), states + i * row,
                      exist + i * PRSMED_LM_WORDS);
        return MT_OK;
    });
}

mt_status prsmed_lm_save_states(prsmed_lm *lm) {
    if (lm->file.path.empty() || !lm->has_more || lm->dry) return MT_OK;
    return guard([&] {
        States states{{}, lm->mean, lm->scale};
        for (const auto &[tokens, words] : lm->kept)
            if (tokens.size() == static_cast<size_t>(lm->file.length) * sizeof(int64_t))
                states.prompts.emplace_back(tokens, words);
        if (states.prompts.empty()) return MT_OK;
        mt_status status = write_states(lm->file, std::move(states));
        lm->has_more = status != MT_OK;
        return status;
    });
}

mt_status prsmed_lm_write(int model, const char *path) {
    mt_status status = check("prsmed_lm_write", model);
    if (status == MT_OK) status = mt_torch_init(nullptr);
    if (status != MT_OK) return status;
    return guard([&] {
        const Mistral net(mistral_options(name_of(model)), at::kBFloat16);
        const auto named = net->named_parameters();
        std::vector<mt_safetensors_tensor> list;
        for (const auto &item : named)
            list.push_back({item.key().c_str(), MT_ST_BF16, static_cast<size_t>(item.value().dim()),
                            item.value().sizes().data(),
                            2 * static_cast<uint64_t>(item.value().numel()), nullptr});
        Writing writing{list, {}};
        const mt_safetensors_text format = {"format", "pt"};
        mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
        options.metadata = &format;
        options.metadata_count = 1;
        options.fetch = fetch;
        options.user = &writing;
        return mt_safetensors_save(path, list.data(), list.size(), &options);
    });
}

namespace {

/* Of a product of matrices of that type, after one that sets kernels up. */
double shortest_seconds(at::ScalarType type) {
    using Clock = std::chrono::steady_clock;
    const torch::Tensor x = at::full({128, 1024}, 0.5, type), w = at::full({1024, 1024}, 0.5, type);
    double least = 0;
    for (int i = 0; i < 4; i++) {
        const auto begin = Clock::now();
        at::linear(x, w);
        const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        if (i == 1 || (i > 1 && seconds < least)) least = seconds;
    }
    return least;
}

} // namespace

double prsmed_lm_half_ratio(void) {
    double ratio = 0;
    const mt_status status = guard([&] {
        const torch::NoGradGuard no_grad;
        const double full = shortest_seconds(at::kFloat);
        ratio = full > 0 ? shortest_seconds(at::kBFloat16) / full : 0;
        return MT_OK;
    });
    return status == MT_OK ? ratio : 0;
}
