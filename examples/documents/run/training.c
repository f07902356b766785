/*
 * training.c - the frame of a run: what comes before a program's train and after it; see training.h.
 */
#include "training_parts.h"

#include "inject.h"
#include "interrupt.h"
#include "model_check.h"
#include "output.h"
#include "report.h"

#include <stdarg.h>

int ex_training_flags(const ex_program *program, const char *summary, ex_flags *flags, int argc,
                      char **argv, int *out_status) {
    const ex_command command = {program->name, summary,      program->budget,
                                program->data, program->own, flags};
    return ex_flags_read(&command, argc, argv, out_status);
}

int ex_training_refuse(const ex_program *program, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "%s: ", program->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 2;
}

/* ---- test -------------------------------------------------------------------------------------- */

/* Its batches are for that long those of the run. */
mt_status ex_training_test(ex_training *t, const ex_source *source, mt_eval_report *out) {
    const ex_batches_options options = ex_batches_options_of(t->flags);
    ex_batches *own = t->batches;
    mt_source tests = t->validation;
    tests.samples = source->count(source->self, EX_VALIDATION);
    if (!t->at.steps || !tests.samples) return MT_OK;
    mt_status status = ex_batches_new(source, &options, &t->batches);
    if (status == MT_OK) status = mt_fit_evaluate(t->trainer, &tests, &t->fit, &t->calls, out);
    ex_batches_free(t->batches);
    t->batches = own;
    ex_progress_clear(&t->progress);
    return status;
}

int ex_training_is_done(const ex_training *t) {
    return !t->stopped_by && !t->flags->check && !t->quiet;
}

/* ---- finish ------------------------------------------------------------------------------------ */

static void print_stopped(const ex_training *t) {
    const char *path = t->flags->save;
    printf("stopped by %s after step %llu, which is done; %s%s\n", ex_interrupt_name(t->stopped_by),
           (unsigned long long)t->at.steps, path ? "go on with --resume " : "nothing was saved",
           path ? path : "");
}

static mt_status finish(ex_training *t) {
    mt_run_report report = MT_RUN_REPORT_INIT;
    mt_status status = mt_trainer_finish(t->trainer, &report);
    if (status != MT_OK) return status;
    ex_inject_finish(&t->flags->inject, t->at.steps);
    if (t->stopped_by) print_stopped(t);
    if (report.steps) ex_report_run(&report, (size_t)t->flags->batch);
    ex_report_resident(t->flags, &t->device);
    return MT_OK;
}

/* The page says in one line how the run ended. */
static mt_status close_report(ex_training *t, mt_status status, const char *reason) {
    char text[64];
    if (status != MT_OK) return ex_html_report_close(t->report, EX_HTML_FAILED, reason);
    snprintf(text, sizeof text, "stopped by %s after step %llu", ex_interrupt_name(t->stopped_by),
             (unsigned long long)t->at.steps);
    return ex_html_report_close(t->report, t->stopped_by ? EX_HTML_STOPPED : EX_HTML_DONE,
                                t->stopped_by ? text : NULL);
}

/* The first failure is what the exit status says; each has its line. */
static mt_status and_also(const ex_training *t, mt_status status, mt_status other) {
    if (other != MT_OK) fprintf(stderr, "%s: %s\n", t->program->name, mt_last_error());
    return status != MT_OK ? status : other;
}

/* In the reverse order; each takes a NULL. */
static mt_status clean_up(ex_training *t) {
    mt_trainer_free(t->trainer);
    mt_torch_free(t->torch);
    mt_model_free(t->model);
    ex_batches_free(t->batches);
    if (t->program->close) t->program->close(t->program->self);
    ex_replay_free(t->replay);
    mt_status status = ex_processes_close(&t->processes);
    return and_also(t, status, ex_tracefile_close(t->trace));
}

static void report_failure(ex_training *t, mt_status status) {
    const ex_failure failure = {t->program->name, status,     t->trainer, t->torch != NULL,
                                &t->backend,      t->batches, t->flags,   &t->device};
    if (t->trainer) (void)!ex_device_follow(t->flags, &t->device);
    ex_report_failure(&failure);
    if (status == MT_EDEVMEM && t->program->remedies) t->program->remedies(t->program->self, t);
}

/* What a run has to say at its end, whatever that is; the status of all of it. */
static mt_status end(ex_training *t, mt_status status) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", status != MT_OK ? mt_last_error() : "");
    if (status != MT_OK) report_failure(t, status);
    /* A step that failed has changed nothing: the trace ends like that of any run. */
    if (status != MT_OK && t->trainer) (void)!mt_trainer_finish(t->trainer, NULL);
    status = and_also(t, status, close_report(t, status, reason));
    mt_status closed = clean_up(t);
    /* A job that does not fit is one, whichever of the processes it was. */
    if (status == MT_EPEER && closed == MT_EDEVMEM) status = MT_OK;
    status = and_also(t, status, closed);
    return ex_output_end(t->program->name) || status != MT_OK ? status : MT_EIO;
}

static ex_training new_run(const ex_program *program, ex_flags *flags, char **argv) {
    ex_training t = {
        .program = program, .flags = flags, .argv = argv, .processes.group = MT_PROCESS_GROUP_INIT};
    t.backend.size = sizeof t.backend;
    t.at.size = sizeof t.at;
    return t;
}

static mt_status train(ex_training *t) {
    t->setting_count = ex_flags_settings(t->flags, &t->program->own, t->settings);
    mt_status status = ex_training_open(t);
    if (status == MT_OK) status = t->program->train(t->program->self, t);
    ex_disarm(t);
    ex_progress_clear(&t->progress);
    return status;
}

int ex_training_main(const ex_program *program, ex_flags *flags, char **argv) {
    mt_reexec_passive(argv);
    ex_interrupt_no_pipe();
    ex_training t = new_run(program, flags, argv);
    ex_progress_init(&t.progress, (ex_progress_mode)flags->progress, "samples", stderr);
    t.progress.has_no_notes = !ex_processes_is_first();
    mt_set_log(ex_progress_log, &t.progress);
    mt_status status = ex_processes_open(flags, argv, &t.processes);
    if (t.processes.group.rank) t.progress.mode = EX_PROGRESS_OFF;
    if (status == MT_OK) status = train(&t);
    if (status == MT_OK && !flags->check) status = finish(&t);
    status = end(&t, status);
    if (status == MT_OK && t.faults) return EX_EXIT_FAULTS;
    return ex_exit_status(status, t.stopped_by);
}

void ex_training_row(const ex_program *program, ex_flags *flags, char **argv, ex_row *out) {
    ex_training t = new_run(program, flags, argv);
    t.quiet = 1;
    *out = (ex_row){.report = MT_RUN_REPORT_INIT};
    ex_progress_init(&t.progress, EX_PROGRESS_OFF, "samples", stderr);
    mt_set_log(ex_progress_log, &t.progress);
    out->status = train(&t);
    if (out->status == MT_OK) out->status = mt_trainer_summary(t.trainer, &out->report);
    if (out->status != MT_OK && out->status != MT_EDEVMEM)
        fprintf(stderr, "%s: %s\n", program->name, mt_last_error());
    out->seconds = t.least_seconds;
    out->samples = t.last.samples;
    (void)!clean_up(&t);
    mt_set_log(NULL, NULL);
}
