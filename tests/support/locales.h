/*
 * locales.h - locales with another decimal point, made by a test: where nobody speaks German, de_DE is not installed.
 */
#ifndef MEMTRAIN_TESTS_LOCALES_H
#define MEMTRAIN_TESTS_LOCALES_H

#ifdef __cplusplus
extern "C" {
#endif

/* 12.345,5 and, in digits without groups, a decimal point of two bytes. */
#define LOCALE_COMMA "comma"
#define LOCALE_ARABIC "arabic"

/*
 * Makes both in a folder, which LOCPATH tells setlocale. 0 where the system cannot: then a line says that the test is
 * skipped.
 */
int locales_make(const char *test);

/* Removes the folder. */
void locales_remove(void);

#ifdef __cplusplus
}
#endif
#endif
