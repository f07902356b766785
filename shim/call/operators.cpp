/*
 * operators.cpp - an index of libtorch's operators by name.
 *
 * The dispatcher knows overloads by their whole names alone. Its list of all of them has no order; what it
 * tells a listener has that of registration, in which an operator's usual overload comes before the rarer ones.
 */
#include "operators.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>

namespace memtrain::shim {
namespace {

/* Told of all operators that there are, and taken away again. */
class Collector : public c10::OpRegistrationListener {
public:
    explicit Collector(Overloads &list) : list_(list) {}
    void onOperatorRegistered(const c10::OperatorHandle &op) override { list_.push_back(op); }
    void onOperatorDeregistered(const c10::OperatorHandle &) override {}

private:
    Overloads &list_;
};

Overloads all_operators() {
    Overloads list;
    auto registration =
        c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Collector>(list));
    return list;
}

std::string full_name(const c10::OperatorName &name) {
    return name.name + "." + (name.overload_name.empty() ? "default" : name.overload_name);
}

/* What has been added stays where it is: callers hold on to the lists. */
class Index {
public:
    const Overloads *find(std::string_view name) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        auto found = lists_.find(name);
        return found == lists_.end() ? nullptr : &found->second;
    }

    /* Names that are there already keep the overloads that they have. */
    void refresh() {
        std::lock_guard<std::shared_mutex> lock(mutex_);
        std::unordered_map<std::string, Overloads> fresh;
        for (const c10::OperatorHandle &op : all_operators()) {
            fresh[op.operator_name().name].push_back(op);
            fresh[full_name(op.operator_name())].push_back(op);
        }
        for (auto &[name, list] : fresh) add(name, std::move(list));
    }

    template <class Visit> void each(Visit &&visit) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        for (const auto &entry : lists_) visit(entry.first);
    }

private:
    void add(const std::string &name, Overloads &&list) {
        if (lists_.count(name)) return;
        names_.push_back(name);
        lists_.emplace(names_.back(), std::move(list));
    }

    mutable std::shared_mutex mutex_;
    std::deque<std::string> names_; /* what the keys look at */
    std::unordered_map<std::string_view, Overloads> lists_;
};

/* Never freed: the dispatcher ends before or after this library. */
Index &index() {
    static Index &own = *new Index;
    return own;
}

/* Letters to put in, take out, change, or swap with the next one (Damerau 1964), by rows. */
size_t distance(std::string_view a, std::string_view b) {
    std::vector<size_t> before, last, row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < a.size(); i++) {
        before = std::move(last);
        last = row;
        row[0]++;
        for (size_t j = 0; j < b.size(); j++) {
            row[j + 1] = std::min({row[j] + 1, last[j + 1] + 1, last[j] + (a[i] != b[j])});
            bool is_swap = i && j && a[i] == b[j - 1] && a[i - 1] == b[j];
            if (is_swap) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
        }
    }
    return row.back();
}

} // namespace

const Overloads *find_operators(const char *name) {
    const Overloads *list = index().find(name);
    if (list) return list;
    index().refresh();
    return index().find(name);
}

namespace {

/* The name with the fewest letters that are wrong, at most 3; of several the first. */
std::string nearest_name(const std::string &meant) {
    const size_t most = 3;
    std::string best;
    size_t least = most + 1, length = meant.size();
    index().each([&](std::string_view other) {
        size_t shorter = std::min(length, other.size()), longer = std::max(length, other.size());
        if (longer - shorter > most) return;
        size_t apart = distance(meant, other);
        if (apart > least || (apart == least && (best.empty() || other >= best))) return;
        least = apart;
        best = other;
    });
    return best;
}

/* The shortest name that begins so, as aten::cross_entropy_loss does; of several the first. */
std::string longer_name(const std::string &meant) {
    std::string best;
    index().each([&](std::string_view other) {
        if (other.compare(0, meant.size(), meant) != 0) return;
        bool is_better =
            other.size() < best.size() || (other.size() == best.size() && other < best);
        if (best.empty() || is_better) best = other;
    });
    return best;
}

} // namespace

std::string similar_operator(const char *name) {
    std::string meant = std::strstr(name, "::") ? name : std::string("aten::") + name;
    if (!*name || meant.size() > 128) return "";
    std::string best = nearest_name(meant);
    if (best.empty()) best = longer_name(meant);
    return best.empty() ? best : "; there is '" + best + "'";
}

} // namespace memtrain::shim
