/*
 * options.c - which options a policy accepts.
 */
#include "policy_state.h"

static mt_status check_sizes(const mt_policy_options *o) {
    MT__CHECK(o->min_micro_batch == 0 || o->max_micro_batch == 0 ||
                  o->min_micro_batch <= o->max_micro_batch,
              "mt_policy_options: min_micro_batch %zu is above max_micro_batch %zu",
              o->min_micro_batch, o->max_micro_batch);
    MT__CHECK(o->micro_batch == 0 || o->micro_batch >= o->min_micro_batch,
              "mt_policy_options: micro_batch %zu is below min_micro_batch %zu", o->micro_batch,
              o->min_micro_batch);
    MT__CHECK(o->micro_batch == 0 || o->max_micro_batch == 0 ||
                  o->micro_batch <= o->max_micro_batch,
              "mt_policy_options: micro_batch %zu is above max_micro_batch %zu", o->micro_batch,
              o->max_micro_batch);
    return MT_OK;
}

mt_status mt__check_backend_sizes(const mt_policy_options *o, size_t least, const char *since) {
    if (o->min_micro_batch) return MT_OK;
    MT__CHECK(o->micro_batch == 0 || o->micro_batch >= least,
              "mt_policy_options: micro_batch is %zu; the backend accepts chunks of at least %zu%s",
              o->micro_batch, least, since);
    MT__CHECK(o->max_micro_batch == 0 || o->max_micro_batch >= least,
              "mt_policy_options: max_micro_batch is %zu; the backend accepts chunks of at least "
              "%zu%s",
              o->max_micro_batch, least, since);
    return MT_OK;
}

mt_status mt__policy_check_options(const mt_policy_options *o) {
    const unsigned all = MT_RUNG_BIT(MT_RUNGS) - 1;
    MT__CHECK(
        o->clear_every >= MT_CLEAR_EPOCHS && o->eval_clear_every >= MT_CLEAR_NEVER,
        "mt_policy_options: clear_every %d, eval_clear_every %d; accepted: a number of steps, "
        "MT_CLEAR_AUTO (0), MT_CLEAR_NEVER (-1), and for clear_every MT_CLEAR_EPOCHS (-2)",
        o->clear_every, o->eval_clear_every);
    MT__CHECK(((o->allow_rungs | o->forbid_rungs) & ~all) == 0,
              "mt_policy_options: allow_rungs 0x%x, forbid_rungs 0x%x; accepted: sums of "
              "MT_RUNG_BIT, up to 0x%x",
              o->allow_rungs, o->forbid_rungs, all);
    MT__CHECK((o->allow_rungs & o->forbid_rungs) == 0,
              "mt_policy_options: allow_rungs 0x%x, forbid_rungs 0x%x; accepted: no rung in both",
              o->allow_rungs, o->forbid_rungs);
    MT__CHECK(o->keep_chunks >= MT_KEEP_NEVER && o->keep_chunks <= MT_KEEP_ALWAYS,
              "mt_policy_options: keep_chunks is %d; accepted: MT_KEEP_AUTO (0), MT_KEEP_ALWAYS "
              "(1), MT_KEEP_NEVER (-1)",
              o->keep_chunks);
    MT__CHECK((unsigned)o->rate_rule <= MT_RATE_SQRT,
              "mt_policy_options: rate_rule is %d; accepted: 0 to %d", (int)o->rate_rule,
              MT_RATE_SQRT);
    return check_sizes(o);
}
