/*
 * host.c - what the host has for this process: /proc/meminfo and the control groups.
 *
 * Sources: Documentation/filesystems/proc.rst (MemAvailable), admin-guide/cgroup-v2.rst
 * (memory.max, memory.high, memory.current, memory.peak, memory.pressure), admin-guide/cgroup-v1/memory.rst,
 * Documentation/accounting/psi.rst.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

enum { PATH = 4096 };

#define BUDGET_SHARE 0.9   /* of what is there; the rest is for code, heap and the page cache */
#define PRESSED_SHARE 0.75 /* of it while others wait for memory */
#define PRESSED_FROM 0.1   /* of the last 10 seconds */

/* Joins up to four parts; 0 when they do not fit. */
static int join(char out[PATH], const char *a, const char *b, const char *c, const char *d) {
    return (size_t)snprintf(out, PATH, "%s%s%s%s", a, b, c, d) < PATH;
}

/* First line of a file holding one number; SIZE_MAX for "max", for no file, and for v1's no limit. */
static size_t read_limit(const char *dir, const char *file) {
    char path[PATH], text[64];
    size_t value = SIZE_MAX;
    if (!join(path, dir, "/", file, "")) return value;
    FILE *f = fopen(path, "re");
    if (!f) return value;
    if (fgets(text, sizeof text, f) && text[0] >= '0' && text[0] <= '9') {
        unsigned long long n = strtoull(text, NULL, 10);
        if (n < 0x7000000000000000u) value = (size_t)n;
    }
    fclose(f);
    return value;
}

/* The number behind a key in a file of "key number" lines, in the file's unit; 0 if not there. */
static size_t read_key(const char *path, const char *key) {
    char line[256];
    size_t length = strlen(key), value = 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, length) == 0 && (line[length] == ' ' || line[length] == ':')) {
            value = (size_t)strtoull(line + length + 1, NULL, 10);
            break;
        }
    fclose(f);
    return value;
}

/* "some avg10=1.23 avg60=...": hundredths of the time in which some task waited; 0 if not there. */
static double read_pressure(const char *dir, const char *file) {
    char path[PATH], line[256];
    unsigned whole = 0, hundredths = 0;
    if (!join(path, dir, "/", file, "")) return 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    /* Two integers: a locale may have another decimal point. */
    if (!fgets(line, sizeof line, f) ||
        sscanf(line, "some avg10=%3u.%2u", &whole, &hundredths) != 2)
        whole = hundredths = 0;
    fclose(f);
    return whole < 100 ? whole / 100.0 + hundredths / 10000.0 : 1.0;
}

static void raise_pressure(mt_host_memory *m, double pressure) {
    if (pressure > m->pressure) m->pressure = pressure;
}

/* ---- control groups ------------------------------------------------------------------------- */

/* The files of the two versions. */
typedef struct cgroup_names {
    const char *limits[2]; /* the least of them counts */
    const char *usage, *peak;
    const char *clean; /* key of memory.stat: file pages that can be dropped */
} cgroup_names;

static const cgroup_names names_v2 = {
    {"memory.max", "memory.high"}, "memory.current", "memory.peak", "inactive_file"};
static const cgroup_names names_v1 = {{"memory.limit_in_bytes", NULL},
                                      "memory.usage_in_bytes",
                                      "memory.max_usage_in_bytes",
                                      "total_inactive_file"};

/* One group: lowers limit and room to what it leaves. */
static void apply_group(const char *dir, const cgroup_names *names, mt_host_memory *m) {
    char path[PATH];
    size_t limit = read_limit(dir, names->limits[0]);
    raise_pressure(m, read_pressure(dir, "memory.pressure"));
    if (names->limits[1]) limit = mt__min(limit, read_limit(dir, names->limits[1]));
    if (limit == SIZE_MAX) return;
    size_t used = read_limit(dir, names->usage);
    if (used == SIZE_MAX) used = 0;
    size_t clean = join(path, dir, "/memory.stat", "", "") ? read_key(path, names->clean) : 0;
    used -= mt__min(used, clean);
    m->cgroup_limit_bytes = mt__min(m->cgroup_limit_bytes, limit);
    size_t room = limit - mt__min(used, limit), peak = read_limit(dir, names->peak);
    if (room >= m->cgroup_room_bytes) return;
    m->cgroup_room_bytes = room;
    m->cgroup_peak_bytes = peak == SIZE_MAX ? 0 : peak;
}

/* The group, "" or a path that begins with a slash, and each ancestor up to the mount point. */
static void walk_groups(const char *mount, const char *group, const cgroup_names *names,
                        mt_host_memory *m) {
    char dir[PATH];
    if (!join(dir, mount, group, "", "")) return;
    size_t floor = strlen(mount);
    for (;;) {
        apply_group(dir, names, m);
        if (strlen(dir) <= floor) return;
        *strrchr(dir, '/') = '\0';
    }
}

/* Whether the comma-separated list holds the word. */
static int has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += length)
        if ((p == list || p[-1] == ',') && (p[length] == ',' || p[length] == '\0')) return 1;
    return 0;
}

/*
 * The process's own group: "0::PATH" is version 2, "N:...,memory,...:PATH" version 1.
 */
static int read_group(const char *root, int v1, char group[PATH]) {
    char path[PATH], line[PATH];
    int found = 0;
    if (!join(path, root, "/proc/self/cgroup", "", "")) return 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *tail = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!tail) continue;
        *tail++ = '\0';
        controllers++;
        found = v1 ? has_word(controllers, "memory") : *controllers == '\0';
        if (found) found = join(group, tail, "", "", "");
    }
    fclose(f);
    return found;
}

/*
 * Mount point of the hierarchy and the part of it that is mounted (fields 5 and 4 of mountinfo;
 * the file system type stands behind " - ").
 */
static int read_mount(const char *root, int v1, char mount[PATH], char base[PATH]) {
    char path[PATH], line[2 * PATH], type[32], options[1024];
    int found = 0;
    if (!join(path, root, "/proc/self/mountinfo", "", "")) return 0;
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (!found && fgets(line, sizeof line, f)) {
        const char *dash = strstr(line, " - ");
        if (!dash || sscanf(dash, " - %31s %*s %1023s", type, options) != 2) continue;
        if (strcmp(type, v1 ? "cgroup" : "cgroup2") != 0) continue;
        if (v1 && !has_word(options, "memory")) continue;
        found = sscanf(line, "%*s %*s %*s %4095s %4095s", base, mount) == 2;
    }
    fclose(f);
    return found;
}

/*
 * The part of the group's path that lies below the mounted part: "" for the mounted part itself, and
 * for a group outside of it. "/docker/abcd" is not below "/docker/abc".
 */
static const char *path_below(const char *group, const char *base) {
    size_t length = strcmp(base, "/") == 0 ? 0 : strlen(base);
    if (strncmp(group, base, length) != 0 || group[length] != '/') return "";
    return group[length + 1] ? group + length : "";
}

static void read_cgroups(const char *root, int v1, mt_host_memory *m) {
    char group[PATH], mount[PATH], base[PATH], dir[PATH];
    if (!read_group(root, v1, group) || !read_mount(root, v1, mount, base)) return;
    /* In a container the mounted part is the group itself: what is above cannot be seen. */
    if (join(dir, root, mount, "", ""))
        walk_groups(dir, path_below(group, base), v1 ? &names_v1 : &names_v2, m);
}

/* ---- the host -------------------------------------------------------------------------------- */

#ifdef __APPLE__
static int read_system(const char *root, mt_host_memory *m) {
    uint64_t total = 0;
    size_t length = sizeof total;
    vm_statistics64_data_t vm;
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    (void)root;
    if (sysctlbyname("hw.memsize", &total, &length, NULL, 0) != 0) return 0;
    m->total_bytes = (size_t)total;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &count) == 0)
        m->available_bytes =
            ((size_t)vm.free_count + vm.inactive_count + vm.purgeable_count) * vm_kernel_page_size;
    return 1;
}
#else
static int read_system(const char *root, mt_host_memory *m) {
    char path[PATH];
    if (!join(path, root, "/proc/meminfo", "", "")) return 0;
    size_t total = read_key(path, "MemTotal"), available = read_key(path, "MemAvailable");
    if (total == 0) return 0;
    m->total_bytes = total * 1024;
    if (available) m->available_bytes = available * 1024;
    return 1;
}
#endif

mt_status mt_host_memory_read(const char *root, mt_host_memory *out) {
    mt_host_memory m = {sizeof m, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 0, 0, 0};
    char proc[PATH];
    MT__CHECK(out, "mt_host_memory_read: out is NULL");
    MT__CHECK(out->size >= sizeof out->size,
              "mt_host_memory_read: out->size is %zu; set it to "
              "sizeof(mt_host_memory)",
              out->size);
    if (!root) root = "";
    if (!read_system(root, &m))
        return mt_set_error(MT_EIO, "mt_host_memory_read: '%.200s/proc/meminfo' tells no MemTotal",
                            root);
    read_cgroups(root, 0, &m);
    read_cgroups(root, 1, &m);
    size_t least = mt__min(m.available_bytes, m.cgroup_room_bytes);
    double room = (double)mt__min(least, m.total_bytes);
    if (join(proc, root, "/proc/pressure", "", ""))
        raise_pressure(&m, read_pressure(proc, "memory"));
    m.pressed = m.pressure >= PRESSED_FROM;
    m.budget_bytes = (size_t)((m.pressed ? PRESSED_SHARE : BUDGET_SHARE) * room);
    m.budget_bytes =
        mt__max(m.budget_bytes, 1); /* 0 would be no limit, just where nothing is left */
    size_t theirs = out->size;
    memcpy(out, &m, mt__min(theirs, sizeof m));
    out->size = theirs;
    return MT_OK;
}
