/*
 * relocate.hpp - a model and its optimiser from one device to another.
 */
#ifndef MEMTRAIN_SHIM_RELOCATE_HPP
#define MEMTRAIN_SHIM_RELOCATE_HPP

#include "torch_state.hpp"

namespace memtrain::shim {

/*
 * Has the model move itself. To the model a simulated card is the CPU: its tensors are copied besides
 * where they go to one or come from one.
 */
void move_model(const mt_torch &torch, const Device &to);

/*
 * Between steps. Values stay, generators are each device's own and stay too. Throws as the device does
 * when it has no room for parameters, gradients and optimiser state; then nothing has changed.
 */
void relocate(mt_torch &torch, const Device &to);

} // namespace memtrain::shim
#endif
