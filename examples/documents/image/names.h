/*
 * names.h - the entries of a folder.
 */
#ifndef EX_NAMES_H
#define EX_NAMES_H

#include "image.h"

#include <stdbool.h>
#include <stddef.h>

/* Zeros to begin with. */
typedef struct ex_names {
    char **items;
    size_t count;
    size_t capacity;
} ex_names;

void ex_names_free(ex_names *names);

/*
 * Adds the names of the folders in a folder, or of everything else, in the byte order of the names, hidden ones
 * left out; symbolic links are followed.
 * @param expected what error lines say that the folder should have been
 * @return EX_OK; EX_EINPUT for a folder that cannot be read; EX_ENOMEM
 */
ex_status ex_names_list(const char *folder, bool want_folders, const char *expected, ex_names *out,
                        ex_error *error);

/* A new string, "folder/name"; NULL: out of host memory. */
char *ex_path_join(const char *folder, const char *name);

#endif
