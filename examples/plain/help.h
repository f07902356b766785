/*
 * help.h - --help of programs that have no table of flags.
 */
#ifndef PLAIN_HELP_H
#define PLAIN_HELP_H

#include <stdio.h>
#include <string.h>

/*
 * Where --help is among the arguments, prints what the program does and which arguments it takes ("": none).
 * @return 1: the program ends; 0: nothing was asked
 */
static inline int plain_help_asked(int argc, char **argv, const char *what, const char *arguments) {
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    int is_asked = 0;
    for (int i = 1; i < argc; i++) is_asked |= strcmp(argv[i], "--help") == 0;
    if (is_asked) printf("%s: %s\n\nUsage: %s%s\n", name, what, name, arguments);
    return is_asked;
}

#endif
