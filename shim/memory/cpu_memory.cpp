/*
 * cpu_memory.cpp - the budgeted allocator: header, counters, refusals.
 */
#include "cpu_memory.hpp"

#include <algorithm>
#include <mutex>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#endif

#include <unistd.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include "arena.hpp"
#include "arena_plan.hpp"
#include "compat.hpp"
#include "dry.hpp"
#include "injection.hpp"
#include "sim_memory.hpp"

namespace memtrain::shim::cpu {
namespace {

/* Alignment of tensors, and size of the header, so that the data behind it keeps the alignment. */
constexpr size_t line_bytes = 64;

constexpr int64_t follow_milliseconds = 200;
constexpr size_t follow_share = 10; /* a change below a tenth is noise */
constexpr size_t resident_spare = 50;
constexpr size_t group_spare = 20;               /* of a control group's limit */
constexpr unsigned first_chunks = 16;            /* map code of libtorch and make kernels: ... */
constexpr size_t first_bytes = size_t(36) << 20; /* ... so much, ... */
constexpr size_t first_share = 8;                /* ... and at most an eighth of the room */

constexpr uintptr_t cookie_key = 0x6d656d747261696eu; /* "memtrain" */
constexpr uintptr_t card_key = ~cookie_key;           /* the tensor counts against a card too */
constexpr uintptr_t arena_key = cookie_key << 1;      /* it lies in an arena */

/* The smallest that a page may be; the beginning of a larger one is a multiple of it. */
constexpr size_t least_page = 4096;

/* The last bytes before the data. The cookie tells which blocks are ours, see key_of(). */
struct Header {
    void *origin; /* the heap's block, or the Place in an arena */
    size_t bytes;
    uintptr_t cookie; /* the data's address ^ one of the keys; 0 once freed */
};

/* Before the header, where the cookie has the card_key. */
struct OnCardHeader {
    sim::Card *card;
    sim::Place place;
};
static_assert(sizeof(OnCardHeader) + sizeof(Header) <= line_bytes, "both lie before the data");
static_assert(Arena::header_bytes == line_bytes, "an arena leaves room for the header");

struct Thread {
    Refusals refusals = {0, 0, 0};
    mt_event_sink sink = {nullptr, nullptr};
    sim::Card *card = nullptr;
    Arena *arena = nullptr;
    uint64_t refused = 0; /* requests, those of a card too */
};

thread_local Thread thread;

std::atomic<size_t> used{0};
std::atomic<size_t> highest{0};
std::atomic<size_t> highest_in_call{0};
std::atomic<size_t> limit{0}; /* 0: not yet asked of the host */
std::atomic<size_t> in_arenas{0};
std::atomic<size_t> most_resident{0};      /* the resident limit; 0: none */
std::atomic<size_t> room_within{SIZE_MAX}; /* what it leaves for tensors */

/* A limit on resident bytes, the one that was set or a control group's. */
struct Limit {
    std::atomic<size_t> pages{SIZE_MAX}; /* what it leaves for tensors and the pages of arenas */
    std::atomic<size_t> room{0};         /* for tensors, at most since the heap was trimmed */
};
Limit given, group;

std::atomic<unsigned> chunks{0}; /* that have begun */
std::atomic<bool> all_pages_stay{false};
std::atomic<size_t> at_first_chunk{0}; /* resident bytes of others than tensors */
std::atomic<bool> is_default{true};
std::atomic<bool> in_group{false}; /* the default follows a control group's limit */
std::atomic<bool> in_place{false};

Header *header_of(void *data) {
    return reinterpret_cast<Header *>(static_cast<char *>(data) - sizeof(Header));
}

OnCardHeader *card_header_of(void *data) {
    return reinterpret_cast<OnCardHeader *>(static_cast<char *>(data) - sizeof(Header) -
                                            sizeof(OnCardHeader));
}

uintptr_t cookie_of(const void *data, uintptr_t key) {
    return reinterpret_cast<uintptr_t>(data) ^ key;
}

bool begins_page(const void *data) {
    return reinterpret_cast<uintptr_t>(data) % least_page == 0;
}

/*
 * One of the keys, anything else for a block that is not ours. There it reads what lies before the block, which the
 * address sanitizer would take for an error. Where a block begins a page, the page before may not be there: none of
 * ours in the heap does that, see take_from_heap(), and those in arenas are known by their addresses.
 */
__attribute__((no_sanitize("address"))) uintptr_t key_of(void *data) {
    if (begins_page(data) && !lies_in_mapping(data)) return 0;
    return header_of(data)->cookie ^ reinterpret_cast<uintptr_t>(data);
}

void raise(std::atomic<size_t> &mark, size_t value) noexcept {
    size_t seen = mark.load(std::memory_order_relaxed);
    while (value > seen && !mark.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

/*
 * Sign of bytes: + allocated, - released. Both listeners cost a load each while nobody listens. The
 * sink is told what the device's allocator counts, as CUDA's tells it: on a card the whole block.
 */
void tell(void *data, int64_t sign) noexcept {
    int64_t bytes = sign * static_cast<int64_t>(header_of(data)->bytes);
    if (thread.sink.event) {
        bool on_card = key_of(data) == card_key;
        size_t block = on_card ? card_header_of(data)->place.bytes : header_of(data)->bytes;
        thread.sink.event(thread.sink.user, data, sign * static_cast<int64_t>(block));
    }
    if (thread.arena && thread.arena->recording())
        mt_recording_event(thread.arena->recording(), data, bytes);
    if (!c10::memoryProfilingEnabled()) return;
    try {
        size_t total = allocated();
        c10::reportMemoryUsageToProfiler(data, bytes, total, total, c10::Device(c10::kCPU));
    } catch (...) {
        /* A profiler without memory must not turn into a leak or a lost tensor. */
    }
}

/* Whether tensors have nothing because others have it all, and not since so small a budget was set. */
bool is_left_nothing(size_t allowed) noexcept {
    size_t own = limit.load(std::memory_order_relaxed);
    return allowed <= 1 && (is_default.load(std::memory_order_relaxed) || own > allowed);
}

[[noreturn]] void refuse(const char *who, size_t bytes) {
    char wanted[32], in_use[32], most[32];
    size_t now = allocated(), allowed = budget();
    bool nothing = is_left_nothing(allowed);
    thread.refusals = {thread.refusals.count + 1, bytes, now};
    /* Without a backtrace, which would be most of what a user reads of it. */
    throw c10::OutOfMemoryError(
        c10::str("budget: ", who, " a request for ", mt_format_size(bytes, wanted, sizeof wanted),
                 " with ", mt_format_size(now, in_use, sizeof in_use), " in use",
                 nothing ? ": the rest of the process leaves tensors nothing" : " of ",
                 nothing ? "" : mt_format_size(allowed, most, sizeof most)));
}

/* Whether resident bytes have room for so many beside tensors and the pages of arenas. */
bool has_pages(size_t bytes) noexcept {
    size_t most = std::min(given.pages.load(std::memory_order_relaxed),
                           group.pages.load(std::memory_order_relaxed));
    return most == SIZE_MAX || outside_arenas() + Arena::touched_bytes() + bytes <= most;
}

/*
 * Adds to the bytes in use unless that would exceed the budget, so no peak can exceed it either.
 * Returns the new sum, or 0.
 */
size_t reserve(size_t bytes) noexcept {
    size_t allowed = budget(), now = used.load(std::memory_order_relaxed);
    do {
        if (bytes > allowed || now > allowed - bytes) return 0;
    } while (!used.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    return now + bytes;
}

/*
 * Data behind a header that is filled in. It does not begin a page: where it would, a longer block is taken, in which
 * it begins a line later.
 */
void *take_from_heap(size_t bytes) {
    void *block = nullptr;
    if (bytes > SIZE_MAX - 2 * line_bytes || posix_memalign(&block, line_bytes, bytes + line_bytes))
        return nullptr;
    char *data = static_cast<char *>(block) + line_bytes;
    if (begins_page(data)) {
        std::free(block);
        if (posix_memalign(&block, line_bytes, bytes + 2 * line_bytes)) return nullptr;
        data = static_cast<char *>(block) + line_bytes;
        if (begins_page(data)) data += line_bytes;
    }
    *header_of(data) = {block, bytes, cookie_of(data, cookie_key)};
    return data;
}

/* The same, from the arena or else from the heap. */
void *take_block(size_t bytes) {
    Place *place = nullptr;
    bool planned = thread.arena && !thread.card; /* a card's tensor has a header of its own */
    if (planned) in_arenas.fetch_add(bytes, std::memory_order_relaxed);
    char *data = planned ? thread.arena->serve(bytes, &place) : nullptr;
    if (data) {
        *header_of(data) = {place, bytes, cookie_of(data, arena_key)};
        return data;
    }
    if (planned) in_arenas.fetch_sub(bytes, std::memory_order_relaxed);
    return make_room(0) ? take_from_heap(bytes) : nullptr;
}

void *take_from_host(size_t bytes) {
    size_t sum = reserve(bytes);
    if (!sum) refuse("there is no room for", bytes);
    void *data = take_block(bytes);
    if (!data) {
        bool has_room = has_pages(0);
        used.fetch_sub(bytes, std::memory_order_relaxed);
        refuse(has_room ? "the system refuses" : "the process's other pages leave no room for",
               bytes);
    }
    raise(highest, sum);
    raise(highest_in_call, sum);
    return data;
}

void *take_on_card(sim::Card &card, size_t bytes) {
    sim::Place place = card.take(bytes);
    void *data;
    try {
        data = take_from_host(bytes);
    } catch (...) {
        card.give_back(place);
        throw;
    }
    header_of(data)->cookie = cookie_of(data, card_key);
    *card_header_of(data) = {&card, place};
    return data;
}

/* A request that shall fail is refused by the card in its own words. */
void *take(size_t bytes) {
    Thread &own = thread;
    sim::Card *card = own.card;
    bool fails = injection::is_refused();
    own.refused++; /* until there is memory for it */
    if (fails && card) card->refuse(bytes);
    if (fails) refuse("injected refusal of", bytes);
    void *data = card ? take_on_card(*card, bytes) : take_from_host(bytes);
    own.refused--;
    return data;
}

/* Deleter of every tensor, and of buffers that oneDNN took through raw_allocate. */
void give_back(void *data) {
    if (!data) return;
    uintptr_t key = key_of(data);
    if (key != cookie_key && key != card_key && key != arena_key) {
        std::free(data); /* made by libtorch's own allocator before ours was installed */
        return;
    }
    used.fetch_sub(header_of(data)->bytes, std::memory_order_relaxed);
    if (key == arena_key) in_arenas.fetch_sub(header_of(data)->bytes, std::memory_order_relaxed);
    tell(data, -1);
    if (key == card_key) card_header_of(data)->card->give_back(card_header_of(data)->place);
    header_of(data)->cookie = 0;
    if (key == arena_key)
        Arena::release(static_cast<Place *>(header_of(data)->origin));
    else
        std::free(header_of(data)->origin);
}

class Allocator final : public c10::Allocator {
public:
    c10::DataPtr allocate(size_t bytes) override {
        void *data = bytes ? take(bytes) : nullptr;
        if (data) tell(data, 1);
        return {data, data, &give_back, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
    void copy_data(void *to, const void *from, size_t bytes) const override {
        default_copy_data(to, from, bytes);
    }
};

/*
 * glibc gives the top of the heap back after each step and faults the pages in again in the next one:
 * a fifth of the time of a small step, or nothing, as the heap's layout has it. So pages are kept until
 * empty_cache asks for them; above 32 MiB, the most that may be set, requests have pages of their own.
 * What the environment says about it has precedence.
 */
#ifdef __GLIBC__
bool is_set(const char *variable, const char *tunable) {
    const char *tunables = std::getenv("GLIBC_TUNABLES");
    return std::getenv(variable) || (tunables && std::strstr(tunables, tunable));
}

void keep_pages() {
    if (!is_set("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold="))
        mallopt(M_TRIM_THRESHOLD, INT32_MAX);
    if (!is_set("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold="))
        mallopt(M_MMAP_THRESHOLD, 32 << 20);
}
#else
void keep_pages() {}
#endif

/* Resident bytes of others than tensors. */
size_t others_now() {
    size_t now = resident_bytes(), tensors = outside_arenas() + Arena::touched_bytes();
    return now - std::min(now, tensors);
}

/* What the first chunks will take beside tensors, beyond what others take now. */
size_t still_to_come(size_t others) {
    unsigned begun = chunks.load(std::memory_order_relaxed);
    if (begun > first_chunks) return 0;
    size_t expected = (begun ? at_first_chunk.load() : others) + first_bytes;
    return expected - std::min(expected, others);
}

/*
 * What may be tensors where so many bytes may be resident: what is neither a tensor nor a page that waits
 * for one has to fit beside them; a fiftieth is for what an arena takes above the bytes alive in it, so
 * what lies outside of arenas needs none.
 */
size_t tensors_within(size_t most, std::atomic<size_t> &pages) {
    size_t outside = outside_arenas(), others = others_now();
    size_t room = most - std::min(most, others);
    pages = room;
    room -= std::min(still_to_come(others), room / first_share);
    return std::max<size_t>(room - (room - std::min(room, outside)) / (resident_spare + 1), 1);
}

/*
 * The same, where free pages of the heap are nobody's: they are given back once they seem to be others' and to
 * leave tensors a tenth less.
 */
size_t settle(size_t most, Limit &by) {
    size_t now = tensors_within(most, by.pages), before = by.room;
    if (now < before - before / follow_share) {
        trim_heap();
        by.room = now = tensors_within(most, by.pages);
    }
    if (now > before) by.room = now;
    return now;
}

/*
 * What the host has for us now; what we hold of it already counts, in use or kept by the heap. A control
 * group counts resident bytes and ends who has too many, so its limit is taken as one on these.
 */
size_t host_budget() {
    static const size_t code = [] {
        size_t before = resident_bytes(); /* read once: it may have grown by a second look */
        return before - std::min(before, allocated());
    }();
    mt_host_memory host = {};
    host.size = sizeof host;
    if (mt_host_memory_read(nullptr, &host) != MT_OK) return SIZE_MAX;
    size_t resident = resident_bytes(), held = resident - std::min(resident, code);
    size_t most = resident + std::min(host.cgroup_room_bytes, SIZE_MAX - resident);
    held = std::max(held, allocated());
    size_t all = host.budget_bytes < SIZE_MAX - held ? host.budget_bytes + held : SIZE_MAX;
    in_group = host.cgroup_room_bytes < host.available_bytes;
    if (!in_group) {
        group.pages = SIZE_MAX;
        return std::max<size_t>(all, 1);
    }
    size_t within = settle(most - most / group_spare, group);
    return host.pressed ? std::min(within, all) : within;
}

void follow_resident_limit() {
    size_t most = resident_limit();
    if (!most) given.pages = SIZE_MAX;
    room_within = most ? settle(most, given) : SIZE_MAX;
}

} // namespace

void install() {
    /* Never destroyed: tensors may be freed by destructors of static objects. */
    static Allocator *allocator = new Allocator;
    keep_pages();
    c10::SetCPUAllocator(allocator, 255);
    in_place = true;
}

void *take_beside(size_t bytes) {
    void *data = nullptr;
    if (injection::is_refused()) refuse("injected refusal of", bytes);
    if (posix_memalign(&data, line_bytes, bytes)) refuse("the system refuses", bytes);
    return data;
}

bool installed() noexcept {
    return in_place.load(std::memory_order_relaxed);
}

bool is_uncounted(const c10::DataPtr &data) noexcept {
    auto libtorchs_own = c10::GetDefaultCPUAllocator()->raw_deleter();
    return installed() && data.get() && data.get_deleter() == libtorchs_own;
}

void warn_of_uncounted(const char *whose, size_t bytes) noexcept {
    char text[32];
    if (!bytes) return;
    mt_log(
        MT_LOG_WARNING,
        "%s take %s that the CPU's budget does not count: they were made before mt_torch_init or "
        "mt_device_set_budget; call one of these before the first tensor",
        whose, mt_format_size(bytes, text, sizeof text));
}

size_t allocated() noexcept {
    return used.load(std::memory_order_relaxed);
}

size_t peak() noexcept {
    return highest.load(std::memory_order_relaxed);
}

void hold(size_t bytes) noexcept {
    static std::atomic<size_t> held{0};
    hold_more(static_cast<ptrdiff_t>(bytes - held.exchange(bytes)));
}

void hold_more(ptrdiff_t bytes) noexcept {
    size_t more = static_cast<size_t>(bytes);
    size_t now = used.fetch_add(more) + more; /* modulo 2^64 */
    raise(highest, now);
    raise(highest_in_call, now);
}

bool hold_if_room(size_t bytes) noexcept {
    if (!installed()) {
        hold_more(static_cast<ptrdiff_t>(bytes));
        return true;
    }
    size_t sum = make_room(bytes) ? reserve(bytes) : 0;
    raise(highest, sum);
    raise(highest_in_call, sum);
    return sum != 0;
}

void refuse_held(size_t bytes) {
    thread.refused++;
    refuse("there is no room for", bytes);
}

void reset_peak() noexcept {
    highest.store(allocated(), std::memory_order_relaxed);
}

size_t call_peak() noexcept {
    return highest_in_call.load(std::memory_order_relaxed);
}

void reset_call_peak() noexcept {
    if (chunks.fetch_add(1, std::memory_order_relaxed) == 0) at_first_chunk = others_now();
    highest_in_call.store(allocated(), std::memory_order_relaxed);
}

void keep_all_pages(bool on) noexcept {
    all_pages_stay = on;
#ifdef __GLIBC__
    constexpr int by_default = 65536; /* blocks that have pages of their own */
    if (!is_set("MALLOC_MMAP_MAX_", "glibc.malloc.mmap_max="))
        mallopt(M_MMAP_MAX, on ? 0 : by_default);
#endif
    if (!on) trim_heap();
}

void trim_heap() noexcept {
#ifdef __GLIBC__
    if (all_pages_stay) return;
    /* Where another malloc is preloaded this call is glibc's first, which sets it up, and two at a time must not. */
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    malloc_trim(0);
#endif
}

bool make_room(size_t bytes) noexcept {
    if (has_pages(bytes)) return true;
    Arena::drop_all_pages();
    if (has_pages(bytes)) return true;
    size_t before = resident_bytes();
    trim_heap();
    size_t trimmed = before - std::min(before, resident_bytes());
    for (Limit *by : {&given, &group}) by->pages += std::min(trimmed, SIZE_MAX - by->pages);
    return has_pages(bytes);
}

size_t outside_arenas() noexcept {
    size_t inside = in_arenas.load(std::memory_order_relaxed), all = allocated();
    return all - std::min(all, inside);
}

void set_resident_limit(size_t bytes) noexcept {
    most_resident = bytes;
    given.room = 0;
    follow_resident_limit();
}

size_t resident_limit() noexcept {
    return most_resident.load(std::memory_order_relaxed);
}

/* The other way round from tensors_within(), but that after the first chunk nothing more is expected. */
size_t resident_for(size_t bytes) noexcept {
    size_t others = others_now();
    if (bytes > (SIZE_MAX - others) / 2) return SIZE_MAX;
    size_t all = bytes + (bytes - std::min(bytes, outside_arenas())) / resident_spare;
    if (!chunks) all += std::min(still_to_come(others), all / (first_share - 1));
    return std::max(resident_bytes(), others + all);
}

void set_budget(size_t bytes) noexcept {
    is_default.store(bytes == 0, std::memory_order_relaxed);
    group.pages = SIZE_MAX;
    limit.store(bytes, std::memory_order_relaxed);
}

/*
 * The default budget, and what a control group leaves. The host is asked again after a while; in a group at once where others
 * than tensors have grown, since the heap keeps the pages of tensors that were freed.
 */
static void follow_default() {
    using namespace std::chrono;
    static std::atomic<int64_t> last{0};
    static std::atomic<size_t> others{0}; /* than tensors, when the host was asked last */
    int64_t now = duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
    size_t old = limit.load(std::memory_order_relaxed);
    if (!is_default || !old) return;
    bool have_grown = in_group && others_now() > others + old / follow_share;
    if (now - last < follow_milliseconds && !have_grown) return;
    last = now;
    size_t bytes = host_budget(), change = bytes > old ? bytes - old : old - bytes;
    others = others_now();
    if (change > old / follow_share || (in_group && bytes < old))
        limit.compare_exchange_strong(old, bytes);
}

void follow_host() {
    if (is_dry) return; /* its blocks are not written, so what is resident tells nothing */
    if (resident_limit()) follow_resident_limit();
    follow_default();
    /* Others may have grown into what a chunk left behind: the next one would be refused its first byte. */
    (void)make_room(0);
}

/* Without any figure of the host there is no limit. */
size_t budget() noexcept {
    size_t now = limit.load(std::memory_order_relaxed), bytes = now;
    if (!now) {
        bytes = host_budget();
        if (!limit.compare_exchange_strong(now, bytes)) bytes = now;
    }
    return std::min(bytes, room_within.load(std::memory_order_relaxed));
}

#ifdef __APPLE__
/*
 * What Darwin counts against the process, compressed pages included: TASK_VM_INFO of <mach/task_info.h>, which has the highest
 * since its third revision.
 */
static task_vm_info_data_t read_task() noexcept {
    task_vm_info_data_t info = {};
    mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) !=
        KERN_SUCCESS)
        return {};
    return info;
}

size_t resident_bytes() noexcept {
    return static_cast<size_t>(read_task().phys_footprint);
}

size_t peak_resident_bytes() noexcept {
    return static_cast<size_t>(read_task().ledger_phys_footprint_peak);
}
#else
size_t resident_bytes() noexcept {
    long total = 0, resident = 0;
    std::FILE *file = std::fopen("/proc/self/statm", "re");
    if (!file) return 0;
    int fields = std::fscanf(file, "%ld %ld", &total, &resident);
    std::fclose(file);
    return fields == 2 ? static_cast<size_t>(resident) * static_cast<size_t>(sysconf(_SC_PAGESIZE))
                       : 0;
}

size_t peak_resident_bytes() noexcept {
    char line[256];
    size_t kib = 0;
    std::FILE *file = std::fopen("/proc/self/status", "re");
    while (file && !kib && std::fgets(line, sizeof line, file))
        if (std::sscanf(line, "VmHWM: %zu", &kib) != 1) kib = 0;
    if (file) std::fclose(file);
    return kib << 10;
}
#endif

Refusals refusals() noexcept {
    return thread.refusals;
}

uint64_t refused_requests() noexcept {
    return thread.refused;
}

void set_sink(const mt_event_sink *sink) noexcept {
    thread.sink = sink ? *sink : mt_event_sink{nullptr, nullptr};
}

Arena *set_arena(Arena *arena) noexcept {
    return std::exchange(thread.arena, arena);
}

void set_card(sim::Card *card) noexcept {
    thread.card = card;
}

sim::Card *card() noexcept {
    return thread.card;
}

} // namespace memtrain::shim::cpu
