/*
 * folder.c - lists a folder; see folder.h.
 */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is_picture(const struct dirent *entry) {
    size_t length = strlen(entry->d_name);
    return entry->d_name[0] != '.' && length > 4 && strcmp(entry->d_name + length - 4, ".png") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

ex_status ex_folder_pngs(const char *folder, ex_folder_fn fn, void *user, ex_error *error) {
    char path[4096];
    struct dirent **entries = NULL;
    ex_status status = EX_OK;
    int count = scandir(folder, &entries, is_picture, by_name);
    if (count < 0 && errno != ENOENT && errno != ENOTDIR) {
        int is_memory = errno == ENOMEM;
        ex_error_set(error, folder, "%s", strerror(errno));
        return is_memory ? EX_ENOMEM : EX_EINPUT;
    }
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (status == EX_OK) status = fn(user, path, entries[i]->d_name, error);
        free(entries[i]);
    }
    free(entries);
    return status;
}

ex_status ex_folder_check(const char *folder, ex_error *error) {
    DIR *opened = opendir(folder);
    if (!opened) {
        ex_error_set(error, folder, "%s", strerror(errno));
        return EX_EINPUT;
    }
    closedir(opened);
    return EX_OK;
}
