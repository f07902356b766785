/*
 * check_fit.c - the loop on the fake backend: orders, what is called when, rates, evaluations, files, what ends a run,
 * runs that go on, and what is refused.
 */
#include "counting_allocator.h"
#include "suite.h"
#include "trainer_state.h"
#include "trainer_fixture.h"

#include <memtrain/fit.h>

#include <math.h>
#include <stddef.h>
#include <stdarg.h>

/* ---- a run that writes down what happens ---------------------------------------------------------- */

enum { FILES = 3, TEXT = 1 << 16, RATES = 256 };

/* A file of the fake's whole state. */
static struct {
    const char *path;
    fake_state state;
    char position[MT_FIT_POSITION_MAX];
} files[FILES];

static struct {
    char text[TEXT]; /* calls, in their order */
    size_t length;
    double rates[RATES];
    size_t rate_count, loads, releases, stop_after, asked;
    const char *fails; /* the callback that fails ... */
    size_t fails_at;   /* ... the n-th time ... */
    const char *words; /* ... with these; NULL: none */
    mt_epoch_report epochs[16];
    mt_fit_report runs[16];
    size_t epoch_count;
    double clock;
} seen;

static int quiet; /* 1: loads are not in the text */

static void note(const char *format, ...) MT_PRINTF(1, 2);

static void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    seen.length +=
        (size_t)vsnprintf(seen.text + seen.length, TEXT - seen.length, format, arguments);
    va_end(arguments);
    ck_assert_uint_lt(seen.length, TEXT);
}

static mt_status answer(const char *name) {
    if (!seen.fails || strcmp(seen.fails, name) != 0 || --seen.fails_at) return MT_OK;
    return seen.words ? mt_set_error(MT_EIO, "%s", seen.words) : MT_EIO;
}

/* What the fake trains on is a function of the batch's id and of places in it: the numbers in their order. */
static mt_status load(void *self, const size_t *index, size_t count, mt_batch *out) {
    ck_assert_uint_eq(out->count, count);
    ck_assert_uint_eq(out->size, sizeof *out);
    if (!quiet) note("%s", (const char *)self);
    for (size_t i = 0; i < count; i++) {
        if (!quiet) note("%s%zu", i ? "," : "", index[i]);
        out->id = (out->id ^ (index[i] + 1)) * UINT64_C(0x100000001b3) % 0x7fffffff;
    }
    if (!quiet) note(" ");
    mt_status status = answer("load");
    seen.loads += status == MT_OK;
    return status;
}

static void release(void *self, mt_batch *batch) {
    (void)self;
    ck_assert_uint_gt(batch->count, 0);
    seen.releases++;
}

static mt_status on_begin(void *user, const mt_fit_report *run) {
    ck_assert_ptr_eq(user, &seen);
    note("begin%llu ", (unsigned long long)run->epoch);
    return answer("begin");
}

static mt_status on_step(void *user, const mt_fit_report *run, const mt_step_report *report) {
    ck_assert_ptr_eq(user, &seen);
    ck_assert_uint_eq(run->size, sizeof *run);
    ck_assert_uint_gt(report->samples, 0);
    ck_assert_int_eq(run->end, MT_FIT_RUNNING);
    return answer("step");
}

static mt_status on_epoch(void *user, const mt_fit_report *run, const mt_epoch_report *report) {
    ck_assert_ptr_eq(user, &seen);
    ck_assert_uint_eq(run->epoch, report->epoch);
    ck_assert_uint_eq(run->epochs_done, report->epoch);
    note("epoch%llu%s%s ", (unsigned long long)run->epoch, run->evaluated ? "+" : "",
         run->is_best ? "!" : "");
    seen.runs[seen.epoch_count % 16] = *run;
    seen.epochs[seen.epoch_count++ % 16] = *report;
    return answer("epoch");
}

static int on_stop(void *user) {
    ck_assert_ptr_eq(user, &seen);
    return ++seen.asked > seen.stop_after;
}

static double now(void *user) {
    ck_assert_ptr_eq(user, &seen);
    return seen.clock += 0.5;
}

static int file_of(const char *path) {
    for (int i = 0; i < FILES; i++)
        if (!files[i].path || strcmp(files[i].path, path) == 0) return i;
    ck_abort_msg("too many files");
}

static mt_status save(void *state, const char *path, const char *position) {
    int i = file_of(path);
    ck_assert_ptr_eq(state, &fake);
    note("save(%s) ", path);
    mt_status status = answer("save");
    if (status != MT_OK) return status;
    files[i].path = path;
    files[i].state = fake.state;
    snprintf(files[i].position, sizeof files[i].position, "%s", position);
    return MT_OK;
}

static mt_status position(void *state, const char *path, char *text, size_t capacity) {
    int i = file_of(path);
    ck_assert_ptr_eq(state, &fake);
    mt_status status = answer("position");
    if (status != MT_OK) return status;
    if (!files[i].path) return mt_set_error(MT_EIO, "there is no '%s'", path);
    snprintf(text, capacity, "%s", files[i].position);
    return MT_OK;
}

static mt_status reload(void *state, const char *path) {
    ck_assert_ptr_eq(state, &fake);
    note("load(%s) ", path);
    mt_status status = answer("reload");
    if (status == MT_OK) fake.state = files[file_of(path)].state;
    return status;
}

static mt_status set_lr(void *state, double rate) {
    ck_assert_ptr_eq(state, &fake);
    ck_assert_uint_lt(seen.rate_count, RATES);
    seen.rates[seen.rate_count++] = rate;
    return answer("set_lr");
}

/* ---- what the tests begin with ------------------------------------------------------------------------ */

static mt_source source_of(size_t samples, const char *mark) {
    mt_source source = MT_SOURCE_INIT;
    source.self = (void *)(uintptr_t)mark;
    source.samples = samples;
    source.load = load;
    source.release = release;
    return source;
}

static mt_fit_options options_of(size_t batch, uint64_t epochs) {
    mt_fit_options options = MT_FIT_OPTIONS_INIT;
    options.batch = batch;
    options.epochs = epochs;
    return options;
}

static mt_fit_callbacks all_callbacks(void) {
    mt_fit_callbacks callbacks = MT_FIT_CALLBACKS_INIT;
    callbacks.user = &seen;
    callbacks.begin = on_begin;
    callbacks.step = on_step;
    callbacks.epoch = on_epoch;
    callbacks.state = &fake;
    callbacks.save = save;
    callbacks.position = position;
    callbacks.load = reload;
    callbacks.set_lr = set_lr;
    return callbacks;
}

static void forget(void) {
    memset(&seen, 0, sizeof seen);
    seen.stop_after = SIZE_MAX;
}

/* Chunks of two samples: the same ones whatever is known of memory. */
static mt_trainer *new_trainer(void) {
    fake_options options = fits(14);
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    policy.micro_batch = 2;
    return trainer_with(&options, &policy);
}

static void setup(void) {
    memset(files, 0, sizeof files);
    forget();
    quiet = 0;
}

/* A run that goes through, on a new trainer. */
static mt_fit_report run(const mt_source *source, const mt_fit_options *options) {
    const mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = new_trainer();
    ck_ok(mt_fit(trainer, source, options, &callbacks, &report));
    ck_assert_uint_eq(seen.loads, seen.releases);
    done(trainer);
    return report;
}

/* ---- orders --------------------------------------------------------------------------------------------- */

/* By a program in Python, from the words of the header. */
static const struct {
    uint64_t seed, epoch;
    size_t samples, order[10];
} orders[] = {
    {0, 1, 10, {7, 8, 9, 5, 4, 3, 1, 6, 2, 0}},
    {0, 2, 10, {4, 1, 8, 0, 3, 6, 5, 2, 9, 7}},
    {1, 1, 10, {3, 8, 0, 1, 7, 2, 4, 9, 5, 6}},
    {UINT64_MAX, 3, 7, {0, 4, 2, 1, 5, 3, 6}},
    {0, UINT64_MAX, 5, {3, 2, 4, 0, 1}},
    {42, 1, 1, {0}},
    {0, 1, 0, {0}},
};

START_TEST(an_order) {
    size_t out[10];
    ck_ok(mt_fit_order(orders[_i].seed, orders[_i].epoch, orders[_i].samples, out));
    for (size_t i = 0; i < orders[_i].samples; i++) ck_assert_uint_eq(out[i], orders[_i].order[i]);
}
END_TEST

START_TEST(a_long_order) {
    enum { SAMPLES = 100000 };
    static size_t out[SAMPLES];
    static char is_there[SAMPLES];
    uint64_t sum = 0;

    ck_ok(mt_fit_order(7, 5, SAMPLES, out));
    for (size_t i = 0; i < SAMPLES; i++) {
        ck_assert(!is_there[out[i]]);
        is_there[out[i]] = 1;
        sum += i * out[i];
    }
    ck_assert_uint_eq(out[0], 47860);
    ck_assert(sum == UINT64_C(249588731256305));
    ck_status(mt_fit_order(7, 5, 1, NULL), MT_EINVAL);
    ck_contains(mt_last_error(), "out is NULL");
}
END_TEST

/* ---- what is called, in which order ------------------------------------------------------------------ */

static const struct {
    size_t samples, batch;
    uint64_t epochs, every;
    int shuffle, drop_last;
    size_t validation;
    const char *calls;
    uint64_t steps;
} flows[] = {
    {6, 2, 1, 1, 0, 0, 0, "begin1 t0,1 t2,3 t4,5 epoch1 ", 3},
    {5, 2, 1, 1, 0, 0, 0, "begin1 t0,1 t2,3 t4 epoch1 ", 3},
    {5, 2, 2, 1, 0, 1, 0, "begin1 t0,1 t2,3 epoch1 begin2 t0,1 t2,3 epoch2 ", 4},
    {3, 8, 1, 1, 0, 0, 0, "begin1 t0,1,2 epoch1 ", 1},
    {1, 1, 1, 1, 1, 1, 0, "begin1 t0 epoch1 ", 1},
    {10, 4, 2, 1, 1, 0, 0,
     "begin1 t3,8,0,1 t7,2,4,9 t5,6 epoch1 begin2 t9,6,0,5 t3,4,2,1 t8,7 epoch2 ", 6},
    {2, 2, 1, 1, 0, 0, 3, "begin1 t0,1 v0,1 v2 epoch1+! ", 1},
    {1, 4, 1, 1, 0, 0, 6, "begin1 t0 v0,1,2,3 v4,5 epoch1+! ", 1}, /* more than the source has */
    {2, 2, 5, 2, 0, 1, 1,
     "begin1 t0,1 epoch1 begin2 t0,1 v0 epoch2+! begin3 t0,1 epoch3 begin4 t0,1 v0 epoch4+! "
     "begin5 t0,1 v0 epoch5+! ",
     5},
};

START_TEST(a_flow) {
    mt_source source = source_of(flows[_i].samples, "t");
    mt_source validation = source_of(flows[_i].validation, "v");
    mt_fit_options options = options_of(flows[_i].batch, flows[_i].epochs);
    options.seed = 1;
    options.shuffle = flows[_i].shuffle;
    options.drop_last = flows[_i].drop_last;
    options.evaluate_every = flows[_i].every;
    if (flows[_i].validation) options.validation = &validation;
    mt_fit_report report = run(&source, &options);
    ck_assert_str_eq(seen.text, flows[_i].calls);
    ck_assert_uint_eq(report.steps, flows[_i].steps);
    ck_assert_uint_eq(report.total_steps, flows[_i].steps);
    ck_assert_uint_eq(report.epochs_done, flows[_i].epochs);
    ck_assert_uint_eq(report.epoch, flows[_i].epochs);
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    ck_assert(isnan(report.rate));
    ck_assert_uint_eq(fake.step, flows[_i].steps);
    for (size_t i = 0; flows[_i].validation && i < seen.epoch_count; i++)
        ck_assert_uint_eq(seen.epochs[i].eval_samples,
                          seen.runs[i].evaluated ? flows[_i].validation : 0);
}
END_TEST

/* Nothing but a trainer and a source. */
START_TEST(with_defaults) {
    mt_source source = source_of(70, "t");
    mt_trainer *trainer = new_trainer();
    size_t order[70];
    char first[16];

    source.release = NULL;
    ck_ok(mt_fit(trainer, &source, NULL, NULL, NULL));
    ck_assert_uint_eq(fake.step, 3); /* of 32, 32 and 6 samples */
    ck_ok(mt_fit_order(0, 1, 70, order));
    snprintf(first, sizeof first, "t%zu,%zu,", order[0], order[1]);
    ck_assert(strncmp(seen.text, first, strlen(first)) == 0);
    done(trainer);
}
END_TEST

START_TEST(clocks) {
    mt_source source = source_of(4, "t");
    mt_fit_options options = options_of(2, 2);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    seen.clock = 1000;
    callbacks.now = now;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert(report.seconds == seen.clock - 1000.5);
    ck_assert(report.seconds > 1);
    done(trainer);
}
END_TEST

/* ---- files within epochs --------------------------------------------------------------------------------- */

/* 3 batches an epoch, 2 epochs; a clock that goes on by a second with each batch. */
static const struct {
    uint64_t every;
    double seconds;
    const char *text;
} saves[] = {
    {2, 0,
     "begin1 t0,1 t2,3 save(last) t4 save(last) epoch1 "
     "begin2 t0,1 save(last) t2,3 t4 save(last) epoch2 "},
    {3, 0,
     "begin1 t0,1 t2,3 t4 save(last) epoch1 "
     "begin2 t0,1 t2,3 t4 save(last) epoch2 "},
    {100, 0, "begin1 t0,1 t2,3 t4 save(last) epoch1 begin2 t0,1 t2,3 t4 save(last) epoch2 "},
    {0, 100, "begin1 t0,1 t2,3 t4 save(last) epoch1 begin2 t0,1 t2,3 t4 save(last) epoch2 "},
    {0, 2,
     "begin1 t0,1 t2,3 save(last) t4 save(last) epoch1 "
     "begin2 t0,1 t2,3 save(last) t4 save(last) epoch2 "},
    {0, 0.5,
     "begin1 t0,1 save(last) t2,3 save(last) t4 save(last) epoch1 "
     "begin2 t0,1 save(last) t2,3 save(last) t4 save(last) epoch2 "},
    {1, 2,
     "begin1 t0,1 save(last) t2,3 save(last) t4 save(last) epoch1 "
     "begin2 t0,1 save(last) t2,3 save(last) t4 save(last) epoch2 "},
};

static double batches(void *user) {
    ck_assert_ptr_eq(user, &seen);
    return (double)seen.loads;
}

START_TEST(saved_within_epochs) {
    mt_source source = source_of(5, "t");
    mt_fit_options options = options_of(2, 2);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_trainer *trainer = new_trainer();

    options.shuffle = 0;
    options.last = "last";
    options.save_every = saves[_i].every;
    options.save_seconds = saves[_i].seconds;
    callbacks.now = batches;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, NULL));
    ck_assert_str_eq(seen.text, saves[_i].text);
    done(trainer);
}
END_TEST

/* The run is lost at any step; the next one goes on from the file, and ends as one that was never lost. */
START_TEST(on_from_within_an_epoch) {
    mt_source source = source_of(7, "t"), validation = source_of(3, "v");
    mt_fit_options options = options_of(2, 2);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;

    options.validation = &validation;
    options.last = "last";
    options.save_every = 1;
    mt_trainer *trainer = new_trainer();
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(report.steps, 8);
    const uint64_t hash = fake_hash(&fake);
    done(trainer);
    for (size_t lost = 2; lost <= 8; lost++) {
        forget();
        memset(files, 0, sizeof files);
        seen.fails = "step";
        seen.fails_at = lost;
        trainer = new_trainer();
        ck_status(mt_fit(trainer, &source, &options, &callbacks, NULL), MT_EIO);
        done(trainer);
        forget();
        options.resume = "last";
        trainer = new_trainer();
        ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
        options.resume = NULL;
        ck_assert_uint_eq(report.steps, 8);
        ck_assert_uint_eq(seen.loads, 8 - (lost - 1) + 2 * (lost > 4 ? 1 : 2));
        ck_assert(fake_hash(&fake) == hash);
        done(trainer);
    }
}
END_TEST

/* The file has what the callback did: a step that it refuses is in no file. */
static mt_status on_step_note(void *user, const mt_fit_report *so_far,
                              const mt_step_report *report) {
    (void)user, (void)so_far, (void)report;
    note("step ");
    return MT_OK;
}

START_TEST(saved_after_the_callback) {
    mt_source source = source_of(4, "t");
    mt_fit_options options = options_of(2, 1);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_trainer *trainer = new_trainer();

    options.shuffle = 0;
    options.last = "last";
    options.save_every = 1;
    callbacks.step = on_step_note;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, NULL));
    ck_assert_str_eq(seen.text, "begin1 t0,1 step save(last) t2,3 step save(last) epoch1 ");
    done(trainer);
}
END_TEST

/* Of several processes one is late: each of them writes its file. */
static double late_others;

static mt_status sum_with_others(void *self, double *values, size_t count) {
    (void)self;
    if (count == 1) values[0] += late_others;
    return count == 1 ? answer("agree") : MT_OK;
}

START_TEST(saved_by_all_processes) {
    mt_source source = source_of(6, "t");
    mt_fit_options options = options_of(2, 1);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_trainer *trainer = new_trainer();

    trainer->backend.agree = sum_with_others;
    options.shuffle = 0;
    options.last = "last";
    options.save_seconds = 1000;
    callbacks.now = batches;
    late_others = _i;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, NULL));
    ck_assert_str_eq(seen.text,
                     _i ? "begin1 t0,1 save(last) t2,3 save(last) t4,5 save(last) epoch1 "
                        : "begin1 t0,1 t2,3 t4,5 save(last) epoch1 ");
    seen.fails = "agree";
    seen.fails_at = 1;
    ck_status(mt_fit(trainer, &source, &options, &callbacks, NULL), MT_EIO);
    done(trainer);
}
END_TEST

/* ---- a number of steps ----------------------------------------------------------------------------------- */

/* 3 batches an epoch, 3 epochs. */
static const struct {
    uint64_t steps;
    const char *text;
    uint64_t epoch, epochs_done;
} bounds[] = {
    {1, "begin1 t0,1 v0 save(last) epoch1+! ", 1, 0},
    {3, "begin1 t0,1 t2,3 t4 v0 save(last) epoch1+! ", 1, 1},
    {4, "begin1 t0,1 t2,3 t4 save(last) epoch1 begin2 t0,1 v0 save(last) epoch2+! ", 2, 1},
    {100,
     "begin1 t0,1 t2,3 t4 save(last) epoch1 begin2 t0,1 t2,3 t4 save(last) epoch2 "
     "begin3 t0,1 t2,3 t4 v0 save(last) epoch3+! ",
     3, 3},
};

static mt_status on_part(void *user, const mt_fit_report *at, const mt_epoch_report *report) {
    (void)user, (void)report;
    note("epoch%llu%s%s ", (unsigned long long)at->epoch, at->evaluated ? "+" : "",
         at->is_best ? "!" : "");
    ck_assert_uint_eq(at->epochs_done, at->epoch - (at->batch < at->batches));
    return MT_OK;
}

START_TEST(a_number_of_steps) {
    mt_source source = source_of(5, "t"), validation = source_of(1, "v");
    mt_fit_options options = options_of(2, 3);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    options.shuffle = 0;
    options.validation = &validation;
    options.evaluate_every = 3;
    options.last = "last";
    options.steps = bounds[_i].steps;
    callbacks.epoch = on_part;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_str_eq(seen.text, bounds[_i].text);
    ck_assert_uint_eq(report.steps, bounds[_i].steps < 9 ? bounds[_i].steps : 9);
    ck_assert_uint_eq(report.epoch, bounds[_i].epoch);
    ck_assert_uint_eq(report.epochs_done, bounds[_i].epochs_done);
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    /* As many again: nothing is left, and the file is there all the same. */
    forget();
    options.resume = "last";
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_str_eq(seen.text, "load(last) save(last) ");
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    done(trainer);
}
END_TEST

/* In parts of so many steps as in one. */
START_TEST(on_from_a_number_of_steps) {
    mt_source source = source_of(5, "t");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = options_of(2, 3);
    mt_fit_callbacks callbacks = all_callbacks();

    schedule.kind = MT_SCHEDULE_COSINE;
    options.schedule = &schedule;
    callbacks.epoch = on_part;
    run(&source, &options);
    const uint64_t hash = fake_hash(&fake);
    options.last = "last";
    for (uint64_t steps = (uint64_t)_i + 1; steps < 9 + (uint64_t)_i + 1;
         steps += (uint64_t)_i + 1) {
        mt_trainer *trainer = new_trainer();
        options.steps = steps;
        ck_ok(mt_fit(trainer, &source, &options, &callbacks, NULL));
        options.resume = "last";
        ck_assert(fake_hash(&fake) == hash || steps < 9);
        done(trainer);
    }
}
END_TEST

/* A stop once the steps are made is one before their evaluation. */
START_TEST(stopped_at_its_last_step) {
    mt_source source = source_of(5, "t"), validation = source_of(1, "v");
    mt_fit_options options = options_of(2, 1);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    options.shuffle = 0;
    options.validation = &validation;
    options.last = "last";
    options.steps = 2;
    callbacks.stop = on_stop;
    seen.stop_after = 2;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_str_eq(seen.text, "begin1 t0,1 t2,3 save(last) ");
    ck_assert_int_eq(report.end, MT_FIT_STOPPED);
    done(trainer);
}
END_TEST

/* No epoch: a file of what there is. */
START_TEST(no_epochs) {
    mt_source source = source_of(5, "t");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = options_of(2, 0);

    schedule.kind = MT_SCHEDULE_COSINE;
    options.schedule = &schedule;
    options.last = "last";
    mt_fit_report report = run(&source, &options);
    ck_assert_str_eq(seen.text, "save(last) ");
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    ck_assert_uint_eq(report.epoch, 0);
}
END_TEST

/* ---- rates ---------------------------------------------------------------------------------------------- */

START_TEST(some_rates) {
    static const struct {
        mt_schedule_kind kind;
        uint64_t steps, as;
    } rows[] = {{MT_SCHEDULE_CONSTANT, 0, 0},
                {MT_SCHEDULE_COSINE, 0, 6},
                {MT_SCHEDULE_LINEAR, 0, 6},
                {MT_SCHEDULE_COSINE, 4, 4},
                {MT_SCHEDULE_LINEAR, 100, 100}};
    mt_source source = source_of(5, "t");
    mt_fit_options options = options_of(2, 2);
    mt_schedule schedule = MT_SCHEDULE_INIT;

    schedule.kind = rows[_i].kind;
    schedule.steps = rows[_i].steps;
    options.schedule = &schedule;
    mt_fit_report report = run(&source, &options);
    ck_assert_uint_eq(seen.rate_count, 6);
    schedule.steps = rows[_i].as;
    for (size_t i = 0; i < 6; i++) ck_assert(seen.rates[i] == mt_schedule_rate(&schedule, i));
    ck_assert(report.rate == seen.rates[5]);
}
END_TEST

/* ---- the best, and patience ---------------------------------------------------------------------------- */

/* Losses of an evaluation after another; metric 0 is minus that. */
static const double *script;

static mt_status scripted(void *self, const mt_batch *batch, size_t first, size_t count,
                          mt_chunk_result *out) {
    (void)self, (void)batch;
    out->loss_sum = *script * (double)count;
    out->metric_sums[0] = -*script * (double)count;
    out->units = (double)count;
    out->seconds = 0;
    if (first + count == batch->count) script++;
    return MT_OK;
}

static const struct {
    int metric, maximise;
    uint64_t patience;
    double losses[8];
    uint64_t epochs_done, best_epoch, worse;
    mt_fit_end end;
    size_t saves; /* of the best */
} ends[] = {
    {MT_FIT_LOSS, 0, 0, {5, 4, 3, 2, 1, 9}, 6, 5, 1, MT_FIT_DONE, 5},
    {MT_FIT_LOSS, 0, 2, {5, 4, 6, 7, 1, 1}, 4, 2, 2, MT_FIT_PATIENCE, 2},
    {MT_FIT_LOSS, 0, 2, {5, 4, 6, 3, 4, 2}, 6, 6, 0, MT_FIT_DONE, 4},
    {MT_FIT_LOSS,
     0,
     1,
     {5, 5, 1, 1, 1, 1},
     2,
     1,
     1,
     MT_FIT_PATIENCE,
     1}, /* as good is not better */
    {MT_FIT_LOSS, 0, 2, {NAN, NAN, 1, 1, 1, 1}, 2, 0, 2, MT_FIT_PATIENCE, 0},
    {MT_FIT_LOSS, 0, 3, {NAN, 2, INFINITY, -INFINITY, 1, 2}, 6, 5, 1, MT_FIT_DONE, 2},
    {MT_FIT_LOSS, 1, 2, {5, 4, 3, 2, 1, 9}, 3, 1, 2, MT_FIT_PATIENCE, 1},
    {0, 1, 3, {5, 4, 6, 7, 9, 1}, 5, 2, 3, MT_FIT_PATIENCE, 2},
    {0, 0, 6, {5, 4, 6, 7, 9, 1}, 6, 5, 1, MT_FIT_DONE, 4},
    {MT_FIT_LOSS, 0, 1, {1, 0, 1, 1, 1, 1}, 3, 2, 1, MT_FIT_PATIENCE, 2},
    /* What is not a finite number is never the best; a number below 0 may be. */
    {MT_FIT_LOSS, 1, 0, {NAN, -3, INFINITY, -INFINITY, -2, -2}, 6, 5, 1, MT_FIT_DONE, 2},
    {MT_FIT_LOSS, 1, 0, {0, NAN, INFINITY, 0, 0, 0}, 6, 1, 5, MT_FIT_DONE, 1},
    /* The last epoch is over, whatever patience says. */
    {MT_FIT_LOSS, 0, 5, {1, 2, 2, 2, 2, 2}, 6, 1, 5, MT_FIT_DONE, 1},
};

static size_t count_of(const char *word) {
    size_t count = 0;
    for (const char *at = seen.text; (at = strstr(at, word)) != NULL; at++) count++;
    return count;
}

static mt_trainer *scripted_trainer(void) {
    fake_options options = fits(14);
    mt_backend seam;
    mt_trainer *trainer;

    fake_init(&fake, &options);
    seam = fake_seam(&fake);
    seam.evaluate = scripted;
    ck_ok(mt_trainer_new(&seam, NULL, &trainer));
    return trainer;
}

START_TEST(an_end) {
    mt_source source = source_of(2, "t"), validation = source_of(2, "v");
    mt_fit_options options = options_of(2, 6);
    const mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = scripted_trainer();
    double best = ends[_i].best_epoch ? ends[_i].losses[ends[_i].best_epoch - 1] : NAN;

    script = ends[_i].losses;
    options.validation = &validation;
    options.metric = ends[_i].metric;
    options.maximise = ends[_i].maximise;
    options.patience = ends[_i].patience;
    options.best = "best";
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(report.epochs_done, ends[_i].epochs_done);
    ck_assert_uint_eq(report.best_epoch, ends[_i].best_epoch);
    ck_assert_uint_eq(report.worse, ends[_i].worse);
    ck_assert_int_eq(report.end, ends[_i].end);
    ck_assert_uint_eq(count_of("save(best)"), ends[_i].saves);
    ck_assert_uint_eq(count_of("!"), ends[_i].saves);
    if (ends[_i].metric >= 0) best = -best;
    ck_assert(isnan(best) ? isnan(report.best) : report.best == best);
    done(trainer);
}
END_TEST

/* The best is kept over a resume, and so is how long nothing was better. */
START_TEST(patience_goes_on) {
    static const double losses[] = {3, 2, 4, 5, 1};
    mt_source source = source_of(2, "t"), validation = source_of(2, "v");
    mt_fit_options options = options_of(2, 3);
    const mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = scripted_trainer();

    script = losses;
    options.validation = &validation;
    options.patience = 2;
    options.last = "last";
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    mt_trainer_free(trainer);
    trainer = scripted_trainer();
    options.epochs = 9;
    options.resume = "last";
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_int_eq(report.end, MT_FIT_PATIENCE);
    ck_assert_uint_eq(report.epochs_done, 4);
    ck_assert_uint_eq(report.best_epoch, 2);
    ck_assert(report.best == 2);
    /* A run that is over stays over, and trains nothing. */
    fake_log_clear(&fake);
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_int_eq(report.end, MT_FIT_PATIENCE);
    ck_assert_uint_eq(report.epoch, 4);
    ck_assert_uint_eq(count_kind(FAKE_BEGIN), 0);
    done(trainer);
}
END_TEST

/* ---- an evaluation outside of epochs -------------------------------------------------------------------- */

static mt_trainer *trained; /* of callbacks that evaluate */

/* Of two batches, of 3 and 1 samples: their units, losses and metrics. */
static struct { double units, loss, metrics[2]; } two[2];

static mt_status evaluated(void *self, const mt_batch *batch, size_t first, size_t count,
                           mt_chunk_result *out) {
    const int i = batch->count == 1;
    (void)self, (void)count;
    if (first > 0) return MT_OK; /* all is in the first chunk */
    out->units = two[i].units;
    out->loss_sum = two[i].loss;
    for (int m = 0; m < 2; m++) out->metric_sums[m] = two[i].metrics[m];
    return MT_OK;
}

static const struct {
    int over[2], is_told;
    double union_of_first;
    double metrics[2];
} overs[] = {
    {{MT_OVER_SAMPLES, MT_OVER_SAMPLES}, 1, 12, {1.25 / 4, 5}},
    {{MT_OVER_SAMPLES, MT_OVER_SAMPLES}, 0, 12, {1.25 / 4, 5}},
    {{MT_OVER_UNITS, MT_OVER_SAMPLES}, 1, 12, {1.25 / 12, 5}},
    {{1, MT_OVER_SAMPLES}, 1, 12, {1.25 / 20, 5}}, /* IoU: intersections over unions */
    {{1, MT_OVER_UNITS}, 1, 12, {1.25 / 20, 20.0 / 12}},
    {{1, MT_OVER_SAMPLES}, 1, 0, {1.25 / 8, 2}}, /* a batch without a union adds nothing to it */
    {{1, MT_OVER_SAMPLES}, 1, -8, {NAN, 0}},     /* none at all */
    {{1, 0}, 1, 12, {1.25 / 20, 16}},            /* over each other: senseless, and an end */
};

static mt_trainer *evaluating_trainer(const int *over) {
    mt_trainer *trainer = scripted_trainer();
    trainer->backend.evaluate = evaluated;
    trainer->info.metric_over = over;
    return trainer;
}

START_TEST(means_of_a_source) {
    mt_source source = source_of(4, "v");
    mt_fit_options options = options_of(3, 1);
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_trainer *trainer = evaluating_trainer(overs[_i].is_told ? overs[_i].over : NULL);

    two[0].units = 2, two[0].loss = 8, two[0].metrics[0] = 0.75;
    two[0].metrics[1] = overs[_i].union_of_first;
    two[1].units = 10, two[1].loss = 20, two[1].metrics[0] = 0.5, two[1].metrics[1] = 8;
    for (int twice = 0; twice < 2; twice++) {
        forget();
        ck_ok(mt_fit_evaluate(trainer, &source, &options, NULL, &report));
        ck_assert_str_eq(seen.text, "v0,1,2 v3 ");
        ck_assert_uint_eq(report.samples, 4);
        ck_assert_double_eq_tol(report.loss, 28.0 / 12, 1e-12); /* over units */
        for (int m = 0; m < 2; m++)
            ck_assert(isnan(overs[_i].metrics[m])
                          ? isnan(report.metrics[m])
                          : fabs(report.metrics[m] - overs[_i].metrics[m]) < 1e-12);
    }
    done(trainer);
}
END_TEST

/* In an epoch it is none of the epoch's figures, and may be in a callback. */
static mt_status on_step_test(void *user, const mt_fit_report *so_far,
                              const mt_step_report *report) {
    mt_source source = source_of(5, "w");
    mt_eval_report out = MT_EVAL_REPORT_INIT;
    (void)user, (void)so_far, (void)report;
    ck_ok(mt_fit_evaluate(trained, &source, NULL, NULL, &out));
    ck_assert_uint_eq(out.samples, 5);
    return MT_OK;
}

START_TEST(apart_from_the_epoch) {
    mt_source source = source_of(4, "t"), validation = source_of(6, "v");
    mt_fit_options options = options_of(2, 2);
    mt_fit_callbacks callbacks = all_callbacks();

    trained = new_trainer();
    callbacks.step = on_step_test;
    ck_ok(mt_fit(trained, &source, &options, &callbacks, NULL));
    ck_assert_uint_eq(seen.epochs[1].eval_samples, 0);
    options.validation = &validation;
    ck_ok(mt_fit(trained, &source, &options, &callbacks, NULL));
    ck_assert_uint_eq(seen.epochs[2].eval_samples, 6);
    done(trained);
}
END_TEST

START_TEST(a_stopped_evaluation) {
    mt_source source = source_of(6, "v");
    mt_fit_options options = options_of(2, 1);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    callbacks.stop = on_stop;
    seen.stop_after = 2;
    ck_ok(mt_fit_evaluate(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(report.samples, 4);
    seen.stop_after = 0;
    ck_ok(mt_fit_evaluate(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(report.samples, 0);
    ck_assert_double_nan(report.loss);
    seen.stop_after = SIZE_MAX;
    seen.fails = "load";
    seen.fails_at = 1;
    ck_status(mt_fit_evaluate(trainer, &source, &options, &callbacks, &report), MT_EIO);
    done(trainer);
}
END_TEST

START_TEST(an_evaluation_is_refused) {
    mt_source source = source_of(6, "v");
    mt_fit_options options = options_of(0, 1);
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    ck_status(mt_fit_evaluate(NULL, &source, NULL, NULL, &report), MT_EINVAL);
    ck_status(mt_fit_evaluate(trainer, NULL, NULL, NULL, &report), MT_EINVAL);
    ck_contains(mt_last_error(), "source is NULL");
    ck_status(mt_fit_evaluate(trainer, &source, NULL, NULL, NULL), MT_EINVAL);
    ck_contains(mt_last_error(), "report is NULL");
    ck_status(mt_fit_evaluate(trainer, &source, &options, NULL, &report), MT_EINVAL);
    ck_contains(mt_last_error(), "options->batch is 0; at least 1");
    report.size = 1;
    ck_status(mt_fit_evaluate(trainer, &source, NULL, NULL, &report), MT_EINVAL);
    ck_contains(mt_last_error(), "report->size is not set");
    report.size = offsetof(mt_eval_report, metrics); /* of an earlier version: no more is written */
    report.metrics[0] = 77;
    ck_ok(mt_fit_evaluate(trainer, &source, NULL, NULL, &report));
    ck_assert(report.metrics[0] == 77 && report.samples == 6);
    trainer->backend.evaluate = NULL;
    ck_status(mt_fit_evaluate(trainer, &source, NULL, NULL, &report), MT_ENOTSUP);
    done(trainer);
}
END_TEST

/* ---- stopped, and on ------------------------------------------------------------------------------------ */

static const struct {
    size_t samples, validation;
    int shuffle, drop_last, spread;
    uint64_t every;
} parts[] = {{11, 0, 1, 0, 1, 1}, {11, 5, 1, 1, 0, 1}, {9, 4, 0, 0, 1, 2}, {8, 1, 1, 0, 1, 3}};

/* Loads and epochs without the marks of files and beginnings, so that two halves are one run. */
static void without_files(const char *text, char *out) {
    for (const char *at = text; *at;) {
        size_t length = strcspn(at, " ") + 1;
        int is_told = strncmp(at, "save(", 5) == 0 || strncmp(at, "load(", 5) == 0 ||
                      strncmp(at, "begin", 5) == 0 || *at == 'v';
        if (!is_told) memcpy(out, at, length);
        if (!is_told) out += length;
        at += length;
    }
    *out = 0;
}

static mt_fit_options parts_options(int row, const mt_source *validation,
                                    const mt_schedule *schedule) {
    mt_fit_options options = options_of(4, 3);
    options.seed = 9;
    options.shuffle = parts[row].shuffle;
    options.drop_last = parts[row].drop_last;
    options.evaluate_every = parts[row].every;
    options.schedule = schedule;
    if (parts[row].validation) options.validation = validation;
    return options;
}

/* Stopped the n-th time that it is asked, and on with a new trainer: the same samples, rates, figures and bits. */
START_TEST(stopped_and_on) {
    static char whole[TEXT], both[TEXT], calls[TEXT];
    mt_source source = source_of(parts[_i].samples, "t");
    mt_source validation = source_of(parts[_i].validation, "v");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    double rates[RATES];

    schedule.kind = parts[_i].spread ? MT_SCHEDULE_COSINE : MT_SCHEDULE_STEP;
    schedule.step_every = 3;
    mt_fit_options options = parts_options(_i, &validation, &schedule);
    mt_fit_report first = run(&source, &options);
    const uint64_t hash = fake_hash(&fake);
    without_files(seen.text, whole);
    memcpy(rates, seen.rates, sizeof rates);
    options.last = "last";
    for (size_t n = 0;; n++) {
        mt_fit_callbacks callbacks = all_callbacks();
        mt_fit_report report = MT_FIT_REPORT_INIT;
        mt_trainer *trainer = new_trainer();

        forget();
        seen.stop_after = n;
        callbacks.stop = on_stop;
        options.resume = NULL;
        ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
        done(trainer);
        if (report.end == MT_FIT_DONE) break;
        ck_assert_int_eq(report.end, MT_FIT_STOPPED);
        ck_assert_uint_eq(seen.asked, n + 1); /* not asked again */
        ck_assert_uint_eq(report.steps, fake.step);

        size_t rate_count = seen.rate_count, length = seen.length;
        memcpy(both, seen.text, length + 1);
        double before[RATES];
        memcpy(before, seen.rates, sizeof before);
        forget();
        options.resume = "last";
        mt_fit_report second = run(&source, &options);
        memcpy(both + length, seen.text, seen.length + 1);
        memcpy(before + rate_count, seen.rates, seen.rate_count * sizeof *before);
        without_files(both, calls);
        ck_assert_str_eq(calls, whole);
        ck_assert_uint_eq(rate_count + seen.rate_count, first.total_steps);
        ck_assert(memcmp(before, rates, first.total_steps * sizeof *rates) == 0);
        ck_assert(fake_hash(&fake) == hash);
        ck_assert_uint_eq(second.steps, first.steps);
        ck_assert_uint_eq(second.best_epoch, first.best_epoch);
        ck_assert(memcmp(&second.best, &first.best, sizeof first.best) == 0);
    }
    ck_assert(fake_hash(&fake) == hash);
}
END_TEST

/* The best one's file is that of the end of its epoch. */
START_TEST(on_from_the_best) {
    mt_source source = source_of(8, "t"), validation = source_of(4, "v");
    mt_fit_options options = options_of(4, 4);
    options.validation = &validation;
    options.best = "best";
    mt_fit_report first = run(&source, &options);
    const uint64_t hash = fake_hash(&fake);
    forget();
    options.resume = "best";
    mt_fit_report second = run(&source, &options);
    ck_assert_uint_eq(second.best_epoch, first.best_epoch);
    ck_assert(fake_hash(&fake) == hash);
}
END_TEST

/* The flag of a signal; and an evaluation that was stopped is none of the next one's figures. */
START_TEST(flag) {
    volatile sig_atomic_t stop = 1;
    mt_source source = source_of(4, "t"), validation = source_of(6, "v");
    mt_fit_options options = options_of(2, 1);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    options.validation = &validation;
    options.last = "last";
    options.stop = &stop;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_str_eq(seen.text, "begin1 save(last) ");
    ck_assert_int_eq(report.end, MT_FIT_STOPPED);
    stop = 0;
    callbacks.stop = on_stop;
    seen.stop_after = 5; /* two steps, the evaluation, two of its three batches */
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(report.batch, 2);
    ck_assert_uint_eq(report.epochs_done, 0);
    options.resume = "last";
    seen.stop_after = SIZE_MAX;
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(seen.epochs[0].eval_samples, 6);
    ck_assert_uint_eq(seen.epochs[0].samples, 0); /* those of this call */
    done(trainer);
}
END_TEST

/* A callback may evaluate on its own: that is none of the run's figures. */

static mt_status on_step_evaluate(void *user, const mt_fit_report *so_far,
                                  const mt_step_report *report) {
    (void)user, (void)so_far, (void)report;
    evaluate(trained, 5, 1);
    return MT_OK;
}

START_TEST(evaluations_of_callbacks) {
    mt_source source = source_of(4, "t"), validation = source_of(6, "v");
    mt_fit_options options = options_of(2, 2);
    mt_fit_callbacks callbacks = all_callbacks();

    trained = new_trainer();
    callbacks.step = on_step_evaluate;
    options.validation = &validation;
    ck_ok(mt_fit(trained, &source, &options, &callbacks, NULL));
    ck_assert_uint_eq(seen.epochs[0].eval_samples, 6);
    ck_assert_uint_eq(seen.epochs[1].eval_samples, 6);
    done(trained);
}
END_TEST

/* A batch that the trainer drops is one that is done: the rates and a resume count it. */
static mt_status on_dropped(void *user, const mt_fit_report *so_far, const mt_step_report *report) {
    (void)user;
    ck_assert_uint_eq(report->samples, so_far->batch == 2 ? 0 : 4);
    return MT_OK;
}

START_TEST(dropped) {
    mt_source source = source_of(5, "t");
    mt_fit_options options = options_of(4, 2);
    mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer_options own = MT_TRAINER_OPTIONS_INIT;
    fake_options fitting = fits(14);

    fitting.min_micro_batch = 2;
    own.drop_small = 1;
    callbacks.step = on_dropped;
    mt_trainer *trainer = trainer_of(&fitting, &own);
    ck_ok(mt_fit(trainer, &source, &options, &callbacks, &report));
    ck_assert_uint_eq(report.steps, 4);
    ck_assert_uint_eq(fake.step, 2);
    done(trainer);
}
END_TEST

/* More epochs than before, where the rates of those that are done stay the same. */
START_TEST(more_epochs) {
    mt_source source = source_of(8, "t");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = options_of(4, 4);
    options.schedule = &schedule;
    run(&source, &options);
    const uint64_t hash = fake_hash(&fake);
    options.epochs = 2;
    options.last = "last";
    run(&source, &options);
    options.epochs = 4;
    options.resume = "last";
    mt_fit_report report = run(&source, &options);
    ck_assert_uint_eq(report.epochs_done, 4);
    ck_assert(fake_hash(&fake) == hash);
    options.epochs = 1; /* fewer: it is over */
    forget();
    report = run(&source, &options);
    ck_assert_str_eq(seen.text, "load(last) save(last) ");
    ck_assert_int_eq(report.end, MT_FIT_DONE);
    ck_assert_uint_eq(report.epoch, 4);
}
END_TEST

/* ---- what fails ------------------------------------------------------------------------------------------- */

/* Each call and allocation of the fake fails in turn, once and for good: the state is that of whole steps. */
START_TEST(every_call_fails) {
    enum { STEPS = 6 };
    mt_source source = source_of(11, "t"), validation = source_of(3, "v");
    mt_fit_options options = options_of(4, 2);
    uint64_t hashes[STEPS + 1];
    mt_trainer *trainer;
    size_t failed = 0;

    quiet = 1;
    options.validation = &validation;
    for (uint64_t steps = 0; steps <= STEPS; steps++) {
        mt_fit_callbacks callbacks = all_callbacks();
        callbacks.stop = on_stop;
        trainer = new_trainer();
        forget();
        seen.stop_after =
            (size_t)(steps + 2 * (steps > 3)); /* before an evaluation, and each of its batches */
        if (steps == 6) seen.stop_after = SIZE_MAX;
        ck_ok(mt_fit(trainer, &source, &options, &callbacks, NULL));
        ck_assert_uint_eq(fake.step, steps);
        hashes[steps] = fake_hash(&fake);
        done(trainer);
    }
    for (uint64_t n = 1;; n++) {
        const mt_fit_callbacks callbacks = all_callbacks();
        mt_fit_report report = MT_FIT_REPORT_INIT;

        trainer = new_trainer();
        forget();
        fake_fail_at(&fake, n, _i);
        mt_status status = mt_fit(trainer, &source, &options, &callbacks, &report);
        if (!fake.fired) {
            ck_ok(status);
            done(trainer);
            break;
        }
        ck_assert_msg(status == MT_OK || status == MT_EDEVMEM, "%llu: %s", (unsigned long long)n,
                      mt_last_error());
        ck_assert_int_eq(report.end, status == MT_OK ? MT_FIT_DONE : MT_FIT_FAILED);
        ck_assert_uint_eq(report.steps, fake.step);
        ck_assert_uint_eq(seen.loads, seen.releases);
        ck_assert(fake_hash(&fake) == hashes[report.steps]);
        failed += status != MT_OK;
        done(trainer);
    }
    ck_assert_uint_gt(failed, 0);
}
END_TEST

static const struct {
    const char *name, *words;
    size_t at;
    const char *told;
    uint64_t steps;
} failures[] = {
    {"load", "a picture is gone", 2, "a picture is gone", 1},
    {"load", NULL, 1, "mt_fit: load has failed and does not say why", 0},
    {"load", NULL, 3, "mt_fit: load has failed", 2}, /* of the validation */
    {"begin", "no", 2, "no", 2},
    {"begin", NULL, 1, "mt_fit: begin has failed", 0},
    {"step", "not finite", 2, "not finite", 2},
    {"step", NULL, 3, "mt_fit: step has failed", 3},
    {"epoch", NULL, 1, "mt_fit: epoch has failed", 2},
    {"save", "the disk is full", 1, "the disk is full", 2},
    {"save", NULL, 2, "mt_fit: save has failed", 2},
    {"position", NULL, 1, "mt_fit: position has failed", 0},
    {"reload", NULL, 1, "mt_fit: load has failed", 0},
    {"set_lr", NULL, 3, "mt_fit: set_lr has failed", 2},
};

START_TEST(a_failure) {
    mt_source source = source_of(4, "t"), validation = source_of(2, "v");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = options_of(2, 2);
    const mt_fit_callbacks callbacks = all_callbacks();
    mt_fit_report report = MT_FIT_REPORT_INIT;
    mt_trainer *trainer = new_trainer();

    options.schedule = &schedule;
    options.validation = &validation;
    options.best = "best";
    options.last = "last";
    if (strcmp(failures[_i].name, "position") == 0 || strcmp(failures[_i].name, "reload") == 0) {
        mt_trainer_free(trainer);
        run(&source, &options);
        trainer = new_trainer();
        forget();
        options.resume = "last";
    }
    seen.fails = failures[_i].name;
    seen.fails_at = failures[_i].at;
    seen.words = failures[_i].words;
    mt_set_error(MT_EIO, "of something else");
    ck_status(mt_fit(trainer, &source, &options, &callbacks, &report), MT_EIO);
    ck_contains(mt_last_error(), failures[_i].told);
    ck_assert_int_eq(report.end, MT_FIT_FAILED);
    ck_assert_uint_eq(report.steps, failures[_i].steps);
    ck_assert_uint_eq(fake.step, failures[_i].steps);
    ck_assert_uint_eq(seen.loads, seen.releases);
    done(trainer);
}
END_TEST

/* Batches that the backend refuses, and a file that is not there. */
START_TEST(no_such_file) {
    mt_source source = source_of(4, "t");
    mt_fit_options options = options_of(2, 2);
    const mt_fit_callbacks callbacks = all_callbacks();
    mt_trainer *trainer = new_trainer();

    options.resume = "nowhere";
    ck_status(mt_fit(trainer, &source, &options, &callbacks, NULL), MT_EIO);
    ck_contains(mt_last_error(), "there is no 'nowhere'");
    done(trainer);
}
END_TEST

START_TEST(host_memory) {
    mt_source source = source_of(4, "t");
    mt_fit_report report = MT_FIT_REPORT_INIT;
    size_t live;

    ck_ok(counting_install());
    mt_trainer *trainer = new_trainer();
    ck_ok(mt_fit(trainer, &source, NULL, NULL, NULL)); /* lists have grown */
    live = counting_live();
    counting_fail_at(1, 1);
    report.steps = 77;
    ck_status(mt_fit(trainer, &source, NULL, NULL, &report), MT_ENOMEM);
    ck_assert_uint_eq(report.steps, 77);
    counting_fail_at(0, 0);
    ck_ok(mt_fit(trainer, &source, NULL, NULL, &report));
    ck_assert_uint_eq(counting_live(), live);
    done(trainer);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------------ */

typedef struct refusal {
    mt_source source, validation;
    mt_fit_options options;
    mt_fit_callbacks callbacks;
    mt_schedule schedule;
    mt_fit_report report;
} refusal;

/* Each row is a change of arguments that are right. */
#define ROWS(XX)                                                                                   \
    XX(r->source.size = 0, "source->size is not set")                                              \
    XX(r->source.load = NULL, "source->load is NULL")                                              \
    XX(r->source.samples = 0, "source->samples is 0; at least 1")                                  \
    XX(r->source.samples = SIZE_MAX, "source->samples is 18446744073709551615")                    \
    XX(r->options.size = 1, "options->size is not set")                                            \
    XX(r->options.batch = 0, "options->batch is 0; at least 1")                                    \
    XX((r->options.batch = 9, r->options.drop_last = 1), "options->batch is 9; accepted with")     \
    XX(r->options.epochs = UINT64_MAX, "options->epochs is 18446744073709551615; accepted: less")  \
    XX(r->options.epochs = UINT64_MAX / 2, "options->epochs is 9223372036854775807")               \
    XX(r->options.evaluate_every = 0, "options->evaluate_every is 0")                              \
    XX(r->options.metric = -2, "options->metric is -2; accepted: MT_FIT_LOSS (-1)")                \
    XX(r->options.metric = FAKE_METRICS, "options->metric is 2; accepted")                         \
    XX(r->validation.load = NULL, "validation->load is NULL")                                      \
    XX(r->validation.samples = 0, "validation->samples is 0")                                      \
    XX(r->validation.size = 7, "validation->size is not set")                                      \
    XX((r->options.validation = NULL, r->options.best = "b"),                                      \
       "options->best is set, and options->v")                                                     \
    XX((r->options.validation = NULL, r->options.patience = 1), "options->patience is set, and")   \
    XX((r->callbacks.save = NULL, r->options.best = "b"),                                          \
       "options->best is set, and callbacks->s")                                                   \
    XX((r->callbacks.save = NULL, r->options.last = "l"),                                          \
       "options->last is set, and callbacks->s")                                                   \
    XX((r->callbacks.position = NULL, r->options.resume = "r"), "and callbacks->position is")      \
    XX((r->callbacks.load = NULL, r->options.resume = "r"), "resume is set, and callbacks->load")  \
    XX(r->callbacks.set_lr = NULL, "options->schedule is set, and callbacks->set_lr is NULL")      \
    XX(r->options.save_every = 1, "options->save_every is set, and options->last is NULL")         \
    XX(r->options.save_seconds = 1, "options->save_seconds is set, and options->last is NULL")     \
    XX((r->options.save_seconds = 1, r->options.last = "l"),                                       \
       "options->save_seconds is set, and callbacks->now is NULL")                                 \
    XX(r->options.save_seconds = -1, "options->save_seconds is -1; accepted: 0 for none")          \
    XX(r->options.save_seconds = NAN, "options->save_seconds is nan; accepted")                    \
    XX(r->callbacks.size = 3, "callbacks->size is not set")                                        \
    XX(r->schedule.size = 0, "schedule->size is not set")                                          \
    XX(r->schedule.rate = -1, "rate is -1; accepted: above 0")                                     \
    XX(r->report.size = 0, "report->size is not set")

#define ROW_FUNCTION(change, words)                                                                \
    if (row-- == 0) {                                                                              \
        (void)(change);                                                                            \
        return words;                                                                              \
    }

static const char *change(refusal *r, int row) {
    ROWS(ROW_FUNCTION)
    return NULL;
}

#define ONE(change, words) +1
enum { REFUSALS = 0 ROWS(ONE) };

START_TEST(refused) {
    refusal r = {source_of(8, "t"), source_of(2, "v"), options_of(2, 2),
                 all_callbacks(),   MT_SCHEDULE_INIT,  MT_FIT_REPORT_INIT};
    mt_trainer *trainer = new_trainer();
    const uint64_t hash = fake_hash(&fake);

    r.options.validation = &r.validation;
    r.options.schedule = &r.schedule;
    r.report.steps = 77;
    const char *words = change(&r, _i);
    ck_status(mt_fit(trainer, &r.source, &r.options, &r.callbacks, &r.report), MT_EINVAL);
    ck_contains(mt_last_error(), words);
    ck_assert_uint_eq(r.report.steps, 77);
    ck_assert_uint_eq(seen.length, 0);
    ck_assert(fake_hash(&fake) == hash);
    done(trainer);
}
END_TEST

/* A call from within a step, which the trainer's sums are of. */
static mt_trainer *outer;
static mt_status inner_status;

static mt_status calls_back(void *self, mt_memory *out) {
    mt_source source = source_of(2, "t");
    mt_backend seam = fake_seam(self);
    if (outer) inner_status = mt_fit(outer, &source, NULL, NULL, NULL);
    return seam.memory(self, out);
}

START_TEST(no_trainer) {
    mt_source source = source_of(2, "t"), validation = source_of(2, "v");
    mt_fit_options options = MT_FIT_OPTIONS_INIT;
    fake_options plain = fits(14);
    mt_trainer *trainer = new_trainer();

    ck_status(mt_fit(NULL, &source, NULL, NULL, NULL), MT_EINVAL);
    ck_contains(mt_last_error(), "mt_fit: trainer is NULL");
    ck_status(mt_fit(trainer, NULL, NULL, NULL, NULL), MT_EINVAL);
    ck_contains(mt_last_error(), "mt_fit: source is NULL");
    done(trainer);
    ck_status(mt_fit(trainer, &source, NULL, NULL, NULL), MT_EINVAL);

    plain.absent = FAKE_BIT(FAKE_EVALUATE);
    trainer = trainer_of(&plain, NULL);
    options.validation = &validation;
    ck_status(mt_fit(trainer, &source, &options, NULL, NULL), MT_ENOTSUP);
    ck_contains(mt_last_error(), "the backend has no evaluate");
    done(trainer);

    mt_backend seam = fake_seam(&fake);
    mt_batch batch = batch_of(4, 1);
    seam.memory = calls_back;
    ck_ok(mt_trainer_new(&seam, NULL, &outer));
    ck_ok(mt_trainer_step(outer, &batch, NULL));
    ck_status(inner_status, MT_ESTATE);
    done(outer);
}
END_TEST

/* ---- files of other runs ---------------------------------------------------------------------------------- */

static const struct {
    uint64_t seed;
    size_t batch, samples;
    int shuffle, drop_last;
    uint64_t epochs;
    const char *words;
} others[] = {
    {2, 2, 8, 1, 0, 2, "mt_fit: seed is 2; accepted: 1, as in the run of options->resume 'last'"},
    {1, 4, 8, 1, 0, 2, "mt_fit: batch is 4; accepted: 2"},
    {1, 2, 9, 1, 0, 2, "mt_fit: samples is 9; accepted: 8"},
    {1, 2, 8, 0, 0, 2, "mt_fit: shuffle is 0; accepted: 1"},
    {1, 2, 8, 1, 1, 2, "mt_fit: drop_last is 1; accepted: 0"},
    {1, 2, 8, 1, 0, 3, "mt_fit: steps is 12; accepted: 8"},
};

START_TEST(another_run) {
    mt_source source = source_of(8, "t");
    mt_schedule schedule = MT_SCHEDULE_INIT;
    mt_fit_options options = options_of(2, 2);
    const mt_fit_callbacks callbacks = all_callbacks();

    schedule.kind = MT_SCHEDULE_LINEAR;
    options.seed = 1;
    options.schedule = &schedule;
    options.last = "last";
    run(&source, &options);
    options.resume = "last";
    options.seed = others[_i].seed;
    options.batch = others[_i].batch;
    options.shuffle = others[_i].shuffle;
    options.drop_last = others[_i].drop_last;
    options.epochs = others[_i].epochs;
    source.samples = others[_i].samples;
    mt_trainer *trainer = new_trainer();
    const uint64_t hash = fake_hash(&fake);
    ck_status(mt_fit(trainer, &source, &options, &callbacks, NULL), MT_EINVAL);
    ck_contains(mt_last_error(), others[_i].words);
    ck_assert(fake_hash(&fake) == hash); /* nothing was loaded */
    done(trainer);
}
END_TEST

#define ORDER "{\"seed\":0,\"samples\":8,\"batch\":2,\"shuffle\":1,\"drop_last\":0,\"steps\":0,"

static const struct {
    const char *position, *words; /* words NULL: it is taken */
} positions[] = {
    {ORDER "\"epochs_done\":1,\"batches_done\":4,\"best\":0,\"best_epoch\":0,\"worse\":0}", NULL},
    {ORDER "\"epochs_done\":1,\"batches_done\":5,\"best\":0,\"best_epoch\":0,\"worse\":0}",
     "is at batch 5 of epoch 2, which has 4"},
    {ORDER "\"epochs_done\":18446744073709551615,\"batches_done\":0,\"best\":0,\"best_epoch\":0,"
           "\"worse\":0}",
     "is at batch 0 of epoch"},
    {ORDER "\"epochs_done\":1,\"batches_done\":4,\"best\":0,\"best_epoch\":0,\"worse\":0",
     "does not say where"},
    {ORDER "\"epochs_done\":1,\"batches_done\":4,\"best\":0,\"best_epoch\":0,\"worse\":0}x",
     "does not say where"},
    {ORDER "\"epochs_done\":1,\"batches_done\":-4,\"best\":0,\"best_epoch\":0,\"worse\":0}",
     "does not say where"},
    {ORDER "\"epochs_done\":1,\"best\":0,\"best_epoch\":0,\"worse\":0}", "does not say where"},
    {ORDER, "does not say where"},
    {"{}", "does not say where"},
    {"", "does not say where a run of mt_fit was"},
};

START_TEST(a_position) {
    mt_source source = source_of(8, "t");
    mt_fit_options options = options_of(2, 3);
    const mt_fit_callbacks callbacks = all_callbacks();
    mt_trainer *trainer = new_trainer();
    mt_fit_report report = MT_FIT_REPORT_INIT;

    files[0].path = options.resume = "last";
    files[0].state = fake.state;
    snprintf(files[0].position, sizeof files[0].position, "%s", positions[_i].position);
    mt_status status = mt_fit(trainer, &source, &options, &callbacks, &report);
    ck_status(status, positions[_i].words ? MT_EINVAL : MT_OK);
    if (positions[_i].words) ck_contains(mt_last_error(), positions[_i].words);
    ck_assert_uint_eq(fake.step, positions[_i].words ? 0 : 4);
    ck_assert_int_eq(report.end, positions[_i].words ? MT_FIT_FAILED : MT_FIT_DONE);
    done(trainer);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("fit");
    TCase *cases = suite_case(suite, "loop");

    tcase_add_checked_fixture(cases, setup, NULL);
    tcase_add_loop_test(cases, an_order, 0, LENGTH(orders));
    tcase_add_test(cases, a_long_order);
    tcase_add_loop_test(cases, a_flow, 0, LENGTH(flows));
    tcase_add_test(cases, with_defaults);
    tcase_add_test(cases, clocks);
    tcase_add_loop_test(cases, saved_within_epochs, 0, LENGTH(saves));
    tcase_add_test(cases, on_from_within_an_epoch);
    tcase_add_test(cases, saved_after_the_callback);
    tcase_add_loop_test(cases, saved_by_all_processes, 0, 2);
    tcase_add_loop_test(cases, a_number_of_steps, 0, LENGTH(bounds));
    tcase_add_loop_test(cases, on_from_a_number_of_steps, 0, 4);
    tcase_add_test(cases, stopped_at_its_last_step);
    tcase_add_test(cases, no_epochs);
    tcase_add_loop_test(cases, some_rates, 0, 5);
    tcase_add_loop_test(cases, an_end, 0, LENGTH(ends));
    tcase_add_test(cases, patience_goes_on);
    tcase_add_loop_test(cases, means_of_a_source, 0, LENGTH(overs));
    tcase_add_test(cases, apart_from_the_epoch);
    tcase_add_test(cases, a_stopped_evaluation);
    tcase_add_test(cases, an_evaluation_is_refused);
    tcase_add_loop_test(cases, stopped_and_on, 0, LENGTH(parts));
    tcase_add_test(cases, on_from_the_best);
    tcase_add_test(cases, flag);
    tcase_add_test(cases, evaluations_of_callbacks);
    tcase_add_test(cases, dropped);
    tcase_add_test(cases, more_epochs);
    tcase_add_loop_test(cases, every_call_fails, 0, 2);
    tcase_add_loop_test(cases, a_failure, 0, LENGTH(failures));
    tcase_add_test(cases, no_such_file);
    tcase_add_test(cases, host_memory);
    tcase_add_loop_test(cases, refused, 0, REFUSALS);
    tcase_add_test(cases, no_trainer);
    tcase_add_loop_test(cases, another_run, 0, LENGTH(others));
    tcase_add_loop_test(cases, a_position, 0, LENGTH(positions));
    return suite_run(suite);
}
