/*
 * golden_checks.hpp - assertions of the suites that compare a network with a golden file.
 *
 * Comes after the C++ headers, since check.h does.
 */
#ifndef MEMTRAIN_TESTS_GOLDEN_CHECKS_HPP
#define MEMTRAIN_TESTS_GOLDEN_CHECKS_HPP

#include "golden.hpp"

#include <sstream>
#include <string>

#include "suite.h"

namespace golden_checks {

/* A line for each tensor, as torchvision's state_dict: a module's parameters, then its buffers. */
inline std::string describe_state(const torch::nn::Module &net) {
    std::ostringstream out;
    for (const auto &module : net.named_modules())
        for (const auto &list :
             {module.value()->named_parameters(false), module.value()->named_buffers(false)})
            for (const auto &item : list) {
                out << module.key() << (module.key().empty() ? "" : ".") << item.key();
                for (int64_t n : item.value().sizes()) out << ' ' << n;
                out << '\n';
            }
    return out.str();
}

inline std::string describe_parameters(const torch::nn::Module &net) {
    std::string out;
    for (const auto &item : net.named_parameters()) out += item.key() + '\n';
    return out;
}

inline void same_lines(const std::string &actual, const std::string &expected) {
    std::istringstream a(actual), e(expected);
    std::string left, right;
    while (std::getline(e, right)) {
        std::getline(a, left);
        ck_assert_str_eq(left.c_str(), right.c_str());
    }
    ck_assert_msg(!std::getline(a, left), "'%s' is one too many", left.c_str());
}

inline void within(const std::string &name, double difference, double tolerance) {
    ck_assert_msg(difference <= tolerance, "%s: differs by %g, allowed is %g", name.c_str(),
                  difference, tolerance);
}

/* The record KIND/NAME is the digest of the tensor. */
inline void digest_within(const golden::File &file, const std::string &kind,
                          const std::string &name, const at::Tensor &tensor, double tolerance,
                          double element_tolerance) {
    const golden::Difference off =
        golden::digest_difference(name, tensor, file.tensor(kind + "/" + name));
    within(kind + "/" + name + ", sum", off.sum, tolerance);
    within(kind + "/" + name + ", norm", off.norm, tolerance);
    within(kind + "/" + name + ", an element", off.element, element_tolerance);
}

} // namespace golden_checks

#endif
