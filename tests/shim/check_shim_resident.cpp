/*
 * check_shim_resident.cpp - a limit for the process and what is predicted of it: the one is the other way
 * round, both reckon with what the first chunks take, a new network leaves no pages behind, and no page is
 * counted on twice: neither two trainers nor a user's own tensors carry the process over its limit.
 */
#include <cstdio>
#include <string>

#include <sys/stat.h>
#include <unistd.h>

#include <ATen/ops/full.h>
#include <ATen/ops/tanh.h>

#include "arena_subject.hpp"

using namespace check_shim;

namespace {

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
constexpr size_t mib = size_t(1) << 20;

/* 40 MiB of parameters, each tensor smaller than what malloc maps by itself. */
struct Wide : nn::Module {
    nn::Linear first, last;
    std::vector<nn::Linear> between;

    explicit Wide(int count)
        : first(register_module("first", nn::Linear(192, 1024))),
          last(register_module("last", nn::Linear(1024, 5))) {
        for (int i = 0; i < count; i++)
            between.push_back(
                register_module("between" + std::to_string(i), nn::Linear(1024, 1024)));
    }
    at::Tensor forward(const at::Tensor &x) {
        at::Tensor hidden = at::relu(first(x.flatten(1)));
        for (nn::Linear &layer : between) hidden = at::relu(layer(hidden));
        return last(hidden);
    }
};

struct Subject : ArenaSubject<Wide> {
    Subject() : ArenaSubject(MT_ARENA_AUTO, 10) {}
};

mt_resident resident_now() {
    mt_resident resident = MT_RESIDENT_INIT;
    ck_ok(mt_device_resident("cpu", &resident));
    return resident;
}

size_t predict(size_t peak) {
    size_t told = 0;
    ck_ok(mt_device_predict_resident("cpu", peak, &told));
    return told;
}

/* What tensors may take where the process may hold so much. */
size_t budget_within(size_t limit) {
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(mt_device_set_resident_budget("cpu", limit));
    ck_ok(mt_device_memory("cpu", &memory));
    return memory.budget_bytes;
}

/* The memory that the parameters were made in is no one's when they have moved. */
TEST("limits", parameters_leave_no_pages_behind) {
    ck_ok(mt_torch_init(nullptr));
    mt_resident before = resident_now();
    Subject s;
    mt_resident after = resident_now();
    ck_assert_uint_gt(after.tensor_bytes - before.tensor_bytes, 120 * mib);
    ck_assert_uint_lt(after.other_bytes, before.other_bytes + 20 * mib);
}

void check_limits(size_t least) {
    for (size_t peak : {least, least + 10 * mib, 300 * mib, 1000 * mib}) {
        size_t budget = budget_within(predict(peak));
        ck_assert_msg(budget + mib >= peak && budget <= peak + mib, "%zu for %zu", budget, peak);
    }
}

/* The limit that is told for a peak leaves tensors just that: before the first chunk, and later. */
TEST("limits", a_limit_leaves_what_was_predicted_for_it) {
    ck_ok(mt_torch_init(nullptr));
    check_limits(mib);
    Subject s;
    Batch batch(64);
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(mt_device_set_resident_budget("cpu", 0));
    ck_ok(mt_device_memory("cpu", &memory));
    check_limits(memory.allocated_bytes + mib);
    ck_ok(mt_device_set_resident_budget("cpu", 0));
    for (size_t chunk : {8, 32, 64, 8, 64}) s.step(batch, chunk);
    check_limits(memory.allocated_bytes + resident_now().arena_bytes);
}

/* What the first chunks map of libtorch is reckoned with until it is there. */
TEST("limits", first_chunks_are_reckoned_with) {
    ck_ok(mt_torch_init(nullptr));
    mt_resident start = resident_now();
    size_t told = predict(400 * mib);
    ck_assert_uint_ge(told, start.resident_bytes + 430 * mib);
    ck_assert_uint_le(told, start.resident_bytes + 450 * mib);
    ck_assert_uint_le(predict(7 * mib), start.resident_bytes + 9 * mib); /* little of little */
    Subject s;
    Batch batch(64);
    for (size_t chunk : {32, 16, 8, 4}) s.step(batch, chunk);
    mt_resident later = resident_now();
    ck_assert_uint_le(predict(400 * mib), later.other_bytes + 408 * mib);
}

/* ---- pages that wait, and who else wants them ---------------------------------------------------------------- */

/* Few parameters, and 128 KiB of activations a sample. */
struct Tall : nn::Module {
    nn::Linear first, last;

    explicit Tall(int)
        : first(register_module("first", nn::Linear(192, 4096))),
          last(register_module("last", nn::Linear(4096, 5))) {}
    at::Tensor forward(const at::Tensor &x) {
        at::Tensor hidden = first(x.flatten(1));
        for (int i = 0; i < 7; i++) hidden = at::tanh(hidden);
        return last(hidden);
    }
};

struct Runner : ArenaSubject<Tall> {
    Runner() : ArenaSubject(MT_ARENA_AUTO, 0) {}

    /* Whether all samples went through as one chunk. */
    bool fits(const Batch &batch) {
        return mt_train_step(torch, batch.get(), nullptr, nullptr) == MT_OK;
    }
};

constexpr size_t all = 1024; /* samples of a batch, 128 MiB of activations */

/* So much more than what is resident now. */
size_t limit_above(size_t bytes) {
    size_t limit = resident_now().resident_bytes + bytes;
    ck_ok(mt_device_set_resident_budget("cpu", limit));
    return limit;
}

void stays_within(size_t limit) {
    size_t peak = resident_now().peak_bytes;
    ck_assert_msg(peak <= limit + limit / 50, "%zu MiB of %zu", peak / mib, limit / mib);
}

/* Tensors of 16 MiB until one is refused. */
std::vector<at::Tensor> take_the_rest() {
    std::vector<at::Tensor> own;
    try {
        while (own.size() < 100) own.push_back(at::full({4 << 20}, 1.0f));
    } catch (const c10::OutOfMemoryError &) {
    }
    return own;
}

/* Each alone fills most of the limit, with pages that the other cannot use. */
TEST("pages", two_trainers_take_turns) {
    Runner one, other;
    Batch batch(all);
    size_t limit = limit_above(256 * mib);
    for (int step = 0; step < 6; step++) ck_assert((step % 2 ? other : one).fits(batch));
    ck_assert_uint_gt(resident_now().arena_bytes, 100 * mib);
    stays_within(limit);
}

/* Tensors of the user's own get the pages that wait for a chunk, and no more than the limit. */
TEST("pages", a_user_takes_the_rest) {
    Runner s;
    Batch batch(all);
    size_t limit = limit_above(256 * mib);
    for (int step = 0; step < 4; step++) ck_assert(s.fits(batch));
    std::vector<at::Tensor> own = take_the_rest();
    ck_assert_uint_ge(own.size(), 10);
    ck_assert_uint_lt(own.size(), 20);
    stays_within(limit);
    ck_assert(!s.fits(batch)); /* and nothing has changed by it */
    stays_within(limit);
    own.clear();
    ck_assert(s.fits(batch)); /* what was freed is no one else's */
    stays_within(limit);
}

/* Pages that the budget leaves no tensor of a chunk for go back: those of tensors that came later are resident alone. */
TEST("pages", tensors_that_came_later) {
    Runner s;
    Batch batch(all);
    mt_memory memory = MT_MEMORY_INIT;
    ck_ok(mt_device_memory("cpu", &memory));
    ck_ok(mt_device_set_budget("cpu", memory.allocated_bytes + 150 * mib));
    s.step(batch, all);
    size_t whole = resident_now().arena_bytes;
    ck_assert_uint_gt(whole, 100 * mib);
    at::Tensor few = at::full({1 << 20}, 1.0f); /* 4 MiB */
    s.step(batch, all / 8);
    ck_assert_uint_eq(resident_now().arena_bytes, whole);
    at::Tensor many = at::full({25 << 20}, 1.0f); /* 100 MiB */
    s.step(batch, all / 8);
    ck_assert_uint_lt(resident_now().arena_bytes, 50 * mib);
    ck_assert_uint_gt(resident_now().arena_bytes, 10 * mib);
}

/* Memory that the program takes by itself counts though nobody has asked for the budget. */
TEST("pages", others_grow_unasked) {
    Runner s;
    Batch batch(all);
    (void)limit_above(256 * mib);
    ck_assert(s.fits(batch));
    std::vector<char> others(200 * mib, 1);
    ck_assert(!s.fits(batch));
    ck_contains(mt_last_error(), "budget: ");
    others = std::vector<char>();
    ck_assert(s.fits(batch));
}

/* And what a chunk has left behind is theirs: a smaller one finds room at its first request. */
TEST("pages", others_grow_into_what_a_chunk_left) {
    Runner s;
    Batch batch(all), few(all / 8);
    (void)limit_above(256 * mib);
    for (int step = 0; step < 2; step++) ck_assert(s.fits(batch));
    size_t left = resident_now().arena_bytes;
    ck_assert_uint_gt(left, 100 * mib);
    std::vector<char> others(256 * mib - left / 2, 1);
    ck_assert_msg(s.fits(few), "%s", mt_last_error());
    others = std::vector<char>();
}

/* ---- a control group --------------------------------------------------------------------------------------- */

/* Of version 1, which a root may make; "" where there is none. */
std::string group;

bool write_to(const std::string &path, const std::string &text) {
    std::FILE *file = std::fopen(path.c_str(), "w");
    if (!file) return false;
    bool written = std::fputs(text.c_str(), file) >= 0;
    return std::fclose(file) == 0 && written;
}

void make_group() {
    std::string path = "/sys/fs/cgroup/memory/check_shim_resident." + std::to_string(getpid());
    if (mkdir(path.c_str(), 0755) != 0) return;
    group = path;
}

void remove_group() {
    if (!group.empty()) rmdir(group.c_str());
}

/* Its limit is one on resident bytes, though nobody has set a budget: who goes over it is ended by the system. */
TEST("groups", a_group_is_not_left) {
    if (group.empty() || !write_to(group + "/memory.limit_in_bytes", std::to_string(400 * mib)) ||
        !write_to(group + "/cgroup.procs", std::to_string(getpid()))) {
        suite_skip("shim_resident: a_group_is_not_left",
                   "no control group can be made (cgroup v1)");
        return;
    }
    Runner one, other;
    Batch batch(all);
    ck_assert_uint_lt(cpu_memory().budget_bytes, 400 * mib);
    for (int step = 0; step < 6; step++) ck_assert((step % 2 ? other : one).fits(batch));
    std::vector<at::Tensor> own = take_the_rest();
    ck_assert_uint_lt(own.size(), 25);
    own.clear();
    ck_assert(one.fits(batch));
}
#endif

} // namespace

int main() {
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
    tcase_add_unchecked_fixture(suite_case_named("groups"), make_group, remove_group);
#endif
    return suite_run_named("shim_resident");
}
