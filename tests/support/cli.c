/*
 * cli.c - see cli.h.
 */
#include "cli.h"
#include "program_path.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
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

const char *cli_self(void) {
    static char self[CLI_PATH - 64];
    ck_assert(ex_program_path(NULL, self, sizeof self));
    *strrchr(self, '/') = '\0';
    return self;
}

static void find_program(void) {
    snprintf(program, sizeof program, "%s/../examples/%.31s", cli_self(), cli_program);
    ck_assert_msg(access(program, X_OK) == 0, "%s is not there", program);
}

void cli_take_program(const char *name) {
    cli_program = name;
    find_program();
}

void cli_take_path(const char *path) {
    snprintf(program, sizeof program, "%s", path);
}

const char *cli_path(const char *name) {
    static char paths[32][CLI_PATH];
    static size_t turn;
    char *path = paths[turn++ % 32];
    snprintf(path, CLI_PATH, "%.300s/%.200s", cli_root, name);
    return path;
}

void cli_shell(const char *format, ...) {
    static char command[8 * CLI_PATH];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    ck_assert_msg(system(command) == 0, "%s", command);
}

static void make_folder(void) {
    snprintf(cli_root, sizeof cli_root, "/tmp/check_ex_cli.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(cli_root));
    strcpy(cli_trace, cli_path("t.jsonl"));
    strcpy(cli_replayed, cli_path("r.jsonl"));
    strcpy(out_path, cli_path("out"));
    strcpy(err_path, cli_path("err"));
}

static void remove_folder(void) {
    cli_shell("rm -rf '%s'", cli_root);
}

void cli_read_file(const char *path, char *text) {
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, CLI_CAPACITY - 1, file);
    text[length] = '\0';
    fclose(file);
}

static void write_how(const char *path, const char *how, const void *bytes, size_t count) {
    FILE *file = fopen(path, how);
    ck_assert_msg(file != NULL, "cannot write %s", path);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

void cli_write_file(const char *path, const char *text) {
    write_how(path, "w", text, strlen(text));
}

void cli_append_file(const char *path, const char *text) {
    write_how(path, "a", text, strlen(text));
}

void cli_write_bytes(const char *path, const void *bytes, size_t count) {
    write_how(path, "wb", bytes, count);
}

void cli_write_tensor(const char *path, const char *name, const char *shape, size_t bytes) {
    char file[1024] = "";
    const int length = snprintf(
        file + 8, 256, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[0,%zu]}}", name,
        shape, bytes);
    ck_assert_int_lt(length, 256);
    ck_assert_uint_lt(8 + (size_t)length + bytes, sizeof file);
    file[0] = (char)length;
    cli_write_bytes(path, file, 8 + (size_t)length + bytes);
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

void cli_one_line(const char *begin) {
    ck_assert_msg(strncmp(cli_err, begin, strlen(begin)) == 0, "'%s' is not '%s...'", cli_err,
                  begin);
    ck_assert_msg(*cli_err && strchr(cli_err, '\n') == cli_err + strlen(cli_err) - 1,
                  "not one line: %s", cli_err);
}

int cli_has_full_disk(const char *test) {
    int is_there = access("/dev/full", W_OK) == 0;
    if (!is_there) suite_skip(test, "no /dev/full here");
    return is_there;
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

TCase *cli_folder_case(const char *name) {
    TCase *test_case = suite_case_named(name);
    tcase_add_checked_fixture(test_case, make_folder, remove_folder);
    return test_case;
}

TCase *cli_case_named(const char *name) {
    TCase *test_case = cli_folder_case(name);
    tcase_set_timeout(test_case, 300); /* several runs, each of which loads libtorch */
    tcase_add_checked_fixture(test_case, find_program, NULL);
    return test_case;
}
