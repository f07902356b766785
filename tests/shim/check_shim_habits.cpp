/*
 * check_shim_habits.cpp - planned memory under users who never settle: who keep ever more tensors, go through
 * more shapes than plans are held for, ask for other sizes each time, or have few addresses. The numbers are
 * those of the heap, and a chunk costs no more for it, however long that goes on.
 */
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>

#include "arena_subject.hpp"
#include "networks/batches.hpp"

using namespace check_shim;

namespace {

constexpr int layers = 20;

using Habit = std::function<void(int layer)>;

/* A layer after the other, and a habit after each. */
struct Tower : nn::Module {
    std::vector<nn::Linear> linear;
    nn::Linear last;
    Habit habit;

    explicit Tower(Habit h) : last(nullptr), habit(std::move(h)) {
        int64_t from = 192;
        for (int i = 0; i < layers; i++) {
            int64_t to = 64 + 16 * (i * 7 % 11);
            linear.push_back(register_module("linear" + std::to_string(i), nn::Linear(from, to)));
            from = to;
        }
        last = register_module("last", nn::Linear(from, 5));
    }

    at::Tensor forward(const at::Tensor &images) {
        at::Tensor x = images.flatten(1);
        for (int i = 0; i < layers; i++) {
            x = at::relu(linear[static_cast<size_t>(i)](x));
            habit(i);
        }
        return last(x);
    }
};

using Subject = ArenaSubject<Tower>;

at::Tensor some(std::mt19937 &random) {
    return at::full({1100 + int64_t(random() % 2000)}, 1.0);
}

/* Tensors that no plan knows of are kept for ever: soon the heap has new ones, and none is looked past. */
TEST("habits", ever_more_are_kept) {
    same_as_the_heap([&](int arena) {
        std::mt19937 random(5);
        std::vector<at::Tensor> kept;
        Subject s(arena, [&](int) {
            for (int i = 0; i < 10; i++) kept.push_back(some(random));
        });
        Batch batch(16);
        for (int step = 0; step < 20; step++) s.step(batch, step < 2 ? 4u << step : 16u);
        uint64_t guests = s.stats().guests;
        for (int step = 0; step < 20; step++) s.step(batch, 16);
        ck_assert_uint_eq(s.stats().guests, guests);
        for (const at::Tensor &tensor : kept)
            ck_assert_double_eq(tensor.sum().item().toDouble(), double(tensor.numel()));
        return s.hash();
    });
}

/* After each n-th layer a tensor of another size each time; percent: of the requests of late chunks that are served. */
static const struct {
    int each;
    uint64_t percent;
} sizes[] = {{1, 25}, {2, 40}, {3, 50}};

TEST_LOOP("habits", sizes_never_repeat, LENGTH(sizes)) {
    same_as_the_heap([&](int arena) {
        std::mt19937 random(5);
        Subject s(arena, [&](int layer) {
            if (layer % sizes[_i].each == 0) some(random);
        });
        Batch batch(64);
        for (int step = 0; step < 100; step++) s.step(batch, step < 2 ? 4u << step : 64u);
        mt_arena_stats before = s.stats();
        for (int step = 0; step < 50; step++) s.step(batch, 64);
        mt_arena_stats after = s.stats();
        if (arena == MT_ARENA_NEVER) return s.hash();
        uint64_t served = after.served - before.served, missed = after.missed - before.missed;
        ck_assert_uint_ge(100 * served, sizes[_i].percent * (served + missed));
        ck_assert_uint_le(after.recorded, 3 * 4); /* three sizes of chunk */
        return s.hash();
    });
}

/* ---- shapes that come in turn ------------------------------------------------------------------------ */

struct Pooled : nn::Module {
    nn::Linear last;

    explicit Pooled(int times) : last(register_module("last", nn::Linear(48, 5))), times_(times) {}

    at::Tensor forward(const at::Tensor &sequence) {
        at::Tensor x = sequence;
        for (int i = 0; i < times_; i++) x = at::sigmoid(x);
        return last(x.mean(2));
    }

private:
    int times_;
};

/* Fewer than there are plans for, and more; percent: of the last round what was not recorded again, at least. */
static const struct {
    int shapes;
    uint64_t percent;
} turns[] = {{33, 100}, {60, 100}, {100, 90}, {150, 10}};

TEST_LOOP("habits", shapes_take_turns, LENGTH(turns)) {
    constexpr int samples = 8, rounds = 8;
    ArenaSubject<Pooled> s(MT_ARENA_AUTO, 20);
    std::vector<std::unique_ptr<networks::TensorBatch>> batches;
    for (int i = 0; i < turns[_i].shapes; i++)
        batches.push_back(std::make_unique<networks::TensorBatch>(memtrain::Tensors{
            at::randn({samples, 48, 40 + i}), at::randint(5, {samples}, at::kLong)}));
    mt_arena_stats before = MT_ARENA_STATS_INIT;
    for (int round = 0; round < rounds; round++) {
        before = s.stats();
        for (const auto &batch : batches) {
            mt_apply_result applied = apply_result();
            mt_chunk_result result = chunk_result();
            ck_ok(mt_begin(s.torch, batch->get()));
            ck_ok(mt_accumulate(s.torch, 0, samples, 1.0, &result));
            ck_ok(mt_apply(s.torch, &applied));
        }
    }
    mt_arena_stats after = s.stats();
    uint64_t recorded = after.recorded - before.recorded, shapes = batches.size();
    ck_assert_uint_le(100 * recorded, (100 - turns[_i].percent) * shapes);
    if (turns[_i].percent < 100) ck_assert_uint_gt(recorded, 0);
}

/* ---- few addresses --------------------------------------------------------------------------------------- */

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
size_t address_space() {
    std::ifstream statm("/proc/self/statm");
    size_t pages = 0;
    statm >> pages;
    return pages * static_cast<size_t>(getpagesize());
}

/* Under ulimit -v: the arena takes of what is left less than half. */
TEST_LOOP("addresses", addresses_are_left, 2) {
    const size_t left = size_t(_i ? 1500 : 400) << 20;
    Subject s(MT_ARENA_AUTO, [](int) {});
    Batch batch(64);
    rlimit limit = {};
    /* Threads of libtorch's take addresses too, and heaps for threads: not while what is left is counted. */
#ifdef __GLIBC__
    ck_assert_int_eq(mallopt(M_ARENA_MAX, 1), 1);
#endif
    at::ones({1}).requires_grad_(true).sum().backward();
    ck_assert_int_eq(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = address_space() + left;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    for (size_t chunk : {4, 8, 64, 64}) s.step(batch, chunk);
    ck_assert_uint_gt(s.stats().served, 0);
    void *more = mmap(nullptr, left / 3, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(more, MAP_FAILED);
    munmap(more, left / 3);
    bool ran = false;
    std::thread([&] { ran = true; }).join();
    ck_assert(ran);
}
#endif

} // namespace

SUITE("shim_habits")
