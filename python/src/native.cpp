/*
 * native.cpp - memtrain._native: the budgeted allocator of the CPU inside Python's process, memory of cards, and a
 * trainer whose backend is a Python object.
 *
 * All calls come from Python and hold its lock, the trainer's calls back into Python too. What a method of
 * the backend raises ends here: memory that ran out becomes MT_EDEVMEM; any other exception is kept, the
 * step is taken back, and it is raised again as it was.
 */
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/csrc/autograd/python_variable.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memtrain/trainer.h>

#include "arena.hpp"
#include "arguments.hpp"
#include "backward_queue.hpp"
#include "canary.hpp"
#include "cpu_memory.hpp"
#include "device_memory.hpp"
#include "device_name.hpp"
#include "guard.hpp"
#include "injection.hpp"
#include "init.hpp"
#include "watch.hpp"

namespace py = pybind11;

namespace memtrain::shim {

/* Python has initialised libtorch, and loaded the parts that there are for cards. */
mt_status ensure_init() noexcept {
    return MT_OK;
}

std::string why_absent(c10::DeviceType type) {
    return "this torch has no part for " + c10::DeviceTypeName(type);
}

std::string why_no_card(c10::DeviceType type) {
    return "torch finds no card for " + c10::DeviceTypeName(type);
}

} // namespace memtrain::shim

namespace {

using namespace memtrain::shim;
using Clock = std::chrono::steady_clock;

[[noreturn]] void raise(mt_status status) {
    std::string line = mt_last_error();
    if (status == MT_EINVAL) throw py::value_error(line);
    throw std::runtime_error(line);
}

void must(mt_status status) {
    if (status != MT_OK) raise(status);
}

py::module_ helpers() {
    return py::module_::import("memtrain._helpers");
}

/* ---- exceptions ------------------------------------------------------------------------------------------ */

bool is_of(const py::error_already_set &error, const char *module, const char *name) {
    return error.matches(py::module_::import(module).attr(name));
}

/* Whether memory ran out. What TorchScript makes of that is a RuntimeError, which a refusal tells. */
bool is_out_of_memory(const py::error_already_set &error, Evidence evidence, const char *text) {
    if (error.matches(PyExc_MemoryError) || is_of(error, "torch", "OutOfMemoryError")) return true;
    if (!error.matches(PyExc_RuntimeError)) return false;
    return classify(evidence, false, text) == MT_EDEVMEM;
}

/* What has been refused since it was made: on this thread by the host, or by a card. */
class Refusals {
public:
    explicit Refusals(const Device &device)
        : device_(device), host_(cpu::refusals().count), card_(device_ooms(device)) {}
    Evidence evidence() const {
        if (cpu::refusals().count != host_) return Evidence::host;
        return device_ooms(device_) != card_ ? Evidence::card : Evidence::none;
    }

private:
    const Device &device_;
    uint64_t host_;
    int64_t card_;
};

Device device_by(const std::string &name) {
    Device device = c10::Device(c10::kCPU);
    must(parse_device(name.c_str(), "memtrain", &device));
    return device;
}

/* ---- a trainer ------------------------------------------------------------------------------------------- */

class Core {
public:
    Core(py::object backend, const std::string &device, const py::dict &options, py::object trace,
         bool planned);
    ~Core();
    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;

    py::dict step(size_t count);
    py::dict evaluate(size_t count);
    py::dict summary() const;
    std::string explain() const;
    void set_chunks(const std::vector<size_t> &chunks);
    void tell_gradient(size_t address) const;
    bool is_recording() const { return sink_.event != nullptr; }

    /* The functions of the backend. */
    static mt_status describe(void *self, mt_backend_info *out);
    static mt_status memory(void *self, mt_memory *out);
    static mt_status reset_peak(void *self);
    static mt_status empty_cache(void *self, mt_clear_result *out);
    static mt_status begin(void *self, const mt_batch *batch);
    static mt_status accumulate(void *self, size_t first, size_t count, double weight,
                                mt_chunk_result *out);
    static mt_status rollback(void *self);
    static mt_status apply(void *self, mt_apply_result *out);
    static mt_status evaluate_chunk(void *self, const mt_batch *batch, size_t first, size_t count,
                                    mt_chunk_result *out);
    static mt_status record(void *self, const mt_event_sink *sink);
    static mt_status mark(void *self);
    static mt_status rewind(void *self);
    static mt_status shape(void *self, const mt_batch *batch, mt_shape *out);
    static mt_status hold_gradients(void *self, int on);
    static mt_status look_at_parameters(void *self, int *out);
    static mt_status collect(void *self, mt_chunk_result *out);

private:
    static Core &of(void *self) { return *static_cast<Core *>(self); }
    template <class Body> mt_status call(Body &&body) noexcept;
    template <class Body> mt_status call_surely(Body &&body) noexcept;
    template <class Body>
    mt_status run_chunk(bool training, size_t count, mt_chunk_result *out, Body &&body);
    mt_status take_error(const py::error_already_set &error, Evidence evidence);
    mt_status check_canary(bool is_update);
    mt_status end_evaluation(mt_status status);
    mt_backend backend() noexcept;
    void check(mt_status status);

    py::object backend_, trace_;
    Device device_;
    std::string device_name_, version_;
    Canary canary_; /* of MPS */
    std::optional<py::error_already_set> error_;
    mt_trainer *trainer_ = nullptr;
    mt_event_sink sink_ = {nullptr, nullptr};
    std::unique_ptr<cpu::Arena, cpu::CloseArena> arena_;
    uint64_t shape_ = 0;
    bool marked_ = false;
    bool evaluates_ = false; /* since the last step */
};

/*
 * Keeps an exception that is no lack of memory, without what the package's own frames hold: the chunk's graph. Of one
 * that is a lack of memory, all that its frames hold is let go of.
 */
mt_status Core::take_error(const py::error_already_set &error, Evidence evidence) {
    std::string text = py::str(error.value());
    std::string line = text.substr(0, text.find('\n'));
    if (!is_out_of_memory(error, evidence, text.c_str())) {
        error_ = error;
        helpers().attr("forget_own")(error.value());
        std::string name = py::str(error.type().attr("__name__"));
        return mt_set_error(MT_ETORCH, "%s: %s", name.c_str(), line.c_str());
    }
    helpers().attr("forget")(error.value());
    return mt_set_error(MT_EDEVMEM, "%s", line.c_str());
}

template <class Body> mt_status Core::call(Body &&body) noexcept {
    Refusals refusals(device_);
    try {
        try {
            body();
            return MT_OK;
        } catch (const py::error_already_set &error) {
            return take_error(error, refusals.evidence());
        }
    } catch (const py::error_already_set &error) {
        error_ = error; /* of Python's own while it told of another one */
        return mt_set_error(MT_ETORCH, "an exception could not be told");
    } catch (...) {
        return describe_exception();
    }
}

/*
 * What must not fail is done again where an interrupt came in between, which is raised again later. The methods may be
 * called twice.
 */
template <class Body> mt_status Core::call_surely(Body &&body) noexcept {
    mt_status status = call(body);
    if (status == MT_OK || !error_ || !error_->matches(PyExc_KeyboardInterrupt)) return status;
    error_.reset();
    status = call(body);
    PyErr_SetInterrupt();
    return status;
}

mt_status Core::describe(void *self, mt_backend_info *out) {
    return of(self).call_surely([&] {
        py::dict info = of(self).backend_.attr("describe")();
        auto number = [&](const char *key) { return info[key].cast<size_t>(); };
        of(self).version_ = info["version"].cast<std::string>();
        out->device = of(self).device_name_.c_str();
        out->version = of(self).version_.c_str();
        out->min_micro_batch = number("min_micro_batch");
        out->normalises_over_batch = static_cast<int>(number("normalises_over_batch"));
        out->needs_whole_batch = static_cast<int>(number("needs_whole_batch"));
        out->parameter_bytes = number("parameter_bytes");
        out->gradient_bytes = number("gradient_bytes");
        out->optimizer_bytes = number("optimizer_bytes");
        out->buffer_bytes = number("buffer_bytes");
        out->threads = at::get_num_threads();
    });
}

mt_status Core::memory(void *self, mt_memory *out) {
    return guard([&] { hand_over(device_memory(of(self).device_, false), out); });
}

mt_status Core::reset_peak(void *self) {
    return guard([&] { reset_device_peak(of(self).device_); });
}

mt_status Core::empty_cache(void *self, mt_clear_result *out) {
    return guard([&] { hand_over(empty_device_cache(of(self).device_), out); });
}

/* On MPS alone: whether the GPU has done what it was given (canary.hpp). */
mt_status Core::check_canary(bool is_update) {
    return guard([&] {
        canary_.send(device_);
        canary_.check(is_update);
    });
}

mt_status Core::begin(void *self, const mt_batch *) {
    Core &core = of(self);
    core.marked_ = core.evaluates_ = false;
    if (!core.canary_.is_there())
        MT_RETURN_IF_FAILED(guard([&] { core.canary_.lay_out(core.device_); }));
    return core.call([&] { core.backend_.attr("begin")(); });
}

/*
 * body(result) is one chunk, served from planned memory where that is wanted. What a chunk that failed still holds is in
 * cycles of Python's.
 */
template <class Body>
mt_status Core::run_chunk(bool training, size_t count, mt_chunk_result *out, Body &&body) {
    cpu::Refusals before = cpu::refusals();
    size_t allocated = 0;
    MT_RETURN_IF_FAILED(guard([&] {
        allocated = device_allocated(device_);
        if (device_.is_cpu()) cpu::follow_host();
        start_call_peak(device_);
    }));
    auto start = Clock::now();
    cpu::Kind kind = {training, training, 0, 0, shape_, at::get_num_threads(), 0};
    mt_status status;
    {
        cpu::Planned planned(arena_.get(), kind, count, marked_);
        Listening listening(device_, sink_);
        injection::RefusalsEnd end(device_);
        status = call(body);
        if (status == MT_OK && !out->deferred) status = check_canary(false);
        double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        if (!out->deferred) out->seconds = seconds;
        if (status == MT_OK) planned.done(seconds);
    }
    bool is_more = false;
    (void)guard([&] {
        out->peak_bytes = call_peak(device_);
        is_more = device_allocated(device_) > allocated;
    });
    cpu::add_evidence(before, *out);
    if (status == MT_EDEVMEM && is_more) PyGC_Collect();
    return status;
}

/* A method of the backend's returns the sum of the loss, and the units that it is over. */
void read_sums(const py::object &returned, mt_chunk_result *out) {
    auto sums = returned.cast<std::pair<double, double>>();
    out->loss_sum = sums.first;
    out->units = sums.second;
}

/* On a card a chunk that is waited for begins when those are done that were not. */
mt_status Core::accumulate(void *self, size_t first, size_t count, double weight,
                           mt_chunk_result *out) {
    Core &core = of(self);
    if (!out->deferred && !core.device_.is_cpu())
        MT_RETURN_IF_FAILED(core.call([&] { core.backend_.attr("settle")(); }));
    mt_status status = core.run_chunk(true, count, out, [&] {
        bool may_wait = out->deferred != 0;
        py::object sums =
            core.backend_.attr("accumulate")(first, count, weight, core.marked_, may_wait);
        out->deferred = sums.is_none();
        if (!out->deferred) read_sums(sums, out);
    });
    if (status == MT_OK)
        core.marked_ = false;
    else
        (void)guard([] { BackwardQueue::replace(BackwardQueue::make()); });
    return status;
}

/* An evaluation has no rollback: what fails takes itself back, and the chunks whose figures are still to come. */
mt_status Core::end_evaluation(mt_status status) {
    if (status != MT_OK && evaluates_)
        (void)call_surely([&] { backend_.attr("take_back_evaluation")(); });
    return status;
}

mt_status Core::collect(void *self, mt_chunk_result *out) {
    Core &core = of(self);
    bool is_first = false;
    mt_status status = core.call([&] { is_first = core.backend_.attr("settle")().cast<bool>(); });
    if (status == MT_OK && is_first) status = core.check_canary(false);
    if (status == MT_OK)
        status = core.call([&] {
            auto told = core.backend_.attr("collect")().cast<std::tuple<double, double, double>>();
            out->loss_sum = std::get<0>(told);
            out->units = std::get<1>(told);
            out->seconds = std::get<2>(told);
        });
    return core.end_evaluation(status);
}

mt_status Core::evaluate_chunk(void *self, const mt_batch *, size_t first, size_t count,
                               mt_chunk_result *out) {
    Core &core = of(self);
    bool may_wait = out->deferred != 0;
    cpu::Refusals before = cpu::refusals();
    core.evaluates_ = true;
    mt_status status = core.call([&] { core.backend_.attr("keep_for_evaluation")(may_wait); });
    if (status != MT_OK)
        cpu::add_evidence(before, *out);
    else
        status = core.run_chunk(false, count, out, [&] {
            py::object sums = core.backend_.attr("evaluate")(first, count, may_wait);
            out->deferred = sums.is_none();
            if (!out->deferred) read_sums(sums, out);
        });
    return core.end_evaluation(status);
}

mt_status Core::rollback(void *self) {
    of(self).marked_ = false;
    return of(self).call_surely([&] { of(self).backend_.attr("rollback")(); });
}

mt_status Core::mark(void *self) {
    mt_status status = of(self).call([&] { of(self).backend_.attr("mark")(); });
    of(self).marked_ = status == MT_OK;
    return status;
}

mt_status Core::rewind(void *self) {
    of(self).marked_ = false;
    return of(self).call_surely([&] { of(self).backend_.attr("rewind")(); });
}

/* Once the optimiser has stepped the update stays: an interrupt that comes between is raised later. */
mt_status Core::apply(void *self, mt_apply_result *out) {
    auto start = Clock::now();
    Core &core = of(self);
    cpu::Refusals before = cpu::refusals();
    mt_status status = core.call([&] {
        auto done = core.backend_.attr("apply")().cast<std::tuple<double, bool, double>>();
        out->grad_norm = std::get<0>(done);
        out->skipped = std::get<1>(done);
        out->lr = std::get<2>(done);
    });
    cpu::add_evidence(before, *out);
    if (status == MT_OK) status = core.check_canary(true);
    if (status == MT_OK && !out->skipped)
        status = core.call_surely([&] { core.backend_.attr("commit")(); });
    out->seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return status;
}

mt_status Core::record(void *self, const mt_event_sink *sink) {
    of(self).sink_ = sink ? *sink : mt_event_sink{nullptr, nullptr};
    if (of(self).device_.is_cpu()) cpu::set_sink(sink);
    return MT_OK;
}

mt_status Core::shape(void *self, const mt_batch *, mt_shape *out) {
    return of(self).call([&] {
        py::tuple told = of(self).backend_.attr("shape")();
        out->id = of(self).shape_ = told[0].cast<uint64_t>();
        out->family = told[1].cast<uint64_t>();
        out->length = told[2].cast<size_t>();
    });
}

mt_status Core::hold_gradients(void *self, int on) {
    return of(self).call([&] { of(self).backend_.attr("hold_gradients")(on != 0); });
}

mt_status Core::look_at_parameters(void *self, int *out) {
    return of(self).call([&] { *out = of(self).backend_.attr("is_finite")().cast<bool>(); });
}

void Core::tell_gradient(size_t address) const {
    if (sink_.event) sink_.event(sink_.user, reinterpret_cast<void *>(address), 0);
}

mt_backend Core::backend() noexcept {
    mt_backend b = MT_BACKEND_INIT;
    b.self = this;
    b.describe = describe;
    b.memory = memory;
    bool is_mps = device_.memory() == Memory::mps; /* it keeps no peak, and tells of no request */
    b.reset_peak = is_mps ? nullptr : reset_peak;
    b.empty_cache = empty_cache;
    b.begin = begin;
    b.accumulate = accumulate;
    b.rollback = rollback;
    b.apply = apply;
    b.evaluate = evaluate_chunk;
    b.record = is_mps ? nullptr : record;
    b.mark = mark;
    b.rewind = rewind;
    b.shape = shape;
    b.hold_gradients = hold_gradients;
    b.look_at_parameters = look_at_parameters;
    b.collect = device_.is_cpu() ? nullptr : collect;
    return b;
}

/* Numbers of mt_policy_options by their names; the names are those of the class in Python. */
mt_policy_options policy_of(const py::dict &given) {
    mt_policy_options o = MT_POLICY_OPTIONS_INIT;
    auto has = [&](const char *key) { return given.contains(key); };
    if (has("micro_batch")) o.micro_batch = given["micro_batch"].cast<size_t>();
    if (has("min_micro_batch")) o.min_micro_batch = given["min_micro_batch"].cast<size_t>();
    if (has("max_micro_batch")) o.max_micro_batch = given["max_micro_batch"].cast<size_t>();
    if (has("clear_every")) o.clear_every = given["clear_every"].cast<int>();
    if (has("deterministic")) o.deterministic = given["deterministic"].cast<bool>();
    if (has("max_retries")) o.max_retries = given["max_retries"].cast<unsigned>();
    if (has("keep_chunks")) o.keep_chunks = given["keep_chunks"].cast<int>();
    return o;
}

void write_trace(void *user, const char *line) {
    try {
        (*static_cast<py::object *>(user))(line);
    } catch (py::error_already_set &error) {
        error.discard_as_unraisable("memtrain: trace");
    }
}

Core::Core(py::object backend, const std::string &device, const py::dict &options, py::object trace,
           bool planned)
    : backend_(std::move(backend)), trace_(std::move(trace)), device_(device_by(device)),
      device_name_(device_.name()) {
    mt_policy_options policy = policy_of(options);
    mt_trainer_options o = MT_TRAINER_OPTIONS_INIT;
    mt_backend functions = this->backend();
    o.policy = &policy;
    if (!trace_.is_none()) {
        o.trace = write_trace;
        o.trace_user = &trace_;
    }
    o.apply_not_finite =
        options.contains("apply_not_finite") && options["apply_not_finite"].cast<bool>();
    if (planned && device_.is_cpu()) arena_.reset(cpu::Arena::open());
    check(mt_trainer_new(&functions, &o, &trainer_));
}

Core::~Core() {
    mt_trainer_free(trainer_);
}

/* Raises what a method of the backend raised, or what the library says. */
void Core::check(mt_status status) {
    std::optional<py::error_already_set> kept = std::move(error_);
    error_.reset();
    if (status == MT_OK) return;
    std::string line = mt_last_error();
    if (kept && status != MT_EDEVMEM && status != MT_ESTATE) throw *kept;
    if (status == MT_EDEVMEM) {
        helpers().attr("raise_out_of_memory")(line, explain());
        return;
    }
    raise(status);
}

py::dict Core::step(size_t count) {
    mt_step_report r = MT_STEP_REPORT_INIT;
    mt_batch batch = MT_BATCH_INIT;
    batch.count = count;
    mt_run_report before = MT_RUN_REPORT_INIT, after = MT_RUN_REPORT_INIT;
    must(mt_trainer_summary(trainer_, &before));
    check(mt_trainer_step(trainer_, &batch, &r));
    must(mt_trainer_summary(trainer_, &after));
    static const char *const skips[] = {"", "gradient not finite", "loss not finite", "no units"};
    py::dict report;
    report["step"] = r.step;
    report["samples"] = r.samples;
    report["loss"] = r.loss;
    report["chunks"] = std::vector<size_t>(r.chunks, r.chunks + r.chunk_count);
    report["ooms"] = after.ooms - before.ooms;
    report["retries"] = r.retries;
    report["discarded"] = r.discarded;
    report["grad_norm"] = r.grad_norm;
    report["seconds"] = r.seconds;
    report["skipped"] = skips[r.skipped];
    report["reason"] = mt_plan_reason_name(r.reason);
    report["predicted_peak_bytes"] = r.predicted_peak_bytes;
    report["peak_bytes"] = r.peak_bytes;
    report["allocated_bytes"] = r.allocated_bytes;
    report["budget_bytes"] = r.budget_bytes;
    return report;
}

py::dict Core::evaluate(size_t count) {
    mt_eval_report r = MT_EVAL_REPORT_INIT;
    mt_batch batch = MT_BATCH_INIT;
    batch.count = count;
    check(mt_trainer_evaluate(trainer_, &batch, &r));
    py::dict report;
    report["samples"] = r.samples;
    report["loss"] = r.loss;
    report["chunk_count"] = r.chunk_count;
    report["retries"] = r.retries;
    report["seconds"] = r.seconds;
    report["peak_bytes"] = r.peak_bytes;
    return report;
}

py::dict Core::summary() const {
    mt_run_report r = MT_RUN_REPORT_INIT;
    must(mt_trainer_summary(trainer_, &r));
    py::dict report;
    report["steps"] = r.steps;
    report["samples_trained"] = r.samples_trained;
    report["samples_discarded"] = r.samples_discarded;
    report["ooms"] = r.ooms;
    report["clears"] = r.clears;
    report["peak_bytes"] = r.peak_bytes;
    report["budget_bytes"] = r.budget_bytes;
    report["smallest_chunk"] = r.smallest_chunk;
    report["largest_chunk"] = r.largest_chunk;
    report["seconds"] = r.seconds;
    return report;
}

std::string Core::explain() const {
    std::vector<char> text(mt_trainer_explain(trainer_, nullptr, 0) + 1);
    mt_trainer_explain(trainer_, text.data(), text.size());
    std::string words = text.data();
    if (!words.empty()) words += backend_.attr("explain_update")().cast<std::string>();
    return words;
}

void Core::set_chunks(const std::vector<size_t> &chunks) {
    must(mt_trainer_set_chunks(trainer_, chunks.data(), chunks.size()));
}

/*
 * Lets one call in at a time, and puts back whether gradients are on: an interrupt may come inside of torch.no_grad()'s
 * end. None comes between the end of the call and that of being busy. What a step of one trainer does inside a call of another
 * could not be taken back with that: a call with a refusal for it is refused there.
 */
class Gate {
public:
    py::object run(const py::object &function, const std::string &refusal,
                   const std::string &refusal_inside) {
        static thread_local int calls = 0; /* of any gate, that this thread is in */
        if (busy_) throw std::runtime_error(refusal);
        if (calls && !refusal_inside.empty()) throw std::runtime_error(refusal_inside);
        struct Leave {
            bool &busy, grad;
            ~Leave() {
                busy = false;
                calls--;
                c10::GradMode::set_enabled(grad);
            }
        } leave{busy_, c10::GradMode::is_enabled()};
        busy_ = true;
        calls++;
        return function();
    }

private:
    bool busy_ = false; /* read and written under Python's lock */
};

/* ---- functions of the module ----------------------------------------------------------------------------- */

void write_log(void *, mt_log_level level, const char *text) {
    py::gil_scoped_acquire lock;
    try {
        helpers().attr("log")(static_cast<int>(level), text);
    } catch (py::error_already_set &error) {
        error.discard_as_unraisable("memtrain: log");
    } catch (...) {
        /* A line of the log is lost. */
    }
}

/* ---- cards ---- */

/* function(), as in a chunk: what a card refuses, libraries do not go on from. It is a torch.OutOfMemoryError all the same. */
py::object with_refusals_that_end(const std::string &device, const py::object &function) {
    Device place = device_by(device);
    injection::RefusalsEnd end(place);
    Refusals refusals(place);
    try {
        return function();
    } catch (const py::error_already_set &error) {
        std::string line = py::str(error.value());
        if (is_of(error, "torch", "OutOfMemoryError") ||
            !is_out_of_memory(error, refusals.evidence(), line.c_str()))
            throw;
        PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), line.c_str());
    }
    throw py::error_already_set();
}

/* "cpu", and the cards that are here, by torch's names: "cuda:0". */
std::vector<std::string> devices() {
    std::vector<std::string> names = {"cpu"};
    for (const c10::Device &card : cards_here()) names.push_back(card.str());
    return names;
}

/* A card that is full or lost throws. */
bool has_doubles(const std::string &name) {
    try {
        return device_by(name).has_doubles();
    } catch (const c10::OutOfMemoryError &error) {
        PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(),
                        error.what_without_backtrace());
    }
    throw py::error_already_set();
}

void set_card_budget(const std::string &name, size_t bytes) {
    must(mt_device_set_budget(name.c_str(), bytes));
}

py::dict card_memory(const std::string &name) {
    mt_memory memory = MT_MEMORY_INIT;
    must(mt_device_memory(name.c_str(), &memory));
    py::dict figures;
    figures["budget_bytes"] = memory.budget_bytes;
    figures["allocated_bytes"] = memory.allocated_bytes;
    figures["reserved_bytes"] = memory.reserved_bytes;
    figures["peak_bytes"] = memory.peak_bytes;
    return figures;
}

/* Of a card's own generator: its state is a tensor of the host's. */
py::object rng_state(const std::string &name) {
    at::Generator generator = at::globalContext().defaultGenerator(device_by(name));
    std::lock_guard<std::mutex> lock(generator.mutex());
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(generator.get_state()));
}

void set_rng_state(const std::string &name, const py::object &state) {
    if (!THPVariable_Check(state.ptr())) throw py::type_error("not a tensor");
    at::Generator generator = at::globalContext().defaultGenerator(device_by(name));
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(THPVariable_Unpack(state.ptr()));
}

void install() {
    if (!cpu::installed()) cpu::install();
}

size_t parse_size(const std::string &text) {
    size_t bytes = 0;
    must(mt_parse_size(text.c_str(), 0, &bytes));
    return bytes;
}

std::string format_size(size_t bytes) {
    char text[32];
    return mt_format_size(bytes, text, sizeof text);
}

/* Where its memory begins and how much it is, where libtorch's own allocator made it; else (0, 0). */
std::pair<size_t, size_t> uncounted(const py::object &object) {
    if (!THPVariable_Check(object.ptr())) throw py::type_error("not a tensor");
    const at::Tensor &tensor = THPVariable_Unpack(object.ptr());
    if (!tensor.has_storage() || !cpu::is_uncounted(tensor.storage().data_ptr())) return {0, 0};
    return {reinterpret_cast<size_t>(tensor.storage().data()), tensor.storage().nbytes()};
}

/* Gives back what waits for the next chunk or tensor: pages of arenas, and the heap's. */
void drop_pages() {
    cpu::Arena::drop_all_pages();
    cpu::trim_heap();
}

/* How many requests of this thread the host has refused, and of the last one its bytes and those that were in use then. */
std::tuple<uint64_t, size_t, size_t> refusals() {
    cpu::Refusals all = cpu::refusals();
    return {all.count, all.bytes, all.in_use};
}

/* A forked child has the parent's figures, and memory of its own: no budget of the parent's is its. */
void enter_child() {
    cpu::set_budget(SIZE_MAX);
    injection::arm(0, false);
    cpu::set_sink(nullptr);
}

void inject(uint64_t nth, bool persistent) {
    injection::reach_cards();
    injection::arm(nth, persistent);
}

std::pair<uint64_t, uint64_t> injected() {
    uint64_t requests = 0, failed = 0;
    injection::read(&requests, &failed);
    return {requests, failed};
}

} // namespace

PYBIND11_MODULE(_native, m) {
    mt_set_log(write_log, nullptr);
    m.def("install", install);
    m.def("installed", cpu::installed);
    m.def("set_budget", cpu::set_budget);
    m.def("budget", cpu::budget);
    m.def("allocated", cpu::allocated);
    m.def("peak", cpu::peak);
    m.def("reset_peak", cpu::reset_peak);
    m.def("refusals", refusals);
    m.def("hold", cpu::hold);
    m.def("resident_bytes", cpu::resident_bytes);
    m.def("peak_resident_bytes", cpu::peak_resident_bytes);
    m.def("predict_resident", cpu::resident_for);
    m.def("planned_bytes", cpu::Arena::touched_bytes);
    m.def("drop_pages", drop_pages);
    m.def("uncounted", uncounted);
    m.def("parse_size", parse_size);
    m.def("format_size", format_size);
    m.def("with_refusals_that_end", with_refusals_that_end);
    m.def("inject", inject);
    m.def("injected", injected);
    m.def("enter_child", enter_child);
    m.def("devices", devices);
    m.def("has_doubles", has_doubles);
    m.def("set_card_budget", set_card_budget);
    m.def("card_memory", card_memory);
    m.def("rng_state", rng_state);
    m.def("set_rng_state", set_rng_state);
    m.attr("version") = mt_version_string();
    py::class_<Gate>(m, "Gate").def(py::init<>()).def("run", &Gate::run);
    py::class_<Core>(m, "Core")
        .def(py::init<py::object, std::string, py::dict, py::object, bool>())
        .def("step", &Core::step)
        .def("evaluate", &Core::evaluate)
        .def("summary", &Core::summary)
        .def("explain", &Core::explain)
        .def("set_chunks", &Core::set_chunks)
        .def("tell_gradient", &Core::tell_gradient)
        .def("is_recording", &Core::is_recording);
}
