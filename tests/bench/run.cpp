/*
 * run.cpp - what a run wastes when its budget is known from the start: samples discarded and OOMs
 * met over 20 steps of ResNet-18 in three budgets, and the highest peak against the budget.
 * To be: no OOM, at most the six samples of the two recording chunks, peak within the budget.
 */
#include "bench.hpp"

int main() {
    const int64_t side = 64, count = 32;
    bench::must(mt_torch_init(nullptr), "init");
    bench::must(mt_torch_set_threads(1), "threads");
    bench::Batch batch(count, side, 10);
    for (size_t beside_mib : {25, 40, 60}) {
        mt_model *model = bench::resnet18(10);
        mt_torch *torch = nullptr;
        mt_backend backend = MT_BACKEND_INIT;
        mt_trainer *trainer = nullptr;
        mt_memory memory = {};
        mt_run_report report = MT_RUN_REPORT_INIT;
        memory.size = sizeof memory;
        bench::must(mt_torch_new(model, nullptr, &torch), "torch");
        bench::must(mt_device_memory("cpu", &memory), "memory");
        bench::must(mt_device_set_budget("cpu", memory.allocated_bytes + (beside_mib << 20)),
                    "budget");
        bench::must(mt_torch_backend(torch, &backend), "backend");
        bench::must(mt_trainer_new(&backend, nullptr, &trainer), "trainer");
        for (int i = 0; i < 20; i++)
            bench::must(mt_trainer_step(trainer, &batch.batch, nullptr), "step");
        bench::must(mt_trainer_summary(trainer, &report), "summary");
        std::printf("run  budget_beside_mib=%zu chunks=%zu..%zu ooms=%llu discarded=%llu "
                    "peak_of_budget=%.4f\n",
                    beside_mib, report.smallest_chunk, report.largest_chunk,
                    static_cast<unsigned long long>(report.ooms),
                    static_cast<unsigned long long>(report.samples_discarded),
                    static_cast<double>(report.peak_bytes) /
                        static_cast<double>(report.budget_bytes));
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
        bench::must(mt_device_set_budget("cpu", 0), "budget");
    }
    return 0;
}
