/*
 * fit_fixture.h - mt_fit on the fake backend, with callbacks that write down what happens.
 */
#ifndef FIT_FIXTURE_H
#define FIT_FIXTURE_H

#include "each_test.h"
#include "trainer_fixture.h"

#include <memtrain/fit.h>

enum { FIT_FILES = 3, FIT_TEXT = 1 << 16, FIT_RATES = 256 };

/* A file of the fake's whole state. */
typedef struct fit_file {
    const char *path;
    fake_state state;
    char position[MT_FIT_POSITION_MAX];
} fit_file;

typedef struct fit_calls {
    char text[FIT_TEXT]; /* calls, in their order */
    size_t length;
    double rates[FIT_RATES];
    size_t rate_count, loads, releases, stop_after, asked;
    const char *fails; /* the callback that fails ... */
    size_t fails_at;   /* ... the n-th time ... */
    const char *words; /* ... with these; NULL: none */
    mt_epoch_report epochs[16];
    mt_fit_report runs[16];
    size_t epoch_count;
    double clock;
} fit_calls;

extern fit_file fit_files[FIT_FILES];
extern fit_calls fit_seen;
extern int fit_quiet; /* 1: loads are not in the text */

void fit_note(const char *format, ...) MT_PRINTF(1, 2);

/* What a callback of that name returns: fit_seen.fails says which fails, and when. */
mt_status fit_answer(const char *name);

/* Called at most fit_seen.stop_after times before it stops the run; seconds of a clock. */
int fit_on_stop(void *user);
double fit_now(void *user);

/* Samples whose numbers are in the text behind the mark. */
mt_source fit_source(size_t samples, const char *mark);

/* The arguments of the test's run, and what they come to. */
typedef struct fit_case {
    mt_source source, validation;
    mt_schedule schedule; /* that options take if the test says so */
    mt_fit_options options;
    mt_fit_callbacks callbacks;
    mt_fit_report report;
    mt_trainer *trainer; /* NULL: the run makes one */
} fit_case;

extern fit_case fit;

/* Samples "t"; samples "v" of the validation, and without these none. The trainer stays. */
void fit_begin(size_t samples, size_t validation, size_t batch, uint64_t epochs);

/* mt_fit with all of it; and the trainer's end. */
mt_status fit_goes(void);
void fit_end(void);

/* A run that goes through, and the trainer's end. */
void fit_run(void);

/* Before each test; and what was seen, but not the files. */
void fit_setup(void);
void fit_forget(void);

/* In place of SUITE. */
#define FIT_SUITE(name)                                                                            \
    int main(void) {                                                                               \
        suite_each_test(fit_setup, fit_end);                                                       \
        return suite_run_named(name);                                                              \
    }

/* Chunks of two samples: the same ones whatever is known of memory. */
mt_trainer *fit_trainer(void);

/* Losses of an evaluation after another; metric 0 is minus that. */
extern const double *fit_script;
mt_trainer *fit_scripted_trainer(void);

/* How often the word is in the text. */
size_t fit_count_of(const char *word);

#endif
