/*
 * check_model_profoct.cpp - the few-shot network of examples/documents/models: its parameters against the published table,
 * its loss against one by hand, gradients, chunks, batch norm by episode, and every allocation that fails.
 */
#include "profoct.hpp"

#include <cmath>
#include <map>
#include <sstream>

#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>

#include "networks/batches.hpp"

#include "model_faults.hpp" /* last: check.h has macros with short names */

using namespace memtrain_models;

namespace {

constexpr int side = 32;

/* Small episodes: 2 classes, 2 pictures known and 1 to be told. */
profoct_model_options small_options(int vic) {
    profoct_model_options o = PROFOCT_MODEL_OPTIONS_INIT;
    o.ways = 2;
    o.shots = 2;
    o.queries = 1;
    o.vic = vic;
    return o;
}

std::shared_ptr<ProfoctImpl> make_net(const profoct_model_options &o) {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(3));
    return std::make_shared<ProfoctImpl>(o);
}

at::Tensor episodes(const ProfoctImpl &net, int64_t count) {
    at::manual_seed(11);
    return at::randn({count, net.pictures(), 3, side, side});
}

/* ---- what there is ------------------------------------------------------------------------------ */

const struct {
    int depth, feti, pool;
    int64_t head, backbone;
} sizes[] = {
    {18, 0, 1, 1086106, 11176512},
    {34, 1, 1, 1086106, 21280064},
    /* in make check-oom alone */
    {18, 0, 7, 53187226, 11176512},
    {34, 0, 1, 1086106, 21284672},
    {18, 1, 1, 1086106, 11171904},
    {18, 0, 3, 9769626, 11176512},
};

TEST_LOOP("network", counts, is_slow() ? LENGTH(sizes) : 2) {
    profoct_model_options o = PROFOCT_MODEL_OPTIONS_INIT;
    o.depth = sizes[_i].depth;
    o.feti = sizes[_i].feti;
    o.pool = sizes[_i].pool;
    auto net = make_net(o);
    int64_t head = 0, backbone = 0;
    for (const auto &item : net->named_parameters())
        (item.key().rfind("feature.", 0) == 0 ? backbone : head) += item.value().numel();
    ck_assert_int_eq(head, sizes[_i].head);
    ck_assert_int_eq(backbone, sizes[_i].backbone);
}

TEST("network", names) {
    const char *const expected = "proto_weight 5 5 1\n"
                                 "ATTN.input_linear.0.weight 512\n"
                                 "ATTN.input_linear.0.bias 512\n"
                                 "ATTN.input_linear.1.weight 512 512\n"
                                 "ATTN.output_linear.weight 512 512\n"
                                 "ATTN.output_linear.bias 512\n"
                                 "FFN.0.weight 512\n"
                                 "FFN.0.bias 512\n"
                                 "FFN.1.weight 512 512\n"
                                 "FFN.1.bias 512\n"
                                 "FFN.3.weight 512 512\n"
                                 "FFN.3.bias 512\n"
                                 "linear.0.weight 512\n"
                                 "linear.0.bias 512\n"
                                 "linear.1.weight 64 512\n"
                                 "linear.1.bias 64\n"
                                 "linear.2.L.weight_g 1 1\n"
                                 "linear.2.L.weight_v 1 64\n";
    auto net = make_net(PROFOCT_MODEL_OPTIONS_INIT);
    std::ostringstream out;
    int parts = 0;
    for (const auto &item : net->named_parameters()) {
        parts += item.key() == "feature.conv1.weight" ||
                 item.key() == "feature.layer4.1.bn2.bias" ||
                 item.key() == "feature.layer2.0.downsample.1.weight";
        if (item.key().rfind("feature.", 0) == 0) continue;
        out << item.key();
        for (int64_t n : item.value().sizes()) out << ' ' << n;
        out << '\n';
    }
    const std::string found = out.str();
    ck_assert_str_eq(found.c_str(), expected);
    ck_assert_int_eq(parts, 3);
}

TEST_LOOP("network", wrong_options_are_refused, 5) {
    static const struct {
        const char *word;
        int depth, ways, shots, queries, pool;
    } rows[] = {{"depth", 50, 5, 5, 8, 1},
                {"ways", 18, 1, 5, 8, 1},
                {"shots", 18, 5, 0, 8, 1},
                {"queries", 18, 5, 5, 0, 1},
                {"pool", 18, 5, 5, 8, 0}};
    profoct_model_options o = PROFOCT_MODEL_OPTIONS_INIT;
    mt_model *model = nullptr;
    o.depth = rows[_i].depth;
    o.ways = rows[_i].ways;
    o.shots = rows[_i].shots;
    o.queries = rows[_i].queries;
    o.pool = rows[_i].pool;
    ck_refused(profoct_model_new(&o, &model), MT_EINVAL, rows[_i].word);
    ck_assert_ptr_null(model);
}

/* ---- the loss, by hand ---------------------------------------------------------------------------- */

using Row = std::vector<double>;
using Values = std::map<std::string, Row>;

Row row_of(const at::Tensor &t) {
    at::Tensor flat = t.detach().to(at::kDouble).contiguous().flatten();
    return Row(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
}

Row normed(const Row &x, const Values &p, const std::string &name) {
    double mean = 0, var = 0;
    for (double v : x) mean += v / static_cast<double>(x.size());
    for (double v : x) var += (v - mean) * (v - mean) / static_cast<double>(x.size());
    Row y(x.size());
    for (size_t i = 0; i < x.size(); i++)
        y[i] = (x[i] - mean) / std::sqrt(var + 1e-5) * p.at(name + ".weight")[i] +
               p.at(name + ".bias")[i];
    return y;
}

Row linear(const Row &x, const Values &p, const std::string &name) {
    const Row &w = p.at(name + ".weight");
    const bool has_bias = p.count(name + ".bias");
    Row y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); o++) {
        y[o] = has_bias ? p.at(name + ".bias")[o] : 0;
        for (size_t i = 0; i < x.size(); i++) y[o] += w[o * x.size() + i] * x[i];
    }
    return y;
}

double dot(const double *a, const double *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* What a query is scored for one prototype, and what attention gives for the two. */
double score(const Row &prototype, const Row &query, const Values &p, Row &attention) {
    Row a = linear(normed(prototype, p, "ATTN.input_linear.0"), p, "ATTN.input_linear.1");
    Row b = linear(normed(query, p, "ATTN.input_linear.0"), p, "ATTN.input_linear.1");
    Row taken(b.size());
    for (size_t h = 0; h < 8; h++) {
        const double *u = &a[64 * h], *v = &b[64 * h];
        double cosine = dot(u, v, 64) / (std::sqrt(dot(u, u, 64) * dot(v, v, 64)) + 1e-8);
        for (size_t i = 0; i < 64; i++) taken[64 * h + i] = cosine * v[i];
    }
    attention = linear(taken, p, "ATTN.output_linear");
    Row x = attention;
    for (size_t i = 0; i < x.size(); i++) x[i] += prototype[i];
    Row y = linear(normed(x, p, "FFN.0"), p, "FFN.1");
    for (double &v : y) v = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
    y = linear(y, p, "FFN.3");
    for (size_t i = 0; i < x.size(); i++) x[i] += y[i];
    Row z = linear(normed(x, p, "linear.0"), p, "linear.1");
    const Row &v = p.at("linear.2.L.weight_v");
    double g = p.at("linear.2.L.weight_g")[0];
    return 2 * g * dot(z.data(), v.data(), 64) / std::sqrt(dot(v.data(), v.data(), 64)) /
           (std::sqrt(dot(z.data(), z.data(), 64)) + 1e-5);
}

/* Variance and covariance of rows, by the matrix of all covariances. */
void vic_by_hand(const std::vector<Row> &rows, double *variance, double *covariance) {
    const size_t m = rows.size(), d = rows[0].size();
    std::vector<Row> columns(d, Row(m));
    for (size_t j = 0; j < d; j++) {
        double mean = 0;
        for (size_t i = 0; i < m; i++) mean += rows[i][j] / static_cast<double>(m);
        for (size_t i = 0; i < m; i++) columns[j][i] = rows[i][j] - mean;
    }
    for (size_t j = 0; j < d; j++)
        for (size_t k = 0; k < d; k++) {
            double c = dot(columns[j].data(), columns[k].data(), m) / static_cast<double>(m - 1);
            if (j == k)
                *variance += std::max(0.0, 1 - std::sqrt(c + 1e-4)) / static_cast<double>(d);
            else
                *covariance += c * c / static_cast<double>(d);
        }
}

struct ByHand {
    double cross_entropy = 0, accuracy = 0, variance = 0, invariance = 0, covariance = 0;
};

/* z: features of an episode, [n][k + q][d]. */
ByHand loss_by_hand(const std::vector<std::vector<Row>> &z, const Values &p, size_t shots) {
    const size_t ways = z.size(), d = z[0][0].size(), queries = z[0].size() - shots;
    std::vector<Row> prototypes, known, attention;
    ByHand result;
    for (size_t c = 0; c < ways; c++) {
        Row weights(shots), prototype(d), mean(d);
        double sum = 0;
        for (size_t j = 0; j < shots; j++)
            sum += weights[j] = std::exp(p.at("proto_weight")[c * shots + j]);
        for (size_t j = 0; j < shots; j++)
            for (size_t i = 0; i < d; i++) {
                prototype[i] += weights[j] / sum * z[c][j][i];
                mean[i] += z[c][j][i] / static_cast<double>(shots);
            }
        for (size_t j = 0; j < shots; j++) {
            for (size_t i = 0; i < d; i++)
                result.invariance += (z[c][j][i] - mean[i]) * (z[c][j][i] - mean[i]) /
                                     static_cast<double>(ways * shots * d);
            known.push_back(z[c][j]);
        }
        prototypes.push_back(prototype);
    }
    for (size_t c = 0; c < ways; c++)
        for (size_t j = shots; j < z[c].size(); j++) {
            Row scores(ways), taken;
            double sum = 0;
            for (size_t k = 0; k < ways; k++) {
                scores[k] = score(prototypes[k], z[c][j], p, taken);
                attention.push_back(taken);
                sum += std::exp(scores[k]);
            }
            bool is_best = true;
            for (double s : scores) is_best = is_best && s <= scores[c];
            result.accuracy += is_best / static_cast<double>(ways * queries);
            result.cross_entropy +=
                (std::log(sum) - scores[c]) / static_cast<double>(ways * queries);
        }
    vic_by_hand(known, &result.variance, &result.covariance);
    vic_by_hand(attention, &result.variance, &result.covariance);
    return result;
}

Values values_of(const ProfoctImpl &net) {
    Values values;
    for (const auto &item : net.named_parameters())
        if (item.key().rfind("feature.", 0) != 0) values[item.key()] = row_of(item.value());
    return values;
}

void close_to(const char *name, double value, double expected) {
    ck_assert_msg(std::abs(value - expected) <= 2e-4 * std::max(1.0, std::abs(expected)),
                  "%s: %.8g by the network, %.8g by hand", name, value, expected);
}

/* Another weight for each shot, so that prototypes are no plain means. */
TEST("network", the_loss_is_the_one_by_hand) {
    auto net = make_net(small_options(1));
    at::NoGradGuard no_grad;
    for (auto &item : net->named_parameters())
        if (item.key() == "proto_weight") item.value().copy_(at::randn({2, 2, 1}));
    at::Tensor pictures = episodes(*net, 1);
    at::Tensor z = net->features(pictures)[0];
    std::vector<std::vector<Row>> rows(2);
    for (int64_t c = 0; c < 2; c++)
        for (int64_t j = 0; j < 3; j++) rows[static_cast<size_t>(c)].push_back(row_of(z[c][j]));
    const ByHand expected = loss_by_hand(rows, values_of(*net), 2);
    const EpisodeLoss e = net->forward(pictures);
    close_to("cross entropy", e.cross_entropy.item<double>(), expected.cross_entropy);
    close_to("accuracy", e.accuracy.item<double>(), expected.accuracy);
    close_to("variance", e.variance.item<double>(), expected.variance);
    close_to("invariance", e.invariance.item<double>(), expected.invariance);
    close_to("covariance", e.covariance.item<double>(), expected.covariance);
    close_to("loss", e.loss.item<double>(),
             expected.cross_entropy + 0.5 * expected.variance + 9 * expected.invariance +
                 0.5 * expected.covariance);
}

/* The weights after an episode, from the sizes of its terms. */
TEST("network", weights_follow_the_terms) {
    auto net = make_net(small_options(1));
    const EpisodeLoss e = net->forward(episodes(*net, 1));
    const double ce = e.cross_entropy.item<double>(), v = e.variance.item<double>(),
                 c = e.covariance.item<double>(), all = ce + v + c + 1e-8;
    const Row after = row_of(net->named_buffers()["vic_weights"]);
    close_to("alpha", after[0], 0.9 * 0.5 + 0.1 * (0.5 + 2 * v / all));
    close_to("beta", after[1], 0.9 * 9 + 0.1 * 9 * (1 - 0.5 * ce / all));
    close_to("gamma", after[2], 0.9 * 0.5 + 0.1 * (0.5 + 2 * c / all));
    net->eval();
    net->forward(episodes(*net, 1));
    ck_assert(row_of(net->named_buffers()["vic_weights"]) == after);
}

/* ---- gradients -------------------------------------------------------------------------------------- */

Values gradients(ProfoctImpl &net, const at::Tensor &pictures) {
    Values all;
    net.zero_grad();
    net.forward(pictures).loss.mean().backward();
    for (const auto &item : net.named_parameters())
        if (item.value().grad().defined()) all[item.key()] = row_of(item.value().grad());
    return all;
}

double norm_of(const Row &x) {
    return std::sqrt(dot(x.data(), x.data(), x.size()));
}

double distance(const Values &a, const Values &b) {
    double squares = 0, all = 0;
    for (const auto &[name, row] : a) {
        for (size_t i = 0; i < row.size(); i++) {
            double off = row[i] - b.at(name)[i];
            squares += off * off;
        }
        all += dot(row.data(), row.data(), row.size());
    }
    return std::sqrt(squares / all);
}

TEST_LOOP("network", every_parameter_learns, 2) {
    auto net = make_net(small_options(_i));
    const Values all = gradients(*net, episodes(*net, 2));
    ck_assert_uint_eq(all.size(), net->parameters().size());
    for (const auto &[name, row] : all)
        ck_assert_msg(norm_of(row) > 0, "%s gets no gradient", name.c_str());
}

/* Of attention without its graph no gradient comes; with it another one does. */
TEST("network", detached_attention_is_not_learnt_from) {
    profoct_model_options o = small_options(1);
    o.dynamic = 0;
    auto with = make_net(o);
    o.vic_on_attention = 0;
    auto without = make_net(o);
    o.vic_on_attention = 1;
    o.detach = 0;
    auto attached = make_net(o);
    at::Tensor pictures = episodes(*with, 1);
    const Values expected = gradients(*without, pictures);
    ck_assert(distance(gradients(*with, pictures), expected) == 0);
    ck_assert(distance(gradients(*attached, pictures), expected) > 1e-5);
}

/* Episodes one by one are the batch of them: gradients, buffers, and what the weights have become. */
TEST_LOOP("network", chunks_are_the_batch, 2) {
    auto whole = make_net(small_options(_i)), parts = make_net(small_options(_i));
    at::Tensor pictures = episodes(*whole, 3);
    const Values expected = gradients(*whole, pictures);
    for (int64_t i = 0; i < 3; i++)
        (parts->forward(pictures.narrow(0, i, 1)).loss.mean() / 3).backward();
    Values sums;
    for (const auto &item : parts->named_parameters())
        sums[item.key()] = row_of(item.value().grad());
    ck_assert_double_le(distance(sums, expected), 2e-5);
    for (const auto &item : whole->named_buffers()) {
        const Row a = row_of(item.value()), b = row_of(parts->named_buffers()[item.key()]);
        for (size_t i = 0; i < a.size(); i++)
            ck_assert_msg(std::abs(a[i] - b[i]) <= 1e-5 * std::max(1.0, std::abs(a[i])),
                          "%s: %.8g and %.8g", item.key().c_str(), a[i], b[i]);
    }
}

/* ---- parts ------------------------------------------------------------------------------------------ */

/* The d x d matrix and the m x m one have the same squares, and the same gradient. */
TEST("parts", two_forms_of_covariance_agree) {
    at::manual_seed(5);
    at::Tensor z = at::randn({3, 10, 40}, at::kDouble).requires_grad_();
    at::Tensor a = vic_covariance(vic_centred(z)), b = vic_covariance_by_matrix(vic_centred(z));
    ck_assert(at::allclose(a, b, 1e-12, 1e-14));
    a.sum().backward();
    at::Tensor gradient = z.grad().clone();
    z.mutable_grad().zero_();
    b.sum().backward();
    ck_assert(at::allclose(gradient, z.grad(), 1e-11, 1e-14));
}

/* One sample: to BatchNorm2d's roundings. */
TEST("parts", the_norm_of_one_sample_is_batch_norm) {
    SampleNorm norm(6);
    torch::nn::BatchNorm2d plain(6);
    at::manual_seed(5);
    at::Tensor x = at::randn({8, 6, 5, 5}).requires_grad_(),
               y = x.detach().clone().requires_grad_();
    at::Tensor out = norm(x), expected = plain(y);
    ck_assert(at::allclose(out, expected, 1e-6, 1e-6));
    out.square().sum().backward();
    expected.square().sum().backward();
    ck_assert(at::allclose(x.grad(), y.grad(), 1e-4, 1e-5));
    ck_assert(at::allclose(norm->running_mean, plain->running_mean, 1e-6, 1e-7));
    ck_assert(at::allclose(norm->running_var, plain->running_var, 1e-5, 1e-6));
    ck_assert_int_eq(norm->num_batches_tracked.item<int64_t>(), 1);
    ck_assert_int_eq(norm->num_batches_tracked.dim(), 0); /* as in files of other libraries */
    norm->eval();
    plain->eval();
    ck_assert(at::allclose(norm(x), plain(x), 1e-5, 1e-5));
}

/* Several samples by turns: each is normalised by itself, and remembered after the one before it. */
TEST("parts", the_norm_of_samples_is_that_of_each) {
    SampleNorm norm(6), alone(6);
    at::manual_seed(5);
    at::Tensor x = at::randn({3, 8, 6, 5, 5});
    norm->set_pictures(8);
    at::Tensor out = norm(x.transpose(0, 1).flatten(0, 1)).unflatten(0, {8, 3}).transpose(0, 1);
    for (int64_t i = 0; i < 3; i++) ck_assert(at::allclose(out[i], alone(x[i]), 1e-5, 1e-6));
    ck_assert(at::allclose(norm->running_mean, alone->running_mean, 1e-5, 1e-7));
    ck_assert(at::allclose(norm->running_var, alone->running_var, 1e-5, 1e-6));
    ck_assert_int_eq(norm->num_batches_tracked.item<int64_t>(), 3);
}

/* ---- as an mt_model --------------------------------------------------------------------------------- */

/* The network with its optimiser behind the seam. */
struct Subject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;

    explicit Subject(const mt_torch_options &options = MT_TORCH_OPTIONS_INIT, int width = 64) {
        profoct_model_options o = small_options(1);
        o.width = width;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(1));
        ck_ok(profoct_model_new(&o, &model));
        mt_torch_options own = options;
        own.device = suite_device();
        ck_ok(mt_torch_new(model, &own, &torch));
        ck_ok(mt_torch_backend(torch, &backend));
    }
    ~Subject() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Subject(const Subject &) = delete;
    Subject &operator=(const Subject &) = delete;
};

/* A batch of small episodes. */
networks::TensorBatch batch_of(int64_t count) {
    return networks::TensorBatch(
        {episodes(*std::make_unique<ProfoctImpl>(small_options(0)), count)});
}

/* An episode may be a chunk, and a batch may be cut; metrics are those of the network. */
TEST("model", the_model_says_what_it_is) {
    Subject subject;
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(subject.backend.describe(subject.backend.self, &info));
    ck_assert_uint_eq(info.min_micro_batch, 1);
    ck_assert(!info.normalises_over_batch && !info.needs_whole_batch);
    ck_assert_uint_eq(info.metric_count, 6);
    ck_assert_str_eq(info.metric_names[0], "accuracy");
    ck_assert_str_eq(info.metric_names[1], "accuracy_squared");
}

/* _i & 1: the fault lasts; _i & 2: segments are computed again. Each of the two once in `make check`. */
TEST_LOOP("faults", a_fault_changes_nothing, 4) {
    if (!is_slow() && _i != 0 && _i != 3) return;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    if (_i & 2) options.checkpointing = MT_CHECKPOINTING_ON;
    Subject subject(options, 16); /* as many requests, and less of a state to compare */
    networks::TensorBatch batch = batch_of(3);
    model_faults::every_allocation_fails({subject.torch, subject.backend, batch.get(), {2, 1}},
                                         _i & 1 ? 1499 : 397, _i & 1,
                                         _i & 2 ? "profoct, segments" : "profoct");
}

} // namespace

int main() {
    tcase_set_timeout(suite_case_named("faults"), 1800); /* all of them, one after another */
    return suite_run_named("model_profoct");
}
