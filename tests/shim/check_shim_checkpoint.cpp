/*
 * check_shim_checkpoint.cpp - a state that is saved and put back goes on to the bit, whatever fails on the
 * way leaves the state and the last good file, and weights are loaded by name.
 */
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <locale>
#include <memory>
#include <vector>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <memtrain/safetensors.h>
#include <memtrain/trainer.h>

#include "check_shim.hpp"
#include "locales.h"

using namespace check_shim;

namespace {

std::string folder, path, previous, temporary;

void make_folder() {
    char name[] = "/tmp/check_checkpoint.XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(name));
    folder = name;
    path = folder + "/c";
    previous = path + ".1";
    temporary = path + ".memtrain-tmp";
}

void remove_folder() {
    for (const std::string &name : {path, previous, temporary}) std::remove(name.c_str());
    ck_assert_int_eq(rmdir(folder.c_str()), 0);
}

bool is_there(const std::string &name) {
    return access(name.c_str(), F_OK) == 0;
}

std::string contents_of(const std::string &name) {
    std::ifstream file(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string &name, const std::string &contents) {
    std::ofstream(name, std::ios::binary) << contents;
}

/* Plain SGD, SGD with momentum, Adam, AdamW; a learning rate that no default is. */
mt_torch_options options_number(int i) {
    mt_torch_options options = options_of(i < 2 ? MT_SGD : i == 2 ? MT_ADAM : MT_ADAMW, 0.7);
    options.momentum = i == 0 ? 0.0 : 0.9;
    return options;
}

enum { ALL_OPTIONS = 4 };

/* Steps on other batches each, in chunks. */
void train(const Trainer &trainer, int first, int count) {
    for (int i = first; i < first + count; i++) {
        Batch batch(8 + static_cast<size_t>(i));
        ck_ok(step(trainer, batch, {3, 5 + static_cast<size_t>(i)}));
    }
}

mt_status save(const Trainer &trainer, const char *extra = nullptr) {
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    options.extra = extra;
    return mt_torch_save(trainer.torch, path.c_str(), &options);
}

mt_status load(const Trainer &trainer) {
    return mt_torch_load(trainer.torch, path.c_str(), nullptr, 0);
}

/* A run that was saved after three steps, and how it went on for three more. */
struct Saved {
    std::string at_save, at_end;
};

Saved run_and_save(const mt_torch_options &options, const NetOptions &net = {}) {
    Saved saved;
    Trainer trainer(options, net);
    ck_ok(mt_torch_set_lr(trainer.torch, 0.1 + 1e-17));
    train(trainer, 0, 3);
    saved.at_save = trainer.hash();
    ck_ok(save(trainer, "epoch=3\n\"quoted\" \xc3\xa9"));
    ck_assert(trainer.hash() == saved.at_save);
    train(trainer, 3, 3);
    saved.at_end = trainer.hash();
    ck_assert(saved.at_end != saved.at_save);
    return saved;
}

/* ---- reads that fail ---- */

int reads, fail_at;

} // namespace

/* In the place of the C library's: the fail_at-th read of the library fails; 0: none. */
extern "C" ssize_t pread(int file, void *data, size_t bytes, off_t at) {
    struct iovec piece = {data, bytes};
    if (fail_at && ++reads == fail_at) {
        errno = EIO;
        return -1;
    }
    return preadv(file, &piece, 1, at);
}

TEST_LOOP("states", goes_on_to_the_bit, ALL_OPTIONS) {
    mt_torch_options options = options_number(_i);
    Saved saved = run_and_save(options);
    char extra[64];
    options.lr = 0.5;
    Trainer trainer(options);
    train(trainer, 7, 2); /* of another run */
    at::randn({3});
    for (int round = 0; round < 2; round++) {
        ck_ok(mt_torch_load(trainer.torch, path.c_str(), extra, sizeof extra));
        ck_assert_str_eq(extra, "epoch=3\n\"quoted\" \xc3\xa9");
        ck_assert(trainer.hash() == saved.at_save);
        train(trainer, 3, 3);
        ck_assert(trainer.hash() == saved.at_end);
    }
}

/* Steps on one batch with chunks that the policy chooses by memory; the third meets an OOM where that is wanted. */
struct Chosen {
    Trainer trainer;
    mt_trainer *steps = nullptr;
    std::vector<std::vector<size_t>> chunks;

    explicit Chosen(const NetOptions &net) : trainer(options_number(3), net) {
        mt_backend seam = MT_BACKEND_INIT;
        mt_policy_options policy = MT_POLICY_OPTIONS_INIT;
        mt_trainer_options options = MT_TRAINER_OPTIONS_INIT;
        policy.deterministic = 1;
        options.policy = &policy;
        ck_ok(mt_torch_backend(trainer.torch, &seam));
        ck_ok(mt_trainer_new(&seam, &options, &steps));
    }
    ~Chosen() { mt_trainer_free(steps); }

    void train(const Batch &batch, int count, bool is_hit = false) {
        mt_step_report report = MT_STEP_REPORT_INIT;
        for (int i = 0; i < count; i++) {
            if (is_hit && i == count - 1) ck_ok(mt_inject_oom(20, 0));
            ck_ok(mt_trainer_step(steps, batch.get(), &report));
            chunks.emplace_back(report.chunks, report.chunks + report.chunk_count);
        }
        ck_ok(mt_inject_oom(0, 0));
        if (is_hit) ck_assert_uint_gt(report.retries, 0);
    }
};

/* A deterministic run takes the same chunks when it goes on, and so ends with the same bits: with and without batch norm,
   and where the first part met an OOM that taught nothing. */
TEST_LOOP("states", chosen_chunks_go_on_to_the_bit, 4) {
    if (suite_on_card()) return suite_skip("chosen_chunks", "a card has no budget of some KiB");
    const NetOptions net = {_i % 2 == 1, true};
    Batch batch(64);
    size_t whole;
    {
        Chosen free_run(net);
        size_t before = cpu_memory().allocated_bytes;
        mt_step_report report = MT_STEP_REPORT_INIT;
        ck_ok(mt_trainer_step(free_run.steps, batch.get(), &report));
        whole = report.peak_bytes - before;
        ck_ok(mt_device_set_budget("cpu", before + whole / 3));
    }
    ck_ok(mt_torch_seed(5));
    Chosen one(net);
    one.train(batch, 3, _i / 2);
    ck_ok(save(one.trainer));
    one.train(batch, 3);
    ck_assert_uint_gt(one.chunks[0].size(), 1);
    for (const auto &chunks : one.chunks) ck_assert(chunks == one.chunks[0]);
    Chosen other(net);
    ck_ok(load(other.trainer));
    other.train(batch, 3);
    ck_assert(other.chunks[0] == one.chunks[0]);
    ck_assert(other.trainer.hash() == one.trainer.hash());
    ck_ok(mt_device_set_budget("cpu", 0));
}

/* What the file tells, without libtorch. */
TEST("states", what_is_in_it) {
    mt_safetensors *file;
    mt_safetensors_tensor tensor;
    size_t index;
    Saved saved = run_and_save(options_number(3));
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_assert_uint_eq(mt_safetensors_count(file), 9 + 3 + 3 * 9 + 1 + suite_on_card());
    ck_ok(mt_safetensors_find(file, "optimizer.exp_avg.conv1.weight", &index));
    ck_ok(mt_safetensors_get(file, index, &tensor));
    ck_assert_int_eq(tensor.dtype, MT_ST_F32);
    ck_assert_uint_eq(tensor.bytes, 8 * 3 * 3 * 3 * 4);
    ck_ok(mt_safetensors_find(file, "norm.num_batches_tracked", &index));
    ck_ok(mt_safetensors_get(file, index, &tensor));
    ck_assert_int_eq(tensor.dtype, MT_ST_I64);
    ck_assert_uint_eq(tensor.dims, 0);
    ck_ok(mt_safetensors_find(file, "rng.cpu", &index));
    ck_assert_str_eq(mt_safetensors_metadata(file, "format"), "pt");
    ck_assert_str_eq(mt_safetensors_metadata(file, "memtrain.version"), MT_VERSION_STRING);
    ck_assert_str_eq(mt_safetensors_metadata(file, "memtrain.optimizer"), "adamw");
    ck_assert_str_eq(mt_safetensors_metadata(file, "memtrain.lr"), "0.10000000000000002");
    ck_assert_str_eq(mt_safetensors_metadata(file, "memtrain.state_sha256"), saved.at_save.c_str());
    mt_safetensors_free(file);
}

/* Another decimal point, and dots between thousands, in the C library and in C++. */
TEST_LOOP("states", in_a_locale, 2) {
    static const char *const locales[] = {LOCALE_COMMA, LOCALE_ARABIC};
    if (!locales_make("shim_checkpoint: in_a_locale")) return;
    mt_torch_options options = options_number(2);
    options.lr = 12345.678;
    Trainer trainer(options);
    train(trainer, 0, 1);
    std::string hash = trainer.hash();
    std::locale::global(std::locale(locales[_i]));
    ck_ok(save(trainer));
    ck_ok(mt_torch_set_lr(trainer.torch, 0.5));
    ck_ok(mt_torch_load(trainer.torch, path.c_str(), nullptr, 0));
    ck_ok(save(trainer)); /* with the rate that was read */
    std::locale::global(std::locale::classic());
    locales_remove();
    mt_safetensors *file;
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_assert_double_eq(std::stod(mt_safetensors_metadata(file, "memtrain.lr")), 12345.678);
    mt_safetensors_free(file);
    Trainer other(options_number(2));
    ck_ok(mt_torch_load(other.torch, path.c_str(), nullptr, 0));
    std::string loaded = other.hash();
    ck_assert_str_eq(loaded.c_str(), hash.c_str());
}

TEST("states", the_last_two_are_kept) {
    Trainer trainer(options_number(1));
    std::string hashes[3];
    for (std::string &hash : hashes) {
        train(trainer, 0, 1);
        hash = trainer.hash();
        ck_ok(mt_torch_save(trainer.torch, path.c_str(), nullptr));
    }
    ck_ok(load(trainer));
    ck_assert(trainer.hash() == hashes[2]);
    ck_ok(mt_torch_load(trainer.torch, previous.c_str(), nullptr, 0));
    ck_assert(trainer.hash() == hashes[1]);
    ck_assert(!is_there(temporary));
}

/* Between steps alone. */
TEST("states", not_in_a_step) {
    Trainer trainer(options_number(3));
    Batch batch(8);
    mt_chunk_result result = chunk_result();
    ck_ok(save(trainer));
    ck_ok(mt_begin(trainer.torch, batch.get()));
    ck_refused(save(trainer), MT_ESTATE, "mt_torch_save: a step has begun and not ended");
    ck_status(load(trainer), MT_ESTATE);
    ck_ok(mt_inject_oom(1, 1));
    ck_status(mt_accumulate(trainer.torch, 0, 8, 1.0, &result), MT_EDEVMEM);
    ck_ok(mt_inject_oom(0, 0));
    ck_refused(save(trainer), MT_ESTATE, "waits for its rollback");
    ck_status(load(trainer), MT_ESTATE);
    ck_ok(mt_rollback(trainer.torch));
    ck_ok(save(trainer));
    ck_ok(load(trainer));
}

TEST("states", wrong_arguments) {
    Trainer trainer(options_number(1));
    char extra[8];
    mt_torch_save_options options = MT_TORCH_SAVE_OPTIONS_INIT;
    ck_status(mt_torch_save(nullptr, "x", nullptr), MT_EINVAL);
    ck_refused(mt_torch_save(trainer.torch, nullptr, nullptr), MT_EINVAL,
               "mt_torch_save: path is NULL");
    options.size = 0;
    ck_status(mt_torch_save(trainer.torch, path.c_str(), &options), MT_EINVAL);
    ck_refused(save(trainer, "\xff"), MT_EINVAL, "no UTF-8");
    ck_assert(!is_there(path));
    ck_ok(save(trainer, "1234567"));
    ck_ok(mt_torch_load(trainer.torch, path.c_str(), extra, 8));
    ck_assert_str_eq(extra, "1234567");
    train(trainer, 0, 1);
    std::string before = trainer.hash();
    ck_refused(mt_torch_load(trainer.torch, path.c_str(), extra, 7), MT_EINVAL,
               "capacity is 7; the extra text of");
    ck_status(mt_torch_load(trainer.torch, path.c_str(), extra, 0), MT_EINVAL);
    ck_status(mt_torch_load(trainer.torch, nullptr, nullptr, 0), MT_EINVAL);
    ck_status(mt_torch_load(nullptr, path.c_str(), nullptr, 0), MT_EINVAL);
    ck_refused(mt_torch_load(trainer.torch, temporary.c_str(), nullptr, 0), MT_EIO, "No such file");
    ck_assert(trainer.hash() == before);
}

/* ---- of another run ---- */

TEST("others", of_another_network) {
    NetOptions plain;
    plain.norm = false;
    run_and_save(options_number(3));
    {
        Trainer trainer(options_number(3), plain);
        std::string before = trainer.hash();
        ck_refused(load(trainer), MT_EINVAL,
                   "does not fit the model; not in the model: norm.bias, "
                   "norm.num_batches_tracked, norm.running_mean and 8 more");
        ck_assert(trainer.hash() == before);
        ck_ok(save(trainer));
    }
    Trainer trainer(options_number(3));
    std::string before = trainer.hash();
    ck_refused(load(trainer), MT_EINVAL, "missing there: norm.bias, norm.num_batches_tracked");
    ck_assert(trainer.hash() == before);
}

TEST_LOOP("others", of_another_optimiser, 4) {
    static const struct {
        int saved, loaded;
        const char *word;
    } rows[] = {{3, 2, "with the optimiser adamw, not adam"},
                {2, 1, "with the optimiser adam, not sgd"},
                {1, 0, "not in the model: optimizer.momentum_buffer.conv1.bias"},
                {0, 1, "missing there: optimizer.momentum_buffer.conv1.bias"}};
    run_and_save(options_number(rows[_i].saved));
    Trainer trainer(options_number(rows[_i].loaded));
    std::string before = trainer.hash();
    ck_refused(load(trainer), MT_EINVAL, rows[_i].word);
    ck_assert(trainer.hash() == before);
}

/* The same names, another shape. */
TEST("others", of_other_shapes) {
    Trainer trainer(options_number(0));
    ck_ok(save(trainer));
    trainer.net->norm->running_mean.set_data(at::zeros({3}));
    std::string before = trainer.hash();
    ck_refused(load(trainer), MT_EINVAL,
               "different: norm.running_mean (F32 [8] there, F32 [3] here)");
    trainer.net->norm->running_mean.set_data(at::zeros({8}, at::kDouble));
    ck_refused(load(trainer), MT_EINVAL, "norm.running_mean (F32 [8] there, F64 [8] here)");
}

TEST_LOOP("others", no_checkpoint, 9) {
    static const struct {
        const char *key, *value, *word;
    } rows[] = {
        {"memtrain.checkpoint", nullptr, "is no checkpoint: it has no 'memtrain.checkpoint'"},
        {"memtrain.checkpoint", "2", "is a checkpoint of version 2; accepted: 1"},
        {"memtrain.lr", nullptr, "it has no 'memtrain.lr'"},
        {"memtrain.lr", "fast", "memtrain.lr is 'fast'; accepted: a number above 0"},
        {"memtrain.lr", "0", "memtrain.lr is '0'"},
        {"memtrain.lr", "0.1x", "memtrain.lr is '0.1x'"},
        {"memtrain.optimizer", "lion", "with the optimiser lion, not sgd"},
        {"memtrain.state_sha256", "", "is damaged"},
        {"memtrain.extra", nullptr, "it has no 'memtrain.extra'"},
    };
    Trainer trainer(options_number(0));
    ck_ok(save(trainer));
    std::string contents = contents_of(path), key = std::string("\"") + rows[_i].key + "\":\"";
    size_t at = contents.find(key), end = contents.find('"', at + key.size());
    ck_assert_uint_ne(at, std::string::npos);
    if (rows[_i].value)
        contents.replace(at + key.size(), end - at - key.size(), rows[_i].value);
    else
        contents[at + 1] = 'x';
    /* The header's length has to be right. */
    uint64_t length;
    std::memcpy(&length, contents.data(), sizeof length);
    length += contents.size() - contents_of(path).size();
    std::memcpy(&contents[0], &length, sizeof length);
    write(path, contents);
    train(trainer, 0, 1);
    std::string before = trainer.hash();
    ck_refused(load(trainer), MT_EINVAL, rows[_i].word);
    ck_assert(trainer.hash() == before);
}

/* One bit anywhere in the tensors, and an end that is missing. */
TEST("others", damaged) {
    Trainer trainer(options_number(3));
    ck_ok(save(trainer));
    std::string contents = contents_of(path);
    uint64_t header;
    std::memcpy(&header, contents.data(), sizeof header);
    train(trainer, 0, 1);
    std::string before = trainer.hash();
    for (size_t at = 8 + header; at < contents.size(); at += 997) {
        std::string changed = contents;
        changed[at] = static_cast<char>(changed[at] ^ 4);
        write(path, changed);
        ck_refused(load(trainer), MT_EINVAL,
                   "is damaged: its tensors are not those that were saved");
    }
    for (size_t length = 0; length < contents.size(); length += 1999) {
        write(path, contents.substr(0, length));
        ck_refused(load(trainer), MT_EINVAL, "is no safetensors file");
    }
    ck_assert(trainer.hash() == before);
    train(trainer, 1, 1);
}

/* ---- what fails ---- */

/* Every allocation of a save: the files stay, and the run goes on. */
TEST_LOOP("faults", every_allocation_of_save_fails, 2) {
    Trainer trainer(options_number(3));
    ck_ok(save(trainer));
    std::string old = contents_of(path);
    train(trainer, 0, 2);
    std::string before = trainer.hash();
    uint64_t n = 1, requests, failed;
    for (;; n++) {
        ck_ok(mt_inject_oom(n, _i));
        mt_status status = save(trainer);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert(!is_there(temporary));
        if (!failed) break;
        ck_status(status, MT_EDEVMEM);
        ck_assert(contents_of(path) == old);
        ck_assert(!is_there(previous));
        ck_assert(trainer.hash() == before);
    }
    ck_assert_uint_gt(n, 1);
    ck_assert(contents_of(previous) == old);
    Trainer other(options_number(3));
    ck_ok(load(other));
    ck_assert(other.hash() == before);
}

TEST_LOOP("faults", every_allocation_of_load_fails, 2) {
    Saved saved = run_and_save(options_number(3));
    Trainer trainer(options_number(3));
    train(trainer, 0, 1);
    std::string before = trainer.hash();
    uint64_t n = 1, requests, failed;
    for (;; n++) {
        ck_ok(mt_inject_oom(n, _i));
        mt_status status = load(trainer);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        if (!failed) break;
        ck_status(status, MT_EDEVMEM);
        ck_assert(trainer.hash() == before);
    }
    ck_assert_uint_gt(n, 1);
    ck_assert(trainer.hash() == saved.at_save);
    train(trainer, 3, 3);
    ck_assert(trainer.hash() == saved.at_end);
}

/* Every read of a load: before the copying nothing has changed, then the state is lost until a load. */
TEST("faults", every_read_of_load_fails) {
    Saved saved = run_and_save(options_number(3));
    Trainer trainer(options_number(3));
    Batch batch(8);
    size_t unchanged = 0, lost = 0;
    std::string before = trainer.hash();
    for (int n = 1;; n++) {
        reads = 0;
        fail_at = n;
        mt_status status = load(trainer);
        bool failed = reads >= n;
        fail_at = 0;
        if (!failed) break;
        ck_status(status, MT_EIO);
        if (save(trainer) == MT_OK) {
            ck_assert_uint_eq(lost, 0);
            ck_assert(trainer.hash() == before);
            unchanged++;
            /* the file was written over by that save */
            ck_assert_int_eq(std::rename(previous.c_str(), path.c_str()), 0);
            continue;
        }
        lost++;
        ck_contains(mt_last_error(), "mt_torch_save: the state is lost: cannot read");
        ck_status(mt_begin(trainer.torch, batch.get()), MT_ESTATE);
        ck_ok(load(trainer));
        ck_assert(trainer.hash() == saved.at_save);
        train(trainer, 3, 3);
        ck_assert(trainer.hash() == saved.at_end);
    }
    ck_assert_uint_gt(unchanged, 20);
    ck_assert_uint_gt(lost, 20);
    ck_assert(trainer.hash() == saved.at_save);
}

/* A disk that is full after so many bytes, by the system's limit on files. */
TEST("faults", disk_full) {
    Trainer trainer(options_number(3));
    ck_ok(save(trainer));
    std::string old = contents_of(path);
    train(trainer, 0, 2);
    std::string before = trainer.hash();
    struct rlimit limit, small;
    std::signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (size_t most = 0; most < old.size(); most += 1501) {
        small = limit;
        small.rlim_cur = most;
        setrlimit(RLIMIT_FSIZE, &small);
        mt_status status = save(trainer);
        setrlimit(RLIMIT_FSIZE, &limit);
        ck_refused(status, MT_EIO, "File too large");
        ck_assert(!is_there(temporary));
        ck_assert(!is_there(previous));
        ck_assert(contents_of(path) == old);
    }
    ck_assert(trainer.hash() == before);
    train(trainer, 2, 1);
    before = trainer.hash();
    ck_ok(save(trainer));
    ck_ok(load(trainer));
    ck_assert(trainer.hash() == before);
}

namespace {

/* A file system of 256 KiB in the folder; false where this process may not make one. */
bool mount_small() {
#ifdef __linux__
    if (mount("none", folder.c_str(), "tmpfs", 0, "size=256k") == 0) return true;
#else
    errno = ENOSYS;
#endif
    std::printf("SKIP: file_system_full: no file system of its own: %s\n", std::strerror(errno));
    return false;
}

void unmount() {
#ifdef __linux__
    ck_assert_int_eq(umount(folder.c_str()), 0);
#endif
}

} // namespace

/* The same on a file system of that size. */
TEST("faults", file_system_full) {
    if (!mount_small()) return;
    std::string old;
    {
        Trainer trainer(options_number(3));
        ck_ok(save(trainer));
        old = contents_of(path);
        std::string ballast(250 * 1024 - old.size(), 'x');
        write(previous, ballast);
        train(trainer, 0, 2);
        std::string before = trainer.hash();
        ck_refused(save(trainer), MT_EIO, "No space left on device");
        ck_assert(contents_of(path) == old);
        ck_assert(!is_there(temporary));
        ck_assert(trainer.hash() == before);
        std::remove(previous.c_str());
        ck_ok(save(trainer));
        ck_assert(contents_of(previous) == old);
        train(trainer, 2, 1);
    }
    unmount();
}

/* With hardly any room in the budget, and tensors whose bytes are not in order. */
TEST_IF(suite_on_cpu(), "a budget of some KiB is the CPU's", "faults", needs_no_room) {
    mt_model *model;
    mt_torch *torch;
    char before[65], after[65];
    mt_torch_options options = options_of(MT_ADAMW);
    ck_ok(memtrain::make_model(&model, [] {
        struct Wide : nn::Module {
            at::Tensor weight = register_parameter(
                "weight", at::randn({64, 64, 40, 40}).contiguous(at::MemoryFormat::ChannelsLast));
        };
        return memtrain::model(std::make_shared<Wide>(), {},
                               [](Wide &n, const memtrain::Tensors &) {
                                   return memtrain::Output{n.weight.sum(), {}};
                               });
    }));
    ck_ok(mt_torch_new(model, &options, &torch));
    ck_ok(mt_device_set_budget("cpu", cpu_memory().allocated_bytes + (32 << 10)));
    ck_ok(mt_torch_state_sha256(torch, before));
    ck_ok(mt_torch_save(torch, path.c_str(), nullptr));
    ck_ok(mt_torch_seed(99));
    ck_ok(mt_torch_load(torch, path.c_str(), nullptr, 0));
    ck_ok(mt_torch_state_sha256(torch, after));
    ck_assert_str_eq(before, after);
    mt_torch_free(torch);
    mt_model_free(model);
}

/* ---- weights ---- */

namespace {

mt_weights_options lenient() {
    mt_weights_options options = MT_WEIGHTS_OPTIONS_INIT;
    options.strict = 0;
    return options;
}

/* Parameters and buffers as one number, for a comparison. */
std::string weights_of(const Net &net) {
    std::string all;
    for (const auto &list : {net.parameters(), net.buffers()})
        for (const at::Tensor &tensor : list) {
            at::Tensor plain = tensor.detach().to(at::kCPU).contiguous();
            all.append(static_cast<const char *>(plain.const_data_ptr()), plain.nbytes());
        }
    return all;
}

/* Writes tensors under names, in the place of Python. */
void write_tensors(const std::vector<std::pair<std::string, at::Tensor>> &list) {
    std::vector<mt_safetensors_tensor> tensors;
    auto type_of = [](const at::Tensor &tensor) {
        switch (tensor.scalar_type()) {
        case at::kHalf:
            return MT_ST_F16;
        case at::kBFloat16:
            return MT_ST_BF16;
        case at::kDouble:
            return MT_ST_F64;
        case at::kLong:
            return MT_ST_I64;
        default:
            return MT_ST_F32;
        }
    };
    for (const auto &item : list)
        tensors.push_back({item.first.c_str(), type_of(item.second),
                           static_cast<size_t>(item.second.dim()), item.second.sizes().data(),
                           item.second.nbytes(), item.second.const_data_ptr()});
    ck_ok(mt_safetensors_save(path.c_str(), tensors.data(), tensors.size(), nullptr));
}

} // namespace

TEST("weights", weights_by_name) {
    std::string weights;
    {
        Trainer trainer(options_number(3));
        train(trainer, 0, 2);
        weights = weights_of(*trainer.net);
        ck_ok(mt_model_save_weights(trainer.model, path.c_str()));
    }
    ck_assert(!is_there(previous));
    Trainer trainer(options_number(3));
    ck_assert(weights_of(*trainer.net) != weights);
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), nullptr));
    ck_assert(weights_of(*trainer.net) == weights);
    train(trainer, 0, 1); /* in place: the flat blocks have them */
    ck_assert(weights_of(*trainer.net) != weights);

    /* from a checkpoint of the whole state */
    ck_ok(save(trainer));
    mt_weights_options options = lenient();
    weights = weights_of(*trainer.net);
    train(trainer, 1, 1);
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), nullptr), MT_EINVAL,
               "not in the model: optimizer.exp_avg.conv1.bias");
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(weights_of(*trainer.net) == weights);
}

/* channels_last in memory, row-major in the file. */
TEST("weights", strided_weights) {
    Trainer trainer(options_number(0));
    mt_safetensors *file;
    size_t index;
    float read[8 * 3 * 3 * 3];
    c10::NoGradGuard no_grad;
    at::Tensor weight = trainer.net->conv1->weight;
    at::Tensor values = at::arange(8 * 27, at::kFloat).reshape({8, 3, 3, 3});
    weight.set_data(values.contiguous(at::MemoryFormat::ChannelsLast));
    ck_assert(!weight.is_contiguous());
    ck_ok(mt_model_save_weights(trainer.model, path.c_str()));
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_ok(mt_safetensors_find(file, "conv1.weight", &index));
    ck_ok(mt_safetensors_read(file, index, 0, read, sizeof read));
    for (int i = 0; i < 8 * 27; i++) ck_assert_float_eq(read[i], static_cast<float>(i));
    mt_safetensors_free(file);
    weight.zero_();
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), nullptr));
    ck_assert(at::equal(weight, values));
    ck_assert(!weight.is_contiguous());
}

/* Columns of a matrix, rows larger than a piece, and many pieces. */
TEST("weights", large_strided_weights) {
    struct Odd : nn::Module {
        at::Tensor columns = register_buffer("columns", at::randn({3000, 2000}).t());
        at::Tensor wide = register_buffer("wide", at::randn({1200, 1100, 2}).permute({2, 1, 0}));
        at::Tensor part = register_buffer("part", at::randn({70, 70}).narrow(1, 3, 60));
        at::Tensor weight = register_parameter("weight", at::zeros({1}));
    };
    std::shared_ptr<Odd> net;
    mt_model *model;
    ck_ok(mt_torch_init(nullptr));
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Odd>();
        return memtrain::model(net, {}, [](Odd &n, const memtrain::Tensors &) {
            return memtrain::Output{n.weight.sum(), {}};
        });
    }));
    std::vector<at::Tensor> before;
    for (at::Tensor &buffer : net->buffers()) before.push_back(buffer.clone());
    ck_ok(mt_model_save_weights(model, path.c_str()));
    for (at::Tensor &buffer : net->buffers()) buffer.zero_();
    ck_ok(mt_model_load_weights(model, path.c_str(), nullptr));
    for (size_t i = 0; i < before.size(); i++) {
        ck_assert(at::equal(net->buffers()[i], before[i]));
        ck_assert(!net->buffers()[i].is_contiguous());
    }
    mt_model_free(model);
}

TEST("weights", prefix_and_skip) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    at::Tensor ones = at::ones({5}), fives = at::full({8}, 5.0f), other = at::zeros({7, 72});
    write_tensors({{"module.linear.bias", ones},
                   {"module.norm.bias", fives},
                   {"module.head.bias", ones},
                   {"conv1.bias", fives}});
    options.prefix = "module.";
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(at::equal(trainer.net->linear->bias.detach().cpu(), ones));
    ck_assert(at::equal(trainer.net->norm->bias.detach().cpu(), fives));
    ck_assert(!at::equal(trainer.net->conv1->bias.detach().cpu(), fives)); /* without the prefix */
    options.strict = 1;
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "missing there: unused, conv1.weight, conv1.bias and 6 more");
    ck_contains(mt_last_error(), "not in the model: conv1.bias, head.bias");

    write_tensors({{"linear.weight", other}, {"norm.bias", at::ones({8})}});
    options = lenient();
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "different: linear.weight (F32 [7,72] there, F32 [5,72] here)");
    options.skip = "linear.";
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(at::equal(trainer.net->norm->bias.detach().cpu(), at::ones({8})));

    options.prefix = "none.";
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "has no tensor under a name of the model's");
}

TEST_LOOP("weights", smaller_floats_are_widened, 2) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    at::Tensor thirds = at::full({8}, 1.0f / 3, _i ? at::kBFloat16 : at::kHalf);
    at::Tensor weight = at::randn({5, 72}).to(thirds.scalar_type());
    write_tensors({{"norm.bias", thirds}, {"linear.weight", weight}});
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    ck_assert(at::equal(trainer.net->norm->bias.detach().cpu(), thirds.to(at::kFloat)));
    ck_assert(at::equal(trainer.net->linear->weight.detach().cpu(), weight.to(at::kFloat)));
}

/* A part of the model that a file has in part is likely another network's. */
TEST("weights", parts_that_are_missing_are_told) {
    std::string log;
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    write_tensors({{"linear.bias", at::ones({5})},
                   {"norm.bias", at::ones({8})},
                   {"norm.weight", at::ones({8})},
                   {"norm.running_mean", at::ones({8})},
                   {"norm.running_var", at::ones({8})}});
    mt_set_log(
        [](void *user, mt_log_level level, const char *line) {
            *static_cast<std::string *>(user) += std::to_string(level) + " " + line + "\n";
        },
        &log);
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    mt_set_log(nullptr, nullptr);
    ck_contains(log.c_str(), (std::to_string(MT_LOG_WARNING) + " mt_model_load_weights: '" + path +
                              "' has 1 of 2 tensors of 'linear', the first that it lacks is "
                              "'linear.weight'")
                                 .c_str());
    ck_contains(log.c_str(), (std::to_string(MT_LOG_INFO) + " mt_model_load_weights: '" + path +
                              "' has nothing of conv1, ")
                                 .c_str());
    ck_assert(log.find("'norm'") == std::string::npos);
}

/* It takes nothing from the budget, so that it cannot fail after the first tensors have changed. */
TEST("weights", widening_asks_for_no_memory) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    uint64_t requests = 0;
    at::Tensor ones = at::ones({8}, at::kHalf), weight = at::ones({5, 72}, at::kHalf);
    write_tensors({{"norm.bias", ones}, {"linear.weight", weight}});
    ck_ok(mt_inject_oom(1, 1));
    ck_ok(mt_model_load_weights(trainer.model, path.c_str(), &options));
    mt_injected(&requests, nullptr);
    ck_ok(mt_inject_oom(0, 0));
    ck_assert_uint_eq(requests, 0);
    ck_assert(at::equal(trainer.net->linear->weight.detach().cpu(), weight.to(at::kFloat)));
}

/* As in torch, of a file without a version. */
TEST("weights", a_count_of_batches_may_be_missing) {
    Trainer trainer(options_number(0)), other(options_number(0));
    std::vector<std::pair<std::string, at::Tensor>> rest;
    for (const auto &item : trainer.net->named_parameters())
        rest.emplace_back(item.key(), item.value().detach().cpu());
    for (const auto &item : trainer.net->named_buffers())
        if (item.key() != "norm.num_batches_tracked")
            rest.emplace_back(item.key(), item.value().cpu());
    write_tensors(rest);
    other.net->norm->num_batches_tracked.fill_(7);
    ck_ok(mt_model_load_weights(other.model, path.c_str(), nullptr));
    ck_assert_int_eq(other.net->norm->num_batches_tracked.item<int64_t>(), 7);
    ck_assert(at::equal(other.net->conv1->weight.cpu(), trainer.net->conv1->weight.cpu()));
    rest.pop_back();
    write_tensors(rest);
    ck_refused(mt_model_load_weights(other.model, path.c_str(), nullptr), MT_EINVAL,
               "missing there: ");
}

TEST("weights", another_dtype) {
    Trainer trainer(options_number(0));
    mt_weights_options options = lenient();
    std::string before = trainer.hash();
    write_tensors({{"norm.bias", at::ones({8}, at::kDouble)}, {"linear.bias", at::ones({5})}});
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "different: norm.bias (F64 [8] there, F32 [8] here)");
    write_tensors({{"norm.num_batches_tracked", at::ones({}, at::kHalf)}});
    ck_refused(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL,
               "different: norm.num_batches_tracked (F16 [] there, I64 [] here)");
    ck_assert(trainer.hash() == before);
    ck_status(mt_model_load_weights(trainer.model, temporary.c_str(), nullptr), MT_EIO);
    ck_status(mt_model_load_weights(trainer.model, nullptr, nullptr), MT_EINVAL);
    ck_status(mt_model_load_weights(nullptr, path.c_str(), nullptr), MT_EINVAL);
    ck_status(mt_model_save_weights(trainer.model, nullptr), MT_EINVAL);
    ck_status(mt_model_save_weights(nullptr, path.c_str()), MT_EINVAL);
    options.size = 0;
    ck_status(mt_model_load_weights(trainer.model, path.c_str(), &options), MT_EINVAL);
}

/* Written under both names; one of them is enough to read. */
TEST("weights", tied_weights) {
    struct Tied : nn::Module {
        nn::Linear in, out;
        Tied()
            : in(register_module("in", nn::Linear(4, 4))),
              out(register_module("out", nn::Linear(4, 4))) {
            out->weight = out->register_parameter("weight2", in->weight);
        }
    };
    std::shared_ptr<Tied> net;
    mt_model *model;
    mt_torch *torch;
    mt_safetensors *file;
    size_t index;
    char before[65], after[65];
    ck_ok(memtrain::make_model(&model, [&] {
        net = std::make_shared<Tied>();
        return memtrain::model(net, {}, [](Tied &n, const memtrain::Tensors &batch) {
            return memtrain::Output{n.out(n.in(batch[0].flatten(1).narrow(1, 0, 4))).sum(), {}};
        });
    }));
    ck_ok(mt_torch_new(model, nullptr, &torch));
    ck_ok(mt_model_save_weights(model, path.c_str()));
    ck_ok(mt_safetensors_open(path.c_str(), &file));
    ck_ok(mt_safetensors_find(file, "in.weight", &index));
    ck_ok(mt_safetensors_find(file, "out.weight2", &index));
    mt_safetensors_free(file);
    ck_ok(mt_model_load_weights(model, path.c_str(), nullptr));

    ck_ok(mt_torch_state_sha256(torch, before));
    ck_ok(mt_torch_save(torch, path.c_str(), nullptr));
    at::Tensor weight = net->in->weight, ones = at::ones({4, 4});
    {
        c10::NoGradGuard no_grad;
        weight.zero_();
    }
    ck_ok(mt_torch_load(torch, path.c_str(), nullptr, 0));
    ck_ok(mt_torch_state_sha256(torch, after));
    ck_assert_str_eq(before, after);

    write_tensors({{"out.weight2", ones},
                   {"in.bias", at::ones({4})},
                   {"out.bias", at::ones({4})},
                   {"out.weight", ones}});
    ck_ok(mt_model_load_weights(model, path.c_str(), nullptr));
    ck_assert(at::equal(weight.detach(), ones));
    ck_assert(net->out->weight.is_same(net->in->weight));
    mt_torch_free(torch);
    mt_model_free(model);
}

int main() {
    for (const char *name : {"states", "others", "faults", "weights"})
        tcase_add_checked_fixture(suite_case_named(name), make_folder, remove_folder);
    return suite_run_named("shim_checkpoint");
}
