/*
 * dry.hpp - whether a dry run is on, for all that moves numbers which mean nothing then: see memtrain/torch_dry.h.
 */
#ifndef MEMTRAIN_SHIM_DRY_HPP
#define MEMTRAIN_SHIM_DRY_HPP

#include <atomic>

namespace memtrain::shim {

inline std::atomic<bool> is_dry{false};

} // namespace memtrain::shim

#endif
