/*
 * smartcash_lines.c - what smartcash prints of its own; see smartcash.h.
 */
#include "smartcash.h"

#include "smartcash_model.h"

void smartcash_introduce(void *self, const ex_training *run) {
    const smartcash *f = self;
    size_t classes = ex_card_scenes_class_count(f->data);
    printf("%lld scenes an epoch of %zu cards on %zu patterns, %zu classes; validation on %lld of "
           "style '%s' on %zu other patterns\n",
           (long long)f->scenes, ex_card_scenes_cards(f->data, EX_TRAINING),
           ex_card_scenes_patterns(f->data, EX_TRAINING), classes, (long long)f->validation_scenes,
           ex_card_scenes_unseen(f->data), ex_card_scenes_patterns(f->data, EX_VALIDATION));
    if (f->tier == EX_TIER_AUTO)
        printf("begins in %s\n", ex_tier_name(ex_tier_of(run->device.name, 0)));
    else
        printf("as in %s, where flags do not say otherwise\n", ex_tier_name((ex_tier)f->tier));
}

void smartcash_tier(void *self, ex_training *run, const mt_step_report *report) {
    smartcash *f = self;
    ex_tier now = ex_tier_of(run->device.name, report->rungs);
    char line[256];
    if (now == f->now) return;
    ex_tier_changed(f->now, now, report, line, sizeof line);
    mt_log(MT_LOG_INFO, "%s", line);
    f->now = now;
}

/* What the first metric is made of. A share of no boxes is no number, and is shown as 0. */
static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

mt_status smartcash_details(void *self, ex_training *run, const mt_epoch_report *report) {
    const double *m = report->eval_metrics;
    double there = m[SMARTCASH_THERE], located = m[SMARTCASH_LOCATED];
    double reported = m[SMARTCASH_REPORTED], right = m[SMARTCASH_RECALL] * there;
    (void)self;
    (void)run;
    if (!report->eval_samples) return MT_OK;
    printf("    of the cards %.1f %% located, IoU %.2f, %.1f %% of these named right; recall %.1f "
           "%%, precision %.1f %%\n",
           100 * share(located, there), located > 0 ? m[SMARTCASH_IOU] : 0,
           100 * share(right, located), 100 * m[SMARTCASH_RECALL], 100 * share(right, reported));
    fflush(stdout);
    return MT_OK;
}

void smartcash_result(const smartcash *f, const ex_training *run) {
    if (!run->last.eval_samples) return;
    printf("validation F1 %.1f %% on cards of a style and patterns that were not trained on; every "
           "box right and its class guessed: %.1f %%\n",
           100 * run->last.eval_metrics[SMARTCASH_F1],
           100.0 / (double)ex_card_scenes_class_count(f->data));
}

void smartcash_remedies(void *self, const ex_training *run) {
    const smartcash *f = self;
    (void)run;
    if (f->tier == EX_TIER_ACCELERATOR) fprintf(stderr, "  --tier auto          falls by itself\n");
    if (f->backbone == SMARTCASH_EFFICIENTNET_B4 || f->backbone == SMARTCASH_CSPDARKNET)
        fprintf(stderr, "  --backbone cspdarknet_small\n"
                        "                       has a fraction of the parameters\n");
}
