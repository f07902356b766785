/*
 * card.h - what a test may ask of the test device (docs/testing.md), and have it do. All functions are weak where the
 * device is not loaded: `if (mt_card_read) ...`.
 */
#ifndef MEMTRAIN_TESTS_CARD_H
#define MEMTRAIN_TESTS_CARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Since the process began. */
typedef struct mt_card_counters {
    uint64_t kernels;   /* operators that ran on a card */
    uint64_t waits;     /* times that the host waited for all that a stream, or a card, was given */
    uint64_t to_card;   /* copies from the host */
    uint64_t to_host;   /* copies to it */
    uint64_t requests;  /* for memory of a card */
    uint64_t questions; /* of the driver: how much memory is free */
    uint64_t event_waits;   /* times that the host waited for an event that was not over */
    uint64_t detours;       /* convolutions that went on after a work space was refused */
    uint64_t pinned_clears; /* times that the cache of pinned memory was emptied */
    uint64_t pinned_bytes;  /* of pinned memory now, in use or kept by libtorch */
} mt_card_counters;

#ifdef MT_CARD_ITSELF
#define MT_CARD_FUNCTION __attribute__((visibility("default")))
#else
#define MT_CARD_FUNCTION __attribute__((weak))
#endif

MT_CARD_FUNCTION void mt_card_read(mt_card_counters *out);

/*
 * What things cost on the clock of the test device, in nanoseconds that nobody waits for: all 0 until they are set. Each stream
 * has a timeline, and the host has one: a kernel or a copy begins when its stream is through with what it was given before, and
 * not before the host gives it. Copies to a card share an engine, those to the host another one.
 */
typedef struct mt_card_costs {
    uint64_t launch;      /* of the host, for each kernel and copy that it gives */
    uint64_t kernel;      /* of a stream, whatever the kernel does */
    uint64_t copy_of_mib; /* of a stream and of an engine, for each MiB between host and card */
    uint64_t wait;        /* of the host, beside what it waits for */
} mt_card_costs;

typedef struct mt_card_clock {
    uint64_t host;             /* what time it is for the host */
    uint64_t kernels;          /* that kernels took, all together */
    uint64_t to_card, to_host; /* that copies took, likewise */
} mt_card_clock;

/* It is time 0, and all streams are idle. NULL: nothing costs anything. */
MT_CARD_FUNCTION void mt_card_start_clock(const mt_card_costs *costs);
MT_CARD_FUNCTION void mt_card_read_clock(mt_card_clock *out);

/* The host is busy for so many nanoseconds with what is no card's. */
MT_CARD_FUNCTION void mt_card_pass(uint64_t time);

/* The share of the first card that its allocator may reserve; 1: all. */
MT_CARD_FUNCTION double mt_card_share(void);

/* From now on (1) each kernel and each wait fails, as after an illegal access; or no more (0). */
MT_CARD_FUNCTION void mt_card_break(int broken);

/* From now on (1) a convolution in bfloat16 has no engine, as on cards before compute capability 8.0; or has one (0). */
MT_CARD_FUNCTION void mt_card_lack_bfloat16(int lacks);

/*
 * From now on (1) a stream may touch what another one writes to or still reads, or give it back, as real cards let it; or (0) that is
 * refused, and giving it back ends the process, which helps to find who forgets an event or recordStream.
 */
MT_CARD_FUNCTION void mt_card_let_race(int lets);

/* From now on (1) it has no doubles, as some of Intel's cards; or has them (0). */
MT_CARD_FUNCTION void mt_card_lack_doubles(int lacks);

/*
 * From now on (1) the card ignores what it is given, kernels and copies, and no error says so; or no more (0). That is what
 * Metal does once memory has run out while it worked.
 */
MT_CARD_FUNCTION void mt_card_ignore(int ignores);

/*
 * From now on a convolution asks for a work space of bytes first; 0: none does. Where a c10::OutOfMemoryError refuses it, it does
 * without and counts a detour. That is what cuDNN does.
 */
MT_CARD_FUNCTION void mt_card_use_work_space(size_t bytes);

/*
 * Each thread that multiplies from now on takes so many bytes at its first product, and once more at its first product with a bias,
 * and keeps them; 0: none does. That is what cuBLAS and cuBLASLt do.
 */
MT_CARD_FUNCTION void mt_card_keep_work_spaces(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
