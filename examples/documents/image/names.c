/*
 * names.c - the entries of a folder; see names.h.
 */
#include "names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

void ex_names_free(ex_names *names) {
    for (size_t i = 0; i < names->count; i++) {
        free(names->items[i]);
    }
    free(names->items);
    memset(names, 0, sizeof *names);
}

static ex_status add_name(ex_names *names, const char *name) {
    if (names->count == names->capacity) {
        size_t capacity = names->capacity ? 2 * names->capacity : 16;
        char **grown = realloc(names->items, capacity * sizeof *grown);

        if (!grown) {
            return EX_ENOMEM;
        }
        names->items = grown;
        names->capacity = capacity;
    }
    names->items[names->count] = strdup(name);
    if (!names->items[names->count]) {
        return EX_ENOMEM;
    }
    names->count++;
    return EX_OK;
}

/* A new string "folder/name", or NULL. */
char *ex_path_join(const char *folder, const char *name) {
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = malloc(bytes);

    if (path) {
        snprintf(path, bytes, "%s/%s", folder, name);
    }
    return path;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Adds `name` if it is of the wanted kind; what cannot be looked at counts as a file. */
static ex_status add_entry(const char *folder, const char *name, bool want_folders, ex_names *out) {
    struct stat info;
    char *path = ex_path_join(folder, name);
    bool is_folder;

    if (!path) {
        return EX_ENOMEM;
    }
    is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    free(path);
    return is_folder == want_folders ? add_name(out, name) : EX_OK;
}

static ex_status list_entries(DIR *stream, const char *folder, bool want_folders, ex_names *out,
                              ex_error *error) {
    for (;;) {
        const struct dirent *entry;

        errno = 0;
        entry = readdir(stream);
        if (!entry) {
            break;
        }
        if (entry->d_name[0] != '.' &&
            add_entry(folder, entry->d_name, want_folders, out) != EX_OK) {
            ex_error_set(error, folder, "out of host memory");
            return EX_ENOMEM;
        }
    }
    if (errno) {
        ex_error_set(error, folder, "%s", strerror(errno));
        return EX_EINPUT;
    }
    return EX_OK;
}

/* The entries of one kind, sorted by name, because readdir's order differs between machines. */
ex_status ex_names_list(const char *folder, bool want_folders, const char *expected, ex_names *out,
                        ex_error *error) {
    DIR *stream = opendir(folder);
    ex_status status;

    if (!stream) {
        ex_error_set(error, folder, "%s; %s", strerror(errno), expected);
        return EX_EINPUT;
    }
    status = list_entries(stream, folder, want_folders, out, error);
    closedir(stream);
    if (status == EX_OK && out->count > 1) {
        qsort(out->items, out->count, sizeof *out->items, compare_names);
    }
    return status;
}
