/*
 * check_shim_checkpoint.cpp - a state that is saved and put back goes on to the bit, whatever fails on the
 * way leaves the state and the last good file.
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
#include "saved_files.hpp"

using namespace check_shim;

namespace {

std::string contents_of(const std::string &name) {
    std::ifstream file(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string &name, const std::string &contents) {
    std::ofstream(name, std::ios::binary) << contents;
}

enum { ALL_OPTIONS = 4 };

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

int main() {
    for (const char *name : {"states", "others", "faults"})
        tcase_add_checked_fixture(suite_case_named(name), make_folder, remove_folder);
    return suite_run_named("shim_checkpoint");
}
