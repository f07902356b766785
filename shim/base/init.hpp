/* init.hpp - what has to happen once before libtorch is used. shim/init.cpp, above all folders, does it. */
#ifndef MEMTRAIN_SHIM_INIT_HPP
#define MEMTRAIN_SHIM_INIT_HPP

#include <string>

#include <c10/core/DeviceType.h>

#include <memtrain/torch.h>

namespace memtrain::shim {

/* mt_torch_init with the defaults; costs a load once that has happened. */
mt_status ensure_init() noexcept;

/* Why libtorch has no allocator for devices of that type, or no card of it, and what is to be installed. For the end of a line. */
std::string why_absent(c10::DeviceType type);
std::string why_no_card(c10::DeviceType type);

} // namespace memtrain::shim
#endif
