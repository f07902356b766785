/*
 * check_ex_permissions.c - what a user may not read or write: told with the system's words and the name of what is
 * meant, before anything is trained.
 *
 * Nothing is forbidden to root: there the tests become nobody first. They are processes of their own each.
 */
#include "cli.h"
#include "folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static const char *data;

/* Two classes of two pictures each. */
static void copy_pictures(void) {
    data = cli_path("data");
    cli_shell("for c in drink sweets; do mkdir -p '%s'/$c && "
              "cp $(ls -d examples/data/food/$c/*.* | head -n 20) '%s'/$c; done",
              data, data);
}

static void become_nobody(void) {
    copy_pictures();
    if (getuid() != 0) return;
    cli_shell("chown -R %d:%d '%s'", NOBODY, NOBODY, cli_root);
    ck_assert_int_eq(setgid(NOBODY), 0);
    ck_assert_int_eq(setuid(NOBODY), 0);
}

/* Whether there is anything to see: the program can be run by this user, and modes are heeded. */
static int is_possible(void) {
    const char *probe = cli_path("probe");
    ck_assert_int_eq(mkdir(probe, 0000), 0);
    int heeded = access(probe, R_OK) != 0;
    ck_assert_int_eq(rmdir(probe), 0);
    int status = cli_finish(cli_start((const char *const[]){"--version", NULL}));
    if (!heeded || status != 0)
        printf("SKIP: permissions: %s\n",
               heeded ? "another user cannot run the program" : "modes are not heeded");
    return heeded && status == 0;
}

/* One line on standard error, nothing trained. */
static void refused(const char *flag, const char *name) {
    cli_one_line("food101: ");
    ck_says(cli_err, flag, name, "Permission denied");
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

/* ---- reading ------------------------------------------------------------------------------------- */

static const char *const folders[] = {"data", "data/sweets"};

TEST_LOOP("reading", a_folder_that_may_not_be_read, LENGTH(folders)) {
    if (!is_possible()) return;
    ck_assert_int_eq(chmod(cli_path(folders[_i]), 0300), 0);
    EXPECT(2, SMALL, "--data", data);
    ck_assert_int_eq(chmod(cli_path(folders[_i]), 0700), 0);
    refused("food101: --data: ", folders[_i]);
}

/* One picture is skipped, as any that cannot be used. */
TEST("reading", a_picture_that_may_not_be_read) {
    if (!is_possible()) return;
    cli_shell("chmod 0 \"$(ls -d '%s'/sweets/* | head -n 1)\"", data);
    EXPECT(0, SMALL, "--data", data, "--batch", "8", "--steps", "1", "--progress", "off");
    ck_says(cli_err, "warning: skipped ", "Permission denied");
    ck_contains(cli_out, "1 file was skipped, no picture or broken; the first: ");
}

static ex_status take(void *user, const char *path, const char *name, ex_error *error) {
    (void)path, (void)name, (void)error;
    ++*(int *)user;
    return EX_OK;
}

/* One that may not be read is not an empty one; one that is not there is. */
TEST("reading", a_folder_of_pngs) {
    ex_error error = {""};
    int count = 0;
    if (!is_possible()) return;
    ck_assert_int_eq(ex_folder_pngs(cli_path("nowhere"), take, &count, &error), EX_OK);
    ck_assert_int_eq(chmod(cli_path("data/sweets"), 0300), 0);
    ck_assert_int_eq(ex_folder_pngs(cli_path("data/sweets"), take, &count, &error), EX_EINPUT);
    ck_assert_int_eq(chmod(cli_path("data/sweets"), 0700), 0);
    ck_contains(error.text, "data/sweets: Permission denied");
    ck_assert_int_eq(count, 0);
}

/* ---- writing ------------------------------------------------------------------------------------- */

static const char *const writing[] = {"--save", "--trace", "--report"};

TEST_LOOP("writing", a_folder_that_may_not_be_written_to, LENGTH(writing)) {
    if (!is_possible()) return;
    ck_assert_int_eq(mkdir(cli_path("locked"), 0500), 0);
    EXPECT(2, SMALL, "--data", data, "--batch", "8", writing[_i], cli_path("locked/file"));
    refused(writing[_i], "locked/file");
}

/* Locked after the run has begun: the save fails, and says so. */
TEST("writing", a_folder_that_is_locked_later) {
    const char *file = cli_path("locked/file");
    if (!is_possible()) return;
    ck_assert_int_eq(mkdir(cli_path("locked"), 0700), 0);
    const char *const arguments[] = {SMALL,      "--data",     data,     "--batch", "8",
                                     "--epochs", "100000",     "--save", file,      "--trace",
                                     cli_trace,  "--progress", "off",    NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(1);
    ck_assert_int_eq(chmod(cli_path("locked"), 0500), 0);
    ck_assert_int_eq(cli_finish(child), 1);
    ck_assert_int_eq(chmod(cli_path("locked"), 0700), 0);
    ck_says(cli_err, "food101: ", "locked/file", "Permission denied");
}

/* Where activations wait in a file: the folder of temporary files, and one that is named. */
TEST("writing", a_folder_of_temporary_files) {
    char variable[CLI_PATH + 16];
    const char *const environment[] = {variable, NULL};
    if (!is_possible()) return;
    ck_assert_int_eq(mkdir(cli_path("locked"), 0500), 0);
    snprintf(variable, sizeof variable, "TMPDIR=%s", cli_path("locked"));
    cli_environment = environment;
    EXPECT(1, SMALL, "--data", data, "--batch", "8", "--steps", "1", "--offload", "file");
    refused("food101: ", "locked");
    EXPECT(2, SMALL, "--data", data, "--batch", "8", "--steps", "1", "--offload", "file",
           "--offload-dir", cli_path("locked"));
    refused("food101: --offload-dir: cannot write to '", "locked");
}

int main(void) {
    cli_case_named("reading");
    cli_case_named("writing");
    tcase_add_checked_fixture(suite_case_named("reading"), become_nobody, NULL);
    tcase_add_checked_fixture(suite_case_named("writing"), become_nobody, NULL);
    return suite_run_named("ex_permissions");
}
