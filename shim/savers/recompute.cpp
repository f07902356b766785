/*
 * recompute.cpp - a segment as one node of the graph: it keeps the inputs and what the forward pass
 * depended on (random numbers, autocast, where saved tensors go), and computes the rest again when its
 * gradient is asked for.
 *
 * The node is no torch::autograd::Function, which would have no node at all where no input needs a
 * gradient, and with it lose those of the segment's parameters.
 */
#include "recompute.hpp"

#include <deque>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "arguments.hpp"
#include "autocast.hpp"
#include "compat.hpp"
#include "guard.hpp"
#include "init.hpp"
#include "offload.hpp"
#include "segment_end.hpp"
#include "snapshot.hpp"

namespace memtrain::shim {
namespace {

namespace autograd = torch::autograd;
using autograd::variable_list;

constexpr char name_of[] = "mt_checkpoint";

thread_local Checkpointing *current = nullptr;

/* Whether a segment that comes now may forget. */
bool may_forget() {
    return c10::GradMode::is_enabled() && (!current || current->rule().on);
}

std::shared_ptr<SegmentMeter> current_meter() {
    return current ? current->rule().meter : nullptr;
}

size_t bytes_of(const variable_list &tensors) {
    size_t bytes = 0;
    for (const at::Tensor &tensor : tensors) bytes += tensor.defined() ? tensor.nbytes() : 0;
    return bytes;
}

/* The caller's functions and self, which is destroyed once. */
class Segment {
public:
    Segment(const mt_segment_ops &ops, void *self) noexcept : ops_(ops), self_(self) {
        ops_.conv = nullptr; /* the caller's */
        ops_.batch_norm = nullptr;
    }
    ~Segment() {
        if (ops_.destroy) (void)guard([this] { ops_.destroy(self_); });
    }
    Segment(Segment &&other) noexcept : ops_(other.ops_), self_(other.self_) {
        other.ops_.destroy = nullptr;
    }
    Segment &operator=(Segment &&) = delete;

    void run(mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
             size_t output_count) const {
        check(ops_.run(self_, inputs, input_count, outputs, output_count));
    }
    bool names_buffers() const { return ops_.visit_buffers != nullptr; }
    std::vector<Named> buffers() const {
        std::vector<Named> list;
        check(ops_.visit_buffers(self_, collect, &list));
        return list;
    }

private:
    mt_segment_ops ops_;
    void *self_;
};

variable_list tensors_of(mt_tensor *const *handles, size_t count) {
    variable_list list;
    for (size_t i = 0; i < count; i++) list.push_back(handles[i]->tensor);
    return list;
}

/* The accelerator that computes on them, or the CPU. */
c10::Device device_of(const variable_list &tensors) {
    for (const at::Tensor &tensor : tensors)
        if (tensor.defined() && !tensor.is_cpu()) return tensor.device();
    return c10::Device(c10::kCPU);
}

/* What a segment must give each time. */
struct Form {
    c10::ScalarType dtype;
    std::vector<int64_t> shape;

    explicit Form(const at::Tensor &tensor)
        : dtype(tensor.scalar_type()), shape(tensor.sizes().vec()) {}
    bool operator==(const Form &other) const {
        return dtype == other.dtype && shape == other.shape;
    }
    std::string text() const {
        std::ostringstream text;
        text << dtype << ' ' << at::IntArrayRef(shape);
        return text.str();
    }
};

bool shares_memory(const at::Tensor &tensor, const variable_list &others) {
    for (const at::Tensor &other : others)
        if (other.defined() && other.has_storage() && tensor.has_storage() &&
            tensor.is_alias_of(other))
            return true;
    return false;
}

/* They are there while it lives; none for an empty function. */
class Surrounded {
public:
    explicit Surrounded(const Surround &surround) {
        if (surround) surroundings_ = surround();
    }
    void finish() {
        if (surroundings_) surroundings_->finish();
    }

private:
    std::unique_ptr<Surroundings> surroundings_;
};

/* ---- the node ---- */

/*
 * Where the gradient of an input ends in the second run, as autograd has made it. A leaf would bring it into the input's
 * order in memory, where a gradient that is expanded, as that of a mean is, goes on as it is in a plain run: what comes
 * before would choose other kernels.
 */
class InputGradient final : public autograd::Node {
public:
    std::string name() const override { return "MemtrainSegmentInput"; }
    variable_list apply(variable_list &&gradients) override {
        gradient = std::move(gradients[0]);
        return {};
    }

    at::Tensor gradient; /* undefined: none came */
};

using InputGradients = std::vector<decltype(compat::new_node<InputGradient>())>;

class Recomputation final : public autograd::Node {
public:
    Recomputation(Segment &&segment, std::optional<SegmentEnd> &&end, const variable_list &inputs,
                  const Surround &surround)
        : Node(autograd::collect_next_edges(inputs)), segment_(std::move(segment)),
          end_(std::move(end)), device_(device_of(inputs)), autocast_(device_.type()),
          offloaded_to_(Offloading::current()), meter_(surround ? nullptr : current_meter()),
          surround_(surround) {
        rng_.take(device_);
        if (current) {
            buffers_ = current->buffers();
            inner_ = current->rule().inner;
        }
        bool rounds = offloaded_to_ && offloaded_to_->offload().kind() == MT_OFFLOAD_PACK;
        Offloading inputs_to(rounds ? nullptr
                                    : offloaded_to_); /* what is run again starts from bits */
        for (const at::Tensor &input : inputs) {
            saved_.emplace_back(input, /*is_output=*/false);
            needs_gradient_.push_back(input.defined() && input.requires_grad());
        }
    }

    /* The forward pass, without a graph. */
    void run(mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
             size_t output_count) {
        Surrounded surrounded(surround_);
        run_within(inputs, input_count, outputs, output_count);
        surrounded.finish();
    }

    void run_within(mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
                    size_t output_count) {
        if (!end_) return segment_->run(inputs, input_count, outputs, output_count);
        Handles between(variable_list(1));
        segment_->run(inputs, input_count, between.get(), 1);
        check_defined(between.tensor(0), 0);
        between_.emplace(between.tensor(0));
        outputs[0]->tensor = end_->run(between.tensor(0));
    }

    void set_number(size_t number) { number_ = number; }

    /* Makes a tensor of the forward pass an output of the node. */
    void adopt(at::Tensor &output, const variable_list &inputs) {
        check_defined(output, forms_.size());
        forms_.emplace_back(output);
        output = (shares_memory(output, inputs) ? output.clone() : output).variable_data();
        if (autograd::isDifferentiableType(output.scalar_type()))
            autograd::set_history(output, getptr());
        else
            add_input_metadata(undefined_input());
    }

    std::string name() const override { return "MemtrainSegment"; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        saved_.clear();
        segment_.reset();
        end_.reset();
        surround_ = nullptr;
    }

    variable_list apply(variable_list &&gradients) override {
        try {
            return backward(std::move(gradients));
        } catch (const Failure &failure) {
            TORCH_CHECK_WITH(OutOfMemoryError, failure.status() != MT_EDEVMEM, failure.what());
            throw;
        }
    }

private:
    static void check_defined(const at::Tensor &output, size_t i) {
        if (!output.defined())
            fail(MT_EINVAL, "%s: the segment left outputs[%zu] empty", name_of, i);
    }

    /* What this node cannot do would be wrong without a word. */
    void check_call() const {
        TORCH_CHECK(segment_, autograd::ERR_BACKWARD_TWICE);
        if (c10::GradMode::is_enabled())
            fail(MT_ENOTSUP, "%s: gradients of gradients do not go through a segment", name_of);
        if (!autograd::Engine::get_default_engine().is_checkpoint_valid())
            fail(MT_ENOTSUP, "%s: needs a backward pass to all parameters, not to some inputs",
                 name_of);
    }

    variable_list backward(variable_list &&gradients) {
        std::lock_guard<std::mutex> lock(mutex_);
        check_call();
        if (meter_) meter_->begin_backward(number_, bytes_of(gradients));
        Surrounded surrounded(surround_);
        InputGradients ends;
        autograd::edge_list roots;
        compute_again(detached(ends), gradients, roots);
        if (!roots.empty())
            autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                           /*create_graph=*/false,
                                                           /*accumulate_grad=*/true);
        variable_list of_inputs;
        for (const auto &end : ends)
            of_inputs.push_back(end ? std::move(end->gradient) : at::Tensor());
        if (meter_) meter_->end_backward(number_);
        surrounded.finish();
        return of_inputs;
    }

    /* The inputs as those of a graph of their own, and where their gradients end; NULL: it needs none. */
    variable_list detached(InputGradients &ends) const {
        variable_list inputs;
        for (size_t i = 0; i < saved_.size(); i++) {
            at::Tensor input = saved_[i].unpack();
            inputs.push_back(input.defined() ? input.detach() : input);
            ends.emplace_back();
            if (!needs_gradient_[i]) continue;
            ends.back() = compat::new_node<InputGradient>();
            autograd::set_history(inputs.back(), ends.back());
        }
        return inputs;
    }

    /*
     * Leaves the edges to start from in roots, and their gradients in gradients. The outputs themselves
     * are gone by then, unless the graph holds them.
     */
    void compute_again(const variable_list &inputs, variable_list &gradients,
                       autograd::edge_list &roots) const {
        Handles in(inputs), out(variable_list(forms_.size()));
        autograd::Edge of_end = run_again(in, out, gradients);
        if (end_) {
            if (of_end.is_valid()) roots.push_back(std::move(of_end));
            return;
        }
        variable_list kept;
        for (size_t i = 0; i < forms_.size(); i++) {
            check_form(forms_[i], i, out.tensor(i));
            if (!gradients[i].defined() || !out.tensor(i).requires_grad()) continue;
            roots.push_back(autograd::impl::gradient_edge(out.tensor(i)));
            kept.push_back(std::move(gradients[i]));
        }
        gradients = std::move(kept);
    }

    /* As in the forward pass; what that left behind is put back. Where the end's gradient goes, if there is one. */
    autograd::Edge run_again(Handles &in, Handles &out, const variable_list &gradients) const {
        KeepRng keep_rng(device_);
        KeepBuffers keep_buffers(segment_->names_buffers() ? segment_->buffers() : buffers_);
        ReplayAutocast autocast(autocast_);
        Forgetting inside;
        inside.on = inner_;
        Checkpointing inner(inside, buffers_);
        /* What the second run saves of its surroundings goes with them. */
        Offloading offloading(surround_ ? nullptr : offloaded_to_);
        c10::AutoGradMode with_graph(true);
        rng_.restore();
        if (meter_) meter_->begin_again();
        segment_->run(in.get(), in.count(), out.get(), out.count());
        autograd::Edge of_end;
        if (end_) check_form(*between_, 0, out.tensor(0));
        if (end_ && gradients[0].defined()) of_end = end_->backward(out.tensor(0), gradients[0]);
        if (meter_) meter_->end_again(number_, !end_);
        return of_end;
    }

    void check_form(const Form &form, size_t i, const at::Tensor &output) const {
        if (output.defined() && Form(output) == form) return;
        fail(MT_EINVAL,
             "%s: outputs[%zu] was %s and is %s when it is computed again; a segment must give the "
             "same each time",
             name_of, i, form.text().c_str(),
             output.defined() ? Form(output).text().c_str() : "empty");
    }

    std::optional<Segment> segment_;
    std::optional<SegmentEnd> end_; /* of what it gives, or none */
    std::optional<Form> between_;   /* of that */
    std::vector<autograd::SavedVariable> saved_;
    std::vector<bool> needs_gradient_;
    c10::Device device_;
    RngState rng_;
    AutocastState autocast_;
    std::shared_ptr<SavedTensors> offloaded_to_; /* or none */
    std::vector<Named> buffers_;
    std::vector<Form> forms_;
    std::shared_ptr<SegmentMeter> meter_; /* or none */
    size_t number_ = 0;                   /* for the meter */
    Surround surround_;                   /* or none */
    bool inner_ = true;                   /* segments in it forget */
};

/* ---- the forward pass ---- */

void forward(Segment &&segment, std::optional<SegmentEnd> &&end, mt_tensor *const *inputs,
             size_t input_count, mt_tensor *const *outputs, size_t output_count,
             const Surround &surround = {}) {
    std::shared_ptr<SegmentMeter> meter = surround ? nullptr : current_meter();
    variable_list in = tensors_of(inputs, input_count);
    if (meter) meter->enter();
    auto node = compat::new_node<Recomputation>(std::move(segment), std::move(end), in, surround);
    std::vector<uint32_t> versions = versions_of(in);
    const WrittenParameters *written = current ? current->written() : nullptr;
    uint64_t stamp = written ? written->stamp() : 0;
    {
        c10::NoGradGuard no_graph;
        AutocastUncached uncached;
        node->run(inputs, input_count, outputs, output_count);
    }
    if (versions_of(in) != versions)
        fail(MT_EINVAL,
             "%s: the segment changes an input in place, and could not start from it again",
             name_of);
    if (written && written->stamp() != stamp)
        fail(MT_EINVAL,
             "%s: the segment writes to a parameter, and could not start from it again; accepted: "
             "outside of "
             "segments",
             name_of);
    for (size_t i = 0; i < output_count; i++) node->adopt(outputs[i]->tensor, in);
    if (meter) node->set_number(meter->leave(tensors_of(outputs, output_count)));
}

void run_plainly(const Segment &segment, const std::optional<SegmentEnd> &end,
                 mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
                 size_t output_count) {
    segment.run(inputs, input_count, outputs, output_count);
    if (end) outputs[0]->tensor = (*end)(outputs[0]->tensor);
}

void check_handles(const char *function, const char *argument, mt_tensor *const *handles,
                   size_t count) {
    if (count && !handles) fail(MT_EINVAL, "%s: %s is NULL", function, argument);
    for (size_t i = 0; i < count; i++)
        if (!mt__handle_is(handles[i], MT__KIND_TENSOR))
            fail(MT_EINVAL, "%s: %s[%zu] is not a live handle", function, argument, i);
}

void empty(mt_tensor *const *outputs, size_t output_count) {
    for (size_t i = 0; outputs && i < output_count; i++)
        if (mt__handle_is(outputs[i], MT__KIND_TENSOR)) outputs[i]->tensor.reset();
}

bool needs_gradient(const variable_list &tensors) {
    for (const at::Tensor &tensor : tensors)
        if (tensor.defined() && tensor.requires_grad()) return true;
    return false;
}

} // namespace

Checkpointing::Checkpointing(Forgetting rule, std::vector<Named> buffers,
                             const WrittenParameters *written)
    : rule_(std::move(rule)), buffers_(std::move(buffers)), written_(written), before_(current) {
    current = this;
}

/* One beyond the set forgets: it is for a model whose forward pass is always the same. */
bool Checkpointing::take_turn() {
    size_t turn = next_++;
    return rule_.on && (!rule_.set || turn >= rule_.set->size() || (*rule_.set)[turn]);
}

Checkpointing::~Checkpointing() {
    current = before_;
}

mt_status run_surrounded(const char *function, const mt_segment_ops &ops, void *self,
                         mt_tensor *const *inputs, size_t input_count, mt_tensor *const *outputs,
                         size_t output_count, const Surround &surround, bool forgets) {
    Segment segment(ops, self);
    mt_status status = guard([&] {
        check_handles(function, "inputs", inputs, input_count);
        check_handles(function, "outputs", outputs, output_count);
        variable_list in = tensors_of(inputs, input_count);
        if (c10::GradMode::is_enabled() && (forgets || needs_gradient(in)))
            return forward(std::move(segment), {}, inputs, input_count, outputs, output_count,
                           surround);
        c10::NoGradGuard no_graph;
        Surrounded surrounded(surround);
        segment.run(inputs, input_count, outputs, output_count);
        surrounded.finish();
    });
    if (status != MT_OK) empty(outputs, output_count);
    return status;
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" int mt_checkpoint_forgets(void) {
    return may_forget();
}

extern "C" mt_status mt_checkpoint(const mt_segment_ops *ops, void *self, mt_tensor *const *inputs,
                                   size_t input_count, mt_tensor *const *outputs,
                                   size_t output_count) {
    mt_segment_ops own = MT_SEGMENT_OPS_INIT;
    MT_RETURN_IF_FAILED(check_sized(ops, name_of, "ops"));
    copy_in(own, ops);
    Segment segment(own, self);
    MT_RETURN_IF_FAILED(
        check_not_null(reinterpret_cast<const void *>(own.run), name_of, "ops->run"));
    mt_status status = guard([&] {
        check_handles(name_of, "inputs", inputs, input_count);
        check_handles(name_of, "outputs", outputs, output_count);
        std::optional<SegmentEnd> end = SegmentEnd::of(name_of, own, output_count);
        if (!may_forget())
            return run_plainly(segment, end, inputs, input_count, outputs, output_count);
        if (!current || current->take_turn())
            return forward(std::move(segment), std::move(end), inputs, input_count, outputs,
                           output_count);
        Checkpointing off(Forgetting{}, {}); /* as it is, and so those within it */
        run_plainly(segment, end, inputs, input_count, outputs, output_count);
    });
    if (status != MT_OK) empty(outputs, output_count);
    return status;
}
