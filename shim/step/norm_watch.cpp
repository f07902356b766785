/* norm_watch.cpp - a callback of libtorch's for the operators of one thread. */

/* As libtorch is built: without it ATen/record_function.h reads a member that the library's own objects do not have. */
#ifndef NDEBUG
#define NDEBUG
#endif

#include "norm_watch.hpp"

#include <cstring>
#include <memory>
#include <vector>

#include <ATen/record_function.h>

namespace memtrain::shim {
namespace {

/* Of the watch that lives on this thread. */
struct Seen {
    bool found = false;
    int others = 0; /* that are running: some devices have each call a batch norm over one sample */
    std::vector<const void *> statistics;
};
thread_local Seen seen;

/* With a flag for training among their arguments, the first that is a bool. */
constexpr const char *batch_norms[] = {
    "aten::batch_norm",
    "aten::_batch_norm_impl_index",
    "aten::native_batch_norm",
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_functional",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
};

/* In training alone. */
constexpr const char always[] = "aten::_batch_norm_with_update";

/* Of one sample each. Where a device has no kernel of its own for them, libtorch uses that for batch norms. */
constexpr const char *other_norms[] = {
    "aten::instance_norm", "aten::group_norm",        "aten::native_group_norm",
    "aten::layer_norm",    "aten::native_layer_norm",
};

template <size_t count> bool is_one_of(const char *const (&names)[count], const char *name) {
    for (const char *one : names)
        if (std::strcmp(name, one) == 0) return true;
    return false;
}

bool is_training(const at::RecordFunction &function) {
    for (const c10::IValue &value : function.inputs())
        if (value.isBool()) return value.toBool();
    return false;
}

/* Input, weight and bias come before them, in all of these operators. */
void note_statistics(const at::RecordFunction &function) {
    c10::ArrayRef<const c10::IValue> inputs = function.inputs();
    for (size_t i = 3; i < 5 && i < inputs.size(); i++)
        if (inputs[i].isTensor() && inputs[i].toTensor().defined())
            seen.statistics.push_back(inputs[i].toTensor().const_data_ptr());
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction &function) {
    const char *name = function.name();
    if (is_one_of(other_norms, name)) seen.others++;
    if (seen.others) return nullptr;
    if (std::strcmp(name, always) == 0 || (is_one_of(batch_norms, name) && is_training(function))) {
        seen.found = true;
        note_statistics(function);
    }
    return nullptr;
}

void on_end(const at::RecordFunction &function, at::ObserverContext *) {
    if (is_one_of(other_norms, function.name())) seen.others--;
}

} // namespace

NormWatch::NormWatch(bool on) {
    if (!on) return;
    seen = {};
    callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_start, on_end)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}));
}

NormWatch::~NormWatch() {
    if (callback_) at::removeCallback(callback_);
}

bool NormWatch::found() const noexcept {
    return callback_ && seen.found;
}

const std::vector<const void *> &NormWatch::statistics() const noexcept {
    return seen.statistics;
}

} // namespace memtrain::shim
