/*
 * check_shim_large.cpp - sizes and offsets above 2 and 4 GiB, in a few MiB: the tensors' pages are never touched, or
 * are one row many times, and files are sparse.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memtrain/safetensors.h>

#include "check_shim.hpp"

using namespace check_shim;

/* ---- a disk that is not there ------------------------------------------------------------------------- */

namespace {

constexpr size_t MiB = size_t{1} << 20, GiB = size_t{1} << 30;

/* What pieces of 1 MiB and more were asked for. They are neither written nor read. */
struct Disk {
    size_t calls = 0, bytes = 0, largest = 0;
    int64_t end = 0; /* of the last one */
    bool in_order = true;
    void (*look)(const char *data, size_t bytes, int64_t at) = nullptr;

    ssize_t take(const void *data, size_t count, int64_t at) {
        in_order = in_order && (!calls || at == end);
        calls++;
        bytes += count;
        largest = std::max(largest, count);
        end = at + static_cast<int64_t>(count);
        if (look) look(static_cast<const char *>(data), count, at);
        return static_cast<ssize_t>(count);
    }
};
Disk disk;

} // namespace

/* They stand in the place of the C library's. */
extern "C" ssize_t write(int file, const void *data, size_t bytes) {
    struct iovec piece = {const_cast<void *>(data), bytes};
    if (bytes < MiB) return writev(file, &piece, 1);
    int64_t at = lseek(file, 0, SEEK_CUR);
    return lseek(file, static_cast<off_t>(bytes), SEEK_CUR) < 0 ? -1 : disk.take(data, bytes, at);
}

extern "C" ssize_t pwrite(int file, const void *data, size_t bytes, off_t at) {
    struct iovec piece = {const_cast<void *>(data), bytes};
    return bytes < MiB ? pwritev(file, &piece, 1, at) : disk.take(data, bytes, at);
}

extern "C" ssize_t pread(int file, void *data, size_t bytes, off_t at) {
    struct iovec piece = {data, bytes};
    return bytes < MiB ? preadv(file, &piece, 1, at) : disk.take(data, bytes, at);
}

namespace {

void prepare() {
    ck_ok(mt_torch_init(nullptr));
    ck_ok(mt_torch_set_threads(1));
    ck_ok(mt_device_set_budget("cpu", 16 * GiB));
}

struct File {
    std::string folder, path;
    File() {
        char name[] = "/tmp/check_large.XXXXXX";
        ck_assert_ptr_nonnull(mkdtemp(name));
        folder = name;
        path = folder + "/c";
    }
    ~File() {
        std::remove(path.c_str());
        rmdir(folder.c_str());
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
};

/* ---- offload ------------------------------------------------------------------------------------------ */

constexpr int64_t saved_elements = (int64_t{9} << 27) + 3; /* float32: 4.5 GiB */

/* Keeps x for the backward pass and computes nothing with it. */
struct Keeping : torch::autograd::Function<Keeping> {
    static at::Tensor forward(torch::autograd::AutogradContext *context, const at::Tensor &w,
                              const at::Tensor &x) {
        context->save_for_backward({x});
        return w.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext *context,
                                                   torch::autograd::variable_list gradients) {
        ck_assert_int_eq(context->get_saved_variables()[0].numel(), saved_elements);
        return {gradients[0], at::Tensor()};
    }
};

at::Tensor kept;

mt_status keep(void *user) {
    kept =
        Keeping::apply(*static_cast<at::Tensor *>(user), at::empty({saved_elements}, at::kFloat));
    return MT_OK;
}

void in_pieces(size_t bytes) {
    ck_assert_uint_eq(disk.bytes, bytes);
    ck_assert_uint_eq(disk.calls, 5);
    ck_assert_uint_le(disk.largest, GiB);
    ck_assert(disk.in_order);
}

/* A tensor of more than 4 GiB goes to the file, and comes back, in pieces that any system takes. */
TEST("large", offload_to_a_file) {
    prepare();
    at::Tensor w = at::ones({4}).requires_grad_();
    size_t bytes = saved_elements * sizeof(float);
    ck_ok(mt_offload("cpu", MT_OFFLOAD_FILE, "/tmp", keep, &w));
    in_pieces(bytes);
    disk = Disk();
    kept.sum().backward();
    in_pieces(bytes);
    kept.reset();
}

/* ---- weights ------------------------------------------------------------------------------------------ */

constexpr int64_t row = 65537, rows = 32769; /* 2^31 and some elements */

struct Wide : nn::Module {
    explicit Wide(const at::Tensor &table) { register_buffer("table", table); }
};

mt_model *model_of(const at::Tensor &table) {
    mt_model *model = nullptr;
    ck_ok(memtrain::make_model(&model, [&] {
        return memtrain::model(std::make_shared<Wide>(table), {},
                               [](Wide &, const memtrain::Tensors &batch) {
                                   return memtrain::Output{batch[0].sum(), {}};
                               });
    }));
    return model;
}

int64_t data_at; /* where the tensor begins in the file */

void look(const char *data, size_t bytes, int64_t at) {
    for (size_t i : {size_t{0}, bytes / 2, bytes - 1}) {
        auto place = (at - data_at + static_cast<int64_t>(i)) % row;
        ck_assert_int_eq(static_cast<unsigned char>(data[i]), place % 251);
    }
}

/* One row, many times; row by row through a buffer. */
TEST("large", more_elements_than_an_int_counts) {
    prepare();
    File file;
    at::Tensor one = at::arange(row).remainder(251).to(at::kByte);
    mt_model *model = model_of(one.expand({rows, row}));
    mt_safetensors *saved = nullptr;
    mt_safetensors_tensor tensor;
    struct stat info;
    /* The header comes in one small write: the first large one is where the tensor begins. */
    disk.look = [](const char *data, size_t bytes, int64_t at) {
        if (!data_at) data_at = at;
        look(data, bytes, at);
    };
    ck_ok(mt_model_save_weights(model, file.path.c_str()));
    /* The last piece is a small one. */
    ck_assert_uint_lt(static_cast<size_t>(row * rows) - disk.bytes, MiB);
    ck_assert(disk.in_order);
    ck_assert_int_eq(stat(file.path.c_str(), &info), 0);
    ck_assert_int_eq(info.st_size, data_at + row * rows);
    ck_ok(mt_safetensors_open(file.path.c_str(), &saved));
    ck_ok(mt_safetensors_get(saved, 0, &tensor));
    ck_assert_uint_eq(tensor.bytes, static_cast<uint64_t>(row * rows));
    ck_assert_int_eq(tensor.shape[0], rows);
    mt_safetensors_free(saved);
    mt_model_free(model);
}

/* A file of 5 GiB and a bit, in which the model's tensor is the last one. */
TEST("large", weights_behind_4_gib) {
    prepare();
    File file;
    std::string header =
        R"({"a":{"dtype":"U8","shape":[5368709120],"data_offsets":[0,5368709120]},)"
        R"("table":{"dtype":"U8","shape":[3],"data_offsets":[5368709120,5368709123]}})";
    while (header.size() % 8) header += ' ';
    std::string prefix(8, '\0');
    for (int i = 0; i < 8; i++)
        prefix[static_cast<size_t>(i)] = static_cast<char>(header.size() >> 8 * i);
    int out = open(file.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    std::string start = prefix + header;
    ck_assert_int_eq(write(out, start.data(), start.size()), static_cast<ssize_t>(start.size()));
    off_t at = static_cast<off_t>(start.size() + 5 * GiB);
    if (pwrite(out, "\1\2\3", 3, at) != 3) {
        close(out);
        suite_skip("shim_large: weights_behind_4_gib", "no file of 5 GiB can be made in /tmp");
        return;
    }
    close(out);
    at::Tensor table = at::arange(3).to(at::kByte);
    mt_model *model = model_of(table);
    mt_weights_options options = MT_WEIGHTS_OPTIONS_INIT;
    options.strict = 0;
    ck_ok(mt_model_load_weights(model, file.path.c_str(), &options));
    ck_assert(table.equal(at::arange(1, 4).to(at::kByte)));
    ck_assert_uint_eq(disk.bytes, 5 * GiB); /* all of it is read once, before anything changes */
    mt_model_free(model);
}

} // namespace

SUITE("shim_large")
