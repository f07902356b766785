/*
 * options.h - command lines from tables, one row a flag.
 *
 *     static const ex_option rows[] = {
 *         {.section = "Training"},
 *         EX_FLAG("batch", EX_WHOLE, flags, batch, "N", "pictures of one step", .least = 1,
 *                 .most = 4096),
 *     };
 *     const ex_table tables[] = {{rows, EX_ROWS(rows), &my_flags}, {NULL, 0, NULL}};
 *
 * A flag is written `--name value` or `--name=value`; `-` and `_` in names are the same. A flag that
 * comes twice has the later value. Nothing here prints to the terminal by itself or exits.
 */
#ifndef EX_OPTIONS_H
#define EX_OPTIONS_H

#include "image.h" /* ex_error */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum ex_kind {
    EX_SWITCH, /* int, 1 when the flag is there; takes no value */
    EX_TEXT,   /* const char *, the argument itself, not empty */
    EX_WHOLE,  /* int64_t, from `least` to `most`, or the value of a word */
    EX_REAL,   /* double, from `min` to `max` */
    EX_WORD,   /* int64_t, the value of a word */
    EX_PARSED  /* what `read` makes of the argument */
} ex_kind;

/*
 * What becomes of the file that a flag names. Of two flags with one file the one of the later use is refused, and
 * files that are only read may be one.
 */
typedef enum ex_file_use {
    EX_NO_FILE = 0,
    EX_FILE_READ,
    EX_FILE_RESUMED, /* read as a whole before EX_FILE_SAVED writes, so that these two may be one */
    EX_FILE_SAVED, /* written again and again, with FILE.1, FILE.best and FILE.memtrain-tmp beside it */
    EX_FILE_REPLACED, /* written once, as FILE.memtrain-tmp first */
    EX_FILE_WRITTEN
} ex_file_use;

/* A word and what it stands for; a list of them ends with {NULL, 0}. */
typedef struct ex_word {
    const char *name;
    int64_t value;
} ex_word;

enum { EX_BY_CONTENT = 2 }; /* of decides: what is in the file of that name, wherever it lies */

/* One flag, or with `section` set a heading of the help. What is not set is zero. */
typedef struct ex_option {
    const char *section;
    const char *name; /* "micro-batch" */
    ex_kind kind;
    size_t offset;          /* of the target, from the base of the table */
    const char *value;      /* what help calls the value, "N|auto" */
    const char *help;       /* one sentence without a full stop */
    const char *accepts;    /* for the error line; NULL: made from the bounds and the words */
    const char *by_default; /* what help gives as default; NULL: the target's value, "": nothing */
    const ex_word *words;
    int64_t least, most; /* both included */
    double min, max;     /* both included */
    int decides; /* 1: another value ends in another state, so that a replay needs the same; or EX_BY_CONTENT */
    ex_file_use file; /* EX_TEXT: what becomes of the file of that name */
    /* EX_PARSED: 1 when text was accepted and stored, 0 when not. text lives as long as argv. */
    int (*read)(const char *text, void *target);
} ex_option;

/* A row: what every flag has, then what only some have (".least = 1, .most = 4096"). */
#define EX_FLAG(name_, kind_, type, field, value_, help_, ...)                                     \
    {                                                                                              \
        .name = name_, .kind = kind_, .offset = offsetof(type, field), .value = value_,            \
        .help = help_, __VA_ARGS__                                                                 \
    }

/* Rows and the struct that their offsets refer to; a list of tables ends with a NULL row. */
typedef struct ex_table {
    const ex_option *rows;
    size_t count;
    void *base;
} ex_table;

#define EX_ROWS(rows) (sizeof(rows) / sizeof((rows)[0]))

/*
 * Reads argv[1] to argv[argc - 1] into the targets; texts point into argv.
 * @return 0; -1 with one line in error that begins with the program's name, names the flag and its
 *         value, and says what is accepted
 */
int ex_options_parse(const char *program, const ex_table *tables, int argc, char **argv,
                     ex_error *error);

/*
 * A flag that decides the state in which a run ends, and its value as text, or the mark of the file that it names (content.h); "":
 * a text that is not given.
 */
typedef struct ex_setting {
    const char *name;
    char value[32];
} ex_setting;

/*
 * Those of the tables, given or not, into out[capacity].
 * @return their number, of which those beyond capacity are not written
 */
size_t ex_options_settings(const ex_table *tables, ex_setting *out, size_t capacity);

/* Writes the flags by section, with the values that the targets have now as defaults. */
void ex_options_help(const ex_table *tables, FILE *out);

/*
 * All of --help on standard output: what the program does, its usage, the flags, and the exit statuses that programs have in
 * common.
 * @return the exit status
 */
int ex_options_tell(const char *program, const char *summary, const ex_table *tables);

#endif
