/*
 * check_shim_script.cpp - TorchScript modules as models: the same bits as the network in C++, requests for memory
 * that fail, files there and back, what options do.
 */
#include <utility>

#include <ATen/ops/linear.h>
#include <torch/csrc/jit/serialization/import.h>

#include "script_subject.hpp"

using namespace script_subject;

namespace {

mt_status keep(void *user, const char *name, mt_tensor *tensor) {
    auto &list = *static_cast<std::vector<std::pair<std::string, at::Tensor>> *>(user);
    if (!std::strstr(name, "num_batches"))
        list.emplace_back(name, memtrain::tensor(tensor).clone());
    return MT_OK;
}

/* Parameters, statistics and the optimiser's state, in both runs of the same names. */
void expect_same_state(const Run &one, const Run &other) {
    std::vector<std::pair<std::string, at::Tensor>> a, b;
    ck_ok(mt_torch_visit_state(one.torch, keep, &a));
    ck_ok(mt_torch_visit_state(other.torch, keep, &b));
    ck_assert_uint_eq(a.size(), b.size());
    ck_assert_uint_gt(a.size(), 8 * 2);
    for (size_t i = 0; i < a.size(); i++) {
        ck_assert_str_eq(a[i].first.c_str(), b[i].first.c_str());
        ck_assert_msg(a[i].second.equal(b[i].second), "%s", a[i].first.c_str());
    }
}

/* Dropout and BatchNorm included; the second time in bfloat16. */
TEST_LOOP("training", same_bits_as_in_cpp, 2) {
    const mt_dtype amp = _i ? MT_BFLOAT16 : MT_DTYPE_NONE;
    Folder folder;
    prepare();
    Values values(5);
    net_of(values).save(folder.file("a.pt"));
    mt_model *twin = nullptr;
    ck_ok(twin_new(values, &twin));
    std::vector<double> losses, expected;
    Run script(loaded(folder.file("a.pt")), suite_device(), amp);
    double loss;
    for (int i = 0; i < 4; i++) {
        ck_ok(script.step(&loss));
        losses.push_back(loss);
    }
    Run in_cpp(twin, suite_device(), amp);
    for (int i = 0; i < 4; i++) {
        ck_ok(in_cpp.step(&loss));
        expected.push_back(loss);
    }
    ck_assert(losses == expected);
    ck_assert(losses[0] != losses[3]);
    expect_same_state(script, in_cpp);
    ck_assert(script.evaluate() == in_cpp.evaluate());
}

/* What the executor would have specialised after two calls stays as it is. On a card the first runs are waited for. */
TEST("training", chunks_ask_for_the_same) {
    const int from = suite_on_card() ? 4 : 1; /* the first one makes gradients */
    Folder folder;
    prepare();
    Run run(loaded(saved_net(folder)));
    uint64_t first = 0, requests, failed;
    for (int i = 0; i < from + 4; i++) {
        ck_ok(mt_inject_oom(UINT64_MAX, 0));
        ck_ok(run.step());
        mt_injected(&requests, &failed);
        if (i == from) first = requests;
        if (i > from) ck_assert_uint_eq(requests, first);
    }
    ck_assert_uint_gt(first, 20);
    mt_arena_stats arena = MT_ARENA_STATS_INIT;
    ck_ok(mt_torch_arena(run.torch, &arena));
    ck_assert_uint_eq(arena.missed, 0);
}

const char *const devices[] = {suite_device(), "sim:cuda", "sim:mps"};

/* Once: the step ends as one without a fault, to the bit. From then on: nothing has happened. */
void every_request_fails(const char *device, bool persistent, uint64_t stride) {
    Folder folder;
    prepare();
    std::string path = saved_net(folder), before, after;
    {
        Run run(loaded(path), device);
        ck_ok(run.step());
        before = run.hash();
        ck_ok(run.step());
        after = run.hash();
        ck_assert(before != after);
    }
    uint64_t n = 1, failed = 1;
    for (; failed; n += stride) {
        Run run(loaded(path), device);
        ck_ok(run.step());
        auto in_use = [device] { return memory_on(device).allocated_bytes; };
        size_t held = in_use();
        mt_status status = run.step_with_fault(n, persistent, &failed);
        ck_status(status, failed && persistent ? MT_EDEVMEM : MT_OK);
        ck_assert(run.hash() == (status == MT_OK ? after : before));
        if (status != MT_OK) ck_assert_uint_eq(settled(held, in_use), held);
    }
    ck_assert_uint_gt(n, 40);
}

TEST_LOOP("training", a_step_recovers_to_the_bit, LENGTH(devices)) {
    every_request_fails(devices[_i], false, _i ? 23 : 3);
}

TEST_LOOP("training", a_step_that_cannot_be_done_is_taken_back, LENGTH(devices)) {
    every_request_fails(devices[_i], true, _i ? 29 : 13);
}

/* ---- there and back --------------------------------------------------------------------------------- */

TEST_LOOP("files", saved_and_loaded, LENGTH(devices)) {
    Folder folder;
    prepare();
    double loss;
    std::string second = folder.file("b.pt");
    {
        Run run(loaded(saved_net(folder)), devices[_i]);
        for (int i = 0; i < 3; i++) ck_ok(run.step());
        std::string hash = run.hash();
        loss = run.evaluate();
        ck_ok(mt_script_save(run.model, second.c_str()));
        ck_assert(run.hash() == hash);
        ck_ok(run.step());
    }
    Run again(loaded(second), devices[_i]);
    ck_assert(again.evaluate() == loss);
    ck_ok(again.step());
    /* Tensors alone, not the blocks of gradients and optimiser state that they lie in. */
    ck_assert_uint_lt(bytes_of(second).size(), bytes_of(folder.file("a.pt")).size() + 4096);
    jit::Module module = jit::load(second);
    ck_assert(!module.is_training());
    for (const auto &named : module.named_parameters())
        ck_assert(named.value.requires_grad() && named.value.storage_offset() == 0);
    ck_assert_uint_eq(module.buffers().size(), 2);
    ck_assert_int_ne(access((second + ".memtrain-tmp").c_str(), F_OK), 0);
}

/* One tensor under two names, and one module: they are one after it, too. */
TEST("files", shared_tensors_stay_shared) {
    Folder folder;
    prepare();
    jit::Module net = root(), part = layer("Part", at::rand({5, 192}), 5);
    net.register_module("one", part);
    net.register_module("two", part);
    net.register_parameter("tied", part.attr("weight").toTensor(), false);
    net.define("def forward(self, x):\n"
               "    x = torch.flatten(x, 1)\n"
               "    return torch.linear(x, self.one.weight, self.two.bias) + "
               "torch.linear(x, self.tied)\n");
    net.save(folder.file("a.pt"));
    Run run(loaded(folder.file("a.pt")));
    ck_ok(run.step());
    ck_ok(mt_script_save(run.model, folder.file("b.pt").c_str()));
    jit::Module saved = jit::load(folder.file("b.pt"));
    at::Tensor weight = saved.attr("tied").toTensor();
    for (const char *name : {"one", "two"})
        ck_assert(saved.attr(name).toModule().attr("weight").toTensor().is_alias_of(weight));
    Run again(loaded(folder.file("b.pt")));
    ck_assert(again.evaluate() == run.evaluate());
}

/* ---- what the options do, and what the graph tells ---------------------------------------------------- */

mt_backend_info info_of(const Run &run) {
    mt_backend backend = MT_BACKEND_INIT;
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(mt_torch_backend(run.torch, &backend));
    ck_ok(backend.describe(backend.self, &info));
    return info;
}

TEST("modules", metrics_and_norms) {
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    const int64_t shape[] = {3, 8, 8};
    Folder folder;
    prepare();
    options.input_shape = shape;
    options.input_dims = 3;
    Run few(loaded(saved_net(folder), &options));
    ck_assert_uint_eq(info_of(few).metric_count, 1);
    ck_assert_int_eq(info_of(few).normalises_over_batch, 1);
    Run many(loaded(saved_net(folder, 7), &options));
    mt_eval_report report = MT_EVAL_REPORT_INIT;
    ck_assert_uint_eq(info_of(many).metric_count, 2);
    ck_assert_str_eq(info_of(many).metric_names[1], "top5");
    ck_ok(mt_trainer_evaluate(many.trainer, many.batch.get(), &report));
    ck_assert_double_ge(report.metrics[1], report.metrics[0]);
    options.classes = 5;
    expect_refused(folder.file("a.pt"), "gives logits of 7 classes, and the data has 5", &options);
}

TEST("modules", a_loss_of_its_own) {
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    Folder folder;
    prepare();
    jit::Module net = root();
    at::Tensor weight = at::rand({5, 192});
    net.register_module("part", layer("Part", weight, 5));
    net.define("def forward(self, x, y):\n    return torch.cross_entropy_loss("
               "torch.linear(torch.flatten(x, 1), self.part.weight, self.part.bias)"
               ", y)\n");
    net.save(folder.file("a.pt"));
    options.own_loss = 1;
    Run run(loaded(folder.file("a.pt"), &options));
    ck_assert_uint_eq(info_of(run).metric_count, 0);
    ck_assert_int_eq(info_of(run).normalises_over_batch, 0);
    double loss;
    ck_ok(run.step(&loss));
    at::Tensor images = memtrain::tensor(run.batch.images()).flatten(1);
    double expected =
        at::cross_entropy_loss(at::linear(images, weight), memtrain::tensor(run.batch.labels()))
            .item<double>();
    ck_assert_double_eq_tol(loss, expected, 1e-5);
}

void note(void *user, mt_log_level, const char *text) {
    *static_cast<std::string *>(user) += text;
}

/* As torch.jit.trace writes it. */
TEST_LOOP("modules", traced_switches_are_told, 2) {
    std::string source = forward_source, log;
    Folder folder;
    prepare();
    for (size_t at; (at = source.find("self.training")) != std::string::npos;)
        source.replace(at, std::strlen("self.training"), _i ? "True" : "False");
    net_of(Values(5), source.c_str()).save(folder.file("a.pt"));
    mt_set_log(note, &log);
    Run run(loaded(folder.file("a.pt")));
    mt_set_log(nullptr, nullptr);
    ck_contains(log.c_str(), _i ? "traced in training mode" : "traced in evaluation mode");
    ck_assert_int_eq(info_of(run).normalises_over_batch, _i);
    ck_ok(run.step());
}

} // namespace

SUITE("shim_script")
