/*
 * check_ex_resume.c - food101 in parts: a run that is saved and goes on ends as the one that was never
 * stopped, to the bit; and files that it cannot go on from are refused before anything is trained.
 */
#include "cli.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* 40 pictures are enough: 3 to 5 steps an epoch. */
#define EIGHTS SMALL, "--dev-samples", "40", "--batch", "8", "--progress", "off"

static char file[CLI_PATH];

static void name_file(void) {
    snprintf(file, sizeof file, "%.400s/c", cli_root);
}

static int is_there(const char *end) {
    char name[CLI_PATH + 16];
    snprintf(name, sizeof name, "%s%s", file, end);
    return access(name, F_OK) == 0;
}

/* Stopped in the middle of an epoch, at its end, after it; twice in a row. */
static const char *const stops[] = {"1", "4", "5", "7"};

TEST("parts", in_parts_as_in_one) {
    EXPECT(0, EIGHTS, "--epochs", "3", "--trace", cli_trace);
    for (int i = 0; i < LENGTH(stops); i++) {
        snprintf(file, sizeof file, "%.400s/c%d", cli_root, i);
        EXPECT(0, EIGHTS, "--epochs", "3", "--steps", stops[i], "--save", file);
        ck_assert(is_there("") && !is_there(".memtrain-tmp"));
        EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "8", "--save", file, "--resume", file);
        ck_assert(is_there(".1"));
        EXPECT(0, EIGHTS, "--epochs", "3", "--resume", file, "--trace", cli_replayed);
        ck_contains(cli_out, "epoch 3");
        cli_same_state();
    }
}

/* Each epoch is saved: the file and the one before it are those of the last two. */
TEST("parts", after_each_epoch) {
    EXPECT(0, EIGHTS, "--epochs", "3", "--save", file, "--trace", cli_trace);
    EXPECT(0, EIGHTS, "--epochs", "3", "--resume", file, "--trace", cli_replayed);
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"), 0);
    ck_contains(cli_err, "nothing is left to do: --epochs 3 are done");
    cli_same_state();
    EXPECT(0, EIGHTS, "--epochs", "3", "--resume", cli_path("c.1"), "--trace", cli_replayed);
    ck_assert_int_gt(cli_number(cli_replayed, "end", 1, "steps"), 0);
    cli_same_state();
    EXPECT(2, EIGHTS, "--epochs", "3", "--replay", cli_replayed);
    ck_contains(cli_err, "' is of a run that went on from '");
}

/* A run that is lost within an epoch goes on from the last step that was saved, not from the last epoch. */
TEST("parts", within_an_epoch) {
    EXPECT(0, EIGHTS, "--epochs", "3", "--trace", cli_trace);
    EXPECT(3, EIGHTS, "--epochs", "3", "--save", file, "--save-every", "5", "--inject-oom",
           "7:1:persistent");
    EXPECT(0, EIGHTS, "--epochs", "3", "--resume", file, "--trace", cli_replayed);
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"),
                     cli_number(cli_trace, "end", 1, "steps") - 5);
    cli_same_state();
}

/* A run from the first step on that saves each step; the file of before is kept beside it. */
static pid_t start_saving(void) {
    static const char *const run[] = {EIGHTS, "--epochs", "1000",    "--resume",
                                      file,   "--save",   file,      "--save-every",
                                      "1",    "--trace",  cli_trace, NULL};
    return cli_start(run);
}

static void save_first(void) {
    EXPECT(0, EIGHTS, "--epochs", "1000", "--steps", "1", "--save", file);
    cli_shell("cp '%s' '%s.before'", file, file);
}

static int stop_after(pid_t child, int step) {
    cli_wait_for_step(step);
    kill(child, SIGTERM);
    return cli_finish(child);
}

/* Another process writes the file for a while: the run goes on without it, and the next save that can is whole. */
TEST("parts", a_save_that_fails_for_a_while) {
    save_first();
    int other = open(cli_path("c.memtrain-tmp"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(flock(other, LOCK_EX), 0);
    pid_t child = start_saving();
    cli_wait_for_step(3);
    cli_shell("cmp '%s' '%s.before'", file, file);
    close(other);
    ck_assert_int_eq(stop_after(child, 6), 128 + SIGTERM);
    ck_says(cli_err, "c' is not written now, and the next save tries again: cannot write '",
            "by another process");
    EXPECT(0, EIGHTS, "--epochs", "1000", "--steps", "8", "--resume", file, "--trace", cli_trace);
    ck_assert_int_lt(cli_number(cli_trace, "end", 1, "steps"), 8 - 5 + 1);
}

/* No room for a file (a limit, for root too): the end of the run is an error, and the file of before is whole. */
TEST("parts", a_disk_that_stays_full) {
    const struct rlimit little = {1 << 20, RLIM_INFINITY};
    save_first();
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &little), 0);
    ck_assert_int_eq(stop_after(start_saving(), 3), 1);
    ck_says(cli_err, "the next save tries again: cannot write '", "food101: cannot write '");
    cli_shell("cmp '%s' '%s.before'", file, file);
    ck_assert(!is_there(".memtrain-tmp"));
}

/* Less is done, and nothing else changes. */
TEST("parts", no_validation) {
    EXPECT(0, EIGHTS, "--epochs", "2", "--trace", cli_trace);
    ck_contains(cli_out, "validation loss");
    EXPECT(0, EIGHTS, "--epochs", "2", "--no-validation", "--save", file, "--trace", cli_replayed);
    ck_assert_ptr_null(strstr(cli_out, "validation loss"));
    ck_assert(is_there("") && !is_there(".best"));
    cli_same_state();
}

/* A rate that knows nothing of the last epoch is the same in those that are done. */
static const char *const warmups[] = {"0", "6"};

TEST_LOOP("parts", for_more_epochs, LENGTH(warmups)) {
#define CONSTANT EIGHTS, "--schedule", "constant", "--warmup", warmups[_i]
    EXPECT(0, CONSTANT, "--epochs", "3", "--trace", cli_trace);
    EXPECT(0, CONSTANT, "--epochs", "1", "--save", file);
    EXPECT(0, CONSTANT, "--epochs", "3", "--resume", file, "--trace", cli_replayed);
    ck_contains(cli_out, "epoch 3");
    cli_same_state();
}

/* Where a run that goes on may end otherwise it says so, and why. */
#define OTHER_BITS "may end with other bits than a run that was not stopped: "
#define TIMED                                                                                      \
    "--device", "cpu", "--image-size", "32", "--threads", "1", "--dev-samples", "40", "--batch",   \
        "8", "--progress", "off", "--epochs", "3"

static const struct {
    const char *before[6], *after[6], *why; /* NULL: it does not */
} bits[] = {
    {{NULL}, {NULL}, "chunks are chosen anew, by what is measured; --deterministic or"},
    {{"--micro-batch", "4"}, {"--micro-batch", "4"}, NULL},
    {{"--micro-batch", "4"},
     {"--micro-batch", "2"},
     "chunks are by --micro-batch 2, and were by --micro-batch 4"},
    {{"--deterministic"},
     {"--micro-batch", "4"},
     "chunks are by --micro-batch 4, and were by --deterministic"},
    {{NULL}, {"--deterministic"}, "chunks are by --deterministic, and were by what is measured"},
    {{"--deterministic"}, {"--deterministic"}, NULL},
    {{"--deterministic", "--inject-oom", "2:20"}, {"--deterministic"}, NULL},
    {{"--deterministic", "--budget", "300MiB"},
     {"--deterministic", "--budget", "310MiB"},
     "the budget is 310.0 MiB, and was 300.0 MiB"},
};

TEST_LOOP("parts", other_bits_are_told, LENGTH(bits)) {
    const char *const *b = bits[_i].before, *const *a = bits[_i].after;
    EXPECT(0, TIMED, "--steps", "4", "--save", file, b[0], b[1], b[2], b[3]);
    EXPECT(0, TIMED, "--steps", "5", "--resume", file, a[0], a[1], a[2], a[3]);
    ck_contains(cli_err, "going on from '");
    if (bits[_i].why)
        ck_contains(cli_err, bits[_i].why);
    else
        ck_assert_ptr_null(strstr(cli_err, OTHER_BITS));
}

/* A file whose first part had steps planned anew. */
TEST("parts", memory_that_ran_out_is_told) {
    EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "4", "--save", file);
    cli_shell("LC_ALL=C sed 's/replans\\\\\":0/replans\\\\\":3/' '%s' >'%s.told'", file, file);
    strcat(file, ".told");
    EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "5", "--resume", file);
    ck_contains(cli_err, OTHER_BITS "what was learnt when memory ran out, in 3 of its steps, is");
}

TEST("parts", a_signal_saves) {
    char steps[32];
    const char *const arguments[] = {EIGHTS,    "--epochs", "1000", "--trace",
                                     cli_trace, "--save",   file,   NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(2);
    ck_assert_int_eq(kill(child, SIGINT), 0);
    ck_assert_int_eq(cli_finish(child), 128 + SIGINT);
    ck_contains(cli_out, "which is done; go on with --resume ");
    snprintf(steps, sizeof steps, "%lld", cli_number(cli_trace, "end", 1, "steps") + 3);
    EXPECT(0, EIGHTS, "--epochs", "1000", "--steps", steps, "--trace", cli_trace);
    EXPECT(0, EIGHTS, "--epochs", "1000", "--steps", steps, "--trace", cli_replayed, "--resume",
           file);
    ck_assert_int_eq(cli_number(cli_replayed, "end", 1, "steps"), 3);
    cli_same_state();
}

/* A file that is being written is there beside the others, under a name that is not the last one. */
static int is_saving(void) {
    int found = 0;
    DIR *folder = opendir(cli_root);
    ck_assert_ptr_nonnull(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        found = found || strstr(entry->d_name, "tmp");
    closedir(folder);
    return found;
}

/* What a save leaves that is ended in its middle, or asked to end: a file to go on from. */
static const int ending[] = {SIGKILL, SIGTERM};

TEST_LOOP("parts", a_signal_during_a_save, LENGTH(ending)) {
    const char *const arguments[] = {EIGHTS,    "--epochs", "1000", "--trace",
                                     cli_trace, "--save",   file,   NULL};
    pid_t child = cli_start(arguments);
    while (!is_there("")) usleep(1000);
    while (!is_saving()) usleep(100);
    ck_assert_int_eq(kill(child, ending[_i]), 0);
    ck_assert_int_eq(cli_finish(child), 128 + ending[_i]);
    ck_assert(is_there(""));
    EXPECT(0, EIGHTS, "--epochs", "1000", "--steps", "1", "--resume", file);
    ck_contains(cli_err, "going on from '");
}

static const struct {
    const char *flags[2], *word;
} others[] = {
    {{"--arch", "resnet34"}, "--arch: resnet34, but '"},
    {{"--lr", "0.5"}, "--lr: 0.5, but '"},
    {{"--seed", "2"}, "--seed: 2, but '"},
    {{"--image-size", "64"}, "--image-size: 64, but '"},
    {{"--epochs", "4"}, "was written with 3, over which --schedule cosine goes down; a run with"},
    {{"--replay", "x"}, "--resume: not together with --replay"},
    {{"--save", "/nonexistent/c"}, "--save: cannot write '/nonexistent/c': No such file"},
    {{"--save", "/dev/null"}, "--save: '/dev/null' is there and is not a regular file"},
    {{"--save", "/tmp"}, "--save: '/tmp' is there and is not a regular file"},
    {{"--resume", "/nonexistent/c"}, "--resume: cannot open '/nonexistent/c': No such file"},
};

TEST("refused", another_run_is_refused) {
    EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "1", "--save", file);
    for (int i = 0; i < LENGTH(others); i++) {
        EXPECT(2, EIGHTS, "--epochs", "3", "--resume", file, others[i].flags[0],
               others[i].flags[1]);
        ck_contains(cli_err, others[i].word);
        ck_assert_ptr_null(strstr(cli_out, "epoch "));
    }
}

/* A folder of some of the pictures, of so many classes. */
static const char *copy_data(int classes) {
    const char *data = cli_path("data");
    cli_shell("mkdir '%s' && for c in $(ls examples/data/food | grep -v '\\.' | head -n %d); do "
              "cp -r examples/data/food/$c '%s'; done",
              data, classes, data);
    return data;
}

/* As one of an earlier version, which told no names. */
static void forget_names(void) {
    cli_shell("LC_ALL=C sed 's/label_hash/forgotten_/g' '%s' >'%s.old'", file, file);
    strcat(file, ".old");
}

/* Two classes of pictures: the same flags, and another last layer. */
TEST("refused", another_network_is_refused) {
    const char *data = copy_data(2);
    EXPECT(0, EIGHTS, "--steps", "1", "--save", file);
    forget_names();
    EXPECT(2, EIGHTS, "--data", data, "--resume", file);
    ck_contains(cli_err, "does not fit the model; different: fc.bias (F32 [");
    ck_assert_ptr_null(strstr(cli_out, "epoch "));
}

/* What is done to the folder between two parts of a run, and what the second says of it. */
static const char *const changes[][2] = {
    {"mv bread_carbs zwieback", "--resume: the classes, 2 of them, are not the 2 that '"},
    {"cp -r bread_carbs cake", "--resume: the classes, 3 of them, are not the 2 that '"},
    {"for f in drink/*; do mv $f drink/z${f#*/}; done",
     "--resume: the files, 40 of them, are not the 40"},
    {"rm -r drink && mkdir drink && cp bread_carbs/bread.png drink",
     "of them, are not the 40 that '"},
};

TEST_LOOP("refused", other_names_are_refused, LENGTH(changes)) {
    const char *data = copy_data(2);
    EXPECT(0, EIGHTS, "--data", data, "--steps", "1", "--save", file);
    cli_shell("cd '%s' && %s", data, changes[_i][0]);
    EXPECT(2, EIGHTS, "--data", data, "--resume", file);
    cli_one_line("food101: --resume: the ");
    ck_says(cli_err, changes[_i][1], "accepted: the data of that run");
    ck_assert_str_eq(cli_out, "");
}

/* The labels are mixed up, and nothing tells that they are. */
TEST("parts", names_that_are_not_told) {
    const char *data = copy_data(2);
    EXPECT(0, EIGHTS, "--data", data, "--steps", "1", "--save", file);
    cli_shell("cd '%s' && %s", data, changes[0][0]);
    forget_names();
    EXPECT(0, EIGHTS, "--data", data, "--steps", "2", "--resume", file);
    ck_contains(cli_err,
                "' does not tell names: whether its run had these classes and files is not");
}

/* Where the folder lies is no matter. */
TEST("parts", data_that_was_moved) {
    const char *data = copy_data(2), *moved = cli_path("moved");
    EXPECT(0, EIGHTS, "--data", data, "--steps", "1", "--save", file);
    cli_shell("mv '%s' '%s'", data, moved);
    EXPECT(0, EIGHTS, "--data", moved, "--resume", file);
    ck_assert_ptr_null(strstr(cli_err, "names"));
}

/* What is done is told, and that a run of more steps goes on. */
TEST("parts", steps_that_are_done) {
    EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "6", "--save", file);
    for (int steps = 5; steps <= 6; steps++) {
        char number[8], told[96];
        snprintf(number, sizeof number, "%d", steps);
        snprintf(told, sizeof told, "nothing is left to do: --steps %d are done, the file has 6",
                 steps);
        EXPECT(0, EIGHTS, "--epochs", "3", "--steps", number, "--resume", file);
        ck_says(cli_err, told, "with a larger --steps, or without it to the end of --epochs 3");
        ck_assert_ptr_null(strstr(cli_out, "epoch "));
    }
    EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "7", "--resume", file);
    ck_assert_ptr_null(strstr(cli_err, "nothing is left"));
    ck_contains(cli_out, "\nepoch 2");
}

/* Of another spelling, and beside --save: what is there stays as it is. */
TEST("refused", a_trace_does_not_end_what_is_read) {
    static const char *const ends[] = {"", ".1", ".best", ".memtrain-tmp"};
    char other[CLI_PATH + 16];
    struct stat before, after;
    EXPECT(0, EIGHTS, "--epochs", "3", "--steps", "1", "--save", file);
    ck_assert_int_eq(stat(file, &before), 0);
    for (int i = 0; i < LENGTH(ends); i++) {
        snprintf(other, sizeof other, "%.400s/./c%s", cli_root, ends[i]);
        EXPECT(2, EIGHTS, "--epochs", "3", i ? "--save" : "--resume", file, "--trace", other);
        ck_contains(cli_err, "food101: --trace: '");
        ck_contains(cli_err, i ? "of --save, '" : "of --resume, '");
        ck_assert_str_eq(cli_out, "");
    }
    ck_assert_int_eq(stat(file, &after), 0);
    ck_assert_int_eq(before.st_size, after.st_size);
    EXPECT(0, EIGHTS, "--epochs", "3", "--resume", file);
}

TEST("refused", a_damaged_file_is_refused) {
    EXPECT(0, EIGHTS, "--steps", "1", "--save", file);
    ck_assert_int_eq(truncate(file, 1000000), 0);
    EXPECT(2, EIGHTS, "--resume", file);
    ck_contains(cli_err, "is no safetensors file");
    EXPECT(2, EIGHTS, "--resume", cli_root);
    ck_contains(cli_err, "no regular file");
}

/* Before anything is trained, and not when the first epoch is over. */
TEST("refused", a_link_is_refused) {
    ck_assert_int_eq(symlink("/dev/null", file), 0);
    EXPECT(2, EIGHTS, "--save", file);
    ck_contains(cli_err, "is a symbolic link; accepted: a regular file");
    ck_assert_ptr_null(strstr(cli_out, "epoch "));
}

/* Whoever may not read the file may not read the weights beside it. */
TEST("parts", the_best_is_as_private) {
    struct stat info;
    ck_assert_int_eq(close(open(file, O_WRONLY | O_CREAT, 0600)), 0);
    EXPECT(0, EIGHTS, "--epochs", "1", "--save", file);
    ck_assert_int_eq(stat(cli_path("c.best"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
}

/* What is refused, or trains nothing, leaves the trace of an older run. */
TEST("parts", a_refused_run_leaves_the_trace) {
    struct stat before, after;
    EXPECT(0, EIGHTS, "--steps", "1", "--trace", cli_trace);
    ck_assert_int_eq(stat(cli_trace, &before), 0);
    EXPECT(2, EIGHTS, "--weights", "/nonexistent/w", "--trace", cli_trace);
    EXPECT(3, EIGHTS, "--budget", "20MiB", "--trace", cli_trace);
    EXPECT(0, EIGHTS, "--check", "--trace", cli_trace);
    ck_assert_int_eq(stat(cli_trace, &after), 0);
    ck_assert_int_eq(before.st_size, after.st_size);
}

int main(void) {
    cli_case_named("parts");
    cli_case_named("refused");
    tcase_add_checked_fixture(suite_case_named("parts"), name_file, NULL);
    tcase_add_checked_fixture(suite_case_named("refused"), name_file, NULL);
    return suite_run_named("ex_resume");
}
