/*
 * check_shim_groups.cpp - groups of parameters with a learning rate and a weight decay of their own, and
 * parameters that are frozen for some steps or for all.
 */
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "owned.hpp"

using namespace check_shim;

namespace {

const mt_optimizer optimizers[] = {MT_SGD, MT_ADAM, MT_ADAMW};

mt_parameter_group group_of(const char *pattern, double lr_factor = 1.0, double weight_decay = -1.0,
                            int frozen = 0) {
    mt_parameter_group group = MT_PARAMETER_GROUP_INIT;
    group.pattern = pattern;
    group.lr_factor = lr_factor;
    group.weight_decay = weight_decay;
    group.frozen = frozen;
    return group;
}

mt_torch_options with_groups(mt_torch_options options,
                             const std::vector<mt_parameter_group> &groups) {
    options.groups = groups.data();
    options.group_count = groups.size();
    return options;
}

mt_status train(const Trainer &trainer, const Batch &batch) {
    return mt_train_step(trainer.torch, batch.get(), nullptr, nullptr);
}

/* The bytes of each tensor of the state. */
std::map<std::string, std::string> contents(const Trainer &trainer) {
    std::map<std::string, std::string> state;
    ck_ok(mt_torch_visit_state(
        trainer.torch,
        [](void *user, const char *name, mt_tensor *handle) {
            auto &map = *static_cast<std::map<std::string, std::string> *>(user);
            map[name] = raw_bytes(memtrain::tensor(handle));
            return MT_OK;
        },
        &state));
    return state;
}

/* Names of the parameters that need no gradient, in order. */
std::string frozen(const Net &net) {
    std::string names;
    for (const auto &item : net.named_parameters())
        if (!item.value().requires_grad()) names += item.key() + " ";
    return names;
}

void check_frozen(const Net &net, const char *names) {
    std::string seen = frozen(net);
    ck_assert_str_eq(seen.c_str(), names);
}

/* The tensors that the step has changed are those whose name the text is in, or is not. */
void check_changed(const std::map<std::string, std::string> &before,
                   const std::map<std::string, std::string> &after, const char *text, bool is_in) {
    ck_assert_uint_le(before.size(), after.size()); /* what trains again has optimiser state anew */
    for (const auto &[name, bytes] : before) {
        if (name.find("unused") != std::string::npos) continue;
        bool has = name.find(text) != std::string::npos;
        if (has != is_in)
            ck_assert_msg(after.at(name) == bytes, "%s has changed", name.c_str());
        else
            ck_assert_msg(after.at(name) != bytes, "%s has not changed", name.c_str());
    }
}

/* ---- the same with an optimiser of libtorch's ---- */

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> parts_of(
    Net &net, const Options &base, const std::function<void(const std::string &, Options &)> &f) {
    std::vector<torch::optim::OptimizerParamGroup> list;
    for (auto &item : net.named_parameters()) {
        Options own = base;
        f(item.key(), own);
        list.emplace_back(std::vector<at::Tensor>{item.value()}, std::make_unique<Options>(own));
    }
    return list;
}

template <class Options> void set(const std::string &name, Options &o) {
    bool is_bias = name.size() > 5 && name.substr(name.size() - 5) == ".bias";
    if (name.rfind("linear.", 0) == 0) {
        o.lr(o.lr() * 10).weight_decay(0);
    } else if (is_bias) {
        o.lr(o.lr() * 0.5).weight_decay(0.3);
    } else if (name.rfind("conv1", 0) == 0) {
        o.lr(o.lr() * 3);
    }
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(Net &net, const mt_torch_options &o) {
    using namespace torch::optim;
    if (o.optimizer == MT_SGD)
        return std::make_unique<SGD>(
            parts_of<SGDOptions>(net,
                                 SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay),
                                 set<SGDOptions>),
            SGDOptions(o.lr));
    if (o.optimizer == MT_ADAM)
        return std::make_unique<Adam>(
            parts_of<AdamOptions>(net, AdamOptions(o.lr).weight_decay(o.weight_decay),
                                  set<AdamOptions>),
            AdamOptions(o.lr));
    return std::make_unique<AdamW>(
        parts_of<AdamWOptions>(net, AdamWOptions(o.lr).weight_decay(o.weight_decay),
                               set<AdamWOptions>),
        AdamWOptions(o.lr));
}

const std::vector<mt_parameter_group> three_groups() {
    return {group_of("linear.", 10, 0), group_of("*.bias", 0.5, 0.3), group_of("conv1", 3)};
}

} // namespace

/* The first group that fits counts, the rest goes by the options: as libtorch's own groups do. */
TEST_LOOP("groups", as_libtorch, 3) {
    std::vector<mt_parameter_group> groups = three_groups();
    mt_torch_options options = with_groups(options_of(optimizers[_i]), groups);
    NetOptions no_norm; /* behind it a bias has no gradient but rounding, which Adam makes large */
    no_norm.norm = false;
    Trainer trainer(options, no_norm);
    groups.assign(3, group_of("nothing of this is read again"));
    Batch batch(8);
    ck_ok(mt_torch_seed(7));
    Net net(no_norm);
    at::Device device = device_of(*trainer.net);
    net.to(device);
    auto by_hand = optimizer_of(net, options);
    ck_ok(mt_torch_seed(3));
    for (int i = 0; i < 5; i++) ck_ok(train(trainer, batch));
    ck_ok(mt_torch_seed(3));
    for (int i = 0; i < 5; i++) {
        by_hand->zero_grad();
        at::cross_entropy_loss(net.forward(memtrain::tensor(batch.images()).to(device)),
                               memtrain::tensor(batch.labels()).to(device))
            .backward();
        by_hand->step();
    }
    auto ours = trainer.net->parameters(), theirs = net.parameters();
    for (size_t i = 0; i < ours.size(); i++)
        ck_assert_double_lt((ours[i] - theirs[i]).abs().max().item().toDouble(), 1e-6);
}

/* Groups that say what the options say, and options without groups, give the same bits. */
TEST_LOOP("groups", same_as_none, 6) {
    mt_torch_options options = options_of(optimizers[_i % 3], _i < 3 ? 0.0 : 0.05);
    std::vector<mt_parameter_group> groups = {
        group_of("*bias"), group_of("conv", 1.0, options.weight_decay),
        group_of("", 1.0, std::numeric_limits<double>::quiet_NaN())};
    std::string hashes[2];
    Batch batch(8);
    for (int i = 0; i < 2; i++) {
        Trainer trainer(i ? with_groups(options, groups) : options);
        for (int k = 0; k < 4; k++) ck_ok(step(trainer, batch, {3, 5}));
        hashes[i] = trainer.hash();
    }
    ck_assert(hashes[0] == hashes[1]);
}

TEST("groups", patterns) {
    const struct {
        const char *pattern, *frozen;
    } rows[] = {
        {"conv1", "conv1.weight conv1.bias "},
        {"conv", "conv1.weight conv1.bias conv2.weight conv2.bias "},
        {"conv*", "conv1.weight conv1.bias conv2.weight conv2.bias "},
        {"*1.bias", "conv1.bias "},
        {"*bias", "conv1.bias conv2.bias linear.bias norm.bias "},
        {"c*1*.w*t", "conv1.weight "},
        {"**near.*", "linear.weight linear.bias "},
        {"linear.bias", "linear.bias "},
        {"bias", nullptr},
        {"*.bia", nullptr},
        {"conv3*", nullptr},
        {"conv1.bias.more", nullptr},
        {"*conv1.bias?", nullptr},
    };
    for (const auto &row : rows) {
        Trainer trainer(options_of(MT_SGD));
        mt_status status = mt_torch_freeze(trainer.torch, row.pattern, 1);
        if (!row.frozen) {
            ck_refused(status, MT_EINVAL, row.pattern);
            check_frozen(*trainer.net, "");
            continue;
        }
        ck_ok(status);
        std::string seen = frozen(*trainer.net);
        ck_assert_uint_eq(seen.size(), strlen(row.frozen));
        for (size_t at = 0; at < seen.size(); at = seen.find(' ', at) + 1)
            ck_contains(row.frozen, seen.substr(at, seen.find(' ', at) - at).c_str());
    }
}

TEST("groups", refused) {
    const double inf = std::numeric_limits<double>::infinity();
    mt_parameter_group small = group_of("conv1");
    small.size = 3;
    const struct {
        std::vector<mt_parameter_group> groups;
        const char *words;
    } rows[] = {
        {{group_of("conv1"), group_of("fc.")}, "groups[1].pattern 'fc.' matches no trainable"},
        {{group_of(nullptr)}, "groups[0].pattern is NULL"},
        {{group_of("conv1", 0.0)}, "groups[0].lr_factor is 0"},
        {{group_of("conv1", inf)}, "groups[0].lr_factor is inf"},
        {{group_of("conv1", 1.0, inf)}, "groups[0].weight_decay is inf"},
        {{small}, "groups[0].size is 3"},
        {{group_of("conv1"), small}, "groups[1].size is 3"},
        {{group_of("*", 1.0, 0.0, 1)}, "leave no parameter to train"},
    };
    Owned owned;
    ck_ok(mt_torch_init(nullptr));
    ck_ok(net_model_new({}, &owned.model));
    for (const auto &row : rows) {
        mt_torch_options options = with_groups(options_of(MT_SGD), row.groups);
        ck_refused(mt_torch_new(owned.model, &options, &owned.torch), MT_EINVAL, row.words);
    }
    mt_torch_options options = options_of(MT_SGD);
    options.group_count = 1;
    ck_status(mt_torch_new(owned.model, &options, &owned.torch), MT_EINVAL);

    Trainer trainer(options_of(MT_SGD));
    Batch batch(8);
    ck_status(mt_torch_freeze(nullptr, "conv", 1), MT_EINVAL);
    ck_status(mt_torch_freeze(trainer.torch, nullptr, 1), MT_EINVAL);
    ck_refused(mt_torch_freeze(trainer.torch, "*", 1), MT_EINVAL, "no parameter to train");
    for (int on : {-1, 3}) {
        ck_refused(mt_torch_freeze(trainer.torch, "conv", on), MT_EINVAL,
                   "accepted: MT_FREEZE_OFF (0)");
    }
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_status(mt_torch_freeze(trainer.torch, "conv", 1), MT_ESTATE);
    ck_ok(mt_rollback(trainer.torch));
    check_frozen(*trainer.net, "");
}

/* Frozen parameters and their optimiser state stay to the bit, all others move; thawed they go on. */
TEST_LOOP("freeze", phases, 6) {
    mt_torch_options options = options_of(optimizers[_i % 3], 0.5);
    std::vector<mt_parameter_group> groups = {group_of("conv1.", 2.0, 0.1, _i >= 3)};
    Trainer trainer(with_groups(options, groups));
    Batch batch(8);
    if (_i < 3) {
        ck_ok(train(trainer, batch));
        ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 1));
        ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 1));
    }
    auto before = contents(trainer);
    for (int i = 0; i < 2; i++) ck_ok(train(trainer, batch));
    for (int i = 0; i < 2; i++) ck_ok(step(trainer, batch, {3, 5}));
    auto after = contents(trainer);
    check_changed(before, after, "conv1", false);
    check_frozen(*trainer.net, "conv1.weight conv1.bias ");
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 0));
    ck_ok(mt_torch_freeze(trainer.torch, "linear.", 1));
    for (int i = 0; i < 2; i++) ck_ok(train(trainer, batch));
    check_changed(after, contents(trainer), "linear", false);
    ck_ok(mt_torch_freeze(trainer.torch, "", 0));
    check_frozen(*trainer.net, "");
    before = contents(trainer);
    ck_ok(train(trainer, batch));
    check_changed(before, contents(trainer), "", true);
}

/* Chunks in place, marked, and without gradients that are held: the same bits in every phase. */
TEST_LOOP("freeze", same_bits_in_any_way, 3) {
    std::string hashes[3];
    Batch batch(8);
    for (int way = 0; way < 3; way++) {
        Trainer trainer(options_of(optimizers[_i], 0.1));
        if (way == 2) ck_ok(mt_hold_gradients(trainer.torch, 0));
        for (int i = 0; i < 9; i++) {
            mt_chunk_result chunk = chunk_result();
            mt_apply_result applied = apply_result();
            if (i % 3 == 1) ck_ok(mt_torch_freeze(trainer.torch, "conv", i != 4));
            if (i == 5) ck_ok(mt_torch_freeze(trainer.torch, "*bias", 1));
            ck_ok(mt_begin(trainer.torch, batch.get()));
            if (way) ck_ok(mt_mark(trainer.torch));
            ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &chunk));
            ck_ok(mt_apply(trainer.torch, &applied));
        }
        hashes[way] = trainer.hash();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert(hashes[0] == hashes[2]);
}

/* Each allocation of a step with frozen parameters fails in turn. */
TEST("freeze", every_allocation_fails) {
    std::vector<mt_parameter_group> groups = three_groups();
    Trainer trainer(with_groups(options_of(MT_ADAMW, 0.1), groups));
    Batch batch(8);
    ck_ok(train(trainer, batch));
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 1));
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        std::string before = trainer.hash();
        Tried tried = with_fault(n, [&] { return train(trainer, batch); });
        failed = tried.failed != 0;
        if (failed) ck_status(tried.status, MT_EDEVMEM);
        ck_assert_int_eq(trainer.hash() == before, failed);
    }
}

TEST_LOOP("groups", apply_allocates_nothing, 3) {
    std::vector<mt_parameter_group> groups = three_groups();
    Trainer trainer(with_groups(options_of(optimizers[_i], 0.01), groups));
    Batch batch(8);
    mt_chunk_result chunk = chunk_result();
    mt_apply_result applied = apply_result();
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.weight", 1));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_ok(mt_accumulate(trainer.torch, 0, 8, 1.0, &chunk));
    Tried tried = with_fault(0, [&] { return mt_apply(trainer.torch, &applied); });
    ck_ok(tried.status);
    if (suite_on_cpu()) ck_assert_uint_eq(tried.requests, 0);
}

/*
 * A policy knows each phase by itself: predictions are as good after thawing as they were before. Chunks are not chosen
 * by time, so that peaks of different phases can be compared.
 */
TEST_LOOP("freeze", predictions, 2) {
    if (suite_on_mps()) return suite_skip("predictions", "MPS tells no peaks");
    const int ways[] = {MT_FREEZE_KEEP, MT_FREEZE_GIVE_BACK};
    Trainer trainer(options_of(MT_ADAMW));
    mt_backend seam = seam_of(trainer);
    Batch batch(32);
    std::vector<uint64_t> shapes;
    Driver driver(seam, deterministic());
    size_t peaks[3] = {};
    for (int phase = 0; phase < 3; phase++) {
        mt_shape shape = {};
        for (const char *pattern : {"conv", "norm"})
            if (phase) ck_ok(mt_torch_freeze(trainer.torch, pattern, phase == 1 ? ways[_i] : 0));
        ck_ok(seam.shape(seam.self, batch.get(), &shape));
        shapes.push_back(shape.id);
        for (int i = 0; i < 8; i++) {
            mt_step_report report = driver.step(batch.get());
            if (i < 6) continue;
            ck_assert_uint_eq(report.peak_bytes, report.predicted_peak_bytes);
            peaks[phase] = report.peak_bytes;
        }
    }
    ck_assert_uint_lt(peaks[1], peaks[0]);
    ck_assert_uint_eq(peaks[2], peaks[0]);
    ck_assert(shapes[1] != shapes[0]);
    ck_assert(shapes[2] == shapes[0]);
}

/* From a card to the CPU and back, with frozen parameters: nothing is lost, and thawing works there. */
TEST("freeze", moves) {
    mt_torch_options options = options_of(MT_ADAMW);
    options.device = "sim:cuda";
    Trainer trainer(options);
    mt_backend seam = seam_of(trainer);
    Batch batch(8);
    ck_ok(train(trainer, batch));
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 1));
    auto before = contents(trainer);
    for (int on : {1, 0}) {
        ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, on));
        ck_assert(contents(trainer) == before);
        check_frozen(*trainer.net, "conv1.weight conv1.bias ");
    }
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 1));
    ck_ok(train(trainer, batch));
    check_changed(before, contents(trainer), "conv1", false);
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 0));
    before = contents(trainer);
    ck_ok(train(trainer, batch));
    check_changed(before, contents(trainer), "", true);

    /* Without room on the way back nothing has happened. */
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", 1));
    before = contents(trainer);
    auto way_back = [&] { return seam.set_rung(seam.self, MT_RUNG_CPU, 0); };
    ck_status(with_fault(3, way_back, 1).status, MT_EDEVMEM);
    ck_assert(contents(trainer) == before);
    check_frozen(*trainer.net, "conv1.weight conv1.bias ");
}

/* ---- memory ---- */

/* From the start by a group: as if the model itself wanted no gradient. */
TEST_LOOP("memory", frozen_from_the_start, 3) {
    std::string hashes[2];
    size_t bytes[2];
    mt_backend_info infos[2];
    std::vector<mt_parameter_group> groups = {group_of("conv", 1.0, -1.0, 1)};
    for (int way = 0; way < 2; way++) {
        mt_torch_options options = options_of(optimizers[_i]);
        Owned one;
        std::shared_ptr<Net> net;
        start();
        ck_ok(mt_torch_seed(7));
        ck_ok(net_model_new({}, &one.model, &net));
        if (way == 0)
            options = with_groups(options, groups);
        else
            for (nn::Conv2d *conv : {&net->conv1, &net->conv2})
                for (at::Tensor &parameter : (*conv)->parameters())
                    parameter.set_requires_grad(false);
        size_t before = cpu_memory().allocated_bytes;
        void *place = net->conv1->weight.data_ptr();
        ck_ok(mt_torch_new(one.model, &options, &one.torch));
        bytes[way] = cpu_memory().allocated_bytes - before;
        if (suite_on_cpu()) ck_assert_ptr_eq(net->conv1->weight.data_ptr(), place);
        infos[way] = info_of(seam_of(one.torch));
        Batch batch(8);
        for (int i = 0; i < 3; i++) ck_ok(one.train_step(batch.get()));
        hashes[way] = one.hash();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_uint_eq(infos[0].gradient_bytes, infos[1].gradient_bytes);
    ck_assert_uint_le(infos[0].optimizer_bytes - infos[1].optimizer_bytes, 4 * sizeof(float));
    ck_assert_uint_le(bytes[0] - bytes[1], 64); /* four counts of steps */
}

/* Gradients and moments of conv2.weight, 8x8x3x3 floats. */
TEST_LOOP("memory", memory_is_given_back, 3) {
    const size_t floats = 8 * 8 * 3 * 3;
    mt_torch_options options = options_of(optimizers[_i]);
    options.arena = MT_ARENA_NEVER; /* its memory is another matter */
    Trainer trainer(options);
    Batch batch(8);
    size_t states = optimizers[_i] == MT_SGD ? 1 : 2;
    for (bool held : {true, false}) {
        ck_ok(mt_hold_gradients(trainer.torch, held));
        for (int i = 0; i < 2; i++) ck_ok(train(trainer, batch));
        size_t bytes = cpu_memory().allocated_bytes;
        auto before = contents(trainer);
        ck_ok(mt_torch_freeze(trainer.torch, "conv2.weight", MT_FREEZE_KEEP));
        if (suite_on_cpu()) ck_assert_uint_eq(cpu_memory().allocated_bytes, bytes);
        ck_assert(contents(trainer) == before);
        ck_ok(mt_torch_freeze(trainer.torch, "conv2.weight", MT_FREEZE_GIVE_BACK));
        if (suite_on_cpu())
            ck_assert_uint_eq(bytes - cpu_memory().allocated_bytes,
                              (states + held) * floats * sizeof(float));
        auto during = contents(trainer);
        ck_assert_uint_eq(before.size() - during.size(), states + (states == 2));
        for (const auto &[name, value] : during) ck_assert(before.at(name) == value);
        ck_ok(train(trainer, batch));
        check_changed(during, contents(trainer), "conv2.weight", false);
        check_frozen(*trainer.net, "conv2.weight ");
        ck_ok(mt_torch_freeze(trainer.torch, "conv2.weight", MT_FREEZE_KEEP)); /* of nothing */
        ck_assert_uint_eq(contents(trainer).size(), during.size());
        ck_ok(mt_torch_freeze(trainer.torch, "", MT_FREEZE_OFF));
        if (suite_on_cpu()) ck_assert_uint_eq(cpu_memory().allocated_bytes, bytes);
        auto after = contents(trainer);
        ck_assert_uint_eq(after.size(), before.size());
        for (const auto &[name, value] : after)
            if (name.rfind("optimizer.", 0) == 0 && name.find("conv2.weight") != std::string::npos)
                ck_assert_msg(value == std::string(value.size(), '\0'), "%s", name.c_str());
        ck_ok(train(trainer, batch));
        check_changed(after, contents(trainer), "", true);
    }
}

/* Each allocation of freezing and thawing fails in turn, and nothing has changed. */
TEST("memory", each_change_of_memory_fails) {
    Trainer trainer(options_of(MT_ADAMW));
    mt_backend seam = seam_of(trainer);
    Batch batch(8);
    auto gradient_bytes = [&] {
        mt_backend_info info = info_of(seam);
        return info.gradient_bytes + info.optimizer_bytes;
    };
    for (int on : {MT_FREEZE_GIVE_BACK, MT_FREEZE_OFF}) {
        ck_ok(train(trainer, batch));
        std::string before = trainer.hash(), names = frozen(*trainer.net);
        size_t bytes = cpu_memory().allocated_bytes, told = gradient_bytes();
        auto change = [&] { return mt_torch_freeze(trainer.torch, "conv", on); };
        uint64_t n = 0;
        for (;;) {
            Tried tried = with_fault(++n, change);
            ck_status(tried.status, tried.failed ? MT_EDEVMEM : MT_OK);
            if (!tried.failed) break;
            ck_assert(trainer.hash() == before);
            check_frozen(*trainer.net, names.c_str());
            ck_assert_uint_eq(cpu_memory().allocated_bytes, bytes);
            ck_assert_uint_eq(gradient_bytes(), told);
        }
        ck_assert_uint_eq(n, 4); /* gradients and two moments */
        ck_assert(trainer.hash() != before);
        ck_ok(train(trainer, batch));
    }
}

/* A run that gave memory back, saved and went on in another way: each time the same bits. */
TEST_LOOP("memory", given_back_in_files, 3) {
    File file;
    mt_torch_options options = options_of(optimizers[_i], 0.1);
    std::vector<mt_parameter_group> groups = {group_of("conv1.", 1.0, -1.0, 1)};
    Batch batch(8);
    auto run = [&](const Trainer &trainer, int first, int last) {
        for (int i = first; i < last; i++) {
            if (i == 2) ck_ok(mt_torch_freeze(trainer.torch, "conv1.", MT_FREEZE_GIVE_BACK));
            if (i == 6) ck_ok(mt_torch_freeze(trainer.torch, "conv1.", MT_FREEZE_OFF));
            ck_ok(step(trainer, batch, {3, 5}));
        }
    };
    for (int saved : {1, 4, 8}) {
        std::string expected, at_saving;
        {
            Trainer trainer(options);
            run(trainer, 0, saved);
            ck_ok(mt_torch_save(trainer.torch, file.path(), nullptr));
            at_saving = trainer.hash();
            run(trainer, saved, 10);
            expected = trainer.hash();
        }
        for (int way = 0; way < 3; way++) {
            Trainer trainer(way == 1 ? with_groups(options, groups) : options);
            if (way == 2) ck_ok(mt_torch_freeze(trainer.torch, "conv1.", MT_FREEZE_KEEP));
            ck_ok(mt_torch_load(trainer.torch, file.path(), nullptr, 0));
            bool trains = frozen(*trainer.net).empty();
            if (saved != 4 || !trains) ck_assert(trainer.hash() == at_saving);
            ck_ok(mt_torch_freeze(trainer.torch, "conv1.",
                                  saved == 4 ? MT_FREEZE_GIVE_BACK : MT_FREEZE_OFF));
            ck_assert(trainer.hash() == at_saving);
            run(trainer, saved, 10);
            ck_assert_msg(trainer.hash() == expected, "saved at %d, way %d", saved, way);
        }
    }
}

/* A file that does not fit leaves the memory as it is. */
TEST("memory", refused_files_change_no_memory) {
    File file;
    std::vector<mt_parameter_group> groups = {group_of("conv1.", 1.0, -1.0, 1)};
    Batch batch(8);
    {
        Trainer trainer(options_of(MT_ADAMW));
        ck_ok(train(trainer, batch));
        ck_ok(mt_torch_save(trainer.torch, file.path(), nullptr));
    }
    Trainer trainer(with_groups(options_of(MT_ADAMW), groups));
    auto load = [&] { return mt_torch_load(trainer.torch, file.path(), nullptr, 0); };
    std::string before = trainer.hash();
    size_t bytes = cpu_memory().allocated_bytes;
    for (uint64_t n = 1; n < 4; n++) {
        ck_status(with_fault(n, load).status, MT_EDEVMEM);
        ck_assert(trainer.hash() == before);
        if (suite_on_cpu()) ck_assert_uint_eq(cpu_memory().allocated_bytes, bytes);
    }
    FILE *stream = fopen(file.path(), "r+b");
    ck_assert_ptr_nonnull(stream);
    ck_assert_int_eq(fseek(stream, -3, SEEK_END), 0);
    ck_assert_int_ne(fputc(0x55, stream), EOF);
    ck_assert_int_eq(fclose(stream), 0);
    ck_refused(load(), MT_EINVAL, "damaged");
    ck_assert(trainer.hash() == before);
    if (suite_on_cpu()) ck_assert_uint_eq(cpu_memory().allocated_bytes, bytes);
    ck_ok(train(trainer, batch));
}

/* Another device has no more memory for them than this one; thawed there they begin anew. */
TEST("memory", given_back_moves) {
    mt_torch_options options = options_of(MT_ADAMW);
    options.device = "sim:cuda";
    Trainer trainer(options);
    mt_backend seam = seam_of(trainer);
    Batch batch(8);
    ck_ok(train(trainer, batch));
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", MT_FREEZE_GIVE_BACK));
    auto before = contents(trainer);
    for (int on : {1, 0, 1}) {
        ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, on));
        ck_assert(contents(trainer) == before);
        check_frozen(*trainer.net, "conv1.weight conv1.bias ");
    }
    ck_ok(train(trainer, batch));
    ck_ok(mt_torch_freeze(trainer.torch, "conv1.", MT_FREEZE_OFF));
    before = contents(trainer);
    ck_ok(train(trainer, batch));
    check_changed(before, contents(trainer), "", true);
    ck_ok(seam.set_rung(seam.self, MT_RUNG_CPU, 0));
    ck_ok(train(trainer, batch));
}

/* The model that is given back can be trained. */
TEST("freeze", given_back) {
    std::vector<mt_parameter_group> groups = {group_of("conv1.", 1.0, 0.0, 1)};
    mt_torch_options options = with_groups(options_of(MT_ADAMW), groups);
    Owned owned;
    std::shared_ptr<Net> net;
    ck_ok(mt_torch_init(nullptr));
    ck_ok(net_model_new({}, &owned.model, &net));
    net->conv2->bias.set_requires_grad(false); /* the caller's own */
    ck_ok(mt_torch_new(owned.model, &options, &owned.torch));
    check_frozen(*net, "conv1.weight conv1.bias conv2.bias ");
    owned.close();
    check_frozen(*net, "conv2.bias ");
}

/* With a scale that is soon too large, and grows again. */
static mt_torch_options in_half_precision(mt_optimizer optimizer) {
    mt_torch_options options = options_of(optimizer, 0.1);
    options.amp = half_precision();
    options.scale_start = 4194304.0;
    options.scale_growth_interval = 3;
    return options;
}

/* Half precision, groups and phases, saved in the middle of one: the run goes on to the bit. */
TEST_LOOP("groups", resumes, 3) {
    File file;
    std::vector<mt_parameter_group> groups = three_groups();
    mt_torch_options options = with_groups(in_half_precision(optimizers[_i]), groups);
    mt_torch_save_options saving = MT_TORCH_SAVE_OPTIONS_INIT;
    saving.keep = 0;
    Batch batch(8);
    auto run = [&](const Trainer &trainer, int first, int last) {
        for (int i = first; i < last; i++) {
            if (i % 4 == 0) ck_ok(mt_torch_freeze(trainer.torch, "conv1", i % 8 == 0));
            ck_ok(step(trainer, batch, {3, 5}));
        }
    };
    std::string expected;
    for (int again = 0; again < 2; again++) {
        Trainer trainer(options);
        run(trainer, 0, 10);
        if (!again) ck_ok(mt_torch_save(trainer.torch, file.path(), &saving));
        run(trainer, 10, 20);
        if (again) ck_assert(trainer.hash() == expected);
        expected = trainer.hash();
    }
    Trainer trainer(options);
    ck_ok(mt_torch_freeze(trainer.torch, "conv1", 1)); /* as in step 8 */
    ck_ok(mt_torch_load(trainer.torch, file.path(), nullptr, 0));
    run(trainer, 10, 20);
    ck_assert(trainer.hash() == expected);
}

/* A run of half precision, groups and phases that met OOMs, and one that is given its chunks: same bits. */
TEST("groups", replays) {
    std::vector<mt_parameter_group> groups = three_groups();
    mt_torch_options options = with_groups(in_half_precision(MT_ADAMW), groups);
    std::vector<std::vector<size_t>> chunks;
    std::string hashes[2];
    uint64_t retries = 0, skipped = 0;
    Batch batch(24);
    for (int again = 0; again < 2; again++) {
        Trainer trainer(options);
        Driver driver(seam_of(trainer));
        for (size_t i = 0; i < 10; i++) {
            if (i % 3 == 1) ck_ok(mt_torch_freeze(trainer.torch, "conv1", i % 2 == 0));
            if (!again) ck_ok(mt_inject_oom(i % 2 ? 20 * i : 0, 0));
            mt_step_report report = driver.step(batch.get(), again ? &chunks[i] : nullptr);
            ck_ok(mt_inject_oom(0, 0));
            if (again) continue;
            retries += report.retries;
            skipped += report.skipped != 0;
        }
        hashes[again] = trainer.hash();
        if (!again) chunks = driver.chunks;
    }
    ck_assert_uint_gt(retries, 0);
    ck_assert_int_eq(skipped > 0, !suite_on_mps());
    ck_assert(hashes[0] == hashes[1]);
}

SUITE("shim_groups")
