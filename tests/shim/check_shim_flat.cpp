/*
 * check_shim_flat.cpp - flat blocks that are kept below a size, which no network of a test comes near. So the layout is a part of
 * this suite, and its limit is one that the test sets.
 */
#include "flat.cpp"

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>

/* What the layout uses of the shim, whose own is not seen from here. */
namespace memtrain::shim {

void fail(mt_status, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    throw std::runtime_error(text);
}

uint32_t version_of(const at::Tensor &tensor) {
    return tensor.defined() ? static_cast<uint32_t>(tensor._version()) : 0;
}

} // namespace memtrain::shim

#include "suite.h" /* last: it defines fail() as a macro */

using namespace memtrain::shim;

namespace {

constexpr size_t most = 1024; /* 256 floats, 128 doubles */

static_assert(memtrain::shim::most_block_bytes == size_t{1} << 32,
              "MPSGraph takes arrays of up to 4 GiB");

/* Elements of a parameter, and the block in which it has to be. */
const struct {
    int64_t elements;
    c10::ScalarType dtype;
    size_t block;
} rows[] = {
    {100, at::kFloat, 0}, {50, at::kDouble, 1}, {100, at::kFloat, 0}, {50, at::kFloat, 2},
    {300, at::kFloat, 3}, {10, at::kFloat, 4},  {64, at::kDouble, 1}, {20, at::kFloat, 4},
    {8, at::kDouble, 1},  {1, at::kDouble, 5},  {208, at::kFloat, 4}, {1, at::kFloat, 6},
};

std::vector<Named> parameters() {
    std::vector<Named> list;
    for (const auto &row : rows)
        list.push_back({"p" + std::to_string(list.size()),
                        at::rand({row.elements}, row.dtype).requires_grad_(true)});
    return list;
}

bool is_frozen(const std::string &name) {
    return name == "p2" || name == "p10";
}

bool none(const std::string &) {
    return false;
}

/* No block of several is above the limit; with places for all slots. */
void check_blocks(const Flat &flat, const Places &places) {
    std::vector<size_t> slots(flat.blocks().size());
    for (const Slot &slot : flat.slots()) slots[slot.block]++;
    for (size_t b = 0; b < slots.size(); b++) {
        size_t bytes =
            static_cast<size_t>(places.elements[b]) * c10::elementSize(flat.blocks()[b].dtype);
        ck_assert_msg(slots[b] == 1 || bytes <= most, "block %zu: %zu bytes", b, bytes);
    }
}

} // namespace

TEST("blocks", blocks_end_at_the_limit) {
    std::vector<Named> list = parameters();
    Flat flat(list, none, nullptr, most), copy(list, none, &flat, most), whole(list, none);
    ck_assert_uint_eq(flat.blocks().size(), 7);
    ck_assert_uint_eq(whole.blocks().size(), 2);
    ck_assert_uint_eq(flat.bytes(), whole.bytes());
    for (size_t i = 0; i < list.size(); i++) {
        ck_assert_uint_eq(flat.slots()[i].block, rows[i].block);
        ck_assert_uint_eq(copy.slots()[i].block, rows[i].block);
    }
    check_blocks(flat, flat.places());
}

/* What has no place yet may get one. */
TEST("blocks", frozen_parameters_are_counted) {
    std::vector<Named> list = parameters();
    Flat flat(list, is_frozen, nullptr, most);
    for (size_t i = 0; i < list.size(); i++)
        ck_assert_uint_eq(flat.slots()[i].block, rows[i].block);
    check_blocks(flat, flat.make_places(std::vector<bool>(list.size(), true)));
}

/* Values stay, and gradients of two chunks come to their places, with either way of adding them. */
TEST_LOOP("blocks", gradients_in_several_blocks, 2) {
    bool apart = _i == 1;
    std::vector<Named> list = parameters();
    std::vector<at::Tensor> before;
    for (const Named &named : list) before.push_back(named.tensor.detach().clone());
    Flat flat(list, none, nullptr, most);
    flat.lay_out(c10::kCPU);
    flat.begin();
    for (int chunk = 0; chunk < 2; chunk++) {
        flat.begin_chunk(apart);
        for (size_t i = 0; i < list.size(); i++)
            at::mul(list[i].tensor, static_cast<double>(i + 1)).sum().backward();
        flat.end_chunk(apart, false);
    }
    flat.complete();
    for (size_t i = 0; i < list.size(); i++) {
        const Slot &slot = flat.slots()[i];
        ck_assert(list[i].tensor.detach().equal(before[i]));
        ck_assert(slot.gradient.is_alias_of(flat.blocks()[slot.block].gradients));
        ck_assert(list[i].tensor.grad().equal(at::full_like(before[i], 2.0 * (i + 1))));
    }
}

SUITE("shim_flat")
