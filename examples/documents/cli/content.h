/*
 * content.h - whether two files have the same in them, told by a short mark.
 */
#ifndef EX_CONTENT_H
#define EX_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* FNV-1a (Fowler, Noll, Vo) of bytes behind others; EX_HASH_INIT where there are none. */
#define EX_HASH_INIT UINT64_C(0xcbf29ce484222325)
uint64_t ex_hash(uint64_t hash, const void *data, size_t bytes);

/* The same of a text and its end, so that texts one after another do not run together. */
uint64_t ex_hash_text(uint64_t hash, const char *text);

/*
 * Writes "content " and 16 digits: of the size of the file and of 512 places of 4 KiB in it, so of all of a file of up to 2 MiB.
 * Of a safetensors file also of the name, type and shape of each tensor, and of its beginning, middle and end. Of an index of weights (*.json) it is that
 * of all its files, by name. A file that cannot be read, or is none, has a mark too, which no other has.
 */
void ex_content_mark(const char *path, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
