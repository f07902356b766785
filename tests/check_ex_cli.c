/*
 * check_ex_cli.c - build/examples/food101 as a person runs it: exit status, lines, trace.
 *
 * The program is found beside this one. Pictures of 32 x 32 keep the runs short; --threads 1 and
 * --deterministic keep them the same on any machine.
 */
#include "common/suite.h"
#include "reexec.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CAPACITY = 65536, PATH = 512, MOST_ARGUMENTS = 32 };

static char root[PATH], program[PATH], trace[PATH], replayed[PATH], out_path[PATH], err_path[PATH];

/* What a run left behind. */
static char out[CAPACITY], err[CAPACITY];

/* ---- running ------------------------------------------------------------------------------------- */

static void find_program(void) {
    char self[PATH - 32];
    ck_assert(ex_program_path(NULL, self, sizeof self));
    *strrchr(self, '/') = '\0';
    snprintf(program, sizeof program, "%s/../examples/food101", self);
    ck_assert_msg(access(program, X_OK) == 0, "%s is not there", program);
}

static void set_up(void) {
    snprintf(root, sizeof root, "/tmp/check_ex_cli.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(trace, sizeof trace, "%.400s/t.jsonl", root);
    snprintf(replayed, sizeof replayed, "%.400s/r.jsonl", root);
    snprintf(out_path, sizeof out_path, "%.400s/out", root);
    snprintf(err_path, sizeof err_path, "%.400s/err", root);
    find_program();
}

static void tear_down(void) {
    char command[PATH + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    ck_assert_int_eq(system(command), 0);
}

static void read_file(const char *path, char *text) {
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(text, 1, CAPACITY - 1, file);
    text[length] = '\0';
    fclose(file);
}

static void redirect(const char *path, int to) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, to) < 0) _exit(99);
}

/* Starts the program with both streams going to files; the arguments end with NULL. */
static pid_t start(const char *const *arguments) {
    char *argv[MOST_ARGUMENTS + 2] = {program};
    for (int i = 0; arguments[i]; i++) {
        ck_assert_int_lt(i, MOST_ARGUMENTS);
        argv[i + 1] = (char *)arguments[i];
    }
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child) return child;
    redirect(out_path, 1);
    redirect(err_path, 2);
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
    execv(program, argv);
    _exit(99);
}

/* Exit status of the child, 128 + number for a signal; out and err are filled in. */
static int finish(pid_t child) {
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    read_file(out_path, out);
    read_file(err_path, err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect(int expected, const char *const *arguments) {
    int status = finish(start(arguments));
    ck_assert_msg(status == expected, "exit status %d instead of %d\n%s%s", status, expected, out,
                  err);
}

#define SMALL "--device", "cpu", "--image-size", "32", "--threads", "1", "--deterministic"
#define EXPECT(status, ...) expect(status, (const char *const[]){__VA_ARGS__, NULL})

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

/* A number of the n-th line of an event; -1 when there is none. */
static long long number(const char *path, const char *name, int n, const char *key) {
    json_t *object = event(path, name, n);
    const json_t *value = json_object_get(object, key);
    long long result = json_is_integer(value) ? json_integer_value(value) : -1;
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

static void expect_same_state(void) {
    char first[65], second[65];
    state_of(trace, first);
    state_of(replayed, second);
    ck_assert_str_eq(first, second);
}

/* Bytes that a whole batch of 32 small pictures needs, as one chunk. */
static size_t whole_batch_bytes(void) {
    EXPECT(0, SMALL, "--steps", "1", "--budget", "auto", "--micro-batch", "32", "--trace", trace);
    long long bytes = number(trace, "step", 1, "peak_bytes");
    ck_assert_int_gt(bytes, 0);
    return (size_t)bytes;
}

/* A budget in which a batch of 32 does not fit whole. */
static const char *tight_budget(void) {
    static char text[32];
    snprintf(text, sizeof text, "%zu", whole_batch_bytes() - 1);
    return text;
}

/* ---- flags --------------------------------------------------------------------------------------- */

START_TEST(help_and_version_go_to_standard_output) {
    EXPECT(0, "--help");
    ck_contains(out, "--profile");
    ck_contains(out, "ultra-safe 4");
    ck_assert_str_eq(err, "");
    EXPECT(0, "--version");
    ck_contains(out, "food101: libmemtrain " MT_VERSION_STRING);
    ck_assert_str_eq(err, "");
}
END_TEST

static const char *const wrong[][3] = {
    {"--batch", "none", "from 1"},
    {"--profile", "fast", "ultra-safe, safe, moderate, target or original"},
    {"--arch", "resnet19", "resnet18 or resnet34"},
    {"--device", "sim", "not in this version"},
    {"--device", "mps", "cannot be used here"},
    {"--budget", "much", "600MiB"},
    {"--data", "/nonexistent", "FOLDER/CLASS/picture.jpg"},
    {"--trace", "/nonexistent/t", "No such file"},
    {"--replay", "/nonexistent/t", "No such file"},
    {"--dev-samples", "3", "too few for 8 classes"},
    {"--min-micro-batch", "33", "at most the 32 of --batch"},
};

START_TEST(wrong_values_exit_2_with_one_line) {
    if (strcmp(wrong[_i][1], "mps") == 0 && access("/System/Library", F_OK) == 0) return;
    EXPECT(2, wrong[_i][0], wrong[_i][1]);
    ck_assert_str_eq(out, "");
    ck_assert_msg(strncmp(err, "food101: --", 11) == 0, "%s", err);
    ck_assert_msg(strchr(err, '\n') == err + strlen(err) - 1, "not one line: %s", err);
    ck_contains(err, wrong[_i][1]);
    ck_contains(err, wrong[_i][2]);
}
END_TEST

/* ---- runs ---------------------------------------------------------------------------------------- */

START_TEST(a_run_says_what_it_did) {
    EXPECT(0, SMALL, "--epochs", "2", "--profile", "moderate", "--dev-samples", "60", "--trace",
           trace);
    ck_contains(out, "8 classes; always guessing '");
    ck_contains(out, "\nepoch 1  train loss ");
    ck_contains(out, "\nepoch 2  train loss ");
    ck_contains(out, "  validation loss ");
    ck_contains(out, "\nvalidation accuracy ");
    ck_contains(out, "\nbudget 240.0 MiB, peak ");
    ck_contains(out, " for batch 16; 0 OOMs met, ");
    ck_contains(out, "; state sha256 ");
    ck_contains(err, "epoch 1/2  step ");
    ck_assert_ptr_null(strchr(err, '\r'));
    ck_assert_int_eq(number(trace, "program", 1, "threads"), 1);
    ck_assert_int_eq(number(trace, "epoch", 2, "epoch"), 2);
    ck_assert_int_gt(number(trace, "end", 1, "steps"), 2);
}
END_TEST

START_TEST(the_pictures_are_found_from_anywhere) {
    ck_assert_int_eq(chdir("/"), 0);
    EXPECT(0, SMALL, "--steps", "1", "--epochs", "1", "--progress", "off");
    ck_assert_str_eq(err, "");
}
END_TEST

START_TEST(two_runs_are_equal) {
    EXPECT(0, SMALL, "--steps", "3", "--trace", trace);
    EXPECT(0, SMALL, "--steps", "3", "--trace", replayed);
    expect_same_state();
}
END_TEST

START_TEST(explaining_changes_nothing) {
    EXPECT(0, SMALL, "--steps", "2", "--trace", trace);
    EXPECT(0, SMALL, "--steps", "2", "--trace", replayed, "--explain");
    ck_contains(out, "optimiser state");
    ck_contains(out, "--budget 240MiB");
    ck_contains(out, "A batch of 32 is cut into ");
    expect_same_state();
}
END_TEST

START_TEST(explaining_alone) {
    EXPECT(0, SMALL, "--epochs", "0", "--explain");
    ck_contains(out, "What a chunk of the batch needs");
    ck_assert_ptr_null(strstr(out, "epoch 1"));
}
END_TEST

START_TEST(a_loss_that_explodes_stops_the_run) {
    EXPECT(1, SMALL, "--optimizer", "sgd", "--lr", "1e30", "--steps", "5");
    ck_contains(err, "food101: the loss of step ");
    ck_contains(err, "not finite");
    ck_contains(err, "--lr");
}
END_TEST

/* ---- budgets ------------------------------------------------------------------------------------- */

START_TEST(a_budget_is_kept_where_the_whole_batch_does_not_fit) {
    const char *budget = tight_budget();
    EXPECT(3, SMALL, "--budget", budget, "--micro-batch", "32", "--steps", "2");
    ck_contains(err, "A batch of 32 samples does not fit on cpu");
    ck_contains(err, "--micro-batch auto");
    ck_contains(err, "--budget SIZE");
    EXPECT(0, SMALL, "--budget", budget, "--epochs", "1", "--trace", trace);
    for (int n = 1; n <= 7; n++) {
        ck_assert_int_eq(number(trace, "step", n, "samples"), 32);
        ck_assert_int_le(number(trace, "step", n, "peak_bytes"),
                         number(trace, "step", n, "budget_bytes"));
        ck_assert_int_eq(number(trace, "step", n, "retries"), 0);
    }
    ck_assert_int_eq(number(trace, "end", 1, "ooms"), 0);
    ck_assert_int_le(number(trace, "end", 1, "samples_discarded"), 6);
}
END_TEST

START_TEST(a_model_that_does_not_fit_exits_3) {
    EXPECT(3, SMALL, "--budget", "100MiB");
    ck_contains(err, "parameters 42.7 MiB");
    ck_contains(err, "--optimizer sgd");
    ck_assert_ptr_null(strstr(err, "--image-size"));
}
END_TEST

/* ---- recoveries ---------------------------------------------------------------------------------- */

static const char *const faults[] = {"2:1", "2:60", "2:200", "2:500", "2:900"};

START_TEST(a_recovery_ends_as_its_replay) {
    EXPECT(0, SMALL, "--steps", "3", "--micro-batch", "11", "--inject-oom", faults[_i], "--trace",
           trace, "--progress", "off");
    ck_assert_str_eq(err, "");
    ck_contains(out, "; 1 OOM met, ");
    ck_assert_int_eq(number(trace, "oom", 1, "step"), 2);
    ck_assert_int_eq(number(trace, "step", 2, "retries"), 1);
    EXPECT(0, SMALL, "--replay", trace, "--trace", replayed);
    ck_contains(out, "; 0 OOMs met, ");
    expect_same_state();
}
END_TEST

START_TEST(a_fault_that_stays_exits_3) {
    EXPECT(3, SMALL, "--steps", "3", "--inject-oom", "2:40:persistent", "--trace", trace);
    ck_contains(err, "food101: ");
    ck_assert_int_eq(number(trace, "step", 1, "step"), 1);
    ck_assert_int_eq(number(trace, "step", 2, "step"), -1);
}
END_TEST

START_TEST(a_fault_that_never_comes_is_told) {
    EXPECT(0, SMALL, "--steps", "2", "--inject-oom", "2:1000000");
    ck_contains(err, "warning: --inject-oom: step 2 made ");
    EXPECT(0, SMALL, "--steps", "2", "--inject-oom", "9:1");
    ck_contains(err, "warning: --inject-oom: the run had 2 steps");
}
END_TEST

START_TEST(a_replay_stops_where_the_trace_ends) {
    EXPECT(0, SMALL, "--steps", "2", "--micro-batch", "8", "--trace", trace);
    EXPECT(0, SMALL, "--replay", trace, "--trace", replayed);
    ck_assert_int_eq(number(replayed, "end", 1, "steps"), 2);
    expect_same_state();
}
END_TEST

START_TEST(a_replay_of_another_run_is_refused) {
    EXPECT(0, SMALL, "--steps", "2", "--trace", trace);
    EXPECT(2, SMALL, "--replay", trace, "--batch", "16");
    ck_contains(err, "t.jsonl', line ");
    ck_contains(err, "32 samples there and 16 here");
    EXPECT(2, "--image-size", "32", "--threads", "2", "--replay", trace);
    ck_contains(err, "food101: --threads: '2'");
}
END_TEST

/* ---- pictures ------------------------------------------------------------------------------------ */

static void copy_class(const char *class_name, const char *files) {
    char command[4 * PATH];
    snprintf(command, sizeof command, "mkdir -p %s/data/%s && cp %s %s/data/%s/", root, class_name,
             files, root, class_name);
    ck_assert_int_eq(system(command), 0);
}

static void write_broken(const char *class_name) {
    char path[2 * PATH];
    snprintf(path, sizeof path, "%s/data/%s", root, class_name);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/data/%s/broken.jpg", root, class_name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("not a picture", file);
    fclose(file);
}

START_TEST(bad_pictures_are_skipped_by_name) {
    char data[PATH + 8];
    snprintf(data, sizeof data, "%s/data", root);
    copy_class("sweets", "examples/data/food/sweets/*");
    copy_class("drink", "examples/data/food/drink/*");
    write_broken("drink");
    EXPECT(0, SMALL, "--data", data, "--steps", "1", "--epochs", "1", "--batch", "16", "--progress",
           "off");
    ck_contains(err, "warning: skipped ");
    ck_contains(err, "drink/broken.jpg");
    ck_contains(out, "2 classes");
    ck_assert_ptr_null(strstr(out, "among the best 5"));
    write_broken("stones");
    EXPECT(2, SMALL, "--data", data);
    ck_contains(err, "food101: --data: ");
    ck_contains(err, "stones");
}
END_TEST

/* ---- Ctrl-C -------------------------------------------------------------------------------------- */

static void sleep_a_bit(void) {
    const struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
}

/* By its text: the last line may be half written. */
static void wait_for_step(int n) {
    static char text[CAPACITY];
    char line[64];
    snprintf(line, sizeof line, "\"event\":\"step\",\"step\":%d,", n);
    for (int i = 0; i < 6000; i++) {
        if (access(trace, R_OK) == 0) {
            read_file(trace, text);
            if (strstr(text, line)) return;
        }
        sleep_a_bit();
    }
    ck_abort_msg("no step %d in the trace", n);
}

START_TEST(an_interrupt_finishes_the_step) {
    const char *const arguments[] = {SMALL, "--epochs", "1000", "--trace", trace, NULL};
    pid_t child = start(arguments);
    wait_for_step(2);
    ck_assert_int_eq(kill(child, SIGINT), 0);
    ck_assert_int_eq(finish(child), 130);
    ck_contains(out, "stopped by Ctrl-C after step ");
    ck_contains(out, "; state sha256 ");
    ck_assert_int_ge(number(trace, "end", 1, "steps"), 2);
    EXPECT(0, SMALL, "--epochs", "1000", "--replay", trace, "--trace", replayed);
    expect_same_state();
}
END_TEST

#ifdef __linux__
START_TEST(threads_wait_asleep) {
    const char *const arguments[] = {SMALL, "--epochs", "1000", "--trace", trace, NULL};
    static char environment[CAPACITY];
    char path[64];
    int found = 0;
    pid_t child = start(arguments);
    wait_for_step(1);
    snprintf(path, sizeof path, "/proc/%d/environ", (int)child);
    read_file(path, environment);
    for (const char *e = environment; *e; e += strlen(e) + 1)
        found = found || strcmp(e, "OMP_WAIT_POLICY=PASSIVE") == 0;
    kill(child, SIGKILL);
    finish(child);
    ck_assert(found);
}
END_TEST
#endif

/* ---- suite --------------------------------------------------------------------------------------- */

static TCase *slow_case(Suite *suite, const char *name) {
    TCase *test_case = suite_case(suite, name);
    tcase_set_timeout(test_case, 300); /* several runs, each of which loads libtorch */
    tcase_add_checked_fixture(test_case, set_up, tear_down);
    return test_case;
}

int main(void) {
    Suite *suite = suite_create("ex_cli");
    TCase *flags = slow_case(suite, "flags"), *runs = slow_case(suite, "runs");
    TCase *budgets = slow_case(suite, "budgets"), *recoveries = slow_case(suite, "recoveries");
    TCase *pictures = slow_case(suite, "pictures"), *interrupts = slow_case(suite, "interrupts");

    tcase_add_test(flags, help_and_version_go_to_standard_output);
    tcase_add_loop_test(flags, wrong_values_exit_2_with_one_line, 0, LENGTH(wrong));
    tcase_add_test(runs, a_run_says_what_it_did);
    tcase_add_test(runs, the_pictures_are_found_from_anywhere);
    tcase_add_test(runs, two_runs_are_equal);
    tcase_add_test(runs, explaining_changes_nothing);
    tcase_add_test(runs, explaining_alone);
    tcase_add_test(runs, a_loss_that_explodes_stops_the_run);
    tcase_add_test(budgets, a_budget_is_kept_where_the_whole_batch_does_not_fit);
    tcase_add_test(budgets, a_model_that_does_not_fit_exits_3);
    tcase_add_loop_test(recoveries, a_recovery_ends_as_its_replay, 0, LENGTH(faults));
    tcase_add_test(recoveries, a_fault_that_stays_exits_3);
    tcase_add_test(recoveries, a_fault_that_never_comes_is_told);
    tcase_add_test(recoveries, a_replay_stops_where_the_trace_ends);
    tcase_add_test(recoveries, a_replay_of_another_run_is_refused);
    tcase_add_test(pictures, bad_pictures_are_skipped_by_name);
    tcase_add_test(interrupts, an_interrupt_finishes_the_step);
#ifdef __linux__
    tcase_add_test(interrupts, threads_wait_asleep);
#endif
    return suite_run(suite);
}
