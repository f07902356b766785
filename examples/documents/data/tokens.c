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
