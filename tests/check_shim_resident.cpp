/*
 * check_shim_resident.cpp - a limit for the process and what is predicted of it: the one is the other way
 * round, both reckon with what the first chunks take, and a new network leaves no pages behind.
 */
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
START_TEST(parameters_leave_no_pages_behind) {
    ck_ok(mt_torch_init(nullptr));
    mt_resident before = resident_now();
    Subject s;
    mt_resident after = resident_now();
    ck_assert_uint_gt(after.tensor_bytes - before.tensor_bytes, 120 * mib);
    ck_assert_uint_lt(after.other_bytes, before.other_bytes + 20 * mib);
}
END_TEST

void check_limits(size_t least) {
    for (size_t peak : {least, least + 10 * mib, 300 * mib, 1000 * mib}) {
        size_t budget = budget_within(predict(peak));
        ck_assert_msg(budget + mib >= peak && budget <= peak + mib, "%zu for %zu", budget, peak);
    }
}

/* The limit that is told for a peak leaves tensors just that: before the first chunk, and later. */
START_TEST(a_limit_leaves_what_was_predicted_for_it) {
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
END_TEST

/* What the first chunks map of libtorch is reckoned with until it is there. */
START_TEST(first_chunks_are_reckoned_with) {
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
END_TEST
#endif

Suite *suite_resident() {
    Suite *suite = suite_create("shim_resident");
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
    TCase *limits = suite_case(suite, "limits");
    tcase_add_test(limits, parameters_leave_no_pages_behind);
    tcase_add_test(limits, a_limit_leaves_what_was_predicted_for_it);
    tcase_add_test(limits, first_chunks_are_reckoned_with);
#endif
    return suite;
}

} // namespace

int main() {
    return suite_run(suite_resident());
}
