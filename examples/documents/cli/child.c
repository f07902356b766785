/*
 * child.c - fork, exec and wait; see child.h.
 */
#include "child.h"
#include "program_path.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int ex_child_path(const char *argv0, const char *name, char *path, size_t capacity) {
    if (!ex_program_path(argv0, path, capacity)) return 0;
    size_t folder = (size_t)(strrchr(path, '/') - path) + 1;
    int length = snprintf(path + folder, capacity - folder, "%s", name);
    return length > 0 && (size_t)length < capacity - folder;
}

/* Between fork and exec: nothing but what a signal handler may call. */
static void become(const char *path, char *const *argv, int output) {
    if (output >= 0 && (dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0))
        _exit(EX_CANNOT_BE_RUN);
    execv(path, argv);
    _exit(errno == ENOENT ? EX_IS_NOT_THERE : EX_CANNOT_BE_RUN);
}

static int open_pipe(int ends[2]) {
    if (pipe(ends) != 0) return 0;
    /* dup2 leaves the mark behind: what the child writes to stays open, the other end is not its. */
    fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    return 1;
}

pid_t ex_child_start(const char *path, char *const *argv, FILE **out_output) {
    int ends[2] = {-1, -1};
    if (out_output && !open_pipe(ends)) return -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) become(path, argv, ends[1]);
    if (out_output) close(ends[1]);
    if (out_output) *out_output = child > 0 ? fdopen(ends[0], "r") : NULL;
    if (out_output && !*out_output) close(ends[0]);
    return child;
}

int ex_child_wait(pid_t child, FILE *output) {
    int status = 0;
    if (output) fclose(output);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
