/*
 * check_shim_offload_torch.cpp - saved tensors that wait elsewhere, in an mt_torch: the same bits, what is packed once and
 * what is left alone, errors of memory and of files.
 */
#include <cmath>
#include <csignal>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include "offload_subject.hpp"

using namespace offload_subject;
using memtrain::Tensors;

namespace {

struct Trained {
    std::string hash;
    size_t peak = 0;
    mt_arena_stats arena = MT_ARENA_STATS_INIT;
    mt_offload_stats offload = MT_OFFLOAD_STATS_INIT;
};

/* Enough steps for the arena to have plans; way: 0 in place, 1 marked, 2 one marked chunk. */
Trained train(const Network &network, int way, const mt_torch_options &options) {
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    Trained trained;
    const std::vector<size_t> chunks =
        way == 2 ? std::vector<size_t>{5} : std::vector<size_t>{3, 2};
    for (int i = 0; i < 5; i++) trained.peak = step(subject, batch, chunks, way > 0);
    trained.hash = hash_of(subject);
    ck_ok(mt_torch_arena(subject.torch, &trained.arena));
    trained.offload = stats_of(subject.torch);
    return trained;
}

void expect_same(const Trained &plain, const Trained &other, const char *what) {
    ck_assert_msg(other.hash == plain.hash, "%s: another state", what);
    ck_assert_uint_gt(other.offload.packed, 0);
    ck_assert_uint_ge(other.offload.packed + other.offload.shared, other.offload.unpacked);
    ck_assert_uint_eq(other.offload.packed_bytes, 0);
    ck_assert_uint_gt(other.offload.peak_packed_bytes, 0);
    ck_assert_uint_eq(other.arena.missed, 0);
    if (!suite_has_arena()) return;
    ck_assert_uint_gt(other.arena.served, 0);
    ck_assert_uint_lt(other.arena.recorded, other.arena.chunks);
}

TEST_LOOP("torch", same_bits, 3 * networks::count) {
    int way = _i / networks::count;
    for (mt_dtype amp : {MT_DTYPE_NONE, MT_BFLOAT16}) {
        if (amp != MT_DTYPE_NONE && way != 0) break; /* autocast does not know the ways apart */
        const Network &network = networks::trained_in(amp, networks::all[_i % networks::count]);
        Trained plain = train(network, way, options_for(MT_OFFLOAD_NEVER, amp));
        ck_assert_int_eq(plain.offload.kind, MT_OFFLOAD_NEVER);
        for (int i = 0; i < EXACT; i++)
            for (int segments : {MT_CHECKPOINTING_AUTO, MT_CHECKPOINTING_ON}) {
                Trained other = train(network, way, options_for(kinds[i].kind, amp, segments));
                expect_same(plain, other, kinds[i].name);
                ck_assert_int_eq(other.offload.kind, kinds[i].kind);
                if (way == 0 && suite_has_peaks()) ck_assert_uint_lt(other.peak, plain.peak);
            }
    }
}

/* The gradients of one chunk by name. */
using Gradients = std::map<std::string, at::Tensor>;

mt_status collect_gradient(void *user, const char *name, mt_tensor *handle) {
    const at::Tensor &gradient = memtrain::tensor(handle).grad();
    if (gradient.defined()) (*static_cast<Gradients *>(user))[name] = gradient.clone();
    return MT_OK;
}

Gradients gradients_of(const Network &network, const mt_torch_options &options,
                       mt_offload_stats *out) {
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(8, network.side, CLASSES);
    mt_chunk_result result = chunk_result();
    Gradients gradients;
    ck_ok(mt_begin(subject.torch, &batch.batch));
    ck_ok(accumulate(subject, batch, 0, 8, &result));
    ck_ok(mt_torch_visit_state(subject.torch, collect_gradient, &gradients));
    *out = stats_of(subject.torch);
    return gradients;
}

/*
 * Of bf16 the gradient as a whole is within 1 %, and half of the bytes are gone. What segments start from
 * again is not rounded: relu would let other elements through.
 */
TEST_LOOP("torch", gradients_of_packed, 2 * networks::count) {
    const Network &network = networks::all[_i % networks::count];
    int segments = _i / networks::count;
    mt_offload_stats stats;
    Gradients plain = gradients_of(network, options_for(MT_OFFLOAD_NEVER), &stats);
    Gradients packed =
        gradients_of(network, options_for(MT_OFFLOAD_PACK, MT_DTYPE_NONE, segments), &stats);
    double error = 0, sum = 0;
    for (const auto &[name, gradient] : plain) {
        error += (packed.at(name) - gradient).square().sum().item().toDouble();
        sum += gradient.square().sum().item().toDouble();
    }
    std::printf(
        "%s%s: gradients of bf16 are off by %.5f; %llu packed, %llu shared, %llu left alone\n",
        network.name, segments ? " with segments" : "", std::sqrt(error / sum),
        (unsigned long long)stats.packed, (unsigned long long)stats.shared,
        (unsigned long long)stats.left_alone);
    std::fflush(stdout);
    ck_assert_double_gt(error, 0);
    ck_assert_double_lt(std::sqrt(error / sum), 0.01);
    ck_assert_uint_eq(2 * stats.total_packed_bytes, stats.total_original_bytes);
}

/* A model of one function: the batch is the picture x [n, 3, 64, 64]. */
mt_torch *torch_of(mt_model **model, const mt_torch_options &options,
                   std::function<at::Tensor(nn::LinearImpl &, const at::Tensor &)> run) {
    mt_torch *torch = nullptr;
    ck_ok(memtrain::make_model(model, [&] {
        auto net = std::make_shared<nn::LinearImpl>(64, 64);
        return memtrain::model(net, {}, [run](nn::LinearImpl &n, const Tensors &b) {
            return memtrain::Output{run(n, b[0]).mean(), {}};
        });
    }));
    ck_ok(mt_torch_new(*model, &options, &torch));
    return torch;
}

/* What is packed, what is shared, what stays, tensor by tensor. */
TEST("torch", which_tensors) {
    const struct {
        const char *name;
        at::Tensor (*run)(nn::LinearImpl &, const at::Tensor &);
        uint64_t packed, shared, left;
    } table[] = {
        {"the batch", [](nn::LinearImpl &n, const at::Tensor &x) { return n.forward(x); }, 0, 0, 1},
        {"one output", [](nn::LinearImpl &n, const at::Tensor &x) { return n.forward(x).tanh(); },
         1, 0, 1},
        {"output and input",
         [](nn::LinearImpl &n, const at::Tensor &x) { return n.forward(x).relu().sin(); }, 1, 1, 1},
        {"twice in one",
         [](nn::LinearImpl &n, const at::Tensor &x) {
             at::Tensor y = n.forward(x);
             return y * y;
         },
         1, 1, 1},
        {"small",
         [](nn::LinearImpl &n, const at::Tensor &x) {
             return n.forward(x).slice(2, 0, 2).slice(1, 0, 1).contiguous().tanh();
         },
         0, 0, 2},
        {"the parameter itself",
         [](nn::LinearImpl &n, const at::Tensor &x) {
             return n.forward(x).sum() + n.weight.square().sum() + n.weight.t().sin().sum();
         },
         0, 0, 3},
    };
    networks::prepare();
    bench::Batch batch(4, 64, CLASSES);
    for (const auto &row : table) {
        mt_model *model = nullptr;
        mt_chunk_result result = chunk_result();
        mt_torch *torch = torch_of(&model, options_for(MT_OFFLOAD_HOST), row.run);
        ck_ok(mt_begin(torch, &batch.batch));
        ck_ok(mt_accumulate(torch, 0, 4, 1.0, &result));
        mt_offload_stats stats = stats_of(torch);
        ck_assert_msg(stats.packed == row.packed && stats.shared == row.shared &&
                          stats.left_alone == row.left,
                      "%s: %llu packed, %llu shared, %llu left alone", row.name,
                      (unsigned long long)stats.packed, (unsigned long long)stats.shared,
                      (unsigned long long)stats.left_alone);
        ck_assert_uint_eq(stats.packed_bytes, 0);
        mt_torch_free(torch);
        mt_model_free(model);
    }
}

/* Chunks of all sizes pack the same tensors, so that the peak of one can be told from others. */
TEST_LOOP("torch", sizes_do_not_matter, networks::count) {
    const Network &network = networks::all[_i];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_HOST);
    Subject subject(network, network.side, &options);
    bench::Batch batch(64, network.side, CLASSES);
    uint64_t before = 0, packed = 0;
    for (size_t size : {2, 4, 7, 64}) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_begin(subject.torch, &batch.batch));
        ck_ok(accumulate(subject, batch, 0, size, &result));
        ck_ok(mt_rollback(subject.torch));
        uint64_t now = stats_of(subject.torch).packed;
        if (before) ck_assert_uint_eq(now - before, packed);
        packed = now - before;
        before = now;
    }
    ck_assert_uint_gt(packed, 5);
}

TEST("torch", evaluation_is_left_alone) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_HOST);
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    mt_chunk_result result = chunk_result();
    ck_ok(mt_evaluate(subject.torch, &batch.batch, 0, 5, &result));
    mt_offload_stats stats = stats_of(subject.torch);
    ck_assert_uint_eq(stats.packed + stats.left_alone, 0);
    ck_assert_int_eq(stats.on, 1);
}

/* A graph that outlives its mt_torch keeps what it needs. */
TEST("torch", a_graph_that_is_kept) {
    networks::prepare();
    for (const auto &kind : kinds) {
        at::Tensor kept, weight;
        mt_model *model = nullptr;
        bench::Batch batch(4, 64, CLASSES);
        mt_torch *torch =
            torch_of(&model, options_for(kind.kind), [&](nn::LinearImpl &n, const at::Tensor &x) {
                kept = n.forward(x).sin().exp().sum();
                weight = n.weight;
                return n.forward(x);
            });
        ck_ok(mt_train_step(torch, &batch.batch, nullptr, nullptr));
        ck_assert_uint_gt(stats_of(torch).packed_bytes, 0);
        mt_torch_free(torch);
        weight.mutable_grad().reset();
        kept.backward();
        ck_assert(weight.grad().defined());
        kept.reset();
        mt_model_free(model);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------ */

/*
 * Each request of a chunk fails in turn: the chunk is taken back alone where it was marked, else the step,
 * nothing waits any more, and the same again has the bits.
 */
TEST_LOOP("errors", memory_runs_out, 2 * KINDS) {
    const auto &kind = kinds[_i / 2];
    const Network &network = networks::all[2];
    bool marked = _i % 2;
    mt_torch_options options = options_for(kind.kind, MT_DTYPE_NONE, MT_CHECKPOINTING_ON);
    Trained plain;
    uint64_t failed = 1, failures = 0;
    networks::prepare();
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    step(subject, batch, {5}, marked);
    size_t held = tensor_memory().allocated_bytes;
    std::string before = hash_of(subject);
    for (uint64_t n = 1; failed; n += 5) {
        mt_chunk_result result = chunk_result();
        ck_ok(mt_begin(subject.torch, &batch.batch));
        if (marked) ck_ok(mt_mark(subject.torch));
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = accumulate(subject, batch, 0, 5, &result);
        mt_injected(nullptr, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_assert_int_eq(status, failed ? MT_EDEVMEM : MT_OK);
        if (failed && marked) ck_ok(mt_rewind(subject.torch));
        auto waiting = [&] { return stats_of(subject.torch).packed_bytes; };
        if (failed) ck_assert_uint_eq(settled(0, waiting), 0);
        ck_ok(mt_rollback(subject.torch));
        ck_assert_uint_eq(settled(0, waiting), 0);
        failures += failed;
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
        if (n % 4 == 1) ck_assert(hash_of(subject) == before);
    }
    ck_assert_uint_gt(failures, 50);
    step(subject, batch, {5}, marked);
    std::string after = hash_of(subject);
    networks::prepare();
    Subject clean(network, network.side, &options);
    step(clean, batch, {5}, marked);
    step(clean, batch, {5}, marked);
    ck_assert(hash_of(clean) == after);
}

/* A disk that is full after so many bytes, by the system's limit on files. */
TEST("errors", disk_full) {
    const Network &network = networks::all[2];
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_FILE);
    Subject subject(network, network.side, &options);
    bench::Batch batch(5, network.side, CLASSES);
    struct rlimit limit;
    int failures = 0;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    step(subject, batch, {5}, false);
    std::string before = hash_of(subject);
    size_t most = stats_of(subject.torch).peak_packed_bytes;
    size_t held = tensor_memory().allocated_bytes;
    for (size_t bytes = 0; bytes < most; bytes += most / 23) {
        struct rlimit small = {bytes, limit.rlim_max};
        mt_status status;
        setrlimit(RLIMIT_FSIZE, &small);
        status = mt_train_step(subject.torch, &batch.batch, nullptr, nullptr);
        setrlimit(RLIMIT_FSIZE, &limit);
        ck_refused(status, MT_EIO, "offload: cannot write");
        ck_contains(mt_last_error(), "File too large");
        ck_assert_uint_eq(settled(0, [&] { return stats_of(subject.torch).packed_bytes; }), 0);
        ck_assert_uint_eq(settled(held, [] { return tensor_memory().allocated_bytes; }), held);
        ck_assert(hash_of(subject) == before);
        failures++;
    }
    ck_assert_int_gt(failures, 20);
    step(subject, batch, {5}, false);
}

/* The file of this process that has no name; -1: none. */
int nameless_file() {
    DIR *folder = opendir("/proc/self/fd");
    int found = -1;
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        char target[512];
        std::string path = std::string("/proc/self/fd/") + entry->d_name;
        ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        if (std::strstr(target, "memtrain-") && std::strstr(target, "(deleted)"))
            found = std::atoi(entry->d_name);
    }
    if (folder) closedir(folder);
    return found;
}

/* Somebody cuts the file off between the passes: what is read back is not there. */
TEST("errors", cannot_be_read) {
    networks::prepare();
    mt_model *model = nullptr;
    bool cut = true;
    bench::Batch batch(4, 64, CLASSES);
    mt_torch *torch = torch_of(&model, options_for(MT_OFFLOAD_FILE),
                               [&cut](nn::LinearImpl &n, const at::Tensor &x) {
                                   at::Tensor y = n.forward(x).sin().exp();
                                   if (cut) ck_assert_int_eq(ftruncate(nameless_file(), 100), 0);
                                   return y;
                               });
    if (nameless_file() < 0) {
        std::printf("SKIP: cannot_be_read: no /proc\n");
    } else {
        ck_refused(mt_train_step(torch, &batch.batch, nullptr, nullptr), MT_EIO,
                   "offload: cannot read");
        ck_assert_uint_eq(stats_of(torch).packed_bytes, 0);
        cut = false;
        ck_ok(mt_train_step(torch, &batch.batch, nullptr, nullptr));
    }
    mt_torch_free(torch);
    ck_assert_int_eq(nameless_file(), -1);
    mt_model_free(model);
}

/* The folder that was named has the file, and no name is left in it. */
TEST("errors", the_folder) {
    const Network &network = networks::all[2];
    char folder[] = "/tmp/memtrain-test-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    networks::prepare();
    mt_torch_options options = options_for(MT_OFFLOAD_FILE);
    options.offload_dir = folder;
    {
        Subject subject(network, network.side, &options);
        bench::Batch batch(5, network.side, CLASSES);
        step(subject, batch, {3, 2}, false);
        ck_assert_uint_gt(stats_of(subject.torch).packed, 0);
    }
    ck_assert_int_eq(rmdir(folder), 0); /* it is empty */
    mt_torch *torch = nullptr;
    mt_model *model = network.make(CLASSES, network.side);
    ck_refused(mt_torch_new(model, &options, &torch), MT_EIO, folder);
    ck_contains(mt_last_error(), "No such file");
    mt_model_free(model);
}

} // namespace

int main() {
    for (const char *slow : {"torch", "errors"}) tcase_set_timeout(suite_case_named(slow), 300);
    return suite_run_named("shim_offload_torch");
}
