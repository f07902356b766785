/* script.hpp - TorchScript as a file: what kind a file is, and how a module is written. */
#ifndef MEMTRAIN_SHIM_SCRIPT_HPP
#define MEMTRAIN_SHIM_SCRIPT_HPP

#include <torch/csrc/jit/api/module.h>

namespace memtrain::shim {

/* Reads the file. Throws Failure, for another kind of file with what it is and what to do. */
torch::jit::Module read_script(const char *path);

/* Writes it beside path, and then into its place. Throws Failure. */
void write_script(const torch::jit::Module &module, const char *path);

} // namespace memtrain::shim
#endif
