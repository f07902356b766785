/*
 * check.cpp - mt_torch_check: what is run in which order, what differences mean, and the report. The runs themselves
 * are in check_runs.cpp.
 */
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include <ATen/Parallel.h>

#include <memtrain/check.h>

#include "arguments.hpp"
#include "batch.hpp"
#include "check_runs.hpp"
#include "guard.hpp"

namespace memtrain::shim {
namespace {

/* ---- the report ---- */

/* What lets nothing be learnt comes first, what costs memory alone comes last. */
constexpr mt_check_kind by_severity[] = {
    MT_CHECK_NO_GRAPH,    MT_CHECK_NOT_FINITE,     MT_CHECK_CHUNK_FAILS, MT_CHECK_HIDDEN_STATE,
    MT_CHECK_WRITTEN,     MT_CHECK_BUFFER,         MT_CHECK_COUPLING,    MT_CHECK_WEIGHTING,
    MT_CHECK_METRIC_MEAN, MT_CHECK_METRIC_MISSING, MT_CHECK_NO_GRADIENT};

size_t rank_of(const mt_check_finding &finding) {
    return static_cast<size_t>(
        std::find(std::begin(by_severity), std::end(by_severity), finding.kind) - by_severity);
}

/* "parameter 'a'", or how many there are and the first of them. */
std::string listed(const char *noun, const std::vector<std::string> &names) {
    if (names.size() == 1) return std::string(noun) + " '" + names[0].substr(0, 80) + "'";
    std::string text = std::to_string(names.size()) + " " + noun + "s (";
    for (size_t i = 0; i < std::min<size_t>(names.size(), 3); i++)
        text += (i ? ", '" : "'") + names[i].substr(0, 40) + "'";
    return text + (names.size() > 3 ? " first)" : ")");
}

class Report {
public:
    explicit Report(mt_check_report &report) : report_(report) {}

    /* One for each kind, or for each metric: there is room for all. */
    MT_PRINTF(5, 6)
    void add(mt_check_kind kind, const std::string &name, double difference, const char *format,
             ...) {
        mt_check_finding finding = {kind, difference, "", ""};
        va_list arguments;
        std::snprintf(finding.name, sizeof finding.name, "%s", name.c_str());
        va_start(arguments, format);
        std::vsnprintf(finding.text, sizeof finding.text, format, arguments);
        va_end(arguments);
        findings_.push_back(finding);
        if (kind < MT_CHECK_RANDOM) report_.fault_count++;
    }
    bool has(mt_check_kind kind) const {
        return std::any_of(findings_.begin(), findings_.end(),
                           [kind](const mt_check_finding &one) { return one.kind == kind; });
    }
    void end() {
        std::stable_sort(findings_.begin(), findings_.end(),
                         [](const mt_check_finding &a, const mt_check_finding &b) {
                             return rank_of(a) < rank_of(b);
                         });
        for (const mt_check_finding &finding : findings_)
            if (report_.count < MT_CHECK_FINDINGS_MAX) report_.findings[report_.count++] = finding;
    }

private:
    mt_check_report &report_;
    std::vector<mt_check_finding> findings_;
};

/* ---- rounding ---- */

/* From where on a difference is none of rounding, relative to what is compared. */
struct Tolerance {
    double loss, gradient;
};

Tolerance tolerance_of(const mt_torch &torch, bool is_half) {
    bool is_double = true;
    for (const Block &block : torch.flat->blocks()) {
        is_double &= block.dtype == at::kDouble;
        is_half |= c10::elementSize(block.dtype) < sizeof(float);
    }
    if (is_half) return {5e-2, 2e-1};
    if (is_double) return {1e-9, 1e-7};
    return torch.device.is_host() ? Tolerance{1e-5, 1e-3} : Tolerance{5e-3, 5e-2};
}

/* A loss near 0 may be the difference of larger numbers, whose rounding it has. */
double relative(double difference, double scale) {
    return std::fabs(difference) / std::max(scale, 1e-2);
}

/* Likewise; where both are zero they are equal. A number that is none stays so. */
double relative_length(double difference, double scale) {
    return scale == 0.0 ? 0.0 : difference / scale;
}

/* ---- what was run ---- */

class Check {
public:
    /* sparing: backward passes of one part alone, and none in evaluation mode. */
    Check(mt_torch &torch, Runs &runs, bool sparing, Report &report)
        : torch_(torch), runs_(runs), report_(report), sharp_(tolerance_of(torch, false)),
          has_backward_(!sparing) {
        for (size_t i = 0; i < runs.parts(); i++) all_.push_back(i);
        trained_ = sparing ? std::vector<size_t>{0} : all_;
    }

    mt_status run();

private:
    /* Parts as one chunk in evaluation mode; a smaller one that fails is a finding, and fails_ is set. */
    mt_status evaluate(const std::vector<size_t> &parts, bool backward, RunResult &out);

    mt_status look(bool &goes_on);
    mt_status look_at_whole(mt_status failed, bool &goes_on);
    mt_status repeat(bool &goes_on);
    mt_status compare_buffers();
    mt_status buffers_that_differ(const StateResult &whole, const StateResult &cut,
                                  std::vector<size_t> &out, double &difference);
    bool is_finite(const RunResult &result, size_t parts);
    void tell_fails(size_t fewer, size_t more, const char *line);
    void tell_repeated(const RunResult &first, const RunResult &second, bool &goes_on);
    void tell_written_batch(size_t tensor);
    void tell_written();
    void tell_untouched(const RunResult &result);
    mt_status cut();
    mt_status cut_cached();
    void compare_metrics(const RunResult &whole, const RunResult &two, const RunResult &one);
    mt_status compare(const RunResult &whole, const RunResult &two, const RunResult &one);
    mt_status exchange(double &out);
    void tell_loss(double difference, double whole, double cut);
    void tell_mean(double difference, double ratio, const char *text);
    bool add_up(const RunResult &two, const RunResult &one);
    bool are_finite();
    void tell_gradient(const RunResult &whole, const RunResult &two, const RunResult &one,
                       double difference);
    std::string worst(const Sketch &difference) const;
    bool is_sum() const;
    bool is_other_mean(double &out_ratio) const;
    bool is_ready_to_cut();
    mt_status sharpen();
    bool depends_on_order() const;

    size_t samples(size_t parts) const { return parts * runs_.part(); }

    mt_torch &torch_;
    Runs &runs_;
    Report &report_;
    Tolerance sharp_; /* without autocast */
    bool in_half_ =
        false; /* the model computes in fewer bits than its parameters have, with autocast where it is on */
    std::vector<size_t> all_;
    std::vector<size_t> trained_; /* in training mode */
    bool has_backward_;           /* in evaluation mode */
    bool fails_ = false;

    /* Losses of a, b, c alone, {a, b} and {b, a}, {a, c}, {b, c}, of all; of two parts a, b, {a, b}, {b, a}. */
    RunResult a_, b_, c_, ab_, ba_, ac_, bc_, whole_;
};

/* ---- in training mode ---- */

mt_status Check::look(bool &goes_on) {
    RunResult look;
    mt_status status = runs_.run(Mode::training, Depth::graph, trained_, {}, look);
    if (status == MT_EDEVMEM || status == MT_ENOMEM) return status;
    if (status != MT_OK) return look_at_whole(status, goes_on);
    goes_on = false;
    if (look.written) {
        tell_written_batch(*look.written);
        return MT_OK;
    }
    in_half_ = look.in_half;
    goes_on = look.has_graph && std::isfinite(look.loss_sum) && look.units > 0.0;
    if (!(look.units > 0.0))
        report_.add(
            MT_CHECK_SKIPPED, "", 0.0,
            "nothing is compared, since the %zu samples that were run have no units, so that "
            "every label is masked: check another batch",
            samples(trained_.size()));
    if (!look.has_graph)
        report_.add(MT_CHECK_NO_GRAPH, "", 0.0,
                    "the loss has no graph, so no parameter can learn from it: it is computed from "
                    "detached tensors, without gradients, or from parameters that do not train");
    if (!std::isfinite(look.loss_sum))
        report_.add(MT_CHECK_NOT_FINITE, "", 0.0,
                    "the loss of %zu samples is %g: a division by zero or the logarithm of one, a "
                    "mean over no labels, or a sample that is not finite itself",
                    samples(trained_.size()), look.loss());
    if (!look.has_metrics && !torch_.model->metrics.empty())
        report_.add(
            MT_CHECK_METRIC_MISSING, torch_.model->metrics[0], 0.0,
            "%zu metrics are named ('%.80s' first) and the loss function gives none, so each "
            "is told as 0: give them, or name none",
            torch_.model->metrics.size(), torch_.model->metrics[0].c_str());
    return MT_OK;
}

void Check::tell_fails(size_t fewer, size_t more, const char *line) {
    fails_ = true;
    report_.add(MT_CHECK_CHUNK_FAILS, "", 0.0,
                "a chunk of %zu sample%s fails where %zu go through: %.200s; is the batch size a "
                "number in the model, or dimension 0 of a tensor time and not the sample? "
                "min_micro_batch says what the smallest legal chunk is",
                fewer, fewer == 1 ? "" : "s", more, line);
}

/* In which the batch size is a number, the whole batch alone goes through. Where that does not fit, no one knows. */
mt_status Check::look_at_whole(mt_status failed, bool &goes_on) {
    char line[512];
    RunResult whole;
    std::snprintf(line, sizeof line, "%s", mt_last_error());
    goes_on = false;
    mt_status status = runs_.run(Mode::training, Depth::forward, {}, {}, whole);
    if (status == MT_OK) tell_fails(samples(trained_.size()), runs_.batch(), line);
    return status == MT_OK ? MT_OK : mt_set_error(failed, "%s", line);
}

void Check::tell_written_batch(size_t tensor) {
    report_.add(MT_CHECK_WRITTEN, "batch[" + std::to_string(tensor) + "]", 0.0,
                "the forward pass writes to tensor %zu of the batch, which a step refuses: samples "
                "that run again would have that twice; clone() the tensor before it is written to, "
                "or use an operator that is not in place",
                tensor);
}

void Check::tell_written() {
    std::vector<std::string> names = torch_.written.names();
    if (!names.empty())
        report_.add(MT_CHECK_WRITTEN, names[0], 0.0,
                    "the forward pass writes to %s: in a step of several chunks that happens once "
                    "a chunk, with other numbers; write to it after the step",
                    listed("parameter", names).c_str());
    if (!runs_.written().empty())
        report_.add(MT_CHECK_WRITTEN, runs_.written()[0], 0.0,
                    "the forward pass writes to %s by a pointer (data_ptr(), an accessor), which a "
                    "step does not see and cannot roll back; write to it after the step",
                    listed("parameter", runs_.written()).c_str());
}

void Check::tell_untouched(const RunResult &result) {
    std::vector<std::string> names;
    for (size_t slot : result.untouched) names.push_back(torch_.flat->slots()[slot].name);
    if (names.empty()) return;
    report_.add(MT_CHECK_NO_GRADIENT, names[0], 0.0,
                "%s without a gradient, though to train: nothing that the loss of these samples is "
                "computed from uses what is named, or a detach() is in between; "
                "requires_grad_(false) saves the memory",
                listed("parameter", names).c_str());
}

/* Tells where it is not. An overflow in training with a loss scale is for the scaler to mend. */
bool Check::is_finite(const RunResult &result, size_t parts) {
    if (std::isfinite(result.gradient.length())) return true;
    const std::string &name = torch_.flat->slots()[result.gradient.first_not_finite()].name;
    report_.add(
        MT_CHECK_NOT_FINITE, name, 0.0,
        "the gradient of parameter '%.80s' is infinite or not a number where the loss of %zu "
        "sample%s is %.6g: the derivative of a root or a norm at 0, a division by zero "
        "behind a where(), or an overflow",
        name.c_str(), samples(parts), samples(parts) == 1 ? "" : "s", result.loss());
    return false;
}

std::string Check::worst(const Sketch &difference) const {
    size_t worst = 0;
    for (size_t i = 0; i < torch_.flat->slots().size(); i++)
        if (difference.length_of(i) > difference.length_of(worst)) worst = i;
    return torch_.flat->slots()[worst].name;
}

/* The first run and a later one, which are to be equal. */
void Check::tell_repeated(const RunResult &first, const RunResult &second, bool &goes_on) {
    Sketch difference = first.gradient;
    difference.add(second.gradient, -1.0);
    Tolerance tolerance = tolerance_of(torch_, in_half_ || torch_.amp != MT_DTYPE_NONE);
    double loss = relative(first.loss() - second.loss(), std::fabs(first.loss()));
    double gradient = relative_length(difference.length(), first.gradient.length());
    bool is_exact = torch_.device.is_host() && at::get_num_threads() == 1;
    goes_on = !is_exact && loss <= tolerance.loss && gradient <= tolerance.gradient;
    if (goes_on)
        report_.add(
            MT_CHECK_RANDOM, worst(difference), gradient,
            "the same samples and random numbers give gradients that differ by %.1e of their "
            "length, most in '%.80s': kernels whose sums come in another order each time, and "
            "nothing to mend",
            gradient, worst(difference).c_str());
    else
        report_.add(
            MT_CHECK_HIDDEN_STATE, "", std::max(loss, gradient),
            "the same samples and random numbers give a loss of %.6g, then %.6g (gradients "
            "differ by %.1e): the model keeps something from call to call that is no buffer "
            "and cannot be rolled back; set it anew in each call, or register it as a buffer: what "
            "changes once a chunk still depends on the cut then",
            first.loss(), second.loss(), gradient);
}

mt_status Check::repeat(bool &goes_on) {
    RunResult first, second, third;
    mt_status status =
        runs_.run(Mode::training, Depth::backward, trained_, {trained_.size()}, first);
    if (status != MT_OK) return status;
    tell_written();
    tell_untouched(first);
    goes_on = torch_.scaler || is_finite(first, trained_.size());
    if (!goes_on) return MT_OK;
    status = runs_.run(Mode::training, Depth::backward, trained_, {trained_.size()}, second);
    if (status == MT_EDEVMEM || status == MT_ENOMEM) return status;
    if (status != MT_OK) {
        goes_on = false;
        report_.add(
            MT_CHECK_HIDDEN_STATE, "", 0.0,
            "the same samples go through once and fail the second time (%.200s): the model "
            "keeps something from call to call, such as the graph of a carried state; detach() "
            "does not help, set it anew in each call",
            mt_last_error());
        return MT_OK;
    }
    if (first.loss_sum == second.loss_sum && first.gradient.equals(second.gradient)) return MT_OK;
    status = runs_.run(Mode::training, Depth::backward, trained_, {trained_.size()}, third);
    if (status != MT_OK) return status;
    bool further = std::fabs(third.loss() - first.loss()) > std::fabs(second.loss() - first.loss());
    tell_repeated(first, further ? third : second, goes_on);
    return MT_OK;
}

/* Sums of numbers that add up over samples come in another order; counters are exact. */
bool differs(double difference, double change, double length, c10::ScalarType type) {
    if (!at::isFloatingType(type)) return difference > 0.0;
    double rounding = c10::elementSize(type) < sizeof(float) ? 2e-2 : 1e-6;
    return difference > 1e-3 * change && difference > rounding * length;
}

/*
 * Numbers of the buffers in which the cut is seen. Of one that depends on random numbers nothing is known, since the
 * samples of another chunk draw others.
 */
mt_status Check::buffers_that_differ(const StateResult &whole, const StateResult &cut,
                                     std::vector<size_t> &out, double &difference) {
    Sketch change = whole.after, rest = whole.after, drawn = whole.after;
    change.add(whole.before, -1.0);
    rest.add(cut.after, -1.0);
    auto find = [&](const Sketch &between) {
        std::vector<size_t> list;
        for (size_t i = 0; i < whole.buffers.size(); i++)
            if (!whole.is_norms[i] &&
                differs(between.length_of(i), change.length_of(i), whole.after.length_of(i),
                        whole.buffers[i].tensor.scalar_type()))
                list.push_back(i);
        return list;
    };
    std::vector<size_t> found = find(rest);
    if (found.empty()) return MT_OK;
    StateResult others;
    mt_status status = runs_.run_state(all_, {all_.size()}, true, others);
    if (status != MT_OK) return status;
    drawn.add(others.after, -1.0);
    std::vector<size_t> random = find(drawn);
    for (size_t i : found) {
        if (std::find(random.begin(), random.end(), i) != random.end()) continue;
        out.push_back(i);
        difference = std::max(difference, relative_length(rest.length_of(i), change.length_of(i)));
    }
    return MT_OK;
}

/* State that changes once a chunk, as counters and moving averages do. */
mt_status Check::compare_buffers() {
    StateResult whole, cut;
    if (buffers_of(*torch_.model).empty()) return MT_OK;
    mt_status status = runs_.run_state(all_, {all_.size()}, false, whole);
    if (status == MT_OK) status = runs_.run_state(all_, {all_.size() - 1, 1}, false, cut);
    if (status == MT_EDEVMEM || status == MT_ENOMEM) return status;
    if (status != MT_OK) {
        tell_fails(samples(all_.size() - 1), samples(all_.size()), mt_last_error());
        return MT_OK;
    }
    std::vector<size_t> found;
    std::vector<std::string> names;
    double difference = 0.0;
    status = buffers_that_differ(whole, cut, found, difference);
    for (size_t i : found) names.push_back(whole.buffers[i].name);
    if (!names.empty())
        report_.add(MT_CHECK_BUFFER, names[0], difference,
                    "%s: after %zu samples in one chunk the values are others than after two (they "
                    "differ by %.1e of their change), so that they depend on how a batch is cut; "
                    "change them once a step, after it, or by what adds up over the samples",
                    listed("buffer", names).c_str(), samples(all_.size()), difference);
    return status;
}

/* ---- in evaluation mode ---- */

mt_status Check::evaluate(const std::vector<size_t> &parts, bool backward, RunResult &out) {
    mt_status status = MT_OK;
    if (fails_) return MT_OK;
    Depth depth = backward && has_backward_ ? Depth::backward : Depth::forward;
    status = runs_.run(Mode::evaluation, depth, parts, {parts.size()}, out);
    if (status == MT_OK || status == MT_EDEVMEM || status == MT_ENOMEM) return status;
    if (parts.size() == all_.size()) return status;
    tell_fails(samples(parts.size()), samples(all_.size()), mt_last_error());
    return MT_OK;
}

/* The trainer's mean over chunks. */
double mean_of(const RunResult &two, const RunResult &one) {
    return (two.loss_sum + one.loss_sum) / (two.units + one.units);
}

Sketch gradient_of(const RunResult &two, const RunResult &one) {
    Sketch sum;
    double units = two.units + one.units;
    if (two.units > 0.0) sum.add(two.gradient, two.units / units);
    if (one.units > 0.0) sum.add(one.gradient, one.units / units);
    return sum;
}

void Check::compare_metrics(const RunResult &whole, const RunResult &two, const RunResult &one) {
    for (size_t i = 0; i < torch_.model->metrics.size(); i++) {
        const char *name = torch_.model->metric_names[i];
        double sum = two.metrics[i] + one.metrics[i];
        double scale = std::max(std::fabs(whole.metrics[i]), std::fabs(sum));
        double difference = scale > 0.0 ? std::fabs(whole.metrics[i] - sum) / scale : 0.0;
        if (!(difference > 0.1)) continue;
        report_.add(MT_CHECK_METRIC_MEAN, name, difference,
                    "metric '%.80s' is %.6g for %zu samples and %.6g as the sum of two chunks: it "
                    "looks like a mean; give its sum over the samples (a mean times their number), "
                    "and the library divides",
                    name, whole.metrics[i], samples(all_.size()), sum);
    }
}

/* Whether the losses of single parts, unweighted, add up to those of several. */
bool Check::is_sum() const {
    double sum = a_.loss() + b_.loss();
    return relative(ab_.loss() - sum, std::fabs(sum)) <= std::min(1e3 * sharp_.loss, 0.05);
}

bool Check::depends_on_order() const {
    return relative(ab_.loss() - ba_.loss(), std::fabs(ab_.loss())) > sharp_.loss;
}

/* How often part one counts as often as part other does, if their loss together is a mean with such weights. */
double weight_of(const RunResult &one, const RunResult &other, const RunResult &both) {
    return (both.loss() - other.loss()) / (one.loss() - both.loss());
}

/* How far the loss of two parts together is from the mean that their units tell. */
double off_mean(const RunResult &one, const RunResult &other, const RunResult &both) {
    return std::fabs(both.loss() - mean_of(one, other));
}

/*
 * Whether the loss of several parts is a mean of theirs with weights that are the parts' own: then a/b and c/b,
 * which {a, b} and {b, c} tell, also foretell {a, c}, much better than the units do. Of two parts no one knows.
 */
bool Check::is_other_mean(double &out_ratio) const {
    out_ratio = weight_of(a_, b_, ab_);
    if (!(out_ratio > 0.0) || std::isinf(out_ratio)) return false;
    if (all_.size() < 3) return true;
    double other = weight_of(c_, b_, bc_);
    if (!(other > 0.0) || std::isinf(other)) return false;
    double expected = (out_ratio * a_.loss() + other * c_.loss()) / (out_ratio + other);
    double off = std::max({off_mean(a_, b_, ab_), off_mean(b_, c_, bc_), off_mean(a_, c_, ac_)});
    return std::fabs(ac_.loss() - expected) <= 0.1 * off;
}

/* What was measured is the ratio; what it should be the units say, which are the samples where none are told. */
void Check::tell_mean(double difference, double ratio, const char *text) {
    const mt_model &model = *torch_.model;
    const char *caution = all_.size() < 3 ? ", unless samples depend on each other" : "";
    if (model.ops.units || model.loss_units)
        report_.add(
            MT_CHECK_WEIGHTING, "", difference,
            "%s: it is a mean in which some samples count %.3g times as much as others, and "
            "the units that are told make it %.3g times%s; tell what the loss is a mean over",
            text, ratio, a_.units / b_.units, caution);
    else
        report_.add(MT_CHECK_WEIGHTING, "", difference,
                    "%s: it is a mean in which some samples count %.3g times as much as others, as "
                    "with tokens or pixels that are not masked; tell these as units%s",
                    text, ratio, caution);
}

void Check::tell_loss(double difference, double whole, double cut) {
    char text[160];
    double ratio = 0.0;
    std::snprintf(text, sizeof text, "the loss of %zu samples is %.6g in one chunk and %.6g in two",
                  samples(all_.size()), whole, cut);
    if (depends_on_order())
        report_.add(
            MT_CHECK_COUPLING, "", difference,
            "%s, and depends on the order of the samples: dimension 0 of the tensors may be "
            "time and not the sample (transpose(0, 1) first), or the model carries something "
            "from sample to sample",
            text);
    else if (is_sum())
        report_.add(
            MT_CHECK_WEIGHTING, "", difference,
            "%s: it is a sum over the samples, and a mean over the chunk's units is wanted; "
            "divide it by the number of samples (reduction mean)",
            text);
    else if (is_other_mean(ratio))
        tell_mean(difference, ratio, text);
    else
        report_.add(
            MT_CHECK_COUPLING, "", difference,
            "%s: the loss of a sample depends on the others of its chunk, as with negatives "
            "or statistics from the batch; use embeddings (contrastive_model) for a loss over "
            "pairs, or set needs_whole_batch",
            text);
}

/* Of a sum in the place of a mean the gradients add up without weights. */
void Check::tell_gradient(const RunResult &whole, const RunResult &two, const RunResult &one,
                          double difference) {
    Sketch rest = whole.gradient, sum = whole.gradient;
    rest.add(gradient_of(two, one), -1.0);
    sum.add(two.gradient, -1.0);
    sum.add(one.gradient, -1.0);
    bool is_sum = relative_length(sum.length(), whole.gradient.length()) <= sharp_.gradient;
    report_.add(is_sum ? MT_CHECK_WEIGHTING : MT_CHECK_COUPLING, worst(rest), difference,
                "the gradient of %zu samples in one chunk differs from that in two by %.1e of its "
                "length, most in '%.80s', and the loss does not: %s",
                samples(all_.size()), difference, worst(rest).c_str(),
                is_sum ? "it is that of a sum over the samples; something multiplies it by their "
                         "number"
                       : "something changes gradients by what else is in the chunk");
}

/* Largest difference of what the exchange of a sample and another order are to leave as it is. */
mt_status Check::exchange(double &out) {
    mt_status status = evaluate({1, 0}, false, ba_);
    out = 0.0;
    if (all_.size() == 2 || status != MT_OK) {
        out = relative(ba_.loss() - ab_.loss(), std::fabs(ab_.loss()));
        return status;
    }
    if (status == MT_OK) status = evaluate({0}, false, a_);
    if (status == MT_OK) status = evaluate({1}, false, b_);
    if (status == MT_OK) status = evaluate({0, 2}, false, ac_);
    if (status == MT_OK) status = evaluate({1, 2}, false, bc_);
    double other = (ab_.loss_sum - ac_.loss_sum) - (b_.loss_sum - c_.loss_sum);
    double scale = std::max(std::fabs(ab_.loss_sum), std::fabs(ac_.loss_sum));
    double units = std::max(ab_.units, ac_.units);
    out = std::max(relative(other / units, scale / units),
                   relative(ba_.loss() - ab_.loss(), std::fabs(ab_.loss())));
    return status;
}

/* Tells where units do not add up; what losses differ by is explained then. */
bool Check::add_up(const RunResult &two, const RunResult &one) {
    double sum = two.units + one.units;
    double difference = std::fabs(whole_.units - sum) / std::max(whole_.units, sum);
    if (difference <= 1e-5) return true;
    report_.add(MT_CHECK_WEIGHTING, "", difference,
                "the units that are told do not add up: %zu samples have %.6g in one chunk, and "
                "%.6g + %.6g in two; tell as units what the loss is a mean over, which is the sum "
                "of what its samples have",
                samples(all_.size()), whole_.units, two.units, one.units);
    return false;
}

/* Tells where a part has no loss of its own and all of them have one. */
bool Check::are_finite() {
    const RunResult *list[] = {&a_, &b_, &c_, &ab_, &ac_, &bc_};
    const size_t parts[] = {1, 1, 1, 2, 2, 2};
    for (size_t i = 0; i < 6; i++) {
        if (std::isfinite(list[i]->loss_sum)) continue;
        size_t count = samples(parts[i]);
        report_.add(
            MT_CHECK_WEIGHTING, "", 0.0,
            "the loss of %zu sample%s is %g by itself, with %.6g units, and %.6g beside "
            "others: a mean over nothing, as where each label of a sample is masked; tell as "
            "units how many count, since a chunk of 0 units is left out",
            count, count == 1 ? "" : "s", list[i]->loss(), list[i]->units, whole_.loss());
        return false;
    }
    return true;
}

mt_status Check::compare(const RunResult &whole, const RunResult &two, const RunResult &one) {
    double exchanged = 0.0;
    mt_status status = exchange(exchanged);
    if (status != MT_OK || fails_ || !are_finite()) return status;
    if (has_backward_ && (!is_finite(two, all_.size() - 1) || !is_finite(one, 1))) return status;
    Sketch cut = gradient_of(two, one), rest = whole.gradient;
    rest.add(cut, -1.0);
    double mean = mean_of(two, one);
    double loss = relative(whole.loss() - mean, std::max(std::fabs(whole.loss()), std::fabs(mean)));
    double gradient =
        relative_length(rest.length(), std::max(whole.gradient.length(), cut.length()));
    bool explained = !add_up(two, one);
    if (!explained && !(std::max(loss, exchanged) <= sharp_.loss))
        tell_loss(std::max(loss, exchanged), whole.loss(), mean);
    else if (!explained && has_backward_ && !(gradient <= sharp_.gradient))
        tell_gradient(whole, two, one, gradient);
    /* Where samples depend on each other, so may their metrics. */
    if (!report_.has(MT_CHECK_COUPLING)) compare_metrics(whole, two, one);
    return MT_OK;
}

/* A backward pass may be there in training mode alone, as that of CUDA's recurrent layers. */
mt_status Check::cut() {
    mt_status status = evaluate(all_, true, whole_);
    if (status != MT_OK && status != MT_EDEVMEM && status != MT_ENOMEM && has_backward_) {
        char line[256];
        std::snprintf(line, sizeof line, "%s", mt_last_error());
        has_backward_ = false;
        status = evaluate(all_, true, whole_);
        if (status == MT_OK)
            report_.add(MT_CHECK_SKIPPED, "", 0.0,
                        "gradients of chunks are not compared, since there is no backward pass in "
                        "evaluation mode: %.200s",
                        line);
    }
    if (status != MT_OK) return status;
    if (whole_.drew) {
        report_.add(MT_CHECK_SKIPPED, "", 0.0,
                    "chunks are not compared, since the model draws random numbers in evaluation "
                    "mode, and draws others for other chunks");
        return MT_OK;
    }
    if (!std::isfinite(whole_.loss_sum)) {
        report_.add(MT_CHECK_NOT_FINITE, "", 0.0,
                    "the loss of %zu samples is %g in evaluation mode, and finite in training mode",
                    samples(all_.size()), whole_.loss());
        return MT_OK;
    }
    if (has_backward_ && !is_finite(whole_, all_.size())) return MT_OK;
    bool has_three = all_.size() == 3;
    RunResult &two = has_three ? ab_ : a_, &one = has_three ? c_ : b_;
    if (!has_three) ab_ = whole_;
    status = has_three ? evaluate({0, 1}, true, two) : evaluate({0}, true, two);
    if (status == MT_OK) status = evaluate({all_.size() - 1}, true, one);
    return status == MT_OK && !fails_ ? compare(whole_, two, one) : status;
}

/* A loss of embeddings is that of the whole batch, whatever the chunks are. */
mt_status Check::cut_cached() {
    RunResult whole, cut;
    mt_status status = runs_.run(Mode::evaluation, Depth::backward, all_, {all_.size()}, whole);
    if (status == MT_OK && !whole.drew)
        status = runs_.run(Mode::evaluation, Depth::backward, all_, {all_.size() - 1, 1}, cut);
    if (status != MT_OK) return status;
    if (whole.drew) {
        report_.add(MT_CHECK_SKIPPED, "", 0.0,
                    "chunks are not compared, since the model draws random numbers in evaluation "
                    "mode, and draws others for other chunks");
        return MT_OK;
    }
    if (!is_finite(whole, all_.size()) || !is_finite(cut, all_.size())) return MT_OK;
    Sketch rest = whole.gradient;
    rest.add(cut.gradient, -1.0);
    double loss = relative(whole.loss() - cut.loss(), std::fabs(whole.loss()));
    double gradient = relative_length(rest.length(), whole.gradient.length());
    if (!(loss <= sharp_.loss) || !(gradient <= sharp_.gradient))
        report_.add(
            MT_CHECK_COUPLING, worst(rest), std::max(loss, gradient),
            "the loss of %zu samples is %.6g with embeddings of one chunk and %.6g with those "
            "of two (gradients differ by %.1e): the embedding of a sample depends on the "
            "others of its chunk, and must not",
            samples(all_.size()), whole.loss(), cut.loss(), gradient);
    return MT_OK;
}

bool Check::is_ready_to_cut() {
    const mt_model &model = *torch_.model;
    if (model.normalises_over_batch || torch_.normalises)
        report_.add(
            MT_CHECK_NORMALISES, "", 0.0,
            "layers normalise over the samples of a chunk in training: the cut decides what "
            "they see, and the smallest chunk has %zu sample%s",
            runs_.part(), runs_.part() == 1 ? "" : "s");
    if (model.needs_whole_batch)
        report_.add(
            MT_CHECK_SKIPPED, "", 0.0,
            "chunks are not compared, since the model says that it needs the whole batch at "
            "once (needs_whole_batch)");
    else if (all_.size() < 2)
        report_.add(
            MT_CHECK_SKIPPED, "", 0.0,
            "chunks are not compared, since the batch has fewer than %zu samples, two of the "
            "smallest chunks",
            2 * runs_.part());
    else if (runs_.are_alike())
        report_.add(
            MT_CHECK_SKIPPED, "", 0.0,
            "the %zu samples that were run are equal, so that neither weights nor samples that "
            "depend on each other could be seen: check a batch whose samples differ",
            samples(all_.size()));
    return !model.needs_whole_batch && all_.size() >= 2;
}

/* A model that computes in half precision by itself, without autocast, rounds like one whose parameters do. */
mt_status Check::sharpen() {
    RunResult seen;
    if (!in_half_) return MT_OK;
    mt_status status = runs_.run(Mode::evaluation, Depth::graph, trained_, {}, seen);
    sharp_ = tolerance_of(torch_, seen.in_half);
    return status;
}

mt_status Check::run() {
    bool goes_on = true;
    mt_status status = look(goes_on);
    if (status == MT_OK && goes_on) status = repeat(goes_on);
    if (status != MT_OK || !goes_on || !is_ready_to_cut()) return status;
    status = compare_buffers();
    if (status != MT_OK || fails_) return status;
    runs_.in_full_precision();
    status = sharpen();
    if (status != MT_OK) return status;
    return torch_.model->embedding_count ? cut_cached() : cut();
}

/* ---- how many samples ---- */

mt_status check_parts(mt_torch &torch, const mt_torch_batch &batch, size_t count, size_t part,
                      size_t parts, bool sparing, mt_check_report &out) {
    return guard(torch.device, [&] {
        out = MT_CHECK_REPORT_INIT;
        out.samples = part * parts;
        Report report(out);
        Runs runs(torch, batch, count, part, parts);
        if (sparing) runs.compute_again();
        if (sparing)
            report.add(MT_CHECK_SKIPPED, "", 0.0,
                       "gradients of chunks are not compared, since the budget has room for the "
                       "backward pass of the smallest chunk alone; losses are compared");
        check(Check(torch, runs, sparing, report).run());
        report.end();
    });
}

/* Samples of the smallest chunk, as describe() tells it. */
size_t part_of(const mt_torch &torch) {
    return std::max(torch.model->min_micro_batch, size_t{torch.normalises ? 2U : 1U});
}

/* Three parts, or two where there are no more; where those do not fit, less of them is differentiated. */
mt_status check_batch(mt_torch &torch, const mt_torch_batch &batch, size_t count, size_t part,
                      mt_check_report &out) {
    size_t parts = std::min<size_t>(count / part, 3);
    if (!parts)
        return mt_set_error(MT_EINVAL,
                            "mt_torch_check: batch->count is %zu; accepted: at least %zu, the "
                            "model's smallest chunk",
                            count, part);
    bool can_spare = parts > 1 && !torch.model->embedding_count && !torch.model->needs_whole_batch;
    mt_status status = check_parts(torch, batch, count, part, parts, false, out);
    auto goes_on = [&] {
        if (status != MT_EDEVMEM || torch.phase != Phase::idle) return false;
        (void)!mt_empty_cache(torch.device_name.c_str(), nullptr);
        return true;
    };
    if (parts == 3 && goes_on()) status = check_parts(torch, batch, count, part, 2, false, out);
    if (can_spare && goes_on()) status = check_parts(torch, batch, count, part, parts, true, out);
    if (status != MT_EDEVMEM) return status;
    char line[400];
    std::snprintf(line, sizeof line, "%s", mt_last_error());
    return mt_set_error(status,
                        "mt_torch_check: the smallest chunk, %zu sample%s, does not fit: %s", part,
                        part == 1 ? "" : "s", line);
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_torch_check(mt_torch *torch, const mt_batch *batch,
                                    mt_check_report *report) {
    mt_check_report own = MT_CHECK_REPORT_INIT;
    mt_torch_batch tensors = MT_TORCH_BATCH_INIT;
    MT_RETURN_IF_FAILED(check_handle(torch, MT__KIND_TORCH, "mt_torch_check", "torch"));
    MT_RETURN_IF_FAILED(check_sized(report, "mt_torch_check", "report"));
    MT_RETURN_IF_FAILED(check_phase("mt_torch_check", *torch, Phase::idle, Phase::idle));
    MT_RETURN_IF_FAILED(guard([&] { tensors = batch_of("mt_torch_check", batch); }));
    size_t part = part_of(*torch);
    mt_status status = check_batch(*torch, tensors, batch->count, part, own);
    /* The first chunk may have shown that the model normalises, and that a chunk of one is none. */
    if (status == MT_OK && part_of(*torch) > part)
        status = check_batch(*torch, tensors, batch->count, part_of(*torch), own);
    if (status != MT_OK) own = MT_CHECK_REPORT_INIT;
    hand_over(own, report);
    return status;
}

extern "C" size_t mt_check_explain(const mt_check_report *report, char *text, size_t capacity) {
    size_t length = 0;
    auto write = [&](const char *format, auto... arguments) {
        size_t room = length < capacity ? capacity - length : 0;
        int count = std::snprintf(room ? text + length : nullptr, room, format, arguments...);
        length += count > 0 ? static_cast<size_t>(count) : 0;
    };
    if (text && capacity) *text = '\0';
    if (!report || report->size < sizeof *report) return 0;
    if (!text) capacity = 0;
    write("checked with %zu samples: %zu fault%s found\n", report->samples, report->fault_count,
          report->fault_count == 1 ? "" : "s");
    for (size_t i = 0; i < report->count && i < MT_CHECK_FINDINGS_MAX; i++) {
        const mt_check_finding &finding = report->findings[i];
        write("  %s: %s\n", finding.kind < MT_CHECK_RANDOM ? "fault" : "note", finding.text);
    }
    if (report->fault_count > MT_CHECK_FINDINGS_MAX)
        write("  and %zu more\n", report->fault_count - MT_CHECK_FINDINGS_MAX);
    return length;
}
