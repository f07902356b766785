/* openmp.hpp - how the threads of OpenMP wait for work. */
#ifndef MEMTRAIN_SHIM_OPENMP_HPP
#define MEMTRAIN_SHIM_OPENMP_HPP

namespace memtrain::shim {

/* Tells the log, once in a process, that so many threads spin while they wait, where they do. 0: as many as OpenMP takes. */
void warn_of_spinning(int threads) noexcept;

} // namespace memtrain::shim
#endif
