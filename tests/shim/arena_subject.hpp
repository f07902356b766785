/*
 * arena_subject.hpp - a network with its mt_torch, whose chunks the suites of planned memory run.
 */
#ifndef ARENA_SUBJECT_HPP
#define ARENA_SUBJECT_HPP

#include <utility>

#include "owned.hpp"

namespace check_shim {

/* What is made of one argument, and has forward(images) to logits of 5 classes. */
template <class Net> struct ArenaSubject : Owned {
    std::shared_ptr<Net> net;

    template <class Habit> explicit ArenaSubject(int arena, Habit habit) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.arena = arena;
        auto describe = [&] {
            net = std::make_shared<Net>(std::move(habit));
            return memtrain::model(net, {"accuracy"}, [](Net &own, const memtrain::Tensors &batch) {
                at::Tensor logits = own.forward(batch[0]);
                return memtrain::Output{at::cross_entropy_loss(logits, batch[1]),
                                        memtrain::correct(logits, batch[1])};
            });
        };
        make(describe, options);
    }
    void close() {
        Owned::close();
        net.reset();
    }

    /* One step in chunks of so many samples. */
    void step(const Batch &batch, size_t chunk, bool marked = false) {
        size_t all = batch.get()->count;
        mt_apply_result applied = apply_result();
        ck_ok(mt_begin(torch, batch.get()));
        for (size_t first = 0; first < all; first += chunk) {
            size_t count = std::min(chunk, all - first);
            mt_chunk_result result = chunk_result();
            if (marked) ck_ok(mt_mark(torch));
            ck_ok(mt_accumulate(torch, first, count,
                                static_cast<double>(count) / static_cast<double>(all), &result));
        }
        ck_ok(mt_apply(torch, &applied));
    }
    void evaluate(const Batch &batch, size_t count) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_evaluate(torch, batch.get(), 0, count, &result));
    }
    mt_arena_stats stats() const {
        mt_arena_stats stats = MT_ARENA_STATS_INIT;
        ck_ok(mt_torch_arena(torch, &stats));
        return stats;
    }
};

/* run gives the hash of its state: planned memory and the heap end with the same bits. */
template <class Run> void same_as_the_heap(Run &&run) {
    std::string planned = run(MT_ARENA_AUTO), heap = run(MT_ARENA_NEVER);
    ck_assert_str_eq(planned.c_str(), heap.c_str());
}

} // namespace check_shim
#endif
