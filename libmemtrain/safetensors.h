/*
 * safetensors.h - what reading and writing such files share.
 */
#ifndef MT_SAFETENSORS_H
#define MT_SAFETENSORS_H

#include <memtrain/safetensors.h>

#include "json.h"
#include "new_file.h"

enum {
    MT__ST_PREFIX = 8,         /* bytes of the length of the header */
    MT__ST_HEADER = 100000000, /* most bytes of a header */
    MT__SHOWN = 100            /* room for a name in an error line */
};

#ifdef __cplusplus
extern "C" {
#endif

#define MT__ST_METADATA "__metadata__"

/* The name as an error line can have it: on one line, its end cut off where it is long. */
const char *mt__shown(const char *name, char text[MT__SHOWN]);

/* Bytes of all elements; 0 when they are 2^63 or more, sizes of 0 counted as 1. */
int mt__st_bytes(mt_st_dtype dtype, size_t dims, const int64_t *shape, uint64_t *out);

/*
 * Where a tensor's bytes lie: the open file, borrowed until it is freed, and their offset in it. For
 * libmemtrain_torch, which maps them.
 */
MT_API mt_status mt__st_place(const mt_safetensors *file, size_t index, int *out_descriptor,
                              uint64_t *out_offset);

#ifdef __cplusplus
}
#endif
#endif
