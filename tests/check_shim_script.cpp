/*
 * check_shim_script.cpp - TorchScript modules as models: the same bits as the network in C++, requests for memory
 * that fail, files there and back, files of other kinds, modules that cannot be trained.
 */
#include <csignal>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <memtrain/script.h>
#include <memtrain/trainer.h>

#include "check_shim.hpp"

using namespace check_shim;
namespace jit = torch::jit;

namespace {

/* ---- a network in TorchScript, and the same in C++ ------------------------------------------------- */

constexpr char forward_source[] = R"(
def forward(self, x):
    x = torch.conv2d(x, self.conv.weight, self.conv.bias, [2, 2], [1, 1])
    x = torch.batch_norm(x, self.norm.weight, self.norm.bias, self.norm.running_mean,
                         self.norm.running_var, self.training, 0.1, 1e-05, True)
    x = torch.dropout(torch.flatten(torch.relu(x), 1), 0.3, self.training)
    return torch.linear(x, self.linear.weight, self.linear.bias)
)";

struct Values {
    at::Tensor conv = at::rand({8, 3, 3, 3}).sub(0.5), linear;
    explicit Values(int64_t classes) : linear(at::rand({classes, 128}).sub(0.5)) {}
};

jit::Module layer(const char *name, const at::Tensor &weight, int64_t outputs) {
    jit::Module module(name);
    module.register_parameter("weight", weight.clone().requires_grad_(), false);
    module.register_parameter("bias", at::zeros({outputs}).requires_grad_(), false);
    return module;
}

/* As torch.jit.script makes it. */
jit::Module root() {
    jit::Module module("Net");
    module.register_attribute("training", c10::BoolType::get(), true);
    return module;
}

jit::Module net_of(const Values &values, const char *source = forward_source) {
    jit::Module net = root(), norm = layer("Norm", at::ones({8}), 8);
    norm.register_buffer("running_mean", at::zeros({8}));
    norm.register_buffer("running_var", at::ones({8}));
    net.register_module("conv", layer("Conv", values.conv, 8));
    net.register_module("norm", norm);
    net.register_module("linear", layer("Linear", values.linear, values.linear.size(0)));
    net.define(source);
    return net;
}

struct Twin : nn::Module {
    nn::Conv2d conv;
    nn::BatchNorm2d norm;
    nn::Linear linear;
    explicit Twin(const Values &values)
        : conv(
              register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).stride(2).padding(1)))),
          norm(register_module("norm", nn::BatchNorm2d(8))),
          linear(register_module("linear", nn::Linear(128, values.linear.size(0)))) {
        conv->weight.set_data(values.conv.clone());
        conv->bias.set_data(at::zeros({8}));
        linear->weight.set_data(values.linear.clone());
        linear->bias.set_data(at::zeros({values.linear.size(0)}));
    }
    at::Tensor forward(const at::Tensor &x) {
        at::Tensor y = at::relu(norm(conv(x))).flatten(1);
        return linear(at::dropout(y, 0.3, is_training()));
    }
};

mt_status twin_new(const Values &values, mt_model **out) {
    return memtrain::make_model(out, [&] {
        return memtrain::model(std::make_shared<Twin>(values), {"accuracy"},
                               [](Twin &net, const memtrain::Tensors &batch) {
                                   at::Tensor logits = net.forward(batch[0]);
                                   return memtrain::Output{at::cross_entropy_loss(logits, batch[1]),
                                                           memtrain::correct(logits, batch[1])};
                               });
    });
}

/* ---- files ------------------------------------------------------------------------------------------ */

/* In a folder of the test's own, which goes with the object. */
class Folder {
public:
    Folder() {
        const char *parent = std::getenv("TMPDIR");
        path_ = std::string(parent ? parent : "/tmp") + "/memtrain.XXXXXX";
        ck_assert_ptr_nonnull(mkdtemp(path_.data()));
    }
    ~Folder() {
        for (const char *name : {"a.pt", "b.pt", "b.pt.tmp"}) std::remove(file(name).c_str());
        rmdir(path_.c_str());
    }
    Folder(const Folder &) = delete;
    Folder &operator=(const Folder &) = delete;
    std::string file(const char *name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

std::string bytes_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void write_bytes(const std::string &path, const std::string &bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_torch_seed(7));
}

std::string saved_net(const Folder &folder, int64_t classes = 5) {
    std::string path = folder.file("a.pt");
    net_of(Values(classes)).save(path);
    return path;
}

/* ---- training --------------------------------------------------------------------------------------- */

/* A model with its optimiser and a trainer whose batches are cut into chunks of 5 and 3. */
struct Run {
    mt_model *model = nullptr;
    mt_torch *torch = nullptr;
    mt_trainer *trainer = nullptr;
    Batch batch{8};

    explicit Run(mt_model *own, const char *device = "cpu", mt_dtype amp = MT_DTYPE_NONE)
        : model(own) {
        mt_torch_options options = MT_TORCH_OPTIONS_INIT;
        mt_backend backend = MT_BACKEND_INIT;
        options.device = device;
        options.amp = amp;
        ck_ok(mt_torch_seed(11));
        ck_ok(mt_torch_new(model, &options, &torch));
        ck_ok(mt_torch_backend(torch, &backend));
        ck_ok(mt_trainer_new(&backend, nullptr, &trainer));
    }
    ~Run() {
        mt_trainer_free(trainer);
        mt_torch_free(torch);
        mt_model_free(model);
    }
    Run(const Run &) = delete;
    Run &operator=(const Run &) = delete;

    mt_status step(double *loss = nullptr) const {
        static const size_t chunks[] = {5, 3};
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_set_chunks(trainer, chunks, 2));
        mt_status status = mt_trainer_step(trainer, batch.get(), &report);
        if (loss) *loss = report.loss;
        return status;
    }
    /* Its n-th request for memory fails, and with persistent all after it. */
    mt_status step_with_fault(uint64_t n, bool persistent, uint64_t *failed) const {
        uint64_t requests;
        ck_ok(mt_inject_oom(n, persistent));
        mt_status status = step();
        mt_injected(&requests, failed);
        ck_ok(mt_inject_oom(0, 0));
        return status;
    }
    std::string hash() const {
        char text[65];
        ck_ok(mt_torch_state_sha256(torch, text));
        return text;
    }
    double evaluate() const {
        mt_eval_report report = MT_EVAL_REPORT_INIT;
        ck_ok(mt_trainer_evaluate(trainer, batch.get(), &report));
        return report.loss;
    }
};

mt_model *loaded(const std::string &path, const mt_script_options *options = nullptr) {
    mt_model *model = nullptr;
    ck_ok(mt_script_load(path.c_str(), options, &model));
    return model;
}

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
START_TEST(same_bits_as_in_cpp) {
    const mt_dtype amp = _i ? MT_BFLOAT16 : MT_DTYPE_NONE;
    Folder folder;
    prepare();
    Values values(5);
    net_of(values).save(folder.file("a.pt"));
    mt_model *twin = nullptr;
    ck_ok(twin_new(values, &twin));
    std::vector<double> losses, expected;
    Run script(loaded(folder.file("a.pt")), "cpu", amp);
    double loss;
    for (int i = 0; i < 4; i++) {
        ck_ok(script.step(&loss));
        losses.push_back(loss);
    }
    Run in_cpp(twin, "cpu", amp);
    for (int i = 0; i < 4; i++) {
        ck_ok(in_cpp.step(&loss));
        expected.push_back(loss);
    }
    ck_assert(losses == expected);
    ck_assert(losses[0] != losses[3]);
    expect_same_state(script, in_cpp);
    ck_assert(script.evaluate() == in_cpp.evaluate());
}
END_TEST

/* What the executor would have specialised after two calls stays as it is. */
START_TEST(chunks_ask_for_the_same) {
    Folder folder;
    prepare();
    Run run(loaded(saved_net(folder)));
    uint64_t first = 0, requests, failed;
    for (int i = 0; i < 5; i++) {
        ck_ok(mt_inject_oom(UINT64_MAX, 0));
        ck_ok(run.step());
        mt_injected(&requests, &failed);
        if (i == 1) first = requests; /* the first one makes gradients */
        if (i > 1) ck_assert_uint_eq(requests, first);
    }
    ck_assert_uint_gt(first, 20);
    mt_arena_stats arena = MT_ARENA_STATS_INIT;
    ck_ok(mt_torch_arena(run.torch, &arena));
    ck_assert_uint_eq(arena.missed, 0);
}
END_TEST

const char *const devices[] = {"cpu", "sim:cuda", "sim:mps"};

size_t allocated() {
    return cpu_memory().allocated_bytes;
}

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
        size_t held = allocated();
        mt_status status = run.step_with_fault(n, persistent, &failed);
        ck_status(status, failed && persistent ? MT_EDEVMEM : MT_OK);
        ck_assert(run.hash() == (status == MT_OK ? after : before));
        if (status != MT_OK) ck_assert_uint_eq(allocated(), held);
    }
    ck_assert_uint_gt(n, 40);
}

START_TEST(a_step_recovers_to_the_bit) {
    every_request_fails(devices[_i], false, _i ? 11 : 1);
}
END_TEST

START_TEST(a_step_that_cannot_be_done_is_taken_back) {
    every_request_fails(devices[_i], true, _i ? 17 : 5);
}
END_TEST

/* ---- there and back --------------------------------------------------------------------------------- */

START_TEST(saved_and_loaded) {
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
    ck_assert_int_ne(access((second + ".tmp").c_str(), F_OK), 0);
}
END_TEST

/* One tensor under two names, and one module: they are one after it, too. */
START_TEST(shared_tensors_stay_shared) {
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
END_TEST

/* ---- files that are not TorchScript ------------------------------------------------------------------ */

std::string archive(const Folder &folder, const std::vector<std::string> &records) {
    std::string path = folder.file("a.pt");
    caffe2::serialize::PyTorchStreamWriter writer(path);
    for (const std::string &record : records) writer.writeRecord(record, "pt2", 3);
    writer.writeEndOfFile();
    return bytes_of(path);
}

struct Wrong {
    const char *words;
    std::string (*make)(const Folder &folder);
};

const Wrong wrong_files[] = {
    {"is empty", [](const Folder &) { return std::string(); }},
    {"is no TorchScript file",
     [](const Folder &) { return std::string("def forward(x): pass\n"); }},
    {"is no TorchScript file", [](const Folder &) { return std::string("P"); }},
    {"is a pickle of Python's torch.save",
     [](const Folder &) { return std::string("\x80\x02\x8a\nl\xfc\x9c", 7); }},
    {"is a pickle of Python's torch.save",
     [](const Folder &folder) {
         return archive(folder, {"data.pkl", "data/0"});
     }},
    {"is a file of torch.export",
     [](const Folder &folder) {
         return archive(folder, {"models/model.json", "archive_format"});
     }},
    {"is a file of torch.export",
     [](const Folder &) {
         return std::string("PK\003\004") + std::string(26, '\0') +
                "serialized_exported_program.json";
     }},
    {"is no TorchScript file", [](const Folder &folder) { return archive(folder, {"a/b"}); }},
    {"is a safetensors file",
     [](const Folder &) { return std::string("\x02\0\0\0\0\0\0\0{}", 10); }},
    {"cut off or damaged",
     [](const Folder &folder) {
         std::string whole = bytes_of(saved_net(folder));
         return whole.substr(0, whole.size() / 2);
     }},
    {"cannot be loaded: ",
     [](const Folder &folder) {
         return archive(folder, {"constants.pkl", "data.pkl"});
     }},
};

void expect_refused(const std::string &path, const char *words,
                    const mt_script_options *options = nullptr) {
    mt_model *model = nullptr;
    ck_status(mt_script_load(path.c_str(), options, &model), MT_EINVAL);
    ck_assert_ptr_null(model);
    ck_contains(mt_last_error(), words);
    ck_contains(mt_last_error(), path.c_str());
    ck_assert_ptr_null(std::strchr(mt_last_error(), '\n'));
}

START_TEST(files_of_other_kinds) {
    Folder folder;
    prepare();
    write_bytes(folder.file("b.pt"), wrong_files[_i].make(folder));
    expect_refused(folder.file("b.pt"), wrong_files[_i].words);
}
END_TEST

START_TEST(files_that_cannot_be_read) {
    Folder folder;
    mt_model *model = nullptr;
    ck_status(mt_script_load(folder.file("none.pt").c_str(), nullptr, &model), MT_EIO);
    ck_contains(mt_last_error(), "No such file");
    ck_status(mt_script_load(folder.file("").c_str(), nullptr, &model), MT_EIO);
    ck_status(mt_script_load(nullptr, nullptr, &model), MT_EINVAL);
    ck_status(mt_script_load("a", nullptr, nullptr), MT_EINVAL);
}
END_TEST

/* Cut off anywhere it is refused, and nothing stays behind. */
START_TEST(cut_off) {
    Folder folder;
    prepare();
    std::string whole = bytes_of(saved_net(folder));
    size_t held = allocated(), stride = whole.size() / 60;
    for (size_t size = 1; size < whole.size(); size += stride) {
        mt_model *model = nullptr;
        write_bytes(folder.file("b.pt"), whole.substr(0, size));
        ck_status(mt_script_load(folder.file("b.pt").c_str(), nullptr, &model), MT_EINVAL);
        ck_assert_uint_eq(allocated(), held);
    }
}
END_TEST

START_TEST(every_request_of_a_load_fails) {
    const int64_t shape[] = {3, 8, 8};
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    Folder folder;
    prepare();
    std::string path = saved_net(folder);
    options.input_shape = shape;
    options.input_dims = 3;
    mt_model_free(loaded(path, &options)); /* what libtorch makes once and keeps */
    size_t held = allocated();
    uint64_t n = 0, failed = 1, requests;
    while (failed) {
        mt_model *model = nullptr;
        ck_ok(mt_inject_oom(++n, 0));
        mt_status status = mt_script_load(path.c_str(), &options, &model);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_status(status, failed ? MT_EDEVMEM : MT_OK);
        mt_model_free(model);
        ck_assert_uint_eq(allocated(), held);
    }
    ck_assert_uint_gt(n, 10);
}
END_TEST

/* ---- modules that cannot be trained ------------------------------------------------------------------- */

struct Refused {
    const char *words, *source;
    size_t classes;
};

#define LINEAR "torch.linear(torch.flatten(x, 1), self.part.weight, self.part.bias)"

const Refused refused[] = {
    {"has no method forward", "def other(self, x):\n    return x\n", 0},
    {"has 2 inputs", "def forward(self, x, y: int):\n    return " LINEAR " * y\n", 0},
    {"assigns to self.seen", "def forward(self, x):\n    self.seen = x\n    return " LINEAR "\n",
     0},
    {"assigns to self.seen",
     "def forward(self, x):\n    if self.training:\n        self.seen = x\n    return " LINEAR "\n",
     0},
    {"gives a Tuple", "def forward(self, x):\n    return (" LINEAR ", x)\n", 0},
    {"[2, 5, 1] for 2 samples", "def forward(self, x):\n    return " LINEAR ".unsqueeze(2)\n", 0},
    {"[1, 10] for 2 samples", "def forward(self, x):\n    return " LINEAR ".view([1, 10])\n", 0},
    {"gives logits of 5 classes, and the data has 8",
     "def forward(self, x):\n    return " LINEAR "\n", 8},
    {"fails on an input of [2, 3, 8, 8]: ",
     "def forward(self, x):\n    return torch.linear(x, self.part.weight)\n", 0},
};

START_TEST(modules_that_cannot_be_trained) {
    const int64_t shape[] = {3, 8, 8};
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    Folder folder;
    prepare();
    jit::Module net = root();
    net.register_module("part", layer("Part", at::rand({5, 192}), 5));
    net.register_buffer("seen", at::zeros({1}));
    net.define(refused[_i].source);
    net.save(folder.file("a.pt"));
    options.classes = refused[_i].classes;
    options.input_shape = shape;
    options.input_dims = 3;
    expect_refused(folder.file("a.pt"), refused[_i].words, &options);
}
END_TEST

START_TEST(nothing_to_train) {
    Folder folder;
    prepare();
    jit::Module net = root();
    net.register_buffer("weight", at::rand({5, 192}));
    net.define(
        "def forward(self, x):\n    return torch.linear(torch.flatten(x, 1), self.weight)\n");
    net.save(folder.file("a.pt"));
    expect_refused(folder.file("a.pt"), "has no parameter that needs a gradient");
}
END_TEST

START_TEST(options_that_are_wrong) {
    const int64_t shape[] = {3, 0, 8};
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    mt_model *model = nullptr;
    options.classes = 1;
    ck_status(mt_script_load("a", &options, &model), MT_EINVAL);
    ck_contains(mt_last_error(), "classes is 1");
    options.classes = 0;
    options.input_shape = shape;
    options.input_dims = 3;
    ck_status(mt_script_load("a", &options, &model), MT_EINVAL);
    ck_contains(mt_last_error(), "input_shape[1] is 0");
    options.own_loss = 1;
    ck_status(mt_script_load("a", &options, &model), MT_EINVAL);
    ck_contains(mt_last_error(), "own_loss");
    options.size = 0;
    ck_status(mt_script_load("a", &options, &model), MT_EINVAL);
}
END_TEST

/* ---- what the options do, and what the graph tells ---------------------------------------------------- */

mt_backend_info info_of(const Run &run) {
    mt_backend backend = MT_BACKEND_INIT;
    mt_backend_info info = {};
    info.size = sizeof info;
    ck_ok(mt_torch_backend(run.torch, &backend));
    ck_ok(backend.describe(backend.self, &info));
    return info;
}

START_TEST(metrics_and_norms) {
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
END_TEST

START_TEST(a_loss_of_its_own) {
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    Folder folder;
    prepare();
    jit::Module net = root();
    at::Tensor weight = at::rand({5, 192});
    net.register_module("part", layer("Part", weight, 5));
    net.define("def forward(self, x, y):\n    return torch.cross_entropy_loss(" LINEAR ", y)\n");
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
END_TEST

void note(void *user, mt_log_level, const char *text) {
    *static_cast<std::string *>(user) += text;
}

/* As torch.jit.trace writes it. */
START_TEST(traced_switches_are_told) {
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
END_TEST

/* ---- saving that fails -------------------------------------------------------------------------------- */

START_TEST(what_cannot_be_saved) {
    Folder folder;
    prepare();
    Run run(loaded(saved_net(folder)));
    std::string before = bytes_of(folder.file("a.pt"));
    ck_status(mt_script_save(run.model, folder.file("none/a.pt").c_str()), MT_EIO);
    ck_contains(mt_last_error(), "No such file");
    ck_status(mt_script_save(run.model, nullptr), MT_EINVAL);
    mt_model *twin = nullptr;
    ck_ok(twin_new(Values(5), &twin));
    ck_status(mt_script_save(twin, folder.file("b.pt").c_str()), MT_EINVAL);
    ck_contains(mt_last_error(), "mt_script_load");
    mt_model_free(twin);
    ck_status(mt_script_save(twin, folder.file("b.pt").c_str()), MT_EINVAL);
}
END_TEST

/* A disk that is full after so many bytes: the file that was there is still whole. */
START_TEST(a_full_disk) {
    Folder folder;
    prepare();
    mt_model *model = loaded(saved_net(folder));
    std::string path = folder.file("b.pt");
    rlim_t whole = bytes_of(folder.file("a.pt")).size();
    write_bytes(path, "the one before");
    std::signal(SIGXFSZ, SIG_IGN);
    for (rlim_t size : {rlim_t{0}, rlim_t{100}, whole / 2, whole * 4 / 5}) {
        struct rlimit limit = {size, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        mt_status status = mt_script_save(model, path.c_str());
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0);
        ck_status(status, MT_EIO);
        ck_contains(mt_last_error(), "File too large");
        ck_assert_str_eq(bytes_of(path).c_str(), "the one before");
        ck_assert_int_ne(access((path + ".tmp").c_str(), F_OK), 0);
    }
    ck_ok(mt_script_save(model, path.c_str()));
    mt_model_free(model);
    mt_model_free(loaded(path));
}
END_TEST

} // namespace

int main() {
    Suite *suite = suite_create("shim_script");
    TCase *training = suite_case(suite, "training");
    tcase_add_loop_test(training, same_bits_as_in_cpp, 0, 2);
    tcase_add_test(training, chunks_ask_for_the_same);
    tcase_add_loop_test(training, a_step_recovers_to_the_bit, 0, LENGTH(devices));
    tcase_add_loop_test(training, a_step_that_cannot_be_done_is_taken_back, 0, LENGTH(devices));
    TCase *files = suite_case(suite, "files");
    tcase_add_loop_test(files, saved_and_loaded, 0, LENGTH(devices));
    tcase_add_test(files, shared_tensors_stay_shared);
    tcase_add_loop_test(files, files_of_other_kinds, 0, LENGTH(wrong_files));
    tcase_add_test(files, files_that_cannot_be_read);
    tcase_add_test(files, cut_off);
    tcase_add_test(files, every_request_of_a_load_fails);
    tcase_add_test(files, what_cannot_be_saved);
    tcase_add_test(files, a_full_disk);
    TCase *modules = suite_case(suite, "modules");
    tcase_add_loop_test(modules, modules_that_cannot_be_trained, 0, LENGTH(refused));
    tcase_add_test(modules, nothing_to_train);
    tcase_add_test(modules, options_that_are_wrong);
    tcase_add_test(modules, metrics_and_norms);
    tcase_add_test(modules, a_loss_of_its_own);
    tcase_add_loop_test(modules, traced_switches_are_told, 0, 2);
    return suite_run(suite);
}
