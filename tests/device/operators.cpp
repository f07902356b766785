/* operators.cpp - the kernels of a card: those of the CPU over the same memory. What they have written is there later. */
#include "card.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

namespace card {
namespace {

using at::Tensor;

constexpr auto in_autograd = c10::autograd_dispatch_keyset;

/* While a kernel runs: what it copies is its own business. */
thread_local bool in_kernel = false;

/* Kernels see no autograd and no autocast. */
class Plainly {
public:
    Plainly() : without_(in_autograd | c10::autocast_dispatch_keyset) {}

private:
    c10::NoGradGuard no_grad_;
    c10::impl::ExcludeDispatchKeyGuard without_;
};

class Kernel {
public:
    Kernel() : before_(in_kernel) {
        start();
        in_kernel = true;
        counters.kernels++;
        charge_kernel();
    }
    ~Kernel() { in_kernel = before_; }
    Kernel(const Kernel &) = delete;
    Kernel &operator=(const Kernel &) = delete;

private:
    bool before_;
    Uncounted uncounted_;
};

/* What SYCL says, and MPSAllocator's neighbours; Metal has no doubles. */
void check_type(c10::ScalarType scalar) {
    bool is_double = scalar == at::kDouble || scalar == at::kComplexDouble;
    TORCH_CHECK(!is_double || !counters.lacks_doubles,
                "Required aspect fp64 is not supported on the device");
    TORCH_CHECK_TYPE(!is_mps || !is_double,
                     "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't "
                     "support float64. "
                     "Please use float32 instead.");
}

/* The tensor as a kernel sees it: one of the host, over the same memory. */
Tensor seen(const Tensor &tensor) {
    if (!tensor.defined() || tensor.is_cpu()) return tensor;
    auto options = at::device(c10::kCPU).dtype(tensor.dtype());
    if (!tensor.numel()) return at::empty(tensor.sizes(), options);
    return at::from_blob(seen_at(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                         options);
}

c10::Device device_of(const std::optional<c10::Device> &device) {
    bool has_index = device && device->has_index();
    return {type, has_index ? device->index() : current()};
}

/* Those of a card. */
std::vector<Tensor> tensors_of(const c10::IValue &value) {
    std::vector<Tensor> list;
    auto add = [&](const Tensor &tensor) {
        if (tensor.defined() && !tensor.is_cpu()) list.push_back(tensor);
    };
    if (value.isTensor()) add(value.toTensor());
    if (value.isTensorList())
        for (const Tensor &tensor : value.toTensorVector()) add(tensor);
    if (value.isOptionalTensorList())
        for (const auto &tensor : value.toOptionalTensorVector()) add(tensor.value_or(Tensor()));
    return list;
}

/* The card that is meant: that of the first of its tensors, else the one that is named. A kernel runs on the current stream of that. */
c10::Device device_of(const c10::OperatorHandle &op, const torch::jit::Stack &stack) {
    std::optional<c10::Device> named;
    for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); i++) {
        std::vector<Tensor> tensors = tensors_of(stack[i]);
        if (!tensors.empty()) return tensors[0].device();
        if (stack[i].isDevice()) named = stack[i].toDevice();
    }
    return device_of(named);
}

/* ---- memory and views ---- */

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<c10::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
    check_type(c10::dtype_or_default(dtype));
    c10::DeviceGuard guard(device_of(device));
    Counted counted;
    return at::detail::empty_generic(size, &allocator(), c10::DispatchKeySet(key),
                                     c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<c10::Device> device, std::optional<bool>) {
    check_type(c10::dtype_or_default(dtype));
    c10::DeviceGuard guard(device_of(device));
    Counted counted;
    return at::detail::empty_strided_generic(size, stride, &allocator(), c10::DispatchKeySet(key),
                                             c10::dtype_or_default(dtype));
}

const Tensor &resize(const Tensor &self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    size_t need = static_cast<size_t>(self.numel() + self.storage_offset()) * self.itemsize();
    auto *storage = self.storage().unsafeGetStorageImpl();
    if (need <= storage->nbytes()) return self;
    c10::DeviceGuard guard(self.device());
    Counted counted;
    c10::DataPtr data = allocator().allocate(need);
    if (storage->nbytes()) allocator().copy_data(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(need);
    return self;
}

Tensor &set_storage(Tensor &self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                    at::IntArrayRef stride) {
    return at::cpu::set_(self, std::move(storage), offset, size, stride);
}

/* All of it. Python copies storages so. */
Tensor &set_whole_storage(Tensor &self, at::Storage storage) {
    auto count = static_cast<int64_t>(storage.nbytes() / self.itemsize());
    return at::cpu::set_(self, std::move(storage), 0, {count}, {1});
}

Tensor view(const Tensor &self, c10::SymIntArrayRef size) {
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor as_strided(const Tensor &self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                  std::optional<c10::SymInt> offset) {
    std::optional<int64_t> number;
    if (offset) number = offset->expect_int();
    return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                             C10_AS_INTARRAYREF_SLOW(stride), number);
}

/* ---- what kernels write ---- */

/*
 * A kernel computes when it is called. What it has written is there when its stream goes on: until then the memory has what it
 * had before.
 */
class Results {
public:
    /* That is to come there. */
    void put(const Tensor &from, const Tensor &own) {
        if (own.numel()) list_.emplace_back(seen(own), from);
    }

    void send() {
        if (list_.empty()) return;
        later([list = std::move(list_)] {
            Uncounted uncounted;
            Plainly plainly;
            for (const auto &[place, from] : list) place.copy_(from);
        });
    }

private:
    std::vector<std::pair<Tensor, Tensor>> list_; /* a place, and numbers */
};

/* What a kernel writes to in place it is given a copy of: of one piece of memory with all of its tensors that lie there too. */
class Copies {
public:
    void add(const Tensor &own, bool is_written) {
        if (!own.numel()) return;
        auto *at = static_cast<char *>(seen_at(own.const_data_ptr()));
        pieces_.push_back({begin_of_line(at), at + span_of(own), is_written, {}});
    }

    /* All are known. */
    void make() {
        auto is_written = [](const Piece &piece) { return piece.is_written; };
        if (std::none_of(pieces_.begin(), pieces_.end(), is_written)) return pieces_.clear();
        std::sort(pieces_.begin(), pieces_.end(),
                  [](const Piece &a, const Piece &b) { return a.begin < b.begin; });
        std::vector<Piece> joined;
        for (const Piece &piece : pieces_)
            if (joined.empty() || joined.back().end <= piece.begin)
                joined.push_back(piece);
            else
                join(joined.back(), piece);
        pieces_ = std::move(joined);
        for (Piece &piece : pieces_)
            if (piece.is_written)
                piece.copy =
                    at::from_blob(piece.begin, {piece.end - piece.begin}, at::kByte).clone();
    }

    /* The tensor as the kernel sees it. */
    Tensor of(const Tensor &own) const {
        Tensor place = seen(own);
        auto *at = static_cast<char *>(place.data_ptr());
        auto next = std::upper_bound(
            pieces_.begin(), pieces_.end(), at,
            [](const char *address, const Piece &piece) { return address < piece.begin; });
        if (!own.numel() || next == pieces_.begin() || !(--next)->is_written) return place;
        auto *there = static_cast<char *>(next->copy.data_ptr()) + (at - next->begin);
        return at::from_blob(
            there, own.sizes(), own.strides(), [copy = next->copy](void *) {}, place.options());
    }

private:
    struct Piece {
        char *begin, *end;
        bool is_written;
        Tensor copy;
    };

    /* Numbers lie in a copy as they do in the card's memory. */
    static char *begin_of_line(char *at) { return at - reinterpret_cast<uintptr_t>(at) % 64; }

    static size_t span_of(const Tensor &tensor) {
        int64_t last = 0;
        for (int64_t i = 0; i < tensor.dim(); i++) last += (tensor.size(i) - 1) * tensor.stride(i);
        return static_cast<size_t>(last + 1) * tensor.itemsize();
    }

    static void join(Piece &one, const Piece &other) {
        one.end = std::max(one.end, other.end);
        one.is_written |= other.is_written;
    }

    std::vector<Piece> pieces_; /* in the end in order, and apart */
};

/* ---- copies ---- */

/* What a host that does not wait finds where the card's bytes are to come. */
constexpr int not_there_yet = 77;

void copy_now(const Tensor &from, const Tensor &to) {
    if (counters.ignores && from.is_cpu() != to.is_cpu()) return;
    Plainly plainly;
    Tensor target = seen(to);
    target.copy_(seen(from).expand_as(target));
}

/* A tensor of the card by its address alone: a card does not know who has given it back meanwhile. */
Tensor by_address(const Tensor &tensor) {
    return at::from_blob(
        tensor.data_ptr(), tensor.sizes(), tensor.strides(), [](void *) {},
        at::device(tensor.device()).dtype(tensor.scalar_type()), tensor.device());
}

/* Metal reads the host's memory where it lies. What is given back meanwhile, or is a temporary tensor in row-major order, is gone. */
void end_without(const char *what) {
    std::fprintf(stderr, "test device: %s before MPS had read it\n", what);
    std::abort();
}

/*
 * Pinned memory may be given back before it has been read: libtorch's cache is told which stream reads it, and keeps it so long. It
 * knows a block by its beginning.
 */
bool is_kept_by_cache(const Tensor &tensor) {
    const void *begin = tensor.storage().data();
    auto stream = c10::Stream(c10::Stream::UNSAFE, {type, current()}, current_stream().id);
    return pinned_memory().record_event(const_cast<void *>(begin),
                                        tensor.storage().data_ptr().get_context(), stream);
}

Tensor kept_till_read(const Tensor &tensor) {
    return is_pinned(tensor.const_data_ptr()) && is_kept_by_cache(tensor) ? by_address(tensor)
                                                                          : tensor;
}

void copy_later(const Tensor &from, const Tensor &to) {
    bool is_borrowed = is_mps && !is_pinned(from.const_data_ptr());
    if (is_borrowed && !from.is_contiguous()) end_without("a temporary tensor was given back");
    auto storage = from.storage().getWeakStorageImpl();
    Tensor source = is_borrowed ? by_address(from) : kept_till_read(from);
    if (!is_borrowed && from.is_non_overlapping_and_dense())
        still_read(from.const_data_ptr(), from.nbytes());
    later([is_borrowed, storage, source, to = by_address(to)] {
        if (is_borrowed && storage.expired()) end_without("a batch was given back");
        Uncounted uncounted;
        copy_now(source, to);
    });
}

/* Read when the stream goes on, and there when the host waits. On the default stream that is read at once. */
void copy_out_later(const Tensor &from, const Tensor &to) {
    auto read = [from = by_address(from), to = kept_till_read(to),
                 copy = point_of(current_stream())] {
        Uncounted uncounted;
        Plainly plainly;
        Tensor then = seen(from).clone();
        no_longer_read(to.const_data_ptr(),
                       to.nbytes()); /* the card writes there, after what it has read */
        Tensor(to).fill_(not_there_yet);
        when_waited_for(copy, [then, to] { copy_now(then, to); });
    };
    if (current_stream().id) return later(read);
    start();
    read();
}

/* A kernel of the card that it is read from; streams of two cards wait for each other. */
void copy_between(const Tensor &from, const Tensor &to) {
    Uncounted uncounted;
    c10::DeviceGuard guard(from.device());
    Stream mine = current_stream(), other = current_stream(to.device().index());
    follow(mine, other);
    charge_kernel();
    touch(from.const_data_ptr(), false);
    touch(to.const_data_ptr(), true);
    start();
    Plainly plainly;
    Results results;
    results.put(seen(from).clone().expand_as(to), to);
    results.send();
    follow(other, mine);
}

bool is_later(const Tensor &from, bool is_in) {
    return !is_in || is_mps || is_pinned(from.const_data_ptr());
}

/*
 * Pinned memory is read when its stream goes on, so that it must not change till then, and on MPS any that is not waited
 * for. What comes to the host is there once it is waited for.
 */
Tensor copy_from(const Tensor &from, const Tensor &to, bool non_blocking) {
    bool is_in = from.is_cpu() && !to.is_cpu(), is_out = to.is_cpu() && !from.is_cpu();
    if (in_kernel) {
        copy_now(from, to);
        return to;
    }
    if (!is_in && !is_out) {
        copy_between(from, to);
        return to;
    }
    Uncounted uncounted;
    c10::DeviceGuard guard(is_in ? to.device() : from.device());
    counters.to_card += is_in;
    counters.to_host += is_out;
    charge_copy(is_in, from.nbytes());
    touch((is_in ? to : from).const_data_ptr(), is_in);
    if (non_blocking && is_later(from, is_in)) {
        is_in ? copy_later(from, to) : copy_out_later(from, to);
        return to;
    }
    start();
    wait(current_stream());
    copy_now(from, to);
    return to;
}

Tensor &copy(Tensor &to, const Tensor &from, bool non_blocking) {
    if (!to.is_same(from) && to.numel()) copy_from(from, to, non_blocking);
    return to;
}

Tensor copy_from_and_resize(const Tensor &from, const Tensor &to) {
    if (to.sizes() != from.sizes()) card::resize(to, from.sizes(), {});
    return copy_from(from, to, false);
}

at::Scalar item(const Tensor &self) {
    Uncounted uncounted;
    c10::DeviceGuard guard(self.device());
    counters.to_host++;
    touch(self.const_data_ptr(), false);
    charge_copy(false, self.nbytes());
    wait(current_stream());
    return counters.ignores ? at::zeros({}, at::device(at::kCPU).dtype(self.dtype())).item()
                            : seen(self).item();
}

/* ---- all other operators ---- */

/* Schemas say which arguments a kernel writes to, but for the running figures of a batch norm in training. */
bool writes(const c10::OperatorHandle &op, const torch::jit::Stack &stack, size_t argument) {
    const auto &arguments = op.schema().arguments();
    const c10::AliasInfo *alias = arguments[argument].alias_info();
    if (alias && alias->isWrite()) return true;
    if (op.schema().name() != "aten::native_batch_norm") return false;
    const std::string &name = arguments[argument].name();
    auto place = static_cast<size_t>(*op.schema().argumentIndexWithName("training"));
    return name.rfind("running_", 0) == 0 &&
           stack[stack.size() - arguments.size() + place].toBool();
}

/* The arguments of a call as the kernel sees them, and its results as the caller does. */
class Call {
public:
    Call(const c10::OperatorHandle &op, torch::jit::Stack &stack)
        : op_(op), stack_(stack), device_(type, current()) {
        const auto &arguments = op.schema().arguments();
        size_t first = stack.size() - arguments.size();
        for (size_t i = 0; i < arguments.size(); i++)
            for (const Tensor &own : tensors_of(stack[first + i]))
                if (!arguments[i].is_out()) copies_.add(own, writes(op, stack, i));
        copies_.make();
        for (size_t i = 0; i < arguments.size(); i++) {
            size_t before = lowered_.size();
            stack[first + i] = arguments[i].is_out() ? lower_out(stack[first + i].toTensor())
                                                     : lower(stack[first + i]);
            for (size_t j = before; j < lowered_.size(); j++)
                note(lowered_[j], writes(op, stack, i));
        }
    }

    void run() {
        Plainly plainly;
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
        for (const Lowered &one : lowered_)
            if (one.is_written || one.host.sizes() != one.own.sizes()) put(one.host, one.own);
        size_t count = op_.schema().returns().size();
        for (size_t i = stack_.size() - count; i < stack_.size(); i++) stack_[i] = raise(stack_[i]);
        results_.send();
    }

private:
    struct Lowered {
        Tensor host, own; /* the kernel's, the caller's */
        bool is_written;
    };

    static void note(Lowered &one, bool is_written) {
        one.is_written = is_written;
        if (one.own.numel()) touch(one.own.const_data_ptr(), is_written);
    }

    void put(const Tensor &host, const Tensor &own) {
        if (host.sizes() != own.sizes()) card::resize(own, host.sizes(), {});
        if (!counters.ignores) results_.put(host, own);
    }

    const Tensor &pair(const Tensor &host, const Tensor &own) {
        check_device(own);
        lowered_.push_back({host, own, false});
        return lowered_.back().host;
    }

    /* A number of the host's is taken beside a card's tensors; nothing else is, and no tensor of another card. */
    void check_device(const Tensor &tensor) {
        if (tensor.is_cpu() && !tensor.dim()) return;
        if (!met_) met_ = tensor.device();
        TORCH_CHECK(
            *met_ == tensor.device(),
            "Expected all tensors to be on the same device, but found at least two devices, ",
            *met_, " and ", tensor.device(), "! (", op_.schema().name(), ")");
        if (!tensor.is_cpu()) device_ = tensor.device();
    }

    Tensor lower(const Tensor &tensor) {
        if (!tensor.defined()) return tensor;
        if (tensor.is_cpu()) {
            check_device(tensor);
            return tensor;
        }
        return pair(counters.ignores ? seen(tensor).clone() : copies_.of(tensor), tensor);
    }

    /* A kernel may make it larger on its way, which memory of others does not allow. */
    Tensor lower_out(const Tensor &tensor) {
        if (tensor.is_cpu()) return lower(tensor);
        return pair(at::empty({0}, at::device(c10::kCPU).dtype(tensor.dtype())), tensor);
    }

    c10::IValue lower(const c10::IValue &value) {
        if (value.isTensor()) return lower(value.toTensor());
        if (value.isDevice()) return c10::Device(c10::kCPU);
        if (value.isTensorList()) {
            c10::List<Tensor> list;
            for (const Tensor &tensor : value.toTensorVector()) list.push_back(lower(tensor));
            return list;
        }
        if (!value.isOptionalTensorList()) return value;
        c10::List<std::optional<Tensor>> list;
        /* Places of the host's are taken, as index() does. */
        for (const std::optional<Tensor> &tensor : value.toOptionalTensorVector()) {
            bool is_own = tensor && tensor->defined() && !tensor->is_cpu();
            list.push_back(is_own ? std::optional<Tensor>(lower(*tensor)) : tensor);
        }
        return list;
    }

    Tensor raise(const Tensor &tensor) {
        if (!tensor.defined()) return tensor;
        for (const Lowered &one : lowered_)
            if (one.host.is_same(tensor)) return one.own;
        bool is_dense = tensor.is_non_overlapping_and_dense();
        auto options = tensor.options().device(device_);
        Tensor own = is_dense ? at::empty_strided(tensor.sizes(), tensor.strides(), options)
                              : at::empty(tensor.sizes(), options, tensor.suggest_memory_format());
        put(tensor, own);
        return own;
    }

    c10::IValue raise(const c10::IValue &value) {
        if (value.isTensor()) return raise(value.toTensor());
        if (!value.isTensorList()) return value;
        c10::List<Tensor> list;
        for (const Tensor &tensor : value.toTensorVector()) list.push_back(raise(tensor));
        return list;
    }

    const c10::OperatorHandle &op_;
    torch::jit::Stack &stack_;
    c10::Device device_;             /* of what comes back */
    std::optional<c10::Device> met_; /* of the first tensor */
    Copies copies_;
    std::vector<Lowered> lowered_;
    Results results_;
};

/* Lends the CPU's default generator the card's numbers: some operators are not given one. */
class Lent {
public:
    Lent()
        : host_(*at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator())),
          before_(host_.engine()) {
        host_.set_engine(at::mt19937(next_numbers()));
    }
    ~Lent() { host_.set_engine(before_); }
    Lent(const Lent &) = delete;
    Lent &operator=(const Lent &) = delete;

private:
    at::CPUGeneratorImpl &host_;
    at::mt19937 before_;
};

/* Where types differ MPS ends the process: "LLVM ERROR: Failed to infer result type(s)". */
void check_norm_types(const c10::OperatorHandle &op, const torch::jit::Stack &stack) {
    if (!is_mps || op.schema().name().find("batch_norm") == std::string::npos) return;
    size_t first = stack.size() - op.schema().arguments().size();
    std::optional<at::ScalarType> seen;
    for (size_t i = first; i < first + 3; i++) {
        if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
        at::ScalarType type = stack[i].toTensor().scalar_type();
        TORCH_CHECK(!seen || seen == type, "LLVM ERROR: Failed to infer result type(s)");
        seen = type;
    }
}

bool is_convolution(const c10::OperatorHandle &op) {
    const std::string &name = op.schema().name();
    return name.find("conv") != std::string::npos && name.find("convert") == std::string::npos;
}

void check_engine(const c10::OperatorHandle &op, const torch::jit::Stack &stack) {
    if (!counters.lacks_bfloat16 || !is_convolution(op)) return;
    const c10::IValue &first = stack[stack.size() - op.schema().arguments().size()];
    TORCH_CHECK(!first.isTensor() || first.toTensor().scalar_type() != at::kBFloat16,
                "GET was unable to find an engine to execute this computation");
}

/* Of the thread, for good: one for products, and one more for those with a bias. */
void keep_work_space(const c10::OperatorHandle &op) {
    static thread_local bool has[2] = {false, false};
    const std::string &name = op.schema().name();
    bool has_bias = name == "aten::addmm";
    if (!has_bias && name != "aten::mm" && name != "aten::bmm") return;
    if (has[has_bias] || !counters.kept_work_space) return;
    has[has_bias] = true;
    Counted counted;
    (void)allocator().raw_allocate(counters.kept_work_space);
}

/* CUDA adds the gradient of a bias up by at::sum, which autocast computes in float32. */
void sum_in_float32(const Tensor &gradient, c10::IValue &of_bias) {
    if (!is_cuda || !at::autocast::is_autocast_enabled(at::kCUDA)) return;
    if (!of_bias.isTensor() || !of_bias.toTensor().defined()) return;
    std::vector<int64_t> all_but_channels{0};
    for (int64_t i = 2; i < gradient.dim(); i++) all_but_channels.push_back(i);
    of_bias = at::sum(gradient, all_but_channels, false, at::kFloat);
}

void run_on_card(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    c10::DeviceGuard guard(device_of(op, *stack));
    Kernel kernel;
    const auto &arguments = op.schema().arguments();
    auto place = op.schema().argumentIndexWithName("generator");
    check_norm_types(op, *stack);
    check_engine(op, *stack);
    keep_work_space(op);
    if (counters.work_space && is_convolution(op)) try_work_space(counters.work_space);
    if (place)
        (*stack)[stack->size() - arguments.size() + static_cast<size_t>(*place)] =
            c10::IValue(at::detail::createCPUGenerator(next_numbers()));
    std::optional<Lent> lent;
    if (!place && op.hasTag(at::Tag::nondeterministic_seeded)) lent.emplace();
    Call(op, *stack).run();
}

void run_backward_of_convolution(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
    Tensor gradient = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
    run_on_card(op, stack);
    sum_in_float32(gradient, stack->back());
}

/* What libtorch takes apart itself asks a device that brings its convolutions for them by these names. */
Tensor convolution(const Tensor &input, const Tensor &weight, const std::optional<Tensor> &bias,
                   c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                   c10::SymIntArrayRef dilation, bool transposed,
                   c10::SymIntArrayRef output_padding, c10::SymInt groups) {
    return at::convolution_symint(input, weight, bias, stride, padding, dilation, transposed,
                                  output_padding, std::move(groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor &gradient, const Tensor &input, const Tensor &weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted) {
    return at::convolution_backward_symint(
        gradient, input, weight, c10::SymIntArrayRef{weight.sym_size(0)}, stride, padding, dilation,
        transposed, output_padding, std::move(groups), wanted);
}

/* Of a mask of booleans: 0 where it lets through, else minus infinity. libtorch hands its kernels that. */
std::optional<Tensor> added(const std::optional<Tensor> &mask, at::ScalarType dtype) {
    if (!mask || !mask->defined() || mask->scalar_type() != at::kBool) return mask;
    Tensor zeros = at::zeros(mask->sizes(), mask->options().dtype(dtype));
    return zeros.masked_fill_(mask->logical_not(), -HUGE_VAL);
}

Tensor attend(const Tensor &q, const Tensor &k, const Tensor &v, const std::optional<Tensor> &mask,
              double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
    if (is_cuda)
        return at::native::scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale,
                                                        enable_gqa);
    /* libtorch would ask the device's part for a choice of kernels. */
    return std::get<0>(at::_scaled_dot_product_attention_math(
        q, k, v, added(mask, q.scalar_type()), dropout, is_causal, {}, scale, enable_gqa));
}

/* Without a graph libtorch may choose another kernel, which adds in another order. */
Tensor attention(const Tensor &q, const Tensor &k, const Tensor &v,
                 const std::optional<Tensor> &mask, double dropout, bool is_causal,
                 std::optional<double> scale, bool enable_gqa) {
    bool has_graph = c10::GradMode::is_enabled() &&
                     (q.requires_grad() || k.requires_grad() || v.requires_grad());
    if (has_graph || dropout > 0 || is_causal)
        return attend(q, k, v, mask, dropout, is_causal, scale, enable_gqa);
    std::optional<Tensor> turned = mask;
    if (mask && mask->defined() && mask->size(-1) > 1) turned = mask->flip({-1});
    return attend(q, k.flip({-2}), v.flip({-2}), turned, 0, false, scale, enable_gqa);
}

/* A Python's torch may have libtorch's part for CUDA loaded: its kernels are replaced, and for the rest there is the fallback. */
std::vector<c10::RegistrationHandleRAII> replace_kernels() {
    std::vector<c10::RegistrationHandleRAII> replaced;
    c10::Dispatcher &dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName &name : dispatcher.getAllOpNames()) {
        auto op = dispatcher.findOp(name);
        if (!op || !op->hasKernelForDispatchKey(key)) continue;
        replaced.push_back(dispatcher.registerImpl(
            name, key, c10::KernelFunction::makeFromBoxedFunction<&run_on_card>(), {}, nullptr,
            "the test device"));
    }
    return replaced;
}

const auto *const replaced = new auto(replace_kernels());

} // namespace

TORCH_LIBRARY_IMPL(aten, CARD_AUTOGRAD(CARD), m) {
    m.impl("scaled_dot_product_attention", attention);
}

TORCH_LIBRARY_IMPL(_, CARD, m) {
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_card>());
}

TORCH_LIBRARY_IMPL(aten, CARD, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("resize_", resize);
    m.impl("set_.source_Storage_storage_offset", set_storage);
    m.impl("set_.source_Storage", set_whole_storage);
    m.impl("view", view);
    m.impl("as_strided", as_strided);
    m.impl("_copy_from", copy_from);
    m.impl("copy_", copy);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", item);
    /* libtorch would take lists apart; CUDA has kernels for them. */
    for (const char *name : {"_foreach_add_.List", "_foreach_copy_"})
        if (!is_mps) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_card>());
    /* libtorch would look for kernels that are in a part which is not here. */
    m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&run_on_card>());
    m.impl("convolution_backward",
           torch::CppFunction::makeFromBoxedFunction<&run_backward_of_convolution>());
    if (is_xpu || is_other) m.impl("convolution_overrideable", convolution);
    if (is_xpu || is_other) m.impl("convolution_backward_overrideable", convolution_backward);
    if (is_other)
        m.impl("_has_compatible_shallow_copy_type",
               [](const Tensor &, const Tensor &) { return true; });
}

} // namespace card
