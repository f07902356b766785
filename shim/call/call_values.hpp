/* call_values.hpp - the values of memtrain/call.h, and those that libtorch's dispatcher has. */
#ifndef MEMTRAIN_SHIM_CALL_VALUES_HPP
#define MEMTRAIN_SHIM_CALL_VALUES_HPP

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <memtrain/call.h>

namespace memtrain::shim {

/* "int", "tensors", for error lines. */
const char *kind_name(const mt_value &value);

/* The strings that the argument takes, "strided, sparse_coo"; empty: it takes any, or none. */
std::string words_of(const c10::Argument &argument);

/* Throws Failure for what no operator could take: "mt_call: values[2] is not a live handle". */
void check_value(const char *function, const char *list, size_t index, const mt_value &value);

/* Whether the argument takes the value, which is checked; out is what the dispatcher is given then. */
bool convert(const mt_value &value, const c10::Argument &argument, c10::IValue &out);

/* A result as the schema declares it. Throws Failure where C has no value of the kind. */
mt_value hand_out(c10::IValue &&result, const c10::Argument &declared);

} // namespace memtrain::shim
#endif
