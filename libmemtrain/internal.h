/*
 * internal.h - what the files of libmemtrain share: host memory, argument checks, small helpers.
 */
#ifndef MT_INTERNAL_H
#define MT_INTERNAL_H

#include <memtrain/policy.h>
#include <memtrain/trainer.h>

#include "handle.h"

/*
 * ---- what the other libraries use too, as they do new_file.h: exported, with a symbol version for that of the same
 * version alone --
 */

/* Host memory through the replaceable functions of mt_set_allocator. Sizes of 0 give NULL. */
MT_API void *mt__alloc(size_t count, size_t size); /* zeroed, overflow-checked */
MT_API void mt__free(void *block);

/*
 * Copies a struct that starts with its own size from an older or newer caller: fields that the
 * caller does not know stay as they are in *own.
 */
MT_API void mt__copy_versioned(void *own, size_t own_size, const void *theirs, size_t theirs_size);

/* Sets MT_EINVAL for a handle that is NULL or stale. */
MT_API mt_status mt__bad_handle(const void *handle, const char *function, const char *argument);

/* ---- what it does not ------------------------------------------------------------------------ */

/* Bytes of an error line at most, the end included: a copy of one needs as many. */
enum { MT__LINE = 512 };

/* A struct of the caller's that starts with its own size: MT_EINVAL where it is NULL or the size is not set. */
mt_status mt__check_sized(const void *theirs, const char *function, const char *argument);

/* Copies such a struct after that check, as mt__copy_versioned does. */
mt_status mt__take_versioned(void *own, size_t own_size, const void *theirs, const char *function,
                             const char *argument);

/* As mt__alloc, of a block that is there; what is new is not zeroed. */
void *mt__grow(void *block, size_t count, size_t size);

/* Adds a balanced cut of samples into chunks to the end of a plan. */
mt_status mt__plan_append(mt_plan *plan, size_t samples, size_t chunks);

/* The smallest chunk that options and backend allow; a batch that is smaller is one chunk. */
size_t mt__smallest_chunk(const mt_policy_options *options, const mt_backend_info *info);

/*
 * MT_EINVAL where sizes that are fixed are below the backend's smallest chunk; what the user says of that goes first.
 * since: the end of the line, "" or why.
 */
mt_status mt__check_backend_sizes(const mt_policy_options *options, size_t least,
                                  const char *since);

/*
 * The largest chunk of the smallest legal cut of so many samples: 11 samples in chunks of at least 6
 * are one of 11.
 */
size_t mt__policy_attainable(const mt_policy *policy, size_t samples);

/* What the smallest legal chunk needs above what is in use; bytes 0: not known. */
typedef struct mt__need {
    size_t chunk, bytes;
    int at_least; /* seen until a request was refused: it may need more */
} mt__need;

/* With the rungs that are taken: as predicted, or as that OOM has shown of a chunk that is no larger. */
mt__need mt__policy_need(const mt_policy *policy, const mt_oom *oom, size_t chunk);

/* The least that is known of one of so many samples, with whatever rungs. */
mt__need mt__policy_least_need(const mt_policy *policy, mt_mode mode, size_t chunk);

/* Bytes that the allocator holds and no tensor uses. */
size_t mt__cached(const mt_memory *memory);

#define MT__CHECK(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) return mt_set_error(MT_EINVAL, __VA_ARGS__);                             \
    } while (0)

#define MT__CHECK_HANDLE(handle, kind, function)                                                   \
    do {                                                                                           \
        if (!mt__handle_is(handle, kind)) return mt__bad_handle(handle, function, #handle);        \
    } while (0)

static inline size_t mt__min(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t mt__max(size_t a, size_t b) {
    return a > b ? a : b;
}

/* What is left of a whole, which may be less than is used; of SIZE_MAX, which stands for no limit, all. */
static inline size_t mt__left(size_t whole, size_t used) {
    return whole == SIZE_MAX ? whole : whole - mt__min(whole, used);
}

/* a / b rounded up, b > 0. */
static inline size_t mt__ceil_div(size_t a, size_t b) {
    return a / b + (a % b != 0);
}

/* a + b, SIZE_MAX instead of overflow. */
static inline size_t mt__add(size_t a, size_t b) {
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

#endif
