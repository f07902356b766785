/*
 * arena_subject.hpp - a network with its mt_torch, whose chunks the suites of planned memory run.
 */
#ifndef ARENA_SUBJECT_HPP
#define ARENA_SUBJECT_HPP

#include <utility>

#include "check_shim.hpp"

namespace check_shim {

/* What is made of one argument, and has forward(images) to logits of 5 classes. */
template <class Net> struct ArenaSubject {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    std::shared_ptr<Net> net;

    template <class Habit> explicit ArenaSubject(int arena, Habit habit) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        options.arena = arena;
        ck_ok(mt_torch_init(nullptr));
        ck_ok(mt_torch_set_threads(1));
        ck_ok(mt_torch_seed(7));
        ck_ok(memtrain::make_model(&model, [&] {
            net = std::make_shared<Net>(std::move(habit));
            return memtrain::model(net, {"accuracy"}, [](Net &own, const memtrain::Tensors &batch) {
                at::Tensor logits = own.forward(batch[0]);
                return memtrain::Output{at::cross_entropy_loss(logits, batch[1]),
                                        memtrain::correct(logits, batch[1])};
            });
        }));
        ck_ok(mt_torch_new(model, &options, &torch));
    }
    ~ArenaSubject() { close(); }
    void close() {
        mt_torch_free(torch);
        mt_model_free(model);
        torch = nullptr;
        model = nullptr;
        net.reset();
    }
    ArenaSubject(const ArenaSubject &) = delete;
    ArenaSubject &operator=(const ArenaSubject &) = delete;

    /* One step in chunks of so many samples. */
    void step(const Batch &batch, size_t chunk, bool marked = false) {
        size_t all = batch.get()->count;
        mt_apply_result applied = {};
        applied.size = sizeof applied;
        ck_ok(mt_begin(torch, batch.get()));
        for (size_t first = 0; first < all; first += chunk) {
            size_t count = std::min(chunk, all - first);
            mt_chunk_result result = {};
            result.size = sizeof result;
            if (marked) ck_ok(mt_mark(torch));
            ck_ok(mt_accumulate(torch, first, count,
                                static_cast<double>(count) / static_cast<double>(all), &result));
        }
        ck_ok(mt_apply(torch, &applied));
    }
    void evaluate(const Batch &batch, size_t count) {
        mt_chunk_result result = {};
        result.size = sizeof result;
        ck_ok(mt_evaluate(torch, batch.get(), 0, count, &result));
    }
    mt_arena_stats stats() const {
        mt_arena_stats stats = MT_ARENA_STATS_INIT;
        ck_ok(mt_torch_arena(torch, &stats));
        return stats;
    }
    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
};

} // namespace check_shim
#endif
