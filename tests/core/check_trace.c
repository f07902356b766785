/*
 * check_trace.c - the trace: every line parses, has its keys with their types, agrees with the
 * reports, and its step lines alone replay the run to the bit.
 */
#include "locales.h"
#include "trainer_tests.h"

#include <jansson.h>
#include <locale.h>
#include <math.h>

/* ---- collecting ----------------------------------------------------------------------------- */

#define LINES_MAX 2000

static json_t *lines[LINES_MAX];
static char *texts[LINES_MAX];
static size_t line_count;

static void collect(void *user, const char *text) {
    json_error_t error;

    ck_assert_ptr_eq(user, lines);
    ck_assert_uint_lt(line_count, LINES_MAX);
    ck_assert_ptr_null(strchr(text, '\n'));
    char *locale = strdup(setlocale(LC_NUMERIC, NULL)); /* which the parser does not always stand */
    setlocale(LC_NUMERIC, "C");
    lines[line_count] = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    setlocale(LC_NUMERIC, locale);
    free(locale);
    ck_assert_msg(lines[line_count] != NULL, "%s: %s", error.text, text);
    ck_assert(json_is_object(lines[line_count]));
    texts[line_count] = malloc(strlen(text) + 1);
    strcpy(texts[line_count++], text);
}

static void forget(void) {
    while (line_count > 0) {
        json_decref(lines[--line_count]);
        free(texts[line_count]);
    }
}

static const char *event_of(size_t i) {
    return json_string_value(json_object_get(lines[i], "event"));
}

static int is_event(size_t i, const char *event) {
    return strcmp(event_of(i), event) == 0;
}

static size_t count_event(const char *event) {
    size_t count = 0;

    for (size_t i = 0; i < line_count; i++) count += (size_t)is_event(i, event);
    return count;
}

/* The n-th line of that event, counted from 0. */
static const json_t *line_of(const char *event, size_t n) {
    for (size_t i = 0; i < line_count; i++)
        if (is_event(i, event) && n-- == 0) return lines[i];
    ck_abort_msg("no line of event '%s'", event);
    return NULL;
}

static uint64_t integer(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);

    ck_assert_msg(json_is_integer(value), "'%s' is no integer", key);
    return (uint64_t)json_integer_value(value);
}

static double number(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);

    ck_assert_msg(json_is_number(value), "'%s' is no number", key);
    return json_number_value(value);
}

static const char *string(const json_t *line, const char *key) {
    const json_t *value = json_object_get(line, key);

    ck_assert_msg(json_is_string(value), "'%s' is no string", key);
    return json_string_value(value);
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void begin(void) {
    begin_defaults();
    own.trace = collect;
    own.trace_user = lines;
    own.batch = 32;
    own.seed = 1;
}

static void end(void) {
    end_trainer();
    forget();
}

/* The trainer of a test, with the fake's seam or a given one; its lines are collected. */
static void trace(const mt_backend *given) {
    mt_backend seam = given != NULL ? *given : new_seam();

    ck_ok(mt_trainer_new(&seam, &own, &trainer));
}

static void eventful_options(void) {
    options = fits(13);
    options.seconds = fake_seconds;
    options.hog_from = 6;
    options.hog_until = 9;
    options.hog_bytes = 50000;
    options.normalises_over_batch = 1;
    options.skip_step = 4;
}

static mt_run_report run = MT_RUN_REPORT_INIT;

/* Two epochs with everything in them: faults, clears, a hog, evaluation, a step that failed. */
static void eventful_run(void) {
    static const fake_kind faults[] = {FAKE_ALLOCATION, FAKE_APPLY, FAKE_BEGIN, FAKE_EVALUATE};

    eventful_options();
    policy.clear_every = 4;
    own.policy = &policy;
    trace(NULL);
    for (uint64_t id = 1; id <= 16; id++) {
        mt_batch batch = batch_of(id == 5 ? 17 : 32, id);

        fake_fail_kind(&fake, faults[id % 4], id % 2 == 0 ? 0 : id, MT_EDEVMEM);
        fake_fail_kind(&fake, FAKE_ALLOCATION, id % 3 == 0 ? 0 : id, MT_EDEVMEM);
        if (id == 11) fake_fail_kind(&fake, FAKE_APPLY, 1, MT_EDEVMEM);
        ck_ok(mt_trainer_step(trainer, &batch, NULL));
        if (id % 4 == 0) ck_ok(mt_trainer_evaluate(trainer, &batch, NULL));
        if (id % 8 == 0) ck_ok(mt_trainer_end_epoch(trainer, NULL));
    }
    ck_ok(mt_trainer_finish(trainer, &run));
    end_trainer();
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* i: integer, n: number, z: number or null, s: string, c: list of positive integers, o: object. */
static const struct {
    const char *event, *key;
    char type;
} keys[] = {
    {"run", "version", 's'},
    {"run", "torch", 's'},
    {"run", "device", 's'},
    {"run", "budget_bytes", 'i'},
    {"run", "batch", 'i'},
    {"plan", "step", 'i'},
    {"plan", "chunks", 'c'},
    {"plan", "reason", 's'},
    {"plan", "predicted_peak_bytes", 'i'},
    {"oom", "step", 'i'},
    {"oom", "phase", 's'},
    {"oom", "chunk", 'i'},
    {"oom", "requested_bytes", 'i'},
    {"oom", "allocated_bytes", 'i'},
    {"clear", "step", 'i'},
    {"clear", "reason", 's'},
    {"clear", "released_bytes", 'i'},
    {"clear", "seconds", 'n'},
    {"step", "step", 'i'},
    {"step", "epoch", 'i'},
    {"step", "samples", 'i'},
    {"step", "chunks", 'c'},
    {"step", "loss", 'z'},
    {"step", "seconds", 'n'},
    {"step", "retries", 'i'},
    {"step", "peak_bytes", 'i'},
    {"step", "allocated_bytes", 'i'},
    {"step", "reserved_bytes", 'i'},
    {"epoch", "epoch", 'i'},
    {"epoch", "loss", 'z'},
    {"epoch", "metrics", 'o'},
    {"epoch", "seconds", 'n'},
    {"epoch", "peak_bytes", 'i'},
    {"end", "steps", 'i'},
    {"end", "samples_trained", 'i'},
    {"end", "samples_discarded", 'i'},
    {"end", "ooms", 'i'},
    {"end", "peak_bytes", 'i'},
    {"end", "budget_bytes", 'i'},
    {"end", "seconds", 'n'},
    {"end", "state_sha256", 's'},
};

static int is_list_of_chunks(const json_t *value) {
    if (!json_is_array(value) || json_array_size(value) == 0) return 0;
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_integer(json_array_get(value, i)) ||
            json_integer_value(json_array_get(value, i)) < 1)
            return 0;
    return 1;
}

static int has_type(const json_t *value, char type) {
    switch (type) {
    case 'i':
        return json_is_integer(value);
    case 'n':
        return json_is_number(value);
    case 'z':
        return json_is_number(value) || json_is_null(value);
    case 's':
        return json_is_string(value);
    case 'c':
        return is_list_of_chunks(value);
    default:
        return json_is_object(value);
    }
}

TEST_LOOP("shape", keys_and_types, LENGTH(keys)) {
    size_t seen = 0;

    eventful_run();
    for (size_t i = 0; i < line_count; i++) {
        if (!is_event(i, keys[_i].event)) continue;
        ck_assert_msg(has_type(json_object_get(lines[i], keys[_i].key), keys[_i].type),
                      "'%s' in %s", keys[_i].key, texts[i]);
        seen++;
    }
    ck_assert_msg(seen > 0, "no line of event '%s'", keys[_i].event);
}

/* The rate of an update, and none of a step that made no update. */
TEST("shape", rates_of_updates) {
    size_t skipped = 0, updated = 0;

    eventful_run();
    for (size_t i = 0; i < line_count; i++) {
        const json_t *rate = json_object_get(lines[i], "lr");
        int is_skipped = json_is_true(json_object_get(lines[i], "skipped"));

        if (!is_event(i, "step")) continue;
        ck_assert_msg(is_skipped ? !rate : json_number_value(rate) == 0.05, "%s", texts[i]);
        skipped += (size_t)is_skipped;
        updated += (size_t)!is_skipped;
    }
    ck_assert(skipped > 0 && updated > 0);
}

static int is_word(const char *word, const char *words) {
    const char *at = strstr(words, word);

    return at != NULL && (at == words || at[-1] == '|') &&
           (at[strlen(word)] == '|' || at[strlen(word)] == '\0');
}

TEST("shape", words_are_known) {
    eventful_run();
    for (size_t i = 0; i < line_count; i++) {
        const char *words = NULL, *key = "reason";

        ck_assert_msg(is_word(event_of(i), "run|plan|oom|clear|rung|step|epoch|end"), "%s",
                      texts[i]);
        if (is_event(i, "plan")) words = "start|throughput|growth|oom|budget|replay|user";
        if (is_event(i, "clear")) words = "every|evidence|epoch|oom";
        if (is_event(i, "oom")) {
            words = "begin|accumulate|apply|evaluate";
            key = "phase";
        }
        if (words != NULL) ck_assert_msg(is_word(string(lines[i], key), words), "%s", texts[i]);
    }
}

/* ---- what the lines say ---------------------------------------------------------------------- */

static int has_word(size_t i, const char *event, const char *key, const char *word) {
    return is_event(i, event) && strcmp(string(lines[i], key), word) == 0;
}

/* What happens between steps, in an evaluation or after an epoch, is no part of the step to come. */
TEST("content", events_tell_their_step) {
    uint64_t done = 0;
    size_t between = 0, evaluations = 0;

    eventful_run();
    for (size_t i = 0; i < line_count; i++) {
        int is_of_evaluation = has_word(i, "oom", "phase", "evaluate");
        int is_between = is_of_evaluation || has_word(i, "clear", "reason", "epoch");

        if (is_event(i, "clear") && i > 0 && has_word(i - 1, "oom", "phase", "evaluate"))
            is_between = 1;
        between += is_between;
        evaluations += is_of_evaluation;
        if (is_event(i, "step"))
            done++;
        else if (has_word(i, "clear", "reason", "evidence")) /* before a step or an evaluation */
            ck_assert_uint_le(integer(lines[i], "step") - done, 1);
        else if (json_object_get(lines[i], "step"))
            ck_assert_msg(integer(lines[i], "step") == done + !is_between, "%s", texts[i]);
    }
    ck_assert_uint_ge(evaluations, 1);
    ck_assert_uint_ge(between, evaluations + 2);
}

TEST("content", lines_agree_with_the_reports) {
    const json_t *end;
    size_t samples = 0;
    uint64_t steps = 0;

    eventful_run();
    ck_assert(is_event(0, "run"));
    ck_assert(is_event(line_count - 1, "end"));
    ck_assert_uint_eq(count_event("run"), 1);
    ck_assert_uint_eq(count_event("end"), 1);
    ck_assert_uint_eq(count_event("epoch"), 2);
    ck_assert_uint_eq(count_event("step"), run.steps);
    ck_assert_uint_eq(count_event("oom"), run.ooms);
    ck_assert_uint_eq(count_event("clear"), run.clears);
    ck_assert_uint_ge(count_event("plan"), 2);
    for (size_t i = 0; i < line_count; i++)
        if (is_event(i, "step")) {
            ck_assert_uint_eq(integer(lines[i], "step"), ++steps);
            ck_assert_uint_eq(integer(lines[i], "epoch"), steps <= 8 ? 1 : 2);
            samples += integer(lines[i], "samples");
        }
    end = line_of("end", 0);
    ck_assert_uint_eq(integer(end, "steps"), run.steps);
    ck_assert_uint_eq(integer(end, "samples_trained"), samples);
    ck_assert_uint_eq(integer(end, "samples_trained"), run.samples_trained);
    ck_assert_uint_eq(integer(end, "samples_discarded"), run.samples_discarded);
    ck_assert_uint_eq(integer(end, "ooms"), run.ooms);
    ck_assert_uint_eq(integer(end, "peak_bytes"), run.peak_bytes);
    ck_assert_double_eq(number(end, "seconds"), run.seconds);
    ck_assert_str_eq(string(end, "state_sha256"), run.state_sha256);
    ck_assert(json_is_true(json_object_get(line_of("step", 3), "skipped")));
}

TEST("content", first_line) {
    const json_t *line;

    trace(NULL);
    line = line_of("run", 0);
    ck_assert_str_eq(string(line, "version"), MT_VERSION_STRING);
    ck_assert_str_eq(string(line, "torch"), "1.2.3");
    ck_assert_str_eq(string(line, "device"), "fake:0");
    ck_assert_uint_eq(integer(line, "budget_bytes"), options.budget_bytes);
    ck_assert_uint_eq(integer(line, "batch"), 32);
    ck_assert_uint_eq(integer(line, "seed"), 1);
}

/* A seed above what a signed integer holds: many parsers refuse the whole line. */
TEST("content", large_seed) {
    own.seed = UINT64_MAX;
    trace(NULL);
    ck_assert_uint_eq(count_event("run"), 1);
    ck_contains(texts[0], "18446744073709551615");
}

/* ---- replay --------------------------------------------------------------------------------- */

/* Chunks and samples come from the step lines; the backend has no limit this time. */
static void replay_step(const json_t *line) {
    const json_t *list = json_object_get(line, "chunks");
    size_t count = json_array_size(list), chunks[2000];

    for (size_t i = 0; i < count; i++)
        chunks[i] = (size_t)json_integer_value(json_array_get(list, i));
    step_in(chunks, count, integer(line, "samples"), integer(line, "step"));
}

TEST("content", replay) {
    mt_run_report again = MT_RUN_REPORT_INIT;

    eventful_run();
    ck_assert_uint_gt(run.ooms, 5);
    eventful_options();
    options.budget_bytes = 0;
    trainer = trainer_of(&options, NULL);
    for (size_t i = 0; i < line_count; i++)
        if (is_event(i, "step")) replay_step(lines[i]);
    ck_ok(mt_trainer_finish(trainer, &again));
    ck_assert_str_eq(again.state_sha256, run.state_sha256);
    ck_assert_str_eq(again.state_sha256, string(line_of("end", 0), "state_sha256"));
}

/* ---- awkward values -------------------------------------------------------------------------- */

static const char *const awkward_metrics[] = {"top \"1\"", "back\\slash", "two\nlines", NULL};

/* What a device could be called, and is not. */
#define AWKWARD "cu\"da\\:0\n\t\x01 \xc3\xa9"

static mt_status describe_awkward(void *self, mt_backend_info *out) {
    (void)self;
    out->device = AWKWARD;
    out->version = NULL;
    out->metric_count = LENGTH(awkward_metrics);
    out->metric_names = awkward_metrics;
    return MT_OK;
}

TEST("awkward", strings_are_escaped) {
    const json_t *metrics;
    mt_backend seam = new_seam();

    seam.describe = describe_awkward;
    trace(&seam);
    ck_assert_str_eq(string(line_of("run", 0), "device"), AWKWARD);
    step(trainer, 8, 1);
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    metrics = json_object_get(line_of("epoch", 0), "metrics");
    ck_assert_uint_eq(json_object_size(metrics), LENGTH(awkward_metrics));
    for (int i = 0; i < LENGTH(awkward_metrics); i++)
        ck_assert(
            json_is_number(json_object_get(metrics, awkward_metrics[i] ? awkward_metrics[i] : "")));
}

static mt_backend inner;
static double bad_value;

static mt_status accumulate_bad(void *self, size_t first, size_t count, double weight,
                                mt_chunk_result *out) {
    mt_status status = inner.accumulate(self, first, count, weight, out);

    out->loss_sum = bad_value;
    out->metric_sums[0] = bad_value;
    return status;
}

/* JSON has no number for them. */
TEST_LOOP("awkward", not_finite, 3) {
    const double values[] = {NAN, INFINITY, -INFINITY};
    mt_backend seam = inner = new_seam();

    bad_value = values[_i];
    seam.accumulate = accumulate_bad;
    trace(&seam);
    step(trainer, 8, 1);
    ck_ok(mt_trainer_end_epoch(trainer, NULL));
    ck_assert(json_is_null(json_object_get(line_of("step", 0), "loss")));
    ck_assert(json_is_null(json_object_get(line_of("epoch", 0), "loss")));
}

/* Numbers are read back to the bit, whatever the locale calls a decimal point. */
TEST_LOOP("awkward", numbers_to_the_bit, 3) {
    static const char *const locales[] = {"C", LOCALE_COMMA, LOCALE_ARABIC};
    mt_step_report report;
    double loss;

    if (_i && !locales_make("trace: numbers_to_the_bit")) return;
    ck_assert_ptr_nonnull(setlocale(LC_NUMERIC, locales[_i]));
    options.seconds = fake_seconds;
    trace(NULL);
    report = step(trainer, 8, 1);
    setlocale(LC_NUMERIC, "C");
    locales_remove();
    loss = number(line_of("step", 0), "loss");
    ck_assert(loss == report.loss);
    ck_assert(number(line_of("step", 0), "seconds") == report.seconds);
}

/* Lists of a thousand chunks, chosen and given. */
TEST("awkward", long_lists) {
    size_t ones[1000], plans = 0;

    policy.micro_batch = 1;
    own.policy = &policy;
    trace(NULL);
    for (int i = 0; i < 1000; i++) ones[i] = 1;
    step(trainer, 1000, 1);
    step_in(ones, 1000, 1000, 1);
    for (size_t i = 0; i < line_count; i++) {
        const json_t *list = json_object_get(lines[i], "chunks");

        if (list == NULL) continue;
        ck_assert(is_list_of_chunks(list));
        ck_assert_uint_eq(json_array_size(list), 1000);
        plans += (size_t)is_event(i, "plan");
    }
    ck_assert_uint_eq(plans, 2);
    ck_assert_uint_eq(count_event("step"), 2);
}

/* A step that never went through has no step line, but its ooms are told. */
TEST("content", failed_step) {
    options.budget_bytes = options.resident_bytes + 100;
    trace(NULL);
    step_fails(trainer, 8, 1, MT_EDEVMEM);
    ck_assert_uint_eq(count_event("step"), 0);
    ck_assert_uint_ge(count_event("oom"), 1);
    ck_assert_uint_gt(integer(line_of("oom", 0), "requested_bytes"), 100);
    ck_assert_uint_eq(integer(line_of("oom", 0), "step"), 1);
    ck_ok(mt_trainer_finish(trainer, NULL));
    ck_assert_uint_eq(integer(line_of("end", 0), "steps"), 0);
}

static int is_planned(const json_t *plan, uint64_t chunk) {
    const json_t *chunks = json_object_get(plan, "chunks");

    for (size_t i = 0; i < json_array_size(chunks); i++)
        if ((uint64_t)json_integer_value(json_array_get(chunks, i)) == chunk) return 1;
    return 0;
}

/* What ran out of memory is a chunk of the plan before it, though that was still open: each request fails in turn. */
TEST("content", ooms_are_of_plans) {
    size_t ooms = 0;

    options = fits(13);
    options.seconds = fake_seconds;
    for (uint64_t n = 1;; n++) {
        const json_t *plan = NULL;
        size_t before = ooms;

        trace(NULL);
        fake_fail_kind(&fake, FAKE_ALLOCATION, n, MT_EDEVMEM);
        step(trainer, 32, 1);
        for (size_t i = 0; i < line_count; i++) {
            if (is_event(i, "plan")) plan = lines[i];
            if (!is_event(i, "oom")) continue;
            ck_assert_msg(is_planned(plan, integer(lines[i], "chunk")), "request %llu: %s",
                          (unsigned long long)n, texts[i]);
            ooms++;
        }
        end();
        if (ooms == before) break;
    }
    ck_assert_uint_gt(ooms, 10);
}

int main(void) {
    suite_each_test(begin, end);
    return suite_run_named("trace");
}
