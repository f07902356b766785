/*
 * locales.c - see locales.h. localedef comes with the C library; its tables of characters and countries do not, so
 * there are small ones here. All categories but that of numbers are missing, of which localedef warns.
 */
#include "locales.h"
#include "suite.h"

#include <locale.h>
#include <stdio.h>
#include <unistd.h>

static char made[64];

static const struct {
    const char *name, *text;
} files[] = {{"characters", "<code_set_name> UTF-8\n<mb_cur_min> 1\n<mb_cur_max> 6\n"
                            "<comment_char> %\n<escape_char> /\nCHARMAP\n"
                            "<U0000>..<U007F> /x00 ASCII\n<U066B> /xd9/xab ARABIC\nEND CHARMAP\n"},
             {LOCALE_COMMA ".def",
              "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"<U002E>\"\n"
              "grouping 3;3\nEND LC_NUMERIC\n"},
             {LOCALE_ARABIC ".def", "LC_NUMERIC\ndecimal_point \"<U066B>\"\nthousands_sep \"\"\n"
                                    "grouping -1\nEND LC_NUMERIC\n"}};

static int write_files(void) {
    char name[128];
    for (int i = 0; i < LENGTH(files); i++) {
        snprintf(name, sizeof name, "%s/%s", made, files[i].name);
        FILE *file = fopen(name, "w");
        if (!file || fputs(files[i].text, file) < 0 || fclose(file) != 0) return 0;
    }
    return 1;
}

/* Whether it has a decimal point of its own; the locale of the program stays. */
static int is_made(const char *name) {
    char command[256], number[32];
    snprintf(command, sizeof command,
             "localedef -c -f %s/characters -i %s/%s.def %s/%s >/dev/null 2>&1", made, made, name,
             made, name);
    if (system(command) == -1 || !setlocale(LC_NUMERIC, name)) return 0;
    snprintf(number, sizeof number, "%.1f", 1.5);
    setlocale(LC_NUMERIC, "C");
    return number[1] != '.';
}

int locales_make(const char *test) {
    snprintf(made, sizeof made, "/tmp/memtrain-locales.XXXXXX");
    if (mkdtemp(made) && write_files() && setenv("LOCPATH", made, 1) == 0 &&
        is_made(LOCALE_COMMA) && is_made(LOCALE_ARABIC))
        return 1;
    suite_skip(test, "localedef makes no locale here");
    locales_remove();
    return 0;
}

void locales_remove(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", made);
    if (*made && system(command) != 0) fprintf(stderr, "%s is left\n", made);
    *made = '\0';
}
