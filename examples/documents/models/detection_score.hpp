/*
 * detection_score.hpp - the boxes that a detector finds on a picture, and how many of them are right.
 *
 * Of what a map says (detection.hpp) those boxes are found that it is sure enough of and that do not overlap
 * a surer one. Then each takes, the surest first, the box of the picture that it overlaps most, at least by
 * half and if no other has it. All in plain numbers on the CPU: these are a few boxes.
 */
#ifndef MEMTRAIN_MODELS_DETECTION_SCORE_HPP
#define MEMTRAIN_MODELS_DETECTION_SCORE_HPP

#include <algorithm>
#include <vector>

#include <ATen/core/TensorAccessor.h>
#include <ATen/ops/stack.h>

#include "detection.hpp"

namespace memtrain_models {

/* What is usual where a detector is used, and an IoU that a box counts from. */
constexpr float sure_enough = 0.25F, overlaps_too_much = 0.45F, found_from = 0.5F;

struct Box {
    float x, y, width, height; /* the centre, and the sides */
    float sure;
    int64_t label;
};

/* Sums over pictures. */
struct Score {
    double right = 0;    /* boxes that were found, and their class */
    double located = 0;  /* boxes that were found, whatever class was said */
    double overlap = 0;  /* IoU of these */
    double reported = 0; /* boxes that the detector told of */
    double there = 0;    /* boxes on the pictures */
};

inline float iou(const Box &a, const Box &b) {
    auto common = [](float x, float width, float other, float other_width) {
        float low = std::max(x - width / 2, other - other_width / 2);
        return std::max(0.0F, std::min(x + width / 2, other + other_width / 2) - low);
    };
    float both = common(a.x, a.width, b.x, b.width) * common(a.y, a.height, b.y, b.height);
    float either = a.width * a.height + b.width * b.height - both;
    return either > 0 ? both / either : 0;
}

/* The surest first; in cells, or in whatever unit all have. */
inline std::vector<Box> without_doubles(std::vector<Box> boxes) {
    std::vector<Box> kept;
    std::stable_sort(boxes.begin(), boxes.end(),
                     [](const Box &a, const Box &b) { return a.sure > b.sure; });
    for (const Box &box : boxes) {
        auto doubles = [&](const Box &other) { return iou(box, other) > overlaps_too_much; };
        if (std::none_of(kept.begin(), kept.end(), doubles)) kept.push_back(box);
    }
    return kept;
}

/* found: the surest first. */
inline void add_score(const std::vector<Box> &found, const std::vector<Box> &there, Score &score) {
    std::vector<bool> taken(there.size());
    score.reported += static_cast<double>(found.size());
    score.there += static_cast<double>(there.size());
    for (const Box &box : found) {
        size_t best = there.size();
        float most = found_from;
        for (size_t i = 0; i < there.size(); i++) {
            float overlap = iou(box, there[i]);
            if (taken[i] || overlap < most) continue;
            most = overlap;
            best = i;
        }
        if (best == there.size()) continue;
        taken[best] = true;
        score.located++;
        score.overlap += most;
        score.right += box.label == there[best].label;
    }
}

/* raw [B, A, G, G, 5 + C] -> [B, A G G, 6]: box in cells, how sure, class. */
inline Tensor decode_all(const Tensor &raw, const Tensor &anchors) {
    int64_t grid = raw.size(2);
    Tensor line = at::arange(grid, raw.options());
    Tensor corner =
        at::stack({line.expand({grid, grid}), line.unsqueeze(1).expand({grid, grid})}, 2);
    Boxes boxes = decode(raw.narrow(4, 0, 4), anchors.reshape({1, -1, 1, 1, 2}));
    auto best = raw.narrow(4, 5, raw.size(4) - 5).sigmoid().max(4);
    Tensor sure = raw.select(4, 4).sigmoid() * std::get<0>(best);
    return at::cat({boxes.center + corner, boxes.size, sure.unsqueeze(4),
                    std::get<1>(best).to(raw.scalar_type()).unsqueeze(4)},
                   4)
        .reshape({raw.size(0), -1, 6});
}

/* all [B, N, 6] as decode_all gives it, a picture being `grid` units wide; boxes as for the loss; on the CPU, in float. */
inline Score score_boxes(const Tensor &all, float grid, const Tensor &boxes) {
    Score score;
    Tensor decoded = all.contiguous(), told = boxes.contiguous();
    auto said = decoded.accessor<float, 3>();
    auto truth = told.accessor<float, 3>();
    for (int64_t b = 0; b < decoded.size(0); b++) {
        std::vector<Box> found, there;
        for (int64_t i = 0; i < decoded.size(1); i++) {
            auto s = said[b][i];
            if (s[4] >= sure_enough)
                found.push_back({s[0], s[1], s[2], s[3], s[4], static_cast<int64_t>(s[5])});
        }
        for (int64_t i = 0; i < told.size(1); i++) {
            auto t = truth[b][i];
            if (t[0] >= 0)
                there.push_back({t[1] * grid, t[2] * grid, t[3] * grid, t[4] * grid, 1,
                                 static_cast<int64_t>(t[0])});
        }
        add_score(without_doubles(found), there, score);
    }
    return score;
}

/* raw and anchors as above. */
inline Score score_of(const Tensor &raw, const Tensor &boxes, const Tensor &anchors) {
    return score_boxes(decode_all(raw, anchors), static_cast<float>(raw.size(2)), boxes);
}

/* The boxes of several scales together, raw and anchors of each. */
inline Score score_of_scales(const std::vector<Tensor> &raw, const Tensor &boxes,
                             const std::vector<Tensor> &anchors) {
    std::vector<Tensor> all;
    for (size_t i = 0; i < raw.size(); i++) {
        Tensor decoded = decode_all(raw[i], anchors[i]);
        decoded.narrow(2, 0, 4).div_(raw[i].size(2));
        all.push_back(decoded);
    }
    return score_boxes(at::cat(all, 1), 1, boxes);
}

} // namespace memtrain_models

#endif
