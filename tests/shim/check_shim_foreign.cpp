/*
 * check_shim_foreign.cpp - what the C library's heap is told, and what it tells us: blocks of others whose page before
 * is not there, blocks of ours that never begin a page, and thresholds that the environment has set.
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <c10/core/CPUAllocator.h>

#include "check_shim.hpp"

using namespace check_shim;

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
void *foreign;
int freed;
} // namespace

extern "C" void __libc_free(void *block);

/* In the place of the C library's: the foreign block is not one of its own. */
extern "C" void free(void *block) noexcept {
    if (block && block == foreign)
        freed++;
    else
        __libc_free(block);
}

namespace {

/* As a heap may hand out that keeps its own notes elsewhere: macOS's, jemalloc's. */
TEST("heap", the_page_before_is_not_there) {
    ck_ok(mt_torch_init(nullptr));
    size_t page = static_cast<size_t>(getpagesize()), before = cpu_memory().allocated_bytes;
    void *pages =
        mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(pages, MAP_FAILED);
    ck_assert_int_eq(mprotect(pages, page, PROT_NONE), 0);
    foreign = static_cast<char *>(pages) + page;
    c10::GetCPUAllocator()->raw_deallocate(foreign);
    ck_assert_int_eq(freed, 1);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
    foreign = nullptr;
    munmap(pages, 2 * page);
}

/* Small ones would begin a page now and then, and each begins at most one. */
TEST("heap", ours_do_not_begin_a_page) {
    ck_ok(mt_torch_init(nullptr));
    c10::Allocator *ours = c10::GetCPUAllocator();
    size_t before = cpu_memory().allocated_bytes;
    std::vector<void *> blocks;
    std::set<uintptr_t> lines;
    for (size_t bytes = 1; bytes < 20000; bytes += bytes < 1000 ? 1 : 64)
        blocks.push_back(ours->raw_allocate(bytes));
    for (void *block : blocks) {
        lines.insert(reinterpret_cast<uintptr_t>(block) % 4096);
        ck_assert_uint_ne(reinterpret_cast<uintptr_t>(block) % 4096, 0);
        ck_assert_uint_eq(reinterpret_cast<uintptr_t>(block) % 64, 0);
    }
    ck_assert_uint_gt(lines.size(), 32); /* all other lines of a page are seen */
    for (void *block : blocks) ours->raw_deallocate(block);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
}

/* Whether a request of so many bytes is mapped by itself. */
bool is_mapped(size_t bytes) {
    size_t before = mallinfo2().hblks;
    void *volatile block = std::malloc(bytes);
    size_t after = mallinfo2().hblks;
    std::free(block);
    return after > before;
}

const char *const set[] = {"", "glibc.malloc.mmap_threshold=131072",
                           "glibc.malloc.check=0:glibc.malloc.mmap_threshold=131072",
                           "glibc.malloc.trim_threshold=131072"};

/* The C library has read its own at the start of the process; ours reads the variable when it is made ready. */
TEST_LOOP("heap", tunables_have_precedence, LENGTH(set)) {
    ck_assert_int_eq(setenv("GLIBC_TUNABLES", set[_i], 1), 0);
    unsetenv("MALLOC_MMAP_THRESHOLD_");
    unsetenv("MALLOC_TRIM_THRESHOLD_");
    ck_assert(is_mapped(size_t{1} << 20)); /* the C library's own threshold is 128 KiB, until */
    bool keeps = std::strstr(set[_i], "mmap_threshold") != nullptr;
    ck_ok(mt_torch_init(nullptr));
    ck_assert_int_eq(is_mapped(size_t{8} << 20), keeps);
    ck_assert(is_mapped(size_t{40} << 20));
}

} // namespace

SUITE("shim_foreign")

#else

int main() {
    suite_skip("shim_foreign", "the heap is not glibc's, or a sanitizer's");
    return EXIT_SUCCESS;
}

#endif
