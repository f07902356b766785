/*
 * memtrain-report.c - draws traces: of any program that trains with libmemtrain, with libtorch or a backend of its own.
 *
 *     memtrain-report run.jsonl -o run.html            one run
 *     memtrain-report a.jsonl b.jsonl -o both.html     two, laid over one another
 *     memtrain-report run.jsonl -o run.html --watch    again and again, as the run goes on
 *
 * It links libmemtrain and jansson alone.
 */
#include "html_file.h"
#include "html_trace.h"

#include <errno.h>
#include <memtrain/status.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define NAME "memtrain-report"

enum { DONE = 0, FAILURE = 1, WRONG = 2, REFRESH_SECONDS = 5, TAIL = 256 };

static const char help[] = NAME
    ": draws traces of training runs as a page or a picture\n"
    "\n"
    "Usage: " NAME " RUN.jsonl... -o FILE [--watch]\n"
    "\n"
    "RUN.jsonl is a trace: the lines that mt_trainer_options.trace gets, or --trace of a program\n"
    "writes. Up to 8 runs are laid over one another.\n"
    "\n"
    "  -o FILE              the page, replaced as a whole; FILE.svg: the plots alone\n"
    "  --watch              draw again whenever a trace has grown, until Ctrl-C or SIGTERM\n"
    "  --help               this text\n"
    "  --version            the version of libmemtrain\n"
    "\n"
    "The page shows loss and validation, the learning rate, memory by time against the budget,\n"
    "chunks, OOMs and what was done about them, and where a run went on on another device.\n"
    "It needs no network.\n"
    "\n"
    "Exit status: 0 done, 1 the page cannot be written, 2 a wrong flag or a file that is not a "
    "trace.\n";

/* A trace, of which the first `read` bytes are drawn. They end with `tail`. */
typedef struct trace {
    const char *path;
    off_t read;
    char tail[TAIL];
    size_t tail_length;
    unsigned long line, bad, bad_line; /* lines so far; those that are not JSON, and the first */
    uint64_t restarts;                 /* that were told */
    int is_cut, has_told_version, is_gone;
    ex_html_run run;
} trace;

static struct {
    const char *out;
    int watch, count;
    trace *traces[EX_HTML_RUNS];
} r;

static volatile sig_atomic_t stop;

static void on_signal(int number) {
    stop = number;
}

static void say(const char *path, const char *what) {
    fprintf(stderr, NAME ": '%s' %s\n", path, what);
}

/* ---- a trace ----------------------------------------------------------------------------------- */

static void take_line(trace *t, const char *line) {
    t->line++;
    if (!line[strspn(line, " \t\r\n")]) return;
    if (ex_html_run_line(&t->run, line) == EX_LINE_NOT_JSON && !t->bad++) t->bad_line = t->line;
    if (t->run.restarts == t->restarts) return;
    t->restarts = t->run.restarts;
    fprintf(stderr, NAME ": '%s' line %lu begins another run; it alone is drawn\n", t->path,
            t->line);
}

/* The last line has no end: it is still being written, or was cut off, or its writer leaves out the end. */
static void take_rest(trace *t, const char *line, off_t length) {
    if (r.watch) return;
    unsigned long bad = t->bad;
    take_line(t, line);
    t->is_cut = t->bad > bad;
    t->bad = bad;
    t->read += length;
}

static void keep_tail(trace *t, const char *line, size_t length) {
    t->tail_length = length < TAIL ? length : TAIL;
    memcpy(t->tail, line + length - t->tail_length, t->tail_length);
}

static int read_lines(trace *t, FILE *file) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    const off_t before = t->read;
    while ((length = getline(&line, &capacity, file)) > 0) {
        if (!t->read && *line != '{') break; /* no trace begins so: no need to read on */
        if (line[length - 1] != '\n') {
            take_rest(t, line, (off_t)length);
            break;
        }
        take_line(t, line);
        t->read += (off_t)length;
        keep_tail(t, line, (size_t)length);
    }
    free(line);
    return t->read > before;
}

/*
 * Goes on where reading ended. A new run of a program may write over the trace of the last one, or another file may have
 * its name: what stands before that place is not what was read then. 0: so it is.
 */
static int find_end(const trace *t, FILE *file) {
    char here[TAIL];
    if (!t->read) return 1;
    return fseeko(file, t->read - (off_t)t->tail_length, SEEK_SET) == 0 &&
           fread(here, 1, t->tail_length, file) == t->tail_length &&
           memcmp(here, t->tail, t->tail_length) == 0;
}

static void begin(trace *t) {
    ex_html_run_end(&t->run);
    t->read = 0;
    t->line = t->bad = 0;
    t->restarts = 0;
    t->is_cut = t->has_told_version = 0;
}

/* Reads what was added. @return NULL, or why it cannot be read. *grown: there is more to draw, or something else */
static const char *read_trace(trace *t, int *grown) {
    struct stat info;
    FILE *file = fopen(t->path, "re");
    if (!file) return strerror(errno);
    int is_folder = fstat(fileno(file), &info) == 0 && S_ISDIR(info.st_mode);
    if (!is_folder && !find_end(t, file)) {
        begin(t);
        rewind(file);
        *grown = 1;
    }
    if (!is_folder) *grown |= read_lines(t, file);
    fclose(file);
    return is_folder ? "is a folder" : NULL;
}

/* ---- what is wrong with a trace ---------------------------------------------------------------- */

static int is_our_version(const char *version) {
    char ours[32];
    int length = snprintf(ours, sizeof ours, "%d.%d.", MT_VERSION_MAJOR, MT_VERSION_MINOR);
    return !*version || strncmp(version, ours, (size_t)length) == 0;
}

static void warn(trace *t) {
    if (!t->has_told_version && !is_our_version(t->run.version)) {
        t->has_told_version = 1;
        fprintf(
            stderr,
            NAME
            ": '%s' was written by version %s, and this is %s: what it does not know is left out\n",
            t->path, t->run.version, mt_version_string());
    }
    if (t->is_cut)
        fprintf(stderr, NAME ": '%s' is cut off in line %lu, which is left out\n", t->path,
                t->line);
    if (t->bad)
        fprintf(stderr,
                NAME ": '%s' has %lu line%s that %s not JSON, left out; the first is line %lu\n",
                t->path, t->bad, t->bad == 1 ? "" : "s", t->bad == 1 ? "is" : "are", t->bad_line);
    t->is_cut = 0;
    t->bad = 0;
}

/* With --watch an empty file is one that a run is about to write. */
static int check(const trace *t) {
    struct stat info;
    int is_empty = stat(t->path, &info) == 0 && info.st_size == 0;
    if (t->run.has_begun || (r.watch && is_empty)) return 0;
    if (is_empty)
        say(t->path, "is empty: its run has not begun");
    else
        say(t->path, "is not a trace: no line is a JSON object with an event of docs/trace.md");
    return -1;
}

/* All that is wrong with the files is told, not the first alone. */
static int read_first(void) {
    int wrong = 0, grown = 0;
    for (int i = 0; i < r.count; i++) {
        const char *why = read_trace(r.traces[i], &grown);
        if (why) {
            fprintf(stderr, NAME ": cannot read '%s': %s\n", r.traces[i]->path, why);
            wrong = 1;
            continue;
        }
        warn(r.traces[i]);
        wrong |= check(r.traces[i]) != 0;
    }
    return wrong ? -1 : 0;
}

/* ---- names ------------------------------------------------------------------------------------- */

static const char *short_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* Files of one name in several folders keep their folders. */
static int is_ambiguous(int i) {
    for (int k = 0; k < r.count; k++)
        if (k != i && strcmp(short_name(r.traces[i]->path), short_name(r.traces[k]->path)) == 0)
            return 1;
    return 0;
}

static void name_run(int i) {
    trace *t = r.traces[i];
    ex_html_cut(is_ambiguous(i) ? t->path : short_name(t->path), t->run.name, sizeof t->run.name);
    size_t length = strlen(t->run.name);
    if (length > 6 && strcmp(t->run.name + length - 6, ".jsonl") == 0)
        t->run.name[length - 6] = '\0';
}

/* ---- the page ---------------------------------------------------------------------------------- */

static void judge(ex_html_run *run) {
    run->outcome = run->has_ended ? EX_HTML_DONE : EX_HTML_RUNNING;
    snprintf(run->outcome_text, sizeof run->outcome_text, "%s",
             run->has_ended ? "" : "The trace has no last line: the run goes on, or was killed.");
}

static mt_status draw(ex_html_file *file) {
    ex_html_run *runs[EX_HTML_RUNS];
    int refresh = 0;
    for (int i = 0; i < r.count; i++) {
        runs[i] = &r.traces[i]->run;
        name_run(i);
        judge(runs[i]);
        if (r.watch) refresh = REFRESH_SECONDS;
    }
    return ex_html_file_write(file, runs, (size_t)r.count, refresh);
}

/* A file that has gone stays drawn; it may come back. */
static int read_more(void) {
    int grown = 0;
    for (int i = 0; i < r.count; i++) {
        trace *t = r.traces[i];
        const char *why = read_trace(t, &grown);
        if (why && !t->is_gone) fprintf(stderr, NAME ": cannot read '%s': %s\n", t->path, why);
        t->is_gone = why != NULL;
        warn(t);
    }
    return grown;
}

static mt_status watch(ex_html_file *file) {
    const struct timespec second = {1, 0};
    mt_status status = MT_OK;
    while (!stop && status == MT_OK) {
        nanosleep(&second, NULL); /* a signal ends it */
        if (!stop && read_more()) status = draw(file);
    }
    return status;
}

static int report(void) {
    ex_html_file *file;
    if (read_first() != 0) return WRONG;
    mt_status status = ex_html_file_open("-o", r.out, &file), closed = MT_OK;
    if (status == MT_OK && r.watch && ex_html_file_is_stream(file)) {
        ex_html_file_close(file);
        status = mt_set_error(
            MT_EINVAL, "-o: '%s' is a device or a pipe; accepted with --watch: a regular file",
            r.out);
    } else if (status == MT_OK) {
        status = draw(file);
        if (status == MT_OK && r.watch) status = watch(file);
        closed = ex_html_file_close(file);
    }
    if (status == MT_OK) status = closed;
    if (status == MT_OK) return DONE;
    fprintf(stderr, NAME ": %s\n", mt_last_error());
    return status == MT_EINVAL ? WRONG : FAILURE;
}

/* ---- the command line -------------------------------------------------------------------------- */

static int refuse(const char *flag, const char *value, const char *accepts) {
    fprintf(stderr, NAME ": %s: '%s'; accepted: %s\n", flag, value, accepts);
    return WRONG;
}

static int is_one_file(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static int add_trace(const char *path) {
    if (r.count == EX_HTML_RUNS) return refuse("RUN.jsonl", path, "8 files at most");
    trace *t = calloc(1, sizeof *t);
    if (!t) {
        fprintf(stderr, NAME ": out of host memory\n");
        return FAILURE;
    }
    t->path = path;
    ex_html_run_begin(&t->run);
    r.traces[r.count++] = t;
    return DONE;
}

static int read_flags(int argc, char **argv) {
    int only_files = 0, status = DONE;
    for (int i = 1; i < argc && status == DONE; i++) {
        if (only_files || argv[i][0] != '-')
            status = add_trace(argv[i]);
        else if (strcmp(argv[i], "--") == 0)
            only_files = 1;
        else if (strcmp(argv[i], "--watch") == 0)
            r.watch = 1;
        else if (strcmp(argv[i], "-o") == 0 && i + 1 < argc && *argv[i + 1])
            r.out = argv[++i];
        else if (strcmp(argv[i], "-o") == 0)
            status = refuse("-o", "", "the name of a file to write");
        else
            status = refuse("flag", argv[i], "-o FILE, --watch, --help, --version");
    }
    if (status != DONE) return status;
    if (!r.count) return refuse("RUN.jsonl", "", "the name of a trace, or several");
    if (!r.out) return refuse("-o", "", "the name of a file to write");
    for (int i = 0; i < r.count; i++)
        if (is_one_file(r.out, r.traces[i]->path))
            return refuse("-o", r.out, "another file than the traces");
    return DONE;
}

static int print(const char *text) {
    if (fputs(text, stdout) >= 0 && fflush(stdout) == 0) return DONE;
    fprintf(stderr, NAME ": cannot write to standard output\n");
    return FAILURE;
}

/* Not SA_RESTART: a signal ends the pause. One that is ignored stays so, as in a script's background job. */
static void catch_signals(void) {
    static const int caught[] = {SIGINT, SIGTERM};
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (int i = 0; i < 2; i++)
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(caught[i], &action, NULL);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) return print(help);
        if (strcmp(argv[i], "--version") == 0) return print(mt_version_string()) || print("\n");
    }
    int status = read_flags(argc, argv);
    if (status == DONE && r.watch) catch_signals();
    if (status == DONE) status = report();
    for (int i = 0; i < r.count; i++) {
        ex_html_run_end(&r.traces[i]->run);
        free(r.traces[i]);
    }
    return status;
}
