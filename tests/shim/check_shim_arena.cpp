/*
 * check_shim_arena.cpp - planned memory under users who do not keep to the plan: who keep tensors, ask for
 * others, release them elsewhere or later. The numbers are those of the heap, and what departs from a plan
 * once does not for ever.
 */
#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "arena_subject.hpp"

using namespace check_shim;

namespace {

/* What a model does beside its work, with the activations of its chunk. */
using Habit = std::function<void(const at::Tensor &)>;

/* Two layers whose activations a habit sees. */
struct Layers : nn::Module {
    nn::Linear first, second;
    Habit habit;

    explicit Layers(Habit h)
        : first(register_module("first", nn::Linear(192, 300))),
          second(register_module("second", nn::Linear(300, 5))), habit(std::move(h)) {}

    at::Tensor forward(const at::Tensor &x) {
        at::Tensor hidden = at::relu(first(x.flatten(1)));
        if (habit) habit(hidden);
        return second(hidden);
    }
};

struct Subject : ArenaSubject<Layers> {
    explicit Subject(int arena, Habit habit = {}) : ArenaSubject(arena, std::move(habit)) {}
};

/* ---- those who keep to the plan ------------------------------------------------------------------- */

/* Chunks of several sizes, apart and in place, and evaluations between: the bits of the heap. */
TEST("plan", the_bits_of_the_heap) {
    const size_t chunks[] = {2, 4, 16, 5, 7, 16, 3, 16, 16};
    same_as_the_heap([&](int arena) {
        Subject s(arena);
        Batch batch(16);
        for (size_t chunk : chunks) {
            s.step(batch, chunk, chunk % 2);
            s.evaluate(batch, chunk);
        }
        mt_arena_stats stats = s.stats();
        ck_assert_uint_eq(stats.missed, 0);
        ck_assert_int_eq(stats.served > 100, arena == MT_ARENA_AUTO);
        ck_assert_int_eq(stats.plans > 4, arena == MT_ARENA_AUTO);
        ck_assert_uint_le(stats.recorded, 6);
        ck_assert_uint_ge(stats.bytes, stats.lower_bound_bytes);
        ck_assert_double_le(static_cast<double>(stats.bytes),
                            1.1 * static_cast<double>(stats.lower_bound_bytes));
        return s.hash();
    });
}

/* Counted bytes and refusals are the same: what is served from the arena counts as from the heap. */
TEST("plan", the_bytes_of_the_heap) {
    size_t peak[2], refused[2];
    for (int arena : {MT_ARENA_AUTO, MT_ARENA_NEVER}) {
        Subject s(arena);
        Batch batch(16);
        mt_chunk_result result = chunk_result();
        for (size_t chunk : {2, 4, 16}) s.step(batch, chunk);
        ck_ok(mt_begin(s.torch, batch.get()));
        ck_ok(mt_accumulate(s.torch, 0, 16, 1.0, &result));
        peak[arena == MT_ARENA_NEVER] = result.peak_bytes;
        ck_ok(mt_rollback(s.torch));
        ck_ok(mt_device_set_budget("cpu", result.peak_bytes - 1));
        ck_ok(mt_begin(s.torch, batch.get()));
        ck_status(mt_accumulate(s.torch, 0, 16, 1.0, &result), MT_EDEVMEM);
        refused[arena == MT_ARENA_NEVER] = result.refused_bytes;
        ck_ok(mt_rollback(s.torch));
        ck_ok(mt_device_set_budget("cpu", 0));
        s.step(batch, 16);
    }
    ck_assert_uint_eq(peak[0], peak[1]);
    ck_assert_uint_eq(refused[0], refused[1]);
}

/* ---- those who keep tensors -------------------------------------------------------------------------- */

/* Tensors that were kept, and copies of what was in them then. */
struct Kept {
    std::deque<std::pair<at::Tensor, at::Tensor>> tensors;

    void keep(const at::Tensor &tensor) {
        tensors.emplace_back(tensor.detach(), tensor.detach().clone());
    }
    void check() const {
        for (const auto &[tensor, copy] : tensors) ck_assert(at::equal(tensor, copy));
    }
};

/* For ever, until so many steps later, or now and then. */
static const struct {
    const char *name;
    size_t steps; /* that a tensor is kept; 0: for ever */
    int every;    /* steps between those that keep one */
} keepers[] = {
    {"for ever", 0, 1}, {"one step", 1, 1}, {"three steps", 3, 1}, {"now and then", 5, 7}};

TEST_LOOP("kept", tensors_are_kept, LENGTH(keepers)) {
    same_as_the_heap([&](int arena) {
        Kept kept;
        int step = 0;
        uint64_t missed = 0;
        Subject s(arena, [&](const at::Tensor &hidden) {
            if (step % keepers[_i].every == 0) kept.keep(hidden);
        });
        Batch batch(16);
        for (; step < 40; step++) {
            s.step(batch, step < 4 ? 2 + 2 * static_cast<size_t>(step) : 16);
            kept.check();
            while (keepers[_i].steps && kept.tensors.size() > keepers[_i].steps)
                kept.tensors.pop_front();
            if (step == 30) missed = s.stats().missed;
        }
        /* What is kept is left to the heap, and then nothing departs from the plan any more. */
        if (keepers[_i].every == 1) ck_assert_uint_eq(s.stats().missed, missed);
        kept.check();
        return s.hash();
    });
}

/* Released on another thread, while the next chunk runs, and after the trainer is gone. */
TEST("kept", released_elsewhere) {
    Kept kept;
    {
        Subject s(MT_ARENA_AUTO, [&](const at::Tensor &hidden) { kept.keep(hidden); });
        Batch batch(16);
        for (int step = 0; step < 30; step++) {
            std::thread other;
            if (kept.tensors.size() > 2)
                other =
                    std::thread([tensors = std::move(kept.tensors)]() mutable { tensors.clear(); });
            s.step(batch, step < 2 ? 2 + 2 * static_cast<size_t>(step) : 16);
            if (other.joinable()) other.join();
            kept.check();
        }
        ck_assert_uint_gt(s.stats().served, 100);
        kept.keep(at::ones({3}));
    }
    kept.check();
    kept.tensors.clear();
}

/* ---- those who ask for something else ------------------------------------------------------------------ */

/* What a model asks for beside its work. */
static const struct {
    const char *name;
    std::function<void(int step, const at::Tensor &)> ask;
    bool settles; /* the same in each step, from some time on */
} askers[] = {
    {"one more, at times",
     [](int step, const at::Tensor &) {
         if (step % 5 == 0) at::full({100 + step}, 1.0);
     },
     false},
    {"of another size each time", [](int step, const at::Tensor &) { at::full({50 + step}, 1.0); },
     false},
    {"something new from step 10 on",
     [](int step, const at::Tensor &hidden) {
         if (step >= 10)
             for (int i = 0; i < 20; i++) (hidden.detach() * 2.0).slice(0, 0, 1).clone();
     },
     true},
    {"nothing any more from step 10 on",
     [](int step, const at::Tensor &hidden) {
         if (step < 10)
             for (int i = 0; i < 20; i++) (hidden.detach() * 2.0).slice(0, 0, 1).clone();
     },
     true},
    {"of another large size each time",
     [](int step, const at::Tensor &) { at::full({5000 + 1000 * (step % 17)}, 1.0); }, false},
    {"large ones that come and go in another order",
     [](int step, const at::Tensor &) {
         at::Tensor a = at::full({step % 2 ? 90000 : 7000}, 1.0),
                    b = at::full({step % 2 ? 7000 : 90000}, 2.0);
         a = at::Tensor();
         at::Tensor c = at::full({step % 3 ? 8000 : 80000}, 3.0);
         ck_assert_double_eq(b.min().item().toDouble(), 2.0);
         ck_assert_double_eq(c.min().item().toDouble(), 3.0);
     },
     false},
    {"the same sizes in another order",
     [](int step, const at::Tensor &) {
         at::Tensor a = at::full({step % 2 ? 900 : 700}, 1.0),
                    b = at::full({step % 2 ? 700 : 900}, 2.0);
         a = at::Tensor();
         at::Tensor c = at::full({800}, 3.0);
         ck_assert(at::equal(c, at::full({800}, 3.0)));
         ck_assert_double_eq(b.sum().item().toDouble(), 2.0 * static_cast<double>(b.numel()));
     },
     false},
    {"a tensor that is resized",
     [](int step, const at::Tensor &) {
         at::Tensor a = at::full({64}, 1.0);
         a.resize_({64 + 64 * (step % 4)}).fill_(2.0);
         ck_assert_double_eq(a.sum().item().toDouble(), 2.0 * static_cast<double>(a.numel()));
     },
     false},
    {"memory that is swapped with that of a kept one",
     [](int, const at::Tensor &hidden) {
         static at::Tensor kept = at::ones({4});
         at::Tensor own = hidden.detach().clone(), copy = own.clone();
         kept.set_data(own);
         ck_assert(at::equal(kept, copy));
     },
     true},
};

TEST_LOOP("something else", something_else, LENGTH(askers)) {
    same_as_the_heap([&](int arena) {
        int step = 0;
        uint64_t missed = 0;
        Subject s(arena, [&](const at::Tensor &hidden) { askers[_i].ask(step, hidden); });
        Batch batch(16);
        for (; step < 40; step++) {
            s.step(batch, step < 2 ? 2 + 2 * static_cast<size_t>(step) : 16);
            if (step == 30) missed = s.stats().missed;
        }
        if (askers[_i].settles) ck_assert_uint_eq(s.stats().missed, missed);
        /* A chunk that is not as planned finds back to its plan. */
        if (arena == MT_ARENA_AUTO) ck_assert_uint_gt(s.stats().served, s.stats().missed);
        return s.hash();
    });
}

/* Large tensors at random, some kept for many chunks: none is ever written over by another one. */
TEST_LOOP("something else", guests_at_random, 8) {
    same_as_the_heap([&](int arena) {
        std::vector<std::pair<at::Tensor, double>> kept;
        std::mt19937 random(static_cast<unsigned>(_i));
        auto check = [&](size_t i) {
            auto &[tensor, value] = kept[i];
            ck_assert_double_eq(tensor.min().item().toDouble(), value);
            ck_assert_double_eq(tensor.max().item().toDouble(), value);
        };
        auto ask = [&](const at::Tensor &) {
            for (int i = 0; i < 12; i++) {
                if (kept.size() < 20 && random() % 2) {
                    double value = static_cast<double>(random() % 1000);
                    kept.emplace_back(at::full({600 + int64_t(random() % 40000)}, value), value);
                } else if (!kept.empty()) {
                    size_t which = random() % kept.size();
                    check(which);
                    kept.erase(kept.begin() + static_cast<ptrdiff_t>(which));
                }
            }
        };
        Subject s(arena, ask);
        Batch batch(16);
        for (int step = 0; step < 60; step++) s.step(batch, 1 + random() % 16, random() % 2);
        for (size_t i = 0; i < kept.size(); i++) check(i);
        ck_assert_int_eq(s.stats().guests > 100, arena == MT_ARENA_AUTO);
        return s.hash();
    });
}

/* A loader's requests on its own thread never meet the plan. */
TEST("something else", another_thread_asks) {
    Subject s(MT_ARENA_AUTO);
    Batch batch(16);
    std::atomic<bool> stop{false}, right{true};
    std::thread loader([&] {
        for (int i = 0; !stop; i++) {
            at::Tensor a = at::full({1 + i % 3000}, static_cast<double>(i % 100));
            std::this_thread::yield();
            if (!at::equal(a, at::full({1 + i % 3000}, static_cast<double>(i % 100))))
                right = false;
        }
    });
    for (int step = 0; step < 40; step++)
        s.step(batch, step < 2 ? 2 + 2 * static_cast<size_t>(step) : 16);
    stop = true;
    loader.join();
    ck_assert(right);
    ck_assert_uint_eq(s.stats().missed, 0);
}

/* Two trainers in two threads have an arena each. */
TEST("something else", two_threads) {
    /* Made one after the other: the seed is the process's. */
    Subject one(MT_ARENA_AUTO), other(MT_ARENA_AUTO);
    std::thread threads[2];
    Subject *subjects[] = {&one, &other};
    for (int i = 0; i < 2; i++)
        threads[i] = std::thread([&, i] {
            at::set_num_threads(1);
            Batch batch(16);
            for (int step = 0; step < 20; step++) subjects[i]->step(batch, step < 2 ? 4 : 16);
        });
    for (std::thread &thread : threads) thread.join();
    ck_assert(one.hash() == other.hash());
}

/* ---- pages and options ----------------------------------------------------------------------------------- */

TEST("pages", pages_come_and_go) {
    Subject s(MT_ARENA_AUTO);
    Batch batch(64);
    mt_clear_result cleared = MT_CLEAR_RESULT_INIT;
    for (size_t chunk : {2, 4, 64, 64}) s.step(batch, chunk);
    std::string before = s.hash();
    ck_ok(mt_empty_cache("cpu", &cleared));
    ck_assert(s.hash() == before);
    for (int i = 0; i < 3; i++) {
        s.step(batch, 64);
        ck_ok(mt_empty_cache("cpu", &cleared));
    }
    ck_assert_uint_eq(s.stats().missed, 0);
}

/* From within the chunks, and from another thread all the time: what a running chunk has is not given back. */
TEST("pages", emptied_while_chunks_run) {
    same_as_the_heap([&](int arena) {
        Subject s(arena, [](const at::Tensor &) { ck_ok(mt_empty_cache("cpu", nullptr)); });
        Batch batch(256);
        std::atomic<bool> stop{false};
        std::thread other([&stop] {
            while (!stop) ck_ok(mt_empty_cache("cpu", nullptr));
        });
        for (size_t chunk : {2, 4, 256, 256, 256, 256, 256, 256}) s.step(batch, chunk);
        stop = true;
        other.join();
        return s.hash();
    });
}

/* While a tensor of the arena is alive, its pages stay. */
TEST("pages", pages_of_kept_tensors_stay) {
    Kept kept;
    Subject s(MT_ARENA_AUTO, [&](const at::Tensor &hidden) { kept.keep(hidden); });
    Batch batch(16);
    for (size_t chunk : {2, 4, 16, 16}) {
        s.step(batch, chunk);
        ck_ok(mt_empty_cache("cpu", nullptr));
        kept.check();
    }
}

/* Also the pages of the last tensor, when the trainer is gone. */
TEST("pages", pages_outlive_the_trainer) {
    Kept kept;
    int step = 0;
    Subject s(MT_ARENA_AUTO, [&](const at::Tensor &hidden) {
        if (step == 3) kept.keep(hidden);
    });
    Batch batch(16);
    for (size_t chunk : {2, 4, 16, 16}) {
        s.step(batch, chunk);
        step++;
    }
    ck_assert_uint_eq(kept.tensors.size(), 1);
    kept.tensors.front().second = kept.tensors.front().second.to(at::kDouble).to(at::kFloat);
    s.close();
    ck_ok(mt_empty_cache("cpu", nullptr));
    kept.check();
    kept.tensors.clear();
    ck_ok(mt_empty_cache("cpu", nullptr));
}

/* ---- chunks within chunks ---------------------------------------------------------------------------------- */

/* A model that asks another one, on the CPU or on a simulated card, or itself, from within its chunk. */
TEST("within", a_chunk_within_a_chunk) {
    same_as_the_heap([&](int arena) {
        Batch batch(16);
        Subject teacher(arena), *itself = nullptr;
        Owned on_card;
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.device = "sim:cuda";
        ck_ok(net_model_new({}, &on_card.model));
        ck_ok(mt_torch_new(on_card.model, &options, &on_card.torch));
        int depth = 0;
        Subject student(arena, [&](const at::Tensor &) {
            mt_chunk_result result = chunk_result();
            if (depth++ == 0) {
                teacher.evaluate(batch, 16);
                ck_ok(mt_evaluate(on_card.torch, batch.get(), 0, 16, &result));
                if (!at::GradMode::is_enabled()) itself->evaluate(batch, 5);
            }
            depth--;
        });
        itself = &student;
        for (int step = 0; step < 12; step++) {
            student.step(batch, step < 2 ? 2 + 2 * static_cast<size_t>(step) : 16);
            student.evaluate(batch, 16);
        }
        if (arena == MT_ARENA_AUTO) {
            ck_assert_uint_gt(student.stats().served, 200);
            ck_assert_uint_gt(teacher.stats().served, 50);
            ck_assert_uint_lt(student.stats().missed, 50);
        }
        return student.hash();
    });
}

/* A layer that is frozen between steps has no gradient to tell of, and trains on. */
TEST("within", a_layer_is_frozen) {
    same_as_the_heap([&](int arena) {
        Subject s(arena);
        Batch batch(16);
        s.step(batch, 16);
        s.net->first->weight.set_requires_grad(false);
        for (size_t chunk : {2, 4, 16, 5}) s.step(batch, chunk);
        s.net->first->weight.set_requires_grad(true);
        for (size_t chunk : {7, 16}) s.step(batch, chunk);
        return s.hash();
    });
}

TEST("pages", arguments_are_checked) {
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    mt_arena_stats stats = MT_ARENA_STATS_INIT, unset = {};
    mt_torch *torch = nullptr;
    Subject s(MT_ARENA_NEVER);
    options.arena = 1;
    ck_status(mt_torch_new(s.model, &options, &torch), MT_ESTATE);
    s.close();
    ck_ok(net_model_new({}, &s.model));
    ck_refused(mt_torch_new(s.model, &options, &torch), MT_EINVAL, "options->arena is 1");
    options.arena = MT_ARENA_AUTO;
    ck_ok(mt_torch_new(s.model, &options, &s.torch));
    ck_status(mt_torch_arena(nullptr, &stats), MT_EINVAL);
    ck_status(mt_torch_arena(s.torch, nullptr), MT_EINVAL);
    ck_status(mt_torch_arena(s.torch, &unset), MT_EINVAL);
    ck_assert_uint_eq(s.stats().plans, 0);
}

/* ---- what is made in a recorded chunk and stays ------------------------------------------------------------ */

size_t arena_bytes() {
    mt_resident resident = MT_RESIDENT_INIT;
    ck_ok(mt_device_resident("cpu", &resident));
    return resident.arena_bytes;
}

/* A mask or a table of positions, made in the first forward: plans lie around it, other pages go. */
TEST("pages", a_buffer_is_made_late) {
    const size_t chunks[] = {64, 128, 256, 512};
    at::Tensor buffer;
    Subject s(MT_ARENA_AUTO, [&](const at::Tensor &) {
        if (!buffer.defined()) buffer = at::full({16384}, 3.0);
    });
    Batch batch(512);
    for (int step = 0; step < 60; step++) s.step(batch, chunks[step % 4]);
    ck_assert_uint_le(s.stats().recorded, 3);
    ck_assert_uint_lt(20 * s.stats().missed, s.stats().served);
    ck_assert_uint_gt(arena_bytes(), size_t(1) << 20);
    ck_ok(mt_empty_cache("cpu", nullptr));
    ck_assert_uint_le(arena_bytes(), buffer.nbytes() + 4096);
    ck_assert_double_eq(buffer.min().item().toDouble(), 3.0);
    s.step(batch, 512);
    s.close();
    ck_assert_uint_le(arena_bytes(), buffer.nbytes() + 4096);
    ck_assert_double_eq(buffer.max().item().toDouble(), 3.0);
}

/*
 * Each chunk keeps a tensor of another size for 15 chunks: the mapping ends at some height, which
 * depends on how far the search for layouts got between steps. What creeps would triple.
 */
TEST("pages", the_mapping_does_not_creep) {
    const size_t chunks[] = {64, 128, 256, 512};
    std::deque<at::Tensor> kept;
    std::mt19937 random(3);
    Subject s(MT_ARENA_AUTO, [&](const at::Tensor &) {
        kept.push_back(at::full({5000 + int64_t(random() % 50000)}, 3.0));
        if (kept.size() > 15) kept.pop_front();
    });
    Batch batch(512);
    size_t then = 0;
    for (int step = 0; step < 1800; step++) {
        s.step(batch, chunks[step < 4 ? static_cast<size_t>(step) : random() % 4]);
        if (step == 600) then = arena_bytes();
    }
    ck_assert_uint_le(arena_bytes(), then + then / 5);
}

/* What a chunk would have taken is no room for others. */
TEST("pages", a_refused_chunk_makes_no_room) {
    Subject s(MT_ARENA_AUTO);
    Batch few(16), many(100000);
    mt_chunk_result result = chunk_result();
    mt_resident resident = MT_RESIDENT_INIT;
    for (size_t chunk : {2, 4, 16}) s.step(few, chunk);
    ck_ok(mt_empty_cache("cpu", nullptr));
    ck_ok(mt_device_resident("cpu", &resident));
    ck_ok(mt_device_set_resident_budget("cpu", resident.resident_bytes + (size_t(40) << 20)));
    ck_ok(mt_begin(s.torch, many.get()));
    ck_status(mt_accumulate(s.torch, 0, 100000, 1.0, &result), MT_EDEVMEM);
    ck_ok(mt_rollback(s.torch));
    ck_assert_uint_lt(arena_bytes(), size_t(4) << 20);
    ck_assert_uint_le(cpu_memory().budget_bytes, size_t(44) << 20);
    ck_ok(mt_device_set_resident_budget("cpu", 0));
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
/* A chunk of so many samples, noted and taken back. */
mt_recording *record(const Subject &s, const Batch &batch, size_t samples) {
    mt_recording *recording = nullptr;
    mt_backend backend = seam_of(s.torch);
    mt_chunk_result result = chunk_result();
    ck_ok(mt_recording_new(&recording));
    ck_ok(mt_recording_start(recording, samples));
    mt_event_sink sink = {recording, [](void *user, void *address, int64_t bytes) {
                              mt_recording_event(static_cast<mt_recording *>(user), address, bytes);
                          }};
    ck_ok(mt_begin(s.torch, batch.get()));
    ck_ok(backend.record(backend.self, &sink));
    ck_ok(mt_accumulate(s.torch, 0, samples, 0.5, &result));
    ck_ok(backend.record(backend.self, nullptr));
    ck_ok(mt_rollback(s.torch));
    return recording;
}

/* From two small chunks, against what the process has held at most when the large one has run. */
TEST("pages", the_resident_peak_is_told) {
    const size_t samples = 20000;
    Subject s(MT_ARENA_AUTO);
    Batch batch(samples);
    mt_recording *small = record(s, batch, 200), *large = record(s, batch, 400);
    mt_memory_model *model = nullptr;
    mt_resident resident = MT_RESIDENT_INIT;
    size_t told = 0;
    ck_ok(mt_memory_model_new(small, large, &model));
    size_t peak = cpu_memory().allocated_bytes + mt_memory_model_peak(model, samples);
    ck_assert_uint_gt(peak, size_t(50) << 20);
    ck_ok(mt_device_predict_resident("cpu", peak, &told));
    for (int i = 0; i < 3; i++) s.step(batch, samples);
    ck_ok(mt_device_resident("cpu", &resident));
    double share = static_cast<double>(told) / static_cast<double>(resident.peak_bytes);
    ck_assert_msg(share > 0.97 && share < 1.05, "%.3f of the peak is told", share);
    ck_ok(mt_device_predict_resident("cpu", 0, &told));
    ck_assert_uint_ge(told, resident.resident_bytes / 2);
    ck_ok(mt_device_predict_resident("cpu", SIZE_MAX, &told));
    ck_assert_uint_eq(told, SIZE_MAX);
    ck_status(mt_device_predict_resident("cpu", 0, nullptr), MT_EINVAL);
    ck_status(mt_device_predict_resident("sim:cuda", 0, &told), MT_ENOTSUP);
    mt_memory_model_free(model);
    mt_recording_free(small);
    mt_recording_free(large);
}
#endif

} // namespace

SUITE("shim_arena")
