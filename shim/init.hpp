/* init.hpp - what has to happen once before libtorch is used. */
#ifndef MEMTRAIN_SHIM_INIT_HPP
#define MEMTRAIN_SHIM_INIT_HPP

#include <memtrain/torch.h>

namespace memtrain::shim {

/* mt_torch_init with the defaults; costs a load once that has happened. */
mt_status ensure_init() noexcept;

} // namespace memtrain::shim
#endif
