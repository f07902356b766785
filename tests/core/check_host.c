/*
 * check_host.c - sizes as people write them, and the host's memory read from trees of fake files.
 */
#include "locales.h"
#include "suite.h"

#include <locale.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- mt_parse_size -------------------------------------------------------------------------- */

#define KI ((size_t)1024)
#define MI (KI * KI)
#define GI (MI * KI)
#define TI (GI * KI)

static const struct {
    const char *text;
    size_t whole;
    size_t bytes;
} sizes[] = {
    {"600MiB", 0, 600 * MI},
    {"8GB", 0, 8000000000U},
    {"1.5G", 0, 3 * GI / 2},
    {"4096", 0, 4096},
    {"1", 0, 1},
    {"1", 1000, 1},
    {"0.95", 1000, 950},
    {"0.5", GI, GI / 2},
    {".25", 400, 100},
    {"1KB", 0, 1000},
    {"1MB", 0, 1000000},
    {"2TB", 0, 2000000000000U},
    {"1KiB", 0, KI},
    {"1GiB", 0, GI},
    {"2TiB", 0, 2 * TI},
    {"3K", 0, 3 * KI},
    {"3M", 0, 3 * MI},
    {"3T", 0, 3 * TI},
    {"0.5GiB", 0, GI / 2},
    {"0.5GiB", 100, GI / 2},
    {"  600MiB\t", 0, 600 * MI},
    {" 0.5 ", 10, 5},
    {"80%", 1000, 800},
    {"100%", 1000, 1000},
    {"0.5 %", 1000, 5},
};

TEST_LOOP("size", size_accepted, LENGTH(sizes)) {
    size_t bytes = 1;

    ck_ok(mt_parse_size(sizes[_i].text, sizes[_i].whole, &bytes));
    ck_assert_msg(bytes == sizes[_i].bytes, "'%s' is %zu, not %zu", sizes[_i].text, bytes,
                  sizes[_i].bytes);
}

static const struct {
    const char *text;
    size_t whole;
} not_sizes[] = {
    {"", 100},         {"   ", 100},       {"abc", 100},  {"MiB", 100},
    {"-5", 100},       {"-5MiB", 100},     {"5XB", 100},  {"5MiBs", 100},
    {"5 5", 100},      {"0.95", 0},        {"nan", 100},  {"inf", 100},
    {"infGiB", 100},   {"1e30GiB", 100},   {"0x10", 100}, {"99999999999999999999", 100},
    {"1..5G", 100},    {"16777216TiB", 0}, {"-0.5", 100}, {"1,5G", 100},
    {"8 GB x", 100},   {"20000000TB", 0},  {"80%", 0},    {"101%", 100},
    {"0%", 100},       {"%", 100},         {"80%%", 100}, {"0.5B", 0},
    {"0.0009KB", 100}, {"0.5", 1},
};

TEST_LOOP("size", size_refused, LENGTH(not_sizes)) {
    size_t bytes = 1;

    mt_set_error(MT_EIO, "-");
    ck_assert_msg(mt_parse_size(not_sizes[_i].text, not_sizes[_i].whole, &bytes) == MT_EINVAL,
                  "'%s' is taken as %zu", not_sizes[_i].text, bytes);
    ck_contains(mt_last_error(), "MiB"); /* the line says what is accepted */
    ck_assert_uint_eq(bytes, 0);
}

/* ---- mt_format_size ------------------------------------------------------------------------- */

static const struct {
    size_t bytes;
    const char *text;
} formats[] = {
    {1536, "1.5 KiB"},       {626314445, "597.3 MiB"}, {5 * GI / 2, "2.5 GiB"},
    {3 * TI / 2, "1.5 TiB"}, {MI, "1.0 MiB"},          {SIZE_MAX, "16.0 EiB"},
};

TEST_LOOP("size", size_formatted, LENGTH(formats)) {
    char text[40];

    ck_assert_ptr_eq(mt_format_size(formats[_i].bytes, text, sizeof(text)), text);
    ck_assert_str_eq(text, formats[_i].text);
}

TEST("size", size_formatted_in_little_room) {
    char text[8];

    memset(text, 'x', sizeof(text));
    ck_assert_ptr_nonnull(mt_format_size(626314445, text, 0));
    ck_assert_int_eq(text[0], 'x'); /* no room, nothing written */
    mt_format_size(626314445, text, 4);
    ck_assert_str_eq(text, "597");
    ck_assert_int_eq(text[4], 'x');
    mt_format_size(626314445, text, 1);
    ck_assert_str_eq(text, "");
}

/* What is written can be read, to the digits shown. */
TEST("size", size_round_trip) {
    for (int shift = 0; shift < 64; shift++) {
        char text[40];

        mt_format_size((size_t)1 << shift, text, sizeof(text));
        ck_assert_uint_lt(strlen(text), 16);
        ck_assert_int_ge(text[0], '0');
        ck_assert_int_le(text[0], '9');
    }
}

/* ---- trees of fake files -------------------------------------------------------------------- */

static char root[300];
static char made[64][600]; /* files and directories in the order they were made */
static int made_count;

static void remember(const char *path) {
    ck_assert_int_lt(made_count, LENGTH(made));
    strcpy(made[made_count++], path);
}

static void root_make(void) {
    const char *base = getenv("TMPDIR");

    snprintf(root, sizeof(root), "%s/check_host.XXXXXX", base != NULL ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(root));
    made_count = 0;
    remember(root);
}

static void root_remove(void) {
    while (made_count > 0) remove(made[--made_count]);
}

/* Writes a file below root and the directories above it. */
static void put(const char *path, const char *text) {
    char full[600];
    FILE *file;

    snprintf(full, sizeof(full), "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        if (mkdir(full, 0700) == 0) remember(full);
        *slash = '/';
    }
    file = fopen(full, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    remember(full);
}

/* A file of a group below a mount. */
static void put_in(const char *mount, const char *group, const char *name, const char *text) {
    char path[200];

    snprintf(path, sizeof(path), "sys/fs/cgroup%s%s/%s", mount, group, name);
    put(path, text);
}

static void put_number(const char *mount, const char *group, const char *name, size_t number) {
    char text[40];

    snprintf(text, sizeof(text), "%zu\n", number);
    put_in(mount, group, name, text);
}

#define ROOT_MOUNT "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
#define V2_MOUNT                                                                                   \
    ROOT_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                                   \
    ROOT_MOUNT "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"

/* 16 GiB, 8 of them available; lines of this process's groups and of mounts; NULL: no such file. */
static void put_proc(const char *groups, const char *mounts) {
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"
                        "MemAvailable:    8388608 kB\nBuffers:          100000 kB\n");
    if (groups) put("proc/self/cgroup", groups);
    if (mounts) put("proc/self/mountinfo", mounts);
}

static void put_v2(const char *groups) {
    put_proc(groups, V2_MOUNT);
    put("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
}

/* Limits and use of one group; file pages that are clean, so that they count as free. */
static void put_v2_group(const char *group, const char *max, const char *high, size_t current,
                         size_t file) {
    char text[300];

    put_in("", group, "memory.max", max);
    put_in("", group, "memory.high", high);
    put_number("", group, "memory.current", current);
    snprintf(text, sizeof(text),
             "anon %zu\nfile %zu\nshmem 0\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\n"
             "inactive_anon 0\nactive_anon 0\ninactive_file %zu\nactive_file 0\n",
             current - file, file, file);
    put_in("", group, "memory.stat", text);
}

static void put_v1_group(const char *group, const char *limit, size_t usage, size_t file) {
    char text[300];

    put_in("/memory", group, "memory.limit_in_bytes", limit);
    put_number("/memory", group, "memory.usage_in_bytes", usage);
    snprintf(text, sizeof(text),
             "cache %zu\nrss %zu\ndirty 0\nwriteback 0\ninactive_file %zu\nactive_file 0\n"
             "total_cache %zu\ntotal_dirty 0\ntotal_writeback 0\ntotal_inactive_file %zu\n"
             "total_active_file 0\n",
             file, usage - file, file, file, file);
    put_in("/memory", group, "memory.stat", text);
}

static mt_host_memory read_root(void) {
    mt_host_memory memory = {.size = sizeof(memory)};

    ck_ok(mt_host_memory_read(root, &memory));
    ck_assert_uint_eq(memory.total_bytes, 16 * GI);
    return memory;
}

static void check_groups(const char *name, mt_host_memory memory, size_t limit, size_t room) {
    ck_assert_msg(memory.cgroup_limit_bytes == limit && memory.cgroup_room_bytes == room,
                  "%s: limit %zu, room %zu", name, memory.cgroup_limit_bytes,
                  memory.cgroup_room_bytes);
}

/* 0.9 of these bytes, to a page; for none at all 1, as 0 is no limit. */
static void check_budget(const char *name, mt_host_memory memory, size_t bytes) {
    double difference = 0.9 * (double)bytes - (double)memory.budget_bytes;

    ck_assert_msg(bytes ? difference > -4096 && difference < 4096 : memory.budget_bytes == 1,
                  "%s: budget %zu of %zu", name, memory.budget_bytes, bytes);
}

#define GI_1 "1073741824\n"
#define GI_2 "2147483648\n"
#define GI_3 "3221225472\n"
#define GI_4 "4294967296\n"
#define GI_6 "6442450944\n"
#define GI_12 "12884901888\n"
#define MAX "max\n"

typedef struct group {
    const char *path, *max, *high; /* v1: max is the limit, and there is no high */
    size_t used, file;
} group;

static void put_group(int v1, const group *g) {
    if (v1)
        put_v1_group(g->path, g->max, g->used, g->file);
    else
        put_v2_group(g->path, g->max, g->high, g->used, g->file);
}

/* clang-format off */
#define BOX {{"/box", GI_2, NULL, GI, 0}} /* of v1 */

/* Groups of this process, and what they leave it. */
static const struct {
    const char *name, *lines; /* of /proc/self/cgroup */
    const char *mounts;       /* of v1; NULL: v2 */
    group groups[2];
    size_t limit, room;
} trees[] = {
    {"v2", "0::/job/a\n", NULL,
     {{"/job", MAX, MAX, 3 * GI, 0}, {"/job/a", GI_4, MAX, GI, GI / 4}}, 4 * GI, 3 * GI + GI / 4},
    {"v2, the ancestor is tighter", "0::/job/a\n", NULL,
     {{"/job", GI_6, MAX, 5 * GI, 0}, {"/job/a", GI_4, MAX, GI, 0}}, 4 * GI, GI},
    {"v2, high", "0::/job\n", NULL, {{"/job", GI_4, GI_2, GI, 0}}, 2 * GI, GI},
    {"v2, a namespace", "0::/\n", NULL, {{"", GI_2, MAX, GI / 2, 0}}, 2 * GI, 3 * GI / 2},
    {"v2, unlimited", "0::/job\n", NULL, {{"/job", MAX, MAX, GI, 0}}, SIZE_MAX, SIZE_MAX},
    {"v2, over the limit", "0::/job\n", NULL, {{"/job", GI_1, MAX, 2 * GI, 0}}, GI, 0},
    {"v2, less is available", "0::/job\n", NULL, {{"/job", GI_12, MAX, GI, 0}}, 12 * GI, 11 * GI},
    /* What is no number of bytes that there could be is no limit. */
    {"v2, a number", "0::/job\n", NULL, {{"/job", GI_1, MAX, 0, 0}}, GI, GI},
    {"v2, without an end of line", "0::/job\n", NULL, {{"/job", "1073741824", MAX, 0, 0}}, GI, GI},
    {"v2, 7 << 60, less one", "0::/job\n", NULL, {{"/job", "8070450532247928831\n", MAX, 0, 0}},
     0x6fffffffffffffff, 0x6fffffffffffffff},
    {"v2, 7 << 60", "0::/job\n", NULL, {{"/job", "8070450532247928832\n", MAX, 0, 0}},
     SIZE_MAX, SIZE_MAX},
    {"v2, above 2^64", "0::/job\n", NULL, {{"/job", "99999999999999999999999\n", MAX, 0, 0}},
     SIZE_MAX, SIZE_MAX},
    {"v2, max", "0::/job\n", NULL, {{"/job", MAX, MAX, 0, 0}}, SIZE_MAX, SIZE_MAX},
    {"v2, nothing", "0::/job\n", NULL, {{"/job", "", MAX, 0, 0}}, SIZE_MAX, SIZE_MAX},
    {"v2, below 0", "0::/job\n", NULL, {{"/job", "-1\n", MAX, 0, 0}}, SIZE_MAX, SIZE_MAX},
    {"v2, a space", "0::/job\n", NULL, {{"/job", " 5\n", MAX, 0, 0}}, SIZE_MAX, SIZE_MAX},
    {"v2, a colon", "0::/job\n", NULL, {{"/job", ":5\n", MAX, 0, 0}}, SIZE_MAX, SIZE_MAX},
    {"v1", "5:cpu,cpuacct:/box/x\n4:memory:/box/x\n", V1_MOUNT,
     {{"/box/x", GI_3, NULL, GI, GI / 8}}, 3 * GI, 2 * GI + GI / 8},
    {"v1, unlimited", "4:memory:/box\n", V1_MOUNT,
     {{"/box", "9223372036854771712\n", NULL, GI, 0}}, SIZE_MAX, SIZE_MAX},
    /* In a container the group's path is that of the outside; the mount's root is visible. */
    {"v1, the path is not visible", "4:memory:/docker/abc\n",
     "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n",
     {{"", GI_2, NULL, GI, 0}}, 2 * GI, GI},
    /* Both versions at once: the memory controller is in v1, the unified tree has none. */
    {"v1 and v2", "4:memory:/box\n0::/\n",
     V1_MOUNT "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", BOX, 2 * GI, GI},
    /* Which line of /proc/self/cgroup is of the controller of memory. */
    {"v1, alone", "4:memory:/box\n", V1_MOUNT, BOX, 2 * GI, GI},
    {"v1, last", "4:cpu,memory:/box\n", V1_MOUNT, BOX, 2 * GI, GI},
    {"v1, first", "4:memory,cpu:/box\n", V1_MOUNT, BOX, 2 * GI, GI},
    {"v1, between", "4:cpu,memory,pids:/box\n", V1_MOUNT, BOX, 2 * GI, GI},
    {"v1, huge", "4:hugememory:/box\n", V1_MOUNT, BOX, SIZE_MAX, SIZE_MAX},
    {"v1, another one", "4:memory2:/box\n", V1_MOUNT, BOX, SIZE_MAX, SIZE_MAX},
    {"v1, behind others", "4:memory2,hugememory,memory:/box\n", V1_MOUNT, BOX, 2 * GI, GI},
    {"v1, cpu", "4:cpu:/memory\n", V1_MOUNT, BOX, SIZE_MAX, SIZE_MAX},
    {"v1, behind rubbish", "rubbish\n4:rubbish\n4:memory:/box\n", V1_MOUNT, BOX, 2 * GI, GI},
};
/* clang-format on */

TEST_LOOP("host", host_groups, LENGTH(trees)) {
    mt_host_memory memory;

    if (trees[_i].mounts) {
        put_proc(trees[_i].lines, trees[_i].mounts);
        put("sys/fs/cgroup/unified/cgroup.controllers", "\n"); /* for the row that mounts it */
    } else {
        put_v2(trees[_i].lines);
    }
    for (int i = 0; i < 2 && trees[_i].groups[i].path; i++)
        put_group(trees[_i].mounts != NULL, &trees[_i].groups[i]);
    memory = read_root();
    check_groups(trees[_i].name, memory, trees[_i].limit, trees[_i].room);
    check_budget(trees[_i].name, memory, trees[_i].room < 8 * GI ? trees[_i].room : 8 * GI);
}

TEST("host", host_without_groups) {
    mt_host_memory memory;

    put_proc(NULL, NULL);
    memory = read_root();
    ck_assert_uint_eq(memory.available_bytes, 8 * GI);
    check_groups("none", memory, SIZE_MAX, SIZE_MAX);
    check_budget("none", memory, 8 * GI);
}

/* A limit without its use tells the limit at least. */
TEST("host", host_v2_no_use) {
    mt_host_memory memory;

    put_v2("0::/job\n");
    put("sys/fs/cgroup/job/memory.max", GI_2);
    memory = read_root();
    ck_assert_uint_eq(memory.cgroup_limit_bytes, 2 * GI);
    ck_assert(memory.cgroup_room_bytes == 2 * GI || memory.cgroup_room_bytes == SIZE_MAX);
}

/* The peak is that of the group that binds. */
TEST("host", host_peak_of_the_group) {
    put_v2("0::/job/step\n");
    put_v2_group("/job", GI_3, MAX, 2 * GI, 0);
    put_v2_group("/job/step", GI_2, MAX, GI / 2, 0);
    ck_assert_uint_eq(read_root().cgroup_peak_bytes, 0); /* before Linux 5.19 */
    put_number("", "/job", "memory.peak", 5 * GI / 2);
    put_number("", "/job/step", "memory.peak", GI);
    ck_assert_uint_eq(read_root().cgroup_peak_bytes, 5 * GI / 2);
    put_v2_group("/job/step", GI_2, MAX, 3 * GI / 2, 0);
    ck_assert_uint_eq(read_root().cgroup_peak_bytes, GI);
}

TEST("host", host_v1_peak) {
    put_proc("4:memory:/box\n", V1_MOUNT);
    put_v1_group("/box", GI_2, GI, 0);
    put_number("/memory", "/box", "memory.max_usage_in_bytes", 3 * GI / 2);
    ck_assert_uint_eq(read_root().cgroup_peak_bytes, 3 * GI / 2);
}

/*
 * The mount shows one group, which has a limit of 2 GiB and below it /x with 1 GiB: which of them is
 * this process's own. A path that only begins with the same letters is outside.
 */
static const struct {
    const char *group, *base;
    size_t limit;
} mounts[] = {
    {"/docker/abc", "/docker/abc", 2 * GI},
    {"/docker/abc/", "/docker/abc", 2 * GI},
    {"/docker/abc/x", "/docker/abc", GI},
    {"/docker/abcd", "/docker/abc", 2 * GI},
    {"/docker/abcd/x", "/docker/abc", 2 * GI},
    {"/docker/abcx", "/docker/abc", 2 * GI},
    {"/docker/ab", "/docker/abc", 2 * GI},
    {"/", "/docker/abc", 2 * GI},
    {"/x", "/", GI},
    {"/", "/", 2 * GI},
};

TEST_LOOP("host", host_group_below_a_mount, 2 * LENGTH(mounts)) {
    static const group shown[] = {
        {"", GI_2, MAX, 0, 0},
        {"/x", GI_1, MAX, 0, 0},
        {"d/x", GI_4, MAX, 0, 0}, /* where the rest of /docker/abcd/x would lead */
    };
    char groups[100], mount[200];
    int v1 = _i % 2, row = _i / 2;
    mt_host_memory memory;

    snprintf(groups, sizeof(groups), "%s:%s\n", v1 ? "4:memory" : "0:", mounts[row].group);
    snprintf(mount, sizeof(mount), "35 31 0:32 %s /sys/fs/cgroup%s ro - %s rw,memory\n",
             mounts[row].base, v1 ? "/memory" : "", v1 ? "cgroup cgroup" : "cgroup2 cgroup2");
    put_proc(groups, mount);
    for (int i = 0; i < LENGTH(shown); i++) put_group(v1, &shown[i]);
    memory = read_root();
    ck_assert_msg(memory.cgroup_limit_bytes == mounts[row].limit, "%s below %s: limit %zu",
                  mounts[row].group, mounts[row].base, memory.cgroup_limit_bytes);
}

static const char *const unknown[] = {
    /* Kernels before 3.14 say nothing of what is available. */
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n",
    /* A key is a word, not the beginning of one. */
    "MemTotalHuge: 1 kB\nMemTotal 16777216 kB\nMemAvailableHuge: 1 kB\n",
};

TEST_LOOP("host", host_available_unknown, LENGTH(unknown)) {
    mt_host_memory memory;

    put("proc/meminfo", unknown[_i]);
    memory = read_root();
    ck_assert_uint_eq(memory.available_bytes, SIZE_MAX);
    ck_assert_uint_gt(memory.budget_bytes, 0);
    ck_assert_uint_le(memory.budget_bytes, 16 * GI);
}

/* Groups without a list of mounts are none. */
TEST("host", host_without_mounts) {
    put_proc("0::/job\n4:memory:/box\n", NULL);
    put_v2_group("/job", GI_1, MAX, 0, 0);
    check_groups("no mounts", read_root(), SIZE_MAX, SIZE_MAX);
}

/*
 * Paths about as long as paths can be: what is too long is not there, and what is there is the same. The
 * names of groups reach further than those of mounts, and these than /proc/meminfo.
 */
TEST("host", host_long_paths) {
    enum { LONGEST = 4096 };
    char deep[LONGEST + 1];
    size_t length = strlen(root), read = 0, limited = 0, roomy = 0, pressed = 0;

    put_proc("0::/job\n", "30 23 0:26 / /sys/fs/cgroup/unified/tree rw - cgroup2 cgroup2 rw\n");
    put_v2_group("/unified/tree/job", GI_2, MAX, GI, GI / 2);
    put("sys/fs/cgroup/unified/tree/job/memory.pressure", "some avg10=20.00 avg60=0.00\n");
    memset(deep, '/', LONGEST);
    memcpy(deep, root, length);
    for (size_t n = LONGEST; n > LONGEST - 100; n--) {
        mt_host_memory memory = {.size = sizeof(memory)};
        mt_status status;

        deep[n] = '\0';
        status = mt_host_memory_read(deep, &memory);
        if (status != MT_OK) ck_status(status, MT_EIO);
        if (status != MT_OK) continue;
        ck_assert_uint_eq(memory.total_bytes, 16 * GI);
        ck_assert_uint_eq(memory.available_bytes, 8 * GI);
        ck_assert(memory.cgroup_limit_bytes == 2 * GI || memory.cgroup_limit_bytes == SIZE_MAX);
        read++;
        limited += memory.cgroup_limit_bytes == 2 * GI;
        roomy += memory.cgroup_room_bytes == 3 * GI / 2;
        pressed += memory.pressed;
    }
    ck_assert_uint_eq(read, 100 - sizeof("/proc/meminfo")); /* the zero behind it included */
    ck_assert_uint_gt(limited, 0);
    ck_assert_uint_lt(limited, read);
    ck_assert_uint_lt(roomy, limited);
    ck_assert_uint_lt(pressed, roomy);
    ck_assert_uint_gt(pressed, 0);
}

static const char *const no_meminfo[] = {NULL, "", "nothing of use\n", "MemTotal: many kB\n"};

TEST_LOOP("host", host_unknown, LENGTH(no_meminfo)) {
    mt_host_memory memory = {.size = sizeof(memory)};

    if (no_meminfo[_i] != NULL) put("proc/meminfo", no_meminfo[_i]);
    ck_refused(mt_host_memory_read(root, &memory), MT_EIO, "meminfo");
}

/* Rubbish in the control groups is no limit, and no crash. */
TEST("host", host_rubbish_groups) {
    static char longest[20000];

    memset(longest, 'a', sizeof(longest) - 1);
    longest[0] = '0';
    longest[1] = longest[2] = ':';
    longest[3] = '/';
    put_proc(longest, "rubbish\n\n - - -\n");
    check_groups("rubbish", read_root(), SIZE_MAX, SIZE_MAX);
}

#define SOME(avg10) "some avg10=" avg10 " avg60=0.00 avg300=0.00 total=0\nfull avg10=99.00\n"

static const struct {
    const char *system, *group; /* NULL: no such file */
    double pressure, share;
} pressures[] = {
    {NULL, NULL, 0, 0.9},
    {SOME("0.00"), NULL, 0, 0.9},
    {SOME("9.99"), NULL, 0.0999, 0.9},
    {SOME("10.00"), NULL, 0.1, 0.75},
    {SOME("0.00"), SOME("42.50"), 0.425, 0.75},
    {SOME("50.00"), SOME("1.00"), 0.5, 0.75},
    {SOME("100.00"), NULL, 1, 0.75},
    {"rubbish\n", "", 0, 0.9},
};

TEST_LOOP("host", host_pressure, LENGTH(pressures)) {
    mt_host_memory memory;

    put_v2("0::/job\n");
    put_v2_group("/job", MAX, MAX, GI, 0);
    if (pressures[_i].system) put("proc/pressure/memory", pressures[_i].system);
    if (pressures[_i].group) put("sys/fs/cgroup/job/memory.pressure", pressures[_i].group);
    memory = read_root();
    ck_assert_double_eq_tol(memory.pressure, pressures[_i].pressure, 1e-9);
    ck_assert_int_eq(memory.pressed, pressures[_i].share < 0.9);
    ck_assert_double_eq_tol((double)memory.budget_bytes, pressures[_i].share * 8.0 * GI, 1.0);
}

TEST("host", host_itself) {
    mt_host_memory memory = {.size = sizeof(memory)};

    ck_ok(mt_host_memory_read(NULL, &memory));
    ck_assert_uint_gt(memory.total_bytes, 64 * MI);
    ck_assert_uint_le(memory.budget_bytes, memory.total_bytes);
}

/* What is written is read again, whatever the locale calls a decimal point. */
TEST_LOOP("size", format_in_a_locale, 2) {
    static const char *const locales[] = {LOCALE_COMMA, LOCALE_ARABIC};
    char text[32];
    size_t bytes;
    if (!locales_make("host: format_in_a_locale")) return;
    ck_assert_ptr_nonnull(setlocale(LC_NUMERIC, locales[_i]));
    mt_format_size((size_t)3 << 29, text, sizeof text);
    ck_assert_str_eq(text, "1.5 GiB");
    ck_ok(mt_parse_size(text, 0, &bytes));
    ck_assert_uint_eq(bytes, (size_t)3 << 29);
    setlocale(LC_NUMERIC, "C");
    locales_remove();
}

/* The tenths are those of "%.1f". */
TEST("size", format_rounds_as_printf) {
    char text[32], expected[32];
    for (size_t i = 0; i < 20000; i++) {
        size_t bytes = 1024 + i * 51;
        mt_format_size(bytes, text, sizeof text);
        if ((double)bytes / 1024 >= 1023.95)
            snprintf(expected, sizeof expected, "%.1f MiB", (double)bytes / 1048576);
        else
            snprintf(expected, sizeof expected, "%.1f KiB", (double)bytes / 1024);
        ck_assert_str_eq(text, expected);
    }
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("host"), root_make, root_remove);
    return suite_run_named("host");
}
