/*
 * writable.h - whether a file can be written, asked before the work that is to be in it.
 */
#ifndef EX_WRITABLE_H
#define EX_WRITABLE_H

#include <memtrain/status.h>

/*
 * Whether a file can be written there, as far as its folder tells: better now than after an epoch.
 * @param flag  that names it, "--save"
 * @return MT_OK, also for a path of NULL; MT_EINVAL
 */
MT_NODISCARD mt_status ex_check_writable(const char *flag, const char *path);

#endif
