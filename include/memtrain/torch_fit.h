/*
 * memtrain/torch_fit.h - what mt_fit asks of an mt_torch: its files and its rate. Library libmemtrain_torch.
 *
 *     mt_fit_callbacks callbacks = MT_FIT_CALLBACKS_INIT;
 *     if (mt_torch_callbacks(torch, &callbacks) != MT_OK) ...
 *     callbacks.epoch = print;
 *     if (mt_fit(trainer, &source, &options, &callbacks, NULL) != MT_OK) ...
 */
#ifndef MEMTRAIN_TORCH_FIT_H
#define MEMTRAIN_TORCH_FIT_H

#include <memtrain/fit.h>
#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Sets state, save, position, load and set_lr, and nothing else. Files are those of mt_torch_save: the position of the run is
 * their extra text, and the file that was there becomes PATH.1. mt_torch_load puts them back. The rate is that of
 * mt_torch_set_lr.
 *
 * @param torch  what the trainer trains; borrowed as long as the callbacks are used
 * @param out    size set by the caller (MT_FIT_CALLBACKS_INIT)
 * @return MT_OK; MT_EINVAL (no torch, no out, a size below that of the fields)
 */
MT_API MT_NODISCARD mt_status mt_torch_callbacks(mt_torch *torch, mt_fit_callbacks *out);

#ifdef __cplusplus
}
#endif
#endif
