/*
 * check_ex_permissions.c - what a user may not read or write: told with the system's words and the name of what is
 * meant, before anything is trained.
 *
 * Nothing is forbidden to root: there the tests become nobody first. They are processes of their own each.
 */
#include "cli.h"
#include "suite.h"
#include "folder.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534, PATH = CLI_PATH + 64 };

static char data[CLI_PATH];

/* Two classes of two pictures each. */
static void copy_pictures(void) {
    char command[4 * CLI_PATH];
    snprintf(data, sizeof data, "%.400s/data", cli_root);
    snprintf(command, sizeof command,
             "for c in drink sweets; do mkdir -p '%s'/$c && "
             "cp $(ls -d examples/data/food/$c/*.* | head -n 20) '%s'/$c; done",
             data, data);
    ck_assert_int_eq(system(command), 0);
}

static void become_nobody(void) {
    char command[2 * CLI_PATH];
    copy_pictures();
    if (getuid() != 0) return;
    snprintf(command, sizeof command, "chown -R %d:%d '%s'", NOBODY, NOBODY, cli_root);
    ck_assert_int_eq(system(command), 0);
    ck_assert_int_eq(setgid(NOBODY), 0);
    ck_assert_int_eq(setuid(NOBODY), 0);
}

/* Whether there is anything to see: the program can be run by this user, and modes are heeded. */
static int is_possible(void) {
    char probe[PATH];
    snprintf(probe, sizeof probe, "%s/probe", cli_root);
    ck_assert_int_eq(mkdir(probe, 0000), 0);
    int heeded = access(probe, R_OK) != 0;
    ck_assert_int_eq(rmdir(probe), 0);
    int status = cli_finish(cli_start((const char *const[]){"--version", NULL}));
    if (!heeded || status != 0)
        printf("SKIP: permissions: %s\n",
               heeded ? "another user cannot run the program" : "modes are not heeded");
    return heeded && status == 0;
}

static const char *below(const char *name) {
    static char path[PATH];
    snprintf(path, sizeof path, "%s/%s", cli_root, name);
    return path;
}

/* One line on standard error, nothing trained. */
static void refused(const char *flag, const char *name) {
    ck_contains(cli_err, flag);
    ck_contains(cli_err, name);
    ck_contains(cli_err, "Permission denied");
    ck_assert_msg(strchr(cli_err, '\n') == cli_err + strlen(cli_err) - 1, "not one line: %s",
                  cli_err);
    ck_assert_ptr_null(strstr(cli_out, "epoch 1"));
}

/* ---- reading ------------------------------------------------------------------------------------- */

static const char *const folders[] = {"data", "data/sweets"};

TEST_LOOP("reading", a_folder_that_may_not_be_read, LENGTH(folders)) {
    if (!is_possible()) return;
    ck_assert_int_eq(chmod(below(folders[_i]), 0300), 0);
    EXPECT(2, SMALL, "--data", data);
    ck_assert_int_eq(chmod(below(folders[_i]), 0700), 0);
    refused("food101: --data: ", folders[_i]);
}

/* One picture is skipped, as any that cannot be used. */
TEST("reading", a_picture_that_may_not_be_read) {
    char command[4 * CLI_PATH];
    if (!is_possible()) return;
    snprintf(command, sizeof command, "chmod 0 \"$(ls -d '%s'/sweets/* | head -n 1)\"", data);
    ck_assert_int_eq(system(command), 0);
    EXPECT(0, SMALL, "--data", data, "--batch", "8", "--steps", "1", "--progress", "off");
    ck_contains(cli_err, "warning: skipped ");
    ck_contains(cli_err, "Permission denied");
    ck_contains(cli_out, "1 files were skipped");
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
    ck_assert_int_eq(ex_folder_pngs(below("nowhere"), take, &count, &error), EX_OK);
    ck_assert_int_eq(chmod(below("data/sweets"), 0300), 0);
    ck_assert_int_eq(ex_folder_pngs(below("data/sweets"), take, &count, &error), EX_EINPUT);
    ck_assert_int_eq(chmod(below("data/sweets"), 0700), 0);
    ck_contains(error.text, "data/sweets: Permission denied");
    ck_assert_int_eq(count, 0);
}

/* ---- writing ------------------------------------------------------------------------------------- */

static const char *const writing[] = {"--save", "--trace", "--report"};

TEST_LOOP("writing", a_folder_that_may_not_be_written_to, LENGTH(writing)) {
    char file[PATH + 8];
    if (!is_possible()) return;
    ck_assert_int_eq(mkdir(below("locked"), 0500), 0);
    snprintf(file, sizeof file, "%s/file", below("locked"));
    EXPECT(2, SMALL, "--data", data, "--batch", "8", writing[_i], file);
    refused(writing[_i], "locked/file");
}

/* Locked after the run has begun: the save fails, and says so. */
TEST("writing", a_folder_that_is_locked_later) {
    char file[PATH + 8];
    if (!is_possible()) return;
    ck_assert_int_eq(mkdir(below("locked"), 0700), 0);
    snprintf(file, sizeof file, "%s/file", below("locked"));
    const char *const arguments[] = {SMALL,      "--data",     data,     "--batch", "8",
                                     "--epochs", "100000",     "--save", file,      "--trace",
                                     cli_trace,  "--progress", "off",    NULL};
    pid_t child = cli_start(arguments);
    cli_wait_for_step(1);
    ck_assert_int_eq(chmod(below("locked"), 0500), 0);
    ck_assert_int_eq(cli_finish(child), 1);
    ck_assert_int_eq(chmod(below("locked"), 0700), 0);
    ck_contains(cli_err, "food101: ");
    ck_contains(cli_err, "locked/file");
    ck_contains(cli_err, "Permission denied");
}

/* Where activations wait in a file: the folder of temporary files, and one that is named. */
TEST("writing", a_folder_of_temporary_files) {
    char variable[PATH + 16];
    const char *const environment[] = {variable, NULL};
    if (!is_possible()) return;
    ck_assert_int_eq(mkdir(below("locked"), 0500), 0);
    snprintf(variable, sizeof variable, "TMPDIR=%s", below("locked"));
    cli_environment = environment;
    EXPECT(1, SMALL, "--data", data, "--batch", "8", "--steps", "1", "--offload", "file");
    refused("food101: ", "locked");
    EXPECT(2, SMALL, "--data", data, "--batch", "8", "--steps", "1", "--offload", "file",
           "--offload-dir", below("locked"));
    refused("food101: --offload-dir: cannot write to '", "locked");
}

int main(void) {
    cli_case_named("reading");
    cli_case_named("writing");
    tcase_add_checked_fixture(suite_case_named("reading"), become_nobody, NULL);
    tcase_add_checked_fixture(suite_case_named("writing"), become_nobody, NULL);
    return suite_run_named("ex_permissions");
}
