/*
 * flag_values.h - values of the shared flags that have a form of their own.
 */
#ifndef EX_FLAG_VALUES_H
#define EX_FLAG_VALUES_H

#include <stdint.h>

/* For ex_option.read: 1 when text was accepted and stored, 0 when not. */
int ex_read_device(const char *text, void *target);     /* const char *, the text itself */
int ex_read_budget(const char *text, void *target);     /* likewise */
int ex_read_resident(const char *text, void *target);   /* size_t, bytes */
int ex_read_inject(const char *text, void *target);     /* ex_inject */
int ex_read_save_every(const char *text, void *target); /* ex_save_every */
int ex_read_fallback(const char *text, void *target);   /* int64_t, MT_RUNG_BITs */

enum { EX_FALLBACK = 48 };

/* Rungs as --fallback takes them: "amp,cpu"; "none". */
void ex_fallback_text(int64_t rungs, char text[EX_FALLBACK]);

#endif
