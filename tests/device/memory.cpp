/*
 * memory.cpp - memory of the cards: one file that is mapped twice, without rights where tensors have it, and for the
 * kernels. The model of memtrain/sim.h says where a block lies, and whether there is one.
 */
#include "card.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include "compat.hpp"
#include "sim_memory.hpp"

namespace card {
namespace {

namespace compat = memtrain::shim::compat;

/* Addresses of a card never come again, so that there have to be many. */
constexpr size_t window = size_t{1} << 40;

/* What a new block holds, and one that was given back: nobody may count on zeros, or on what was there. */
constexpr int fresh = 0xcb, stale = 0xfe;

/* Of a block that was given back, the pages that are its own go to the system, which then has zeros there. */
constexpr uintptr_t page = 4096;

std::recursive_mutex
    mutex; /* of all below; copies that are done meanwhile have no memory of a card made */

using Lock = std::lock_guard<std::recursive_mutex>;

char *map(int file, size_t bytes, int rights) {
    void *at = mmap(nullptr, bytes, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) abort();
    return static_cast<char *>(at);
}

struct Windows {
    char *device, *host;
    Windows() {
        size_t bytes = window * static_cast<size_t>(count());
        int file = memfd_create("card", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(bytes))) abort();
        device = map(file, bytes, PROT_NONE);
        host = map(file, bytes, PROT_READ | PROT_WRITE);
        close(file);
    }
};

const Windows &windows() {
    static const Windows *const both = new Windows;
    return *both;
}

struct Block {
    mt_sim_block at;
    Point written; /* by what; of a new one by all that its stream was given before */
    std::map<Stream, uint64_t> read; /* since then: the last operation of each stream */
    Stream stream;                   /* that it was asked for on */
    std::set<Stream> used_on;        /* other ones */
    std::vector<void *> left;        /* given back: events of these */
};

/* Memory that nobody has, while its stream still may have work in it. */
struct Left {
    size_t bytes;
    Stream stream;
    uint64_t work; /* what that was given when the memory was given back */
};

struct Model {
    mt_sim *sim = nullptr;
    uint64_t first = 0; /* address that the window begins with; 0: nothing was asked for yet */
    std::map<uint64_t, Block> blocks; /* by their place in the window */
    std::map<uint64_t, Left> left;    /* likewise */
};

/* MT_TEST_CARD_BYTES of the environment: a card of so many. */
mt_sim *new_sim() {
    mt_sim_options options = MT_SIM_OPTIONS_INIT;
    options.flavour = is_mps ? MT_SIM_MPS : MT_SIM_CUDA;
    if (const char *bytes = std::getenv("MT_TEST_CARD_BYTES"))
        options.total_bytes = std::strtoull(bytes, nullptr, 10);
    mt_sim *sim = nullptr;
    if (mt_sim_new(&options, &sim) != MT_OK) abort();
    return sim;
}

Model &model(c10::DeviceIndex index) {
    static Model *const all = new Model[most_cards];
    Model &one = all[index];
    if (!one.sim) one.sim = new_sim();
    return one;
}

bool is_over_now(void *event) {
    return is_over(event);
}

mt_sim_stats read(c10::DeviceIndex index) {
    mt_sim_stats now = MT_SIM_STATS_INIT;
    (void)!mt_sim_read_stats(model(index).sim, &now);
    return now;
}

[[noreturn]] void refuse() {
    std::string words = mt_last_error();
    if (is_xpu) words.replace(0, words.find(' '), "XPU"); /* the model has CUDA's words */
    TORCH_CHECK_WITH(OutOfMemoryError, is_mps, words);
    TORCH_CHECK(false, words);
}

/* The profiler is told outside of the lock: it may ask for memory itself. */
void tell(void *address, int64_t bytes, const mt_sim_stats &now, c10::DeviceIndex index) {
    c10::reportMemoryUsageToProfiler(address, bytes, now.allocated_bytes, now.reserved_bytes,
                                     c10::Device(type, index));
}

void forget(char *at, size_t bytes) {
    uintptr_t begin = reinterpret_cast<uintptr_t>(at), end = begin + bytes;
    uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
    if (first < last && madvise(reinterpret_cast<void *>(first), last - first, MADV_REMOVE) == 0) {
        std::memset(at, stale, first - begin);
        std::memset(reinterpret_cast<void *>(last), stale, end - last);
    } else {
        std::memset(at, stale, bytes);
    }
}

size_t offset_of(const void *address) {
    return static_cast<size_t>(static_cast<const char *>(address) - windows().device) % window;
}

char *window_of(const Model &card) {
    return windows().host + static_cast<size_t>(&card - &model(0)) * window;
}

/* Memory that was given back is stale once its stream is through with it. */
void forget_left(Model &card) {
    for (auto next = card.left.begin(); next != card.left.end();) {
        auto [place, of] = *next;
        if (!has_done(of.stream, of.work)) {
            ++next;
            continue;
        }
        forget(window_of(card) + place, of.bytes);
        next = card.left.erase(next);
    }
}

/* A new block. Where the stream still has work for who had the memory before, its bytes stay as they are. */
void make_fresh(Model &card, size_t begin, size_t bytes) {
    size_t end = begin + bytes, filled = begin;
    auto fill_up_to = [&](size_t place) {
        if (filled < place)
            std::memset(window_of(card) + filled, counters.ignores ? 0 : fresh, place - filled);
    };
    auto found = card.left.upper_bound(begin);
    if (found != card.left.begin()) --found;
    while (found != card.left.end() && found->first < end) {
        auto [first, of] = *found;
        size_t last = first + of.bytes;
        if (last <= begin) {
            ++found;
            continue;
        }
        fill_up_to(first);
        filled = last;
        found = card.left.erase(found);
        if (first < begin) card.left[first] = {begin - first, of.stream, of.work};
        if (last > end) card.left[end] = {last - end, of.stream, of.work};
    }
    fill_up_to(end);
}

/* Of a card: memory that nobody uses any more. */
void release(Model &card, std::map<uint64_t, Block>::iterator found) {
    auto &[place, block] = *found;
    for (void *event : block.left) destroy(event);
    card.left[place] = {block.at.bytes, block.stream, given_to(block.stream)};
    if (mt_sim_release(card.sim, block.at.address) != MT_OK) abort();
    card.blocks.erase(found);
    forget_left(card);
}

/* What was given back while other streams used it, and these are through; or the host waits for them. */
void release_left(Model &card, bool waits) {
    for (auto next = card.blocks.begin(); next != card.blocks.end();) {
        auto found = next++;
        const std::vector<void *> &left = found->second.left;
        if (waits) std::for_each(left.begin(), left.end(), wait_for);
        if (!left.empty() && std::all_of(left.begin(), left.end(), is_over_now))
            release(card, found);
    }
}

/* Before it gives up the allocator waits for memory that other streams use still. */
mt_status request(Model &card, size_t bytes, mt_sim_block &block) {
    mt_status status = mt_sim_alloc(card.sim, bytes, &block);
    if (status == MT_OK) return status;
    size_t before = card.blocks.size();
    release_left(card, true);
    return card.blocks.size() < before ? mt_sim_alloc(card.sim, bytes, &block) : status;
}

void *take(size_t bytes) {
    mt_sim_block block = {};
    c10::DeviceIndex index = current();
    counters.in_use = true;
    counters.requests++;
    std::unique_lock<std::recursive_mutex> lock(mutex);
    Model &card = model(index);
    release_left(card, false);
    if (mt_sim_set_stream(card.sim, static_cast<uint64_t>(current_stream().id)) != MT_OK) abort();
    mt_status status = request(card, bytes, block);
    if (status != MT_OK) refuse();
    if (!card.first) card.first = block.segment_address;
    size_t offset = block.address - card.first;
    if (offset + block.bytes > window) abort();
    card.blocks[offset] = {block, point_of(current_stream()), {}, current_stream(), {}, {}};
    forget_left(card);
    make_fresh(card, offset, block.bytes);
    mt_sim_stats now = read(index);
    lock.unlock();
    void *address = windows().device + window * static_cast<size_t>(index) + offset;
    tell(address, static_cast<int64_t>(block.bytes), now, index);
    return address;
}

/*
 * Memory that is given back may be handed out again at once. Who uses it on another stream has told the allocator, or the
 * memory's own stream has waited for it.
 */
void check_users(const Block &block) {
    if (counters.lets_race) return;
    auto check = [&](const Point &use) {
        if (block.used_on.count(use.stream) || is_after(block.stream, use)) return;
        std::fprintf(stderr,
                     "test device: memory of stream %d is given back while stream %d uses it\n",
                     static_cast<int>(block.stream.id), static_cast<int>(use.stream.id));
        std::abort();
    };
    check(block.written);
    for (const auto &[stream, operation] : block.read) check({stream, operation});
}

/* The memory's own stream goes on in it; other streams that use it are not waited for. */
void give_back(void *address) {
    if (!address) return;
    c10::DeviceIndex index = index_of(address);
    std::unique_lock<std::recursive_mutex> lock(mutex);
    Model &card = model(index);
    auto found = card.blocks.find(offset_of(address));
    if (found == card.blocks.end()) abort();
    Block &block = found->second;
    auto bytes = static_cast<int64_t>(block.at.bytes);
    check_users(block);
    for (Stream stream : block.used_on) record(&block.left.emplace_back(nullptr), stream);
    if (block.left.empty()) release(card, found);
    mt_sim_stats now = read(index);
    lock.unlock();
    tell(address, -bytes, now, index);
}

class Allocator final : public compat::CudaAllocator {
public:
    c10::DataPtr allocate(size_t bytes) override {
        c10::Device device(type, current());
        void *address = bytes ? take(bytes) : nullptr;
        return {address, address, &give_back, device};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        start();
        std::string copy(static_cast<const char *>(seen_at(from)), bytes);
        later([there = seen_at(to), copy = std::move(copy)] {
            std::memcpy(there, copy.data(), copy.size());
        });
    }
    bool initialized() override { return counters.in_use; }
    void emptyCache(c10::MempoolId_t) override { empty_cache(); }
    void recordStream(const c10::DataPtr &data, c10::Stream stream) override {
        use_on(data.get(), of(stream));
    }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex index) override {
        Lock lock(mutex);
        (void)!mt_sim_reset_peak(model(index).sim);
    }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
        return memtrain::shim::sim::as_told(stats(index));
    }
    void *raw_alloc(size_t bytes) override { return take(bytes); }
    void *raw_alloc_with_stream(size_t bytes, void *) override { return take(bytes); }
    void raw_delete(void *address) override { give_back(address); }
    void init(int) override {}
    double getMemoryFraction(c10::DeviceIndex index) override { return share(index); }
    void setMemoryFraction(double fraction, c10::DeviceIndex index) override {
        set_share(index, fraction);
    }
    /* Not marked as an override: libtorch 2.9 has none. */
    virtual std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) {
        counters.questions++;
        mt_sim_stats now = stats(index);
        return {now.free_bytes, now.total_bytes};
    }
};

/* ---- pinned memory of the host ---- */

std::mutex pinned_mutex;
std::map<const char *, size_t> pinned; /* begin and bytes */

/* Recorded where a block is given back: libtorch asks of it whether the card is through. */
class Given {
public:
    explicit Given(Stream stream) { record(&event_, stream); }
    Given(Given &&other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Given &operator=(Given &&other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    ~Given() { destroy(event_); }
    bool is_over() const { return card::is_over(event_); }

private:
    void *event_ = nullptr;
};

/*
 * libtorch's own cache, as CUDA and XPU have it: powers of two, statistics, and a block that was given back while a stream reads
 * it is kept until that is through.
 */
struct PinnedBlocks final : at::CachingHostAllocatorImpl<c10::Stream, Given> {
private:
    using Block = at::HostBlock<c10::Stream>;

    void allocate_host_memory(size_t bytes, void **out) override {
        if (posix_memalign(out, 64, bytes)) throw std::bad_alloc();
        std::lock_guard<std::mutex> lock(pinned_mutex);
        pinned[static_cast<char *>(*out)] = bytes;
    }
    void free_block(Block *block) override {
        no_longer_read(block->ptr_, block->size_);
        std::lock_guard<std::mutex> lock(pinned_mutex);
        pinned.erase(static_cast<char *>(block->ptr_));
        std::memset(block->ptr_, stale, block->size_);
        std::free(block->ptr_);
    }
    void record_stream(std::optional<std::vector<Given>> &events, c10::Stream stream) override {
        events->emplace_back(of(stream));
    }
    bool query_event(Given &event) override { return event.is_over(); }
};

void unpin(void *block);

class Pinned final : public at::CachingHostAllocatorInterface<PinnedBlocks, &unpin> {
public:
    c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        std::memcpy(to, from, bytes);
    }
    void empty_cache() override {
        counters.pinned_clears++;
        CachingHostAllocatorInterface::empty_cache();
    }
};

Pinned &all_pinned() {
    static auto *const one = new Pinned;
    return *one;
}

void unpin(void *block) {
    all_pinned().free(block);
}

} // namespace

int count() {
    static const int cards = [] {
        const char *told = std::getenv("MT_TEST_CARDS");
        int number = told ? std::atoi(told) : 1;
        return number < 1 ? 1 : number > most_cards ? most_cards : number;
    }();
    return cards;
}

at::HostAllocator &pinned_memory() {
    return all_pinned();
}

bool is_pinned(const void *address) {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    auto next = pinned.upper_bound(static_cast<const char *>(address));
    if (next == pinned.begin()) return false;
    --next;
    return static_cast<const char *>(address) < next->first + next->second;
}

size_t pinned_bytes() {
    std::lock_guard<std::mutex> lock(pinned_mutex);
    size_t bytes = 0;
    for (const auto &[begin, size] : pinned) bytes += size;
    return bytes;
}

c10::DeviceAllocator &allocator() {
    static auto *const one = new Allocator;
    return *one;
}

void *seen_at(const void *address) {
    if (!address) return nullptr;
    return windows().host + (static_cast<const char *>(address) - windows().device);
}

c10::DeviceIndex index_of(const void *address) {
    ptrdiff_t offset = static_cast<const char *>(address) - windows().device;
    return static_cast<c10::DeviceIndex>(static_cast<size_t>(offset) / window);
}

mt_sim_stats stats(c10::DeviceIndex index) {
    Lock lock(mutex);
    release_left(model(index), false);
    return read(index);
}

static Block *block_of(const void *address) {
    std::map<uint64_t, Block> &blocks = model(index_of(address)).blocks;
    auto next = blocks.upper_bound(offset_of(address));
    return next == blocks.begin() ? nullptr : &std::prev(next)->second;
}

void touch(const void *address, bool writes) {
    if (!address) return;
    Lock lock(mutex);
    Block *block = block_of(address);
    if (!block) return;
    if (!counters.lets_race) check_order(block->written);
    Point now = point_of(current_stream());
    if (!writes) {
        block->read[now.stream] = now.operation;
        return;
    }
    if (!counters.lets_race)
        for (const auto &[stream, operation] : block->read) check_order({stream, operation});
    block->read.clear();
    block->written = now;
}

void use_on(const void *address, Stream stream) {
    if (!address) return;
    Lock lock(mutex);
    Block *block = block_of(address);
    if (block && block->stream != stream) block->used_on.insert(stream);
}

double share(c10::DeviceIndex index) {
    mt_sim_stats now = stats(index);
    if (now.limit_bytes == SIZE_MAX) return 1.0;
    size_t whole = is_mps ? now.recommended_bytes : now.total_bytes;
    return static_cast<double>(now.limit_bytes) / static_cast<double>(whole);
}

void set_share(c10::DeviceIndex index, double share) {
    Lock lock(mutex);
    TORCH_CHECK(mt_sim_set_ratio(model(index).sim, share) == MT_OK, mt_last_error());
}

void empty_cache() {
    for (int i = 0; i < count(); i++) wait(static_cast<c10::DeviceIndex>(i));
    Lock lock(mutex);
    for (int i = 0; i < count(); i++) release_left(model(static_cast<c10::DeviceIndex>(i)), false);
    for (int i = 0; i < count(); i++)
        (void)!mt_sim_empty_cache(model(static_cast<c10::DeviceIndex>(i)).sim, nullptr);
}

void try_work_space(size_t bytes) {
    Counted counted;
    try {
        (void)allocator().allocate(bytes);
    } catch (const c10::OutOfMemoryError &) {
        counters.detours++;
    }
}

} // namespace card

#ifdef CARD_IS_XPU
/* libc10_xpu has it beside its allocator. */
namespace c10::xpu::XPUCachingAllocator {
MT_CARD_FUNCTION void setMemoryFraction(double fraction, DeviceIndex device);
void setMemoryFraction(double fraction, DeviceIndex device) {
    TORCH_CHECK_VALUE(0 < fraction && fraction <= 1, "invalid fraction:", fraction,
                      ". Please set within (0, 1].");
    card::set_share(device, fraction);
}
} // namespace c10::xpu::XPUCachingAllocator
#endif

extern "C" double mt_card_share(void) {
    return card::share(0);
}
