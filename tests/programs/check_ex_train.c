/*
 * check_ex_train.c - build/examples/train and build/examples/finetune as a person runs them: what they print and leave
 * behind, a signal, what does not fit, wrong flags; and that they stay short.
 */
#include "cli.h"
#include "program_path.h"

#include <memtrain/safetensors.h>

#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *few;

static void find(const char *relative, char *path) {
    char self[CLI_PATH];
    ck_assert(ex_program_path(NULL, self, sizeof self));
    ck_assert_msg(ex_find_in_tree(self, relative, path, CLI_PATH), "there is no %s", relative);
}

/* Two classes of seven pictures. Files are written into the folder of the test. */
static void set_up(void) {
    char food[CLI_PATH];
    find("examples/data/food", food);
    few = cli_path("few");
    cli_shell("for c in fruit drink; do mkdir -p '%s'/$c && for f in $(ls '%s'/$c | head -7); do "
              "ln -s '%s'/$c/$f '%s'/$c/; done; done",
              few, food, food, few);
    ck_assert_int_eq(chdir(cli_root), 0);
}

/* A number behind the last of these words. */
static double number_behind(const char *words) {
    const char *found = NULL;
    for (const char *at = cli_out; (at = strstr(at, words)) != NULL; at++) found = at;
    ck_assert_msg(found != NULL, "'%s' is not in '%s'", words, cli_out);
    return atof(found + strlen(words));
}

TEST("programs", a_folder_of_pictures) {
    mt_safetensors *file;
    EXPECT(0, "--data", few, "--epochs", "3", "--budget", "240MiB");
    ck_says(cli_out, "epoch 1  loss ", "epoch 3  loss ", "validation loss ",
            "\ndone in chunks of ");
    ck_assert_double_le(number_behind(", peak "), 240);
    ck_ok(mt_safetensors_open("resnet18.safetensors", &file));
    mt_safetensors_free(file);
    ck_ok(mt_safetensors_open("train.ckpt", &file));
    const char *position = mt_safetensors_metadata(file, "memtrain.extra");
    ck_contains(position, "\"epochs_done\":3,\"batches_done\":0");
    mt_safetensors_free(file);
}

/* It ends after the step that is under way, and leaves its files. */
TEST("programs", a_signal) {
    const char *const arguments[] = {"--data", few, "--epochs", "100000", NULL};
    const struct timespec moment = {0, 20000000};
    pid_t child = cli_start(arguments);
    for (int i = 0; i < 6000 && access("train.ckpt", F_OK) != 0; i++) nanosleep(&moment, NULL);
    ck_assert_int_eq(kill(child, SIGINT), 0);
    ck_assert_int_eq(cli_finish(child), 0);
    ck_contains(cli_out, "\nstopped in chunks of ");
    ck_assert_int_eq(access("resnet18.safetensors", F_OK), 0);
}

TEST("programs", what_does_not_fit) {
    EXPECT(3, "--data", few, "--budget", "180MiB");
    ck_says(cli_err, "does not fit on cpu", "What would make it fit:");
    EXPECT(3, "--data", few, "--budget", "100MiB"); /* not even the parameters */
    ck_contains(cli_err, "train: ");
    ck_assert_int_ne(access("resnet18.safetensors", F_OK), 0);
}

/* Also where the first weights have no room: what the network takes is told, and a budget that then does. */
static const char *const too_small[] = {"20MiB", "100MiB", "180MiB"};

TEST_LOOP("programs", what_would_fit, LENGTH(too_small)) {
    char budget[32], unit[8];
    double size;
    EXPECT(3, "--data", few, "--budget", too_small[_i]);
    const char *alone = strstr(cli_err, "train: the network alone, with its gradients");
    ck_assert_int_eq(alone != NULL, _i < 2);
    if (alone) ck_says(alone, "takes 170.", "above the budget of ", too_small[_i] + 3);
    const char *told = strstr(cli_err, "train: a budget of ");
    ck_assert_ptr_nonnull(told);
    ck_assert_int_eq(sscanf(told, "train: a budget of %lf %7s fits", &size, unit), 2);
    ck_assert_double_ge(size, 171);
    snprintf(budget, sizeof budget, "%.1f%s", size, unit);
    EXPECT(0, "--data", few, "--epochs", "1", "--budget", budget);
}

/* One line tells of all of them. */
TEST("programs", files_that_are_skipped) {
    cli_write_file(cli_path("few/drink/notes.txt"), "no picture\n");
    cli_write_file(cli_path("few/fruit/broken.jpg"), "\377\330\377");
    EXPECT(0, "--data", few, "--epochs", "1");
    ck_contains(cli_out, "2 files were skipped, no picture or broken; the first: ");
    ck_contains(cli_out, "few/drink/notes.txt: ");
    ck_assert_ptr_null(strstr(cli_out, "broken.jpg"));
    ck_assert_ptr_null(strstr(cli_err, "broken.jpg"));
}

/* Before the first epoch, and not after the last. */
static const char *const outputs[][2] = {{"resnet18.safetensors", "weights"},
                                         {"train.ckpt", "checkpoint"}};

TEST_LOOP("programs", what_cannot_be_written, LENGTH(outputs)) {
    char line[128];
    ck_assert_int_eq(mkdir(outputs[_i][0], 0700), 0);
    EXPECT(2, "--data", few, "--epochs", "1");
    snprintf(line, sizeof line, "train: %s: '%s' is there and is not a regular file",
             outputs[_i][1], outputs[_i][0]);
    ck_contains(cli_err, line);
    ck_assert_str_eq(cli_out, "");
}

TEST("programs", flags) {
    EXPECT(0, "--help");
    ck_contains(cli_out, "--data DIR");
    EXPECT(2, "--budget", "much");
    ck_contains(cli_err, "train: --budget: 'much'");
    EXPECT(2, "--epochs", "0");
    ck_contains(cli_err, "train: --epochs: '0'");
    EXPECT(2, "--data", "/nowhere");
    ck_contains(cli_err, "train: --data: /nowhere");
    EXPECT(2, "--batch", "3");
}

/* Most digits are told right, guessing: 50 %. */
TEST("programs", even_or_odd) {
    cli_take_program("finetune");
    EXPECT(0, "8MiB");
    ck_contains(cli_out, "digits  epoch 1  loss ");
    ck_assert_double_ge(number_behind("best accuracy "), 70);
    ck_assert_int_eq(access("digits.safetensors", F_OK), 0);
    EXPECT(0, "--help");
    ck_contains(cli_out, "Usage: finetune [BUDGET");
    EXPECT(1, "much");
    ck_contains(cli_err, "'much'");
    EXPECT(1, "64KiB");
    ck_contains(cli_err, "there is no room");
}

/* Usage on standard output, and nothing is done. */
TEST("programs", all_tell_their_usage) {
    char tool[CLI_PATH];
    find("tools/make_pictures.py", tool);
    cli_shell("for p in '%s'/../examples/*; do \"$p\" --help >told && grep -q '^Usage: ' told || "
              "{ echo \"$p\"; exit 1; }; done",
              cli_self());
    cli_shell("! command -v python3 >told || python3 '%s' --help | grep -q '^usage: '", tool);
}

static const struct {
    const char *path;
    int most;
} lengths[] = {{"examples/train.c", 150}, {"examples/finetune.cpp", 85}};

TEST_LOOP("programs", how_long_they_are, LENGTH(lengths)) {
    char path[CLI_PATH];
    int lines = 0;
    find(lengths[_i].path, path);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    ck_assert_int_le(lines, lengths[_i].most);
}

int main(void) {
    cli_program = "train";
    cli_case_named("programs");
    tcase_add_checked_fixture(suite_case_named("programs"), set_up, NULL);
    return suite_run_named("ex_train");
}
