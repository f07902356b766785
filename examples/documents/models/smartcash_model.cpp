/*
 * smartcash_model.cpp - backbone, head, loss and metrics as an mt_model; see smartcash_model.h.
 */
#include "smartcash_model.h"
#include "cspdarknet.hpp"
#include "detection_score.hpp"
#include "detector.hpp"
#include "detector_scales.hpp"
#include "efficientnet.hpp"

#include <cstdio>
#include <memtrain/torch.hpp>

namespace {

using namespace memtrain_models;

/*
 * What a wrong box counts beside a cell that is wrongly sure and a wrong class. Classes count for more than
 * is usual: these networks begin with random weights and are trained for minutes.
 */
constexpr double box_gain = 1.0, object_gain = 1.0, label_gain = 0.75;

constexpr const char *names[SMARTCASH_METRICS] = {"f1",      "recall",   "precision", "iou",
                                                  "located", "reported", "there",     "boxes"};

/* The first four are shares of the last four. */
constexpr int over[SMARTCASH_METRICS] = {SMARTCASH_BOXES,   SMARTCASH_THERE, SMARTCASH_REPORTED,
                                         SMARTCASH_LOCATED, MT_OVER_SAMPLES, MT_OVER_SAMPLES,
                                         MT_OVER_SAMPLES,   MT_OVER_SAMPLES};

at::Tensor metrics_of(const Score &score) {
    at::Tensor sums = at::empty({SMARTCASH_METRICS}, at::kDouble);
    double *s = sums.data_ptr<double>();
    s[SMARTCASH_F1] = 2 * score.right;
    s[SMARTCASH_RECALL] = s[SMARTCASH_PRECISION] = score.right;
    s[SMARTCASH_IOU] = score.overlap;
    s[SMARTCASH_LOCATED] = score.located;
    s[SMARTCASH_REPORTED] = score.reported;
    s[SMARTCASH_THERE] = score.there;
    s[SMARTCASH_BOXES] = score.reported + score.there;
    return sums;
}

memtrain::Output lose(Detector &net, const memtrain::Tensors &batch) {
    at::Tensor raw = net.forward(batch.at(0)).to(at::kFloat), boxes = batch.at(1);
    DetectionLoss loss = detection_loss(raw, boxes, net.anchors);
    at::Tensor each = loss.box * box_gain + loss.object * object_gain + loss.label * label_gain;
    return {each.mean(), metrics_of(score_of(memtrain::on_cpu(raw), memtrain::on_cpu(boxes),
                                             memtrain::on_cpu(net.anchors)))};
}

/* What a cell that is wrongly sure counts at each scale, in YOLOv5: there are the more cells the finer it is. */
constexpr double balance[scale_count] = {4.0, 1.0, 0.4};

memtrain::Output lose_scales(ScalesDetector &net, const memtrain::Tensors &batch) {
    auto raw = net.forward(batch.at(0));
    at::Tensor boxes = batch.at(1), each;
    std::vector<at::Tensor> found, anchors;
    for (size_t i = 0; i < scale_count; i++) {
        at::Tensor numbers = raw[i].to(at::kFloat);
        DetectionLoss loss = detection_loss(numbers, boxes, net.anchors[i]);
        at::Tensor here = loss.box * box_gain + loss.object * (object_gain * balance[i]) +
                          loss.label * label_gain;
        each = each.defined() ? each + here : here;
        found.push_back(memtrain::on_cpu(numbers.detach()));
        anchors.push_back(memtrain::on_cpu(net.anchors[i]));
    }
    return {each.mean(), metrics_of(score_of_scales(found, memtrain::on_cpu(boxes), anchors))};
}

/* The backbone, and the channels that the head has with it. */
struct Made {
    std::shared_ptr<Backbone> backbone;
    int64_t width;
};

Made backbone_of(smartcash_backbone which) {
    switch (which) {
    case SMARTCASH_EFFICIENTNET_B4:
        return {std::make_shared<EfficientNet>(EfficientNetOptions{}), 128};
    case SMARTCASH_EFFICIENTNET_B0:
        return {std::make_shared<EfficientNet>(EfficientNetOptions{1, 1}), 64};
    case SMARTCASH_CSPDARKNET:
        return {std::make_shared<CspDarknet>(CspDarknetOptions{}), 128};
    case SMARTCASH_CSPDARKNET_SMALL:
        break;
    }
    return {std::make_shared<CspDarknet>(CspDarknetOptions{0.25, {1, 1, 2, 2, 1}}), 64};
}

DetectorOptions head_of(const smartcash_model_options *options, int64_t width) {
    const float *anchors = options->anchors[0];
    return {static_cast<int64_t>(options->classes), width, options->side,
            std::vector<float>(anchors, anchors + 2 * SMARTCASH_ANCHORS)};
}

mt_status check(const smartcash_model_options *options) {
    if (!options || options->size < sizeof *options)
        return mt_set_error(MT_EINVAL, "smartcash_model_new: use SMARTCASH_MODEL_OPTIONS_INIT");
    if (!smartcash_model_parts(options->backbone))
        return mt_set_error(MT_EINVAL, "smartcash_model_new: backbone is %d, not 1 to 4",
                            static_cast<int>(options->backbone));
    if (options->classes < 2)
        return mt_set_error(MT_EINVAL, "smartcash_model_new: classes is %zu, not at least 2",
                            options->classes);
    if (options->side < 2 * SMARTCASH_STEP || options->side % SMARTCASH_STEP)
        return mt_set_error(MT_EINVAL,
                            "smartcash_model_new: side is %d, not a multiple of %d from %d on",
                            options->side, SMARTCASH_STEP, 2 * SMARTCASH_STEP);
    const int anchors = (options->three_scales ? SMARTCASH_SCALES : 1) * SMARTCASH_ANCHORS;
    for (int i = 0; i < anchors; i++) {
        const float *anchor = options->anchors[i];
        if (!(anchor[0] > 0 && anchor[1] > 0))
            return mt_set_error(MT_EINVAL, "smartcash_model_new: an anchor is %g x %g",
                                static_cast<double>(anchor[0]), static_cast<double>(anchor[1]));
    }
    return MT_OK;
}

ScalesOptions scales_of(const smartcash_model_options *options) {
    const float *anchors = options->anchors[0];
    return {static_cast<int64_t>(options->classes), options->side,
            std::vector<float>(anchors, anchors + 2 * SMARTCASH_SCALES * SMARTCASH_ANCHORS)};
}

/* What both kinds of detector have in common. */
template <class Net, class Loss>
auto describe(const smartcash_model_options *options, std::shared_ptr<Net> net, Loss loss) {
    auto description = memtrain::model(
        std::move(net), std::vector<std::string>(names, names + SMARTCASH_METRICS), loss);
    description.metric_over.assign(over, over + SMARTCASH_METRICS);
    description.min_micro_batch = options->least_chunk;
    description.checkpoints = true;
    return description;
}

} // namespace

mt_status smartcash_model_new(const smartcash_model_options *options, mt_model **out) {
    mt_status status = check(options);
    if (status != MT_OK) return status;
    if (options->three_scales)
        return memtrain::make_model(out, [&] {
            auto net = std::make_shared<ScalesDetector>(backbone_of(options->backbone).backbone,
                                                        scales_of(options));
            return describe(options, net, lose_scales);
        });
    return memtrain::make_model(out, [&] {
        Made made = backbone_of(options->backbone);
        auto net = std::make_shared<Detector>(made.backbone, head_of(options, made.width));
        return describe(options, net, lose);
    });
}

void smartcash_model_timm_name(void *, const char *name, char *other, size_t capacity) {
    std::snprintf(other, capacity, "%s", efficientnet_timm_name(name).c_str());
}

const char *smartcash_model_required(smartcash_backbone backbone) {
    const bool is_efficientnet =
        backbone == SMARTCASH_EFFICIENTNET_B4 || backbone == SMARTCASH_EFFICIENTNET_B0;
    if (!smartcash_model_parts(backbone)) return nullptr;
    return is_efficientnet ? "features." : "stem.,stages.";
}

const char *const *smartcash_model_parts(smartcash_backbone backbone) {
    static const char *const efficientnet[] = {"features.", nullptr};
    static const char *const cspdarknet[] = {"stem.", "stages.", nullptr};
    switch (backbone) {
    case SMARTCASH_EFFICIENTNET_B4:
    case SMARTCASH_EFFICIENTNET_B0:
        return efficientnet;
    case SMARTCASH_CSPDARKNET:
    case SMARTCASH_CSPDARKNET_SMALL:
        return cspdarknet;
    }
    return nullptr;
}
