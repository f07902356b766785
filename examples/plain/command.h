/*
 * command.h - the flags of plain_c, and how it reads the trace of an earlier run.
 *
 * Nothing here is about a backend. C11 and libmemtrain's public headers alone.
 */
#ifndef PLAIN_COMMAND_H
#define PLAIN_COMMAND_H

#include <memtrain/status.h>

#include <stdio.h>

enum { PLAIN_MOST_BATCH = 1024 };

typedef struct plain_flags {
    size_t batch;
    size_t micro_batch; /* 0: chosen */
    size_t epochs;
    size_t steps; /* 0: as many as the epochs have */
    size_t seed;
    size_t budget_bytes;
    size_t fail_step, fail_at;  /* 0: nothing is injected */
    const char *trace, *replay; /* paths; NULL: none */
    int help;
} plain_flags;

/* What --help prints. */
extern const char plain_help[];

/* @return MT_OK, or MT_EINVAL with a line that names flag, value and what is accepted */
MT_NODISCARD mt_status plain_read_flags(int argc, char **argv, plain_flags *out);

/*
 * Opens the trace that --replay names, *out NULL without that flag, and compares its first line.
 * @return MT_OK, or MT_EINVAL: it cannot be read, or is of another program, batch or seed
 */
MT_NODISCARD mt_status plain_replay_open(const plain_flags *flags, FILE **out);

/*
 * The chunks of a step, which are asked for in order.
 * @param chunks  room for PLAIN_MOST_BATCH
 * @param count   0 where the trace has ended
 * @return MT_OK, or MT_EINVAL: the line of that step is damaged
 */
MT_NODISCARD mt_status plain_replay_next(FILE *replay, uint64_t step, size_t *chunks,
                                         size_t *count);

#endif
