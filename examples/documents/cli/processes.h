/*
 * processes.h - a run by several processes: each trains on its own share of the samples, in a budget of its own.
 *
 * They come from --processes N, which starts them here, or from torchrun and its like, one a card or a machine:
 * the environment's RANK, WORLD_SIZE and so on. The first one speaks for all.
 */
#ifndef EX_PROCESSES_H
#define EX_PROCESSES_H

#include "flags.h"
#include "source.h"

#include <memtrain/processes.h>
#include <sys/types.h>

enum { EX_FILES = 5, EX_FILE_CAPACITY = 4096 };

typedef struct ex_processes {
    mt_process_group group;
    pid_t started[EX_PROCESSES_MAX]; /* by --processes, beside this one */
    int started_count;
    ex_source whole; /* of which each process has a share */
    char files[EX_FILES][EX_FILE_CAPACITY];
} ex_processes;

/* How many are asked for, by --processes or the environment; 1: this one alone. */
int64_t ex_processes_asked(const ex_flags *flags);

/*
 * The name that a file of --save, --resume, --trace or --report has for one of several processes, "run.rank1.best" for
 * "run.best"; for the first one, and for what lies in /dev, the path itself.
 * @param path  NULL: NULL is returned
 * @return path, or text
 */
const char *ex_processes_file(const char *path, int rank, char *text, size_t capacity);

/* A port of this machine that nobody has now; 0: none. */
int ex_processes_free_port(void);

/*
 * Called by a child after fork: from now on it gets SIGTERM when its parent ends (on Linux).
 * @return 1; 0 where the parent has ended already
 */
int ex_processes_end_with(pid_t parent);

/* Whether this one speaks for all, known before they have met. */
int ex_processes_is_first(void);

/*
 * Starts the others, where --processes asks for some, and meets them. In flags it changes what is each process's
 * own: its share of cores and of the memory that there is, its card, and the names of its files, which end with
 * ".rank1" and so on but for the first. Where it is not the first it is silent from now on.
 * @param argv  of this program, for the others
 * @param out   close with ex_processes_close in any case
 * @return MT_OK; MT_EINVAL for flags or variables that are wrong; MT_EIO where the others are not met
 */
MT_NODISCARD mt_status ex_processes_open(ex_flags *flags, char **argv, ex_processes *out);

/*
 * Leaves the others, and waits for those that were started.
 * @return MT_OK; MT_EDEVMEM where one of these did not fit its budget, MT_EPEER where it did not end well else
 */
MT_NODISCARD mt_status ex_processes_close(ex_processes *processes);

/*
 * This process's share of a source: of training each count-th sample in the order of an epoch, so that all have as many
 * and what is left over is left out. Validation is whole, for each of them. Borrows processes.
 */
ex_source ex_processes_share(ex_processes *processes, const ex_source *whole);

/* A signal of interrupt.h that one of the processes has got, where all ask at the same time; 0: none has. */
int ex_processes_signal(const ex_processes *processes, int signal_number);

/*
 * Whether all have the same number, when all ask at the same time.
 * @param what  of the error, "have other flags than each other"
 * @return MT_OK, MT_EINVAL, MT_EIO
 */
MT_NODISCARD mt_status ex_processes_same(const ex_processes *processes, uint64_t number,
                                         const char *what);

#endif
