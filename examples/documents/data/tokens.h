/*
 * tokens.h - texts as numbers: a token for each byte, which needs no vocabulary file.
 */
#ifndef EX_TOKENS_H
#define EX_TOKENS_H

#include <stddef.h>
#include <stdint.h>

/* 0 to 255 are the bytes. The end is the largest, so that argmax finds it. */
enum { EX_TOKEN_BEGIN = 256, EX_TOKEN_PAD = 257, EX_TOKEN_END = 258, EX_TOKEN_COUNT = 259 };

/* As CLIP numbers tokens: bytes, bytes that end a word, 48,894 merges, begin and end. Padding is 0. */
enum { EX_CLIP_BEGIN = 49406, EX_CLIP_END = 49407, EX_CLIP_COUNT = 49408, EX_CLIP_CONTEXT = 77 };

/*
 * Writes `context` tokens of CLIP (at least 2), as its own tokenizer would without merges: words are runs of letters, single
 * digits, and runs of other signs; capitals A to Z are small letters.
 */
void ex_tokens_write_clip(const char *text, size_t context, int64_t *tokens);

/* Writes `context` tokens (at least 2): begin, the bytes as far as there is room, end, padding. */
void ex_tokens_write(const char *text, size_t context, int64_t *tokens);

#endif
