/*
 * tiny_vit.hpp - the encoder of pictures of TinySAM (Shu et al. 2023, arXiv 2312.13789): TinyViT-5M (Wu et al. 2022,
 * arXiv 2207.10666) without its classifier, and a neck, [B, 3, side, side] -> [B, 256, side / 16, side / 16].
 *
 * Names, shapes and numbers are those of its image_encoder, so that its weights can be loaded by name. They do not depend on
 * the side, a multiple of 16: attention is within windows. Each block is a segment (memtrain::checkpoint).
 */
#ifndef MEMTRAIN_MODELS_TINY_VIT_HPP
#define MEMTRAIN_MODELS_TINY_VIT_HPP

#include "backbone.hpp"
#include "prsmed_vision.hpp"

#include <memory>
#include <regex>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/init.h>

namespace memtrain_models {

inline ConvNorm tiny_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
                          int64_t groups = 1) {
    return ConvNorm(plain_conv(in, out, kernel, stride).groups(groups), Activation::none,
                    ConvNormImpl::Names{"c", "bn"});
}

/* [B, C, H, W] -> the same: wider, a convolution of each channel, narrower. */
class TinyConvBlockImpl : public torch::nn::Module {
public:
    TinyConvBlockImpl(int64_t width, int64_t inner)
        : conv1(register_module("conv1", tiny_conv(width, inner, 1))),
          conv2(register_module("conv2", tiny_conv(inner, inner, 3, 1, inner))),
          conv3(register_module("conv3", tiny_conv(inner, width, 1))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        return at::gelu(conv3(at::gelu(conv2(at::gelu(conv1(x))))) + x);
    }

    ConvNorm conv1, conv2, conv3;
};
TORCH_MODULE(TinyConvBlock);

/* [B, in, H, W] -> [B, out, H / stride, W / stride]. */
class TinyMergeImpl : public torch::nn::Module {
public:
    TinyMergeImpl(int64_t in, int64_t out, int64_t stride)
        : conv1(register_module("conv1", tiny_conv(in, out, 1))),
          conv2(register_module("conv2", tiny_conv(out, out, 3, stride, out))),
          conv3(register_module("conv3", tiny_conv(out, out, 1))) {}

    torch::Tensor forward(const torch::Tensor &x) {
        return conv3(at::gelu(conv2(at::gelu(conv1(x)))));
    }

private:
    ConvNorm conv1, conv2, conv3;
};
TORCH_MODULE(TinyMerge);

struct TinyBlockOptions {
    int64_t width, heads, window;
};

/* Attention among the tokens of a window, [n, window^2, width] -> the same, with a bias for each distance. */
class WindowAttentionImpl : public torch::nn::Module {
public:
    explicit WindowAttentionImpl(const TinyBlockOptions &options) : o(options) {
        attention_biases =
            register_parameter("attention_biases", at::zeros({o.heads, o.window * o.window}));
        norm = register_module("norm", prsmed_norm(o.width));
        qkv = register_module("qkv", torch::nn::Linear(o.width, 3 * o.width));
        proj = register_module("proj", torch::nn::Linear(o.width, o.width));
    }

    torch::Tensor forward(const torch::Tensor &x) {
        const int64_t windows = x.size(0), tokens = x.size(1), head = o.width / o.heads;
        torch::Tensor all = qkv(norm(x)).view({windows, tokens, o.heads, 3, head});
        auto part = [&](int64_t i) { return all.select(3, i).transpose(1, 2); };
        torch::Tensor y = at::scaled_dot_product_attention(part(0), part(1), part(2), biases());
        return proj(y.transpose(1, 2).reshape({windows, tokens, o.width}));
    }

    torch::Tensor attention_biases;

private:
    /* [heads, window^2, window^2]: a bias belongs to a distance in rows and one in columns. */
    torch::Tensor biases() const {
        torch::Tensor number = at::arange(
            o.window * o.window, attention_biases.options().dtype(at::kLong).requires_grad(false));
        torch::Tensor row = number.floor_divide(o.window), column = number.remainder(o.window);
        auto apart = [](const torch::Tensor &t) { return (t.unsqueeze(1) - t).abs(); };
        torch::Tensor place = apart(row) * o.window + apart(column);
        return attention_biases.index_select(1, place.flatten())
            .view({o.heads, number.size(0), number.size(0)});
    }

    TinyBlockOptions o;
    torch::nn::LayerNorm norm{nullptr};
    torch::nn::Linear qkv{nullptr}, proj{nullptr};
};
TORCH_MODULE(WindowAttention);

class TinyMlpImpl : public torch::nn::Module {
public:
    explicit TinyMlpImpl(int64_t width)
        : norm(register_module("norm", prsmed_norm(width))),
          fc1(register_module("fc1", torch::nn::Linear(width, 4 * width))),
          fc2(register_module("fc2", torch::nn::Linear(4 * width, width))) {}

    torch::Tensor forward(const torch::Tensor &x) { return fc2(at::gelu(fc1(norm(x)))); }

private:
    torch::nn::LayerNorm norm;
    torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(TinyMlp);

/* Attention within windows, a convolution of each channel, an MLP: [B, H, W, width] -> the same. */
class TinyBlockImpl : public torch::nn::Module {
public:
    explicit TinyBlockImpl(const TinyBlockOptions &options)
        : attn(register_module("attn", WindowAttention(options))),
          mlp(register_module("mlp", TinyMlp(options.width))),
          local_conv(register_module("local_conv",
                                     tiny_conv(options.width, options.width, 3, 1, options.width))),
          window(options.window) {}

    torch::Tensor forward(torch::Tensor x) {
        x = x + in_windows(x);
        x = local_conv(x.permute({0, 3, 1, 2})).permute({0, 2, 3, 1});
        return x + mlp(x);
    }

private:
    /* What the sides lack to whole windows is filled with zeros, which are seen as tokens are. */
    torch::Tensor in_windows(const torch::Tensor &x) {
        const int64_t count = x.size(0), high = x.size(1), wide = x.size(2), width = x.size(3);
        const int64_t rows = (high + window - 1) / window, columns = (wide + window - 1) / window;
        torch::Tensor whole = x;
        if (rows * window != high || columns * window != wide)
            whole =
                at::constant_pad_nd(x, {0, 0, 0, columns * window - wide, 0, rows * window - high});
        whole = whole.reshape({count, rows, window, columns, window, width})
                    .transpose(2, 3)
                    .reshape({count * rows * columns, window * window, width});
        return attn(whole)
            .view({count, rows, columns, window, window, width})
            .transpose(2, 3)
            .reshape({count, rows * window, columns * window, width})
            .narrow(1, 0, high)
            .narrow(2, 0, wide);
    }

    WindowAttention attn;
    TinyMlp mlp;
    ConvNorm local_conv;
    int64_t window;
};
TORCH_MODULE(TinyBlock);

/*
 * The name that timm's tiny_vit_5m_224 has for one of TinySAM's: layers.0.downsample.conv1.c.weight is
 * stages.1.downsample.conv1.conv.weight, since timm has the step between two stages at the beginning of the second. "": none, as
 * of the neck.
 */
inline std::string tiny_vit_timm_name(const std::string &name) {
    static const std::regex stem(R"(patch_embed\.seq\.(0|2)\.(.+))");
    static const std::regex layer(R"(layers\.(\d)\.(blocks|downsample)\.(.+))");
    static const std::regex conv(R"(\bc\.weight$)");
    std::smatch m;
    const std::string plain = std::regex_replace(name, conv, "conv.weight");
    if (std::regex_match(plain, m, stem))
        return (m[1] == "0" ? "patch_embed.conv1." : "patch_embed.conv2.") + m[2].str();
    if (!std::regex_match(plain, m, layer)) return "";
    const int stage = std::stoi(m[1]) + (m[2] == "downsample");
    return "stages." + std::to_string(stage) + "." + m[2].str() + "." + m[3].str();
}

class TinyVitEncoderImpl : public VisionEncoder {
public:
    static constexpr int64_t stride = 16, width = 256, layer_count = 4;
    struct Layer {
        int64_t width, depth, heads, window; /* no heads: convolutions */
    };
    static constexpr Layer table[layer_count] = {
        {64, 2, 0, 0}, {128, 2, 4, 7}, {160, 6, 5, 14}, {320, 2, 10, 7}};

    TinyVitEncoderImpl() {
        auto patch_embed = child(*this, "patch_embed");
        auto seq = child(*patch_embed, "seq");
        stem1 = seq->register_module("0", tiny_conv(3, table[0].width / 2, 3, 2));
        stem2 = seq->register_module("2", tiny_conv(table[0].width / 2, table[0].width, 3, 2));
        auto layers = child(*this, "layers");
        for (int64_t i = 0; i < layer_count; i++) add_layer(*child(*layers, std::to_string(i)), i);
        auto neck = child(*this, "neck");
        const int64_t last = table[layer_count - 1].width;
        neck1 = neck->register_module("0", torch::nn::Conv2d(plain_conv(last, width, 1)));
        neck_norm1 = neck->register_module("1", pixel_norm());
        neck2 = neck->register_module("2", torch::nn::Conv2d(plain_conv(width, width, 3)));
        neck_norm2 = neck->register_module("3", pixel_norm());
        initialise();
    }

    torch::Tensor forward(const torch::Tensor &pictures) override {
        auto end = [this](const torch::Tensor &t) {
            return norm_channels(neck_norm2, neck2(norm_channels(neck_norm1, neck1(t))));
        };
        return memtrain::checkpoint(end, maps(pictures));
    }

    /* What goes into the neck: [B, 3, side, side] -> [B, 320, side / 16, side / 16]. */
    torch::Tensor maps(const torch::Tensor &pictures) {
        auto stem = [this](const torch::Tensor &x) { return stem2(at::gelu(stem1(x))); };
        torch::Tensor x = memtrain::checkpoint(stem, pictures, {stem1.ptr(), stem2.ptr()});
        for (int64_t i = 0; i < layer_count; i++) {
            if (table[i].heads) x = x.permute({0, 2, 3, 1}).contiguous(); /* tokens */
            x = memtrain::checkpoint_sequential(blocks[i], blocks[i]->size(), x);
            if (table[i].heads) x = x.permute({0, 3, 1, 2});
            if (merges[i]) x = memtrain::checkpoint(merges[i], x);
        }
        return x;
    }

private:
    static std::shared_ptr<torch::nn::Module> child(torch::nn::Module &parent,
                                                    const std::string &name) {
        return parent.register_module(name, std::make_shared<torch::nn::Module>(name));
    }

    static torch::nn::LayerNorm pixel_norm() {
        return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-6));
    }

    /* The last layer has the grid of the one before, so that there is a token for each 16 pixels. */
    void add_layer(torch::nn::Module &parent, int64_t i) {
        const Layer &layer = table[i];
        blocks[i] = parent.register_module("blocks", torch::nn::Sequential());
        for (int64_t j = 0; j < layer.depth; j++) {
            if (layer.heads)
                blocks[i]->push_back(
                    TinyBlock(TinyBlockOptions{layer.width, layer.heads, layer.window}));
            else
                blocks[i]->push_back(TinyConvBlock(layer.width, 4 * layer.width));
        }
        if (i + 1 == layer_count) return;
        const bool is_last = i + 2 == layer_count;
        merges[i] = parent.register_module(
            "downsample", TinyMerge(layer.width, table[i + 1].width, is_last ? 1 : 2));
    }

    /* As published: narrow normal weights; each block of convolutions begins as its input. */
    void initialise() {
        for (const auto &module : modules(/*include_self=*/false)) {
            if (auto *linear = module->as<torch::nn::Linear>()) {
                torch::nn::init::normal_(linear->weight, 0.0, 0.02);
                torch::nn::init::zeros_(linear->bias);
            } else if (auto *block = module->as<TinyConvBlockImpl>()) {
                torch::nn::init::zeros_(block->conv3->named_parameters()["bn.weight"]);
            }
        }
    }

    ConvNorm stem1{nullptr}, stem2{nullptr};
    torch::nn::Sequential blocks[layer_count] = {nullptr, nullptr, nullptr, nullptr};
    TinyMerge merges[layer_count] = {nullptr, nullptr, nullptr, nullptr};
    torch::nn::Conv2d neck1{nullptr}, neck2{nullptr};
    torch::nn::LayerNorm neck_norm1{nullptr}, neck_norm2{nullptr};
};
TORCH_MODULE(TinyVitEncoder);

} // namespace memtrain_models

#endif
