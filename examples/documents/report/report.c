/*
 * report.c - results, failures and the exit status in words; see report.h.
 */
#include "report.h"

#include <math.h>
#include <memtrain/forecast.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- results ----------------------------------------------------------------------------------- */

void ex_report_pictures(const ex_dataset *pictures) {
    size_t guess;
    double share = ex_pictures_majority(pictures, &guess);
    printf("%zu pictures for training, %zu for validation, %zu classes; always guessing '%s' is "
           "right for %.1f %%\n",
           ex_dataset_count(pictures, EX_TRAINING), ex_dataset_count(pictures, EX_VALIDATION),
           pictures->class_count, pictures->class_names[guess], 100 * share);
    if (pictures->skipped)
        printf("%zu file%s skipped, no picture or broken; the first: %s\n", pictures->skipped,
               pictures->skipped == 1 ? " was" : "s were", pictures->skip.text);
    if (pictures->empty) printf("%zu class folders are empty and were left out\n", pictures->empty);
    if (pictures->not_kept)
        printf("%zu pictures find no room in memory and are decoded whenever they are used\n",
               pictures->not_kept);
}

void ex_report_job(const char *model, const ex_flags *flags, const ex_device *device,
                   const mt_backend_info *info) {
    char parameters[32], budget[32];
    printf("%s at %lld pixels, parameters %s; %s, %d thread%s; ", model,
           (long long)flags->image_size,
           mt_format_size(info->parameter_bytes, parameters, sizeof parameters), device->name,
           device->threads, device->threads == 1 ? "" : "s");
    if (device->budget_bytes)
        printf("budget %s (%s)\n", mt_format_size(device->budget_bytes, budget, sizeof budget),
               device->budget_from);
    else
        printf("no budget\n");
    fflush(stdout);
}

void ex_report_epoch(const mt_epoch_report *report, const char *metric, double seconds) {
    printf("epoch %llu", (unsigned long long)report->epoch);
    if (report->samples)
        printf("  train loss %.3f %s %.1f %%", report->loss, metric, 100 * report->metrics[0]);
    if (report->eval_samples)
        printf("  validation loss %.3f %s %.1f %%", report->eval_loss, metric,
               100 * report->eval_metrics[0]);
    printf("  %.1f s\n", seconds);
    fflush(stdout);
}

void ex_report_run(const mt_run_report *report, size_t batch) {
    char budget[32], peak[32];
    if (report->budget_bytes)
        printf("budget %s, ", mt_format_size(report->budget_bytes, budget, sizeof budget));
    else
        printf("no budget, ");
    printf("peak %s; ", report->peak_bytes ? mt_format_size(report->peak_bytes, peak, sizeof peak)
                                           : "not told by the device");
    if (report->smallest_chunk == report->largest_chunk)
        printf("chunks of %zu", report->largest_chunk);
    else
        printf("chunks of %zu to %zu", report->smallest_chunk, report->largest_chunk);
    printf(" for batch %zu; %llu OOM%s met, %llu samples discarded", batch,
           (unsigned long long)report->ooms, report->ooms == 1 ? "" : "s",
           (unsigned long long)report->samples_discarded);
    /* On a terminal, where the line would wrap, 16 of the 64 digits tell two states apart as well. */
    if (*report->state_sha256)
        printf("; state sha256 %.*s", isatty(STDOUT_FILENO) ? 16 : 64, report->state_sha256);
    printf("\n");
}

void ex_report_resident(const ex_flags *flags, const ex_device *device) {
    mt_resident now = MT_RESIDENT_INIT;
    char peak[32], limit[32], tensors[32], arena[32], other[32];
    if (!flags->budget_resident || mt_device_resident(device->name, &now) != MT_OK) return;
    if (flags->explain && !flags->epochs) return; /* tensors of a dry run are in memory in part */
    printf("process %s at most of %s; now tensors %s, arena %s, code and the rest %s\n",
           mt_format_size(now.peak_bytes, peak, sizeof peak),
           mt_format_size(now.limit_bytes, limit, sizeof limit),
           mt_format_size(now.tensor_bytes, tensors, sizeof tensors),
           mt_format_size(now.arena_bytes, arena, sizeof arena),
           mt_format_size(now.other_bytes, other, sizeof other));
}

/* ---- failures ---------------------------------------------------------------------------------- */

static void print_explanation(const mt_trainer *trainer) {
    size_t length = mt_trainer_explain(trainer, NULL, 0);
    char *text = length ? malloc(length + 1) : NULL;
    if (!text) return;
    mt_trainer_explain(trainer, text, length + 1);
    fprintf(stderr, "%s", text);
    free(text);
}

/* Whether it is known which --min-micro-batch would do, by trying; 0: none. */
static int find_least(const ex_failure *failure, size_t *out) {
    const mt_policy_options options = ex_flags_policy(failure->flags);
    const mt_backend *backend = failure->backend;
    char reason[512];
    mt_batch batch;
    if (!backend || !failure->batches) return 0;
    snprintf(reason, sizeof reason, "%s", mt_last_error());
    mt_status status = ex_batches_fill(failure->batches, EX_TRAINING, 1, 0, &batch);
    if (status == MT_OK) status = mt_forecast_least(backend, &batch, &options, out);
    (void)!mt_set_error(failure->status, "%s", reason);
    return status == MT_OK;
}

/* The largest --min-micro-batch that lets a batch be cut finer than the one of now does. */
static int64_t one_chunk_more(const ex_flags *flags) {
    return flags->batch / (flags->batch / flags->min_micro_batch + 1);
}

static void print_least(const ex_failure *failure) {
    const ex_flags *flags = failure->flags;
    size_t least;
    if (flags->min_micro_batch <= 1 || !failure->has_state) return;
    if (!find_least(failure, &least))
        fprintf(stderr,
                "  --min-micro-batch N  at most %lld, instead of %lld: one chunk more, if that is "
                "enough\n",
                (long long)one_chunk_more(flags), (long long)flags->min_micro_batch);
    else if (least)
        fprintf(stderr, "  --min-micro-batch %-2zu instead of %lld: chunks of so many fit\n", least,
                (long long)flags->min_micro_batch);
}

static void print_resident(const ex_flags *flags) {
    char limit[32];
    fprintf(stderr,
            "  --budget-resident    more than the %s of now\n"
            "  --budget SIZE        no help: --budget-resident leaves tensors less\n",
            mt_format_size(flags->budget_resident, limit, sizeof limit));
}

/* On a simulated card --budget is the size of it, and what the host has free is no measure. */
static void print_budget(const ex_flags *flags, const ex_device *device) {
    char budget[32], room[32];
    mt_format_size(device->budget_bytes, budget, sizeof budget);
    mt_format_size(device->room_bytes, room, sizeof room);
    fprintf(stderr, "  --budget SIZE        ");
    if (device->card_bytes)
        fprintf(stderr, "a simulated card of more than %s, of which tensors may take %s now\n",
                room, budget);
    else if (device->room_bytes && !flags->budget)
        fprintf(stderr, "or auto, instead of the %s that suit the defaults; %s are free\n", budget,
                room);
    else if (device->room_bytes)
        fprintf(stderr, "more than the %s of now; %s are free\n", budget, room);
    else
        fprintf(stderr, "more than the %s of now\n", budget);
}

/* Batches ahead are counted on the CPU alone. */
static void print_workers(const ex_device *device) {
    char bytes[32];
    if (strcmp(device->name, "cpu") != 0 || !device->ahead_bytes) return;
    fprintf(stderr, "  --workers 0          %s less: no batch is rendered ahead\n",
            mt_format_size(device->ahead_bytes, bytes, sizeof bytes));
}

static void print_devices(const ex_flags *flags, const ex_device *device, int has_state) {
    if (strcmp(device->name, "cpu") == 0) return;
    if (!(flags->fallback & MT_RUNG_BIT(MT_RUNG_CPU)))
        fprintf(stderr, "  --fallback cpu       goes on there where not even %s fits\n",
                has_state ? "the smallest chunk" : "the model");
    fprintf(stderr, "  --device cpu         the host's memory: slower\n");
}

/* On the CPU by itself in a file alone, and that in a folder which is named. */
static void print_offload(const ex_flags *flags, const ex_device *device) {
    int is_cpu = strcmp(device->name, "cpu") == 0, lacks_folder = is_cpu && !flags->offload_dir;
    if (flags->offload == MT_OFFLOAD_NEVER)
        fprintf(stderr,
                "  --offload auto       %sactivations wait elsewhere where a chunk does not fit "
                "else\n",
                lacks_folder ? "with --offload-dir DIR: " : "");
    else if (flags->offload == MT_OFFLOAD_AUTO && lacks_folder)
        fprintf(stderr, "  --offload-dir DIR    activations wait in a file there where a chunk "
                        "does not fit else\n");
}

/* Savers that are turned off, or not asked for. */
static void print_savers(const ex_flags *flags, const ex_device *device) {
    if (flags->checkpointing == EX_CHECKPOINTING_OFF)
        fprintf(stderr, "  --checkpointing auto activations are computed again where a chunk does "
                        "not fit else\n");
    print_offload(flags, device);
    if (flags->amp <= 0 && !(flags->fallback & MT_RUNG_BIT(MT_RUNG_AMP)))
        fprintf(stderr, "  --fallback amp       half precision where nothing else fits: other "
                        "roundings\n");
}

/* A fault that stays lets every request fail from one on: what a step needs has nothing to do with it. */
static int is_injected(const ex_flags *flags) {
    return flags->inject.persistent && flags->inject.failed;
}

static void print_injected(const ex_inject *inject) {
    fprintf(
        stderr,
        "  --inject-oom         left out: every request of step %llu from number %llu on was let "
        "fail, whatever the budget\n",
        (unsigned long long)inject->step, (unsigned long long)inject->request);
}

/* The same remedies by the names that they have on the command line, as far as they are left. */
static void print_remedies(const ex_failure *failure) {
    const ex_flags *flags = failure->flags;
    const ex_device *device = failure->device;
    int has_state = failure->has_state;
    fprintf(stderr, "Flags that help:\n");
    if (is_injected(flags)) {
        print_injected(&flags->inject);
        return;
    }
    if (device->resident_binds)
        print_resident(flags);
    else
        print_budget(flags, device);
    if (!has_state && !flags->explain)
        fprintf(stderr, "  --explain            says how much the model takes\n");
    if (flags->micro_batch && has_state)
        fprintf(stderr, "  --micro-batch auto   instead of %lld: chunks that fit are chosen\n",
                (long long)flags->micro_batch);
    print_least(failure);
    if (flags->image_size > 32 && has_state)
        fprintf(stderr,
                "  --image-size N       below the %lld of now: half the side takes a quarter of "
                "the activations\n",
                (long long)flags->image_size);
    if (flags->optimizer != MT_SGD)
        fprintf(stderr, "  --optimizer sgd      one number of state for a parameter instead of "
                        "two; none with --momentum 0\n");
    if (has_state) print_savers(flags, device);
    print_workers(device);
    print_devices(flags, device, has_state);
}

void ex_report_failure(const ex_failure *failure) {
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", failure->program, mt_last_error());
    if (failure->status != MT_EDEVMEM) return;
    print_explanation(failure->trainer);
    print_remedies(failure);
}

int ex_exit_status(mt_status status, int interrupted) {
    switch (status) {
    case MT_OK:
        return interrupted ? 128 + interrupted : 0;
    case MT_EINVAL:
        return 2;
    case MT_EDEVMEM:
        return 3;
    default:
        return 1;
    }
}
