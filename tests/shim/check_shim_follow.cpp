/*
 * check_shim_follow.cpp - chunks that depart from their plan: after an operator more, fewer, or another one
 * the rest is served again; two ways that take turns are both served; and what is counted is what happens.
 */
#include <random>

#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>

#include "arena_subject.hpp"

using namespace check_shim;

namespace {

/* What becomes of the activations after a layer. */
using Habit = std::function<at::Tensor(const at::Tensor &, int layer)>;

constexpr int layers = 36;

/*
 * How wide the layers are: each as no other one near it, blocks that repeat, or all alike. In the last sizes
 * tell nothing, and where a chunk departs others' places are taken until a size differs: fewer are served.
 */
enum Widths { VARIED, BLOCKS, ALIKE, ALL_WIDTHS };

constexpr uint64_t least_percent[ALL_WIDTHS] = {95, 95, 40};

int64_t width(Widths widths, int layer) {
    constexpr int64_t block[] = {384, 128, 512, 128};
    return widths == VARIED   ? 96 + 16 * (layer * 7 % 11)
           : widths == BLOCKS ? block[layer % 4]
                              : 128;
}

struct Tower : nn::Module {
    std::vector<nn::Linear> linear;
    nn::Linear last;
    Habit habit;

    struct Options {
        Widths widths;
        Habit habit;
    };
    explicit Tower(Options o) : last(nullptr), habit(std::move(o.habit)) {
        int64_t from = 192;
        for (int i = 0; i < layers; i++) {
            int64_t to = width(o.widths, i);
            linear.push_back(register_module("linear" + std::to_string(i), nn::Linear(from, to)));
            from = to;
        }
        last = register_module("last", nn::Linear(from, 5));
    }

    at::Tensor forward(const at::Tensor &images) {
        at::Tensor x = images.flatten(1);
        for (int i = 0; i < layers; i++) x = habit(at::relu(linear[static_cast<size_t>(i)](x)), i);
        return last(x);
    }
};

using Subject = ArenaSubject<Tower>;

/* Requests of one chunk: those served, those missed, and how many there were in all. */
struct Requests {
    uint64_t served, missed, all;
};

Requests step(Subject &s, const Batch &batch, size_t chunk = 16) {
    uint64_t all = 0;
    mt_backend backend = seam_of(s.torch);
    mt_event_sink sink = {&all, [](void *user, void *, int64_t bytes) {
                              *static_cast<uint64_t *>(user) += bytes > 0;
                          }};
    mt_arena_stats before = s.stats();
    ck_ok(backend.record(backend.self, &sink));
    s.step(batch, chunk);
    ck_ok(backend.record(backend.self, nullptr));
    mt_arena_stats after = s.stats();
    return {after.served - before.served, after.missed - before.missed, all};
}

/* ---- one chunk departs --------------------------------------------------------------------------- */

at::Tensor sigmoids(at::Tensor x, int times) {
    for (int i = 0; i < times; i++) x = at::sigmoid(x);
    return x;
}

/* Two requests of 4 KiB and more, one after the other. */
void ask(int64_t one, int64_t other) {
    at::Tensor a = at::full({one}, 1.0), b = at::full({other}, 2.0);
    ck_assert_double_eq(a.sum().item().toDouble(), static_cast<double>(one));
    ck_assert_double_eq(b.min().item().toDouble(), 2.0);
}

/* What is different in one chunk; `usual` in the others. changed: requests of the plan that go or change. */
static const struct {
    const char *name;
    at::Tensor (*usual)(const at::Tensor &x, int layer);
    at::Tensor (*once)(const at::Tensor &x, int layer);
    uint64_t changed;
} edits[] = {
    {"one operator more", [](const at::Tensor &x, int) { return x; },
     [](const at::Tensor &x, int i) { return i == 5 ? sigmoids(x, 1) : x; }, 0},
    {"three more", [](const at::Tensor &x, int) { return x; },
     [](const at::Tensor &x, int i) { return i == 5 ? sigmoids(x, 3) : x; }, 0},
    {"twenty more", [](const at::Tensor &x, int) { return x; },
     [](const at::Tensor &x, int i) { return i == 5 ? sigmoids(x, 20) : x; }, 0},
    {"one more at the start", [](const at::Tensor &x, int) { return x; },
     [](const at::Tensor &x, int i) { return i == 0 ? sigmoids(x, 1) : x; }, 0},
    {"one more at the end", [](const at::Tensor &x, int) { return x; },
     [](const at::Tensor &x, int i) { return i == layers - 1 ? sigmoids(x, 1) : x; }, 0},
    {"one more in several places", [](const at::Tensor &x, int) { return x; },
     [](const at::Tensor &x, int i) { return i % 8 == 3 ? sigmoids(x, 1) : x; }, 0},
    {"one less", [](const at::Tensor &x, int i) { return i == 5 ? sigmoids(x, 1) : x; },
     [](const at::Tensor &x, int) { return x; }, 2},
    {"twenty less", [](const at::Tensor &x, int i) { return i == 5 ? sigmoids(x, 20) : x; },
     [](const at::Tensor &x, int) { return x; }, 40},
    {"two that are swapped",
     [](const at::Tensor &x, int i) {
         if (i == 5) ask(7000, 9000);
         return x;
     },
     [](const at::Tensor &x, int i) {
         if (i == 5) ask(9000, 7000);
         return x;
     },
     2},
    {"one of another size",
     [](const at::Tensor &x, int i) {
         if (i == 5) ask(7000, 9000);
         return x;
     },
     [](const at::Tensor &x, int i) {
         if (i == 5) ask(7000, 9500);
         return x;
     },
     1},
    {"an operator in the place of another one",
     [](const at::Tensor &x, int i) { return i == 5 ? sigmoids(x, 1) : x; },
     [](const at::Tensor &x, int i) { return i == 5 ? x.to(at::kDouble).to(at::kFloat) : x; }, 2},
};

TEST_LOOP("once", the_rest_is_served, ALL_WIDTHS *LENGTH(edits)) {
    const auto &edit = edits[_i / ALL_WIDTHS];
    const Widths widths = Widths(_i % ALL_WIDTHS);
    same_as_the_heap([&](int arena) {
        bool now = false;
        Subject s(arena, Tower::Options{widths, [&](const at::Tensor &x, int layer) {
                                            return (now ? edit.once : edit.usual)(x, layer);
                                        }});
        Batch batch(16);
        for (size_t chunk : {2, 4, 16, 16}) s.step(batch, chunk);
        Requests usual = step(s, batch);
        now = true;
        Requests once = step(s, batch);
        now = false;
        Requests again = step(s, batch);
        if (arena == MT_ARENA_NEVER) return s.hash();
        ck_assert_uint_gt(usual.all, 200);
        ck_assert_uint_eq(usual.served, usual.all);
        ck_assert_uint_eq(again.served, again.all);
        uint64_t unchanged = std::min(usual.all - edit.changed, once.all);
        ck_assert_msg(100 * once.served >= least_percent[widths] * unchanged, "%s: %u of %u",
                      edit.name, static_cast<unsigned>(once.served),
                      static_cast<unsigned>(unchanged));
        ck_assert_uint_eq(once.served + once.missed, once.all);
        return s.hash();
    });
}

/* ---- two ways -------------------------------------------------------------------------------------- */

/* Which way a step goes, and how many ways there are. */
static const struct {
    const char *name;
    int (*way)(int step);
} turns[] = {
    {"one after the other", [](int step) { return step % 2; }},
    {"two and two", [](int step) { return step / 2 % 2; }},
    {"four and four", [](int step) { return step / 4 % 2; }},
    {"now and then", [](int step) { return int(step % 3 == 1); }},
    {"at random", [](int step) { return int(0x9e3779b97f4a7c15u >> (step % 64) & 1); }},
    {"three ways", [](int step) { return step % 3; }},
};

at::Tensor branch(const at::Tensor &x, int layer, int way) {
    if (layer == 4 && way == 1) return sigmoids(x, 8);
    if (layer == 14 && way == 0) return at::relu(sigmoids(x, 5) * 0.5);
    return layer == 19 && way == 2 ? sigmoids(x * 2.0, 6) : x;
}

TEST_LOOP("ways", ways_take_turns, ALL_WIDTHS *LENGTH(turns)) {
    const auto &turn = turns[_i / ALL_WIDTHS];
    same_as_the_heap([&](int arena) {
        int now = 0;
        Requests least[3] = {{1, 0, 1}, {1, 0, 1}, {1, 0, 1}};
        Subject s(arena,
                  Tower::Options{Widths(_i % ALL_WIDTHS), [&](const at::Tensor &x, int layer) {
                                     return branch(x, layer, turn.way(now));
                                 }});
        Batch batch(16);
        for (; now < 60; now++) {
            Requests requests = step(s, batch, now < 2 ? 2 + 2 * size_t(now) : 16);
            Requests &own = least[turn.way(now)];
            if (now >= 30 && requests.served * own.all <= own.served * requests.all) own = requests;
        }
        if (arena == MT_ARENA_NEVER) return s.hash();
        for (const Requests &own : least)
            ck_assert_msg(10 * own.served >= 9 * own.all, "%s: %u of %u", turn.name,
                          static_cast<unsigned>(own.served), static_cast<unsigned>(own.all));
        ck_assert_uint_le(s.stats().recorded, 2 + 4);
        return s.hash();
    });
}

/* A way that is left for good: the plan is of the other one alone, and no larger than it must be. */
TEST("ways", a_way_is_left) {
    size_t bytes[2];
    for (int both : {0, 1}) {
        int now = 0;
        Subject s(MT_ARENA_AUTO, Tower::Options{VARIED, [&](const at::Tensor &x, int layer) {
                                                    return branch(x, layer, both && now < 6);
                                                }});
        Batch batch(16);
        for (; now < 14; now++) s.step(batch, now < 2 ? 2 + 2 * size_t(now) : 16);
        ck_assert_uint_eq(step(s, batch).missed, 0);
        bytes[both] = s.stats().bytes;
    }
    ck_assert_uint_eq(bytes[0], bytes[1]);
}

} // namespace

SUITE("shim_follow")
