/*
 * reexec.h - where the program lies and what lies beside it, and starting it again with threads that
 * sleep while they wait.
 */
#ifndef EX_REEXEC_H
#define EX_REEXEC_H

#include <stddef.h>

/* Writes the path of the running program, with links resolved. @return 1, or 0 when not known. */
int ex_program_path(const char *argv0, char *path, size_t capacity);

/*
 * Looks for a file or folder, given relative to the root of the source tree, in the folder of the
 * program, in those above it, and in the working directory.
 * @return 1 and its path, or 0
 */
int ex_find_in_tree(const char *argv0, const char *relative, char *path, size_t capacity);

/*
 * The threads of libgomp wait for work by spinning, which makes two of them up to 60 times slower
 * than one as soon as another program wants a core. OMP_WAIT_POLICY=PASSIVE lets them sleep, but it
 * is read when the library is loaded, before main. So: when neither OMP_WAIT_POLICY nor
 * GOMP_SPINCOUNT is set, sets both and starts the program again in its place. Returns when they are
 * set already, by this or by the user; also, silently, when starting again is not possible.
 */
void ex_reexec_passive(char **argv);

#endif
