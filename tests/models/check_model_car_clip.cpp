/*
 * check_model_car_clip.cpp - CLIP's towers, their loss and recall: counts and names of the published network,
 * values by hand, gradients of cached embeddings and of plain chunks, and steps under every failing request.
 */
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <memtrain/trainer.h>

#include "slow.h"
#include "car_clip_model.h"
#include "clip.hpp"
#include "networks/batches.hpp"

#include "check_shim.hpp"
#include "model_faults.hpp"

using namespace check_shim;
using memtrain_models::Clip;
using memtrain_models::ClipImpl;
using memtrain_models::ClipOptions;

namespace {

/* ---- what there is ---------------------------------------------------------------------------- */

struct Counts {
    ClipOptions options;
    int64_t image, all;
};

/* The small versions, and the published ViT-B/16 and ViT-B/32. */
const Counts counts[] = {
    {{{384, 12}, {256, 6}, 256, 128, 16, 259, 64}, 21713664, 26600961},
    {{{384, 6}, {256, 4}, 256, 96, 16, 259, 64}, 11056128, 14363905},
    {{{192, 12}, {192, 6}, 192, 128, 16, 259, 64}, 5536128, 8304577},
    {{{192, 6}, {192, 4}, 192, 96, 16, 259, 64}, 2861568, 4740289},
    {{{768, 12}, {512, 12}, 512, 224, 16, 49408, 77}, 86192640, 149620737},
    {{{768, 12}, {512, 12}, 512, 224, 32, 49408, 77}, 87849216, 151277313},
};

int64_t elements(const nn::Module &module) {
    int64_t sum = 0;
    for (const at::Tensor &parameter : module.parameters()) sum += parameter.numel();
    return sum;
}

TEST_LOOP("towers", parameters_are_counted, LENGTH(counts)) {
    const Counts &c = counts[_i];
    if (c.all > 150000000 && !is_slow()) return; /* a second to fill */
    Clip net(c.options);
    ck_assert_int_eq(elements(*net->visual), c.image);
    ck_assert_int_eq(elements(*net), c.all);
    ck_assert_uint_eq(net->buffers().size(), 0);
}

/* Small enough for thousands of steps. */
ClipOptions small() {
    return {{64, 1}, {64, 2}, 16, 32, 16, 40, 8};
}

std::set<std::string> names_of_block(const std::string &prefix) {
    std::set<std::string> names;
    for (const char *name :
         {"attn.in_proj_weight", "attn.in_proj_bias", "attn.out_proj.weight", "attn.out_proj.bias",
          "ln_1.weight", "ln_1.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
          "mlp.c_proj.bias", "ln_2.weight", "ln_2.bias"})
        names.insert(prefix + name);
    return names;
}

TEST("towers", names_are_those_of_the_published_network) {
    std::set<std::string> expected = {"positional_embedding",
                                      "text_projection",
                                      "logit_scale",
                                      "visual.class_embedding",
                                      "visual.positional_embedding",
                                      "visual.proj",
                                      "visual.conv1.weight",
                                      "visual.ln_pre.weight",
                                      "visual.ln_pre.bias",
                                      "visual.ln_post.weight",
                                      "visual.ln_post.bias",
                                      "token_embedding.weight",
                                      "ln_final.weight",
                                      "ln_final.bias"};
    expected.merge(names_of_block("visual.transformer.resblocks.0."));
    expected.merge(names_of_block("transformer.resblocks.0."));
    expected.merge(names_of_block("transformer.resblocks.1."));
    std::set<std::string> names;
    Clip net(small());
    for (const auto &item : net->named_parameters()) names.insert(item.key());
    for (const std::string &name : expected)
        ck_assert_msg(names.count(name) == 1, "%s is missing", name.c_str());
    ck_assert_uint_eq(names.size(), expected.size());
}

void has_deviation(const at::Tensor &t, double expected) {
    double deviation = t.std().item().toDouble();
    ck_assert_msg(std::abs(deviation / expected - 1) < 0.05, "%g instead of %g", deviation,
                  expected);
}

TEST("towers", initial_values) {
    at::manual_seed(3);
    Clip net(ClipOptions{{128, 1}, {192, 4}, 192, 96, 16, 259, 64});
    auto *text = (*net->transformer->resblocks)[0]->as<memtrain_models::ClipBlockImpl>();
    auto *image = (*net->visual->transformer->resblocks)[0]->as<memtrain_models::ClipBlockImpl>();
    has_deviation(net->token_embedding->weight, 0.02);
    has_deviation(net->positional_embedding, 0.01);
    has_deviation(net->text_projection, std::pow(192, -0.5));
    has_deviation(net->visual->proj, std::pow(128, -0.5));
    has_deviation(net->visual->positional_embedding, std::pow(128, -0.5));
    has_deviation(text->attn->in_proj_weight, std::pow(192, -0.5));
    has_deviation(text->attn->out_proj->weight, std::pow(192, -0.5) * std::pow(8, -0.5));
    has_deviation(text->mlp->c_fc->weight, std::pow(2 * 192, -0.5));
    has_deviation(text->mlp->c_proj->weight, std::pow(192, -0.5) * std::pow(8, -0.5));
    has_deviation(image->attn->in_proj_weight, std::sqrt(2.0 / (128 + 3 * 128)));
    has_deviation(image->mlp->c_fc->weight, 1 / std::sqrt(3.0 * 128));
    ck_assert_double_eq(text->attn->in_proj_bias.abs().max().item().toDouble(), 0);
    ck_assert_double_eq(image->attn->out_proj->bias.abs().max().item().toDouble(), 0);
    ck_assert_double_eq_tol(net->logit_scale.item().toDouble(), 2.6593, 1e-4);
}

/* ---- what it computes --------------------------------------------------------------------------- */

/* softmax(q k^T / 8) v of two heads, with and without a mask, in double. */
TEST_LOOP("towers", attention_by_hand, 2) {
    const bool causal = _i;
    const int64_t w = 128, tokens = 5;
    at::manual_seed(4);
    memtrain_models::ClipAttention attention(w, causal);
    attention->to(at::kDouble);
    at::Tensor x = at::randn({2, tokens, w}, at::kDouble),
               joined = at::zeros({2, tokens, w}, x.options());
    at::Tensor all = x.matmul(attention->in_proj_weight.t()) + attention->in_proj_bias;
    for (int64_t head = 0; head < 2; head++) {
        at::Tensor q = all.narrow(2, 64 * head, 64), k = all.narrow(2, w + 64 * head, 64),
                   v = all.narrow(2, 2 * w + 64 * head, 64);
        at::Tensor scores = q.matmul(k.transpose(1, 2)) / 8;
        for (int64_t t = 0; causal && t + 1 < tokens; t++)
            scores.select(1, t).narrow(1, t + 1, tokens - t - 1).fill_(-1e300);
        joined.narrow(2, 64 * head, 64).copy_(at::softmax(scores, -1).matmul(v));
    }
    at::Tensor expected =
        joined.matmul(attention->out_proj->weight.t()) + attention->out_proj->bias;
    ck_assert_double_lt((attention(x) - expected).abs().max().item().toDouble(), 1e-12);
}

at::Tensor some_tokens(const std::vector<int64_t> &tokens) {
    return at::tensor(tokens, at::kLong).view({1, -1});
}

/* A text is what stands before its end, in this order. */
TEST("towers", a_text_ends_where_it_ends) {
    Clip net(small());
    at::Tensor text = net->encode_text(some_tokens({1, 5, 7, 39, 2, 2, 2, 2}));
    ck_assert(at::equal(text, net->encode_text(some_tokens({1, 5, 7, 39, 8, 9, 3, 1}))));
    ck_assert(!at::equal(text, net->encode_text(some_tokens({1, 7, 5, 39, 2, 2, 2, 2}))));
    ck_assert(!at::equal(text, net->encode_text(some_tokens({1, 5, 7, 2, 39, 2, 2, 2}))));
}

TEST("towers", towers_of_no_heads_are_refused) {
    ClipOptions wrong[] = {small(), small(), small()};
    wrong[0].image.width = 96;
    wrong[1].text.width = 0;
    wrong[2].text.layers = 0;
    for (const ClipOptions &o : wrong) {
        bool refused = false;
        try {
            Clip net(o);
        } catch (const std::invalid_argument &) {
            refused = true;
        }
        ck_assert(refused);
    }
}

/* ---- the model behind the seam -------------------------------------------------------------------- */

car_clip_model_options model_options(int contrastive) {
    const ClipOptions o = small();
    car_clip_model_options options = CAR_CLIP_MODEL_OPTIONS_INIT;
    options.image_width = static_cast<int>(o.image.width);
    options.image_layers = static_cast<int>(o.image.layers);
    options.text_width = static_cast<int>(o.text.width);
    options.text_layers = static_cast<int>(o.text.layers);
    options.embedding = static_cast<int>(o.embedding);
    options.side = static_cast<int>(o.side);
    options.patch = static_cast<int>(o.patch);
    options.vocabulary = static_cast<int>(o.vocabulary);
    options.context = static_cast<int>(o.context);
    options.contrastive = contrastive;
    return options;
}

using State = std::map<std::string, at::Tensor>;

mt_status copy_out(void *user, const char *name, mt_tensor *handle) {
    (*static_cast<State *>(user))[name] = memtrain::tensor(handle).detach().clone();
    return MT_OK;
}

/* Fills the tensor of a name with a number. */
struct Fill {
    std::string name;
    double value;
};

mt_status fill(void *user, const char *name, mt_tensor *handle) {
    const Fill &f = *static_cast<const Fill *>(user);
    c10::NoGradGuard no_graph;
    if (f.name == name) memtrain::tensor(handle).fill_(f.value);
    return MT_OK;
}

/* The model with its optimiser, and a network of the same numbers to compute with by hand. */
struct Subject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_backend seam = MT_BACKEND_INIT;
    std::shared_ptr<ClipImpl> net;

    explicit Subject(car_clip_contrastive contrastive,
                     const mt_torch_options &options = options_of(MT_SGD)) {
        car_clip_model_options own = model_options(contrastive);
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(7));
        net = std::make_shared<ClipImpl>(small());
        ck_ok(mt_torch_seed(7));
        ck_ok(car_clip_model_new(&own, &model));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_torch_backend(torch, &seam));
    }
    ~Subject() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;

    State state() const {
        State all;
        ck_ok(mt_torch_visit_state(torch, copy_out, &all));
        return all;
    }
    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
    void set(const char *name, double value) const {
        Fill f = {name, value};
        ck_ok(mt_torch_visit_state(torch, fill, &f));
    }
};

/* Every third text comes twice. */
struct Pairs {
    explicit Pairs(int64_t samples)
        : tensors(networks::captioned(samples, small().side, small().vocabulary, small().context)),
          pictures(tensors[0]), tokens(tensors[1]), batch(tensors) {}
    memtrain::Tensors tensors;
    at::Tensor pictures, tokens;
    networks::TensorBatch batch;
};

/* Cosines of all pictures with all texts, as numbers. */
std::vector<std::vector<double>> scores_of(ClipImpl &net, const Pairs &pairs, int64_t first,
                                           int64_t count) {
    c10::NoGradGuard no_graph;
    at::Tensor i = net.encode_image(pairs.pictures.narrow(0, first, count)).to(at::kDouble);
    at::Tensor t = net.encode_text(pairs.tokens.narrow(0, first, count)).to(at::kDouble);
    std::vector<std::vector<double>> scores(static_cast<size_t>(count));
    for (int64_t a = 0; a < count; a++)
        for (int64_t b = 0; b < count; b++) {
            double lengths = i[a].norm().item().toDouble() * t[b].norm().item().toDouble();
            scores[static_cast<size_t>(a)].push_back((i[a] * t[b]).sum().item().toDouble() /
                                                     lengths);
        }
    return scores;
}

/* -log of the softmax at the right place, of rows or of columns, as a mean of both. */
double loss_by_hand(const std::vector<std::vector<double>> &scores, double scale) {
    double sum = 0;
    for (size_t a = 0; a < scores.size(); a++) {
        double row = 0, column = 0;
        for (size_t b = 0; b < scores.size(); b++) {
            row += std::exp(scale * scores[a][b]);
            column += std::exp(scale * scores[b][a]);
        }
        sum += (std::log(row) + std::log(column)) / 2 - scale * scores[a][a];
    }
    return sum / static_cast<double>(scores.size());
}

/* How many of the queries have a right item among the first k; transposed: texts ask for pictures. */
double hits_by_hand(const std::vector<std::vector<double>> &scores, const Pairs &pairs, size_t k,
                    bool transposed) {
    double hits = 0;
    for (size_t q = 0; q < scores.size(); q++) {
        double best = -2;
        size_t before = 0;
        auto at = [&](size_t item) { return transposed ? scores[item][q] : scores[q][item]; };
        auto right = [&](size_t item) {
            return at::equal(pairs.tokens[static_cast<int64_t>(q)],
                             pairs.tokens[static_cast<int64_t>(item)]);
        };
        for (size_t item = 0; item < scores.size(); item++)
            if (right(item)) best = std::max(best, at(item));
        for (size_t item = 0; item < scores.size(); item++)
            before += !right(item) && at(item) >= best;
        hits += before < k;
    }
    return hits;
}

mt_chunk_result evaluate(const Subject &s, const Pairs &pairs) {
    mt_chunk_result result = chunk_result();
    ck_ok(mt_evaluate(s.torch, pairs.batch.get(), 0, pairs.batch.get()->count, &result));
    return result;
}

/* Both kinds of model, of a whole batch: also of more pairs than an evaluation embeds at once. */
TEST_LOOP("model", loss_and_recall_by_hand, 2) {
    Subject s(_i ? CAR_CLIP_PLAIN : CAR_CLIP_CACHED);
    Pairs pairs(37);
    auto scores = scores_of(*s.net, pairs, 0, 37);
    mt_chunk_result result = evaluate(s, pairs);
    double loss = loss_by_hand(scores, 1 / 0.07);
    ck_assert_double_eq(result.units, 37);
    ck_assert_double_eq_tol(result.loss_sum / 37, loss, 1e-4 * loss);
    double text1 = hits_by_hand(scores, pairs, 1, false),
           text5 = hits_by_hand(scores, pairs, 5, false),
           picture1 = hits_by_hand(scores, pairs, 1, true),
           picture5 = hits_by_hand(scores, pairs, 5, true);
    const double expected[] = {
        (text1 + picture1) / 2, (text5 + picture5) / 2, text1, text5, picture1, picture5};
    for (int i = 0; i < CAR_CLIP_METRICS; i++)
        ck_assert_double_eq_tol(result.metric_sums[i], expected[i], 1e-6);
    ck_assert_double_gt(text5 + picture5, 0);
    ck_assert_double_lt(text1 + picture1, 37);
}

/* Where all scores are equal, or none is a number, nothing is found. */
TEST("model", nothing_is_found_by_ties) {
    Subject s(CAR_CLIP_CACHED);
    Pairs pairs(16);
    pairs.pictures.copy_(pairs.pictures.narrow(0, 0, 1).expand_as(pairs.pictures).clone());
    mt_chunk_result result = evaluate(s, pairs);
    ck_assert_double_eq(result.metric_sums[4], 0); /* all pictures are alike */
    ck_assert_double_le(result.metric_sums[2], 2); /* each finds the same text */
    s.set("text_projection", 0);
    result = evaluate(s, pairs);
    for (int i = 0; i < CAR_CLIP_METRICS; i++) ck_assert_double_eq(result.metric_sums[i], 0);
}

TEST_LOOP("model", metrics_have_names, 2) {
    static const char *const names[] = {"recall@1", "recall@5",  "text@1",
                                        "text@5",   "picture@1", "picture@5"};
    Subject s(_i ? CAR_CLIP_PLAIN : CAR_CLIP_CACHED);
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(s.seam.describe(s.seam.self, &info));
    ck_assert_uint_eq(info.metric_count, CAR_CLIP_METRICS);
    for (int i = 0; i < CAR_CLIP_METRICS; i++) ck_assert_str_eq(info.metric_names[i], names[i]);
    ck_assert_int_eq(s.seam.prepare != nullptr, _i == 0);
}

TEST("model", options_are_checked) {
    const struct {
        int car_clip_model_options::*field;
        int value;
        const char *name;
    } wrong[] = {{&car_clip_model_options::image_width, 100, "image_width is 100"},
                 {&car_clip_model_options::image_layers, 0, "image_layers is 0"},
                 {&car_clip_model_options::text_width, 0, "text_width is 0"},
                 {&car_clip_model_options::text_layers, -1, "text_layers is -1"},
                 {&car_clip_model_options::embedding, 0, "embedding is 0"},
                 {&car_clip_model_options::side, 15, "side is 15"},
                 {&car_clip_model_options::patch, 0, "patch is 0"},
                 {&car_clip_model_options::vocabulary, 0, "vocabulary is 0"},
                 {&car_clip_model_options::context, 0, "context is 0"}};
    mt_model *model = nullptr;
    for (const auto &w : wrong) {
        car_clip_model_options options = model_options(CAR_CLIP_CACHED);
        options.*w.field = w.value;
        ck_refused(car_clip_model_new(&options, &model), MT_EINVAL, w.name);
    }
    car_clip_model_options options = model_options(2);
    ck_refused(car_clip_model_new(&options, &model), MT_EINVAL, "contrastive is 2");
    options.size = 0;
    ck_status(car_clip_model_new(&options, &model), MT_EINVAL);
    ck_status(car_clip_model_new(nullptr, &model), MT_EINVAL);
}

/* ---- steps ------------------------------------------------------------------------------------------ */

using Chunks = std::vector<size_t>;

double step(const Subject &s, const Pairs &pairs, const Chunks &chunks) {
    mt_chunk_result result = chunk_result();
    mt_apply_result applied = apply_result();
    double loss = 0;
    size_t first = 0;
    ck_ok(mt_begin(s.torch, pairs.batch.get()));
    if (s.seam.prepare) ck_ok(mt_prepare(s.torch, chunks.data(), chunks.size(), &result));
    for (size_t count : chunks) {
        result = chunk_result();
        double weight = static_cast<double>(count) / static_cast<double>(pairs.batch.get()->count);
        ck_ok(mt_accumulate(s.torch, first, count, weight, &result));
        loss += result.loss_sum;
        first += count;
    }
    ck_ok(mt_apply(s.torch, &applied));
    return loss / static_cast<double>(pairs.batch.get()->count);
}

/* Largest difference of two states, in units of the largest change that a step made. */
double difference(const State &before, const State &a, const State &b) {
    double most = 0, change = 0;
    for (const auto &item : before) {
        most = std::max(most, (a.at(item.first) - b.at(item.first)).abs().max().item().toDouble());
        change = std::max(change, (a.at(item.first) - item.second).abs().max().item().toDouble());
    }
    return most / change;
}

mt_torch_options plain_sgd() {
    mt_torch_options options = options_of(MT_SGD);
    options.momentum = 0;
    options.weight_decay = 0;
    options.lr = 0.1;
    return options;
}

TEST_LOOP("steps", every_parameter_learns, 2) {
    Subject s(_i ? CAR_CLIP_PLAIN : CAR_CLIP_CACHED, plain_sgd());
    Pairs pairs(16);
    State before = s.state();
    step(s, pairs, {16});
    for (const auto &item : s.state()) {
        if (item.first.rfind("optimizer", 0) == 0) continue;
        ck_assert_msg(!at::equal(item.second, before.at(item.first)), "%s stays as it was",
                      item.first.c_str());
    }
}

/* However it is cut: the loss of the batch, and its gradient within rounding. */
TEST_LOOP("steps", cached_chunks_are_the_batch, 3) {
    static const Chunks cuts[] = {{8, 8}, {5, 4, 7}, Chunks(16, 1)};
    Subject whole(CAR_CLIP_CACHED, plain_sgd()), cut(CAR_CLIP_CACHED, plain_sgd());
    Pairs pairs(16);
    State before = whole.state();
    double loss = step(whole, pairs, {16});
    ck_assert_double_eq_tol(loss, loss_by_hand(scores_of(*cut.net, pairs, 0, 16), 1 / 0.07), 1e-4);
    ck_assert_double_eq_tol(step(cut, pairs, cuts[_i]), loss, 1e-4);
    double off = difference(before, whole.state(), cut.state());
    ck_assert_msg(off < 1e-4, "off by %g", off);
}

/* The mean of what the chunks are by themselves, which is another loss and another gradient. */
TEST("steps", plain_chunks_are_not) {
    Subject whole(CAR_CLIP_PLAIN, plain_sgd()), cut(CAR_CLIP_PLAIN, plain_sgd());
    Pairs pairs(16);
    State before = whole.state();
    double halves = (loss_by_hand(scores_of(*cut.net, pairs, 0, 8), 1 / 0.07) +
                     loss_by_hand(scores_of(*cut.net, pairs, 8, 8), 1 / 0.07)) /
                    2;
    double loss = step(whole, pairs, {16}), sum = step(cut, pairs, {8, 8});
    ck_assert_double_eq_tol(sum, halves, 1e-4);
    ck_assert_double_gt(loss - sum, 0.3); /* fewer to be told from */
    ck_assert_double_gt(difference(before, whole.state(), cut.state()), 0.05);
}

TEST_LOOP("steps", segments_keep_the_bits, 2) {
    mt_torch_options options = plain_sgd();
    Subject s(_i ? CAR_CLIP_PLAIN : CAR_CLIP_CACHED, options);
    options.checkpointing = MT_CHECKPOINTING_ON;
    Subject t(_i ? CAR_CLIP_PLAIN : CAR_CLIP_CACHED, options);
    Pairs pairs(16);
    State before = s.state();
    step(s, pairs, {8, 8});
    step(t, pairs, {8, 8});
    /* A card may have another kernel for attention where no graph is made. */
    if (suite_on_card())
        ck_assert_double_lt(difference(before, s.state(), t.state()), 1e-4);
    else
        ck_assert(s.hash() == t.hash());
}

TEST("steps", the_scale_is_clamped) {
    Subject s(CAR_CLIP_CACHED);
    State before = s.state();
    std::string hash = s.hash();
    ck_ok(car_clip_model_clamp(s.torch)); /* 1 / 0.07 is below 100 */
    ck_assert(s.hash() == hash);
    s.set("logit_scale", 5);
    ck_ok(car_clip_model_clamp(s.torch));
    State after = s.state();
    ck_assert_double_eq_tol(after["logit_scale"].item().toDouble(), 4.6052, 1e-4);
    after["logit_scale"] = before["logit_scale"];
    for (const auto &item : before) ck_assert(at::equal(item.second, after.at(item.first)));
    ck_status(car_clip_model_clamp(nullptr), MT_EINVAL);
}

/* ---- faults ------------------------------------------------------------------------------------------ */

/* Each 61st request, or 191st where they fail from then on; all of them in `make check-oom`. */
TEST_LOOP("faults", a_fault_changes_nothing, 4) {
    const bool plain = _i & 1, persistent = _i & 2;
    Subject s(plain ? CAR_CLIP_PLAIN : CAR_CLIP_CACHED, options_of(MT_ADAMW, 0.5));
    Pairs pairs(12);
    model_faults::every_allocation_fails({s.torch, s.seam, pairs.batch.get(), {5, 4, 3}},
                                         persistent ? 191 : 61, persistent,
                                         plain ? "car_clip, plain" : "car_clip, cached");
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("faults"), 1800); /* all of them, one after another */
    return suite_run_named("model_car_clip");
}
