/*
 * check_ex_cores.c - how many cores a process may use: its affinity, and the quotas of made-up control groups.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include "cores.h"
#include "cli.h"

#include <sched.h>
#include <unistd.h>

/* A file below the root, with the folders on the way to it. */
static void write_file(const char *name, const char *text) {
    const char *path = cli_path(name);
    cli_shell("mkdir -p \"$(dirname '%s')\"", path);
    cli_write_file(path, text);
}

/* ---- quotas -------------------------------------------------------------------------------------- */

#define V2_MOUNT "30 23 0:26 / /groups rw - cgroup2 cgroup2 rw\n"
#define V1_MOUNT                                                                                   \
    "31 23 0:27 / /sets rw - cgroup cgroup rw,cpuset\n"                                            \
    "32 23 0:28 / /time rw - cgroup cgroup rw,cpu,cpuacct\n"

typedef struct file {
    const char *name, *text;
} file;

static const struct {
    const char *group, *mounts;
    file files[4];
    int cores;
} trees[] = {
    /* Version 2: the least of the group and those above it, rounded up. */
    {"0::/a/b\n", V2_MOUNT, {{"groups/a/b/cpu.max", "200000 100000\n"}}, 2},
    {"0::/a/b\n", V2_MOUNT, {{"groups/a/b/cpu.max", "150000 100000\n"}}, 2},
    {"0::/a/b\n", V2_MOUNT, {{"groups/a/b/cpu.max", "50000 100000\n"}}, 1},
    {"0::/a/b\n", V2_MOUNT, {{"groups/a/b/cpu.max", "max 100000\n"}}, 0},
    {"0::/a/b\n",
     V2_MOUNT,
     {{"groups/a/b/cpu.max", "max 100000\n"}, {"groups/a/cpu.max", "300000 100000\n"}},
     3},
    {"0::/a/b\n",
     V2_MOUNT,
     {{"groups/a/b/cpu.max", "800000 100000\n"},
      {"groups/a/cpu.max", "300000 100000\n"},
      {"groups/cpu.max", "700000 100000\n"}},
     3},
    {"0::/a/b\n", V2_MOUNT, {{"groups/a/bc/cpu.max", "100000 100000\n"}}, 0},
    {"0::/\n", V2_MOUNT, {{"groups/cpu.max", "400000 100000\n"}}, 4},
    {"0::/\n", V2_MOUNT, {{"groups/other", ""}}, 0},
    {"0::/a\n", V2_MOUNT, {{"groups/a/cpu.max", "nonsense\n"}}, 0},
    {"0::/a\n", V2_MOUNT, {{"groups/a/cpu.max", "100000 0\n"}}, 0},
    /* In a container the mounted part is the group itself, or one above it. */
    {"0::/docker/abc\n",
     "30 23 0:26 /docker/abc /groups rw - cgroup2 cgroup2 rw\n",
     {{"groups/cpu.max", "250000 100000\n"}},
     3},
    {"0::/docker/abc/in\n",
     "30 23 0:26 /docker/abc /groups rw - cgroup2 cgroup2 rw\n",
     {{"groups/in/cpu.max", "500000 100000\n"}},
     5},
    {"0::/docker/abcd\n",
     "30 23 0:26 /docker/abc /groups rw - cgroup2 cgroup2 rw\n",
     {{"groups/d/cpu.max", "500000 100000\n"}, {"groups/cpu.max", "600000 100000\n"}},
     6},
    /* Version 1 has two files, -1 for no limit, and a hierarchy for each controller. */
    {"3:cpuset:/s\n2:cpu,cpuacct:/a/b\n",
     V1_MOUNT,
     {{"time/a/b/cpu.cfs_quota_us", "350000\n"}, {"time/a/b/cpu.cfs_period_us", "100000\n"}},
     4},
    {"3:cpuset:/s\n2:cpu,cpuacct:/a/b\n",
     V1_MOUNT,
     {{"time/a/b/cpu.cfs_quota_us", "-1\n"},
      {"time/a/b/cpu.cfs_period_us", "100000\n"},
      {"time/a/cpu.cfs_quota_us", "10000\n"},
      {"time/a/cpu.cfs_period_us", "5000\n"}},
     2},
    {"3:cpuset:/a\n",
     V1_MOUNT,
     {{"sets/a/cpu.cfs_quota_us", "100000\n"}, {"sets/a/cpu.cfs_period_us", "100000\n"}},
     0},
    {"2:cpu,cpuacct:/a\n", V1_MOUNT, {{"time/a/cpu.cfs_quota_us", "100000\n"}}, 0},
    /* Both versions beside each other: the least counts. */
    {"2:cpu,cpuacct:/a\n0::/a\n",
     V1_MOUNT V2_MOUNT,
     {{"time/a/cpu.cfs_quota_us", "500000\n"},
      {"time/a/cpu.cfs_period_us", "100000\n"},
      {"groups/a/cpu.max", "200000 100000\n"}},
     2},
    {"", "", {{"groups/cpu.max", "100000 100000\n"}}, 0},
};

TEST_LOOP("groups", quotas_of_groups, LENGTH(trees)) {
    write_file("proc/self/cgroup", trees[_i].group);
    write_file("proc/self/mountinfo", trees[_i].mounts);
    for (int i = 0; i < LENGTH(trees[_i].files) && trees[_i].files[i].name; i++)
        write_file(trees[_i].files[i].name, trees[_i].files[i].text);
    ck_assert_int_eq(ex_cores_quota(cli_root), trees[_i].cores);
}

TEST("groups", no_groups_at_all) {
    ck_assert_int_eq(ex_cores_quota(cli_root), 0);
    ck_assert_int_eq(ex_cores_quota("/nonexistent"), 0);
}

/* ---- affinity ------------------------------------------------------------------------------------ */

TEST("cores", at_least_one_and_no_more_than_there_are) {
    const ex_cores c = ex_cores_read();
    ck_assert_int_ge(c.usable, 1);
    ck_assert_int_le(c.usable, c.online);
    ck_assert_int_le(c.usable, c.allowed);
    ck_assert(!c.quota || c.usable <= c.quota);
}

#ifdef __linux__
/* What taskset does: one core after the other, of those that this process has. */
TEST("cores", affinity_is_followed) {
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2) printf("SKIP: affinity: there is one core alone\n");
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
        ck_assert_int_eq(ex_cores_read().allowed, 1);
        ck_assert_int_eq(ex_cores_read().usable, 1);
    }
}
#endif

int main(void) {
    cli_folder_case("groups");
    return suite_run_named("ex_cores");
}
