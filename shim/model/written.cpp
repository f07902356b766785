/* written.cpp - finding, copying and putting back what a forward pass writes to. */

#include "written.hpp"

#include <algorithm>
#include <memory>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <memtrain/status.h>

#include "fnv.hpp"
#include "guard.hpp"

#ifndef NDEBUG
#error "at::RecordFunction is another class without NDEBUG than in libtorch, see the Makefile"
#endif

namespace memtrain::shim {
namespace {

thread_local WrittenParameters *watching = nullptr;

/* One line does for all of a kind. */
void warn_once(bool &warned, const char *kind, const std::string &name) {
    if (warned) return;
    warned = true;
    mt_log(MT_LOG_WARNING,
           "%s '%.150s' is changed by the forward pass: once a chunk, so that its values depend on "
           "how batches are cut",
           kind, name.c_str());
}

void look_at(const c10::IValue &value) {
    if (value.isTensor()) {
        watching->before_write(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor &tensor : value.toTensorVector()) watching->before_write(tensor);
    }
}

/* libtorch swallows what this throws. */
std::unique_ptr<at::ObserverContext> before_operator(const at::RecordFunction &call) {
    if (!watching) return nullptr;
    at::RecordFunctionGuard quiet(false); /* our own copies are no news */
    std::optional<c10::FunctionSchema> schema = call.operator_schema();
    if (!schema) return nullptr;
    const std::vector<c10::Argument> &arguments = schema->arguments();
    c10::ArrayRef<const c10::IValue> inputs = call.inputs();
    for (size_t i = 0; i < arguments.size() && i < inputs.size(); i++)
        if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) look_at(inputs[i]);
    return nullptr;
}

} // namespace

void WrittenParameters::follow(const std::vector<Named> &parameters) {
    std::vector<Entry> list;
    for (const Named &named : parameters) {
        Entry entry;
        entry.named = named;
        for (const Entry &old : entries_)
            if (old.named.name == named.name) entry.written = old.written;
        begin(entry);
        list.push_back(std::move(entry));
    }
    entries_ = std::move(list);
}

void WrittenParameters::begin(Entry &entry) {
    if (entry.outside) entry.kept[step] = {};
    entry.kept[step].look(entry.named.tensor);
    entry.version = version_of(entry.named.tensor);
    entry.changed = entry.outside = entry.is_kept[step] = entry.is_kept[chunk] = false;
}

void WrittenParameters::take(When when) {
    for (Entry &entry : entries_) {
        if (when == step) begin(entry);
        if (!entry.written) continue;
        entry.kept[when].look(entry.named.tensor);
        entry.kept[when].copy();
        entry.is_kept[when] = true;
    }
}

void WrittenParameters::compare() {
    for (Entry &entry : entries_)
        entry.changed |= version_of(entry.named.tensor) != entry.version ||
                         !entry.kept[step].is_in_place(entry.named.tensor);
}

void WrittenParameters::end_chunk() {
    compare();
    for (Entry &entry : entries_) {
        if (entry.written || (!entry.changed && !entry.outside)) continue;
        entry.written = true;
        warn_once(warned_, "parameter", entry.named.name);
    }
}

void WrittenParameters::put_back(When when) {
    const Entry *lost = nullptr;
    for (Entry &entry : entries_) {
        if (entry.is_kept[when])
            entry.kept[when].put_back(entry.named.tensor);
        else if (entry.is_kept[step] || entry.changed)
            put_back(entry, lost);
    }
    if (lost)
        fail(MT_ESTATE,
             "parameter '%.150s' was changed by the forward pass, for the first time, in a chunk "
             "that is "
             "taken back, and there is no copy of it",
             lost->named.name.c_str());
}

/*
 * One that no chunk before has changed in this step. Where its version has not changed, it has been given other
 * memory, and the old numbers are in the old one.
 */
void WrittenParameters::put_back(Entry &entry, const Entry *&lost) {
    const at::Tensor &tensor = entry.named.tensor;
    if (!entry.is_kept[step] && version_of(tensor) != entry.version) {
        lost = &entry; /* and stays so, whoever asks again */
        return;
    }
    if (entry.is_kept[step])
        entry.kept[step].put_back(tensor);
    else
        entry.kept[step].move_back(tensor);
    entry.version = version_of(tensor);
    entry.changed = false;
    entry.written = true;
}

std::vector<std::string> WrittenParameters::names() const {
    std::vector<std::string> list;
    for (const Entry &entry : entries_)
        if (entry.written) list.push_back(entry.named.name);
    return list;
}

size_t WrittenParameters::bytes() const {
    size_t bytes = 0;
    for (const Entry &entry : entries_)
        if (!entry.outside) bytes += entry.kept[step].bytes();
    return bytes;
}

uint64_t WrittenParameters::stamp() const {
    Fnv hash;
    hash.add(writes_);
    for (const Entry &entry : entries_) {
        hash.add(version_of(entry.named.tensor));
        hash.add(reinterpret_cast<uint64_t>(entry.named.tensor.const_data_ptr()));
    }
    return hash.value();
}

/*
 * In plain memory: a copy within the budget could be refused, and nothing that happens here keeps the operator from
 * writing. Without a copy put_back() tells, if it comes to that.
 */
void WrittenParameters::before_write(const at::Tensor &tensor) noexcept {
    (void)guard([&] {
        if (!tensor.defined() || !tensor.has_storage()) return;
        Span span(tensor);
        for (Entry &entry : entries_) {
            if (!span.meets(Span(entry.kept[step].original()))) continue;
            writes_++;
            if (entry.is_kept[step]) continue;
            entry.kept[step].copy_outside();
            entry.is_kept[step] = entry.outside = true;
        }
    });
}

/* ---- buffers ---- */

namespace {

const void *place_of(const at::Tensor &tensor) {
    return tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
}

} // namespace

bool is_named_as_a_norms(const std::string &name) {
    std::string own = name.substr(name.rfind('.') + 1);
    return own == "running_mean" || own == "running_var" || own == "num_batches_tracked";
}

void WrittenBuffers::begin(std::vector<Named> &&buffers) {
    entries_.clear();
    for (Named &named : buffers) {
        if (warned_ || is_named_as_a_norms(named.name)) continue;
        entries_.push_back({std::move(named), 0, nullptr, false});
        Entry &entry = entries_.back();
        entry.version = version_of(entry.named.tensor);
        entry.place = place_of(entry.named.tensor);
    }
}

void WrittenBuffers::end_chunk(const std::vector<const void *> &statistics) {
    for (Entry &entry : entries_) {
        uint32_t version = version_of(entry.named.tensor);
        const void *place = place_of(entry.named.tensor);
        bool is_changed = version != entry.version || place != entry.place;
        bool is_norms = std::find(statistics.begin(), statistics.end(), place) != statistics.end();
        if (is_changed && entry.changed && !is_norms)
            warn_once(warned_, "buffer", entry.named.name);
        entry.changed |= is_changed;
        entry.version = version;
        entry.place = place;
    }
}

WatchWrites::WatchWrites(WrittenParameters *written) : before_(watching) {
    if (!written) return;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(before_operator)
                                             .needsInputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
    watching = written;
}

WatchWrites::~WatchWrites() {
    watching = before_;
    if (handle_) at::removeCallback(handle_);
}

} // namespace memtrain::shim
