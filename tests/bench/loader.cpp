/*
 * loader.cpp - steps on real pictures against steps on one batch that is in memory, in turns of some steps
 * in one process: pictures kept in memory, and decoded at each use; without a worker and with one, beside
 * one thread that computes (on two cores, whatever the benchmarks are bound to). With a worker the steps a
 * second are to be at least 0.97 times those on memory.
 *
 *     loader [SIDE BATCH TURNS]      96 pixels in batches of 32, 8 turns, where it is not given
 *     loader  side=96 pictures=kept workers=1 speed=... render_ms=... step_ms=...
 */
#include "bench.hpp"

#include <cstdint>

#include <sched.h>

extern "C" {
#include "batches.h"
#include "pictures.h"
}

namespace {

constexpr int steps = 3;

/* Of the arguments. */
int side = 96, turns = 8;
size_t batch = 32;

void use_all_cores() {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, &all);
    if (sched_setaffinity(0, sizeof all, &all) != 0) std::perror("sched_setaffinity");
}

struct Loader {
    ex_pictures pictures = {nullptr, side}; /* borrowed by its batches */
    ex_batches *batches = nullptr;
    uint64_t epoch = 1;
    size_t index = 0;

    Loader(bool kept, size_t workers) {
        ex_dataset_options options = {};
        ex_error error = {};
        options.keep_side = side * 5 / 4;
        options.max_bytes = kept ? 0 : 1;
        options.validation = -1;
        if (ex_dataset_open("examples/data/food", &options, &pictures.dataset, &error) != EX_OK) {
            std::fprintf(stderr, "%s\n", error.text);
            std::exit(1);
        }
        const ex_batches_options how = {batch, workers, 1};
        const ex_source source = ex_pictures_source(&pictures);
        bench::must(ex_batches_new(&source, &how, &batches), "batches");
    }
    ~Loader() {
        ex_batches_free(batches);
        ex_dataset_free(pictures.dataset);
    }
    /* Whole batches alone. */
    mt_batch next() {
        mt_batch out = MT_BATCH_INIT;
        bench::must(ex_batches_fill(batches, EX_TRAINING, epoch, index, &out), "fill");
        if (++index == ex_dataset_count(pictures.dataset, EX_TRAINING) / batch) index = 0, epoch++;
        return out;
    }
};

double step(mt_torch *torch, const mt_batch &pictures) {
    double start = bench::now();
    bench::must(mt_train_step(torch, &pictures, nullptr, nullptr), "step");
    return bench::now() - start;
}

void compare(mt_torch *torch, bool kept, size_t workers) {
    Loader loader(kept, workers);
    bench::Batch memory(batch, side, 8);
    std::vector<double> ratios, step_times, render_times;
    for (int turn = 0; turn < turns; turn++) {
        double in_memory = 0, real = 0;
        for (int i = 0; i < steps; i++) in_memory += step(torch, memory.batch);
        loader.next(); /* what was rendered during these */
        loader.next();
        for (int i = 0; i < steps; i++) {
            double start = bench::now();
            mt_batch next = loader.next();
            render_times.push_back(bench::now() - start);
            step_times.push_back(step(torch, next));
            real += bench::now() - start;
        }
        ratios.push_back(in_memory / real);
    }
    std::printf("loader  side=%d pictures=%s workers=%zu speed=%.3f render_ms=%.2f step_ms=%.1f\n",
                side, kept ? "kept" : "decoded", workers, bench::median(ratios),
                1000 * bench::median(render_times), 1000 * bench::median(step_times));
    std::fflush(stdout);
}

} // namespace

int main(int argc, char **argv) {
    if (argc == 4)
        side = std::atoi(argv[1]), batch = std::strtoul(argv[2], nullptr, 10),
        turns = std::atoi(argv[3]);
    mt_torch *torch = nullptr;
    mt_torch_options options = MT_TORCH_OPTIONS_INIT;
    use_all_cores();
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    mt_model *model = bench::resnet18(8);
    bench::must(mt_torch_new(model, &options, &torch), "torch");
    for (int kept = 1; kept >= 0; kept--)
        for (size_t workers : {size_t{0}, size_t{1}}) compare(torch, kept != 0, workers);
    mt_torch_free(torch);
    mt_model_free(model);
    return 0;
}
