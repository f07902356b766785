/*
 * child.h - another program of the same folder as a child: started without a shell, waited for.
 */
#ifndef EX_CHILD_H
#define EX_CHILD_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

enum { EX_CANNOT_BE_RUN = 126, EX_IS_NOT_THERE = 127 }; /* as shells have them */

/* Path of a program beside the running one. @return 1, or 0 when that is not known or too long */
int ex_child_path(const char *argv0, const char *name, char *path, size_t capacity);

/*
 * Starts it with these arguments, argv[0] included, up to a NULL.
 * @param out_output  what it writes on standard output and error, close with ex_child_wait; NULL: it writes where this
 *                    program does
 * @return its number; -1 with errno
 */
pid_t ex_child_start(const char *path, char *const *argv, FILE **out_output);

/*
 * Waits for its end.
 * @param output  of ex_child_start, closed here; NULL: none
 * @return its exit status, 128 + the number of the signal that ended it, or one of those above where it has not begun
 */
int ex_child_wait(pid_t child, FILE *output);

#endif
