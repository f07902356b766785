/*
 * probe.h - what a step of a model takes, measured by running one: how the tables of memory are made.
 */
#ifndef EX_PROBE_H
#define EX_PROBE_H

#include <memtrain/torch.h>

typedef struct ex_probe {
    mt_status (*model)(void *user, mt_model **out); /* makes the model, on the CPU */
    void *user;
    mt_torch_options options; /* device, optimiser, half precision, checkpointing */
    size_t micro_batch;       /* samples of a chunk; 0: the whole batch */
    const char *frozen; /* parameters that do not train, as mt_torch_freeze has it; NULL: none */
    mt_visit_fn visit;  /* told of the state as mt_torch_visit_state tells it; NULL: nobody */
    void *visit_user;
} ex_probe;

typedef struct ex_probed {
    mt_backend_info
        info;           /* bytes of parameters, gradients and optimiser state; its texts are gone */
    size_t chunk_bytes; /* most that a chunk took beside these; 0 where the device tells no peak */
    size_t peak_bytes;  /* most that all took together; 0: the device does not tell */
    double seconds;     /* of the step */
} ex_probed;

/*
 * Makes model, optimiser and backend, takes two steps on the batch and tells of the second; the first sets
 * kernels up. Nothing of it is left.
 * @return MT_OK; MT_EDEVMEM where it does not fit the device's budget; as the functions of memtrain/torch.h
 */
MT_NODISCARD mt_status ex_probe_step(const ex_probe *how, const mt_batch *batch, ex_probed *out);

#endif
