/*
 * html_text.h - text and figures on a page of HTML.
 */
#ifndef EX_HTML_TEXT_H
#define EX_HTML_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Writes text so that it is text inside an element and inside a quoted attribute. */
void ex_html_escape(const char *text, FILE *out);

/* Enough for any of the figures below. */
enum { EX_FIGURE = 40 };

/* "214.3 MiB", "1.23 s" (or us, ms, min, h), "1 234 567", "12.3 %"; all return text. */
const char *ex_html_bytes(double bytes, char text[EX_FIGURE]);
const char *ex_html_seconds(double seconds, char text[EX_FIGURE]);
const char *ex_html_count(uint64_t count, char text[EX_FIGURE]);
const char *ex_html_percent(double part, double whole, char text[EX_FIGURE]);

/* "11,11,10", or for a long list "16 of 2" or "16 of 2-3". */
void ex_html_chunks(const size_t *chunks, size_t count, char *text, size_t capacity);

/* Copies at most capacity - 1 bytes and never half a character of UTF-8. */
void ex_html_cut(const char *text, char *out, size_t capacity);

#endif
