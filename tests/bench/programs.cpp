/*
 * programs.cpp - planned memory against malloc (planned.hpp) for the networks of the five programs, as the
 * programs make them, with pictures of sizes at which a step takes some tenths of a second on one core.
 */
#include "planned.hpp"

#include "car_clip_model.h"
#include "food101_model.h"
#include "profoct_model.h"
#include "prsmed_model.h"
#include "smartcash_model.h"

namespace {

constexpr int64_t classes = 101, suits = 4, most_boxes = 3, tokens = 64;

template <class Options>
mt_model *make(mt_status (*make_model)(const Options *, mt_model **), const Options &options) {
    mt_model *model = nullptr;
    bench::must(make_model(&options, &model), "model");
    return model;
}

/* ---- food101 */

mt_model *resnet50(int64_t, int64_t) {
    food101_model_options options = FOOD101_MODEL_OPTIONS_INIT;
    options.depth = 50;
    options.classes = classes;
    return make(food101_model_new, options);
}

memtrain::Tensors labelled(int64_t samples, int64_t side) {
    return {at::randn({samples, 3, side, side}), at::randint(classes, {samples}, at::kLong)};
}

/* ---- smartcash */

template <smartcash_backbone backbone> mt_model *detector(int64_t, int64_t side) {
    smartcash_model_options options = SMARTCASH_MODEL_OPTIONS_INIT;
    options.backbone = backbone;
    options.classes = suits;
    options.side = static_cast<int>(side);
    return make(smartcash_model_new, options);
}

memtrain::Tensors cards(int64_t samples, int64_t side) {
    return networks::card_scenes(samples, side, suits, most_boxes);
}

/* ---- prsmed */

template <int encoder> mt_model *segmenter(int64_t, int64_t side) {
    prsmed_model_options options = PRSMED_MODEL_OPTIONS_INIT;
    options.encoder = encoder;
    options.side = side;
    return make(prsmed_model_new, options);
}

memtrain::Tensors prompted(int64_t samples, int64_t side) {
    return networks::prompt_scenes(samples, side, tokens);
}

/* ---- car_clip, its smallest towers */

mt_model *towers(int64_t, int64_t side) {
    car_clip_model_options options = CAR_CLIP_MODEL_OPTIONS_INIT;
    options.image_width = options.text_width = options.embedding = 128;
    options.image_layers = 4;
    options.text_layers = 2;
    options.side = static_cast<int>(side);
    options.patch = 8;
    return make(car_clip_model_new, options);
}

memtrain::Tensors pairs(int64_t samples, int64_t side) {
    const car_clip_model_options options = CAR_CLIP_MODEL_OPTIONS_INIT;
    return networks::captioned(samples, side, options.vocabulary, options.context);
}

/* ---- profoct */

mt_model *few_shot(int64_t, int64_t) {
    const profoct_model_options options = PROFOCT_MODEL_OPTIONS_INIT;
    return make(profoct_model_new, options);
}

memtrain::Tensors episodes(int64_t samples, int64_t side) {
    const profoct_model_options o = PROFOCT_MODEL_OPTIONS_INIT;
    return {at::randn({samples, o.ways * (o.shots + o.queries), 3, side, side})};
}

} // namespace

int main(int argc, char **argv) {
    auto network = [](const char *name, mt_model *(*model)(int64_t, int64_t)) {
        return networks::Network{name, model, 0, false, 0};
    };
    constexpr int steps = 15;
    constexpr auto b4 = SMARTCASH_EFFICIENTNET_B4, csp = SMARTCASH_CSPDARKNET_SMALL;
    /* A car_clip batch of 4 chunks has one loss: their embeddings are cached. */
    const std::vector<planned::Work> works = {
        {network("food101", resnet50), 64, labelled, {4, 8, 16}, 1, steps},
        {network("smartcash_b4", detector<b4>), 64, cards, {2, 4, 8}, 1, steps},
        {network("smartcash_csp", detector<csp>), 128, cards, {4, 8, 16}, 1, steps},
        {network("prsmed_conv", segmenter<PRSMED_CONV>), 64, prompted, {4, 8, 16}, 1, steps},
        {network("prsmed_vit", segmenter<PRSMED_VIT_TI>), 64, prompted, {2, 4, 8}, 1, steps},
        {network("car_clip", towers), 32, pairs, {4, 8, 16}, 4, steps},
        {network("profoct", few_shot), 32, episodes, {1, 2}, 1, steps},
    };
    return planned::run("programs", works, argc, argv);
}
