/*
 * check_shim_check.cpp - mt_torch_check: each kind of model that cannot be trained in chunks is found by name, those
 * that can are not, and nothing has changed afterwards, wherever memory runs out.
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

START_TEST(clean) {
    Checked subject(plain);
    subject.check(numbers(5));
    ck_assert_msg(subject.report.count == 0, "%s", subject.text.c_str());
    ck_assert_str_eq(subject.text.c_str(), "checked with 3 samples: 0 faults found\n");
    ck_assert_uint_eq(subject.report.samples, 3);
    subject.check(numbers(2));
    ck_assert_msg(subject.report.count == 0, "%s", subject.text.c_str());
    ck_assert_uint_eq(subject.report.samples, 2);
}
END_TEST

/* One sample is run, and that the rest was not is told. */
START_TEST(one_sample) {
    Checked subject(plain);
    subject.check(numbers(1));
    ck_assert_uint_eq(subject.report.fault_count, 0);
    ck_assert_uint_eq(subject.report.count, 1);
    ck_assert_int_eq(subject.report.findings[0].kind, MT_CHECK_SKIPPED);
    ck_contains(subject.report.findings[0].text, "fewer than 2 samples");
}
END_TEST

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

START_TEST(token_mean_without_units) {
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
END_TEST

/* With them it is what is wanted; check_shim_units has those that come with the loss. */
START_TEST(token_mean_with_units) {
    networks::prepare();
    mt_check_report report = MT_CHECK_REPORT_INIT;
    auto description = memtrain::model(std::make_shared<Line>(), {}, token_mean);
    description.units = memtrain::count_not(-100);
    memtrain::Trainer trainer(description);
    report = trainer.check(sentences(5));
    ck_assert_uint_eq(report.count, 0);
}
END_TEST

/* Sorted by length, so that the first samples have equally many labels. */
START_TEST(sorted_by_length) {
    Checked subject(token_mean);
    Tensors batch = sentences(12);
    batch[1] = at::randint(0, 4, {12, 6}, at::kLong);
    for (int64_t i = 8; i < 12; i++) batch[1][i].narrow(0, 13 - i, i - 7).fill_(-100);
    subject.check(batch);
    subject.is(MT_CHECK_WEIGHTING, "", "tell these as units");
}
END_TEST

/* One sample in the middle of a batch of equal lengths. */
START_TEST(one_is_shorter) {
    Checked subject(token_mean);
    Tensors batch = sentences(9);
    batch[1] = at::randint(0, 4, {9, 6}, at::kLong);
    batch[1][3].narrow(0, 2, 4).fill_(-100);
    subject.check(batch);
    subject.is(MT_CHECK_WEIGHTING, "", "tell these as units");
}
END_TEST

/* Of equal samples no one can tell; that is said. */
START_TEST(equal_samples) {
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
END_TEST

/* A sample without a label has no mean, and with units it is left out. */
START_TEST(masked_sample) {
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
END_TEST

/* Units that are told and do not add up; units that do, and are not what the loss is a mean over. */
START_TEST(wrong_units) {
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
END_TEST

START_TEST(sum_loss) {
    for (int64_t samples : {2, 5}) {
        Checked subject([](Line &net, const Tensors &batch) {
            return Output{at::mse_loss(net.forward(batch[0]), batch[1]) * batch[0].size(0), {}};
        });
        subject.check(numbers(samples));
        subject.is(MT_CHECK_WEIGHTING, "", "it is a sum over the samples");
        ck_assert_double_gt(subject.report.findings[0].difference, 0.3);
    }
}
END_TEST

/* The value is that of a mean, the gradient is not. */
START_TEST(scaled_gradient) {
    Checked subject([](Line &net, const Tensors &batch) {
        at::Tensor loss = plain(net, batch).loss;
        at::Tensor scaled = loss * batch[0].size(0);
        return Output{scaled - scaled.detach() + loss.detach(), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_WEIGHTING, "weight", "the loss does not");
}
END_TEST

START_TEST(metric_mean) {
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
END_TEST

START_TEST(metric_missing) {
    Checked subject(plain, {"accuracy"});
    subject.check(numbers(5));
    subject.is(MT_CHECK_METRIC_MISSING, "accuracy", "gives none");
}
END_TEST

/* ---- hidden state ---- */

START_TEST(counter) {
    const double more = suite_on_card() ? 0.05 : 0.001; /* a card's sums may come in any order */
    Checked subject([more](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss * (1 + more * net.calls++), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_HIDDEN_STATE, "", "keeps something from call to call");
}
END_TEST

/* A recurrence whose state stays in the module from batch to batch, with its graph or without. */
static Output recurrent(Line &net, const Tensors &batch, bool with_graph) {
    at::Tensor h = net.carried.defined() && net.carried.size(0) == batch[0].size(0)
                       ? net.carried
                       : at::zeros_like(batch[0]);
    h = at::tanh(at::linear(h + batch[0], net.weight));
    net.carried = with_graph ? h : h.detach();
    return {at::mse_loss(h, batch[1]), {}};
}

START_TEST(carried_state) {
    Checked detached([](Line &net, const Tensors &b) { return recurrent(net, b, false); });
    detached.check(numbers(5));
    detached.is(MT_CHECK_HIDDEN_STATE, "", "what changes once a chunk still depends on the cut");
    Checked attached([](Line &net, const Tensors &b) { return recurrent(net, b, true); });
    attached.check(numbers(5));
    attached.is(MT_CHECK_HIDDEN_STATE, "", "fail the second time");
}
END_TEST

/* A buffer that the forward pass counts in is rolled back, so it is no hidden state; the cut is seen in it. */
START_TEST(counting_buffer) {
    Checked subject(
        [](Line &net, const Tensors &batch) {
            net.buffers()[0].add_(1);
            return Output{plain(net, batch).loss * net.buffers()[0].sum(), {}};
        },
        {}, [](Line &net) { net.register_buffer("seen", at::zeros({1})); });
    subject.check(numbers(5));
    subject.is(MT_CHECK_BUFFER, "seen", "depend on how a batch is cut");
}
END_TEST

/* A moving average of the weights, and a whole number: both are told in one line. Beside dropout too. */
START_TEST(averages_of_chunks) {
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
END_TEST

/* What adds up over samples does not depend on the cut; of random numbers no one knows. */
START_TEST(sums_of_samples) {
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
END_TEST

/* By a pointer, which no version counter sees: found, and put back. */
START_TEST(written_by_pointer) {
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
END_TEST

/* Even by a tensor that has a version counter of its own. */
START_TEST(copy_written) {
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
END_TEST

/* One that trains is taken back like one that does not. */
START_TEST(weight_clipped) {
    Checked subject([](Line &net, const Tensors &batch) {
        c10::NoGradGuard no_grad;
        net.weight.mul_(0.9);
        c10::AutoGradMode with_graph(true);
        return plain(net, batch);
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_WRITTEN, "weight", "once a chunk");
}
END_TEST

/* A batch that is written to: a step refuses it, and the check has copies of its own to tell it by. */
START_TEST(batch_written) {
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
END_TEST

/* ---- coupling ---- */

/* A small one is no mean with other weights. */
START_TEST(small_coupling) {
    for (double part : {0.02, 0.1, 0.5}) {
        Checked subject([part](Line &net, const Tensors &batch) {
            at::Tensor y = net.forward(batch[0]);
            return Output{at::mse_loss(y - part * y.mean(0), batch[1]), {}};
        });
        subject.check(numbers(9));
        subject.is(MT_CHECK_COUPLING, "", "depends on the others of its chunk");
    }
}
END_TEST

/* Half precision within the model rounds the gradients of each chunk, and is no fault; a sum still is one. */
START_TEST(half_precision_within) {
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
END_TEST

START_TEST(contrastive_in_batch) {
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
END_TEST

/* [time, samples, 4] with as many steps of time as samples: the recurrence goes along dimension 0. */
START_TEST(time_major) {
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
END_TEST

/* A norm over the chunk that is no module: in training alone it is told, in evaluation mode too it couples samples. */
START_TEST(norm_by_an_operator) {
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
END_TEST

START_TEST(fixed_batch) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, {batch[0].view({3, 4}), batch[1]}).loss, {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_CHUNK_FAILS, "",
               "is the batch size a number in the model, or dimension 0 of a tensor time");
}
END_TEST

/* And is as large as the batch, so that nothing else goes through. */
START_TEST(batch_size_within) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, {batch[0].view({16, 4}), batch[1]}).loss, {}};
    });
    subject.check(numbers(16));
    subject.is(MT_CHECK_CHUNK_FAILS, "", "a chunk of 3 samples fails where 16 go through");
    ck_contains(subject.text.c_str(), "shape '[16, 4]' is invalid");
}
END_TEST

/* ---- the graph ---- */

START_TEST(detached_head) {
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
END_TEST

START_TEST(no_graph) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss.detach(), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NO_GRAPH, "", "has no graph");
}
END_TEST

START_TEST(not_finite) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss / 0.0, {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NOT_FINITE, "", "the loss of 3 samples is inf");
}
END_TEST

/* The derivative of a root at 0, of a loss that is finite. */
START_TEST(gradient_not_finite) {
    Checked subject([](Line &net, const Tensors &batch) {
        return Output{plain(net, batch).loss + at::sqrt((net.weight * 0.0).sum()), {}};
    });
    subject.check(numbers(5));
    subject.is(MT_CHECK_NOT_FINITE, "weight", "the gradient of parameter 'weight' is infinite");
}
END_TEST

/* ---- the report ---- */

/* Parameters with the same fault take one line, which is the last: what is worse comes first. */
START_TEST(many_findings) {
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
END_TEST

/* As much as fits, and the length of all. */
START_TEST(explain_cuts) {
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
END_TEST

START_TEST(refused) {
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
    ck_status(mt_torch_check(normed.torch, one.get(), &report), MT_EINVAL);
    ck_contains(mt_last_error(), "batch->count is 1; accepted: at least 2");
}
END_TEST

/* What the model throws for all samples is the caller's. */
START_TEST(failing_model) {
    Checked subject([](Line &net, const Tensors &batch) -> Output {
        plain(net, batch);
        throw std::runtime_error("on purpose");
    });
    networks::TensorBatch batch(numbers(4));
    mt_check_report report = MT_CHECK_REPORT_INIT;
    std::string before = subject.hash();
    ck_status(mt_torch_check(subject.torch, batch.get(), &report), MT_ETORCH);
    ck_contains(mt_last_error(), "on purpose");
    ck_assert(subject.hash() == before);
    ck_ok(mt_begin(subject.torch, batch.get()));
    ck_ok(mt_rollback(subject.torch));
}
END_TEST

START_TEST(in_cpp) {
    networks::prepare();
    memtrain::Trainer trainer(memtrain::model(std::make_shared<Line>(), {"accuracy"}, plain));
    mt_check_report report = trainer.check(numbers(4));
    ck_assert_uint_eq(report.fault_count, 1);
    ck_assert_int_eq(report.findings[0].kind, MT_CHECK_METRIC_MISSING);
}
END_TEST

/* ---- networks that are as they should be ---- */

static void is_clean(mt_torch *torch, const mt_batch *batch, size_t notes) {
    mt_check_report report = MT_CHECK_REPORT_INIT;
    char before[65], after[65], text[8192];
    ck_ok(mt_torch_state_sha256(torch, before));
    ck_ok(mt_torch_check(torch, batch, &report));
    ck_ok(mt_torch_state_sha256(torch, after));
    ck_assert_str_eq(before, after);
    mt_check_explain(&report, text, sizeof text);
    ck_assert_msg(report.fault_count == 0 && report.count == notes, "%s", text);
}

enum { SETTINGS = 6 };

static mt_torch_options setting(int i) {
    mt_torch_options options = options_of(MT_SGD);
    if (i == 1) options.amp = MT_BFLOAT16;
    if (i == 2) options.checkpointing = MT_CHECKPOINTING_ON;
    if (i == 3) options.channels_last = 1;
    if (i == 4) options.offload = MT_OFFLOAD_FILE;
    if (i == 5) {
        options.checkpointing = MT_CHECKPOINTING_CHOSEN;
        options.activation_share = 0.5;
    }
    return options;
}

START_TEST(clean_networks) {
    if (suite_on_mps() && _i % SETTINGS == 5)
        return suite_skip("clean_networks", "nothing tells peaks to choose segments by");
    const networks::Network &network = networks::all[_i / SETTINGS];
    mt_torch_options options = setting(_i % SETTINGS);
    networks::prepare();
    networks::Subject subject(network, network.side, &options);
    bench::Batch batch(7, network.side, 10);
    is_clean(subject.torch, &batch.batch, network.normalises);
}
END_TEST

/* After steps, with two threads, and where no gradients are held. */
START_TEST(clean_after_steps) {
    const networks::Network &network = networks::all[_i];
    mt_torch_options options = setting(0);
    networks::prepare();
    ck_ok(mt_torch_set_threads(2));
    networks::Subject subject(network, network.side, &options);
    bench::Batch batch(7, network.side, 10);
    for (int i = 0; i < 3; i++) ck_ok(mt_train_step(subject.torch, &batch.batch, nullptr, nullptr));
    ck_ok(mt_hold_gradients(subject.torch, 0));
    is_clean(subject.torch, &batch.batch, network.normalises);
    ck_ok(mt_train_step(subject.torch, &batch.batch, nullptr, nullptr));
}
END_TEST

/* The loss scaler's scale is no part of what is compared. */
START_TEST(clean_in_half_precision) {
    if (suite_on_mps()) return suite_skip("clean_in_half_precision", "MPS takes bfloat16 alone");
    mt_torch_options options = setting(0);
    options.amp = MT_FLOAT16;
    networks::prepare();
    networks::Subject subject(networks::all[2], networks::all[2].side, &options);
    bench::Batch batch(7, networks::all[2].side, 10);
    is_clean(subject.torch, &batch.batch, 0);
    ck_assert_double_eq(mt_torch_scale(subject.torch), 65536.0);
}
END_TEST

/* ---- embeddings ---- */

/* Two towers, trained by cached embeddings or by a loss of each chunk; whole: that must not be cut. */
static mt_torch *towers(mt_model **model, bool cached, bool whole) {
    networks::TowersOptions options;
    mt_torch *torch = nullptr;
    networks::prepare();
    options.image.depth = 1;
    ck_ok(cached ? memtrain::make_model(model,
                                        [&] {
                                            return networks::contrastive(
                                                std::make_shared<networks::TowersImpl>(options));
                                        })
                 : memtrain::make_model(model, [&] {
                       auto plain_towers =
                           networks::plain(std::make_shared<networks::TowersImpl>(options));
                       plain_towers.needs_whole_batch = whole;
                       return plain_towers;
                   }));
    mt_torch_options own = options_of(MT_SGD);
    ck_ok(mt_torch_new(*model, &own, &torch));
    return torch;
}

START_TEST(two_towers) {
    mt_model *model = nullptr;
    mt_check_report report = MT_CHECK_REPORT_INIT;
    mt_torch *torch = towers(&model, _i == 0, _i == 1);
    networks::Pairs pairs(4, {});
    if (_i < 2) {
        is_clean(torch, &pairs.batch, _i);
    } else {
        ck_ok(mt_torch_check(torch, &pairs.batch, &report));
        ck_assert_uint_eq(report.fault_count, 1); /* the recall of a chunk is another one as well */
        ck_assert_int_eq(report.findings[0].kind, MT_CHECK_COUPLING);
    }
    mt_torch_free(torch);
    mt_model_free(model);
}
END_TEST

/* An embedding with the mean of its chunk taken off. */
START_TEST(coupled_embedding) {
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
END_TEST

/* ---- memory ---- */

constexpr int shares = 4; /* that the requests are tried in */

/* Every request fails in turn, once or from then on: MT_OK by fewer samples or MT_EDEVMEM, and nothing has changed. */
START_TEST(memory_runs_out) {
    bool goes_on = _i == shares;
    Trainer trainer(options_of(MT_ADAMW));
    Batch batch(8);
    ck_ok(step(trainer, batch, {4, 4}));
    std::string before = trainer.hash();
    uint64_t failed = 1, first = goes_on ? 0 : static_cast<uint64_t>(_i),
             stride = goes_on ? 7 : shares;
    unsigned fewer = 0;
    for (uint64_t n = 1 + first; failed; n += stride) {
        mt_check_report report = MT_CHECK_REPORT_INIT;
        ck_ok(mt_inject_oom(n, goes_on));
        mt_status status = mt_torch_check(trainer.torch, batch.get(), &report);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_msg(status == MT_OK || status == MT_EDEVMEM, "%llu: %s",
                      static_cast<unsigned long long>(n), mt_last_error());
        ck_assert_int_eq(status == MT_EDEVMEM, goes_on && failed);
        if (failed && goes_on)
            ck_contains(mt_last_error(), "the smallest chunk, 2 samples, does not fit");
        if (status == MT_OK) ck_assert_uint_eq(report.fault_count, 1); /* Net's unused parameter */
        fewer += status == MT_OK && report.samples == 4;
        ck_assert(trainer.hash() == before);
    }
    if (!goes_on) ck_assert_uint_gt(fewer, 100 / shares);
}
END_TEST

/* A budget that has room for two parts and not for three, for one and not for two, for none. */
START_TEST(budget_for_fewer) {
    networks::prepare();
    const networks::Network &network = networks::all[2];
    networks::Subject subject(network, network.side);
    bench::Batch batch(6, network.side, 10);
    mt_check_report report = MT_CHECK_REPORT_INIT;
    mt_chunk_result result = chunk_result();
    size_t peaks[2], before = networks::Subject::allocated();
    for (size_t i = 0; i < 2; i++) {
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_ok(mt_accumulate(subject.torch, 0, 2 + i, 1.0, &result));
        peaks[i] = result.peak_bytes - before;
        ck_ok(mt_rollback(subject.torch));
    }
    networks::Subject::set_budget((peaks[0] + peaks[1]) / 2);
    ck_ok(mt_torch_check(subject.torch, &batch.batch, &report));
    ck_assert_uint_eq(report.samples, 2);
    ck_assert_uint_eq(report.fault_count, 0);
    networks::Subject::set_budget(peaks[0] - peaks[0] / 8);
    ck_ok(mt_torch_check(subject.torch, &batch.batch, &report));
    ck_assert_uint_eq(report.samples, 3);
    ck_assert_uint_eq(report.count, 1);
    ck_contains(report.findings[0].text, "losses are compared");
    networks::Subject::set_budget(peaks[0] / 4);
    ck_status(mt_torch_check(subject.torch, &batch.batch, &report), MT_EDEVMEM);
    ck_contains(mt_last_error(), "the smallest chunk, 1 sample, does not fit");
    ck_assert_uint_eq(report.count, 0);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("shim check");
    TCase *found = suite_case(suite, "found");
    tcase_add_test(found, clean);
    tcase_add_test(found, one_sample);
    tcase_add_test(found, token_mean_without_units);
    tcase_add_test(found, token_mean_with_units);
    tcase_add_test(found, sorted_by_length);
    tcase_add_test(found, one_is_shorter);
    tcase_add_test(found, equal_samples);
    tcase_add_test(found, masked_sample);
    tcase_add_test(found, wrong_units);
    tcase_add_test(found, sum_loss);
    tcase_add_test(found, scaled_gradient);
    tcase_add_test(found, metric_mean);
    tcase_add_test(found, metric_missing);
    tcase_add_test(found, counter);
    tcase_add_test(found, carried_state);
    tcase_add_test(found, counting_buffer);
    tcase_add_test(found, averages_of_chunks);
    tcase_add_test(found, sums_of_samples);
    tcase_add_test(found, copy_written);
    tcase_add_test(found, written_by_pointer);
    tcase_add_test(found, small_coupling);
    tcase_add_test(found, half_precision_within);
    tcase_add_test(found, contrastive_in_batch);
    tcase_add_test(found, time_major);
    tcase_add_test(found, weight_clipped);
    tcase_add_test(found, batch_written);
    tcase_add_test(found, norm_by_an_operator);
    tcase_add_test(found, fixed_batch);
    tcase_add_test(found, batch_size_within);
    tcase_add_test(found, detached_head);
    tcase_add_test(found, no_graph);
    tcase_add_test(found, not_finite);
    tcase_add_test(found, gradient_not_finite);
    TCase *report = suite_case(suite, "report");
    tcase_add_test(report, many_findings);
    tcase_add_test(report, explain_cuts);
    tcase_add_test(report, refused);
    tcase_add_test(report, failing_model);
    tcase_add_test(report, in_cpp);
    TCase *networks_case = suite_case(suite, "networks");
    tcase_add_loop_test(networks_case, clean_networks, 0, networks::count * SETTINGS);
    tcase_add_loop_test(networks_case, clean_after_steps, 0, networks::count);
    tcase_add_test(networks_case, clean_in_half_precision);
    tcase_add_loop_test(networks_case, two_towers, 0, 3);
    tcase_add_test(networks_case, coupled_embedding);
    TCase *memory = suite_case(suite, "memory");
    tcase_set_timeout(memory, 240); /* all of them, one after another */
    tcase_add_loop_test(memory, memory_runs_out, 0, shares + 1);
    tcase_add_test(memory, budget_for_fewer);
    return suite_run(suite);
}
