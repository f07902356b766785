/*
 * prsmed_lines.c - what prsmed prints of its own; see prsmed.h.
 */
#include "prsmed.h"

#include "breakdown.h"

#include <string.h>

void prsmed_tell_words(prsmed *p) {
    prsmed_lm_figures now = PRSMED_LM_FIGURES_INIT;
    char read[32];
    if (!p->lm || prsmed_lm_figures_of(p->lm, &now) != MT_OK) return;
    uint64_t passes = now.passes - p->told.passes, bytes = now.disk_bytes - p->told.disk_bytes;
    printf("language model: %llu pass%s in %s, of %llu prompts, %.1f s; ",
           (unsigned long long)passes, passes == 1 ? "" : "es", p->half ? "bf16" : "float32",
           (unsigned long long)(now.read_prompts - p->told.read_prompts),
           now.seconds - p->told.seconds);
    printf("%s read from the disk", mt_format_size(bytes, read, sizeof read));
    if (passes && now.mapped_bytes)
        printf(", %.2f of the file a pass",
               (double)bytes / (double)passes / (double)now.mapped_bytes);
    printf("; %llu prompts kept\n", (unsigned long long)now.kept_prompts);
    fflush(stdout);
    p->told = now;
}

static void introduce_language_model(prsmed *p) {
    prsmed_lm_figures figures = PRSMED_LM_FIGURES_INIT;
    char held[32], mapped[32];
    if (!p->lm || prsmed_lm_figures_of(p->lm, &figures) != MT_OK) return;
    printf("language model: %lld parameters, %s in memory, %s mapped, which no budget counts\n",
           (long long)figures.parameters, mt_format_size(figures.held_bytes, held, sizeof held),
           mt_format_size(figures.mapped_bytes, mapped, sizeof mapped));
    if (figures.passes) prsmed_tell_words(p); /* of what centres its words */
}

void prsmed_introduce(void *self, const ex_training *run) {
    prsmed *p = self;
    (void)run;
    printf("%lld scenes an epoch for training, %lld for validation, of %zu classes\n",
           (long long)p->scenes[EX_TRAINING], (long long)p->scenes[EX_VALIDATION],
           ex_prompt_scenes_classes(p->data));
    introduce_language_model(p);
}

mt_status prsmed_memory(void *self, ex_training *run, const mt_epoch_report *report) {
    mt_memory m = MT_MEMORY_INIT;
    (void)report;
    prsmed_tell_words(self);
    prsmed_save_states(self, run);
    mt_status status = mt_device_memory(run->device.name, &m);
    if (status != MT_OK) return status;
    /* The two are read one after the other, so that the first may have grown meanwhile. */
    size_t cached = m.reserved_bytes > m.allocated_bytes ? m.reserved_bytes - m.allocated_bytes : 0;
    printf("%s Memory Allocated: %.3f GB, Reserved: %.3f GB, Cached: %.3f GB\n",
           strcmp(run->device.name, "cpu") == 0 ? "CPU" : "GPU", (double)m.allocated_bytes / 1e9,
           (double)m.reserved_bytes / 1e9, (double)cached / 1e9);
    return MT_OK;
}

void prsmed_result(const prsmed *p, const ex_training *run) {
    const double *metrics = run->last.eval_metrics;
    ex_prompt_chance chance;
    if (!run->last.eval_samples || ex_prompt_scenes_chance(p->data, &chance) != EX_OK) return;
    printf("validation Dice %.1f %%, IoU %.1f %%; without the prompt: all pixels %.1f %%, perfect "
           "outlines of all things %.1f %%, of one at random %.1f %%\n",
           100 * metrics[0], 100 * metrics[1], 100 * chance.everything, 100 * chance.all_things,
           100 * chance.one_thing);
}

/* ---- where memory goes ------------------------------------------------------------------------- */

static const ex_saver savers[] = {
    {"none", MT_DTYPE_NONE, MT_CHECKPOINTING_AUTO, 0, "18-24 GB"},
    {"half precision (bf16)", MT_BFLOAT16, MT_CHECKPOINTING_AUTO, 0, "about 50 %: 9-12 GB"},
    {"checkpointing", MT_DTYPE_NONE, MT_CHECKPOINTING_ON, 0, "30-50 % less"},
    {"chunks of 2", MT_DTYPE_NONE, MT_CHECKPOINTING_AUTO, 2, "with bf16: 4.5-6 GB"},
    {"chunks of 1", MT_DTYPE_NONE, MT_CHECKPOINTING_AUTO, 1, ""},
    {"bf16, checkpointing, chunks of 2", MT_BFLOAT16, MT_CHECKPOINTING_ON, 2, "2.3-4.2 GB"},
    {"bf16, checkpointing, chunks of 1", MT_BFLOAT16, MT_CHECKPOINTING_ON, 1, ""},
};

/* A text model that stays random takes the same memory. */
static mt_status random_model(void *self, mt_model **out) {
    prsmed_model_options options = prsmed_options(self);
    options.text_steps = 0;
    return prsmed_model_new(&options, out);
}

static mt_status measure(prsmed *p, const ex_training *run, const mt_batch *batch) {
    const prsmed_model_options options = prsmed_options(p);
    prsmed_estimate by_size[PRSMED_PARTS];
    size_t parameter_bytes[PRSMED_PARTS] = {0};
    ex_part parts[PRSMED_PARTS] = {
        {"frozen text model", NULL, 0, 0, "14-16 GB"},
        {"vision backbone", "vision.", 0, 0, "500-800 MB with its activations"},
        {"mask head", "decoder.", 0, 0, "200-300 MB with its activations"}};
    mt_status status = prsmed_model_estimate(&options, EX_PROMPT_TOKENS, by_size);
    if (status != MT_OK) return status;
    for (int i = 0; i < PRSMED_PARTS; i++) {
        parts[i].parameter_bytes = by_size[i].parameters * sizeof(float);
        parts[i].activation_bytes = by_size[i].activations * sizeof(float) * batch->count;
    }
    const ex_breakdown breakdown = {
        .measure = {.model = random_model,
                    .user = p,
                    .options = ex_flags_torch(&p->flags, run->device.name),
                    .visit = prsmed_model_count,
                    .visit_user = parameter_bytes},
        .batch = batch,
        .input_bytes =
            batch->count * 3 * sizeof(float) * (size_t)(p->flags.image_size * p->flags.image_size),
        .parts = parts,
        .parameter_bytes = parameter_bytes,
        .part_count = PRSMED_PARTS,
        .savers = savers,
        .saver_count = EX_ROWS(savers),
        .published = {"100 MB", "1-2 GB", "2-4 GB", "18-24 GB"}};
    return ex_breakdown_print(&breakdown);
}

/* Without the budget, which the plain step is not to fit; the run's own random numbers start anew. */
mt_status prsmed_breakdown(prsmed *p, const ex_training *run) {
    mt_batch batch;
    mt_status status = ex_batches_fill(run->batches, EX_TRAINING, 1, 0, &batch);
    if (status == MT_OK) status = mt_device_set_budget(run->device.name, 0);
    if (status == MT_OK) status = measure(p, run, &batch);
    mt_status back = mt_device_set_budget(run->device.name, run->device.budget_bytes);
    if (status == MT_OK) status = back;
    return status == MT_OK ? mt_torch_seed((uint64_t)p->flags.seed) : status;
}
