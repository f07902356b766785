/* arena_mapping.cpp - the address range of an arena: reserved once, pages by use. */
#include "arena_plan.hpp"

#include <algorithm>
#include <mutex>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace memtrain::shim::cpu {
namespace {

constexpr size_t huge_page = size_t(2) << 20;
#ifdef MADV_HUGEPAGE
constexpr size_t huge_from = 16 * huge_page; /* the last page of a smaller arena is much of it */
#endif

/* Of all mappings; never destroyed, since tensors may be freed by destructors of static objects. */
struct Ranges {
    std::mutex mutex;
    std::vector<std::pair<const char *, size_t>> list;
};

Ranges &ranges() {
    static auto *all = new Ranges;
    return *all;
}

bool note_range(const char *start, size_t bytes) noexcept {
    try {
        std::lock_guard<std::mutex> lock(ranges().mutex);
        ranges().list.emplace_back(start, bytes);
        return true;
    } catch (const std::bad_alloc &) {
        return false;
    }
}

void forget_range(const char *start) noexcept {
    std::lock_guard<std::mutex> lock(ranges().mutex);
    auto &list = ranges().list;
    auto is_it = [start](const auto &range) { return range.first == start; };
    list.erase(std::remove_if(list.begin(), list.end(), is_it), list.end());
}

/*
 * Darwin's MADV_DONTNEED leaves the pages with the process. New ones in their place do not (mmap(2): MAP_FIXED replaces what is
 * mapped there), and count again when they are touched, which MADV_FREE_REUSABLE would have to be told.
 */
void give_pages_back(char *start, size_t bytes) noexcept {
#ifdef __APPLE__
    (void)mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0);
#else
    (void)madvise(start, bytes, MADV_DONTNEED);
#endif
}

} // namespace

Mapping::~Mapping() {
    if (!start_) return;
    forget_range(start_);
    munmap(start_, range_);
}

bool lies_in_mapping(const void *data) noexcept {
    auto address = reinterpret_cast<uintptr_t>(data);
    std::lock_guard<std::mutex> lock(ranges().mutex);
    for (const auto &range : ranges().list)
        if (address - reinterpret_cast<uintptr_t>(range.first) < range.second) return true;
    return false;
}

/*
 * Addresses for all the memory there is cost nothing; under a limit of addresses less will do, and as many as the
 * range has must be left for the heap, for threads and for libraries.
 */
bool Mapping::reserve(size_t bytes) noexcept {
    long pages = sysconf(_SC_PHYS_PAGES);
    size_t wanted = static_cast<size_t>(std::max(pages, 1L)) * static_cast<size_t>(getpagesize());
    bytes = rounded(bytes, huge_page);
    size_t range = rounded(std::max(wanted, bytes), huge_page);
    for (; !start_ && range && range >= bytes; range = range / 2 / huge_page * huge_page) {
        void *start = mmap(nullptr, 2 * range + huge_page, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) continue;
        munmap(static_cast<char *>(start) + range + huge_page, range);
        if (!note_range(static_cast<char *>(start), range + huge_page)) {
            munmap(start, range + huge_page);
            return false;
        }
        start_ = static_cast<char *>(start);
        range_ = range + huge_page;
        base_ = reinterpret_cast<char *>(rounded(reinterpret_cast<size_t>(start), huge_page));
    }
    if (bytes <= bytes_) return true;
    if (!start_ || bytes > range_ - huge_page) return false;
    if (mprotect(base_ + bytes_, bytes - bytes_, PROT_READ | PROT_WRITE)) return false;
#ifdef MADV_HUGEPAGE
    if (bytes >= huge_from) (void)madvise(base_, bytes, MADV_HUGEPAGE);
#endif
    poison(base_ + bytes_, bytes - bytes_);
    bytes_ = bytes;
    return true;
}

void Mapping::drop_pages(size_t from, size_t top) noexcept {
    size_t page = static_cast<size_t>(getpagesize());
    from = rounded(from, page);
    top = std::min(top, bytes_) / page * page;
    if (from < top) give_pages_back(base_ + from, top - from);
}

} // namespace memtrain::shim::cpu
