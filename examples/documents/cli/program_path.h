/*
 * program_path.h - where the program lies, and what lies beside it.
 */
#ifndef EX_PROGRAM_PATH_H
#define EX_PROGRAM_PATH_H

#include <stddef.h>

/* Writes the path of the running program, with links resolved. @return 1, or 0 when not known. */
int ex_program_path(const char *argv0, char *path, size_t capacity);

/*
 * Looks for a file or folder, given relative to the root of the source tree, in the folder of the
 * program, in those above it, and in the working directory.
 * @return 1 and its path, or 0
 */
int ex_find_in_tree(const char *argv0, const char *relative, char *path, size_t capacity);

#endif
