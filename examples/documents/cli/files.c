/*
 * files.c - which files the flags of a command line mean; see files.h.
 */
#include "files.h"
#include "processes.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 16 };

/* One file that a run opens. Of a file that is not there yet the folder is known, and the name in it. */
typedef struct named {
    const ex_option *row;
    char path[PATH_MAX];
    dev_t device;
    ino_t inode;
    char name[NAME_MAX + 1]; /* "": the file is there, and device and inode are its own */
    int is_beside;           /* not the file that was given, but one that comes with it */
    int is_device;           /* takes whatever is written, by any number of writers */
} named;

typedef struct list {
    named *items;
    size_t count, capacity;
} list;

/* ---- one file ---------------------------------------------------------------------------------- */

/* Length of the folder in a path, its last slash included; 0: the path has none. */
static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* Where a link leads that leads to nothing yet: that is where a file would be made. */
static void follow_links(char path[PATH_MAX]) {
    char target[PATH_MAX], next[2 * PATH_MAX];
    for (int i = 0; i < MOST_LINKS; i++) {
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length <= 0) return;
        target[length] = '\0';
        int folder = *target == '/' ? 0 : (int)folder_length(path);
        snprintf(next, sizeof next, "%.*s%s", folder, path, target);
        snprintf(path, PATH_MAX, "%.*s", PATH_MAX - 1, next);
    }
}

static void identify(named *file) {
    char path[PATH_MAX], folder[PATH_MAX];
    struct stat info;
    file->name[0] = '\0';
    file->is_device = 0;
    if (stat(file->path, &info) == 0) {
        file->device = info.st_dev;
        file->inode = info.st_ino;
        file->is_device = S_ISCHR(info.st_mode) != 0;
        return;
    }
    memcpy(path, file->path, sizeof path);
    follow_links(path);
    size_t length = folder_length(path);
    snprintf(folder, sizeof folder, "%.*s", length ? (int)length : 1, length ? path : ".");
    /* In a folder that is not there nothing can be opened: its file is told of when it is opened. */
    int is_there = stat(folder, &info) == 0;
    file->device = is_there ? info.st_dev : 0;
    file->inode = is_there ? info.st_ino : 0;
    snprintf(file->name, sizeof file->name, "%.*s", NAME_MAX, path + length);
}

static int is_same(const named *a, const named *b) {
    return !a->is_device && a->inode && a->device == b->device && a->inode == b->inode &&
           strcmp(a->name, b->name) == 0;
}

/* ---- all files --------------------------------------------------------------------------------- */

/* given: the flag's own words; path: what one of the processes makes of them. */
static int add(list *all, const ex_option *row, const char *given, const char *path,
               const char *end) {
    if (all->count == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 16;
        named *grown = realloc(all->items, capacity * sizeof *grown);
        if (!grown) return 0;
        all->items = grown;
        all->capacity = capacity;
    }
    named *file = &all->items[all->count];
    file->row = row;
    file->is_beside = strcmp(path, given) != 0 || *end;
    /* A path that is longer than the system takes is told of when it is opened. */
    if ((size_t)snprintf(file->path, sizeof file->path, "%s%s", path, end) >= sizeof file->path)
        return 1;
    identify(file);
    all->count++;
    return 1;
}

/* What is written beside the file: mt_torch_save keeps the one before, and makes each under another name. */
static int add_with_ends(list *all, const ex_option *row, const char *given, const char *path) {
    static const char *const ends[] = {"",      ".memtrain-tmp",      ".1",
                                       ".best", ".best.memtrain-tmp", ".best.1"};
    size_t count = row->file == EX_FILE_SAVED      ? EX_ROWS(ends)
                   : row->file == EX_FILE_REPLACED ? 2
                                                   : 1;
    int has_room = 1;
    for (size_t i = 0; i < count && has_room; i++) has_room = add(all, row, given, path, ends[i]);
    return has_room;
}

/* What all processes read, or the first one writes for all, has one name. */
static int has_ranks(ex_file_use use) {
    return use == EX_FILE_RESUMED || use == EX_FILE_SAVED || use == EX_FILE_WRITTEN;
}

static int add_row(list *all, const ex_table *table, const ex_option *row, int processes) {
    char path[PATH_MAX];
    const char *given = row->name && row->file != EX_NO_FILE
                            ? *(const char *const *)((const char *)table->base + row->offset)
                            : NULL;
    int ranks = has_ranks(row->file) ? processes : 1, has_room = 1;
    for (int rank = 0; given && rank < ranks && has_room; rank++)
        has_room =
            add_with_ends(all, row, given, ex_processes_file(given, rank, path, sizeof path));
    return has_room;
}

static int collect(list *all, const ex_table *tables, int processes) {
    for (; tables->rows; tables++)
        for (size_t i = 0; i < tables->count; i++)
            if (!add_row(all, tables, &tables->rows[i], processes)) return 0;
    return 1;
}

/* ---- two of one name --------------------------------------------------------------------------- */

/* What is resumed has been read as a whole before --save writes. */
static int may_share(ex_file_use a, ex_file_use b) {
    if (a < EX_FILE_SAVED && b < EX_FILE_SAVED) return 1;
    return (a == EX_FILE_RESUMED && b == EX_FILE_SAVED) ||
           (a == EX_FILE_SAVED && b == EX_FILE_RESUMED);
}

static int clash(const named *a, const named *b) {
    return a->row != b->row && !may_share(a->row->file, b->row->file) && is_same(a, b);
}

/* The flag that is refused is the one whose file is worth less: uses are in that order. */
static void describe(const char *program, const named *a, const named *b, ex_error *error) {
    const named *refused = a->row->file > b->row->file ? a : b, *other = refused == a ? b : a;
    int is_clear = !other->is_beside && strcmp(refused->path, other->path) == 0;
    ex_error_set(error, program,
                 is_clear ? "--%s: '%s' is not accepted; accepted: another file than that of --%s"
                          : "--%s: '%s' is not accepted; accepted: another file than that of --%s, "
                            "'%s'",
                 refused->row->name, refused->path, other->row->name, other->path);
}

static int compare(const char *program, const list *all, ex_error *error) {
    for (size_t i = 1; i < all->count; i++)
        for (size_t j = 0; j < i; j++) {
            if (!clash(&all->items[j], &all->items[i])) continue;
            describe(program, &all->items[j], &all->items[i], error);
            return -1;
        }
    return 0;
}

int ex_files_check(const char *program, const ex_table *tables, int processes, ex_error *error) {
    list all = {NULL, 0, 0};
    int status = -1;
    if (collect(&all, tables, processes))
        status = compare(program, &all, error);
    else
        ex_error_set(error, program, "out of host memory");
    free(all.items);
    return status;
}
