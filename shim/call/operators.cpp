/* operators.cpp - libtorch's own registry of operators, asked by name. */
#include "operators.hpp"

#include <cstring>

#include <torch/csrc/jit/frontend/edit_distance.h>

namespace memtrain::shim {

/* TorchScript's own operators, such as aten::len, run in its interpreter alone. */
Overloads find_operators(const char *name) {
    Overloads list;
    const char *colons = std::strstr(name, "::");
    if (!colons || colons == name || !colons[2]) return list;
    const char *dot = std::strchr(colons, '.');
    std::string overload = !dot || !std::strcmp(dot, ".default") ? "" : dot + 1;
    c10::Symbol symbol = c10::Symbol::fromQualString(dot ? std::string(name, dot) : name);
    for (const auto &op : torch::jit::getAllOperatorsFor(symbol))
        if (op->isC10Op() && (!dot || op->schema().overload_name() == overload)) list.push_back(op);
    return list;
}

namespace {

/* Calls visit with each name, and with each name of an overload. */
template <class Visit> void each_name(Visit &&visit) {
    for (const auto &op : torch::jit::getAllOperators()) {
        if (!op->isC10Op()) continue;
        const c10::OperatorName &name = op->schema().operator_name();
        visit(name.name);
        visit(name.name + "." + (name.overload_name.empty() ? "default" : name.overload_name));
    }
}

/* Of the names with the least badness below `none` the first. */
template <class Badness> std::string least_bad(size_t none, Badness &&badness) {
    std::string best;
    each_name([&](const std::string &name) {
        size_t bad = badness(name);
        if (bad > none || (bad == none && (best.empty() || name >= best))) return;
        none = bad;
        best = name;
    });
    return best;
}

} // namespace

/* The name with at most 3 wrong letters, of several one as long; else the shortest that begins so, as aten::cross_entropy_loss does. */
std::string similar_operator(const char *name) {
    std::string meant = std::strstr(name, "::") ? name : std::string("aten::") + name;
    if (!*name || meant.size() > 128) return "";
    const size_t most = 3, longest = 256;
    std::string best = least_bad((most + 1) * longest, [&](const std::string &other) {
        size_t wrong = torch::jit::ComputeEditDistance(meant.c_str(), other.c_str(), most);
        return wrong * longest + (meant.size() != other.size());
    });
    if (best.empty())
        best = least_bad(longest, [&](const std::string &other) {
            return other.compare(0, meant.size(), meant) == 0 ? other.size() : longest + 1;
        });
    return best.empty() ? best : "; there is '" + best + "'";
}

} // namespace memtrain::shim
