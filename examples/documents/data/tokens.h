/*
 * tokens.h - texts as numbers: a token for each byte, which needs no vocabulary file.
 */
#ifndef EX_TOKENS_H
#define EX_TOKENS_H

#include <stddef.h>
#include <stdint.h>

/* 0 to 255 are the bytes. The end is the largest, so that argmax finds it. */
enum { EX_TOKEN_BEGIN = 256, EX_TOKEN_PAD = 257, EX_TOKEN_END = 258, EX_TOKEN_COUNT = 259 };

/* Writes `context` tokens (at least 2): begin, the bytes as far as there is room, end, padding. */
void ex_tokens_write(const char *text, size_t context, int64_t *tokens);

#endif
