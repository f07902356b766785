/*
 * needed.h - a budget with which a run on the CPU would have gone through, where it did not fit.
 */
#ifndef EX_NEEDED_H
#define EX_NEEDED_H

#include <memtrain/fit.h>
#include <memtrain/torch.h>

typedef struct ex_needed {
    mt_status (*model)(void *user, mt_model **out); /* makes the model, on the CPU */
    void *user;
    const mt_torch_options *options; /* of mt_torch_new, for the CPU */
    const mt_source *source;         /* of training */
    size_t batch;                    /* samples of a step */
} ex_needed;

/*
 * Makes the network anew, without the budget that was too small, and records a few chunks of it. Nothing of it is left, but the
 * budget of the CPU, which is its default then.
 * @param state  weights, buffers, gradients and optimiser state together; 0: not even they fit what is free
 * @param all    the same with the chunks of a step, none kept and nothing spared, in whole MiB; 0: not known
 */
void ex_needed_budget(const ex_needed *run, size_t *state, size_t *all);

/*
 * Says it in a line on standard error, and one before where the state alone is larger than the budget. Nothing where it is not
 * known.
 * @param budget  that was too small
 */
void ex_needed_print(const char *program, const ex_needed *run, size_t budget);

#endif
