/*
 * cores.c - cores, affinity and quotas; see cores.h.
 *
 * Sources: sched_getaffinity(2), Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst
 * (cpu.cfs_quota_us, cpu.cfs_period_us), filesystems/proc.rst (mountinfo).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096, MOST_CORES = 1 << 16 };

/* ---- affinity ---------------------------------------------------------------------------------- */

#ifdef __linux__
/* The kernel's mask may be wider than cpu_set_t: it says so by EINVAL. 0: not known. */
static int count_allowed(void) {
    int count = 0;
    for (int cores = 1024; !count && cores <= MOST_CORES; cores *= 2) {
        cpu_set_t *set = CPU_ALLOC(cores);
        size_t bytes = CPU_ALLOC_SIZE(cores);
        if (set && sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
    }
    return count;
}
#else
static int count_allowed(void) {
    return 0;
}
#endif

/* ---- control groups ---------------------------------------------------------------------------- */

/* The two versions: what stands in a line of /proc/self/cgroup, and how the mount is named. */
typedef struct version {
    const char *type;       /* of the file system */
    const char *controller; /* in the group's line and among the mount's options; "": version 2 */
} version;

static const version versions[] = {{"cgroup2", ""}, {"cgroup", "cpu"}};

static int join(char out[PATH], const char *a, const char *b, const char *c) {
    return (size_t)snprintf(out, PATH, "%s%s%s", a, b, c) < PATH;
}

static FILE *open_at(const char *folder, const char *name) {
    char path[PATH];
    return join(path, folder, "/", name) ? fopen(path, "re") : NULL;
}

/* The one number of a file; -1 where there is none. */
static long long read_number(const char *folder, const char *name) {
    long long value = -1;
    FILE *file = open_at(folder, name);
    if (file && fscanf(file, "%lld", &value) != 1) value = -1;
    if (file) fclose(file);
    return value;
}

/* "150000 100000", microseconds in each period; "max 100000" is no limit, as is no such file. */
static int read_quota(const char *folder, const version *v, long long *quota, long long *period) {
    int fields = 0;
    if (*v->controller) {
        *quota = read_number(folder, "cpu.cfs_quota_us");
        *period = read_number(folder, "cpu.cfs_period_us");
        return *quota > 0 && *period > 0;
    }
    FILE *file = open_at(folder, "cpu.max");
    if (!file) return 0;
    fields = fscanf(file, "%lld %lld", quota, period);
    fclose(file);
    return fields == 2 && *quota > 0 && *period > 0;
}

static void apply(const char *folder, const version *v, int *least) {
    long long quota, period;
    if (!read_quota(folder, v, &quota, &period)) return;
    long long cores = (quota + period - 1) / period;
    if (cores < MOST_CORES && (!*least || cores < *least)) *least = (int)cores;
}

/* "cpu" is in "cpu,cpuacct", and not in "cpuset". */
static int has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == length && strncmp(p, word, length) == 0) return 1;
    return 0;
}

/* The group's path: "0::PATH" is version 2, "N:cpu,cpuacct:PATH" version 1. */
static int read_group(const char *root, const version *v, char group[PATH]) {
    char line[PATH];
    int found = 0;
    FILE *file = open_at(root, "proc/self/cgroup");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *path = controllers;
        if (path) path = strchr(controllers + 1, ':');
        if (!path) continue;
        *path++ = '\0';
        controllers++;
        found = *v->controller ? has_word(controllers, v->controller) : !*controllers;
        if (found) found = join(group, path, "", "");
    }
    if (file) fclose(file);
    return found;
}

/* Where the groups are mounted, and which of them is the topmost there (fields 5 and 4 of mountinfo). */
static int read_mount(const char *root, const version *v, char mount[PATH], char top[PATH]) {
    char line[2 * PATH], type[32], options[1024];
    int found = 0;
    FILE *file = open_at(root, "proc/self/mountinfo");
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(dash, " - %31s %*s %1023s", type, options) != 2) continue;
        if (strcmp(type, v->type) != 0) continue;
        if (*v->controller && !has_word(options, v->controller)) continue;
        found = sscanf(line, "%*s %*s %*s %4095s %4095s", top, mount) == 2;
    }
    if (file) fclose(file);
    return found;
}

/* What of the group's path lies below the topmost one; "": that one itself, or another branch. */
static const char *path_below(const char *group, const char *top) {
    size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    if (strncmp(group, top, length) != 0 || group[length] != '/') return "";
    return group[length + 1] ? group + length : "";
}

int ex_cores_quota(const char *root) {
    char group[PATH], mount[PATH], top[PATH], folder[PATH];
    int least = 0;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const version *v = &versions[i];
        if (!read_group(root, v, group) || !read_mount(root, v, mount, top) ||
            !join(folder, root, mount, path_below(group, top)))
            continue;
        size_t floor = strlen(root) + strlen(mount);
        for (apply(folder, v, &least); strlen(folder) > floor; apply(folder, v, &least))
            *strrchr(folder, '/') = '\0';
    }
    return least;
}

/* ---- all of them ------------------------------------------------------------------------------- */

ex_cores ex_cores_read(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    ex_cores c = {online > 0 && online < MOST_CORES ? (int)online : 1, count_allowed(),
                  ex_cores_quota(""), 0};
    if (!c.allowed) c.allowed = c.online;
    c.usable = c.allowed < c.online ? c.allowed : c.online;
    if (c.quota && c.quota < c.usable) c.usable = c.quota;
    return c;
}
