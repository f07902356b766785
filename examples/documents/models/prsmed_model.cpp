/*
 * prsmed_model.cpp - the network of prsmed_net.hpp as an mt_model, and what it takes by its architecture;
 * see prsmed_model.h.
 */
#include "prsmed_net.hpp"

#include <cstdio>
#include <cstring>
#include <string>

#include <ATen/ops/from_blob.h>

using namespace memtrain_models;

namespace {

mt_status check(const char *function, const prsmed_model_options *o) {
    if (!o || o->size < sizeof *o)
        return mt_set_error(MT_EINVAL, "%s: use PRSMED_MODEL_OPTIONS_INIT", function);
    if (o->encoder < PRSMED_CONV || o->encoder > PRSMED_TINY_VIT)
        return mt_set_error(MT_EINVAL,
                            "%s: encoder is %d, not PRSMED_CONV, PRSMED_VIT_TI or PRSMED_TINY_VIT",
                            function, o->encoder);
    const int64_t stride = prsmed_sizes(*o).stride;
    if (o->side < 4 * stride || o->side % stride)
        return mt_set_error(MT_EINVAL, "%s: side is %lld, not a multiple of %lld from %lld on",
                            function, static_cast<long long>(o->side),
                            static_cast<long long>(stride), static_cast<long long>(4 * stride));
    if (o->text_width < 64 || o->text_width % 64)
        return mt_set_error(MT_EINVAL, "%s: text_width is %lld, not a multiple of 64", function,
                            static_cast<long long>(o->text_width));
    if (o->text_layers < 1) return mt_set_error(MT_EINVAL, "%s: text_layers is below 1", function);
    if (o->words && o->text_steps > 0)
        return mt_set_error(MT_EINVAL, "%s: text_steps with words", function);
    if (o->text_steps > 0 && (!o->prompts || !o->prompt_count || o->prompt_length < 2))
        return mt_set_error(MT_EINVAL, "%s: text_steps without prompts", function);
    return MT_OK;
}

std::shared_ptr<PrsmedImpl> build(const prsmed_model_options &o) {
    auto net = std::make_shared<PrsmedImpl>(o);
    torch::Tensor prompts;
    if (o.prompt_count)
        prompts = at::from_blob(
            const_cast<int64_t *>(o.prompts),
            {static_cast<int64_t>(o.prompt_count), static_cast<int64_t>(o.prompt_length)},
            at::kLong);
    if (o.text_steps > 0) {
        double loss = train_bytes(*net->text, prompts, o.text_steps);
        mt_log(MT_LOG_INFO, "text model: %lld steps, %.2f nats a byte, now frozen",
               static_cast<long long>(o.text_steps), loss);
    }
    net->freeze_text(prompts);
    return net;
}

/* ---- what it takes ------------------------------------------------------------------------------- */

/* Numbers that a PreNormBlock keeps a token: in and out of two norms, query, key, value, what attention
   gives and joined, in and out of the GELU. */
constexpr int64_t block_keeps = 17;

int64_t block_parameters(int64_t w) {
    return 12 * w * w + 13 * w;
}

prsmed_estimate estimate(int64_t parameters, int64_t activations) {
    return {sizeof(prsmed_estimate), static_cast<size_t>(parameters),
            static_cast<size_t>(activations)};
}

/* Nothing is kept: of one block the widened tokens, twice, and what goes in and out. */
prsmed_estimate text_estimate(const ByteGptOptions &o, int64_t tokens) {
    return estimate((token_count + o.context + 2) * o.width + o.layers * block_parameters(o.width),
                    tokens * o.width * 10);
}

prsmed_estimate vit_estimate(int64_t side) {
    const int64_t w = VitEncoderImpl::width, s = VitEncoderImpl::stride,
                  n = (side / s) * (side / s);
    const int64_t depth = VitEncoderImpl::depth;
    return estimate(3 * s * s * w + w + n * w + depth * block_parameters(w) + 2 * w,
                    n * w * (depth * block_keeps + 2));
}

/* In and out of each norm, the convolution's input being the output of the one before. */
prsmed_estimate conv_estimate(int64_t side) {
    const int64_t w = ConvEncoderImpl::width, depth = ConvEncoderImpl::depth;
    const int64_t half = (side / 2) * (side / 2), n = (side / 4) * (side / 4);
    const int64_t stem = 27 * w / 2 + 9 * w / 2 * w + 2 * (w / 2 + w);
    return estimate(stem + depth * 2 * (9 * w * w + 2 * w) + 2 * w + n * w,
                    2 * half * w / 2 + n * w * (2 + 4 * depth + 1));
}

/* A convolution of so many groups and its batch norm. */
int64_t norm_conv_parameters(int64_t in, int64_t out, int64_t kernel, int64_t groups = 1) {
    return in / groups * out * kernel * kernel + 2 * out;
}

/*
 * Of a pixel or token, in widths: a block of convolutions keeps what goes into three norms and three GELUs, most of it four
 * times as wide; one with attention what its norms, windows, query, key, value and MLP see. Beside that the attention of
 * each pair in a window. Between layers and in the neck it is what goes into norms and convolutions.
 */
prsmed_estimate tiny_vit_estimate(int64_t side) {
    using Net = TinyVitEncoderImpl;
    const int64_t first = Net::table[0].width, last = Net::table[Net::layer_count - 1].width;
    const int64_t half = (side / 2) * (side / 2), all = (side / 4) * (side / 4);
    int64_t parameters =
        norm_conv_parameters(3, first / 2, 3) + norm_conv_parameters(first / 2, first, 3);
    int64_t numbers = half * 3 * first / 2 + all * first, pixels = all;
    for (int64_t i = 0; i < Net::layer_count; i++) {
        const Net::Layer &l = Net::table[i];
        const int64_t w = l.width, windows = l.window * l.window;
        int64_t block = 2 * norm_conv_parameters(w, 4 * w, 1) - 6 * w +
                        norm_conv_parameters(4 * w, 4 * w, 3, 4 * w);
        int64_t keeps = pixels * (6 * 4 * w + 3 * w);
        if (l.heads) {
            block = l.heads * windows + block_parameters(w) + norm_conv_parameters(w, w, 3, w);
            keeps = pixels * (20 * w + 3 * l.heads * windows);
        }
        parameters += l.depth * block;
        numbers += l.depth * keeps;
        if (i + 1 == Net::layer_count) continue;
        const int64_t next = Net::table[i + 1].width, stride = i + 2 == Net::layer_count ? 1 : 2;
        parameters += norm_conv_parameters(w, next, 1) + norm_conv_parameters(next, next, 1) +
                      norm_conv_parameters(next, next, 3, next);
        numbers += pixels * (w + 3 * next);
        pixels /= stride * stride;
        numbers += pixels * 4 * next;
    }
    parameters += last * Net::width + 9 * Net::width * Net::width + 4 * Net::width;
    return estimate(parameters, numbers + pixels * (last + 6 * Net::width));
}

prsmed_estimate vision_estimate(const prsmed_model_options &o) {
    if (o.encoder == PRSMED_TINY_VIT) return tiny_vit_estimate(o.side);
    return o.encoder == PRSMED_VIT_TI ? vit_estimate(o.side) : conv_estimate(o.side);
}

int64_t mask_block_parameters(int64_t in, int64_t out) {
    return 9 * in * in + in + 2 * in + in * out + out + 2 * out + 9 * out * out + out;
}

/* Before and behind both norms, the sum, and what comes out; the 1x1 has a border. */
int64_t mask_block_keeps(int64_t in, int64_t out, int64_t grid) {
    return grid * grid * (3 * in + out) + 2 * (grid + 2) * (grid + 2) * out;
}

int64_t decoder_parameters(const MaskDecoderOptions &o) {
    const int64_t c = o.image, attention = 4 * (c * c + c);
    const int64_t prompt = o.prompt * o.hidden + 3 * o.hidden + o.hidden * c + 3 * c;
    const int64_t layer = attention + 2 * c * o.ff + o.ff + c + 4 * c;
    return prompt + attention + 2 * c + layer + 2 * (c * c + c) + 4 * c +
           mask_block_parameters(c, c) + mask_block_parameters(c, c / 2) +
           mask_block_parameters(c / 2, c / 4) + c / 4 + 1;
}

/* Of a token of the picture: 8 for the prompt's attention, 12 for the layer, 8 for the last MLP and the sum,
   each of the image's width; of the layer's MLP 2 of its own. And six times the pixels, for logits and loss. */
int64_t decoder_keeps(const MaskDecoderOptions &o, int64_t grid, int64_t side) {
    const int64_t c = o.image, n = grid * grid;
    return most_words * (o.prompt + 2 * o.hidden + 4 * c) + n * (28 * c + 2 * o.ff) +
           mask_block_keeps(c, c, grid) + mask_block_keeps(c, c / 2, grid) +
           mask_block_keeps(c / 2, c / 4, grid) + 6 * side * side;
}

} // namespace

mt_status prsmed_model_new(const prsmed_model_options *options, mt_model **out) {
    mt_status status = check("prsmed_model_new", options);
    if (status != MT_OK) return status;
    return memtrain::make_model(out, [&] {
        auto description = memtrain::model(
            build(*options), {"dice", "iou"}, [](PrsmedImpl &net, const memtrain::Tensors &batch) {
                torch::Tensor logits =
                    net.text ? net.forward(batch.at(0), batch.at(2))
                             : net.decode(batch.at(0), Words{batch.at(3), batch.at(4).gt(0)});
                logits = logits.to(at::kFloat);
                return memtrain::Output{mask_loss(logits, batch.at(1)),
                                        mask_metrics(logits, batch.at(1))};
            });
        description.checkpoints = true;
        /* Batch norm of TinyViT sees 4096 tokens of one picture at least, as the script's batches of one do. */
        if (options->encoder == PRSMED_TINY_VIT) description.min_micro_batch = 1;
        return description;
    });
}

const char *prsmed_model_encoder(void) {
    return "vision.patch_embed.,vision.layers.";
}

void prsmed_model_encoder_names(void *, const char *name, char *other, size_t capacity) {
    static const char vision[] = "vision.";
    if (std::strncmp(name, vision, std::strlen(vision)) != 0) return;
    const std::string inner = name + std::strlen(vision), timms = tiny_vit_timm_name(inner);
    std::snprintf(other, capacity, "image_encoder.%s,%s%s%s", inner.c_str(), inner.c_str(),
                  timms.empty() ? "" : ",", timms.c_str());
}

mt_status prsmed_model_estimate(const prsmed_model_options *options, size_t prompt_length,
                                prsmed_estimate out[PRSMED_PARTS]) {
    mt_status status = check("prsmed_model_estimate", options);
    if (status != MT_OK) return status;
    const PrsmedSizes sizes = prsmed_sizes(*options);
    const auto tokens = static_cast<int64_t>(prompt_length);
    const int64_t side = options->side;
    out[PRSMED_TEXT] = options->words ? estimate(0, 0) : text_estimate(sizes.text, tokens);
    out[PRSMED_VISION] = vision_estimate(*options);
    out[PRSMED_DECODER] = estimate(decoder_parameters(sizes.decoder),
                                   decoder_keeps(sizes.decoder, side / sizes.stride, side));
    return MT_OK;
}

mt_status prsmed_model_count(void *user, const char *name, mt_tensor *tensor) {
    static const char *const parts[PRSMED_PARTS] = {"text.", "vision.", "decoder."};
    auto *bytes = static_cast<size_t *>(user);
    for (int i = 0; i < PRSMED_PARTS; i++)
        if (std::strncmp(name, parts[i], std::strlen(parts[i])) == 0)
            bytes[i] += memtrain::tensor(tensor).nbytes();
    return MT_OK;
}
