/*
 * check_model_detection.cpp - examples/documents/models/detection.hpp and detection_score.hpp against what was worked
 * out by hand: which cells are asked for a box, overlap, the parts of the loss, boxes that are found.
 */
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "detection_score.hpp"

#include "suite.h" /* last: Check defines fail(), a name that the C++ library uses, as a macro */

using namespace memtrain_models;

/* ---- candidates, by hand ------------------------------------------------------------------------- */

namespace {

void near(double actual, double expected) {
    ck_assert_msg(std::abs(actual - expected) < 1e-5, "%.8g instead of %.8g", actual, expected);
}

/* One box on a picture of 4 x 4 cells, in cells; one anchor. */
Candidates one_box(double x, double y, double width, double height, double anchor) {
    at::Tensor box = at::tensor({1.0, x / 4, y / 4, width / 4, height / 4}, at::kFloat);
    return candidates_of(box.reshape({1, 1, 5}), at::full({1, 2}, anchor), 4);
}

std::string places(const Candidates &c) {
    std::string text;
    for (int64_t i = 0; i < c.place.size(1); i++)
        if (c.hit[0][i].item<float>() > 0)
            text += std::to_string(c.place[0][i].item<int64_t>()) + " ";
    return text;
}

} // namespace

static const struct {
    double x, y, width, height, anchor;
    const char *places; /* row * 4 + column */
} placed[] = {
    {1.6, 2.3, 1, 1, 1, "9 10 5 "},      /* right of the middle, above it */
    {1.4, 2.7, 1, 1, 1, "9 8 13 "},      /* left, below */
    {0.2, 0.2, 1, 1, 1, "0 "},           /* no cells beyond the border */
    {3.9, 3.6, 1, 1, 1, "15 "},          /* nor there */
    {0.5, 1.5, 1, 1, 1, "4 5 8 "},       /* the middle goes right and down */
    {1.6, 2.3, 3.9, 0.26, 1, "9 10 5 "}, /* just less than fourfold */
    {1.6, 2.3, 4.1, 1, 1, ""},           /* more */
    {1.6, 2.3, 1, 0.24, 1, ""},
};

TEST("cells", cells_for_a_box) {
    for (const auto &p : placed) {
        std::string where = places(one_box(p.x, p.y, p.width, p.height, p.anchor));
        ck_assert_str_eq(where.c_str(), p.places);
    }
}

TEST("cells", a_box_that_is_none_has_no_cells) {
    at::Tensor boxes = at::tensor({-1.0, 0.0, 0.0, 0.0, 0.0}, at::kFloat).reshape({1, 1, 5});
    Candidates c = candidates_of(boxes, at::ones({3, 2}), 4);
    ck_assert_int_eq(c.place.size(1), 9);
    near(c.hit.sum().item<double>(), 0);
    ck_assert(c.box.size.isfinite().all().item<bool>());
}

/* Second anchor of three: 16 places further. */
TEST("cells", anchors_have_places_of_their_own) {
    at::Tensor box = at::tensor({0.0, 0.4, 0.575, 0.25, 0.25}, at::kFloat).reshape({1, 1, 5});
    at::Tensor anchors = at::tensor({9.0, 9.0, 1.0, 1.0, 2.0, 2.0}, at::kFloat).reshape({3, 2});
    std::string where = places(candidates_of(box, anchors, 4));
    ck_assert_str_eq(where.c_str(), "25 26 21 41 42 37 ");
}

/* ---- overlap and loss, by hand -------------------------------------------------------------------- */

namespace {

Boxes box(double x, double y, double width, double height) {
    return {at::tensor({x, y}, at::kDouble), at::tensor({width, height}, at::kDouble)};
}

double softplus(double x) {
    return std::log1p(std::exp(x));
}

} // namespace

TEST("loss", overlap_of_two_boxes) {
    const double pi = std::acos(-1.0);
    Overlap same = overlap_of(box(1, 1, 2, 3), box(1, 1, 2, 3));
    near(same.iou.item<double>(), 1);
    near(same.ciou.item<double>(), 1);
    /* A third in common; the hull is 1 x 3, the centres are 1 apart. */
    Overlap shifted = overlap_of(box(0, 0, 1, 2), box(0, 1, 1, 2));
    near(shifted.iou.item<double>(), 1.0 / 3);
    near(shifted.ciou.item<double>(), 1.0 / 3 - 1.0 / 10);
    /* The same centre, lying and standing. */
    Overlap turned = overlap_of(box(0, 0, 2, 1), box(0, 0, 1, 2));
    double shape = 4 / (pi * pi) * std::pow(std::atan(0.5) - std::atan(2.0), 2);
    near(turned.iou.item<double>(), 1.0 / 3);
    near(turned.ciou.item<double>(), 1.0 / 3 - shape * shape / (shape - 1.0 / 3 + 1));
    Overlap apart = overlap_of(box(0, 0, 1, 1), box(3, 0, 1, 1));
    near(apart.iou.item<double>(), 0);
    near(apart.ciou.item<double>(), -9.0 / 17);
}

/*
 * Raw numbers of 0 say: the centre of each cell, the size of the anchor, each class as likely as not. Of a
 * box in the middle of cell (1, 2) the cell itself is right; the one to the right is a whole box off, and
 * the one below overlaps a third (see above).
 */
TEST("loss", loss_by_hand) {
    const double z = -2; /* of all cells, whether there is something */
    at::Tensor raw = at::zeros({2, 1, 4, 4, 7});
    raw.select(4, 4).fill_(z);
    at::Tensor boxes = at::full({2, 1, 5}, -1.0);
    boxes[0][0] = at::tensor({1.0, 1.5 / 4, 2.5 / 4, 1.0 / 4, 2.0 / 4}, at::kFloat);
    at::Tensor anchor = at::tensor({1.0, 2.0}, at::kFloat).reshape({1, 2});
    DetectionLoss loss = detection_loss(raw, boxes, anchor);
    near(loss.box[0].item<double>(), (0 + 1 + 1.0 / 8 + 1 - 1.0 / 3 + 1.0 / 10) / 3);
    near(loss.label[0].item<double>(), 2 * std::log(2.0)); /* two classes */
    near(loss.object[0].item<double>(), softplus(z) - z * (1 + 0 + 1.0 / 3) / 16);
    near(loss.box[1].item<double>(), 0);
    near(loss.label[1].item<double>(), 0);
    near(loss.object[1].item<double>(), softplus(z));
}

/* Two boxes in one cell: it is to be as sure as the better one lets it. */
TEST("loss", the_better_box_of_a_cell_counts) {
    at::Tensor raw = at::zeros({1, 1, 4, 4, 7}), anchor = at::ones({1, 2});
    raw.select(4, 4).fill_(1);
    at::Tensor one = at::tensor({0.0, 0.4 / 4, 0.4 / 4, 1.0 / 4, 1.0 / 4}, at::kFloat);
    at::Tensor half = at::tensor({0.0, 0.5 / 4, 0.5 / 4, 0.5 / 4, 1.0 / 4}, at::kFloat);
    auto object = [&](const at::Tensor &a, const at::Tensor &b) {
        at::Tensor boxes = at::stack({a, b}).unsqueeze(0);
        return detection_loss(raw, boxes, anchor).object.item<double>();
    };
    near(object(one, half), object(half, one));
    at::Tensor none = at::full({5}, -1.0);
    ck_assert_double_lt(object(one, half), object(none, half));
}

/* ---- score, by hand ------------------------------------------------------------------------------- */

static const Box there[] = {{2, 2, 2, 2, 1, 0}, {6, 6, 2, 2, 1, 1}};

/* What is found on a picture with these two boxes, and what that is worth. */
static const struct {
    std::vector<Box> found;
    double right, located, overlap, reported;
} found[] = {
    {{}, 0, 0, 0, 0},
    {{{2, 2, 2, 2, 0.9F, 0}, {6, 6, 2, 2, 0.8F, 1}}, 2, 2, 2, 2},
    {{{2, 2, 2, 2, 0.9F, 1}}, 0, 1, 1, 1},                        /* a wrong class */
    {{{2, 2, 2, 2, 0.5F, 0}, {2, 2, 2, 2, 0.9F, 1}}, 0, 1, 1, 1}, /* the surer one counts */
    {{{2, 2.5F, 2, 2, 0.9F, 0}}, 1, 1, 0.6, 1},                   /* 3 of 5 */
    {{{2, 3, 2, 2, 0.9F, 0}}, 0, 0, 0, 1},                        /* 1 of 3 */
    {{{2, 2.4F, 2, 2, 0.9F, 0}, {2, 1.2F, 2, 2, 0.8F, 0}},
     1,
     1,
     2.0 / 3,
     2}, /* one box, one finder */
    {{{9, 1, 2, 2, 0.9F, 0}, {6, 6, 2, 2, 0.3F, 1}}, 1, 1, 1, 2},
};

TEST("score", boxes_that_are_found) {
    for (const auto &f : found) {
        Score score;
        add_score(without_doubles(f.found), std::vector<Box>(there, there + 2), score);
        near(score.right, f.right);
        near(score.located, f.located);
        near(score.overlap, f.overlap);
        near(score.reported, f.reported);
        near(score.there, 2);
    }
}

/* A map that says one sure box and one that is not sure enough: what is decoded, against the boxes. */
TEST("score", score_of_a_map) {
    at::Tensor raw = at::zeros({1, 1, 4, 4, 7}), anchor = at::tensor({1.0, 2.0}, at::kFloat);
    at::Tensor boxes = at::full({1, 2, 5}, -1.0);
    raw.select(4, 4).fill_(-9);
    raw[0][0][2][1][4] = 9; /* centre 1.5, 2.5 */
    raw[0][0][2][1][6] = 3; /* of the second class */
    raw[0][0][0][0][4] = -1;
    boxes[0][1] = at::tensor({1.0, 1.5 / 4, 2.5 / 4, 1.0 / 4, 2.0 / 4}, at::kFloat);
    Score score = score_of(raw, boxes, anchor.reshape({1, 2}));
    near(score.right, 1);
    near(score.overlap, 1);
    near(score.reported, 1);
    near(score.there, 1);
}

SUITE("model_detection")
