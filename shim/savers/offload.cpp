/*
 * offload.cpp - the hooks: which saved tensors are packed, which are the same, and how they come back.
 *
 * A tensor that is packed is a copy of what was saved, so that later changes in place do no harm. For one
 * that is left alone the version is compared as libtorch does it, which leaves that to hooks.
 */
#include "offload.hpp"

#include <chrono>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include "arguments.hpp"
#include "device_name.hpp"
#include "device_memory.hpp"
#include "guard.hpp"
#include "init.hpp"

namespace memtrain::shim {

namespace autograd = torch::autograd;

namespace {

constexpr size_t small_bytes = size_t{64} << 10;
constexpr size_t small_sample_bytes = size_t{2} << 10; /* the same at 32 samples */

thread_local std::shared_ptr<SavedTensors> innermost;

double seconds_of(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/* Bytes from the first element to the last one, gaps included. */
size_t span_of(const at::Tensor &tensor) {
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); i++) last += (tensor.size(i) - 1) * tensor.stride(i);
    return static_cast<size_t>(last + 1) * tensor.itemsize();
}

/* Elements that are one in memory: expanded, unfolded. */
bool overlaps_itself(const at::Tensor &tensor) {
    for (int64_t i = 0; i < tensor.dim(); i++)
        if (tensor.stride(i) <= 0 && tensor.size(i) > 1) return true;
    return span_of(tensor) < tensor.nbytes();
}

/* A leaf that learns, or a view of one: it is there anyway. */
bool is_parameter(const at::Tensor &tensor) {
    const at::TensorBase &base = tensor.is_view() ? tensor._base() : tensor;
    return base.is_leaf() && base.requires_grad();
}

at::Tensor tensor_over(const c10::Storage &storage, int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides, const at::TensorOptions &options) {
    return at::empty({0}, options).set_(storage, offset, sizes, strides);
}

WeakStorage no_storage() {
    return WeakStorage(c10::intrusive_ptr<c10::StorageImpl>());
}

} // namespace

/* ---- one tensor ---- */

/*
 * Views with gaps, such as query, key and value of one product, come back to one storage as they were,
 * as long as one of them is in use.
 */
struct CommonStorage {
    size_t bytes;
    WeakStorage storage;
};

class Packed {
public:
    /* common: that of another view of the same storage, or NULL. */
    Packed(std::shared_ptr<Offload> offload, const at::Tensor &tensor,
           std::shared_ptr<CommonStorage> common);
    ~Packed();
    Packed(const Packed &) = delete;
    Packed &operator=(const Packed &) = delete;

    /* out_new: whether it had to be read. */
    at::Tensor unpack(bool *out_new);

    /* It begins to come back before it is asked for, where it can. */
    void fetch_ahead();
    bool is_coming() const { return coming_.defined(); }

    /* What came back by itself is kept until another one is asked for: nodes that saved the same follow each other. */
    void let_go() { here_.reset(); }

    const std::shared_ptr<CommonStorage> &common() const { return common_; }
    size_t turn = 0; /* the how manieth of its chunk */

private:
    at::Tensor make_room() const;
    at::Tensor bring();

    std::shared_ptr<Offload> offload_;
    std::vector<int64_t> sizes_, strides_;
    at::TensorOptions options_;
    int64_t offset_ = 0;
    std::shared_ptr<CommonStorage> common_; /* or none */
    std::unique_ptr<Stored> kept_;
    size_t bytes_;
    WeakStorage unpacked_ = no_storage(); /* where it is, while somebody uses it */
    at::Tensor coming_, here_;
};

Packed::Packed(std::shared_ptr<Offload> offload, const at::Tensor &tensor,
               std::shared_ptr<CommonStorage> common)
    : offload_(std::move(offload)), sizes_(tensor.sizes().vec()), strides_(tensor.strides().vec()),
      options_(tensor.options().requires_grad(false)), bytes_(offload_->store().bytes_of(tensor)) {
    auto start = std::chrono::steady_clock::now();
    size_t storage_bytes = tensor.storage().nbytes();
    if (!tensor.is_non_overlapping_and_dense() && storage_bytes <= 2 * span_of(tensor)) {
        offset_ = tensor.storage_offset();
        common_ = common
                      ? std::move(common)
                      : std::make_shared<CommonStorage>(CommonStorage{storage_bytes, no_storage()});
    }
    kept_ = offload_->store().keep(tensor);
    offload_->add_packed(bytes_, tensor.nbytes(), seconds_of(start));
}

at::Tensor Packed::make_room() const {
    if (!common_) return at::empty_strided(sizes_, strides_, options_);
    c10::Storage storage(common_->storage.lock());
    if (!storage) {
        int64_t count = static_cast<int64_t>(common_->bytes);
        storage = at::empty({count}, options_.dtype(at::kByte)).storage();
        common_->storage = storage.getWeakStorageImpl();
    }
    return tensor_over(storage, offset_, sizes_, strides_, options_);
}

Packed::~Packed() {
    if (coming_.defined()) (void)guard([&] { kept_->end(); });
    offload_->remove(bytes_);
}

void Packed::fetch_ahead() {
    if (is_coming() || unpacked_.lock() || !kept_->comes_by_itself()) return;
    at::Tensor tensor = make_room();
    kept_->begin(tensor);
    coming_ = std::move(tensor);
}

at::Tensor Packed::bring() {
    at::Tensor tensor = kept_->still_there();
    if (tensor.defined()) return tensor;
    if (is_coming()) {
        kept_->end();
        return std::exchange(coming_, {});
    }
    tensor = make_room();
    kept_->read(tensor);
    return tensor;
}

at::Tensor Packed::unpack(bool *out_new) {
    c10::Storage storage(unpacked_.lock());
    *out_new = !storage;
    if (storage) return tensor_over(storage, offset_, sizes_, strides_, options_);
    auto start = std::chrono::steady_clock::now();
    at::Tensor tensor = bring();
    offset_ = tensor.storage_offset();
    unpacked_ = tensor.storage().getWeakStorageImpl();
    if (kept_->comes_by_itself()) here_ = tensor;
    offload_->add_unpacked(seconds_of(start));
    return tensor;
}

/* ---- a place ---- */

Offload::Offload(const char *function, int kind, const char *folder)
    : store_(make_store(function, kind, folder)) {
    stats_.kind = kind;
}

mt_offload_stats Offload::stats() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
}

void Offload::add_packed(size_t bytes, size_t original_bytes, double seconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.packed++;
    stats_.packed_bytes += bytes;
    stats_.peak_packed_bytes = std::max(stats_.peak_packed_bytes, stats_.packed_bytes);
    stats_.total_packed_bytes += bytes;
    stats_.total_original_bytes += original_bytes;
    stats_.seconds += seconds;
}

void Offload::add_unpacked(double seconds) {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.unpacked++;
    stats_.seconds += seconds;
}

void Offload::add_shared() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.shared++;
}

void Offload::add_left_alone() {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.left_alone++;
}

void Offload::remove(size_t bytes) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.packed_bytes -= bytes;
}

/* ---- the tensors of a chunk ---- */

SavedView::SavedView(const at::Tensor &tensor, const std::shared_ptr<Packed> &as)
    : data(tensor.const_data_ptr()), sizes(tensor.sizes().vec()), strides(tensor.strides().vec()),
      dtype(tensor.scalar_type()), version(tensor._version()), packed(as) {}

bool SavedView::is(const at::Tensor &tensor) const {
    return data == tensor.const_data_ptr() && version == tensor._version() &&
           dtype == tensor.scalar_type() && tensor.sizes() == at::IntArrayRef(sizes) &&
           tensor.strides() == at::IntArrayRef(strides);
}

SavedTensors::SavedTensors(std::shared_ptr<Offload> offload, c10::DeviceType device, size_t samples)
    : offload_(std::move(offload)), device_(device), samples_(samples) {}

void SavedTensors::leave_alone(const at::Tensor &tensor) {
    if (tensor.defined() && tensor.has_storage())
        left_alone_.insert(tensor.storage().unsafeGetStorageImpl());
}

/*
 * What is of the samples is small by its bytes each, so that chunks of all sizes pack the same tensors and
 * the peak of one can be told from those of others.
 */
bool SavedTensors::is_small(const at::Tensor &tensor) const {
    size_t rows = tensor.dim() ? static_cast<size_t>(tensor.size(0)) : 1;
    bool of_samples = samples_ && rows % samples_ == 0;
    return tensor.nbytes() < (of_samples ? samples_ * small_sample_bytes : small_bytes);
}

bool SavedTensors::wants(const at::Tensor &tensor) const {
    if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0)
        return false;
    if (tensor.device().type() != device_ || tensor.is_conj() || tensor.is_neg()) return false;
    if (!offload_->store().takes(tensor.scalar_type()) || is_small(tensor)) return false;
    return !left_alone_.count(tensor.storage().unsafeGetStorageImpl()) && !is_parameter(tensor) &&
           !overlaps_itself(tensor);
}

std::vector<SavedView> &SavedTensors::views_of(const at::Tensor &tensor) {
    auto found = known_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == known_.end())
        found = known_
                    .emplace(tensor.storage().unsafeGetStorageImpl(),
                             SavedStorage{tensor.storage().getWeakStorageImpl(), {}})
                    .first;
    return found->second.views;
}

std::shared_ptr<Packed> SavedTensors::find(const at::Tensor &tensor) {
    for (const SavedView &view : views_of(tensor))
        if (view.is(tensor))
            if (std::shared_ptr<Packed> packed = view.packed.lock()) return packed;
    return nullptr;
}

/* That of another view of the same storage, with the same numbers in it. */
std::shared_ptr<CommonStorage> SavedTensors::common_of(const at::Tensor &tensor) {
    for (const SavedView &view : views_of(tensor)) {
        std::shared_ptr<Packed> packed = view.packed.lock();
        if (packed && packed->common() && view.version == tensor._version())
            return packed->common();
    }
    return nullptr;
}

std::shared_ptr<Packed> SavedTensors::pack(const at::Tensor &tensor) {
    if (!wants(tensor)) {
        offload_->add_left_alone();
        return nullptr;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Packed> packed = find(tensor);
    if (packed) {
        offload_->add_shared();
        return packed;
    }
    packed = std::make_shared<Packed>(offload_, tensor, common_of(tensor));
    if (device_ != c10::DeviceType::CPU) { /* there nothing comes back by itself */
        packed->turn = order_.size();
        order_.push_back(packed);
    }
    views_of(tensor).emplace_back(tensor, packed);
    return packed;
}

/*
 * What comes back may be saved again, by a segment: it is known then, at version 0, whatever it took to
 * fill it.
 */
at::Tensor SavedTensors::unpack(const std::shared_ptr<Packed> &packed) {
    std::lock_guard<std::mutex> lock(mutex_);
    bool is_new = false;
    at::Tensor tensor = packed->unpack(&is_new).variable_data();
    if (is_new) views_of(tensor).emplace_back(tensor, packed);
    note_last(packed);
    return tensor;
}

/* The backward pass asks in the reverse order, so the one before is next. */
void SavedTensors::note_last(const std::shared_ptr<Packed> &packed) {
    std::shared_ptr<Packed> last = last_.lock(), coming = coming_.lock(), next;
    if (last && last != packed) last->let_go();
    last_ = packed;
    if (coming && coming->is_coming()) return;
    for (size_t i = packed->turn; i-- > 0 && !next;) next = order_[i].lock();
    if (next) next->fetch_ahead();
    coming_ = next;
}

/* ---- the hooks ---- */

namespace {

class Hooks final : public autograd::SavedVariableHooks {
public:
    explicit Hooks(std::shared_ptr<SavedTensors> saved) : saved_(std::move(saved)) {}

    void call_pack_hook(const at::Tensor &tensor) override {
        packed_ = saved_->pack(tensor);
        if (packed_) return;
        left_ = tensor.tensor_data(); /* the version is the tensor's own */
        version_ = tensor._version();
    }
    at::Tensor call_unpack_hook() override {
        c10::NoGradGuard no_graph;
        if (packed_) return saved_->unpack(packed_);
        TORCH_CHECK(left_._version() == version_,
                    "one of the variables needed for gradient computation has been modified by an "
                    "inplace operation: a tensor of ",
                    left_.scalar_type(), " ", left_.sizes(), " is at version ", left_._version(),
                    "; expected version ", version_, " instead");
        return left_;
    }

private:
    std::shared_ptr<SavedTensors> saved_;
    std::shared_ptr<Packed> packed_; /* or: */
    at::Tensor left_;
    int64_t version_ = 0;
};

class SavingEngine final : public autograd::Engine {
public:
    std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
        return innermost ? std::make_unique<Hooks>(innermost) : nullptr;
    }

    /* Never destroyed: its threads may wait for work to the end. */
    static autograd::Engine &only() {
        static SavingEngine *const engine = new SavingEngine;
        return *engine;
    }
};

} // namespace

void install_saving_hooks() {
    autograd::set_default_engine_stub(&SavingEngine::only);
}

bool has_saving_hooks() {
    return dynamic_cast<SavingEngine *>(&autograd::Engine::get_default_engine()) != nullptr;
}

Offloading::Offloading(std::shared_ptr<SavedTensors> saved)
    : before_(std::exchange(innermost, std::move(saved))) {}

Offloading::~Offloading() {
    innermost = std::move(before_);
}

std::shared_ptr<SavedTensors> Offloading::current() {
    return innermost;
}

void check_offload(const char *function, const char *argument, int kind) {
    if (kind != MT_OFFLOAD_HOST && kind != MT_OFFLOAD_FILE && kind != MT_OFFLOAD_PACK)
        fail(
            MT_EINVAL,
            "%s: %s is %d; accepted: MT_OFFLOAD_HOST (1), MT_OFFLOAD_FILE (2), MT_OFFLOAD_PACK (3)",
            function, argument, kind);
    if (!has_saving_hooks())
        fail(MT_ENOTSUP,
             "%s: %s is %d, but Python's torch is loaded, and libtorch asks it for the hooks of "
             "saved "
             "tensors",
             function, argument, kind);
}

/* Beside a card there is the host's memory. On the CPU that would be the same memory, uncounted. */
int offload_kind(const mt_torch_options &options, const Device &device) {
    switch (options.offload) {
    case MT_OFFLOAD_AUTO:
        if (!device.is_host()) return MT_OFFLOAD_HOST;
        return options.offload_dir ? MT_OFFLOAD_FILE : MT_OFFLOAD_NEVER;
    case MT_OFFLOAD_AUTO_PACK:
        return MT_OFFLOAD_PACK;
    default:
        return options.offload;
    }
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" mt_status mt_offload(const char *name, int kind, const char *dir,
                                mt_status (*body)(void *user), void *user) {
    Device device = c10::Device(c10::kCPU);
    MT_RETURN_IF_FAILED(check_not_null(reinterpret_cast<const void *>(body), "mt_offload", "body"));
    MT_RETURN_IF_FAILED(ensure_init());
    MT_RETURN_IF_FAILED(parse_device(name, "mt_offload", &device));
    return guard([&] {
        check_device("mt_offload", device);
        check_offload("mt_offload", "kind", kind);
        auto offload = std::make_shared<Offload>("mt_offload", kind, dir);
        Offloading on(std::make_shared<SavedTensors>(offload, device.type(), 0));
        return body(user);
    });
}
