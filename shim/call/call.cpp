/* call.cpp - operators called by name: which overload, with what, and what is wrong. */
#include <memtrain/call.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "arguments.hpp"
#include "call_values.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "onednn.hpp"
#include "operators.hpp"
#include "tensor.hpp"

namespace memtrain::shim {
namespace {

using c10::FunctionSchema;
using torch::jit::Stack;

/* What a caller has handed in. */
struct Given {
    const char *function, *name;
    const mt_value *values;
    size_t count;
    const mt_keyword *keywords;
    size_t keyword_count;
};

/* ---- arguments to a schema ---------------------------------------------------------------------- */

enum class Fault { none, too_many, unknown, twice, missing, type };

/* Why a schema does not accept what is given. */
struct Mismatch {
    Fault fault = Fault::none;
    size_t index = 0; /* of the keyword (unknown, twice), or of the schema's argument */
};

/* The value of each argument; NULL: its default. */
using Chosen = std::vector<const mt_value *>;

size_t positional(const FunctionSchema &schema) {
    size_t count = 0;
    for (const c10::Argument &argument : schema.arguments()) count += !argument.kwarg_only();
    return count;
}

Mismatch choose(const FunctionSchema &schema, const Given &given, Chosen &chosen) {
    if (given.count > schema.arguments().size() || given.count > positional(schema))
        return {Fault::too_many, 0};
    chosen.assign(schema.arguments().size(), nullptr);
    for (size_t i = 0; i < given.count; i++) chosen[i] = &given.values[i];
    for (size_t k = 0; k < given.keyword_count; k++) {
        auto index = schema.argumentIndexWithName(given.keywords[k].name);
        if (!index) return {Fault::unknown, k};
        const mt_value *&place = chosen[static_cast<size_t>(*index)];
        if (place) return {Fault::twice, k};
        place = &given.keywords[k].value;
    }
    return {};
}

/* Fills the stack as the schema has it. */
Mismatch bind(const FunctionSchema &schema, const Given &given, Stack &stack) {
    Chosen chosen;
    Mismatch mismatch = choose(schema, given, chosen);
    if (mismatch.fault != Fault::none) return mismatch;
    stack.clear();
    stack.reserve(chosen.size());
    for (size_t i = 0; i < chosen.size(); i++) {
        const c10::Argument &argument = schema.arguments()[i];
        if (!chosen[i] && !argument.default_value()) return {Fault::missing, i};
        if (!chosen[i]) {
            stack.push_back(*argument.default_value());
            continue;
        }
        stack.emplace_back();
        if (!convert(*chosen[i], argument, stack.back())) return {Fault::type, i};
    }
    return {};
}

/* ---- what is wrong ------------------------------------------------------------------------------ */

template <class Printed> std::string text_of(const Printed &printed) {
    std::ostringstream text;
    text << printed;
    return text.str();
}

const mt_value &value_of(const FunctionSchema &schema, const Given &given, size_t index) {
    if (index < given.count) return given.values[index];
    size_t k = 0;
    while (schema.arguments()[index].name() != given.keywords[k].name) k++;
    return given.keywords[k].value;
}

/* Whether that is what is wrong with it: a tensor is expected, and a handle without one was given. */
bool is_empty(const mt_value &value) {
    if (value.kind == MT_VALUE_TENSOR) return !value.is.tensor->tensor.defined();
    if (value.kind != MT_VALUE_TENSORS) return false;
    auto lacks = [](const mt_tensor *one) { return !one || !one->tensor.defined(); };
    return std::any_of(value.is.tensors, value.is.tensors + value.count, lacks);
}

std::string reason(const FunctionSchema &schema, const Given &given, const Mismatch &mismatch) {
    const auto &arguments = schema.arguments();
    switch (mismatch.fault) {
    case Fault::too_many:
        return std::to_string(given.count) + (given.count == 1 ? " value" : " values") +
               ", accepted: at most " + std::to_string(positional(schema));
    case Fault::unknown:
        return std::string("keyword '") + given.keywords[mismatch.index].name + "' is no argument";
    case Fault::twice:
        return std::string("argument '") + given.keywords[mismatch.index].name + "' is given twice";
    case Fault::missing:
        return "argument '" + arguments[mismatch.index].name() + "' is missing";
    case Fault::type: {
        const c10::Argument &argument = arguments[mismatch.index];
        const mt_value &value = value_of(schema, given, mismatch.index);
        const char *what = !is_empty(value)                 ? "of kind "
                           : value.kind == MT_VALUE_TENSORS ? "a list with an empty one among its "
                                                            : "an empty ";
        std::string words = words_of(argument);
        if (value.kind == MT_VALUE_STRING && !words.empty())
            return "argument '" + argument.name() + "' is '" + std::string(value.is.text, 0, 64) +
                   "', accepted: " + words;
        return "argument '" + argument.name() + "' is " + what + kind_name(value) +
               ", accepted: " + text_of(argument);
    }
    default:
        return "";
    }
}

/* How far a schema came: the one that came furthest is told of. */
size_t progress(const FunctionSchema &schema, const Mismatch &mismatch) {
    bool argument = mismatch.fault == Fault::missing || mismatch.fault == Fault::type;
    if (!argument || schema.arguments()[mismatch.index].is_out()) return 0;
    return mismatch.index + 1;
}

/* Of several overloads the first of those that come closest. */
[[noreturn]] void refuse(const Overloads &overloads, const Given &given) {
    const FunctionSchema *closest = nullptr;
    Mismatch why;
    Stack stack;
    for (const auto &op : overloads) {
        Mismatch mismatch = bind(op->schema(), given, stack);
        if (closest && progress(op->schema(), mismatch) <= progress(*closest, why)) continue;
        closest = &op->schema();
        why = mismatch;
    }
    std::string others =
        overloads.size() == 1 ? "" : " (1 of " + std::to_string(overloads.size()) + " overloads)";
    fail(MT_EINVAL, "%s: %s: %s; %s%s", given.function, given.name,
         reason(*closest, given, why).c_str(), c10::toString(*closest).c_str(), others.c_str());
}

[[noreturn]] void unknown(const char *function, const char *name) {
    fail(MT_EINVAL, "%s: there is no operator '%.128s'%s", function, name,
         similar_operator(name).c_str());
}

/* ---- the call ----------------------------------------------------------------------------------- */

std::shared_ptr<torch::jit::Operator> resolve(const Given &given, Stack &stack) {
    const Overloads overloads = find_operators(given.name);
    if (overloads.empty()) unknown(given.function, given.name);
    for (const auto &op : overloads)
        if (bind(op->schema(), given, stack).fault == Fault::none) return op;
    refuse(overloads, given);
}

void check_given(const Given &given) {
    for (size_t i = 0; i < given.count; i++)
        check_value(given.function, "values", i, given.values[i]);
    for (size_t i = 0; i < given.keyword_count; i++) {
        if (!given.keywords[i].name)
            fail(MT_EINVAL, "%s: keywords[%zu].name is NULL", given.function, i);
        check_value(given.function, "keywords", i, given.keywords[i].value);
    }
}

mt_status check_lists(const Given &given) {
    MT_RETURN_IF_FAILED(check_not_null(given.name, given.function, "name"));
    if (given.count) MT_RETURN_IF_FAILED(check_not_null(given.values, given.function, "values"));
    if (given.keyword_count)
        MT_RETURN_IF_FAILED(check_not_null(given.keywords, given.function, "keywords"));
    return ensure_init();
}

/* Runs the operator, once ready(schema) has not thrown; then done(schema, results). */
template <class Ready, class Done> mt_status run(const Given &given, Ready ready, Done done) {
    mt_status status = guard([&] {
        Stack stack;
        check_given(given);
        auto op = resolve(given, stack);
        ready(op->schema());
        KeepOneDnn keep;
        op->getOperation()(stack);
        KeepOneDnn::check();
        done(op->schema(), stack);
    });
    if (status != MT_ETORCH) return status;
    return mt_set_error(status, "%s: %s", given.name, mt_last_error());
}

void check_room(const Given &given, const FunctionSchema &schema, size_t capacity) {
    if (!capacity || schema.returns().size() <= capacity) return;
    fail(MT_EINVAL, "%s: %s: capacity is %zu, accepted: 0, or at least %zu; %s", given.function,
         given.name, capacity, schema.returns().size(), c10::toString(schema).c_str());
}

void check_tensor_result(const Given &given, const FunctionSchema &schema) {
    const auto &returns = schema.returns();
    if (!returns.empty() && returns[0].type()->kind() == c10::TypeKind::TensorType) return;
    fail(MT_EINVAL, "%s: %s: the first result is no tensor; %s", given.function, given.name,
         c10::toString(schema).c_str());
}

} // namespace
} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_call(const char *name, const mt_value *values, size_t value_count,
                             const mt_keyword *keywords, size_t keyword_count, mt_value *results,
                             size_t capacity, size_t *out_count) {
    const Given given = {"mt_call", name, values, value_count, keywords, keyword_count};
    if (out_count) *out_count = 0;
    if (capacity) MT_RETURN_IF_FAILED(check_not_null(results, given.function, "results"));
    for (size_t i = 0; i < capacity; i++) results[i] = mt_value_none();
    MT_RETURN_IF_FAILED(check_lists(given));
    mt_status status = run(
        given, [&](const FunctionSchema &schema) { check_room(given, schema, capacity); },
        [&](const FunctionSchema &schema, Stack &stack) {
            for (size_t i = 0; capacity && i < stack.size(); i++)
                results[i] = hand_out(std::move(stack[i]), schema.returns()[i]);
            if (out_count) *out_count = stack.size();
        });
    if (status != MT_OK) mt_values_free(results, capacity);
    return status;
}

extern "C" mt_status mt_call_into(const char *name, const mt_value *values, size_t value_count,
                                  const mt_keyword *keywords, size_t keyword_count,
                                  mt_tensor *out) {
    const Given given = {"mt_call_into", name, values, value_count, keywords, keyword_count};
    MT_RETURN_IF_FAILED(check_handle(out, MT__KIND_TENSOR, given.function, "out"));
    MT_RETURN_IF_FAILED(check_lists(given));
    return run(
        given, [&](const FunctionSchema &schema) { check_tensor_result(given, schema); },
        [&](const FunctionSchema &, Stack &stack) {
            out->tensor = std::move(stack.front()).toTensor();
        });
}

extern "C" size_t mt_operator_schema(const char *name, char *text, size_t capacity) {
    static const char function[] = "mt_operator_schema";
    std::string lines;
    if (text && capacity) *text = '\0';
    if (check_not_null(name, function, "name") != MT_OK || ensure_init() != MT_OK) return 0;
    mt_status status = guard([&] {
        const Overloads overloads = find_operators(name);
        if (overloads.empty()) unknown(function, name);
        for (const auto &op : overloads) lines += c10::toString(op->schema()) + "\n";
        lines.pop_back();
    });
    if (status != MT_OK) return 0;
    if (text && capacity) text[lines.copy(text, capacity - 1)] = '\0';
    return lines.size();
}

/* ---- gradients ---------------------------------------------------------------------------------- */

namespace memtrain::shim {
namespace {

mt_status check_handles(mt_tensor *const *list, size_t count, const char *argument) {
    MT_RETURN_IF_FAILED(check_not_null(list, "mt_gradients", argument));
    for (size_t i = 0; i < count; i++)
        MT_RETURN_IF_FAILED(check_handle(list[i], MT__KIND_TENSOR, "mt_gradients", argument));
    return MT_OK;
}

void find_gradients(const at::Tensor &loss, mt_tensor *const *inputs, size_t count,
                    mt_tensor *const *outputs) {
    std::vector<at::Tensor> list;
    for (size_t i = 0; i < count; i++) {
        list.push_back(inputs[i]->tensor);
        if (!list.back().defined() || !list.back().requires_grad())
            fail(MT_EINVAL, "mt_gradients: inputs[%zu] %s", i,
                 list.back().defined() ? "needs no gradient" : "is empty");
    }
    auto gradients = torch::autograd::grad({loss}, list, {}, std::nullopt, false, true);
    for (size_t i = 0; i < count; i++) outputs[i]->tensor = std::move(gradients[i]);
}

} // namespace
} // namespace memtrain::shim

extern "C" mt_status mt_gradients(mt_tensor *loss, mt_tensor *const *inputs, size_t count,
                                  mt_tensor *const *outputs) {
    MT_RETURN_IF_FAILED(check_handle(loss, MT__KIND_TENSOR, "mt_gradients", "loss"));
    MT_RETURN_IF_FAILED(check_handles(inputs, count, "inputs"));
    MT_RETURN_IF_FAILED(check_handles(outputs, count, "outputs"));
    if (!loss->tensor.defined() || loss->tensor.numel() != 1)
        return mt_set_error(MT_EINVAL, "mt_gradients: loss is no tensor of one number");
    return guard([&] { find_gradients(loss->tensor, inputs, count, outputs); });
}

extern "C" mt_status mt_no_grad(mt_status (*body)(void *user), void *user) {
    MT_RETURN_IF_FAILED(check_not_null(reinterpret_cast<const void *>(body), "mt_no_grad", "body"));
    return guard([&] {
        c10::NoGradGuard no_grad;
        return body(user);
    });
}
