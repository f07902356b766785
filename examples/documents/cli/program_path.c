/*
 * program_path.c - see program_path.h.
 */
#include "program_path.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

/* As the system tells it; 0 when it does not. */
static int ask_system(char *path, size_t capacity) {
#ifdef __APPLE__
    uint32_t size = (uint32_t)capacity;
    return _NSGetExecutablePath(path, &size) == 0;
#else
    ssize_t length = readlink("/proc/self/exe", path, capacity - 1);
    if (length <= 0) return 0;
    path[length] = '\0';
    return 1;
#endif
}

int ex_program_path(const char *argv0, char *path, size_t capacity) {
    char raw[PATH_MAX];
    if (!ask_system(raw, sizeof raw)) {
        /* A bare name was found in PATH, which is not searched again here. */
        if (!argv0 || !strchr(argv0, '/') || strlen(argv0) >= sizeof raw) return 0;
        memcpy(raw, argv0, strlen(argv0) + 1);
    }
    char *real = realpath(raw, NULL);
    int fits = real && strlen(real) < capacity;
    if (fits) memcpy(path, real, strlen(real) + 1);
    free(real);
    return fits;
}

int ex_find_in_tree(const char *argv0, const char *relative, char *path, size_t capacity) {
    char folder[PATH_MAX];
    if (!ex_program_path(argv0, folder, sizeof folder)) folder[0] = '\0';
    for (char *slash; (slash = strrchr(folder, '/')) != NULL;) {
        *slash = '\0';
        int n = snprintf(path, capacity, "%s/%s", folder, relative);
        if (n > 0 && (size_t)n < capacity && access(path, R_OK) == 0) return 1;
    }
    int n = snprintf(path, capacity, "%s", relative);
    return n > 0 && (size_t)n < capacity && access(path, R_OK) == 0;
}
