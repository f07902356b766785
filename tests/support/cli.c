/*
 * cli.c - see cli.h.
 */
#include "cli.h"
#include "program_path.h"
#include "suite.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

char cli_root[CLI_PATH], cli_trace[CLI_PATH], cli_replayed[CLI_PATH];
char cli_out[CLI_CAPACITY], cli_err[CLI_CAPACITY];
const char *cli_stdout, *cli_program = "food101";
const char *const *cli_environment;
int cli_says_nothing_of_threads;

static char program[CLI_PATH], out_path[CLI_PATH], err_path[CLI_PATH];

/* ---- running ------------------------------------------------------------------------------------- */

static void find_program(void) {
    char self[CLI_PATH - 64];
    ck_assert(ex_program_path(NULL, self, sizeof self));
    *strrchr(self, '/') = '\0';
    snprintf(program, sizeof program, "%s/../examples/%.31s", self, cli_program);
    ck_assert_msg(access(program, X_OK) == 0, "%s is not there", program);
}

void cli_take_program(const char *name) {
    cli_program = name;
    find_program();
}

void cli_take_path(const char *path) {
    snprintf(program, sizeof program, "%s", path);
}

static void set_up(void) {
    snprintf(cli_root, sizeof cli_root, "/tmp/check_ex_cli.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(cli_root));
    snprintf(cli_trace, sizeof cli_trace, "%.400s/t.jsonl", cli_root);
    snprintf(cli_replayed, sizeof cli_replayed, "%.400s/r.jsonl", cli_root);
    snprintf(out_path, sizeof out_path, "%.400s/out", cli_root);
    snprintf(err_path, sizeof err_path, "%.400s/err", cli_root);
    find_program();
}

static void tear_down(void) {
    char command[CLI_PATH + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", cli_root);
    ck_assert_int_eq(system(command), 0);
}

void cli_read_file(const char *path, char *text) {
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, CLI_CAPACITY - 1, file);
    text[length] = '\0';
    fclose(file);
}

static void redirect(const char *path, int to) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, to) < 0) _exit(99);
}

pid_t cli_start(const char *const *arguments) {
    char *argv[CLI_MOST_ARGUMENTS + 2] = {program};
    for (int i = 0; arguments[i]; i++) {
        ck_assert_int_lt(i, CLI_MOST_ARGUMENTS);
        argv[i + 1] = (char *)arguments[i];
    }
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child) return child;
    redirect(cli_stdout ? cli_stdout : out_path, 1);
    redirect(err_path, 2);
    unsetenv("GOMP_SPINCOUNT");
    if (cli_says_nothing_of_threads)
        unsetenv("OMP_WAIT_POLICY");
    else
        setenv("OMP_WAIT_POLICY", "PASSIVE", 1);
    for (int i = 0; cli_environment && cli_environment[i]; i++) putenv((char *)cli_environment[i]);
    execv(program, argv);
    _exit(99);
}

int cli_finish(pid_t child) {
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    cli_read_file(cli_stdout ? "/dev/null" : out_path, cli_out);
    cli_read_file(err_path, cli_err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void cli_expect(int expected, const char *const *arguments) {
    int status = cli_finish(cli_start(arguments));
    ck_assert_msg(status == expected, "exit status %d instead of %d\n%s%s", status, expected,
                  cli_out, cli_err);
}

/* ---- traces -------------------------------------------------------------------------------------- */

/* The n-th line (from 1) of an event, or NULL; json_decref it. */
static json_t *event(const char *path, const char *name, int n) {
    char *text = NULL;
    size_t capacity = 0;
    json_t *found = NULL;
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (!found && getline(&text, &capacity, file) > 0) {
        json_t *object = json_loads(text, 0, NULL);
        ck_assert_msg(object != NULL, "not JSON: %s", text);
        const char *is = json_string_value(json_object_get(object, "event"));
        if (is && strcmp(is, name) == 0 && --n == 0)
            found = object;
        else
            json_decref(object);
    }
    free(text);
    fclose(file);
    return found;
}

long long cli_number(const char *path, const char *name, int n, const char *key) {
    json_t *object = event(path, name, n);
    const json_t *value = json_object_get(object, key);
    long long result = json_is_integer(value) ? json_integer_value(value) : -1;
    json_decref(object);
    return result;
}

double cli_real(const char *path, const char *name, int n, const char *key) {
    json_t *object = event(path, name, n);
    const json_t *value = json_object_get(object, key);
    double result = json_is_number(value) ? json_number_value(value) : NAN;
    json_decref(object);
    return result;
}

static void state_of(const char *path, char sha[65]) {
    json_t *object = event(path, "end", 1);
    const char *text = json_string_value(json_object_get(object, "state_sha256"));
    ck_assert_msg(text && strlen(text) == 64, "%s has no state_sha256", path);
    snprintf(sha, 65, "%s", text);
    json_decref(object);
}

void cli_same_state(void) {
    char first[65], second[65];
    state_of(cli_trace, first);
    state_of(cli_replayed, second);
    ck_assert_str_eq(first, second);
}

static void sleep_a_bit(void) {
    const struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
}

/* By its text: the last line may be half written. */
void cli_wait_for_step(int n) {
    static char text[CLI_CAPACITY];
    char line[64];
    snprintf(line, sizeof line, "\"event\":\"step\",\"step\":%d,", n);
    for (int i = 0; i < 6000; i++) {
        if (access(cli_trace, R_OK) == 0) {
            cli_read_file(cli_trace, text);
            if (strstr(text, line)) return;
        }
        sleep_a_bit();
    }
    ck_abort_msg("no step %d in the trace", n);
}

static TCase *with_runs(TCase *test_case) {
    tcase_set_timeout(test_case, 300); /* several runs, each of which loads libtorch */
    tcase_add_checked_fixture(test_case, set_up, tear_down);
    return test_case;
}

TCase *cli_case(Suite *suite, const char *name) {
    return with_runs(suite_case(suite, name));
}

TCase *cli_case_named(const char *name) {
    return with_runs(suite_case_named(name));
}
