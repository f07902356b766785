/*
 * script.cpp - a TorchScript module as an mt_model: what its graph says, its loss, its metrics.
 */
#include "script.hpp"

#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <memtrain/script.h>
#include <memtrain/torch.hpp>

#include "arguments.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "model.hpp"

namespace memtrain::shim {
namespace {

namespace jit = torch::jit;

constexpr char name_of[] = "mt_script_load";
constexpr size_t top = 5;

struct Script {
    jit::Module module;
    std::string path;
    bool own_loss = false;
    size_t classes = 0;       /* 0: not known */
    bool tells_units = false; /* forward gives (loss, units) */
    double units = 0.0;       /* of the last chunk, where it does */
};

Script &script_of(void *self) {
    return *static_cast<Script *>(self);
}

/* ---- the graph of forward ----------------------------------------------------------------------- */

/* A trace has written down whether it was in training mode; a script asks each time. */
struct Found {
    bool normalises = false; /* over the batch, when it trains */
    bool always_trains = false, never_trains = false;
    std::string assigned; /* an attribute; empty: none */
};

/* The operator has a switch for training as this input. */
void look_at_switch(const jit::Node *node, size_t input, bool is_norm, Found &found) {
    auto constant =
        node->inputs().size() > input ? jit::toIValue(node->input(input)) : std::nullopt;
    bool is_fixed = constant && constant->isBool();
    if (is_fixed) (constant->toBool() ? found.always_trains : found.never_trains) = true;
    if (is_norm && !(is_fixed && !constant->toBool())) found.normalises = true;
}

void look(const jit::Block *block, Found &found) {
    static const auto batch_norm = c10::Symbol::fromQualString("aten::batch_norm");
    static const auto dropout = c10::Symbol::fromQualString("aten::dropout");
    for (const jit::Node *node : block->nodes()) {
        if (node->kind() == c10::prim::SetAttr) found.assigned = node->s(c10::attr::name);
        if (node->kind() == batch_norm) look_at_switch(node, 5, true, found);
        if (node->kind() == dropout) look_at_switch(node, 2, false, found);
        for (const jit::Block *inner : node->blocks()) look(inner, found);
    }
}

Found look_into(const jit::Module &module) {
    Found found;
    auto graph = jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
    jit::Inline(*graph);
    look(graph->block(), found);
    return found;
}

/* ---- whether it can be trained ------------------------------------------------------------------ */

/* Inputs of forward that have no default. */
size_t inputs_of(const jit::Module &module) {
    size_t count = 0;
    for (const auto &argument : module.get_method("forward").function().getSchema().arguments())
        count += !argument.default_value();
    return count - 1; /* self */
}

void check_forward(const Script &script) {
    if (!script.module.find_method("forward"))
        fail(MT_EINVAL, "%s: '%.200s' has no method forward", name_of, script.path.c_str());
    size_t inputs = inputs_of(script.module);
    if (!script.own_loss && inputs != 1)
        fail(
            MT_EINVAL,
            "%s: forward of '%.200s' has %zu inputs; accepted: 1, or a forward that gives the loss "
            "(options->own_loss)",
            name_of, script.path.c_str(), inputs);
}

/* Whether forward gives a pair. Other types than tuples are met when it runs. */
bool gives_pair(const Script &script) {
    const auto &returns = script.module.get_method("forward").function().getSchema().returns();
    auto tuple = returns.empty() ? nullptr : returns[0].type()->cast<c10::TupleType>();
    if (!script.own_loss || !tuple) return false;
    if (tuple->elements().size() != 2)
        fail(MT_EINVAL,
             "%s: forward of '%.200s' gives %.100s; accepted: the loss, or (loss, units)", name_of,
             script.path.c_str(), tuple->repr_str().c_str());
    return true;
}

void check_parameters(const Script &script) {
    for (const at::Tensor &parameter : script.module.parameters())
        if (parameter.requires_grad()) return;
    fail(MT_EINVAL,
         "%s: '%.200s' has no parameter that needs a gradient, so that there is nothing to train; "
         "was "
         "it frozen (torch.jit.freeze)? save it before that",
         name_of, script.path.c_str());
}

/* A step that is taken back puts tensors back, and a device that is left takes them along; nothing else. */
void check_found(const Script &script, const Found &found) {
    const char *path = script.path.c_str();
    if (!found.assigned.empty())
        fail(
            MT_EINVAL,
            "%s: forward of '%.200s' assigns to self.%.100s, which a step that is taken back would "
            "not undo; accepted: a buffer that is changed in place, self.%.100s.copy_(...)",
            name_of, path, found.assigned.c_str(), found.assigned.c_str());
    if (found.never_trains)
        mt_log(MT_LOG_WARNING,
               "'%.200s' was traced in evaluation mode: its dropout is off and its batch norm "
               "keeps its "
               "statistics while it trains; torch.jit.script has both switch",
               path);
    if (found.always_trains)
        mt_log(MT_LOG_WARNING,
               "'%.200s' was traced in training mode: its dropout and batch norm train while it is "
               "evaluated, too; torch.jit.script has both switch",
               path);
}

/* Made now, so that the first chunk asks for no other memory than the second. */
void compile(const jit::Module &module) {
    jit::GraphOptimizerEnabledGuard as_written(false);
    jit::Stack none;
    jit::toGraphFunction(module.get_method("forward").function())
        .get_executor()
        .getPlanFor(none, std::nullopt);
}

/* ---- forward, loss and metrics ------------------------------------------------------------------ */

/* Profiling, fusion and symbolic gradients would change what a chunk asks for from one to the next. */
c10::IValue run(Script &script, std::vector<c10::IValue> inputs) {
    jit::GraphOptimizerEnabledGuard as_written(false);
    return script.module.forward(std::move(inputs));
}

at::Tensor tensor_in(const Script &script, const c10::IValue &out) {
    if (!out.isTensor())
        fail(MT_EINVAL, "forward of '%.200s' gives a %.50s; accepted: a tensor",
             script.path.c_str(), out.tagKind().c_str());
    return out.toTensor();
}

at::Tensor forward(Script &script, std::vector<c10::IValue> inputs) {
    return tensor_in(script, run(script, std::move(inputs)));
}

double units_in(const Script &script, const c10::IValue &out) {
    if (out.isInt() || out.isDouble()) return out.toScalar().toDouble();
    if (out.isTensor() && out.toTensor().defined() && out.toTensor().numel() == 1)
        return out.toTensor().item().toDouble();
    fail(MT_EINVAL,
         "forward of '%.200s' gives units that are %s%.50s; accepted: a number, or a tensor of one",
         script.path.c_str(), out.isTensor() ? "another " : "a ", out.tagKind().c_str());
}

/* The loss of a chunk, or (loss, units). */
at::Tensor own_loss(Script &script, std::vector<c10::IValue> inputs) {
    c10::IValue out = run(script, std::move(inputs));
    if (!script.tells_units) return tensor_in(script, out);
    const auto &pair = out.toTupleRef().elements();
    script.units = units_in(script, pair[1]);
    return tensor_in(script, pair[0]);
}

/* Logits of so many samples and, where that is known, classes. */
void check_logits(const Script &script, const at::Tensor &logits, int64_t samples) {
    int64_t classes = static_cast<int64_t>(script.classes);
    std::ostringstream text;
    text << logits.sizes();
    if (logits.dim() != 2 || logits.size(0) != samples || !logits.is_floating_point())
        fail(MT_EINVAL,
             "forward of '%.200s' gives %.100s for %lld samples; accepted: logits "
             "[samples, classes]",
             script.path.c_str(), text.str().c_str(), static_cast<long long>(samples));
    if (classes && logits.size(1) != classes)
        fail(MT_EINVAL, "'%.200s' gives logits of %lld classes, and the data has %lld",
             script.path.c_str(), static_cast<long long>(logits.size(1)),
             static_cast<long long>(classes));
}

void classify_chunk(Script &script, const at::Tensor &input, const at::Tensor &labels,
                    at::Tensor &loss, at::Tensor &metrics) {
    at::Tensor logits = forward(script, {input});
    check_logits(script, logits, input.size(0));
    loss = at::cross_entropy_loss(logits, labels);
    metrics = memtrain::correct(logits, labels);
    if (script.classes > top) metrics = at::cat({metrics, memtrain::top_k(logits, labels, top)});
}

mt_status loss(void *self, mt_tensor *const *tensors, size_t count, mt_tensor *out_loss,
               mt_tensor *out_metrics) {
    return guard([&] {
        Script &script = script_of(self);
        if (script.own_loss) {
            std::vector<c10::IValue> inputs;
            for (size_t i = 0; i < count; i++) inputs.emplace_back(tensors[i]->tensor);
            out_loss->tensor = own_loss(script, std::move(inputs));
        } else if (count != 2) {
            fail(MT_EINVAL, "a batch has %zu tensors; accepted: 2, inputs and labels", count);
        } else {
            classify_chunk(script, tensors[0]->tensor, tensors[1]->tensor, out_loss->tensor,
                           out_metrics->tensor);
        }
    });
}

/* ---- the other functions of a model --------------------------------------------------------------- */

template <class List> mt_status visit(const List &list, mt_visit_fn fn, void *user) {
    for (const auto &named : list) {
        mt_status status = mt_visit_tensor(&named.value, named.name.c_str(), fn, user);
        if (status != MT_OK) return status;
    }
    return MT_OK;
}

mt_status visit_parameters(void *self, mt_visit_fn fn, void *user) {
    return guard([&] { check(visit(script_of(self).module.named_parameters(), fn, user)); });
}

mt_status visit_buffers(void *self, mt_visit_fn fn, void *user) {
    return guard([&] { check(visit(script_of(self).module.named_buffers(), fn, user)); });
}

/* A module without the attribute has nothing to switch. */
mt_status set_training(void *self, int on) {
    return guard([&] {
        for (jit::Module module : script_of(self).module.modules())
            if (module.hasattr("training")) module.setattr("training", on != 0);
    });
}

mt_status to_device(void *self, const char *device) {
    return guard([&] { script_of(self).module.to(c10::Device(device)); });
}

void destroy(void *self) {
    delete &script_of(self);
}

/* ---- load ---------------------------------------------------------------------------------------- */

/*
 * Runs it once. A trace in training mode changes its statistics even now; they are put back.
 * @return the number of classes
 */
size_t try_out(Script &script, const mt_script_options &options) {
    c10::NoGradGuard no_grad;
    std::vector<int64_t> shape(options.input_shape, options.input_shape + options.input_dims);
    shape.insert(shape.begin(), 2);
    std::vector<at::Tensor> buffers, kept;
    for (const at::Tensor &buffer : script.module.buffers()) {
        buffers.push_back(without_repeats(buffer));
        kept.push_back(buffers.back().clone());
    }
    check(set_training(&script, 0));
    at::Tensor logits;
    mt_status status = guard([&] { logits = forward(script, {at::zeros(shape)}); });
    for (size_t i = 0; i < buffers.size(); i++) buffers[i].copy_(kept[i]);
    if (status == MT_ETORCH) {
        std::string words = mt_last_error();
        std::ostringstream text;
        text << at::IntArrayRef(shape);
        fail(MT_EINVAL, "%s: forward of '%.200s' fails on an input of %.100s: %s", name_of,
             script.path.c_str(), text.str().c_str(), words.c_str());
    }
    check(status);
    check_logits(script, logits, 2);
    return static_cast<size_t>(logits.size(1));
}

void check_options(const mt_script_options &options) {
    if (options.classes == 1)
        fail(MT_EINVAL, "%s: options->classes is 1; accepted: at least 2, or 0", name_of);
    if (options.own_loss && (options.classes || options.input_shape))
        fail(MT_EINVAL, "%s: options->own_loss goes with neither classes nor input_shape", name_of);
    for (size_t i = 0; options.input_shape && i < options.input_dims; i++)
        if (options.input_shape[i] < 1)
            fail(MT_EINVAL, "%s: options->input_shape[%zu] is %lld; accepted: at least 1", name_of,
                 i, static_cast<long long>(options.input_shape[i]));
}

void load(const char *path, const mt_script_options &options, mt_model **out) {
    static const char *const metrics[] = {"accuracy", "top5"};
    mt_model_ops ops = MT_MODEL_OPS_INIT;
    mt_model_traits traits = MT_MODEL_TRAITS_INIT;
    check_options(options);
    auto script = std::make_unique<Script>();
    script->path = path;
    script->own_loss = options.own_loss != 0;
    script->classes = options.classes;
    script->module = read_script(path);
    check_forward(*script);
    script->tells_units = gives_pair(*script);
    Found found = look_into(script->module);
    check_found(*script, found);
    check_parameters(*script);
    compile(script->module);
    if (options.input_shape) script->classes = try_out(*script, options);
    ops.visit_parameters = visit_parameters;
    ops.visit_buffers = visit_buffers;
    ops.set_training = set_training;
    ops.loss = loss;
    ops.to_device = to_device;
    ops.destroy = destroy;
    traits.normalises_over_batch = found.normalises;
    traits.min_micro_batch = found.normalises ? 2 : 0;
    traits.metric_count = script->own_loss ? 0 : script->classes > top ? 2 : 1;
    traits.metric_names = metrics;
    const double *units = script->tells_units ? &script->units : nullptr;
    check(mt_model_new(&ops, script.release(), &traits, out));
    (*out)->loss_units = units;
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_script_load(const char *path, const mt_script_options *options,
                                    mt_model **out) {
    mt_script_options own = MT_SCRIPT_OPTIONS_INIT;
    MT_RETURN_IF_FAILED(check_not_null(out, name_of, "out"));
    *out = nullptr;
    MT_RETURN_IF_FAILED(check_not_null(path, name_of, "path"));
    MT_RETURN_IF_FAILED(ensure_init());
    if (options) {
        MT_RETURN_IF_FAILED(check_sized(options, name_of, "options"));
        copy_in(own, options);
    }
    return guard([&] { load(path, own, out); });
}

extern "C" mt_status mt_script_save(mt_model *model, const char *path) {
    MT_RETURN_IF_FAILED(check_handle(model, MT__KIND_MODEL, "mt_script_save", "model"));
    MT_RETURN_IF_FAILED(check_not_null(path, "mt_script_save", "path"));
    if (!*path) return mt_set_error(MT_EINVAL, "mt_script_save: path is empty");
    if (model->ops.loss != loss)
        return mt_set_error(MT_EINVAL, "mt_script_save: model is not one of mt_script_load");
    return guard([&] { write_script(script_of(model->self).module, path); });
}
