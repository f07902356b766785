/*
 * json.c - texts that grow, UTF-8, and the scanner; see json.h.
 */
#include "json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- writing ----------------------------------------------------------------------------------- */

static int reserve(mt__text *x, size_t more) {
    if (x->failed) return 0;
    if (x->length + more < x->capacity) return 1;
    size_t capacity = mt__max(1024, 2 * (x->length + more));
    char *data = mt__grow(x->data, capacity, 1);
    if (!data) {
        x->failed = 1;
        return 0;
    }
    x->data = data;
    x->capacity = capacity;
    return 1;
}

void mt__put(mt__text *x, const char *format, ...) {
    va_list list;
    char piece[96];
    va_start(list, format);
    int n = vsnprintf(piece, sizeof piece, format, list);
    va_end(list);
    if ((size_t)n >= sizeof piece) x->failed = 1; /* dropped, and not a line with a hole */
    if (!reserve(x, (size_t)n)) return;
    memcpy(x->data + x->length, piece, (size_t)n + 1);
    x->length += (size_t)n;
}

void mt__put_quoted(mt__text *x, const char *value) {
    mt__put(x, "\"");
    for (const unsigned char *p = (const unsigned char *)value; *p; p++) {
        if (*p == '"' || *p == '\\')
            mt__put(x, "\\%c", *p);
        else if (*p < 32)
            mt__put(x, "\\u%04x", *p);
        else
            mt__put(x, "%c", *p);
    }
    mt__put(x, "\"");
}

/* ---- UTF-8 ------------------------------------------------------------------------------------- */

/*
 * Bytes of the character at p, 0 for none (RFC 3629). The zero behind the text is no byte that continues
 * a character, so nothing is read beyond it.
 */
static size_t character_bytes(const unsigned char *p) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (*p < 0x80) return 1;
    size_t bytes = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    unsigned code = *p & (0xffu >> (bytes + 1));
    if (*p < 0xc0 || *p > 0xf7) return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    int is_surrogate = code >= 0xd800 && code < 0xe000;
    return code < least[bytes] || code > 0x10ffff || is_surrogate ? 0 : bytes;
}

int mt__is_utf8(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        size_t bytes = character_bytes(p);
        if (!bytes) return 0;
        p += bytes;
    }
    return 1;
}

/* Writes a character, and returns where the next one goes. */
static char *put_character(char *to, unsigned code) {
    static const unsigned lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    int bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = bytes - 1; i > 0; i--, code >>= 6) to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)(lead[bytes] | code);
    return to + bytes;
}

/* ---- reading ----------------------------------------------------------------------------------- */

static int wrong(mt__json *j, const char *problem) {
    if (!j->problem) j->problem = problem;
    return 0;
}

static void skip_blanks(mt__json *j) {
    while (j->at < j->length && strchr(" \t\r\n", j->text[j->at]) && j->text[j->at]) j->at++;
}

int mt__json_take(mt__json *j, char c) {
    skip_blanks(j);
    if (j->problem || j->at >= j->length || j->text[j->at] != c) return 0;
    j->at++;
    return 1;
}

int mt__json_expect(mt__json *j, char c, const char *problem) {
    if (mt__json_take(j, c)) return 1;
    return wrong(j, problem);
}

/* Four hexadecimal digits. */
static int take_hex(mt__json *j, unsigned *out) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        const char *digit = j->text[j->at] ? strchr(digits, j->text[j->at]) : NULL;
        if (!digit) return wrong(j, "\\u without four hexadecimal digits");
        *out = *out << 4 | ((unsigned)(digit - digits) & 15);
    }
    return 1;
}

/* What stands behind \u: one number, or two that are a pair of surrogates. */
static int take_code(mt__json *j, unsigned *out) {
    unsigned low;
    if (!take_hex(j, out)) return 0;
    if (*out == 0) return wrong(j, "a zero in a string");
    if (*out < 0xd800 || *out >= 0xe000) return 1;
    if (*out >= 0xdc00 || strncmp(j->text + j->at, "\\u", 2) != 0)
        return wrong(j, "half of a pair of surrogates");
    j->at += 2;
    if (!take_hex(j, &low)) return 0;
    if (low < 0xdc00 || low >= 0xe000) return wrong(j, "half of a pair of surrogates");
    *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
    return 1;
}

/* Behind the backslash. What is decoded is never longer than what stood there. */
static int take_escape(mt__json *j, char **to) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    unsigned code;
    char c = j->text[j->at];
    const char *name = c ? strchr(names, c) : NULL;
    if (!name && c != 'u') return wrong(j, "an escape that JSON does not have");
    j->at++;
    if (name) {
        *(*to)++ = meant[name - names];
        return 1;
    }
    if (!take_code(j, &code)) return 0;
    *to = put_character(*to, code);
    return 1;
}

int mt__json_string(mt__json *j, char **out) {
    if (!mt__json_expect(j, '"', "a string is expected")) return 0;
    char *to = *out = j->text + j->at;
    while (j->at < j->length && j->text[j->at] != '"') {
        unsigned char c = (unsigned char)j->text[j->at];
        size_t bytes = character_bytes((unsigned char *)j->text + j->at);
        if (c < 32) return wrong(j, "a control character in a string");
        if (!bytes) return wrong(j, "bytes that are no UTF-8");
        if (c == '\\') {
            j->at++;
            if (!take_escape(j, &to)) return 0;
            continue;
        }
        for (size_t i = 0; i < bytes; i++) *to++ = j->text[j->at++];
    }
    if (j->at >= j->length) return wrong(j, "a string without an end");
    j->at++;
    *to = '\0'; /* on the closing quote, or before it */
    return 1;
}

int mt__json_whole(mt__json *j, uint64_t *out) {
    skip_blanks(j);
    const char *p = j->text + j->at;
    *out = 0;
    if (j->problem) return 0;
    if (*p < '0' || *p > '9') return wrong(j, "a whole number of at least 0 is expected");
    if (*p == '0' && p[1] >= '0' && p[1] <= '9') return wrong(j, "a number that begins with 0");
    for (; *p >= '0' && *p <= '9'; p++) {
        unsigned digit = (unsigned)(*p - '0');
        if (*out > (UINT64_MAX - digit) / 10) return wrong(j, "a number above 2^64 - 1");
        *out = *out * 10 + digit;
    }
    if (*p == '.' || *p == 'e' || *p == 'E') return wrong(j, "a number that is not whole");
    j->at = (size_t)(p - j->text);
    return 1;
}

int mt__json_end(mt__json *j) {
    skip_blanks(j);
    if (j->at < j->length) return wrong(j, "something behind the end");
    return !j->problem;
}
