/*
 * check_shim_card_memory.cpp - the memory of a card, whichever it is: a budget that refuses what is above it, peaks, the cache.
 * Of the CPU's allocator check_shim_memory tells the same.
 */
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "check_shim.hpp"

using namespace check_shim;

namespace {

constexpr size_t MiB = size_t{1} << 20;

/* A tensor of that many bytes on the device, or an undefined one where it is refused in words that mean memory. */
at::Tensor take(size_t bytes) {
    try {
        return at::empty({static_cast<int64_t>(bytes)},
                         at::device(c10::Device(suite_device())).dtype(at::kByte));
    } catch (...) {
        ck_status(mt_torch_exception(), MT_EDEVMEM);
    }
    return {};
}

/* What is held already, and room for so much more. */
void set_room(size_t bytes) {
    size_t held = memory_on(suite_device()).reserved_bytes;
    ck_ok(mt_device_set_budget(suite_device(), held + bytes));
}

void init() {
    ck_ok(mt_torch_init(nullptr));
    ck_assert(take(MiB).defined());
    ck_ok(mt_empty_cache(suite_device(), nullptr));
}

} // namespace

/* MPS counts no heap beside its limit, so a tensor far above it stands for all. */
TEST("card", budget_is_enforced) {
    set_room(256 * MiB);
    {
        at::Tensor fits = take(64 * MiB);
        ck_assert(fits.defined());
        ck_assert_uint_ge(memory_on(suite_device()).allocated_bytes, 64 * MiB);
        ck_assert(!take(1024 * MiB).defined());
    }
    ck_assert(take(64 * MiB).defined());
    ck_ok(mt_device_set_budget(suite_device(), 0));
    ck_assert(take(300 * MiB).defined());
}

TEST("card", budget_is_told) {
    set_room(256 * MiB);
    mt_memory memory = memory_on(suite_device());
    ck_assert_uint_ge(memory.budget_bytes, 256 * MiB);
    ck_assert_uint_le(memory.allocated_bytes, memory.reserved_bytes);
    ck_assert_uint_le(memory.reserved_bytes, memory.budget_bytes);
}

TEST_IF(suite_has_peaks(), "MPS tells no peaks", "card", peak_is_of_what_was_live) {
    ck_ok(mt_device_reset_peak(suite_device()));
    size_t before = memory_on(suite_device()).allocated_bytes;
    take(32 * MiB).reset();
    mt_memory memory = memory_on(suite_device());
    ck_assert_uint_eq(memory.allocated_bytes, before);
    ck_assert_uint_eq(memory.peak_bytes, before + 32 * MiB);
    ck_ok(mt_device_reset_peak(suite_device()));
    ck_assert_uint_eq(memory_on(suite_device()).peak_bytes, before);
}

TEST("card", cache_goes_back) {
    take(64 * MiB).reset();
    size_t held = memory_on(suite_device()).reserved_bytes;
    ck_assert_uint_ge(held, 64 * MiB);
    mt_clear_result result = {};
    result.size = sizeof result;
    ck_ok(mt_empty_cache(suite_device(), &result));
    ck_assert_uint_ge(result.released_bytes, 64 * MiB);
    ck_assert_uint_le(memory_on(suite_device()).reserved_bytes, held - 64 * MiB);
}

int main() {
    if (!suite_on_card()) {
        printf("SKIP: shim_card_memory: of cards alone, real ones and the test device's\n");
        return EXIT_SUCCESS;
    }
    tcase_add_checked_fixture(suite_case_named("card"), init, nullptr);
    return suite_run_named("shim_card_memory");
}
