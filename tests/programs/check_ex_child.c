/*
 * check_ex_child.c - programs that are started as children, without a shell: their arguments, output and end.
 */
#include "child.h"
#include "suite.h"
#include "program_path.h"

#include <signal.h>
#include <unistd.h>

/* Runs a line of the shell, whose arguments are handed over as they are; what it writes goes to text. */
static int run(const char *line, const char *argument, char *text, size_t capacity) {
    char *const argv[] = {(char *)"sh",   (char *)"-c",     (char *)line,
                          (char *)"name", (char *)argument, NULL};
    FILE *output = NULL;
    pid_t child = ex_child_start("/bin/sh", argv, &output);
    ck_assert_int_gt(child, 0);
    ck_assert_ptr_nonnull(output);
    size_t length = fread(text, 1, capacity - 1, output);
    text[length] = '\0';
    return ex_child_wait(child, output);
}

static const char *const arguments[] = {"",          "two words", "'", "\"",      "a\nb",
                                        "$(exit 3)", "`exit 3`",  "*", ";exit 3", "\\"};

TEST_LOOP("children", arguments_are_handed_over, LENGTH(arguments)) {
    char text[256];
    ck_assert_int_eq(run("printf %s \"$1\"", arguments[_i], text, sizeof text), 0);
    ck_assert_str_eq(text, arguments[_i]);
}

TEST("children", both_outputs_are_one) {
    char text[256];
    ck_assert_int_eq(run("printf one; printf two >&2; exit 7", NULL, text, sizeof text), 7);
    ck_assert_str_eq(text, "onetwo");
}

TEST("children", ends_are_told) {
    char text[256], *const argv[] = {(char *)"x", NULL};
    ck_assert_int_eq(run("kill -TERM $$", NULL, text, sizeof text), 128 + SIGTERM);
    ck_assert_int_eq(ex_child_wait(ex_child_start("/nonexistent", argv, NULL), NULL),
                     EX_IS_NOT_THERE);
    ck_assert_int_eq(ex_child_wait(ex_child_start("/", argv, NULL), NULL), EX_CANNOT_BE_RUN);
}

/* Descriptors that a child has when it begins; 0: not told. */
static int count_descriptors(void) {
    char text[256];
    ck_assert_int_eq(run("ls /proc/self/fd 2>/dev/null | wc -l", NULL, text, sizeof text), 0);
    return atoi(text);
}

/* The pipe to one child is not another's, which would keep it open. */
TEST("children", pipes_stay_here) {
    char *const argv[] = {(char *)"sh", (char *)"-c", (char *)"read line", NULL};
    FILE *output = NULL;
    int before = count_descriptors();
    pid_t child = ex_child_start("/bin/sh", argv, &output);
    ck_assert_int_eq(count_descriptors(), before);
    if (!before) printf("SKIP: descriptors: /proc does not tell them\n");
    kill(child, SIGKILL);
    ex_child_wait(child, output);
}

TEST("children", a_program_beside_this_one) {
    char self[512], path[512];
    ck_assert(ex_program_path(NULL, self, sizeof self));
    ck_assert(ex_child_path(NULL, "plan", path, sizeof path));
    size_t folder = (size_t)(strrchr(self, '/') - self) + 1;
    ck_assert_int_eq(strncmp(path, self, folder), 0);
    ck_assert_str_eq(path + folder, "plan");
    ck_assert(!ex_child_path(NULL, "plan", path, strlen(self) - strlen(strrchr(self, '/')) + 5));
}

SUITE("ex_child")
