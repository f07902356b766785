/*
 * check_model_prsmed.cpp - the network of examples/documents/prsmed.c: sizes against the published ones, loss and metrics
 * against sums by hand, gradients, what is frozen, chunks, and each allocation of a step that fails.
 */
#include <set>

#include <ATen/Parallel.h>
#include <ATen/ops/tensor.h>

/* Come last: check.h has macros with short names. */
#include "prsmed_subject.hpp"

#include "model_faults.hpp"

using namespace prsmed_subject;
using check_shim::tensor_device;

/* ---- what there is ---------------------------------------------------------------------------- */

TEST("sizes", the_text_model_has_the_known_size) {
    at::set_num_threads(1);
    ck_assert_int_eq(count(*ByteGpt(ByteGptOptions{256, 6})), 4870912);
}

TEST("sizes", the_vit_has_the_known_size) {
    ck_assert_int_eq(count(*VitEncoder(128)), 5424960);
}

TEST_LOOP("sizes", decoders_have_the_known_sizes, 3) {
    static const int64_t sizes[][5] = {{256, 256, 128, 256, 885601},
                                       {384, 256, 192, 384, 1914001},
                                       {4096, 512, 256, 512, 5365441}};
    const int64_t *s = sizes[_i];
    ck_assert_int_eq(count(*MaskDecoder(MaskDecoderOptions{s[0], s[1], s[2], s[3], 0})), s[4]);
}

/* What is told of sizes beforehand is what there is; and of the larger text models, which are not made here. */
TEST_LOOP("sizes", estimates_count_the_parameters, 2) {
    prsmed_estimate parts[PRSMED_PARTS];
    prsmed_model_options o = options_of(_i ? PRSMED_VIT_TI : PRSMED_CONV);
    at::set_num_threads(1);
    Prsmed net(o);
    ck_ok(prsmed_model_estimate(&o, length, parts));
    ck_assert_uint_eq(parts[PRSMED_TEXT].parameters, static_cast<size_t>(count(*net->text)));
    ck_assert_uint_eq(parts[PRSMED_VISION].parameters, static_cast<size_t>(count(*net->vision)));
    ck_assert_uint_eq(parts[PRSMED_DECODER].parameters, static_cast<size_t>(count(*net->decoder)));
    static const int64_t larger[][3] = {
        {384, 8, 14394240}, {512, 8, 25483776}, {768, 12, 85451520}};
    for (const auto &size : larger) {
        o.text_width = size[0];
        o.text_layers = size[1];
        ck_ok(prsmed_model_estimate(&o, length, parts));
        ck_assert_uint_eq(parts[PRSMED_TEXT].parameters, static_cast<size_t>(size[2]));
    }
}

TEST("sizes", parameters_have_these_names) {
    std::set<std::string> names;
    Prsmed net(options_of());
    for (const auto &item : net->named_parameters()) names.insert(item.key());
    for (const char *name :
         {"text.tokens.weight", "text.positions", "text.blocks.0.qkv.weight", "text.norm.bias",
          "vision.stem1.conv.weight", "vision.blocks.2.second.norm.weight", "vision.positions",
          "decoder.prompt1.weight", "decoder.attention.query.weight", "decoder.layer.widen.bias",
          "decoder.ffn2.weight", "decoder.draw.2.conv3.weight", "decoder.out.bias"})
        ck_assert_msg(names.count(name), "%s", name);
    for (const std::string &name : names)
        ck_assert_msg(!name.compare(0, 5, "text.") || !name.compare(0, 7, "vision.") ||
                          !name.compare(0, 8, "decoder."),
                      "%s", name.c_str());
    ck_assert_int_eq(net->buffers().size(), 2);
}

static const struct {
    const char *field;
    void (*spoil)(prsmed_model_options &);
} spoilt[] = {
    {"encoder", [](prsmed_model_options &o) { o.encoder = PRSMED_TINY_VIT + 1; }},
    {"side", [](prsmed_model_options &o) { o.side = 34; }},
    {"side", [](prsmed_model_options &o) { o.side = 12; }},
    {"text_width", [](prsmed_model_options &o) { o.text_width = 100; }},
    {"text_layers", [](prsmed_model_options &o) { o.text_layers = 0; }},
    {"text_steps", [](prsmed_model_options &o) { o.text_steps = 1; }},
    {"PRSMED_MODEL_OPTIONS_INIT", [](prsmed_model_options &o) { o.size = 0; }},
};

TEST_LOOP("sizes", wrong_options_are_named, LENGTH(spoilt)) {
    prsmed_model_options o = options_of();
    mt_model *model = nullptr;
    spoilt[_i].spoil(o);
    ck_refused(prsmed_model_new(&o, &model), MT_EINVAL, spoilt[_i].field);
    ck_assert_ptr_null(model);
}

/* ---- loss and metrics ------------------------------------------------------------------------- */

/* Two pictures of 1 x 2 pixels. */
TEST("numbers", the_loss_is_that_of_a_sum_by_hand) {
    const double z[2][2] = {{0.5, -1}, {2, 0.25}}, m[2][2] = {{1, 0}, {0, 0}};
    double entropy = 0, dice = 0;
    for (int i = 0; i < 2; i++) {
        double both = 0, all = 0;
        for (int j = 0; j < 2; j++) {
            double p = 1 / (1 + std::exp(-z[i][j]));
            entropy -= (m[i][j] * std::log(p) + (1 - m[i][j]) * std::log(1 - p)) / 4;
            both += p * m[i][j];
            all += p + m[i][j];
        }
        dice += (1 - (2 * both + 1) / (all + 1)) / 2;
    }
    at::Tensor logits = at::tensor({0.5, -1., 2., 0.25}).view({2, 1, 2});
    at::Tensor masks = at::tensor({1., 0., 0., 0.}).view({2, 1, 2});
    ck_assert_double_eq_tol(mask_loss(logits.to(at::kDouble), masks.to(at::kDouble)).item<double>(),
                            entropy + dice, 1e-6);
}

/* Hits of 1 of 2 + 1, of nothing and nothing, and of none. */
TEST("numbers", metrics_are_those_of_a_count_by_hand) {
    at::Tensor logits = at::tensor({1.f, 1.f, -1.f, -1.f, -1.f, -1.f, 1.f, -1.f, -1.f});
    at::Tensor masks = at::tensor({1.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 1.f});
    at::Tensor sums = mask_metrics(logits.view({3, 1, 3}), masks.view({3, 1, 3}));
    ck_assert_double_eq_tol(sums[0].item<double>(), 2.0 / 3 + 1 + 0, 1e-6);
    ck_assert_double_eq_tol(sums[1].item<double>(), 1.0 / 2 + 1 + 0, 1e-6);
}

/* ---- gradients and what is frozen --------------------------------------------------------------- */

static at::Tensor there(const at::Tensor &tensor) {
    return tensor.to(tensor_device());
}

TEST_LOOP("numbers", gradients_reach_all_that_trains, 2) {
    seed();
    Scenes scenes;
    Prsmed net(options_of(_i ? PRSMED_VIT_TI : PRSMED_CONV));
    net->freeze_text(tokens_of(2));
    net->train();
    net->to(tensor_device());
    mask_loss(net(there(scenes.pictures), there(scenes.tokens)), there(scenes.masks)).backward();
    for (const auto &item : net->named_parameters()) {
        const at::Tensor &gradient = item.value().grad();
        bool is_text = item.key().compare(0, 5, "text.") == 0;
        ck_assert_msg(gradient.defined() != is_text, "%s", item.key().c_str());
        /* A shift that a norm takes off again has a gradient of roundings alone. */
        if (!is_text)
            ck_assert_msg(gradient.abs().max().item<double>() > 0, "%s", item.key().c_str());
    }
}

TEST("numbers", the_text_model_stays_in_evaluation_mode) {
    Prsmed net(options_of());
    net->train();
    ck_assert(net->is_training() && net->decoder->is_training());
    for (const auto &module : net->text->modules()) ck_assert(!module->is_training());
}

TEST("numbers", padding_is_not_seen) {
    seed();
    Scenes scenes;
    Prsmed net(options_of());
    net->eval();
    net->to(tensor_device());
    at::Tensor pictures = there(scenes.pictures), logits = net(pictures, there(scenes.tokens));
    at::Tensor longer = net(pictures, there(tokens_of(samples, 2 * length)));
    ck_assert_double_lt((logits - longer).abs().max().item<double>(), 1e-4);
    at::Tensor others = net(pictures, there(tokens_of(samples).roll({1}, {0})));
    ck_assert_double_gt((logits - others).abs().max().item<double>(), 1e-4);
}

TEST("numbers", the_text_model_learns_and_then_stays) {
    seed();
    at::Tensor prompts = tokens_of(2);
    ByteGpt gpt(ByteGptOptions{64, 1});
    double before = gpt->loss(prompts).item<double>();
    ck_assert_double_gt(before, 5.0); /* log 259 = 5.56 */
    train_bytes(*gpt, prompts, 40);
    ck_assert_double_lt(gpt->loss(prompts).item<double>(), 2.0);
}

/* ---- what the prompt is for ---------------------------------------------------------------------- */

namespace {

enum { GRID = 8, PROMPTS = 12 };

/* Two marks in different quarters of a grid of noise; the prompt names one of the quarters. */
struct Marks {
    at::Tensor features, target, prompt;

    explicit Marks(int64_t rows) {
        prompt = at::randint(PROMPTS, {rows}, at::kLong);
        at::Tensor other = at::randint(1, 4, {rows}, at::kLong),
                   marks = at::zeros({rows, GRID, GRID});
        target = at::zeros({rows, GRID, GRID});
        for (int64_t i = 0; i < rows; i++) {
            int64_t quarter = prompt[i].item<int64_t>() % 4;
            mark(target[i], quarter);
            mark(marks[i], (quarter + other[i].item<int64_t>()) % 4);
        }
        marks += target;
        features = at::randn({rows, 64, GRID, GRID}) + grid_codes(64, GRID);
        features.select(1, 0) += 3 * marks;
        features.select(1, 1) -= 3 * marks;
    }
    static void mark(const at::Tensor &grid, int64_t quarter) {
        grid.narrow(0, quarter / 2 * 4, 3).narrow(1, quarter % 2 * 4 + 1, 3).fill_(1);
    }
};

/* PROMPTS of three classes and four quarters. */
at::Tensor quarter_prompts() {
    at::Tensor rows = at::full({PROMPTS, 64}, token_padding, at::kLong);
    for (int64_t i = 0; i < PROMPTS; i++) {
        static const char *const things[] = {"bird", "mammal other", "tool"};
        std::string text = std::string("segment the ") + things[i / 4] + " in the " +
                           (i % 4 / 2 ? "bottom " : "top ") + (i % 2 ? "right" : "left");
        int64_t *row = rows.data_ptr<int64_t>() + i * 64;
        *row++ = token_begin;
        for (char c : text) *row++ = c;
        *row = token_end;
    }
    return rows;
}

} // namespace

/* Who outlines both marks has a Dice of 2/3. The text model is random: its words are told apart all the same. */
TEST("numbers", the_prompt_decides) {
    seed();
    prsmed_model_options o = options_of();
    o.text_width = 128;
    o.text_layers = 4;
    Prsmed net(o);
    at::Tensor prompts = quarter_prompts();
    net->freeze_text(prompts);
    const Words words = net->words_of(prompts);
    torch::optim::AdamW adam(net->decoder->parameters(), torch::optim::AdamWOptions(1e-3));
    at::Tensor logits;
    for (int step = 0; step <= 110; step++) {
        Marks marks(step < 110 ? 8 : 64);
        logits = net->decoder(marks.features, words.states.index_select(0, marks.prompt),
                              words.exist.index_select(0, marks.prompt))
                     .squeeze(1);
        at::Tensor loss = mask_loss(logits, marks.target);
        if (step == 110)
            ck_assert_double_gt(mask_metrics(logits, marks.target)[0].item<double>() / 64, 0.75);
        adam.zero_grad();
        loss.backward();
        adam.step();
    }
}

/* ---- behind the seam ---------------------------------------------------------------------------- */

TEST_LOOP("seam", chunks_sum_up_to_the_batch, 3) {
    static const std::vector<size_t> cuts[] = {{2, 2}, {1, 3}, {1, 1, 1, 1}};
    Subject whole(options_of()), cut(options_of());
    State before = whole.state();
    ck_assert_double_eq(largest_difference(before, cut.state()), 0);
    Scenes scenes;
    ck_ok(whole.step(scenes, {samples}));
    ck_ok(cut.step(scenes, cuts[_i]));
    double moved = largest_difference(before, whole.state());
    ck_assert_double_gt(moved, 1e-3);
    ck_assert_double_lt(largest_difference(whole.state(), cut.state()), 1e-3 * moved);
}

/* Without dropout, whose numbers are each device's own. */
TEST_LOOP("seam", as_on_the_cpu, 2) {
    const int encoder = _i ? PRSMED_VIT_TI : PRSMED_CONV;
    Subject cpu(options_of(encoder), MT_CHECKPOINTING_AUTO, MT_SGD, "cpu");
    State before = cpu.state();
    Scenes scenes;
    ck_ok(cpu.step(scenes, {3, 1}));
    Subject other(options_of(encoder));
    ck_ok(other.step(scenes, {3, 1}));
    double moved = largest_difference(before, cpu.state());
    ck_assert_double_gt(moved, 1e-3);
    ck_assert_double_le(largest_difference(cpu.state(), other.state()), 1e-5 * moved);
}

/*
 * With dropout: segments draw the same numbers again. The three gradients of the ViT's features are added in another order. A
 * card may have another kernel for attention where no graph is made.
 */
TEST_LOOP("seam", segments_change_no_number, 2) {
    const int encoder = _i ? PRSMED_VIT_TI : PRSMED_CONV;
    State states[2];
    for (int i = 0; i < 2; i++) {
        Subject subject(options_of(encoder, 0.1), i ? MT_CHECKPOINTING_ON : MT_CHECKPOINTING_AUTO);
        Scenes scenes;
        ck_ok(subject.step(scenes, {3, 1}));
        states[i] = subject.state();
    }
    ck_assert_double_le(largest_difference(states[0], states[1]), suite_on_card() ? 1e-6
                                                                  : _i            ? 1e-7
                                                                                  : 0.0);
}

/* Frozen: no gradient, no optimiser state, and the same numbers after steps. */
TEST("seam", the_text_model_is_no_part_of_the_update) {
    Subject subject(options_of(), MT_CHECKPOINTING_AUTO, MT_ADAMW);
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(subject.backend.describe(subject.backend.self, &info));
    size_t parts[PRSMED_PARTS] = {};
    ck_ok(mt_torch_visit_state(subject.torch, prsmed_model_count, parts));
    ck_assert_uint_eq(info.parameter_bytes, parts[0] + parts[1] + parts[2]);
    ck_assert_uint_lt(info.gradient_bytes, info.parameter_bytes - parts[PRSMED_TEXT] + 64 * 256);
    State before = subject.state();
    Scenes scenes;
    ck_ok(subject.step(scenes, {samples}));
    State after = subject.state();
    for (const auto &item : before)
        if (item.first.compare(0, 5, "text.") == 0)
            ck_assert_msg(item.second == after.at(item.first), "%s", item.first.c_str());
}

/* ---- every allocation fails ---------------------------------------------------------------------- */

TEST_LOOP("faults", a_fault_changes_nothing, 4) {
    const bool segments = _i / 2;
    Subject subject(options_of(PRSMED_CONV, 0.1),
                    segments ? MT_CHECKPOINTING_ON : MT_CHECKPOINTING_AUTO, MT_ADAMW);
    Scenes scenes(3);
    model_faults::every_allocation_fails(
        {subject.torch, subject.backend, scenes.batch.get(), {2, 1}}, 251, _i % 2,
        segments ? "prsmed, segments" : "prsmed");
}

int main() {
    tcase_set_timeout(suite_case_named("faults"), 1800);
    return suite_run_named("model_prsmed");
}
