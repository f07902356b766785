/*
 * check_mistral.cpp - the language model of mistral.hpp against a calculation in plain Python (tests/golden/gen_mistral.py),
 * its sizes and names, what prsmed_lm.h makes of it, and the file that it writes.
 */
#include "mistral.h" /* the numbers */

#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <memtrain/safetensors.h>

#include "mistral.hpp"
#include "prsmed_lm.h"

#include "owned.hpp" /* last: check.h has macros with short names */

using namespace memtrain_models;

namespace {

std::string folder;

std::string in_folder(const std::string &name) {
    return folder + "/" + name;
}

void make_folder() {
    char name[] = "/tmp/check_mistral.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(name));
    folder = name;
}

void remove_folder() {
    std::remove(in_folder("w").c_str());
    ck_assert_int_eq(rmdir(folder.c_str()), 0);
}

/* ---- the network ---- */

const MistralOptions small = {13, 16, 2, 4, 2, 24};

/* The formula of the golden script; names are not in the order that it draws them in. */
void fill(MistralImpl &net) {
    std::vector<std::string> order = {"model.embed_tokens"};
    for (int i = 0; i < 2; i++)
        for (const char *part : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                 "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                                 "mlp.down_proj", "input_layernorm", "post_attention_layernorm"})
            order.push_back("model.layers." + std::to_string(i) + "." + part);
    order.push_back("model.norm");
    order.push_back("lm_head");
    torch::NoGradGuard no_grad;
    auto named = net.named_parameters();
    ck_assert_uint_eq(named.size(), order.size());
    for (size_t k = 0; k < order.size(); k++) {
        torch::Tensor &weight = named[order[k] + ".weight"];
        torch::Tensor made = at::zeros(weight.sizes());
        const bool is_norm = made.dim() == 1;
        for (int64_t i = 0; i < made.numel(); i++) {
            const int64_t remainder =
                (i * 7919 + (static_cast<int64_t>(k) + 1) * 104729 + 12345) % 65521;
            const double u = static_cast<double>(remainder) / 65521 - 0.5;
            made.data_ptr<float>()[i] = static_cast<float>(is_norm ? 1 + 0.4 * u : 0.8 * u);
        }
        weight.set_data(made);
    }
}

void check_close(const torch::Tensor &found, const double *expected, size_t count) {
    torch::Tensor flat = found.contiguous();
    ck_assert_uint_eq(static_cast<size_t>(flat.numel()), count);
    for (size_t i = 0; i < count; i++)
        ck_assert_double_eq_tol(static_cast<double>(flat.data_ptr<float>()[i]), expected[i], 2e-5);
}

torch::Tensor golden_tokens() {
    static int64_t tokens[] = {1, 5, 2, 12, 7, 3, 3, 0, 9, 4};
    return at::from_blob(tokens, {2, 5}, at::kLong);
}

TEST("network", it_computes_what_the_equations_say) {
    check_shim::prepare(3);
    Mistral net(small, at::kFloat);
    fill(*net);
    const torch::Tensor tokens = golden_tokens();
    check_close(net->forward(tokens), mistral_states, LENGTH(mistral_states));
    check_close(net->logits(tokens), mistral_logits, LENGTH(mistral_logits));
    ck_assert_double_eq_tol(net->loss(tokens).item<double>(), mistral_loss, 1e-5);
}

/* Rows that run some at a time. */
TEST("network", many_rows_are_few_rows) {
    check_shim::prepare(3);
    Mistral net(small, at::kFloat);
    fill(*net);
    const torch::Tensor tokens = golden_tokens().repeat({120, 1}); /* 1200 tokens */
    const torch::Tensor states = net->forward(tokens);
    check_close(states.narrow(0, 0, 2), mistral_states, LENGTH(mistral_states));
    check_close(states.narrow(0, 238, 2), mistral_states, LENGTH(mistral_states));
}

TEST("network", sizes_are_the_published_ones) {
    const struct {
        const char *name;
        int64_t size;
    } cases[] = {{"500m", 513590784}, {"1.1b", 1100048384}, {"7b", 7241732096}};
    check_shim::prepare(3);
    for (const auto &one : cases) {
        const Mistral net(mistral_options(one.name), at::kBFloat16);
        ck_assert_int_eq(net->size(), one.size);
    }
    const Mistral net(mistral_options("7b"), at::kBFloat16);
    const auto named = net->named_parameters();
    ck_assert_uint_eq(named.size(), 3 + 32 * 9);
    for (const char *name : {"model.embed_tokens.weight", "model.layers.31.self_attn.k_proj.weight",
                             "model.layers.0.mlp.down_proj.weight", "model.norm.weight",
                             "model.layers.7.post_attention_layernorm.weight", "lm_head.weight"})
        ck_assert_msg(named.contains(name), "no %s", name);
    ck_assert(named["model.layers.0.self_attn.k_proj.weight"].sizes() ==
              at::IntArrayRef({1024, 4096}));
    mt_memory memory = MT_MEMORY_INIT;
    ck_ok(mt_device_memory("cpu", &memory));
    ck_assert_uint_lt(memory.allocated_bytes, 1 << 20); /* shapes, and no memory */
}

/* ---- for C programs ---- */

enum { LENGTH_OF_ROW = 12 };

const int64_t rows[3][LENGTH_OF_ROW] = {
    {256, 'a', ' ', 'b', 'c', 257, 258, 258, 258, 258, 258, 258},
    {256, 'd', 'e', ' ', 'f', ' ', 'g', 257, 258, 258, 258, 258},
    {256, 'a', ' ', 'b', 'c', 257, 258, 258, 258, 258, 258, 258},
};

using Lm = std::unique_ptr<prsmed_lm, void (*)(prsmed_lm *)>;

struct Said {
    std::vector<float> states = std::vector<float>(3 * PRSMED_LM_WORDS * 64);
    std::vector<float> exist = std::vector<float>(3 * PRSMED_LM_WORDS);

    explicit Said(const Lm &lm) {
        ck_ok(prsmed_lm_words(lm.get(), rows[0], 3, LENGTH_OF_ROW, states.data(), exist.data()));
    }
    bool operator==(const Said &other) const {
        return states == other.states && exist == other.exist;
    }
};

Lm new_lm(prsmed_lm_options options) {
    prsmed_lm *lm = nullptr;
    options.prompts = rows[0];
    options.prompt_count = 2;
    options.prompt_length = LENGTH_OF_ROW;
    ck_ok(prsmed_lm_new(&options, &lm));
    return Lm(lm, prsmed_lm_free);
}

prsmed_lm_figures figures_of(const Lm &lm) {
    prsmed_lm_figures figures = PRSMED_LM_FIGURES_INIT;
    ck_ok(prsmed_lm_figures_of(lm.get(), &figures));
    return figures;
}

prsmed_lm_options of_a_written_file(const std::string &path) {
    prsmed_lm_options options = PRSMED_LM_OPTIONS_INIT;
    ck_ok(prsmed_lm_write(PRSMED_LM_TINY, path.c_str()));
    options.weights = path.c_str();
    return options;
}

/* It is measured: how much is the processor's. */
TEST("program", products_are_timed) {
    check_shim::prepare(1);
    ck_assert_double_gt(prsmed_lm_half_ratio(), 0);
    ck_ok(mt_device_set_budget("cpu", 1 << 20)); /* no room for the matrices */
    ck_assert_double_eq(prsmed_lm_half_ratio(), 0);
    ck_ok(mt_device_set_budget("cpu", 0));
}

/* Mapped, loaded, kept. */
TEST("program", a_written_file_is_read) {
    check_shim::prepare(3);
    const std::string path = in_folder("w");
    prsmed_lm_options options = of_a_written_file(path);
    const Lm mapped = new_lm(options);
    options.load = 1;
    const Lm loaded = new_lm(options);
    options.load = 0;
    options.keep = 1;
    const Lm kept = new_lm(options);
    const Said said(mapped);
    ck_assert(said == Said(loaded));
    for (int i = 0; i < 3; i++) (void)Said(mapped);
    ck_assert_uint_eq(figures_of(mapped).passes, 1 + 4);
    ck_assert_uint_eq(figures_of(mapped).read_prompts, 2 + 4 * 3);
    ck_assert_double_gt(figures_of(mapped).seconds, 0);
    const Said first(kept);
    for (int i = 0; i < 3; i++) ck_assert(Said(kept) == first);
    ck_assert_uint_eq(figures_of(kept).passes, 1 + 1);
    ck_assert_uint_eq(figures_of(kept).kept_prompts, 2);
    ck_assert(std::memcmp(first.states.data(), first.states.data() + 2 * PRSMED_LM_WORDS * 64,
                          PRSMED_LM_WORDS * 64 * sizeof(float)) == 0);
    const size_t numbers = static_cast<size_t>(figures_of(mapped).parameters);
    ck_assert_uint_eq(figures_of(mapped).mapped_bytes, 2 * numbers);
    ck_assert_uint_eq(figures_of(mapped).held_bytes, 0);
    ck_assert_uint_eq(figures_of(loaded).mapped_bytes, 0);
    ck_assert_uint_eq(figures_of(loaded).held_bytes, 4 * numbers);
}

/* In bfloat16: mapped as loaded, half the bytes, and near what float32 says. */
TEST("program", half_precision) {
    check_shim::prepare(3);
    const std::string path = in_folder("w");
    prsmed_lm_options options = of_a_written_file(path);
    const Lm wide = new_lm(options);
    options.half = 1;
    const Lm mapped = new_lm(options);
    options.load = 1;
    const Lm loaded = new_lm(options);
    const Said exact(wide), said(mapped);
    ck_assert(said == Said(loaded));
    ck_assert(!(said == exact));
    const auto numbers = static_cast<uint64_t>(figures_of(loaded).parameters);
    ck_assert_uint_eq(figures_of(loaded).held_bytes, 2 * numbers);
    double apart = 0, all = 0;
    for (size_t i = 0; i < exact.states.size(); i++) {
        const double x = exact.states[i], y = said.states[i];
        apart += (x - y) * (x - y);
        all += x * x;
    }
    ck_assert_double_lt(apart, 0.01 * all);
}

/* Words are told apart, and padding is no word. */
TEST("program", words_are_centred) {
    check_shim::prepare(3);
    prsmed_lm_options options = PRSMED_LM_OPTIONS_INIT;
    const Lm lm = new_lm(options);
    const Said said(lm);
    const int counts[] = {2, 3, 2};
    for (int row = 0; row < 3; row++)
        for (int word = 0; word < PRSMED_LM_WORDS; word++)
            ck_assert_int_eq(said.exist[row * PRSMED_LM_WORDS + word] == 1.0F, word < counts[row]);
    double sum = 0, squares = 0;
    for (int i = 0; i < 5; i++) { /* of the five words of both prompts, in the first dimension */
        const int row = i / 2 > 0, word = row ? i - 2 : i;
        const double x = said.states[static_cast<size_t>((row * PRSMED_LM_WORDS + word) * 64)];
        sum += x;
        squares += x * x;
    }
    ck_assert_double_eq_tol(sum / 5, 0, 1e-4);
    ck_assert_double_eq_tol(squares / 5, 1, 1e-3);
}

TEST("program", wrong_requests) {
    check_shim::prepare(3);
    prsmed_lm *lm = nullptr;
    prsmed_lm_options options = PRSMED_LM_OPTIONS_INIT;
    ck_status(prsmed_lm_new(nullptr, &lm), MT_EINVAL);
    options.model = 9;
    ck_refused(prsmed_lm_new(&options, &lm), MT_EINVAL, "model is 9");
    ck_status(prsmed_lm_write(0, in_folder("w").c_str()), MT_EINVAL);
    ck_status(prsmed_lm_write(PRSMED_LM_TINY, "/nonexistent/w"), MT_EIO);
    options = PRSMED_LM_OPTIONS_INIT;
    options.states = "s";
    options.keep = 1;
    ck_refused(prsmed_lm_new(&options, &lm), MT_EINVAL, "states need keep, states_of and prompts");
    options = PRSMED_LM_OPTIONS_INIT;
    options.model = PRSMED_LM_500M;
    options.weights = "/nonexistent/w";
    ck_status(prsmed_lm_new(&options, &lm), MT_EIO);
    ck_ok(prsmed_lm_write(PRSMED_LM_TINY, in_folder("w").c_str()));
    const std::string path = in_folder("w");
    options.weights = path.c_str();
    ck_refused(prsmed_lm_new(&options, &lm), MT_EINVAL, "does not fit the model");
    ck_assert_ptr_null(lm);
    prsmed_lm_free(nullptr);
}

/* Nothing could be trained with what it says. */
TEST("program", weights_that_are_not_finite) {
    check_shim::prepare(3);
    const std::string path = in_folder("w");
    prsmed_lm_options options = of_a_written_file(path);
    prsmed_lm *lm = nullptr;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const uint16_t nan = 0x7fc0;
    file.seekg(0, std::ios::end);
    file.seekp(file.tellg() / 2 / 2 * 2);
    for (int i = 0; i < 4096; i++) file.write(reinterpret_cast<const char *>(&nan), sizeof nan);
    file.close();
    options.prompts = rows[0];
    options.prompt_count = 2;
    options.prompt_length = LENGTH_OF_ROW;
    ck_refused(prsmed_lm_new(&options, &lm), MT_EINVAL, "not finite");
    ck_assert_ptr_null(lm);
}

/* A file that changes is told, though all prompts are kept. */
TEST("program", a_change_is_told) {
    check_shim::prepare(3);
    const std::string path = in_folder("w");
    prsmed_lm_options options = of_a_written_file(path);
    options.keep = 1;
    const Lm lm = new_lm(options);
    Said said(lm);
    std::ofstream(path, std::ios::app) << "x";
    ck_refused(
        prsmed_lm_words(lm.get(), rows[0], 3, LENGTH_OF_ROW, said.states.data(), said.exist.data()),
        MT_EIO, "has changed");
}

} // namespace

int main() {
    tcase_add_checked_fixture(suite_case_named("program"), make_folder, remove_folder);
    return suite_run_named("mistral");
}
