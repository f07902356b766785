/* operators.hpp - libtorch's operators by name. */
#ifndef MEMTRAIN_SHIM_OPERATORS_HPP
#define MEMTRAIN_SHIM_OPERATORS_HPP

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/jit/runtime/operator.h>

namespace memtrain::shim {

/* Those that one name means, in the order in which they were registered. */
using Overloads = std::vector<std::shared_ptr<torch::jit::Operator>>;

/* "aten::add.Tensor", "aten::relu.default", or "aten::add" for all overloads. Empty: there are none. Any thread. */
Overloads find_operators(const char *name);

/* What may have been meant by a name that is none: "; there is 'aten::conv2d'", or "". */
std::string similar_operator(const char *name);

} // namespace memtrain::shim
#endif
