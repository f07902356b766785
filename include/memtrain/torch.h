/*
 * memtrain/torch.h - libtorch behind a C ABI: devices, tensors, models, and the backend for mt_trainer.
 *
 *     mt_torch_init(NULL);
 *     mt_device_set_budget("cpu", 600 << 20);
 *     resnet_model_new(&resnet_options, &model);          (C++, see memtrain/torch.hpp)
 *     mt_torch_new(model, &torch_options, &torch);        (flat blocks, optimiser state)
 *     mt_torch_backend(torch, &backend);
 *     mt_trainer_new(&backend, NULL, &trainer);
 *
 * This header has the functions of the process, and includes its parts:
 *
 *     torch_device.h     devices: budgets, figures of memory, simulated cards
 *     torch_model.h      tensors, batches, and a model as C functions
 *     torch_backend.h    a model in training: options, optimiser, the backend for mt_trainer
 *     torch_step.h       the parts of a step, for a loop without a policy
 *     torch_state.h      the state: its hash, checkpoints, files of weights
 *     torch_recompute.h  activation checkpointing
 *
 * The library is libmemtrain_torch. No part needs a header of libtorch.
 *
 * Devices have libtorch's names: "cpu", "cuda", "cuda:1", "xpu", "xpu:1", "mps". Other devices are
 * accepted too if libtorch has an accelerator of that name with a c10::DeviceAllocator
 * (docs/devices.md). The simulated cards are "sim:cuda" (or "sim") and "sim:mps", see
 * mt_device_simulate.
 *
 * Memory is counted in bytes of tensors ("counted bytes"), not in resident bytes of the process.
 *
 * The caller sets the size of structs that are filled in, as everywhere in the library.
 *
 * Errors: no C++ exception leaves any function. Each function names its codes. It may also return
 * MT_EINVAL for a NULL or stale argument (named in the error line), MT_EDEVMEM when memory ran out,
 * and MT_ETORCH with libtorch's own words.
 *
 * Thread rule: functions of the process and of devices may be called on any thread, unless they say
 * otherwise. A handle of a tensor belongs to one thread at a time, and so does a model with its
 * mt_torch. docs/threads.md has all rules.
 */
#ifndef MEMTRAIN_TORCH_H
#define MEMTRAIN_TORCH_H

#include <memtrain/torch_backend.h>
#include <memtrain/torch_device.h>
#include <memtrain/torch_model.h>
#include <memtrain/torch_recompute.h>
#include <memtrain/torch_state.h>
#include <memtrain/torch_step.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_torch_init_options {
    size_t size;        /* sizeof(mt_torch_init_options) */
    int cuda;           /* 1: load libtorch_cuda, _hip or _xpu if it exists. 0: only the CPU */
    int keep_allocator; /* 1: keep libtorch's own CPU allocator. Then CPU budgets are not enforced */
} mt_torch_init_options;

#define MT_TORCH_INIT_OPTIONS_INIT                                                                 \
    { sizeof(mt_torch_init_options), 1, 0 }

/*
 * Prepares libtorch: loads the part for CUDA or XPU if there is one, and installs the budgeted CPU
 * allocator.
 *
 * Call it before the first tensor, on the main thread. Later calls do nothing. Every function that
 * needs it calls it with the defaults.
 *
 * In a process where Python's torch is loaded, no allocator is installed, because tensors exist
 * already that it did not make. CPU budgets are then watched, not enforced (see
 * mt_torch_enforces_budget). The engine of autograd that offload needs is not installed either
 * (mt_offload).
 *
 * Threads of OpenMP may spin while they wait. Then this function or mt_torch_set_threads warns once
 * in the log. It does so if there is more than one thread, if OpenMP is GNU's, and if nothing in
 * the environment says how threads wait (see mt_reexec_passive). In a process of Python there is no
 * warning: its threads are the affair of Python.
 *
 * @param options  NULL: defaults
 * @return MT_OK; MT_ENOTSUP for a libtorch outside the supported versions
 */
MT_API MT_NODISCARD mt_status mt_torch_init(const mt_torch_init_options *options);

/*
 * Starts the program again in its own place, once, so that its threads sleep while they wait for
 * work.
 *
 * libtorch comes with GNU's OpenMP, whose threads spin while they wait. As soon as another program
 * wants a core, two such threads are up to 60 times slower than one. How threads wait is read from
 * the environment when the library is loaded, before main. So this function sets
 * OMP_WAIT_POLICY=PASSIVE, GOMP_SPINCOUNT=0, KMP_BLOCKTIME=0 and MEMTRAIN_REEXEC=1. Then it calls
 * execv with the file of the running program and argv. The rest of the environment stays.
 *
 * Call it first in main, since everything before the call is done twice. Streams of stdio are
 * flushed, open files stay open, other threads end.
 *
 * It does nothing in these cases: OMP_WAIT_POLICY, GOMP_SPINCOUNT, KMP_BLOCKTIME or MEMTRAIN_REEXEC
 * is set (so it happens once); the process has one core; there is no OpenMP; the dynamic loader was
 * called with the program's name. It does not look at OMP_NUM_THREADS, since mt_torch_set_threads
 * may ask for more than 1. Do not call it in a process of Python, whose argv is another one.
 *
 * The status may be ignored: a program that cannot be started again goes on, only slower.
 *
 * @param argv  main's own
 * @return MT_OK when there was nothing to do; MT_EIO with the system's words: nothing has changed;
 *         MT_EINVAL.
 *         It does not return when the program starts again
 */
MT_API mt_status mt_reexec_passive(char **argv);

/* The version of libtorch, "2.11.0". Static. Any thread. */
MT_API const char *mt_torch_version(void);

/*
 * Returns 1 if the library's CPU allocator is installed, which refuses requests beyond the budget.
 * Any thread.
 */
MT_API int mt_torch_enforces_budget(void);

/* Seeds the random number generators of all devices. Any thread, but not during a step. */
MT_API MT_NODISCARD mt_status mt_torch_seed(uint64_t seed);

/*
 * Sets or gets the number of threads that an operator may use on the CPU, at least 1. Set it before
 * the first step.
 */
MT_API MT_NODISCARD mt_status mt_torch_set_threads(int threads);
MT_API int mt_torch_get_threads(void);

#ifdef __cplusplus
}
#endif
#endif
