/*
 * flags.h - the flags that all example programs share, and what every program does with them.
 *
 * A program puts its own table beside the shared one and calls ex_flags_read. The order of the
 * fields is the order of the sections in the help.
 */
#ifndef EX_FLAGS_H
#define EX_FLAGS_H

#include "options.h"

#include <memtrain/policy.h>
#include <memtrain/schedule.h>
#include <memtrain/torch.h>

/* --inject-oom STEP:N[:persistent] */
typedef struct ex_inject {
    uint64_t step; /* counted from 1; 0: nowhere */
    uint64_t request;
    int persistent;
    uint64_t failed; /* requests that it has let fail by now: noted by ex_inject_disarm */
} ex_inject;

/* --save-every N, or a time such as 10m. */
typedef struct ex_save_every {
    uint64_t steps; /* 0: not by steps */
    double seconds; /* 0: not by time */
} ex_save_every;

typedef enum ex_progress_mode {
    EX_PROGRESS_AUTO = 0, /* a bar on a terminal, else plain lines */
    EX_PROGRESS_BAR,
    EX_PROGRESS_PLAIN,
    EX_PROGRESS_OFF
} ex_progress_mode;

typedef enum ex_lr_scaling { EX_LR_AS_IT_IS = 0, EX_LR_LINEAR, EX_LR_SQRT } ex_lr_scaling;

/* Of ex_flags.amp: half precision on CUDA alone. */
#define EX_AMP_AUTO (-1)

/* Of ex_flags.channels_last: whichever is faster, which ex_training_order finds out. */
#define EX_CHANNELS_LAST_AUTO (-1)

/* Of ex_flags.checkpointing: the rung is forbidden. */
#define EX_CHECKPOINTING_OFF (-1)

/* Of ex_flags.offload: on the host, or on the CPU in a file, as MT_OFFLOAD_AUTO would, but from the start. */
#define EX_OFFLOAD_ON 100

typedef struct ex_flags {
    const char *data; /* NULL: the pictures that come with the programs */
    int64_t image_size;
    int64_t batch, epochs, steps; /* steps 0: no bound */
    int64_t accumulate;           /* batch is that many times --batch: done by ex_flags_read */
    int64_t processes;            /* that train together, each with batches of its own */
    int64_t sharing;              /* of these on this machine: by ex_processes_open, and so ... */
    int64_t card;                 /* ... which of its cards is this one's */
    int64_t patience;             /* epochs; 0: no early stop */
    int64_t seed;
    int64_t optimizer; /* an mt_optimizer */
    double lr, momentum, weight_decay, clip;
    int apply_not_finite;  /* as in mt_trainer_options and mt_torch_options */
    int64_t lr_scaling;    /* an ex_lr_scaling */
    int64_t lr_batch;      /* the batch that lr is for, where it is scaled */
    int64_t schedule;      /* an mt_schedule_kind */
    int64_t warmup;        /* steps */
    int64_t amp;           /* an mt_dtype, or EX_AMP_AUTO */
    int64_t channels_last; /* as in mt_torch_options, or EX_CHANNELS_LAST_AUTO */
    const char *device;    /* "auto" or a device's name */
    const char *budget;    /* a size, "auto", or NULL: the program's default */
    int64_t arena;         /* as in mt_torch_options */
    int64_t checkpointing; /* as in mt_torch_options, or EX_CHECKPOINTING_OFF */
    int64_t offload;       /* as in mt_torch_options, or EX_OFFLOAD_ON */
    const char *offload_dir;
    size_t budget_resident; /* bytes of the whole process; 0: no limit */
    int64_t micro_batch, min_micro_batch, max_micro_batch; /* 0: chosen */
    int64_t clear_every, val_clear_every;                  /* as in mt_policy_options */
    int64_t threads;                                       /* 0: one a core */
    int64_t workers, prefetch;                             /* as in ex_batches_options */
    int deterministic;
    int by_hand; /* no flag: gradients are held, as in a loop without this library, for a table */
    int64_t fallback; /* MT_RUNG_BITs to allow beside the default ones */
    ex_inject inject;
    int64_t progress; /* an ex_progress_mode */
    const char *trace, *replay, *report, *learned, *save, *resume;
    ex_save_every save_every;
    int no_validation;
    int64_t rehearse; /* an ex_rehearse_mode */
    int explain, check, help, version;
} ex_flags;

/* Epochs, image size, learning rate and their like are for each program to set. */
#define EX_FLAGS_INIT                                                                              \
    {                                                                                              \
        .image_size = 224, .batch = 32, .accumulate = 1, .processes = 1, .sharing = 1,             \
        .epochs = 5, .seed = 1, .optimizer = MT_ADAMW, .lr = 1e-3, .lr_batch = 32,                 \
        .momentum = 0.9, .weight_decay = 0.01, .amp = MT_DTYPE_NONE, .device = "auto",             \
        .workers = 1, .prefetch = 1                                                                \
    }

/* --size of the programs: what trains within minutes, or the document's own network and pictures. */
enum { EX_SIZE_SMALL = 0, EX_SIZE_PUBLISHED = 1 };
extern const ex_word ex_size_words[];

#define EX_WORKERS_MAX 16
#define EX_PROCESSES_MAX 64

typedef struct ex_command {
    const char *program; /* "food101" */
    const char *summary; /* one sentence, first line of the help */
    const char *budget;  /* --budget where none is given, on the CPU; NULL: auto */
    const char *data;    /* what --data DIR is; NULL: a folder of class folders */
    ex_table own;        /* the program's own flags, come first in the help */
    ex_flags *flags;     /* holds the defaults */
} ex_command;

/*
 * Reads the command line. --help and --version are answered on standard output, a wrong flag with
 * one line on standard error.
 * @return 1: go on; 0: the program ends, with *out_status
 */
int ex_flags_read(const ex_command *command, int argc, char **argv, int *out_status);

enum { EX_SETTINGS = 32 }; /* more than the programs have */

/*
 * What of the shared flags and of a program's own decides the state in which a run ends, beside the
 * seed, the size of the pictures and the threads; what the other flags make idle is left out.
 * @return their number
 */
size_t ex_flags_settings(const ex_flags *flags, const ex_table *own, ex_setting out[EX_SETTINGS]);

/* What of the flags goes to the policy, and to the optimiser. device is borrowed. */
mt_policy_options ex_flags_policy(const ex_flags *flags);
mt_torch_options ex_flags_torch(const ex_flags *flags, const char *device);

/*
 * Whether --amp auto is fp16 there, and --self-test has it: whether autocast multiplies in it on that card. That is tried, so libtorch
 * has to be initialised. Not on MPS, where the library trains in bf16 alone, nor on the CPU, which fp16 makes slow. A simulated card
 * of CUDA has it, so that what is planned there is what runs.
 */
int ex_flags_has_half(const char *device);

/*
 * Whether the device takes what the flags ask it for.
 * @return MT_OK; MT_EINVAL with a line that names the flag
 */
MT_NODISCARD mt_status ex_flags_check_device(const ex_flags *flags, const char *device);

/* Samples below which a batch makes no chunk: --min-micro-batch, or what the network needs. */
size_t ex_flags_least(const ex_flags *flags, const mt_backend_info *info);

/*
 * Whether the network can be trained on the chunks that the flags ask for. rest: samples of the last
 * batch of an epoch, which is left out where it is too small; 0: it is as large as the others.
 * @return MT_OK; MT_EINVAL with a line that names the flag
 */
MT_NODISCARD mt_status ex_flags_check(const ex_flags *flags, const mt_backend_info *info,
                                      size_t rest);

/* --lr for this batch, as --lr-scaling says. */
double ex_flags_base_lr(const ex_flags *flags);

/* The learning rates of a run of so many steps; above 0 below steps. */
mt_schedule ex_flags_schedule(const ex_flags *flags, uint64_t steps);

#endif
