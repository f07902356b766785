/*
 * memtrain/processes.h - several processes that train one model (data parallel).
 *
 *     mt_process_group group = MT_PROCESS_GROUP_INIT;
 *     mt_process_group_open(NULL, &group);             (RANK, WORLD_SIZE: as torchrun sets them)
 *     torch_options.processes = &group;                (mt_torch_new; then as ever)
 *     ... each step: samples of rank group.rank ...
 *     mt_process_group_close(&group);                  (after mt_torch_free)
 *
 * The library is libmemtrain_torch. Each process has the whole model, and takes each step with
 * samples of its own. It has its own budget, policy and chunks. Losses are means over the samples
 * of all processes. Gradients are added up before the update. So all processes have the same
 * parameters, bit for bit.
 *
 * A step is a transaction of all processes. If one process cannot do its part, none is updated, and
 * the others get MT_EPEER. One reason is a budget that is too small for one sample.
 * docs/processes.md has the rest.
 */
#ifndef MEMTRAIN_PROCESSES_H
#define MEMTRAIN_PROCESSES_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A group of processes, and how they add up numbers. mt_process_group_open fills it in. Or fill in
 * functions of your own, for instance over MPI.
 *
 * Both functions add each of n values over all processes, in place. They must leave the same bits
 * on each process. All processes call the same functions in the same order with the same n. A call
 * returns when all processes have made it. The calls come from the thread that takes the steps.
 * Return MT_EIO when another process cannot be reached.
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

/* How a process finds the others. */
typedef struct mt_process_group_options {
    size_t size;         /* sizeof(mt_process_group_options) */
    int rank;            /* 0 to count - 1 */
    int count;           /* at least 1 */
    const char *address; /* of the machine of rank 0, a name or a number */
    int port;            /* that rank 0 listens on, 1 to 65535 */
    /*
     * How long to wait for the others in each call. 0: 1800, libtorch's default. To meet them it
     * waits for at most 300.
     */
    double timeout_seconds;
    /*
     * The network interface, "eth0". NULL: the loopback if address is this machine ("localhost",
     * "127.0.0.1"), otherwise the interface of the host's own name.
     */
    const char *network;
} mt_process_group_options;

#define MT_PROCESS_GROUP_OPTIONS_INIT                                                              \
    { sizeof(mt_process_group_options), 0, 1, "127.0.0.1", 29500, 0.0, NULL }

/*
 * Meets the other processes over TCP, with libtorch's Gloo. It returns when all are there. On CUDA
 * and MPS sums go through the host's memory.
 *
 * @param options  NULL: the environment's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. If they
 *                 are set, GLOO_SOCKET_IFNAME and what torchrun adds count too
 *                 (TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT). Without WORLD_SIZE,
 *                 or with 1: a group of one process
 * @param out      out->size is set by the caller; free with mt_process_group_close. After a failure
 *                 it is a group of one process
 * @return MT_OK; MT_EINVAL for a wrong variable or field (the line names it); MT_EIO when the
 *         others cannot be met in time; MT_ENOTSUP with a libtorch that was built without Gloo
 */
MT_API MT_NODISCARD mt_status mt_process_group_open(const mt_process_group_options *options,
                                                    mt_process_group *out);

/*
 * Compares parameters and optimiser states of all processes, between steps. All processes call it
 * at the same time.
 *
 * After mt_torch_new all states are equal. So this is for the time after mt_torch_load, which each
 * process calls with its own file or with the same one.
 *
 * @return MT_OK, also for an mt_torch without other processes; MT_ESTATE on all processes when
 *         states differ; MT_EIO; MT_EINVAL
 */
MT_API MT_NODISCARD mt_status mt_torch_check_processes(mt_torch *torch);

/*
 * Leaves the group. From then on it is a group of one process. NULL is a no-op, and so is a group
 * that the caller filled in.
 */
MT_API void mt_process_group_close(mt_process_group *group);

#ifdef __cplusplus
}
#endif
#endif
