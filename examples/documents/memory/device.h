/*
 * device.h - from --device, --threads and --budget to a device that is ready to use.
 */
#ifndef EX_DEVICE_H
#define EX_DEVICE_H

#include "flags.h"

typedef struct ex_device {
    const char *name;     /* "cpu", "cuda:1", "xpu", "sim:mps"; borrowed from the flags, or card */
    int threads;          /* of the CPU */
    size_t budget_bytes;  /* 0: the device knows no limit */
    size_t own_bytes;     /* the same without --budget-resident ... */
    int resident_binds;   /* ... which leaves tensors less than that */
    size_t room_bytes;    /* what is there for tensors; 0: not known */
    size_t sharers;       /* processes of this machine that have the same card; 0, 1: it alone */
    size_t card_bytes;    /* of a simulated card whose size was given; 0: no such card */
    size_t ahead_bytes;   /* of the CPU's budget, held by batches that are rendered ahead */
    size_t mapped_bytes;  /* of frozen weights that are pages of files, which no budget counts */
    char card[64];        /* the name of a process's own card */
    char left[256];       /* why the device that was asked for is not this one; "": it is */
    char budget_from[96]; /* where the budget comes from, in words */
} ex_device;

/* The first that can be used of cuda, xpu, mps, a card of a third party and cpu, as --device auto takes it. */
const char *ex_device_auto(void);

/*
 * Prepares libtorch, seeds it, sets threads and budget.
 * @param flags     the seed, --device, --threads and --budget
 * @param budget    --budget where none is given, on the CPU; NULL: auto
 * @param replayed  threads of the trace that is to be replayed, since sums depend on them; 0: any
 * @return MT_OK; MT_EINVAL when a flag's value cannot be had here (names it)
 */
MT_NODISCARD mt_status ex_device_open(const ex_flags *flags, const char *budget, int replayed,
                                      ex_device *out);

/* Reads the budget anew: what --budget-resident leaves tensors is less once the process has grown. */
MT_NODISCARD mt_status ex_device_follow(const ex_flags *flags, ex_device *device);

/*
 * mt_torch_new on that device, with these options. Where not even parameters, gradients and
 * optimiser state fit it and --fallback allows the CPU, goes on there, with a warning; the device is the CPU
 * with its default budget then.
 */
MT_NODISCARD mt_status ex_device_torch(const ex_flags *flags, ex_device *device,
                                       const mt_torch_options *options, mt_model *model,
                                       mt_torch **out);

#endif
