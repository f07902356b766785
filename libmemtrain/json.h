/*
 * json.h - the little JSON that the library writes and reads (RFC 8259): texts that grow, and a scanner
 * that takes one token after the other, so that whoever reads says what may come next.
 */
#ifndef MT_JSON_H
#define MT_JSON_H

#include "internal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A growing line of text; its memory is kept from line to line. */
typedef struct mt__text {
    char *data;
    size_t length, capacity;
    int failed; /* host memory ran out, or a piece was too long: the line is dropped */
} mt__text;

/* Adds a short piece, below 96 bytes: a key or a number (printf format). */
MT_PRINTF(2, 3) void mt__put(mt__text *text, const char *format, ...);

/* Adds a string of any length with its quotes; bytes below 32, quotes and backslashes are escaped. */
void mt__put_quoted(mt__text *text, const char *value);

/* Whether it is UTF-8 throughout, without surrogates and forms that are too long. */
int mt__is_utf8(const char *text);

/*
 * A text that is read. Strings are decoded where they stand, so it is written to. libmemtrain_torch reads with these,
 * too.
 */
typedef struct mt__json {
    char *text; /* length bytes and a zero */
    size_t length;
    size_t at;           /* of the next token, or of what is wrong */
    const char *problem; /* what is wrong; NULL: nothing */
} mt__json;

/* Skips blanks and takes the character if it comes next. Returns whether it did. */
MT_API int mt__json_take(mt__json *json, char c);

/* The same, and if another one comes that is the problem, in these words. */
MT_API int mt__json_expect(mt__json *json, char c, const char *problem);

/* A string as UTF-8 with a zero behind it, in the text itself; 0: a problem. No zero is inside. */
MT_API int mt__json_string(mt__json *json, char **out);

/* A whole number of at least 0; 0: a problem. */
int mt__json_whole(mt__json *json, uint64_t *out);

/* Blanks and nothing else are left; 0: a problem. */
MT_API int mt__json_end(mt__json *json);

#ifdef __cplusplus
}
#endif
#endif
