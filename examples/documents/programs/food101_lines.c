/*
 * food101_lines.c - what food101 prints of its own; see food101.h.
 */
#include "food101.h"

#include "food101_model.h"
#include "interrupt.h"
#include "report.h"

const ex_word food101_profiles[] = {{"ultra-safe", 4}, {"safe", 8},      {"moderate", 16},
                                    {"target", 24},    {"original", 32}, {NULL, 0}};

static void print_accuracy(const food101 *f, const ex_training *run) {
    const double *metrics = run->last.eval_metrics;
    printf("validation accuracy %.1f %%", 100 * metrics[0]);
    if (f->pictures.dataset->class_count > FOOD101_TOP)
        printf(", among the best %d %.1f %%", FOOD101_TOP, 100 * metrics[1]);
    printf("; always guessing one class: %.1f %%\n",
           100 * ex_pictures_majority(f->pictures.dataset, NULL));
}

/* The mean absolute errors, the last of the metrics, beside those of guessing the mean. */
static void print_nutrition(const food101 *f, const ex_training *run) {
    double guess[EX_NUTRIENTS];
    const double *errors = run->last.eval_metrics + run->info.metric_count - EX_NUTRIENTS;
    if (ex_nutrition_guess(f->nutrition, guess) != MT_OK) return;
    printf("mean absolute errors on made-up nutrition (always guessing the mean):");
    for (int i = 0; i < EX_NUTRIENTS; i++)
        printf("%s %s %.1f (%.1f)", i ? "," : "", ex_nutrient_names[i], errors[i], guess[i]);
    printf("\n");
}

void food101_result(const food101 *f, const ex_training *run) {
    if (!run->last.eval_samples) return;
    print_accuracy(f, run);
    if (f->nutrition) print_nutrition(f, run);
}

void food101_remedies(void *self, const ex_training *run) {
    const food101 *f = self;
    (void)run;
    if (f->depth > 18) fprintf(stderr, "  --arch resnet18      has about half the parameters\n");
}

/* ---- --table ----------------------------------------------------------------------------------- */

/* Numbers of a run that fitted. */
static void print_row(const ex_row *row) {
    char peak[32], chunks[32];
    size_t least = row->report.smallest_chunk, most = row->report.largest_chunk;
    snprintf(chunks, sizeof chunks, least == most ? "%zu" : "%zu to %zu", least, most);
    printf("%-14s %-14s %16.2f %14s\n", chunks, "ok", 50 * row->seconds / (double)row->samples,
           mt_format_size(row->report.peak_bytes, peak, sizeof peak));
}

/* One batch, at once with nothing saved, as the script had it, or as the budget allows. */
static mt_status run_row(food101 *f, ex_program *program, char **argv, const ex_word *profile,
                         int at_once) {
    ex_row row;
    const int64_t checkpointing = f->flags.checkpointing;
    f->flags.batch = profile->value;
    f->flags.micro_batch = at_once ? profile->value : 0;
    if (at_once) f->flags.checkpointing = EX_CHECKPOINTING_OFF;
    f->flags.by_hand = at_once;
    ex_training_row(program, &f->flags, argv, &row);
    f->flags.checkpointing = checkpointing;
    f->nutrition = NULL; /* freed with the run */
    f->pictures.dataset = NULL;
    if (ex_interrupted()) return MT_OK; /* half a run has no figures */
    printf("%-12s %6lld   ", profile->name, (long long)profile->value);
    if (row.status == MT_OK)
        print_row(&row);
    else if (row.status == MT_EDEVMEM)
        printf("%-14lld does not fit\n", (long long)profile->value);
    fflush(stdout);
    return row.status == MT_EDEVMEM ? MT_OK : row.status;
}

/* The table of the script that this follows: each profile's batch at once; and the last one in chunks. */
int food101_table(food101 *f, ex_program *program, char **argv) {
    mt_status status = MT_OK;
    const ex_word *profile = food101_profiles;
    if (f->flags.epochs > 3) f->flags.epochs = 3;
    mt_reexec_passive(argv);
    printf("%-12s %6s   %-14s %-14s %16s %14s\n", "profile", "batch", "chunks", "status",
           "s / 50 pictures", "peak");
    for (; profile->name && status == MT_OK && !ex_interrupted(); profile++)
        status = run_row(f, program, argv, profile, 1);
    if (status == MT_OK && !ex_interrupted()) status = run_row(f, program, argv, profile - 1, 0);
    return ex_exit_status(status, ex_interrupted());
}
