/*
 * check_random_networks.cpp - random networks of libtorch, trained in random budgets while requests for memory fail.
 *
 *     check_random_networks                 five seeds a test, 20 in all; with MT_TEST_SLOW=1 1000
 *     check_random_networks FROM COUNT      the seeds FROM to FROM + COUNT - 1; FUZZ_TRACE=1 prints each run's trace;
 *                                           FUZZ_DEVICE=cuda has all of them on that device
 *
 * For each seed a network, its optimiser and the options are drawn, some steps are taken in trouble, and the same run is
 * made again without budget and without faults from what the reports say (chunks, rungs, rate). What must hold:
 *
 *     - a step ends with MT_OK or MT_EDEVMEM, and MT_EDEVMEM changes nothing
 *     - both runs end in the same bits, with planned memory or without, with segments or without, and across a file of
 *       the state
 *     - no step takes more than the budget
 *     - an evaluation changes nothing
 *     - no byte is left over
 */
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <torch/nn.h>

#include <memtrain/torch.hpp>
#include <memtrain/trainer.h>

#include "slow.h"
#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

using at::Tensor;
using memtrain::Tensors;
namespace nn = torch::nn;

/* ---- what is drawn ---------------------------------------------------------------------------------- */

class Draw {
public:
    explicit Draw(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {
        for (int i = 0; i < 4; i++) next();
    }
    uint64_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    int64_t below(int64_t n) {
        return static_cast<int64_t>((next() >> 16) % static_cast<uint64_t>(n));
    }
    int64_t from(int64_t a, int64_t b) { return a + below(b - a + 1); }
    bool in(int64_t n) { return below(n) == 0; } /* one time of so many */
    double share() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }
    template <class T> T of(std::initializer_list<T> list) {
        return *(list.begin() + below(static_cast<int64_t>(list.size())));
    }

private:
    uint64_t state_;
};

/* ---- networks ---------------------------------------------------------------------------------------- */

struct Block {
    std::function<Tensor(const Tensor &)> run;
    memtrain::Modules modules; /* whose buffers it changes */
    bool is_segment = false;
};

struct Net : nn::Module {
    std::vector<Block> blocks;
    std::string text; /* what it is made of */
    bool is_sequence = false, sums_buffer = false;
    Tensor seen; /* a buffer of its own */
    int64_t classes = 0;

    template <class M> M add(M module) {
        register_module("m" + std::to_string(children().size()), module);
        return module;
    }
    template <class... A> void say(const char *format, A... a) {
        char line[160];
        std::snprintf(line, sizeof line, format, a...);
        text += line;
    }
    Tensor forward(Tensor x) {
        for (Block &b : blocks) {
            if (b.is_segment)
                x = memtrain::checkpoint([&b](const Tensors &in) { return Tensors{b.run(in[0])}; },
                                         {x}, 1, b.modules)[0];
            else
                x = b.run(x);
        }
        if (seen.defined() && is_training())
            seen.mul_(0.9).add_(x.detach().mean().to(at::kFloat), 0.1);
        return x;
    }
};

Tensor activate(int64_t kind, const Tensor &x) {
    switch (kind) {
    case 0:
        return x.relu();
    case 1:
        return at::gelu(x);
    case 2:
        return at::silu(x);
    case 3:
        return at::leaky_relu(x, 0.1);
    case 4:
        return x.tanh();
    case 5:
        return at::hardswish(x);
    case 6:
        return at::elu(x);
    default:
        return x.sigmoid() * x;
    }
}

Block picture_block(Net &net, Draw &d, int64_t &channels, int64_t &side, bool may_normalise) {
    Block b;
    int64_t c = channels;
    switch (d.below(12)) {
    case 0:
    case 1:
    case 2: { /* convolution, norm, activation */
        int64_t k = d.of<int64_t>({1, 3, 3, 5}), stride = side >= 8 && d.in(3) ? 2 : 1;
        int64_t to = d.from(3, 24), groups = d.in(5) ? c : 1;
        if (groups > 1) to = c * d.from(1, 2);
        auto options =
            nn::Conv2dOptions(c, to, k).stride(stride).padding(k / 2).groups(groups).bias(d.in(2));
        if (d.in(8) && k == 3) options.padding_mode(torch::kReflect);
        auto conv = net.add(nn::Conv2d(options));
        int64_t norm = d.below(5), act = d.below(9);
        if (!may_normalise && norm < 2) norm = 2;
        net.say("conv%d/%d %d>%d g%d n%d a%d; ", (int)k, (int)stride, (int)c, (int)to, (int)groups,
                (int)norm, (int)act);
        nn::BatchNorm2d bn{nullptr};
        nn::GroupNorm gn{nullptr};
        nn::InstanceNorm2d in{nullptr};
        if (norm < 2) {
            auto o = nn::BatchNorm2dOptions(to);
            if (d.in(6)) o.momentum(std::nullopt);
            if (d.in(6)) o.affine(false);
            bn = net.add(nn::BatchNorm2d(o));
            b.modules.push_back(bn.ptr());
        }
        if (norm == 2) gn = net.add(nn::GroupNorm(to % 2 ? 1 : 2, to));
        if (norm == 3) in = net.add(nn::InstanceNorm2d(nn::InstanceNorm2dOptions(to).affine(true)));
        bool in_place = act == 0 && d.in(2);
        b.run = [=](const Tensor &x) mutable {
            Tensor y = conv(x);
            if (bn) y = bn(y);
            if (gn) y = gn(y);
            if (in && y.size(2) * y.size(3) > 1) y = in(y);
            if (in_place) return y.relu_();
            return activate(act, y);
        };
        channels = to;
        side = (side + 2 * (k / 2) - k) / stride + 1;
        break;
    }
    case 3: { /* a residual */
        nn::AnyModule bn = may_normalise ? nn::AnyModule(net.add(nn::BatchNorm2d(c)))
                                         : nn::AnyModule(net.add(nn::GroupNorm(1, c)));
        auto one = net.add(nn::Conv2d(nn::Conv2dOptions(c, 2 * c, 1)));
        auto two = net.add(nn::Conv2d(nn::Conv2dOptions(2 * c, c, 3).padding(1).bias(false)));
        net.say("residual %d; ", (int)c);
        b.modules.push_back(bn.ptr());
        b.run = [=](const Tensor &x) mutable {
            return x + two(at::relu(one(bn.forward<Tensor>(x))));
        };
        break;
    }
    case 4: { /* squeeze and excite */
        auto one = net.add(nn::Linear(c, 4)), two = net.add(nn::Linear(4, c));
        net.say("se %d; ", (int)c);
        b.run = [=](const Tensor &x) mutable {
            Tensor w = two(at::silu(one(x.mean({2, 3})))).sigmoid();
            return x * w.unsqueeze(2).unsqueeze(3);
        };
        break;
    }
    case 5: { /* pools */
        if (side < 4) {
            net.say("identity; ");
            b.run = [](const Tensor &x) { return x; };
            break;
        }
        int64_t kind = d.below(3);
        net.say("pool%d; ", (int)kind);
        b.run = [=](const Tensor &x) {
            if (kind == 0) return at::max_pool2d(x, 2);
            if (kind == 1) return at::avg_pool2d(x, 2);
            return at::pixel_unshuffle(
                x.narrow(2, 0, x.size(2) / 2 * 2).narrow(3, 0, x.size(3) / 2 * 2), 2);
        };
        if (kind == 2) channels *= 4;
        side /= 2;
        break;
    }
    case 6: { /* dropouts */
        double p = d.share() * 0.6;
        int64_t kind = d.below(3);
        net.say("dropout%d; ", (int)kind);
        auto plain = net.add(nn::Dropout(p));
        auto whole = net.add(nn::Dropout2d(p));
        auto alpha = net.add(nn::AlphaDropout(p));
        b.run = [=](const Tensor &x) mutable {
            return kind == 0 ? plain(x) : kind == 1 ? whole(x) : alpha(x);
        };
        break;
    }
    case 7: { /* up and down */
        if (side > 12) {
            b.run = [](const Tensor &x) { return at::softplus(x); };
            net.say("softplus; ");
            break;
        }
        auto up = net.add(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(c, c, 2).stride(2)));
        net.say("up; ");
        b.run = [=](const Tensor &x) mutable { return up(x); };
        side *= 2;
        break;
    }
    case 8: { /* attention over the pixels */
        auto qkv = net.add(nn::Linear(c, 3 * c));
        net.say("attend %d; ", (int)c);
        b.run = [=](const Tensor &x) mutable {
            Tensor t = x.flatten(2).transpose(1, 2);
            auto parts = qkv(t).chunk(3, 2);
            Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
            return (t + y).transpose(1, 2).reshape(x.sizes());
        };
        break;
    }
    case 9: { /* interpolated */
        if (side > 12 || side < 2) {
            b.run = [](const Tensor &x) { return x * 0.5; };
            net.say("half; ");
            break;
        }
        net.say("bilinear; ");
        b.run = [](const Tensor &x) {
            return at::upsample_bilinear2d(x, {x.size(2) * 2, x.size(3) * 2}, false);
        };
        side *= 2;
        break;
    }
    case 10: { /* channels are shuffled, split, joined */
        net.say("join; ");
        b.run = [](const Tensor &x) {
            Tensor a = x.narrow(1, 0, x.size(1) / 2),
                   r = x.narrow(1, x.size(1) / 2, x.size(1) - x.size(1) / 2);
            return at::cat({r.exp().clamp_max(10), a}, 1);
        };
        break;
    }
    default: { /* a loop over samples */
        auto conv = net.add(nn::Conv2d(nn::Conv2dOptions(c, c, 3).padding(1)));
        net.say("each %d; ", (int)c);
        b.run = [=](const Tensor &x) mutable {
            Tensors each;
            for (int64_t i = 0; i < x.size(0); i++) each.push_back(conv(x.narrow(0, i, 1)));
            return at::cat(each);
        };
    }
    }
    return b;
}

/* x: [B, L, width]. */
Block sequence_block(Net &net, Draw &d, int64_t width) {
    Block b;
    switch (d.below(7)) {
    case 0: {
        auto lstm = net.add(
            nn::LSTM(nn::LSTMOptions(width, width).batch_first(true).num_layers(d.from(1, 2))));
        net.say("lstm; ");
        b.run = [=](const Tensor &x) mutable { return std::get<0>(lstm->forward(x)); };
        break;
    }
    case 1: {
        auto gru = net.add(nn::GRU(nn::GRUOptions(width, width).batch_first(true)));
        net.say("gru; ");
        b.run = [=](const Tensor &x) mutable { return x + std::get<0>(gru->forward(x)); };
        break;
    }
    case 2: {
        auto layer = net.add(nn::TransformerEncoderLayer(
            nn::TransformerEncoderLayerOptions(width, 2).dim_feedforward(2 * width).dropout(
                d.in(2) ? 0.1 : 0.0)));
        net.say("encoder; ");
        b.run = [=](const Tensor &x) mutable { return layer(x.transpose(0, 1)).transpose(0, 1); };
        break;
    }
    case 3: {
        auto norm = net.add(nn::LayerNorm(nn::LayerNormOptions({width})));
        auto up = net.add(nn::Linear(width, 3 * width)),
             down = net.add(nn::Linear(3 * width, width));
        net.say("mlp; ");
        b.run = [=](const Tensor &x) mutable { return x + down(at::gelu(up(norm(x)))); };
        break;
    }
    case 4: {
        auto qkv = net.add(nn::Linear(width, 3 * width));
        bool causal = d.in(2);
        double p = d.in(3) ? 0.1 : 0;
        net.say("sdpa; ");
        b.run = [=, &net](const Tensor &x) mutable {
            auto parts = qkv(x).view({x.size(0), x.size(1), 3, 2, -1}).unbind(2);
            for (Tensor &t : parts) t = t.transpose(1, 2);
            Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                                        net.is_training() ? p : 0.0, causal);
            return x + y.transpose(1, 2).reshape(x.sizes());
        };
        break;
    }
    case 5: {
        auto norm = net.add(nn::BatchNorm1d(width));
        auto conv = net.add(nn::Conv1d(nn::Conv1dOptions(width, width, 3).padding(1)));
        net.say("conv1d; ");
        b.modules.push_back(norm.ptr());
        b.run = [=](const Tensor &x) mutable {
            return x + conv(norm(x.transpose(1, 2))).transpose(1, 2);
        };
        break;
    }
    default: {
        auto drop = net.add(nn::Dropout(0.2));
        net.say("dropout; ");
        b.run = [=](const Tensor &x) mutable { return drop(x); };
    }
    }
    return b;
}

struct Shape {
    bool is_sequence, is_coupled;
    int64_t classes, channels, side, length;
};

std::shared_ptr<Net> make_net(Draw &d, const Shape &s) {
    auto net = std::make_shared<Net>();
    net->is_sequence = s.is_sequence;
    net->classes = s.classes;
    int64_t count = d.from(1, 6), segments = d.of<int64_t>({0, 1, 2});
    if (s.is_sequence) {
        int64_t width = 4 * d.from(2, 8);
        auto table = net->add(nn::Embedding(s.classes, width));
        net->blocks.push_back({[=](const Tensor &x) mutable { return table(x); }, {}, false});
        for (int64_t i = 0; i < count; i++) net->blocks.push_back(sequence_block(*net, d, width));
        if (d.in(3)) { /* tied weights */
            net->say("tied; ");
            net->blocks.push_back(
                {[=](const Tensor &x) { return at::matmul(x, table->weight.t()); }, {}, false});
        } else {
            auto head = net->add(nn::Linear(width, s.classes));
            net->blocks.push_back({[=](const Tensor &x) mutable { return head(x); }, {}, false});
        }
        for (size_t i = 1; i + 1 < net->blocks.size(); i++)
            net->blocks[i].is_segment = segments && d.in(segments);
    } else {
        int64_t channels = s.channels, side = s.side;
        for (int64_t i = 0; i < count; i++)
            net->blocks.push_back(picture_block(*net, d, channels, side, !s.is_coupled));
        auto head = net->add(nn::Linear(channels, s.classes));
        net->blocks.push_back({[=](const Tensor &x) mutable {
                                   return head(x.mean({2, 3}));
                               },
                               {},
                               false});
        for (size_t i = 1; i + 1 < net->blocks.size(); i++)
            net->blocks[i].is_segment = segments && d.in(segments);
        if (d.in(6)) {
            auto unused = net->add(nn::Linear(7, 5));
            net->say("unused; ");
        }
    }
    if (d.in(6)) {
        net->say("buffer; ");
        net->seen = net->register_buffer("seen", at::zeros({}));
    }
    if (d.in(6)) {
        auto all = net->parameters();
        size_t frozen = static_cast<size_t>(d.below(static_cast<int64_t>(all.size())));
        if (all.size() > 1) {
            all[frozen].set_requires_grad(false);
            net->say("frozen %d; ", (int)frozen);
        }
    }
    return net;
}

/* ---- a run ------------------------------------------------------------------------------------------- */

struct Setting {
    uint64_t seed;
    Shape shape;
    mt_torch_options torch = MT_TORCH_OPTIONS_INIT;
    mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
    const char *device = "cpu";
    bool is_contrastive = false;
    int64_t batch, steps;
    std::string text;
};

Setting draw_setting(Draw &d, uint64_t seed) {
    Setting s;
    s.seed = seed;
    s.shape = {d.in(3), false, d.from(3, 30), d.from(1, 6), d.from(5, 24), d.from(3, 24)};
    s.batch = d.from(2, 24);
    s.steps = d.from(2, 6);
    mt_torch_options &t = s.torch;
    s.device = t.device = d.of({"cpu", "cpu", "sim:cuda", "sim:mps"});
    if (const char *device = std::getenv("FUZZ_DEVICE")) s.device = t.device = device;
    if (std::strcmp(s.device, "cpu")) {
        s.shape.side += 16;
        s.shape.length += 40;
        s.batch += 16;
    }
    s.is_contrastive = s.shape.is_coupled = !s.shape.is_sequence && d.in(5);
    t.optimizer = d.of({MT_SGD, MT_ADAM, MT_ADAMW});
    t.lr = 0.01;
    t.momentum = d.in(2) ? 0.9 : 0.0;
    t.nesterov = t.momentum > 0 && d.in(2);
    t.clip_norm = d.in(2) ? 1.0 : 0.0;
    t.arena = d.in(3) ? MT_ARENA_NEVER : MT_ARENA_AUTO;
    t.checkpointing = d.of({MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON,
                            MT_CHECKPOINTING_CHOSEN});
    if (!std::strcmp(s.device, "sim:mps") && t.checkpointing == MT_CHECKPOINTING_CHOSEN)
        t.checkpointing = MT_CHECKPOINTING_ON;
    if (t.checkpointing == MT_CHECKPOINTING_CHOSEN) t.activation_share = 0.3 + 0.6 * d.share();
    t.offload = d.of({MT_OFFLOAD_NEVER, MT_OFFLOAD_AUTO, MT_OFFLOAD_AUTO, MT_OFFLOAD_HOST,
                      MT_OFFLOAD_FILE, MT_OFFLOAD_PACK, MT_OFFLOAD_AUTO_PACK});
    if (t.offload == MT_OFFLOAD_AUTO && d.in(2)) t.offload_dir = "/tmp";
    t.channels_last = d.in(6);
    t.amp = d.in(6) ? MT_BFLOAT16 : MT_DTYPE_NONE;
    mt_policy_options &p = s.policy;
    p.deterministic = d.in(3);
    p.keep_chunks = d.of({MT_KEEP_AUTO, MT_KEEP_AUTO, MT_KEEP_ALWAYS, MT_KEEP_NEVER});
    if (d.in(8)) p.micro_batch = static_cast<size_t>(d.from(2, 8));
    if (!p.micro_batch && d.in(8)) p.max_micro_batch = static_cast<size_t>(d.from(2, 12));
    if (d.in(4)) p.allow_rungs |= MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH);
    if (d.in(6) && !t.amp) p.allow_rungs |= MT_RUNG_BIT(MT_RUNG_AMP);
    if (std::strcmp(s.device, "cpu") && d.in(3)) p.allow_rungs |= MT_RUNG_BIT(MT_RUNG_CPU);
    if (d.in(5)) p.allow_rungs |= MT_RUNG_BIT(MT_RUNG_MINIMAL);
    p.rate_rule = d.of({MT_RATE_KEEP, MT_RATE_LINEAR, MT_RATE_SQRT});
    char line[400];
    std::snprintf(line, sizeof line,
                  "batch %d, %s%s on %s, opt %d mom %.1f nest %d clip %.0f arena %d ckpt %d "
                  "offload %d cl %d amp %d det %d keep %d "
                  "micro %zu max %zu rungs %x rate %d",
                  (int)s.batch, s.is_contrastive ? "contrastive " : "",
                  s.shape.is_sequence ? "sequence" : "pictures", s.device, t.optimizer, t.momentum,
                  t.nesterov, t.clip_norm, t.arena, t.checkpointing, t.offload, t.channels_last,
                  t.amp, p.deterministic, p.keep_chunks, p.micro_batch, p.max_micro_batch,
                  p.allow_rungs, (int)p.rate_rule);
    s.text = line;
    return s;
}

[[noreturn]] void failed(const Setting &s, const char *format, ...) {
    va_list list;
    va_start(list, format);
    std::printf("FAIL seed %llu: ", (unsigned long long)s.seed);
    std::vprintf(format, list);
    std::printf("\n  %s\n", s.text.c_str());
    va_end(list);
    std::exit(1);
}

void must(const Setting &s, mt_status status, const char *what) {
    if (status != MT_OK) failed(s, "%s: %s: %s", what, mt_status_name(status), mt_last_error());
}

mt_memory memory_of(const char *device) {
    mt_memory memory = {};
    memory.size = sizeof memory;
    if (mt_device_memory(device, &memory) != MT_OK) std::exit(1);
    return memory;
}

size_t allocated(const char *device = "cpu") {
    return memory_of(device).allocated_bytes;
}

struct Batch {
    std::vector<float> pictures;
    std::vector<int64_t> tokens, labels;
    mt_tensor *tensors[2] = {nullptr, nullptr};
    mt_torch_batch own = MT_TORCH_BATCH_INIT;
    mt_batch batch = MT_BATCH_INIT;

    Batch(const Setting &s, uint64_t seed, int64_t count, int64_t length) {
        Draw d(seed * 31 + 7);
        const Shape &h = s.shape;
        if (h.is_sequence) {
            const int64_t shape[2] = {count, length};
            for (int64_t i = 0; i < count * length; i++) {
                tokens.push_back(d.below(h.classes));
                labels.push_back(d.in(3) ? -100 : d.below(h.classes));
            }
            must(s, mt_tensor_from_memory(tokens.data(), MT_INT64, 2, shape, &tensors[0]),
                 "tokens");
            must(s, mt_tensor_from_memory(labels.data(), MT_INT64, 2, shape, &tensors[1]),
                 "labels");
        } else {
            const int64_t shape[4] = {count, h.channels, h.side, h.side};
            for (int64_t i = 0; i < count * h.channels * h.side * h.side; i++)
                pictures.push_back(static_cast<float>(d.share() * 4 - 2));
            for (int64_t i = 0; i < count; i++) labels.push_back(d.below(h.classes));
            must(s, mt_tensor_from_memory(pictures.data(), MT_FLOAT32, 4, shape, &tensors[0]),
                 "pictures");
            must(s, mt_tensor_from_memory(labels.data(), MT_INT64, 1, shape, &tensors[1]),
                 "labels");
        }
        own.tensors = tensors;
        own.count = 2;
        batch.data = &own;
        batch.count = static_cast<size_t>(count);
    }
    ~Batch() {
        mt_tensor_free(tensors[0]);
        mt_tensor_free(tensors[1]);
    }
    Batch(const Batch &) = delete;
    Batch &operator=(const Batch &) = delete;
};

struct Subject {
    const Setting &s;
    std::shared_ptr<Net> net;
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_backend backend = MT_BACKEND_INIT;
    mt_trainer *trainer = nullptr;

    Subject(const Setting &setting, const Draw &draw, const mt_policy_options *policy)
        : s(setting) {
        must(s, mt_torch_seed(s.seed), "seed");
        mt_status status =
            s.is_contrastive
                ? memtrain::make_model(
                      &model,
                      [&] {
                          Draw d = draw;
                          net = make_net(d, s.shape);
                          auto described = memtrain::contrastive_model(
                              net, {},
                              [](Net &n, const Tensors &batch) {
                                  Tensor a = n.forward(batch.at(0)),
                                         b = n.forward(batch.at(0).flip(3));
                                  return Tensors{a / a.norm(2, 1, true).clamp_min(1e-6),
                                                 b / b.norm(2, 1, true).clamp_min(1e-6)};
                              },
                              [](Net &, const Tensors &e) {
                                  Tensor logits = at::matmul(e[0].to(at::kFloat),
                                                             e[1].to(at::kFloat).t()) *
                                                  5,
                                         same = at::arange(e[0].size(0),
                                                           logits.options().dtype(at::kLong));
                                  return memtrain::Output{
                                      (at::cross_entropy_loss(logits, same) +
                                       at::cross_entropy_loss(logits.t(), same)) /
                                          2,
                                      {}};
                              });
                          described.checkpoints = true;
                          return described;
                      })
                : memtrain::make_model(&model, [&] {
                      Draw d = draw;
                      net = make_net(d, s.shape);
                      auto description = memtrain::model(net, {}, [](Net &n, const Tensors &batch) {
                          Tensor out = n.forward(batch.at(0)), labels = batch.at(1);
                          if (n.is_sequence) {
                              out = out.flatten(0, 1);
                              labels = labels.flatten();
                          }
                          return memtrain::Output{at::cross_entropy_loss(out.to(at::kFloat), labels,
                                                                         {}, at::Reduction::Mean,
                                                                         -100),
                                                  {}};
                      });
                      description.checkpoints = true;
                      if (s.shape.is_sequence) description.units = memtrain::count_not(-100);
                      return description;
                  });
        must(s, status, "make_model");
        mt_torch_options options = s.torch;
        must(s, mt_torch_new(model, &options, &torch), "mt_torch_new");
        must(s, mt_torch_backend(torch, &backend), "backend");
        mt_trainer_options o = MT_TRAINER_OPTIONS_INIT;
        o.policy = policy;
        if (std::getenv("FUZZ_TRACE"))
            o.trace = [](void *, const char *line) { std::printf("    %s\n", line); };
        must(s, mt_trainer_new(&backend, &o, &trainer), "trainer");
    }
    ~Subject() {
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
    }
    std::string hash() {
        char text[65];
        must(s, mt_torch_state_sha256(torch, text), "hash");
        return text;
    }
};

struct Done {
    std::vector<size_t> chunks;
    unsigned rungs;
    double rate, loss;
    int skipped;
    int64_t count, length;
    uint64_t batch;
    std::string hash;
};

/* What one chunk of the whole batch and one of the smallest take, beside the state. */
size_t peak_of(const Setting &s, const Draw &net, size_t chunk) {
    mt_policy_options plain = MT_POLICY_OPTIONS_INIT;
    plain.micro_batch = chunk;
    plain.keep_chunks = MT_KEEP_NEVER;
    Subject subject(s, net, &plain);
    size_t before = allocated(s.device);
    Batch batch(s, s.seed, s.batch, s.shape.length);
    mt_step_report report = MT_STEP_REPORT_INIT;
    must(s, mt_trainer_step(subject.trainer, &batch.batch, &report), "probe");
    return report.peak_bytes - before;
}

enum { PER_TEST = 5 };

struct Totals {
    size_t runs = 0, steps = 0, failed = 0, ooms = 0, predicted = 0, tight = 0;
} totals;

void run(uint64_t seed) {
    Draw d(seed);
    Setting s = draw_setting(d, seed);
    const Draw net_draw = d; /* a copy: each subject draws the same network */
    d = Draw(seed ^ 0xabcdef);
    mt_policy_options given = MT_POLICY_OPTIONS_INIT;
    given.allow_rungs = s.policy.allow_rungs;
    size_t at_start = allocated(), card_at_start = allocated(s.device), base, whole, least;
    must(s, mt_device_set_budget(s.device, 0), "budget");
    {
        mt_policy_options plain = MT_POLICY_OPTIONS_INIT;
        Subject subject(s, net_draw, &plain);
        s.text += "\n  " + subject.net->text;
        mt_memory memory = memory_of(s.device);
        base = std::strcmp(s.device, "cpu") ? memory.reserved_bytes : memory.allocated_bytes;
    }
    if (std::getenv("FUZZ_TRACE"))
        std::printf("seed %llu: %s\n", (unsigned long long)seed, s.text.c_str());
    whole = peak_of(s, net_draw, static_cast<size_t>(s.batch));
    least = peak_of(s, net_draw, 2);
    if (allocated() != at_start)
        failed(s, "%zu bytes are left over from the probes", allocated() - at_start);
    /* cuBLAS keeps its work spaces. */
    if (std::getenv("FUZZ_DEVICE")) card_at_start = allocated(s.device);

    std::vector<Done> done;
    std::string start;
    size_t budget =
        base + static_cast<size_t>((double)least * 0.6 +
                                   d.share() * (double)(whole * 12 / 10 - least * 6 / 10));
    {
        Subject subject(s, net_draw, &s.policy);
        start = subject.hash();
        std::string before = start;
        for (int64_t i = 0; i < s.steps; i++) {
            int64_t count = d.in(3) ? d.from(2, s.batch) : s.batch;
            int64_t length = s.shape.is_sequence && d.in(2) ? d.from(2, 24) : s.shape.length;
            uint64_t number = seed * 100 + static_cast<uint64_t>(i);
            Batch batch(s, number, count, length);
            bool is_free = d.in(4);
            must(s, mt_device_set_budget(s.device, is_free ? 0 : budget), "budget");
            uint64_t nth =
                d.in(2) ? static_cast<uint64_t>(d.from(1, d.of<int64_t>({20, 200, 2000}))) : 0;
            must(s, mt_inject_oom(nth, d.in(6)), "inject");
            mt_step_report report = MT_STEP_REPORT_INIT;
            mt_status status = mt_trainer_step(subject.trainer, &batch.batch, &report);
            uint64_t requests, refused;
            mt_injected(&requests, &refused);
            must(s, mt_inject_oom(0, 0), "inject");
            must(s, mt_device_set_budget(s.device, 0), "budget");
            std::string now = subject.hash();
            totals.steps++;
            if (status == MT_EDEVMEM) {
                totals.failed++;
                if (now != before) failed(s, "step %d failed and changed the state", (int)i);
                char text[4000];
                if (!mt_trainer_explain(subject.trainer, text, sizeof text))
                    failed(s, "nothing explains step %d", (int)i);
                continue;
            }
            if (status != MT_OK)
                failed(s, "step %d: %s: %s", (int)i, mt_status_name(status), mt_last_error());
            totals.ooms += report.retries;
            if (std::getenv("FUZZ_TRACE"))
                std::printf("    step %d: nth %llu requests %llu refused %llu retries %u\n", (int)i,
                            (unsigned long long)nth, (unsigned long long)requests,
                            (unsigned long long)refused, report.retries);
            if (!is_free && report.peak_bytes > budget && budget > base)
                failed(s, "step %d: peak %zu is above the budget %zu", (int)i, report.peak_bytes,
                       budget);
            if (report.predicted_peak_bytes && !report.retries && !report.discarded) {
                totals.predicted++;
                if (report.peak_bytes == report.predicted_peak_bytes) totals.tight++;
                if (std::getenv("FUZZ_TRACE") && report.peak_bytes > report.predicted_peak_bytes)
                    std::printf("seed %llu, step %d: peak %zu is above the predicted %zu (%.2f %% "
                                "of the chunk's)\n",
                                (unsigned long long)seed, (int)i, report.peak_bytes,
                                report.predicted_peak_bytes,
                                100.0 * (double)(report.peak_bytes - report.predicted_peak_bytes) /
                                    (double)(report.predicted_peak_bytes - base + 1));
            }
            if (report.samples != static_cast<size_t>(count) &&
                !(report.rungs & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)))
                failed(s, "step %d trained %zu of %d samples", (int)i, report.samples, (int)count);
            before = now;
            done.push_back({{report.chunks, report.chunks + report.chunk_count},
                            report.rungs,
                            report.rate,
                            report.loss,
                            report.skipped,
                            count,
                            length,
                            number,
                            now});
            if (d.in(3)) {
                mt_eval_report eval = MT_EVAL_REPORT_INIT;
                must(s, mt_device_set_budget(s.device, d.in(2) ? 0 : budget), "budget");
                must(s, mt_inject_oom(d.in(2) ? static_cast<uint64_t>(d.from(1, 100)) : 0, d.in(4)),
                     "inject");
                status = mt_trainer_evaluate(subject.trainer, &batch.batch, &eval);
                must(s, mt_inject_oom(0, 0), "inject");
                must(s, mt_device_set_budget(s.device, 0), "budget");
                if (status != MT_OK && status != MT_EDEVMEM)
                    failed(s, "evaluation after step %d: %s: %s", (int)i, mt_status_name(status),
                           mt_last_error());
                if (subject.hash() != now)
                    failed(s, "evaluation after step %d has changed the state", (int)i);
            }
        }
    }
    if (allocated() != at_start) failed(s, "%zu bytes are left over", allocated() - at_start);

    /* The same again, without trouble, with a file in the middle. */
    Setting again = s;
    if (d.in(2))
        again.torch.arena = again.torch.arena == MT_ARENA_AUTO ? MT_ARENA_NEVER : MT_ARENA_AUTO;
    bool rounds = s.torch.offload == MT_OFFLOAD_PACK || s.torch.offload == MT_OFFLOAD_AUTO_PACK;
    bool has_lstm = s.text.find("lstm") != std::string::npos;
    /*
     * Segments save other tensors, which packing rounds; without a graph libtorch has another kernel for an LSTM; and gradients
     * of parameters that several segments use are added in another order.
     */
    if (d.in(2) && !rounds && !has_lstm && !s.is_contrastive)
        again.torch.checkpointing = again.torch.checkpointing == MT_CHECKPOINTING_ON
                                        ? MT_CHECKPOINTING_AUTO
                                        : MT_CHECKPOINTING_ON;
    const unsigned always =
        again.torch.checkpointing == MT_CHECKPOINTING_ON ? MT_RUNG_BIT(MT_RUNG_CHECKPOINTING) : 0;
    auto subject = std::make_unique<Subject>(again, net_draw, &given);
    if (subject->hash() != start) failed(s, "the same seed begins elsewhere");
    size_t saved =
        done.empty() ? 0 : static_cast<size_t>(d.below(static_cast<int64_t>(2 * done.size())));
    for (size_t i = 0; i < done.size(); i++) {
        const Done &was = done[i];
        Batch batch(s, was.batch, was.count, was.length);
        must(s, mt_trainer_set_chunks(subject->trainer, was.chunks.data(), was.chunks.size()),
             "set_chunks");
        must(s, mt_trainer_set_rungs(subject->trainer, was.rungs & ~always, was.rate), "set_rungs");
        mt_step_report report = MT_STEP_REPORT_INIT;
        must(s, mt_trainer_step(subject->trainer, &batch.batch, &report), "replayed step");
        if (report.skipped != was.skipped)
            failed(s, "replayed step %zu: skipped %d, was %d", i, report.skipped, was.skipped);
        if (subject->hash() != was.hash) {
            std::string chunks;
            for (size_t c : was.chunks) chunks += " " + std::to_string(c);
            failed(
                s,
                "replayed step %zu of chunks%s (rungs %x) ends in other bits; loss %.9g, was %.9g; "
                "arena %d, checkpointing %d",
                i, chunks.c_str(), was.rungs, report.loss, was.loss, again.torch.arena,
                again.torch.checkpointing);
        }
        if (i == saved) {
            std::string path = "/tmp/random_networks." + std::to_string(getpid()) + ".safetensors";
            must(s, mt_torch_save(subject->torch, path.c_str(), nullptr), "save");
            subject.reset();
            subject = std::make_unique<Subject>(again, net_draw, &given);
            must(s, mt_torch_load(subject->torch, path.c_str(), nullptr, 0), "load");
            unlink(path.c_str());
            /* A file from the CPU has no state of the card's generator. */
            bool is_from_cpu = was.rungs & MT_RUNG_BIT(MT_RUNG_CPU);
            if (subject->hash() != was.hash && !(is_from_cpu && std::getenv("FUZZ_DEVICE")))
                failed(s, "a file after step %zu gives other bits", i);
        }
    }
    subject.reset();
    if (allocated(s.device) != card_at_start)
        failed(s, "%zu bytes are left over on the card", allocated(s.device) - card_at_start);
    if (allocated() != at_start)
        failed(s, "%zu bytes are left over from the replay", allocated() - at_start);
    totals.runs++;
}

} // namespace

TEST_LOOP("seeds", trouble_changes_no_bit, is_slow() ? 200 : 4) {
    ck_assert_int_eq(mt_torch_init(nullptr), MT_OK);
    ck_assert_int_eq(mt_torch_set_threads(1), MT_OK);
    for (int i = 0; i < PER_TEST; i++) run(static_cast<uint64_t>(_i * PER_TEST + i + 1));
}

int main(int argc, char **argv) {
    if (argc == 1) {
        tcase_set_timeout(suite_case_named("seeds"), 600);
        return suite_run_named("random_networks");
    }
    if (argc != 3) {
        std::fprintf(stderr, "usage: check_random_networks [FROM COUNT]\n");
        return 2;
    }
    uint64_t from = std::strtoull(argv[1], nullptr, 10),
             count = std::strtoull(argv[2], nullptr, 10);
    if (mt_torch_init(nullptr) != MT_OK || mt_torch_set_threads(1) != MT_OK) return 1;
    if (std::getenv("FUZZ_DEVICE")) at::globalContext().setDeterministicAlgorithms(true, true);
    for (uint64_t seed = from; seed < from + count; seed++) run(seed);
    std::printf("ok: %zu runs, %zu steps, %zu failed for memory, %zu OOMs, %zu peaks predicted, "
                "%zu exactly\n",
                totals.runs, totals.steps, totals.failed, totals.ooms, totals.predicted,
                totals.tight);
    return 0;
}
