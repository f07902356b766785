/*
 * check_model_published.cpp - networks at their published size: what `--size published` of the programs trains. Counts, names
 * and shapes are the published ones; numbers are those of tests/golden/published.bin, written by gen_published.py beside it
 * from timm and open_clip in float64. Nothing is trained here.
 */
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <ATen/Parallel.h>

#include "clip.hpp"
#include "cspdarknet.hpp"
#include "detector_scales.hpp"
#include "efficientnet.hpp"
#include "golden.hpp"
#include "prsmed_net.hpp"
#include "profoct.hpp"
#include "resnet.hpp"
#include "smartcash_model.h"

#include <memtrain/safetensors.h>

#include "golden_checks.hpp" /* last: check.h has macros with short names */

#include "check_shim.hpp"

using namespace golden_checks;
using namespace memtrain_models;

namespace {

using Outputs = std::vector<std::pair<std::string, at::Tensor>>;

golden::File golden_file() {
    at::set_num_threads(1);
    return golden::File("tests/golden/published.bin");
}

void seed() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(3));
}

int64_t count(const torch::nn::Module &net) {
    int64_t elements = 0;
    for (const at::Tensor &parameter : net.parameters()) elements += parameter.numel();
    return elements;
}

/* "name sizes", sorted; names that begin with `without` are left out. */
std::string lines(const torch::nn::Module &net, const std::string &without = "-",
                  std::string (*rename)(const std::string &) = nullptr) {
    std::set<std::string> rows;
    for (const auto &list : {net.named_parameters(), net.named_buffers()})
        for (const auto &item : list) {
            if (item.key().compare(0, without.size(), without) == 0) continue;
            std::string row = rename ? rename(item.key()) : item.key();
            for (int64_t n : item.value().sizes()) row += " " + std::to_string(n);
            rows.insert(row + "\n");
        }
    std::string all;
    for (const std::string &row : rows) all += row;
    return all;
}

/* Outputs in both modes, and those gradients that the file has; at least so many. */
template <class Net, class Run>
void same_numbers(const golden::File &file, Net &net, const std::string &name, Run run) {
    constexpr double tolerance = 1e-9;
    size_t gradients = 0;
    net.to(at::kDouble);
    golden::fill(net);
    at::Tensor loss;
    for (const std::string mode : {"eval", "train"}) {
        net.train(mode == "train");
        loss = at::Tensor();
        for (const auto &output : run(net)) {
            const at::Tensor expected = file.tensor(name + "." + mode + "." + output.first);
            const auto off = golden::digest_difference(output.first, output.second, expected);
            within(name + "." + mode + "." + output.first + ", norm", off.norm, tolerance);
            within(name + "." + mode + "." + output.first + ", element", off.element, 1e-7);
            const at::Tensor numbers = golden::uniform(output.first, output.second.sizes());
            const at::Tensor one = (output.second * numbers).mean();
            loss = loss.defined() ? loss + one : one;
        }
    }
    loss.backward();
    for (const auto &item : net.named_parameters()) {
        const std::string record = name + ".grad/" + item.key();
        if (!file.has(record)) continue;
        const auto off =
            golden::digest_difference(item.key(), item.value().grad(), file.tensor(record));
        within(record + ", norm", off.norm, 1e-7);
        gradients++;
    }
    ck_assert_uint_ge(gradients, 10);
}

/* ViT-B/32, or with a ResNet-50 for the pictures. */
ClipOptions published_clip(bool is_resnet) {
    return {{768, 12}, {512, 12}, is_resnet ? 1024 : 512, 224, 32, 49408, 77, is_resnet ? 64 : 0};
}

} // namespace

/* ---- counts -------------------------------------------------------------------------------------- */

TEST("counts", known_counts) {
    at::set_num_threads(1);
    ck_assert_int_eq(count(*ResNet(ResNetOptions{50, 1000})), 25557032);
    const EfficientNet b4(EfficientNetOptions{1.4, 1.8, 0.2, true});
    ck_assert_int_eq(count(b4) + 1792 * 1000 + 1000, 19341616); /* and its classifier */
    ck_assert_int_eq(count(*TinyVitEncoder()), 5743892);
    ck_assert_int_eq(count(*Clip(published_clip(false))), 151277313);
    ck_assert_int_eq(count(*Clip(published_clip(true))), 102007137);
}

/* The neck of YOLOv5s has 2,834,688, and three heads of seven classes 32,364. */
TEST("counts", detectors_of_three_scales) {
    ScalesOptions o;
    o.side = 64;
    o.anchors.assign(18, 0.25F);
    at::set_num_threads(1);
    ScalesDetector b4(std::make_shared<EfficientNet>(), o);
    ck_assert_int_eq(count(b4), 19888564);
    const ScalesDetector darknet(std::make_shared<CspDarknet>(), o);
    ck_assert_int_eq(count(darknet), 26617184 + 689920 + 2834688 + 32364);
    b4.eval();
    at::NoGradGuard no_grad;
    auto maps = b4.forward(golden::uniform("scene", {2, 3, 64, 64}).to(at::kFloat));
    for (int64_t i = 0; i < 3; i++)
        ck_assert(maps[static_cast<size_t>(i)].sizes() ==
                  at::IntArrayRef({2, 3, 8 >> i, 8 >> i, 12}));
}

/* 1024 pixels are 64 x 64 tokens; the decoder reads states of 4096 numbers, whatever the text model is. */
TEST("counts", prsmed_as_published) {
    prsmed_model_options o = PRSMED_MODEL_OPTIONS_INIT;
    prsmed_estimate parts[PRSMED_PARTS];
    o.encoder = PRSMED_TINY_VIT;
    o.side = 64;
    o.dropout = 0;
    seed();
    Prsmed net(o);
    ck_assert_int_eq(count(*net->decoder), 5365441);
    ck_assert_int_eq(count(*net->vision), 5743892);
    ck_ok(prsmed_model_estimate(&o, 24, parts));
    ck_assert_uint_eq(parts[PRSMED_VISION].parameters, 5743892);
    ck_assert_uint_eq(parts[PRSMED_DECODER].parameters, 5365441);
    net->freeze_text({});
    at::Tensor tokens = at::full({2, 9}, token_padding, at::kLong);
    tokens.select(1, 0).fill_(token_begin);
    tokens.narrow(1, 1, 4).fill_('a');
    at::Tensor pictures = golden::uniform("scene", {2, 3, 64, 64}).to(at::kFloat);
    at::Tensor logits = net->forward(pictures, tokens);
    ck_assert(logits.sizes() == at::IntArrayRef({2, 64, 64}));
    ck_assert(net->word_spread.sizes() == at::IntArrayRef({o.text_width, 4096}));
    logits.mean().backward();
    for (const auto &item : net->vision->named_parameters())
        ck_assert_msg(item.value().grad().defined(), "%s", item.key().c_str());
}

/* 7 x 7 x 512 features of a picture, and a 5x5 stem with FETI. */
TEST("counts", profoct_as_published) {
    profoct_model_options o = PROFOCT_MODEL_OPTIONS_INIT;
    o.depth = 34;
    o.pool = 7;
    o.queries = 16;
    at::set_num_threads(1);
    for (int feti = 0; feti < 2; feti++) {
        o.feti = feti;
        const auto net = std::make_shared<ProfoctImpl>(o);
        ck_assert_int_eq(count(*net), 53187226 + (feti ? 21280064 : 21284672));
        ck_assert_int_eq(net->pictures(), 105);
    }
}

/* ---- names and numbers --------------------------------------------------------------------------- */

TEST("numbers", tiny_vit_is_timms) {
    const golden::File file = golden_file();
    TinyVitEncoder net;
    same_lines(lines(*net, "neck."), file.text("tiny_vit.state"));
    const at::Tensor images = golden::uniform("images", {2, 3, 192, 192});
    same_numbers(file, *net, "tiny_vit", [&](TinyVitEncoderImpl &n) {
        return Outputs{{"maps", n.maps(images)}};
    });
}

/* Normalised numbers of each pixel, whose mean and deviation are those of the last norm's bias and weight. */
TEST("numbers", the_neck_of_tinysam) {
    at::set_num_threads(1);
    TinyVitEncoder net;
    const char *names[] = {"neck.0.weight", "neck.1.weight", "neck.1.bias",
                           "neck.2.weight", "neck.3.weight", "neck.3.bias"};
    const auto parameters = net->named_parameters();
    for (const char *name : names) ck_assert_msg(parameters.contains(name), "%s", name);
    ck_assert(parameters["neck.0.weight"].sizes() == at::IntArrayRef({256, 320, 1, 1}));
    ck_assert(parameters["neck.2.weight"].sizes() == at::IntArrayRef({256, 256, 3, 3}));
    at::NoGradGuard no_grad;
    net->eval();
    parameters["neck.3.weight"].fill_(2);
    parameters["neck.3.bias"].fill_(3);
    at::Tensor out = net->forward(golden::uniform("images", {1, 3, 32, 32}).to(at::kFloat));
    ck_assert(out.sizes() == at::IntArrayRef({1, 256, 2, 2}));
    ck_assert(at::allclose(out.mean(1), at::full({1, 2, 2}, 3.0), 0, 1e-4));
    ck_assert(at::allclose(out.var(1, false), at::full({1, 2, 2}, 4.0), 0.01));
}

TEST("numbers", cspdarknet_is_timms) {
    const golden::File file = golden_file();
    CspDarknet net;
    net.three = true;
    same_lines(lines(net), file.text("cspdarknet.state"));
    const at::Tensor images = golden::uniform("images", {2, 3, 64, 64});
    same_numbers(file, net, "cspdarknet", [&](CspDarknet &n) {
        const Maps maps = n.maps(images);
        return Outputs{{"finest", maps.finest}, {"fine", maps.fine}, {"coarse", maps.coarse}};
    });
}

TEST_LOOP("numbers", clip_is_open_clips, 2) {
    const std::string name = _i ? "clip_rn50" : "clip_vit";
    const golden::File file = golden_file();
    Clip net(ClipOptions{{128, 2}, {128, 2}, 96, 64, 32, 50, 9, _i ? 16 : 0});
    same_lines(lines(*net), file.text(name + ".state"));
    const at::Tensor images = golden::uniform("images", {3, 3, 64, 64});
    at::Tensor tokens = golden::classes("tokens", 27, 49).view({3, 9});
    const int64_t ends[] = {3, 5, 8};
    for (int64_t i = 0; i < 3; i++) tokens[i][ends[i]] = 49;
    same_numbers(file, *net, name, [&](ClipImpl &n) {
        return Outputs{{"pictures", n.encode_image(images)}, {"texts", n.encode_text(tokens)}};
    });
}

/* The names at full size, whose numbers were compared in small. */
TEST_LOOP("numbers", clip_at_full_size, 2) {
    const golden::File file = golden_file();
    same_lines(lines(*Clip(published_clip(_i))),
               file.text(_i ? "clip_rn50_full.state" : "clip_vit_b32.state"));
}

/* In training, too, the running statistics, which stay as they are. */
TEST("numbers", a_frozen_norm) {
    ClipResNetOptions o;
    o.width = 16;
    o.side = 64;
    o.embedding = 32;
    o.frozen_norm = true;
    seed();
    ClipResNet net(o);
    at::Tensor pictures = golden::uniform("images", {3, 3, 64, 64}).to(at::kFloat);
    net->train();
    const at::Tensor mean = net->named_buffers()["bn1.running_mean"].clone();
    const at::Tensor all = net(pictures), one = net(pictures.narrow(0, 1, 1));
    ck_assert(at::allclose(all.narrow(0, 1, 1), one, 1e-4, 1e-5));
    ck_assert(net->named_buffers()["bn1.running_mean"].equal(mean));
}

/* ---- another library's names --------------------------------------------------------------------- */

TEST("names", efficientnet_by_timms_names) {
    const golden::File file = golden_file();
    const EfficientNet b4(EfficientNetOptions{1.4, 1.8, 0.2, true});
    same_lines(lines(b4, "-", efficientnet_timm_name), file.text("efficientnet.timm"));
    ck_assert_str_eq(efficientnet_timm_name("head.weight").c_str(), "");
    ck_assert_str_eq(efficientnet_timm_name("features.9.0.block.0.0.weight").c_str(), "");
}

TEST("names", tiny_vit_by_timms_names) {
    const golden::File file = golden_file();
    const TinyVitEncoder net;
    same_lines(lines(*net, "neck.", tiny_vit_timm_name), file.text("tiny_vit.timm"));
    ck_assert_str_eq(tiny_vit_timm_name("neck.0.weight").c_str(), "");
}

namespace {

void save(const std::string &path, const Outputs &named) {
    std::vector<mt_safetensors_tensor> entries;
    for (const auto &[name, t] : named)
        entries.push_back({name.c_str(), t.is_floating_point() ? MT_ST_F32 : MT_ST_I64,
                           static_cast<size_t>(t.dim()), t.sizes().data(), t.nbytes(),
                           t.const_data_ptr()});
    ck_ok(mt_safetensors_save(path.c_str(), entries.data(), entries.size(), nullptr));
}

mt_status same_as_source(void *user, const char *name, mt_tensor *tensor) {
    const auto &source = *static_cast<const torch::nn::Module *>(user);
    const auto parameters = source.named_parameters(), buffers = source.named_buffers();
    const at::Tensor *there = parameters.find(name) ? parameters.find(name) : buffers.find(name);
    if (there) ck_assert_msg(memtrain::tensor(tensor).equal(*there), "%s is another one", name);
    return MT_OK;
}

/* All tensors of the model that the network has, too. */
void has_weights_of(mt_model *model, torch::nn::Module &source) {
    mt_torch *torch = nullptr;
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_torch_visit_state(torch, same_as_source, &source));
    mt_torch_free(torch);
}

struct Expected {
    std::string prefix; /* of the model's names */
    std::map<std::string, at::Tensor> tensors;
    size_t met;
};

mt_status same_as_expected(void *user, const char *name, mt_tensor *tensor) {
    auto &expected = *static_cast<Expected *>(user);
    const std::string whole = name;
    if (whole.compare(0, expected.prefix.size(), expected.prefix) != 0) return MT_OK;
    auto there = expected.tensors.find(whole.substr(expected.prefix.size()));
    if (there == expected.tensors.end()) return MT_OK;
    ck_assert_msg(memtrain::tensor(tensor).equal(there->second), "%s is another one", name);
    expected.met++;
    return MT_OK;
}

/* The model has all of these. */
void expect(mt_model *model, Expected &expected) {
    mt_torch *torch = nullptr;
    expected.met = 0;
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_torch_visit_state(torch, same_as_expected, &expected));
    mt_torch_free(torch);
    ck_assert_uint_eq(expected.met, expected.tensors.size());
    ck_assert_uint_gt(expected.met, 0);
}

} // namespace

TEST("names", loads_by_timms_names) {
    char path[] = "/tmp/check_model_published.XXXXXX";
    smartcash_model_options o = SMARTCASH_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    mt_model *model = nullptr;
    close(mkstemp(path));
    unlink(path);
    seed();
    auto source = std::make_shared<EfficientNet>(EfficientNetOptions{1, 1});
    golden::fill(*source);
    Outputs by_timms_names;
    for (const auto &list : {source->named_parameters(), source->named_buffers()})
        for (const auto &item : list) {
            const std::string name = efficientnet_timm_name(item.key());
            if (!name.empty())
                by_timms_names.emplace_back(name, item.value().detach().contiguous());
        }
    save(path, by_timms_names);
    o.backbone = SMARTCASH_EFFICIENTNET_B0;
    ck_ok(smartcash_model_new(&o, &model));
    weights.strict = 0;
    ck_status(mt_model_load_weights(model, path, &weights), MT_EINVAL); /* no such names */
    weights.other_name = smartcash_model_timm_name;
    ck_ok(mt_model_load_weights(model, path, &weights));
    unlink(path);
    has_weights_of(model, *source);
    mt_model_free(model);
}

namespace {

/* The encoder of prsmed's network, under the names that another file has for its tensors. "": not there. */
Outputs encoder_by(torch::nn::Module &net, const std::function<std::string(std::string)> &name_of) {
    Outputs named;
    for (const auto &list : {net.named_parameters(), net.named_buffers()})
        for (const auto &item : list)
            if (!name_of(item.key()).empty())
                named.emplace_back(name_of(item.key()), item.value().detach().contiguous());
    return named;
}

} // namespace

/* Files of all of TinySAM, of its encoder alone, and timm's, which lacks the neck; and one that lacks a block. */
TEST("names", loads_a_tiny_vit) {
    char path[] = "/tmp/check_model_published.XXXXXX";
    prsmed_model_options o = PRSMED_MODEL_OPTIONS_INIT;
    mt_weights_options weights = MT_WEIGHTS_OPTIONS_INIT;
    close(mkstemp(path));
    unlink(path);
    o.encoder = PRSMED_TINY_VIT;
    o.side = 64;
    weights.strict = 0;
    weights.required = prsmed_model_encoder();
    weights.other_name = prsmed_model_encoder_names;
    seed();
    TinyVitEncoder source;
    golden::fill(*source);
    const std::function<std::string(std::string)> kinds[] = {
        [](const std::string &name) { return "image_encoder." + name; },
        [](const std::string &name) { return name; }, tiny_vit_timm_name,
        [](const std::string &name) {
            const bool is_absent = name.compare(0, 18, "layers.2.blocks.5.") == 0;
            return is_absent ? std::string() : tiny_vit_timm_name(name);
        }};
    for (const auto &kind : kinds) {
        mt_model *model = nullptr;
        const Outputs named = encoder_by(*source, kind);
        save(path, named);
        ck_ok(prsmed_model_new(&o, &model));
        if (&kind == kinds + 3) {
            ck_refused(mt_model_load_weights(model, path, &weights), MT_EINVAL,
                       "the first is 'vision.layers.2.blocks.5.");
        } else {
            ck_ok(mt_model_load_weights(model, path, &weights));
            Expected expected{"vision.", {}, 0};
            for (const auto &item : encoder_by(*source, kinds[1]))
                if (!kind(item.first).empty()) expected.tensors.emplace(item);
            expect(model, expected);
        }
        mt_model_free(model);
    }
    unlink(path);
}

/* Two files and the index of both, as for a network that is too large for one; and what may be wrong with them. */
TEST("names", loads_several_files) {
    char folder[] = "/tmp/check_model_published.XXXXXX";
    profoct_model_options o = PROFOCT_MODEL_OPTIONS_INIT;
    mt_model *model = nullptr;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    const std::string index = std::string(folder) + "/model.safetensors.index.json";
    o.width = 4;
    seed();
    ProfoctImpl source(o);
    golden::fill(source);
    std::string map;
    for (int part = 0; part < 2; part++) {
        const std::string name = "model-" + std::to_string(part) + ".safetensors";
        Outputs half;
        int number = 0;
        for (const auto &list : {source.named_parameters(), source.named_buffers()})
            for (const auto &item : list)
                if (number++ % 2 == part) {
                    half.emplace_back(item.key(), item.value().detach().contiguous());
                    map += (map.empty() ? "" : ",") + ("\"" + item.key() + "\":\"" + name + "\"");
                }
        save(std::string(folder) + "/" + name, half);
    }
    std::ofstream(index) << "{\"metadata\":{\"total_size\":1},\"weight_map\":{" << map << "}}";
    ck_ok(profoct_model_new(&o, &model));
    ck_ok(mt_model_load_weights(model, index.c_str(), nullptr));
    has_weights_of(model, source);
    unlink((std::string(folder) + "/model-1.safetensors").c_str());
    ck_refused(mt_model_load_weights(model, index.c_str(), nullptr), MT_EIO, "model-1.safetensors");
    mt_model_free(model);
    unlink((std::string(folder) + "/model-0.safetensors").c_str());
    unlink(index.c_str());
    rmdir(folder);
}

SUITE("model_published")
