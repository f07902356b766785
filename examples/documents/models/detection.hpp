/*
 * detection.hpp - which cells of a grid are to find which box, and what a detector of one scale loses.
 *
 * A map [B, A (5 + C), G, G] has for each of A anchors and each cell of a G x G grid five raw numbers, the
 * box (x, y, width, height) and whether there is one, and C of the classes. With s the logistic function
 * the box has its centre at 2 s(x) - 0.5 and 2 s(y) - 0.5 cells from the corner of the cell, and
 * (2 s(width))^2 and (2 s(height))^2 times the sides of the anchor. Matching, decoding and the parts of the
 * loss are those that YOLOv5 is known for; CIoU is Zheng et al. 2019 (arXiv 1911.08287).
 *
 * Two things differ, for the sake of chunks. Each part of the loss is a mean for each picture first, over the
 * cells or matches of that picture, and then over the pictures: where all matches of a batch share one
 * mean, what a picture counts depends on the pictures beside it, and chunks do not add up to the batch. And
 * tensors have the same size whatever there is on the pictures, since a candidate that is none counts 0
 * instead of being left out: so what a chunk takes in memory depends on the number of pictures alone.
 */
#ifndef MEMTRAIN_MODELS_DETECTION_HPP
#define MEMTRAIN_MODELS_DETECTION_HPP

#include <cstdint>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/max.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace memtrain_models {

using at::Tensor;

/* Boxes as centre and size, [..., 2] each, in cells. */
struct Boxes {
    Tensor center, size;
};

/*
 * The candidates of a batch: each box with each anchor in each of three cells, [B, K] or [B, K, 2]. The
 * box's own cell comes first, then the nearer one beside it and the nearer one above or below.
 */
struct Candidates {
    Tensor hit;   /* 1: this one is to find its box, 0: it counts nothing */
    Tensor place; /* int64, in A x G x G */
    Tensor label; /* int64, 0 where there is no box */
    Tensor anchor;
    Boxes box; /* the centre from the corner of the candidate's cell */
};

namespace detail {

/* [B, M, 3, 2]: the cells that are asked for a box. */
inline Tensor cells_of(const Tensor &center) {
    Tensor own = center.floor();
    Tensor side = (center - own).ge(0.5).to(center.scalar_type()) * 2 - 1; /* -1 or 1 */
    Tensor steps = at::cat({at::zeros({1, 2}, center.options()), at::eye(2, center.options())});
    return own.unsqueeze(2) + side.unsqueeze(2) * steps;
}

/* [B, M, 1, 3] or [B, M, A, 1] and their like as [B, K], the last dimension of pairs kept. */
inline Tensor spread(const Tensor &t, int64_t anchors) {
    bool pairs = t.dim() == 5;
    std::vector<int64_t> shape = {t.size(0), t.size(1), anchors, 3};
    if (pairs) shape.push_back(2);
    Tensor all = t.expand(shape);
    return pairs ? all.reshape({t.size(0), -1, 2}) : all.reshape({t.size(0), -1});
}

} // namespace detail

/*
 * boxes [B, M, 5]: class, centre x and y, width, height, as shares of the picture; class -1: none.
 * anchors [A, 2], in cells. A box goes with the anchors that differ from it less than fourfold.
 */
inline Candidates candidates_of(const Tensor &boxes, const Tensor &anchors, int64_t grid) {
    int64_t count = anchors.size(0);
    Tensor there = boxes.select(2, 0).ge(0); /* [B, M] */
    Tensor center = boxes.narrow(2, 1, 2) * grid, size = boxes.narrow(2, 3, 2) * grid;
    size = at::where(there.unsqueeze(2), size, at::ones_like(size));
    Tensor cells = detail::cells_of(center);
    Tensor inside = cells.ge(0).logical_and(cells.lt(grid)).all(3); /* [B, M, 3] */
    Tensor ratio = size.unsqueeze(2) / anchors;                     /* [B, M, A, 2] */
    Tensor alike = at::maximum(ratio, ratio.reciprocal()).amax(3).lt(4);
    Tensor corner = cells.clamp(0, grid - 1);
    Tensor number = at::arange(count, corner.options()).mul(grid).unsqueeze(1); /* rows before */
    Tensor row = corner.select(3, 1).unsqueeze(2) + number;                     /* [B, M, A, 3] */
    Tensor place = (row * grid + corner.select(3, 0).unsqueeze(2)).to(at::kLong);
    Tensor hit =
        there.unsqueeze(2).logical_and(alike).unsqueeze(3).logical_and(inside.unsqueeze(2));

    Candidates out;
    out.hit = detail::spread(hit.to(center.scalar_type()), count);
    out.place = detail::spread(place, count);
    Tensor label = boxes.select(2, 0).clamp_min(0).to(at::kLong);
    out.label = detail::spread(label.unsqueeze(2).unsqueeze(3), count);
    out.anchor = detail::spread(
        anchors.unsqueeze(1).expand({boxes.size(0), boxes.size(1), count, 3, 2}), count);
    out.box.center = detail::spread((center.unsqueeze(2) - corner).unsqueeze(2), count);
    out.box.size = detail::spread(size.unsqueeze(2).unsqueeze(3), count);
    return out;
}

/* What raw numbers [..., 4] and anchors [..., 2] say; the centre is told from the corner of the cell. */
inline Boxes decode(const Tensor &raw, const Tensor &anchor) {
    Tensor twice = raw.sigmoid() * 2;
    return {twice.narrow(-1, 0, 2) - 0.5, twice.narrow(-1, 2, 2).square() * anchor};
}

struct Overlap {
    Tensor iou, ciou; /* [...] */
};

/* Of two boxes each. The weight of the third term has no gradient. */
inline Overlap overlap_of(const Boxes &a, const Boxes &b) {
    const double tiny = 1e-7, pi = 3.14159265358979323846;
    auto product = [](const Tensor &t) { return t.select(-1, 0) * t.select(-1, 1); };
    auto slope = [&](const Tensor &t) {
        return at::atan(t.select(-1, 0) / (t.select(-1, 1) + tiny));
    };
    Tensor low_a = a.center - a.size / 2, high_a = a.center + a.size / 2;
    Tensor low_b = b.center - b.size / 2, high_b = b.center + b.size / 2;
    Tensor common = product((at::minimum(high_a, high_b) - at::maximum(low_a, low_b)).clamp_min(0));
    Tensor iou = common / (product(a.size) + product(b.size) - common + tiny);
    Tensor hull = at::maximum(high_a, high_b) - at::minimum(low_a, low_b);
    Tensor apart = (a.center - b.center).square().sum(-1) / (hull.square().sum(-1) + tiny);
    Tensor shape = (slope(b.size) - slope(a.size)).square() * (4 / (pi * pi));
    Tensor weight = (shape / (shape - iou + 1 + tiny)).detach();
    return {iou, iou - apart - weight * shape};
}

/* The parts of the loss, [B] each: what each picture loses. That of the classes is a sum over these. */
struct DetectionLoss {
    Tensor box, object, label;
};

/* raw [B, A, G, G, 5 + C], boxes as above, anchors [A, 2] in cells. */
inline DetectionLoss detection_loss(const Tensor &raw, const Tensor &boxes, const Tensor &anchors) {
    int64_t batch = raw.size(0), grid = raw.size(2), numbers = raw.size(4);
    Candidates c = candidates_of(boxes, anchors, grid);
    Tensor all = raw.reshape({batch, -1, numbers}); /* [B, A G G, 5 + C] */
    Tensor mine = all.gather(1, c.place.unsqueeze(2).expand({-1, -1, numbers})); /* [B, K, 5 + C] */
    Overlap overlap = overlap_of(decode(mine.narrow(2, 0, 4), c.anchor), c.box);
    Tensor hits = c.hit.sum(1).clamp_min(1); /* [B] */
    auto mean_of_hits = [&](const Tensor &each) { return (each * c.hit).sum(1) / hits; };

    /* How sure a cell is to be: as good as its box is. Of two boxes in one cell the better one. */
    Tensor sure = at::zeros({batch, all.size(1)}, all.options());
    sure.scatter_reduce_(1, c.place, overlap.iou.detach().clamp_min(0) * c.hit, "amax");
    Tensor right = at::one_hot(c.label, numbers - 5).to(all.scalar_type());
    auto entropy = [](const Tensor &logits, const Tensor &target) {
        return at::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::None);
    };
    return {mean_of_hits(1 - overlap.ciou), entropy(all.select(2, 4), sure).mean(1),
            mean_of_hits(entropy(mine.narrow(2, 5, numbers - 5), right).sum(2))};
}

} // namespace memtrain_models

#endif
