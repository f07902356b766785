/*
 * tokens.c - see tokens.h.
 */
#include "tokens.h"

void ex_tokens_write(const char *text, size_t context, int64_t *tokens) {
    size_t n = 0;
    tokens[n++] = EX_TOKEN_BEGIN;
    while (*text && n < context - 1) tokens[n++] = (unsigned char)*text++;
    tokens[n++] = EX_TOKEN_END;
    while (n < context) tokens[n++] = EX_TOKEN_PAD;
}

/* CLIP's order of the bytes: those that can be printed, then the others. */
static int64_t clip_byte(unsigned char c) {
    if (c >= 33 && c <= 126) return c - 33;
    if (c >= 161 && c <= 172) return c - 161 + 94;
    if (c >= 174) return c - 174 + 106;
    return 188 + (c <= 32 ? c : c <= 160 ? c - 127 + 33 : 67);
}

/* 0: a blank. A digit is a word by itself. */
static int sign_of(unsigned char c) {
    if (c <= ' ') return 0;
    if (c >= '0' && c <= '9') return 2;
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 128 ? 1 : 3;
}

void ex_tokens_write_clip(const char *text, size_t context, int64_t *tokens) {
    size_t n = 0;
    tokens[n++] = EX_CLIP_BEGIN;
    for (; *text && n < context - 1; text++) {
        unsigned char c = (unsigned char)*text, next = (unsigned char)text[1];
        int sign = sign_of(c), ends = sign == 2 || sign != sign_of(next);
        if (c >= 'A' && c <= 'Z') c = (unsigned char)(c - 'A' + 'a');
        if (sign) tokens[n++] = clip_byte(c) + (ends ? 256 : 0);
    }
    tokens[n++] = EX_CLIP_END;
    while (n < context) tokens[n++] = 0;
}
