/*
 * memtrain/processes.h - several processes that train one model (data parallel). Library
 * libmemtrain_torch.
 *
 *     mt_process_group group = MT_PROCESS_GROUP_INIT;
 *     mt_process_group_open(NULL, &group);             (RANK, WORLD_SIZE: as torchrun sets them)
 *     torch_options.processes = &group;                (mt_torch_new; then as ever)
 *     ... each step: samples of rank group.rank ...
 *     mt_process_group_close(&group);                  (after mt_torch_free)
 *
 * Each process has the whole model, takes each step with samples of its own, and has a budget, a policy and
 * chunks of its own. Losses are means over the samples of all, gradients are added up before the update, and
 * so all have the same parameters, bit for bit. A step is a transaction of all: where one process cannot do
 * its part, its budget too small for one sample say, none is updated, and the others' status is MT_EPEER.
 * docs/processes.md has the rest.
 */
#ifndef MEMTRAIN_PROCESSES_H
#define MEMTRAIN_PROCESSES_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Processes and how they add numbers up: what mt_process_group_open fills in, or functions of the caller's
 * over MPI, say. Both add each of n values over all processes, in place, and leave the same bits on
 * each. All processes call the same functions in the same order with the same n; a call returns when all
 * have made it. They run on the thread that takes the steps, and are to say MT_EIO where another process cannot
 * be reached.
 */
typedef struct mt_process_group {
    size_t size; /* sizeof(mt_process_group) */
    void *self;  /* first argument of both functions */
    int rank;    /* of this process: 0 to count - 1 */
    int count;   /* 1: this process is alone, and nothing is called */
    mt_status (*sum_floats)(void *self, float *values, size_t n);
    mt_status (*sum_doubles)(void *self, double *values, size_t n);
} mt_process_group;

#define MT_PROCESS_GROUP_INIT                                                                      \
    { sizeof(mt_process_group), NULL, 0, 1, NULL, NULL }

typedef struct mt_process_group_options {
    size_t size;         /* sizeof(mt_process_group_options) */
    int rank;            /* 0 to count - 1 */
    int count;           /* at least 1 */
    const char *address; /* of the machine of rank 0, name or number */
    int port;            /* that rank 0 listens on, 1 to 65535 */
    /* For the others, in each call; 0: 1800, as libtorch has it. To meet them at most 300. */
    double timeout_seconds;
    const char *network; /* its interface, "eth0"; NULL: the loopback where address is of this
                                machine ("localhost", "127.0.0.1"), else the host's own name's */
} mt_process_group_options;

#define MT_PROCESS_GROUP_OPTIONS_INIT                                                              \
    { sizeof(mt_process_group_options), 0, 1, "127.0.0.1", 29500, 0.0, NULL }

/*
 * Meets the other processes, over TCP, with libtorch's Gloo; returns when all are there. On CUDA and MPS sums go
 * over the host's memory.
 *
 * @param options  NULL: the environment's RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and where they are set
 *                 GLOO_SOCKET_IFNAME and what torchrun adds (TORCHELASTIC_USE_AGENT_STORE,
 *                 TORCHELASTIC_RESTART_COUNT). Without WORLD_SIZE, or with 1: a group of one
 * @param out      out->size is set by the caller; free with mt_process_group_close. After a failure a group of one
 * @return MT_OK; MT_EINVAL for a variable or a field that is wrong (the line names it); MT_EIO where the others
 *         are not to be met in time; MT_ENOTSUP with a libtorch that was built without Gloo
 */
MT_API MT_NODISCARD mt_status mt_process_group_open(const mt_process_group_options *options,
                                                    mt_process_group *out);

/*
 * Compares parameters and optimiser states of all processes, between steps; all call it at the same time. They are equal
 * from mt_torch_new on, so this is for the time after mt_torch_load, which each calls with a file of its own or the same.
 *
 * @return MT_OK, also for an mt_torch without other processes; MT_ESTATE on all where they differ; MT_EIO; MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_torch_check_processes(mt_torch *torch);

/* Leaves the group, which is one of one process from then on. NULL, and a group of the caller's own, are no-ops. */
MT_API void mt_process_group_close(mt_process_group *group);

#ifdef __cplusplus
}
#endif
#endif
