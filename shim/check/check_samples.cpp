/* check_samples.cpp - choosing samples by what they hold. */
#include "check_samples.hpp"

#include <algorithm>
#include <cstdlib>

#include <ATen/ops/equal.h>
#include <ATen/ops/min.h>
#include <ATen/ops/minimum.h>

#include "tensor.hpp"

namespace memtrain::shim {
namespace {

/* A batch of many samples is looked at here and there. */
constexpr size_t candidates_max = 32;

struct Candidate {
    int64_t first;
    std::vector<at::Tensor> rows;
    std::vector<int64_t> smallest; /* how many elements have the smallest value of all candidates */
};

bool has_order(const at::Tensor &tensor) {
    switch (tensor.scalar_type()) {
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
        return tensor.numel() > 0;
    default:
        return false;
    }
}

Candidate candidate_at(const mt_torch_batch &batch, size_t first, size_t part) {
    Candidate candidate = {static_cast<int64_t>(first), {}, {}};
    for (size_t i = 0; i < batch.count; i++)
        candidate.rows.push_back(batch.tensors[i]->tensor.detach().narrow(
            0, candidate.first, static_cast<int64_t>(part)));
    return candidate;
}

void count_smallest(std::vector<Candidate> &list) {
    for (size_t i = 0; i < list[0].rows.size(); i++) {
        if (!has_order(list[0].rows[i])) continue;
        at::Tensor smallest = list[0].rows[i].min();
        for (const Candidate &one : list) smallest = at::minimum(smallest, one.rows[i].min());
        for (Candidate &one : list)
            one.smallest.push_back(one.rows[i].eq(smallest).sum().item<int64_t>());
    }
}

/* First, last, middle, and then the others. */
std::vector<Candidate> candidates_of(const mt_torch_batch &batch, size_t count, size_t part) {
    size_t whole = count / part, wanted = std::min(whole, candidates_max);
    std::vector<Candidate> list;
    auto add = [&](size_t i) {
        size_t place = wanted > 1 ? i * (whole - 1) / (wanted - 1) : 0;
        list.push_back(candidate_at(batch, place * part, part));
    };
    add(0);
    if (wanted > 1) add(wanted - 1);
    if (wanted > 2) add(wanted / 2);
    for (size_t i = 1; i + 1 < wanted; i++)
        if (i != wanted / 2) add(i);
    count_smallest(list);
    return list;
}

/* 0: they are equal; above 1: as many elements more are masked in one of them. */
int64_t difference_of(const Candidate &a, const Candidate &b) {
    int64_t most = 0;
    for (size_t i = 0; i < a.smallest.size(); i++)
        most = std::max(most, std::abs(a.smallest[i] - b.smallest[i]));
    for (size_t i = 0; i < a.rows.size(); i++)
        if (!at::equal(a.rows[i], b.rows[i])) return most + 1;
    return 0;
}

} // namespace

Parts spread_parts(const mt_torch_batch &batch, size_t count, size_t part, size_t parts) {
    std::vector<Candidate> list = candidates_of(batch, count, part);
    std::vector<int64_t> differs(list.size(), INT64_MAX); /* from those that are taken */
    std::vector<bool> is_taken(list.size());
    Parts out = {{}, true};
    for (size_t taken = 0, at = 0; taken < parts; taken++) {
        is_taken[at] = true;
        out.first.push_back(list[at].first);
        for (size_t i = 0; i < list.size(); i++)
            differs[i] = is_taken[i] ? -1 : std::min(differs[i], difference_of(list[at], list[i]));
        at =
            static_cast<size_t>(std::max_element(differs.begin(), differs.end()) - differs.begin());
        if (taken + 1 < parts) out.are_alike &= differs[at] == 0;
    }
    std::sort(out.first.begin(), out.first.end());
    return out;
}

} // namespace memtrain::shim
