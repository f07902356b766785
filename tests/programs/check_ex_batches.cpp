/*
 * check_ex_batches.cpp - batches that are rendered ahead: the same as those that are not, in whatever order
 * they are asked for, with any number of threads; counted in the budget; and pictures that have gone.
 */
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <unistd.h>

#include <ATen/core/Tensor.h>

#include <memtrain/torch.hpp>

extern "C" {
#include "batches.h"
#include "pictures.h"
}

#include "suite.h"

namespace {

namespace fs = std::filesystem;

constexpr int side = 16;
constexpr size_t batch = 10;

/* The pictures that come with the programs; max_bytes 1: none of them is kept. */
ex_dataset *open_pictures(const char *folder, size_t max_bytes = 0) {
    ex_dataset_options options = {};
    ex_dataset *dataset = nullptr;
    ex_error error = {};
    options.seed = 3;
    options.keep_side = 20;
    options.max_samples = 60;
    options.max_bytes = max_bytes;
    ck_assert_msg(ex_dataset_open(folder, &options, &dataset, &error) == EX_OK, "%s", error.text);
    return dataset;
}

constexpr char food[] = "examples/data/food";

/* One at a time reads its pictures. */
ex_batches *make(ex_dataset *dataset, size_t workers, size_t prefetch) {
    static ex_pictures pictures;
    pictures = {dataset, side};
    ex_batches_options options = {batch, workers, prefetch};
    ex_batches *batches = nullptr;
    ex_source source = ex_pictures_source(&pictures);
    ck_ok(ex_batches_new(&source, &options, &batches));
    return batches;
}

/* The batch is what the data set renders. */
void is_rendered(const mt_batch &got, const ex_dataset *pictures, ex_split split, uint64_t epoch,
                 size_t index) {
    std::vector<float> pixels(got.count * 3 * side * side);
    std::vector<int64_t> labels(got.count);
    ck_assert_int_eq(ex_dataset_fill(pictures, split, epoch, index * batch, got.count, side,
                                     split == EX_TRAINING, pixels.data(), labels.data(), nullptr),
                     EX_OK);
    auto *torch = static_cast<const mt_torch_batch *>(got.data);
    ck_assert_uint_eq(torch->count, 2);
    const at::Tensor &images = memtrain::tensor(torch->tensors[0]);
    ck_assert_int_eq(images.size(0), static_cast<int64_t>(got.count));
    ck_assert_int_eq(std::memcmp(images.const_data_ptr(), pixels.data(), pixels.size() * 4), 0);
    ck_assert_int_eq(std::memcmp(memtrain::tensor(torch->tensors[1]).const_data_ptr(),
                                 labels.data(), labels.size() * 8),
                     0);
}

void check(ex_batches *batches, const ex_dataset *pictures, ex_split split, uint64_t epoch,
           size_t index) {
    mt_batch got = MT_BATCH_INIT;
    ck_ok(ex_batches_fill(batches, split, epoch, index, &got));
    is_rendered(got, pictures, split, epoch, index);
}

/* As a run asks for them. */
void check_epochs(ex_batches *batches, const ex_dataset *pictures) {
    for (uint64_t epoch = 1; epoch <= 3; epoch++) {
        for (size_t i = 0; i < ex_batches_count(batches, EX_TRAINING); i++)
            check(batches, pictures, EX_TRAINING, epoch, i);
        for (size_t i = 0; i < ex_batches_count(batches, EX_VALIDATION); i++)
            check(batches, pictures, EX_VALIDATION, 0, i);
    }
}

/* As nobody does. */
void check_at_random(ex_batches *batches, const ex_dataset *pictures, unsigned random) {
    for (int i = 0; i < 60; i++) {
        random = random * 1664525u + 1013904223u;
        ex_split split = random >> 30 ? EX_TRAINING : EX_VALIDATION;
        size_t index = (random >> 16) % ex_batches_count(batches, split);
        check(batches, pictures, split, split == EX_TRAINING ? 1 + (random >> 20) % 3 : 0, index);
    }
}

struct {
    size_t workers, prefetch;
} const ways[] = {{0, 1}, {1, 1}, {1, 3}, {2, 1}, {3, 8}, {EX_WORKERS_MAX, 40}};

} // namespace

TEST_LOOP("batches", the_same_batches, 2 * LENGTH(ways)) {
    ex_dataset *pictures = open_pictures(food, _i % 2);
    ex_batches *batches = make(pictures, ways[_i / 2].workers, ways[_i / 2].prefetch);
    check_epochs(batches, pictures);
    check_at_random(batches, pictures, static_cast<unsigned>(_i));
    ex_batches_free(batches);
    ex_dataset_free(pictures);
}

/* Ended in the middle of rendering, again and again. */
TEST("batches", ended_at_once) {
    ex_dataset *pictures = open_pictures(food);
    for (int i = 0; i < 100; i++) {
        ex_batches *batches = make(pictures, 2, 4);
        if (i % 2) check(batches, pictures, EX_TRAINING, 1, 0);
        ex_batches_free(batches);
    }
    ex_dataset_free(pictures);
}

static mt_memory memory_now() {
    mt_memory memory = {};
    memory.size = sizeof memory;
    ck_ok(mt_device_memory("cpu", &memory));
    return memory;
}

TEST("batches", counted) {
    ck_ok(mt_torch_init(nullptr));
    size_t before = memory_now().allocated_bytes;
    ex_dataset *pictures = open_pictures(food);
    for (size_t prefetch : {1, 4}) {
        ex_batches *batches = make(pictures, 1, prefetch);
        size_t ahead = prefetch * batch * (side * side * 3 + 8);
        ck_assert_uint_eq(ex_batches_ahead_bytes(batches), ahead);
        mt_memory memory = memory_now();
        ck_assert_uint_eq(memory.allocated_bytes, before + ahead);
        ck_assert_uint_ge(memory.peak_bytes, before + ahead);
        ex_batches_free(batches);
        ck_assert_uint_eq(memory_now().allocated_bytes, before);
    }
    ex_batches *none = make(pictures, 0, 4);
    ck_assert_uint_eq(ex_batches_ahead_bytes(none), 0);
    ex_batches_free(none);
    ex_dataset_free(pictures);
    ex_batches_free(nullptr);
}

/* Of two at once both count, and what the first holds goes on counting when the second has gone. */
TEST("batches", two_are_counted) {
    ck_ok(mt_torch_init(nullptr));
    size_t before = memory_now().allocated_bytes, one = batch * (side * side * 3 + 8);
    ex_dataset *pictures = open_pictures(food);
    ex_batches *first = make(pictures, 1, 2), *second = make(pictures, 1, 3);
    ck_assert_uint_eq(memory_now().allocated_bytes, before + 5 * one);
    ex_batches_free(second);
    ck_assert_uint_eq(memory_now().allocated_bytes, before + 2 * one);
    second = make(pictures, 0, 1);
    ck_assert_uint_eq(memory_now().allocated_bytes, before + 2 * one);
    ex_batches_stop_ahead(first);
    ck_assert_uint_eq(memory_now().allocated_bytes, before);
    ex_batches_free(first);
    ex_batches_free(second);
    ex_dataset_free(pictures);
}

namespace {

size_t count_few(const void *, ex_split) {
    return batch;
}

/* Bytes in use; 0 where that is not told. A sanitizer of addresses finds what is lost by itself. */
size_t heap_now() {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
    return mallinfo2().uordblks;
#else
    return 0;
#endif
}

ex_status fill_nothing(const void *, ex_split, uint64_t, size_t, size_t, void *const *,
                       ex_error *) {
    return EX_OK;
}

} // namespace

/* The second tensor cannot be made: the first is freed, and a later call begins anew. */
TEST("batches", a_view_that_fails_leaves_nothing) {
    ck_ok(mt_torch_init(nullptr));
    ex_source source = {};
    source.unit = "things";
    source.tensor_count = 2;
    source.tensors[0] = {MT_FLOAT32, 1, {4}};
    source.tensors[1] = {static_cast<mt_dtype>(99), 1, {4}};
    source.count = count_few;
    source.fill = fill_nothing;
    ex_batches_options options = {batch, 0, 1};
    ex_batches *batches = nullptr;
    mt_batch got = MT_BATCH_INIT;
    ck_ok(ex_batches_new(&source, &options, &batches));
    ck_status(ex_batches_fill(batches, EX_TRAINING, 1, 0, &got), MT_EINVAL);
    size_t kept = heap_now();
    if (!kept) std::printf("SKIP: views: the heap does not tell what is in use\n");
    for (int i = 0; i < 1000; i++)
        ck_status(ex_batches_fill(batches, EX_TRAINING, 1, 0, &got), MT_EINVAL);
    ck_assert_uint_le(heap_now(), kept + 1000 * 16);
    ex_batches_free(batches);
}

/*
 * In the middle of rendering: the last batch stays as it is, those after it are the same, one at a time, and
 * nothing is counted.
 */
TEST_LOOP("batches", stopped_ahead, LENGTH(ways)) {
    ck_ok(mt_torch_init(nullptr));
    size_t before = memory_now().allocated_bytes;
    ex_dataset *pictures = open_pictures(food);
    ex_batches *batches = make(pictures, ways[_i].workers, ways[_i].prefetch);
    mt_batch last = MT_BATCH_INIT;
    check(batches, pictures, EX_TRAINING, 1, 0);
    ck_ok(ex_batches_fill(batches, EX_TRAINING, 1, 1, &last));
    ex_batches_stop_ahead(batches);
    is_rendered(last, pictures, EX_TRAINING, 1, 1);
    ck_assert_uint_eq(ex_batches_ahead_bytes(batches), 0);
    ck_assert_uint_eq(memory_now().allocated_bytes, before);
    check_epochs(batches, pictures);
    ex_batches_stop_ahead(batches);
    ex_batches_free(batches);
    ex_dataset_free(pictures);
}

/* A picture that is not kept has gone: the batch that needs it says so, others do not. */
TEST_LOOP("batches", pictures_that_have_gone, 2) {
    fs::path copy = fs::temp_directory_path() / ("check_ex_batches." + std::to_string(getpid()));
    fs::copy(food, copy, fs::copy_options::recursive);
    ex_dataset *pictures = open_pictures(copy.c_str(), 1);
    ex_batches *batches = make(pictures, static_cast<size_t>(_i), 2);
    mt_batch got = MT_BATCH_INIT;
    check(batches, pictures, EX_TRAINING, 1, 0);
    fs::remove_all(copy);
    size_t failed = 0, count = ex_batches_count(batches, EX_TRAINING);
    for (size_t i = 0; i < count; i++) {
        mt_status status = ex_batches_fill(batches, EX_TRAINING, 2, i, &got);
        if (status == MT_OK) continue;
        ck_assert_int_eq(status, MT_EINVAL);
        ck_assert_ptr_nonnull(strstr(mt_last_error(), copy.c_str()));
        failed++;
    }
    ck_assert_uint_eq(failed, count);
    ex_batches_free(batches);
    ex_dataset_free(pictures);
}

SUITE("ex_batches")
