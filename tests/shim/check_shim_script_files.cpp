/*
 * check_shim_script_files.cpp - what is no TorchScript that can be trained: files of other kinds, damaged ones,
 * modules, options; and files that cannot be written.
 */
#include <csignal>

#include <sys/resource.h>

#include <caffe2/serialize/inline_container.h>

#include "script_subject.hpp"

#include "edge.h"

using namespace script_subject;

namespace {

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

TEST("files", files_of_other_kinds) {
    Folder folder;
    prepare();
    for (const Wrong &wrong : wrong_files) {
        write_bytes(folder.file("b.pt"), wrong.make(folder));
        expect_refused(folder.file("b.pt"), wrong.words);
    }
}

TEST("files", files_that_cannot_be_read) {
    Folder folder;
    mt_model *model = nullptr;
    ck_refused(mt_script_load(folder.file("none.pt").c_str(), nullptr, &model), MT_EIO,
               "No such file");
    ck_status(mt_script_load(folder.file("").c_str(), nullptr, &model), MT_EIO);
    ck_status(mt_script_load(nullptr, nullptr, &model), MT_EINVAL);
    ck_status(mt_script_load("a", nullptr, nullptr), MT_EINVAL);
}

/* Cut off anywhere it is refused, and nothing stays behind. */
TEST("files", cut_off) {
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

TEST("files", every_request_of_a_load_fails) {
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

TEST("modules", modules_that_cannot_be_trained) {
    const int64_t shape[] = {3, 8, 8};
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    Folder folder;
    prepare();
    options.input_shape = shape;
    options.input_dims = 3;
    for (const Refused &one : refused) {
        jit::Module net = root();
        net.register_module("part", layer("Part", at::rand({5, 192}), 5));
        net.register_buffer("seen", at::zeros({1}));
        net.define(one.source);
        net.save(folder.file("a.pt"));
        options.classes = one.classes;
        expect_refused(folder.file("a.pt"), one.words, &options);
    }
}

TEST("modules", nothing_to_train) {
    Folder folder;
    prepare();
    jit::Module net = root();
    net.register_buffer("weight", at::rand({5, 192}));
    net.define(
        "def forward(self, x):\n    return torch.linear(torch.flatten(x, 1), self.weight)\n");
    net.save(folder.file("a.pt"));
    expect_refused(folder.file("a.pt"), "has no parameter that needs a gradient");
}

TEST("modules", options_that_are_wrong) {
    const int64_t shape[] = {3, 0, 8};
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    mt_model *model = nullptr;
    options.classes = 1;
    ck_refused(mt_script_load("a", &options, &model), MT_EINVAL, "classes is 1");
    options.classes = 0;
    options.input_shape = shape;
    options.input_dims = 3;
    ck_refused(mt_script_load("a", &options, &model), MT_EINVAL, "input_shape[1] is 0");
    options.own_loss = 1;
    ck_refused(mt_script_load("a", &options, &model), MT_EINVAL, "own_loss");
    options.size = 0;
    ck_status(mt_script_load("a", &options, &model), MT_EINVAL);
}

/* Of callers who know fewer fields. */
TEST("modules", options_of_each_size) {
    static std::string path;
    Folder folder;
    prepare();
    path = saved_net(folder);
    mt_script_options options = MT_SCRIPT_OPTIONS_INIT;
    edge_row row = {"mt_script_options", sizeof options, 0, &options, [](void *given) {
                        mt_model *model = nullptr;
                        mt_status status = mt_script_load(
                            path.c_str(), static_cast<const mt_script_options *>(given), &model);
                        mt_model_free(model);
                        return status;
                    }};
    edge_each(&row);
}

/* ---- saving that fails -------------------------------------------------------------------------------- */

TEST("files", what_cannot_be_saved) {
    Folder folder;
    prepare();
    Run run(loaded(saved_net(folder)));
    std::string before = bytes_of(folder.file("a.pt"));
    ck_refused(mt_script_save(run.model, folder.file("none/a.pt").c_str()), MT_EIO, "No such file");
    ck_status(mt_script_save(run.model, nullptr), MT_EINVAL);
    ck_refused(mt_script_save(run.model, ""), MT_EINVAL, "mt_script_save: path is empty");
    mt_model *twin = nullptr;
    ck_ok(twin_new(Values(5), &twin));
    ck_refused(mt_script_save(twin, folder.file("b.pt").c_str()), MT_EINVAL, "mt_script_load");
    mt_model_free(twin);
    ck_status(mt_script_save(twin, folder.file("b.pt").c_str()), MT_EINVAL);
}

/* A disk that is full after so many bytes: the file that was there is still whole. */
TEST("files", a_full_disk) {
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
        ck_refused(status, MT_EIO, "File too large");
        ck_assert(bytes_of(path) == "the one before");
        ck_assert_int_ne(access((path + ".memtrain-tmp").c_str(), F_OK), 0);
    }
    ck_ok(mt_script_save(model, path.c_str()));
    mt_model_free(model);
    mt_model_free(loaded(path));
}

} // namespace

SUITE("shim_script_files")
