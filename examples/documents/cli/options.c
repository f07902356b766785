/*
 * options.c - reading flags by their table, and printing the table as help; see options.h.
 */
#include "options.h"

#include "content.h"
#include "output.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 30
#define HELP_WIDTH 96

/* ---- what a row accepts ------------------------------------------------------------------------ */

/* Appends to a text of a fixed size; what does not fit is cut. */
static void append(char *text, size_t capacity, const char *more) {
    size_t used = strlen(text);
    snprintf(text + used, capacity - used, "%s", more);
}

/* "a, b or c"; after a first alternative that is in text already also " or a". */
static void append_words(const ex_word *words, char *text, size_t capacity) {
    for (const ex_word *w = words; w && w->name; w++) {
        if (*text) append(text, capacity, w[1].name ? ", " : " or ");
        append(text, capacity, w->name);
    }
}

static const char *describe_accepted(const ex_option *row, char *text, size_t capacity) {
    if (row->accepts) return row->accepts;
    *text = '\0';
    if (row->kind == EX_TEXT) snprintf(text, capacity, "%s", row->value);
    if (row->kind == EX_REAL)
        snprintf(text, capacity, "a number from %g to %g", row->min, row->max);
    if (row->kind == EX_WHOLE)
        snprintf(text, capacity, "a whole number from %" PRId64 " to %" PRId64, row->least,
                 row->most);
    append_words(row->words, text, capacity);
    return text;
}

/* ---- values ------------------------------------------------------------------------------------ */

static int read_word(const ex_word *words, const char *text, int64_t *out) {
    for (const ex_word *w = words; w && w->name; w++) {
        if (strcmp(w->name, text) != 0) continue;
        *out = w->value;
        return 1;
    }
    return 0;
}

static int read_whole(const ex_option *row, const char *text, int64_t *out) {
    char *end;
    if (read_word(row->words, text, out)) return 1;
    if (!strchr("-0123456789", *text)) return 0;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < row->least || value > row->most) return 0;
    *out = value;
    return 1;
}

/* Infinities and NaN are outside of any bounds. */
static int read_real(const ex_option *row, const char *text, double *out) {
    char *end;
    if (!strchr("-+.0123456789", *text)) return 0;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= row->min && value <= row->max)) return 0;
    *out = value;
    return 1;
}

/* 1 when text was accepted. */
static int store(const ex_option *row, void *base, const char *text) {
    void *target = (char *)base + row->offset;
    if (!*text) return 0;
    switch (row->kind) {
    case EX_SWITCH:
        return 0;
    case EX_TEXT:
        *(const char **)target = text;
        return 1;
    case EX_WHOLE:
        return read_whole(row, text, target);
    case EX_REAL:
        return read_real(row, text, target);
    case EX_WORD:
        return read_word(row->words, text, target);
    case EX_PARSED:
        return row->read(text, target);
    }
    return 0;
}

/* ---- names ------------------------------------------------------------------------------------- */

static char same_letter(char c) {
    return c == '_' ? '-' : c;
}

static int is_name(const char *name, const char *given, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!name[i] || same_letter(name[i]) != same_letter(given[i])) return 0;
    return name[length] == '\0';
}

static const ex_option *find(const ex_table *tables, const char *given, size_t length,
                             void **base) {
    for (; tables->rows; tables++)
        for (size_t i = 0; i < tables->count; i++) {
            const ex_option *row = &tables->rows[i];
            if (!row->name || !is_name(row->name, given, length)) continue;
            *base = tables->base;
            return row;
        }
    return NULL;
}

/* Levenshtein's distance between a flag's name and what was typed; 99 for what is too long. */
static int distance(const char *name, const char *given, size_t length) {
    int row[33];
    if (length > 32) return 99;
    for (size_t j = 0; j <= length; j++) row[j] = (int)j;
    for (size_t i = 0; name[i]; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < length; j++) {
            int replace = diagonal + (same_letter(name[i]) != same_letter(given[j]));
            diagonal = row[j + 1];
            int insert = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            row[j + 1] = replace < insert ? replace : insert;
        }
    }
    return row[length];
}

/* The flag that was probably meant: at most two letters off; NULL when none is near. */
static const char *nearest(const ex_table *tables, const char *given, size_t length) {
    const char *best = NULL;
    int least = 3;
    for (; tables->rows; tables++)
        for (size_t i = 0; i < tables->count; i++) {
            const char *name = tables->rows[i].name;
            int d = name ? distance(name, given, length) : 99;
            if (d >= least || (size_t)d >= length) continue;
            best = name;
            least = d;
        }
    return best;
}

/* ---- parsing ----------------------------------------------------------------------------------- */

static int fail_unknown(const char *program, const ex_table *tables, const char *given,
                        size_t length, ex_error *error) {
    const char *meant = nearest(tables, given, length);
    ex_error_set(error, program, "there is no flag --%.*s%s%s%s; --help lists all", (int)length,
                 given, meant ? ", did you mean --" : "", meant ? meant : "", meant ? "?" : "");
    return -1;
}

/* The value of a flag: behind '=', or the next argument unless that is a flag itself. */
static const char *value_of(const char *equals, char **argv, int argc, int *index) {
    if (equals) return equals + 1;
    if (*index + 1 >= argc || strncmp(argv[*index + 1], "--", 2) == 0) return NULL;
    return argv[++*index];
}

/* Reads the flag at argv[*index] and leaves *index at the last argument that it took. */
static int parse_one(const char *program, const ex_table *tables, int argc, char **argv, int *index,
                     ex_error *error) {
    char accepted[256];
    void *base = NULL;
    const char *name = argv[*index] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const ex_option *row = find(tables, name, length, &base);
    if (!row) return fail_unknown(program, tables, name, length, error);
    if (row->kind == EX_SWITCH && !equals) {
        *(int *)((char *)base + row->offset) = 1;
        return 0;
    }
    if (row->kind == EX_SWITCH) {
        ex_error_set(error, program, "--%s takes no value, but '%s' is given", row->name,
                     equals + 1);
        return -1;
    }
    const char *text = value_of(equals, argv, argc, index);
    if (text && store(row, base, text)) return 0;
    const char *accepts = describe_accepted(row, accepted, sizeof accepted);
    if (text)
        ex_error_set(error, program, "--%s: '%s' is not accepted; accepted: %s", row->name, text,
                     accepts);
    else
        ex_error_set(error, program, "--%s needs a value; accepted: %s", row->name, accepts);
    return -1;
}

int ex_options_parse(const char *program, const ex_table *tables, int argc, char **argv,
                     ex_error *error) {
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || !argv[i][2]) {
            ex_error_set(error, program,
                         "'%s' is not a flag; flags begin with --, --help lists all", argv[i]);
            return -1;
        }
        if (parse_one(program, tables, argc, argv, &i, error) != 0) return -1;
    }
    return 0;
}

/* ---- settings ---------------------------------------------------------------------------------- */

static const char *word_for(const ex_word *words, int64_t value) {
    for (const ex_word *w = words; w && w->name; w++)
        if (w->value == value) return w->name;
    return NULL;
}

/* The fewest digits that read back as the same number. */
static void write_real(double value, char *text, size_t capacity) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, capacity, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

/* Paths differ at their ends. */
static void write_end(const char *value, char *text, size_t capacity) {
    size_t length = strlen(value);
    snprintf(text, capacity, "%s", length < capacity ? value : value + length - capacity + 1);
}

static void write_value(const ex_option *row, const void *base, char *text, size_t capacity) {
    const void *target = (const char *)base + row->offset;
    if (row->kind == EX_REAL) {
        write_real(*(const double *)target, text, capacity);
        return;
    }
    if (row->kind == EX_TEXT) {
        const char *given = *(const char *const *)target;
        if (given && row->decides == EX_BY_CONTENT)
            ex_content_mark(given, text, capacity);
        else
            write_end(given ? given : "", text, capacity);
        return;
    }
    int64_t value = row->kind == EX_SWITCH ? *(const int *)target : *(const int64_t *)target;
    const char *word = word_for(row->words, value);
    if (word)
        snprintf(text, capacity, "%s", word);
    else
        snprintf(text, capacity, "%" PRId64, value);
}

size_t ex_options_settings(const ex_table *tables, ex_setting *out, size_t capacity) {
    size_t count = 0;
    for (; tables->rows; tables++)
        for (size_t i = 0; i < tables->count; i++) {
            const ex_option *row = &tables->rows[i];
            if (!row->decides || count++ >= capacity) continue;
            out[count - 1].name = row->name;
            write_value(row, tables->base, out[count - 1].value, sizeof out->value);
        }
    return count;
}

/* ---- help -------------------------------------------------------------------------------------- */

/* The default of a row as text, "" when there is nothing to say. */
static const char *describe_default(const ex_option *row, const void *base, char *text,
                                    size_t capacity) {
    const void *target = (const char *)base + row->offset;
    *text = '\0';
    if (row->by_default) return row->by_default;
    if (row->kind == EX_TEXT && *(const char *const *)target) return *(const char *const *)target;
    if (row->kind == EX_REAL) snprintf(text, capacity, "%g", *(const double *)target);
    if (row->kind != EX_WHOLE && row->kind != EX_WORD) return text;
    int64_t value = *(const int64_t *)target;
    const char *word = word_for(row->words, value);
    if (word) return word;
    if (row->kind == EX_WHOLE) snprintf(text, capacity, "%" PRId64, value);
    return text;
}

/* Writes words from column on, broken before HELP_WIDTH. */
static void write_wrapped(const char *text, size_t column, FILE *out) {
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + length > HELP_WIDTH) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, length, out);
        column += length;
        text += length + strspn(text + length, " ");
    }
    fputc('\n', out);
}

static void write_row(const ex_option *row, const void *base, FILE *out) {
    char flag[64], number[64], text[512];
    const char *is = describe_default(row, base, number, sizeof number);
    snprintf(flag, sizeof flag, "  --%s %s", row->name, row->value ? row->value : "");
    snprintf(text, sizeof text, "%s%s%s%s", row->help, *is ? " (default: " : "", is,
             *is ? ")" : "");
    fprintf(out, "%-*s", HELP_COLUMN, flag);
    if (strlen(flag) >= HELP_COLUMN) fprintf(out, "\n%*s", HELP_COLUMN, "");
    write_wrapped(text, HELP_COLUMN, out);
}

void ex_options_help(const ex_table *tables, FILE *out) {
    for (; tables->rows; tables++)
        for (size_t i = 0; i < tables->count; i++) {
            const ex_option *row = &tables->rows[i];
            if (row->section)
                fprintf(out, "\n%s\n", row->section);
            else
                write_row(row, tables->base, out);
        }
}

int ex_options_tell(const char *program, const char *summary, const ex_table *tables) {
    printf("%s: %s\n\nUsage: %s [--FLAG VALUE]...\n", program, summary, program);
    ex_options_help(tables, stdout);
    printf("\nExit status: 0 done, 1 failure, 2 wrong flag or file, 3 does not fit into the "
           "budget.\n");
    return ex_output_end(program) ? 0 : 1;
}
