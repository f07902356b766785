/*
 * check_shim_check.cpp - mt_torch_check: each kind of model that cannot be trained in chunks is found by name, and nothing
 * has changed afterwards; what its report says.
 */
#include <cmath>

#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <memtrain/check.h>
#include <memtrain/trainer.hpp>

#include "networks/batches.hpp"
#include "networks/networks.hpp"
#include "networks/towers.hpp"

#include "check_shim.hpp"

using namespace check_shim;

namespace {

using memtrain::Output;
using memtrain::Tensors;

/* Of vectors of 4 numbers one number: a linear layer, and what the models of the tests add to it. */
struct Line : nn::Module {
    at::Tensor weight = register_parameter("weight", 0.5 * at::randn({4, 4}));
    at::Tensor unused, copy, carried;
    int calls = 0;

    at::Tensor forward(const at::Tensor &x) { return at::tanh(at::linear(x, weight)); }
};

/* [samples, 4] numbers, and as many that are wanted. */
Tensors numbers(int64_t samples) {
    return {at::randn({samples, 4}), at::randn({samples, 4})};
}

/* A model under check. Loss: Output(Line &, const Tensors &). */
template <class Loss> struct Checked {
    std::shared_ptr<Line> net;
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_check_report report = MT_CHECK_REPORT_INIT;
    std::string text;

    explicit Checked(Loss loss, std::vector<std::string> metrics = {},
                     const std::function<void(Line &)> &change = {}) {
        networks::prepare();
        ck_ok(memtrain::make_model(&model, [&] {
            net = std::make_shared<Line>();
            if (change) change(*net);
            return memtrain::model(net, metrics, loss);
        }));
        mt_torch_options options = options_of(MT_ADAMW);
        ck_ok(mt_torch_new(model, &options, &torch));
    }
    ~Checked() {
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Checked(const Checked &) = delete;
    Checked &operator=(const Checked &) = delete;

    std::string hash() const {
        char digits[65];
        ck_ok(mt_torch_state_sha256(torch, digits));
        return digits;
    }
    void check(const Tensors &tensors) {
        networks::TensorBatch batch(tensors);
        char lines[8192];
        std::string before = hash();
        report = MT_CHECK_REPORT_INIT;
        ck_ok(mt_torch_check(torch, batch.get(), &report));
        ck_assert(hash() == before);
        mt_check_explain(&report, lines, sizeof lines);
        text = lines;
    }
    /* This and nothing else is found, whose line has these words. */
    void is(mt_check_kind kind, const char *name, const char *words) const {
        ck_assert_msg(report.fault_count == 1, "%s", text.c_str());
        ck_assert_msg(report.findings[0].kind == kind, "%s", text.c_str());
        ck_assert_str_eq(report.findings[0].name, name);
        ck_contains(report.findings[0].text, words);
    }
};

Output plain(Line &net, const Tensors &batch) {
    return {at::mse_loss(net.forward(batch[0]), batch[1]), {}};
}

} // namespace

TEST("found", clean) {
    Checked subject(plain);
    subject.check(numbers(5));
    ck_assert_msg(subject.report.count == 0, "%s", subject.text.c_str());
    ck_assert_str_eq(subject.text.c_str(), "checked with 3 samples: 0 faults found\n");
    ck_assert_uint_eq(subject.report.samples, 3);
    subject.check(numbers(2));
    ck_assert_msg(subject.report.count == 0, "%s", subject.text.c_str());
    ck_assert_uint_eq(subject.report.samples, 2);
}

/* One sample is run, and that the rest was not is told. */
TEST("found", one_sample) {
    Checked subject(plain);
    subject.check(numbers(1));
    ck_assert_uint_eq(subject.report.fault_count, 0);
    ck_assert_uint_eq(subject.report.count, 1);
    ck_assert_int_eq(subject.report.findings[0].kind, MT_CHECK_SKIPPED);
    ck_contains(subject.report.findings[0].text, "fewer than 2 samples");
}

/* ---- weighting ---- */

/* Rows of so many labels that count; the others are -100. */
static Tensors sentences(int64_t samples) {
    Tensors batch = {at::randint(0, 4, {samples, 6}, at::kLong),
                     at::randint(0, 4, {samples, 6}, at::kLong)};
    for (int64_t i = 0; i < samples; i++)
        batch[1][i].narrow(0, 1 + i * 2 % 5, 5 - i * 2 % 5).fill_(-100);
    return batch;
}

static Output token_mean(Line &net, const Tensors &batch) {
    at::Tensor logits = net.forward(at::embedding(net.weight, batch[0])).transpose(1, 2);
    return {at::cross_entropy_loss(logits, batch[1]), {}};
}

TEST("found", token_mean_without_units) {
    for (int64_t samples : {2, 5}) {
        Checked subject(token_mean);
        subject.check(sentences(samples));
        subject.is(MT_CHECK_WEIGHTING, "", "tell these as units");
        ck_assert_double_gt(subject.report.findings[0].difference, 1e-3);
        if (samples == 5)
            ck_contains(subject.text.c_str(), "some samples count 0.333 times as much as others");
        else
            ck_contains(subject.text.c_str(), "unless samples depend on each other");
    }
}

/* With them it is what is wanted; check_shim_units has those that come with the loss. */
TEST("found", token_mean_with_units) {
    networks::prepare();
    mt_check_report report = MT_CHECK_REPORT_INIT;
    auto description = memtrain::model(std::make_shared<Line>(), {}, token_mean);
    description.units = memtrain::count_not(-100);
    memtrain::Trainer trainer(description);
    report = trainer.check(sentences(5));
    ck_assert_uint_eq(report.count, 0);
}

/* Sorted by length, so that the first samples have equally many labels. */
TEST("found", sorted_by_length) {
    Checked subject(token_mean);
    Tensors batch = sentences(12);
    batch[1] = at::randint(0, 4, {12, 6}, at::kLong);
    for (int64_t i = 8; i < 12; i++) batch[1][i].narrow(0, 13 - i, i - 7).fill_(-100);
    subject.check(batch);
    subject.is(MT_CHECK_WEIGHTING, "", "tell these as units");
}

/* One sample in the middle of a batch of equal lengths. */
TEST("found", one_is_shorter) {
    Checked subject(token_mean);
    Tensors batch = sentences(9);
    batch[1] = at::randint(0, 4, {9, 6}, at::kLong);
    batch[1][3].narrow(0, 2, 4).fill_(-100);
    subject.check(batch);
    subject.is(MT_CHECK_WEIGHTING, "", "tell these as units");
}

/* Of equal samples no one can tell; that is said. */
TEST("found", equal_samples) {
    Checked subject([](Line &net, const Tensors &batch) {
        at::Tensor y = net.forward(batch[0]);
        return Output{at::mse_loss(y - 0.5 * y.mean(0), batch[1]), {}};
    });
    Tensors batch = numbers(8);
    subject.check(
        {batch[0][0].expand({8, 4}).contiguous(), batch[1][0].expand({8, 4}).contiguous()});
    ck_assert_msg(subject.report.fault_count == 0, "%s", subject.text.c_str());
    ck_assert_uint_eq(subject.report.count, 1);
    ck_contains(subject.text.c_str(), "note: the 3 samples that were run are equal");
}

/* A sample without a label has no mean, and with units it is left out. */
TEST("found", masked_sample) {
    Tensors batch = sentences(6);
    batch[1] = at::randint(0, 4, {6, 6}, at::kLong);
    batch[1][2].fill_(-100);
    Checked subject(token_mean);
    subject.check(batch);
    subject.is(MT_CHECK_WEIGHTING, "", "a mean over nothing");
    ck_contains(subject.text.c_str(), "tell as units how many count");
    auto description = memtrain::model(std::make_shared<Line>(), {}, token_mean);
    description.units = memtrain::count_not(-100);
    memtrain::Trainer trainer(description);
    ck_assert_uint_eq(trainer.check(batch).count, 0);
}

/* Units that are told and do not add up; units that do, and are not what the loss is a mean over. */
TEST("found", wrong_units) {
    networks::prepare();
    for (bool add_up : {false, true}) {
        auto description = memtrain::model(std::make_shared<Line>(), {}, token_mean);
        description.units = [add_up](const Tensors &batch) {
            return add_up ? static_cast<double>(batch[1].numel()) : 1.0;
        };
        memtrain::Trainer trainer(description);
        mt_check_report report = trainer.check(sentences(5));
        ck_assert_uint_eq(report.fault_count, 1);
        ck_assert_int_eq(report.findings[0].kind, MT_CHECK_WEIGHTING);
        ck_contains(report.findings[0].text,
                    add_up ? "0.333 times as much as others, and the units that are told make it 1 "
                             "times; tell what the loss is a mean over"
                           : "do not add up: 3 samples have 1 in one chunk, and 1 + 1 in two");
    }
}

TEST("found", sum_loss) {
    for (int64_t samples : {2, 5}) {
        Checked subject([](Line &net, const Tensors &batch) {
            return Output{at::mse_loss(net.forward(batch[0]), batch[1]) * batch[0].size(0), {}};
        });
        subject.check(numbers(samples));
        subject.is(MT_CHECK_WEIGHTING, "", "it is a sum over the samples");
        ck_assert_double_gt(subject.report.findings[0].difference, 0.3);
    }
}

/* The value is that of a mean, the gradient is not. */
TEST("found", scaled_gradient) {
    Checked subject([](Line &net, const Tensors &batch) {
        at::Tensor loss = plain(net, batch).loss;
        at::Tensor scaled = loss * batch[0].size(0);
        return Output{scaled - scaled.detach() + loss.detach(), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_WEIGHTING, "weight", "the loss does not");
}

TEST("found", metric_mean) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            at::Tensor y = net.forward(batch[0]);
            at::Tensor sum = memtrain::squared_error(y, batch[1]);
            return Output{at::mse_loss(y, batch[1]), at::cat({sum, sum / batch[0].size(0)})};
        },
        {"sum", "mean"});
    subject.check(numbers(5));
    subject.is(MT_CHECK_METRIC_MEAN, "mean", "looks like a mean");
}

TEST("found", metric_missing) {
    Checked subject(plain, {"accuracy"});
    subject.check(numbers(5));
    subject.is(MT_CHECK_METRIC_MISSING, "accuracy", "gives none");
}

/* ---- hidden state ---- */

TEST("found", counter) {
    const double more = suite_on_card() ? 0.05 : 0.001; /* a card's sums may come in any order */
    Checked subject([more](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss * (1 + more * net.calls++), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_HIDDEN_STATE, "", "keeps something from call to call");
}

/* A recurrence whose state stays in the module from batch to batch, with its graph or without. */
static Output recurrent(Line &net, const Tensors &batch, bool with_graph) {
    at::Tensor h = net.carried.defined() && net.carried.size(0) == batch[0].size(0)
                       ? net.carried
                       : at::zeros_like(batch[0]);
    h = at::tanh(at::linear(h + batch[0], net.weight));
    net.carried = with_graph ? h : h.detach();
    return {at::mse_loss(h, batch[1]), {}};
}

TEST("found", carried_state) {
    Checked detached([](Line &net, const Tensors &b) { return recurrent(net, b, false); });
    detached.check(numbers(5));
    detached.is(MT_CHECK_HIDDEN_STATE, "", "what changes once a chunk still depends on the cut");
    Checked attached([](Line &net, const Tensors &b) { return recurrent(net, b, true); });
    attached.check(numbers(5));
    attached.is(MT_CHECK_HIDDEN_STATE, "", "fail the second time");
}

/* A buffer that the forward pass counts in is rolled back, so it is no hidden state; the cut is seen in it. */
TEST("found", counting_buffer) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            net.buffers()[0].add_(1);
            return Output{plain(net, batch).loss * net.buffers()[0].sum(), {}};
        },
        {}, [](Line &net) { net.register_buffer("seen", at::zeros({1})); });
    subject.check(numbers(5));
    subject.is(MT_CHECK_BUFFER, "seen", "depend on how a batch is cut");
}

/* A moving average of the weights, and a whole number: both are told in one line. Beside dropout too. */
TEST("found", averages_of_chunks) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            c10::NoGradGuard no_grad;
            auto buffers = net.buffers();
            if (net.is_training()) {
                buffers[0].mul_(0.9).add_(net.weight, 0.1);
                buffers[1].add_(1);
            }
            c10::AutoGradMode with_graph(true);
            at::Tensor x = at::dropout(batch[0], 0.5, net.is_training());
            return plain(net, {x, batch[1]});
        },
        {},
        [](Line &net) {
            net.register_buffer("average", at::zeros({4, 4}));
            net.register_buffer("count", at::full({}, 1000000, at::kLong));
        });
    subject.check(numbers(7));
    subject.is(MT_CHECK_BUFFER, "average", "2 buffers ('average', 'count')");
}

/* What adds up over samples does not depend on the cut; of random numbers no one knows. */
TEST("found", sums_of_samples) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            c10::NoGradGuard no_grad;
            auto buffers = net.buffers();
            at::Tensor noise = at::rand_like(batch[0]);
            if (net.is_training()) {
                buffers[0].add_(batch[0].sum(0));
                buffers[1].add_(batch[0].size(0));
                buffers[2].copy_(noise[0]);
            }
            c10::AutoGradMode with_graph(true);
            return plain(net, batch);
        },
        {},
        [](Line &net) {
            net.register_buffer("sum", at::full({4}, 1e4));
            net.register_buffer("samples", at::zeros({}, at::kLong));
            net.register_buffer("noise", at::zeros({4}));
            net.register_buffer("mask", at::full({4, 4}, -INFINITY));
        });
    subject.check(numbers(7));
    ck_assert_msg(subject.report.fault_count == 0, "%s", subject.text.c_str());
}

/* By a pointer, which no version counter sees: found, and put back. */
TEST("found", written_by_pointer) {
    if (suite_on_card()) return suite_skip("written_by_pointer", "the host has no pointers there");
    Checked subject(
        [](Line &net, const Tensors &batch) {
            auto *elements = static_cast<float *>(net.copy.mutable_data_ptr());
            if (net.is_training())
                for (int i = 0; i < 16; i++) elements[i] *= 0.9F;
            return Output{plain(net, batch).loss + net.copy.square().mean(), {}};
        },
        {},
        [](Line &net) {
            net.copy = net.register_parameter("copy", at::ones({4, 4}), false);
        });
    subject.check(numbers(5));
    subject.is(MT_CHECK_WRITTEN, "copy", "by a pointer");
}

/* Even by a tensor that has a version counter of its own. */
TEST("found", copy_written) {
    for (bool by_data : {false, true}) {
        Checked subject(
            [by_data](Line &net, const Tensors &batch) {
                c10::NoGradGuard no_grad;
                at::Tensor copy = by_data ? net.copy.variable_data() : net.copy;
                copy.mul_(0.9).add_(net.weight, 0.1);
                c10::AutoGradMode with_graph(true);
                return Output{plain(net, batch).loss + net.copy.square().mean(), {}};
            },
            {},
            [](Line &net) {
                net.copy = net.register_parameter("copy", at::ones({4, 4}), false);
            });
        subject.check(numbers(5));
        subject.is(MT_CHECK_WRITTEN, "copy", "once a chunk");
    }
}

/* One that trains is taken back like one that does not. */
TEST("found", weight_clipped) {
    Checked subject([](Line &net, const Tensors &batch) {
        c10::NoGradGuard no_grad;
        net.weight.mul_(0.9);
        c10::AutoGradMode with_graph(true);
        return plain(net, batch);
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_WRITTEN, "weight", "once a chunk");
}

/* A batch that is written to: a step refuses it, and the check has copies of its own to tell it by. */
TEST("found", batch_written) {
    Checked subject([](Line &net, const Tensors &batch) {
        batch[0].mul_(0.5);
        return plain(net, batch);
    });
    Tensors batch = numbers(5);
    at::Tensor before = batch[0].clone();
    subject.check(batch);
    subject.is(MT_CHECK_WRITTEN, "batch[0]", "writes to tensor 0 of the batch");
    ck_assert(at::equal(batch[0], before));
}

/* ---- coupling ---- */

/* A small one is no mean with other weights. */
TEST("found", small_coupling) {
    for (double part : {0.02, 0.1, 0.5}) {
        Checked subject([part](Line &net, const Tensors &batch) {
            at::Tensor y = net.forward(batch[0]);
            return Output{at::mse_loss(y - part * y.mean(0), batch[1]), {}};
        });
        subject.check(numbers(9));
        subject.is(MT_CHECK_COUPLING, "", "depends on the others of its chunk");
    }
}

/* Half precision within the model rounds the gradients of each chunk, and is no fault; a sum still is one. */
TEST("found", half_precision_within) {
    for (bool is_sum : {false, true}) {
        Checked subject([is_sum](Line &net, const Tensors &batch) {
            at::Tensor y =
                at::tanh(at::linear(batch[0].to(at::kBFloat16), net.weight.to(at::kBFloat16)));
            at::Tensor loss = at::mse_loss(y.to(at::kFloat), batch[1]);
            return Output{is_sum ? loss * batch[0].size(0) : loss, {}};
        });
        subject.check(numbers(9));
        if (is_sum)
            subject.is(MT_CHECK_WEIGHTING, "", "it is a sum over the samples");
        else
            ck_assert_msg(subject.report.count == 0, "%s", subject.text.c_str());
    }
}

TEST("found", contrastive_in_batch) {
    for (int64_t samples : {2, 5}) {
        Checked subject([](Line &net, const Tensors &batch) {
            at::Tensor logits = net.forward(batch[0]).matmul(batch[1].t());
            at::Tensor own = at::arange(logits.size(0), logits.options().dtype(at::kLong));
            return Output{at::cross_entropy_loss(logits, own), {}};
        });
        subject.check(numbers(samples));
        subject.is(MT_CHECK_COUPLING, "", "depends on the others of its chunk");
    }
}

/* [time, samples, 4] with as many steps of time as samples: the recurrence goes along dimension 0. */
TEST("found", time_major) {
    Checked subject([](Line &net, const Tensors &batch) {
        at::Tensor h = at::zeros_like(batch[0][0]), loss = at::zeros({});
        for (int64_t t = 0; t < batch[0].size(0); t++) {
            h = at::tanh(at::linear(h + batch[0][t], net.weight));
            loss = loss + at::mse_loss(h, batch[1][t]);
        }
        return Output{loss / batch[0].size(0), {}};
    });
    subject.check({at::randn({6, 6, 4}), at::randn({6, 6, 4})});
    subject.is(MT_CHECK_COUPLING, "", "may be time");
}

/* A norm over the chunk that is no module: in training alone it is told, in evaluation mode too it couples samples. */
TEST("found", norm_by_an_operator) {
    for (bool always : {false, true}) {
        Checked subject(
            [always](Line &net, const Tensors &batch) {
                auto buffers = net.buffers();
                at::Tensor y = at::batch_norm(net.forward(batch[0]), {}, {}, buffers[0], buffers[1],
                                              always || net.is_training(), 0.1, 1e-5, false);
                return Output{at::mse_loss(y, batch[1]), {}};
            },
            {},
            [](Line &net) {
                net.register_buffer("mean", at::zeros({4}));
                net.register_buffer("variance", at::ones({4}));
            });
        subject.check(numbers(7));
        ck_assert_uint_eq(subject.report.samples, 6);
        ck_contains(subject.text.c_str(), "note: layers normalise over the samples of a chunk");
        if (always)
            subject.is(MT_CHECK_COUPLING, "", "statistics from the batch");
        else
            ck_assert_msg(subject.report.fault_count == 0, "%s", subject.text.c_str());
    }
}

TEST("found", fixed_batch) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, {batch[0].view({3, 4}), batch[1]}).loss, {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_CHUNK_FAILS, "",
               "is the batch size a number in the model, or dimension 0 of a tensor time");
}

/* And is as large as the batch, so that nothing else goes through. */
TEST("found", batch_size_within) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, {batch[0].view({16, 4}), batch[1]}).loss, {}};
    });
    subject.check(numbers(16));
    subject.is(MT_CHECK_CHUNK_FAILS, "", "a chunk of 3 samples fails where 16 go through");
    ck_contains(subject.text.c_str(), "shape '[16, 4]' is invalid");
}

/* An embedding with the mean of its chunk taken off. */
TEST("found", coupled_embedding) {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_check_report report = MT_CHECK_REPORT_INIT;
    networks::prepare();
    ck_ok(memtrain::make_model(&model, [] {
        auto description = memtrain::contrastive_model(
            std::make_shared<Line>(), {},
            [](Line &net, const Tensors &batch) {
                at::Tensor y = net.forward(batch[0]);
                return Tensors{y - y.mean(0), batch[1]};
            },
            [](Line &, const Tensors &all) {
                at::Tensor logits = all[0].matmul(all[1].t());
                return Output{at::cross_entropy_loss(logits, at::arange(logits.size(0), at::kLong)),
                              {}};
            });
        return description;
    }));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    networks::TensorBatch batch(numbers(4));
    ck_ok(mt_torch_check(torch, batch.get(), &report));
    ck_assert_uint_eq(report.fault_count, 1);
    ck_assert_int_eq(report.findings[0].kind, MT_CHECK_COUPLING);
    ck_contains(report.findings[0].text, "the embedding of a sample depends");
    mt_torch_free(torch);
    mt_model_free(model);
}

/* ---- the graph ---- */

TEST("found", detached_head) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            at::Tensor head = at::linear(net.forward(batch[0]), net.unused);
            return Output{plain(net, batch).loss + head.detach().mean(), {}};
        },
        {},
        [](Line &net) {
            net.unused = net.register_parameter("head", at::ones({4, 4}));
        });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NO_GRADIENT, "head", "parameter 'head' without a gradient");
}

TEST("found", no_graph) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss.detach(), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NO_GRAPH, "", "has no graph");
}

TEST("found", not_finite) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss / 0.0, {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NOT_FINITE, "", "the loss of 3 samples is inf");
}

/* The derivative of a root at 0, of a loss that is finite. */
TEST("found", gradient_not_finite) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss + at::sqrt((net.weight * 0.0).sum()), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NOT_FINITE, "weight", "the gradient of parameter 'weight' is infinite");
}

/* ---- the report ---- */

/* Parameters with the same fault take one line, which is the last: what is worse comes first. */
TEST("report", many_findings) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            return Output{plain(net, batch).loss * batch[0].size(0), {}};
        },
        {},
        [](Line &net) {
            for (int i = 0; i < 60; i++)
                net.register_parameter("unused" + std::to_string(i), at::ones({2}));
        });
    subject.check(numbers(5));
    ck_assert_uint_eq(subject.report.fault_count, 2);
    ck_assert_uint_eq(subject.report.count, 2);
    ck_assert_int_eq(subject.report.findings[0].kind, MT_CHECK_WEIGHTING);
    ck_assert_int_eq(subject.report.findings[1].kind, MT_CHECK_NO_GRADIENT);
    ck_assert_str_eq(subject.report.findings[1].name, "unused0");
    ck_contains(subject.text.c_str(), "60 parameters ('unused0', 'unused1', 'unused2' first)");
}

/* As much as fits, and the length of all. */
TEST("report", explain_cuts) {
    mt_check_report report = MT_CHECK_REPORT_INIT;
    char text[24];
    size_t length = mt_check_explain(&report, nullptr, 0);
    ck_assert_uint_eq(length, std::strlen("checked with 0 samples: 0 faults found\n"));
    ck_assert_uint_eq(mt_check_explain(&report, text, sizeof text), length);
    ck_assert_str_eq(text, "checked with 0 samples:");
    ck_assert_uint_eq(mt_check_explain(nullptr, text, sizeof text), 0);
    ck_assert_str_eq(text, "");
    report.size = sizeof(size_t);
    ck_assert_uint_eq(mt_check_explain(&report, text, sizeof text), 0);
}

TEST("report", refused) {
    Checked subject(plain);
    networks::TensorBatch batch(numbers(4));
    mt_check_report report = MT_CHECK_REPORT_INIT;
    ck_status(mt_torch_check(nullptr, batch.get(), &report), MT_EINVAL);
    ck_status(mt_torch_check(subject.torch, nullptr, &report), MT_EINVAL);
    ck_status(mt_torch_check(subject.torch, batch.get(), nullptr), MT_EINVAL);
    ck_ok(mt_begin(subject.torch, batch.get()));
    ck_status(mt_torch_check(subject.torch, batch.get(), &report), MT_ESTATE);
    ck_ok(mt_rollback(subject.torch));
    Trainer normed(options_of(MT_SGD));
    Batch one(1);
    ck_refused(mt_torch_check(normed.torch, one.get(), &report), MT_EINVAL,
               "batch->count is 1; accepted: at least 2");
}

/* What the model throws for all samples is the caller's. */
TEST("report", failing_model) {
    Checked subject([](Line &net, const Tensors &batch) -> Output {
        plain(net, batch);
        throw std::runtime_error("on purpose");
    });
    networks::TensorBatch batch(numbers(4));
    mt_check_report report = MT_CHECK_REPORT_INIT;
    std::string before = subject.hash();
    ck_refused(mt_torch_check(subject.torch, batch.get(), &report), MT_ETORCH, "on purpose");
    ck_assert(subject.hash() == before);
    ck_ok(mt_begin(subject.torch, batch.get()));
    ck_ok(mt_rollback(subject.torch));
}

TEST("report", in_cpp) {
    networks::prepare();
    memtrain::Trainer trainer(memtrain::model(std::make_shared<Line>(), {"accuracy"}, plain));
    mt_check_report report = trainer.check(numbers(4));
    ck_assert_uint_eq(report.fault_count, 1);
    ck_assert_int_eq(report.findings[0].kind, MT_CHECK_METRIC_MISSING);
}

SUITE("shim_check")
