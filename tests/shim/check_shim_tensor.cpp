/*
 * check_shim_tensor.cpp - tensors over memory of the caller's: who gives it back and when, strides, numbers in
 * arrays, budgets, and what is refused.
 */
#include <cstdint>
#include <stdexcept>
#include <thread>

#include <ATen/dlpack.h>

#include "tensor_subject.hpp"

using namespace check_shim;

TEST("memory", lies_over_the_memory) {
    Memory memory;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    mt_tensor_info info = info_of(memory.tensor);
    ck_assert_int_eq(info.dtype, MT_FLOAT32);
    ck_assert_str_eq(info.dtype_name, "Float");
    ck_assert_str_eq(info.device, "cpu");
    ck_assert_ptr_eq(info.data, memory.data);
    ck_assert_uint_eq(info.dims, 2);
    ck_assert_int_eq(info.shape[0] * 10 + info.shape[1], 23);
    ck_assert_int_eq(info.strides[0] * 10 + info.strides[1], 31);
    ck_assert_uint_eq(info.item_bytes, 4);
    ck_assert_uint_eq(info.count, 6);
    ck_assert_uint_eq(info.bytes, 24);
    ck_assert(info.in_order && !info.requires_grad && !info.read_only);
    memory.data[4] = 50; /* nothing was copied */
    ck_assert_float_eq(memtrain::tensor(memory.tensor)[1][1].item<float>(), 50);
    ck_assert_int_eq(memory.released, 0);
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 1);
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 1);
}

/* Whatever still needs the memory keeps it: views, what a graph has saved, another thread. */
TEST("memory", released_with_the_last_tensor) {
    Memory memory;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    at::Tensor weight = at::ones({2, 3}).requires_grad_();
    {
        at::Tensor sum = (memtrain::tensor(memory.tensor) * weight).sum();
        at::Tensor row = memtrain::tensor(memory.tensor).select(0, 1);
        mt_tensor_free(memory.tensor);
        ck_assert_int_eq(memory.released, 0);
        sum.backward();
        ck_assert_float_eq(weight.grad()[1][2].item<float>(), 6);
        sum = at::Tensor();
        ck_assert_int_eq(memory.released, 0);
        std::thread([moved = std::move(row)]() mutable { moved.reset(); }).join();
        ck_assert_int_eq(memory.released, 1);
    }
    ck_assert_int_eq(memory.released, 1);
}

TEST("memory", strides) {
    Memory memory;
    float out[9];
    /* The columns as rows. */
    memory.shape[0] = 3, memory.shape[1] = 2;
    memory.strides[0] = 1, memory.strides[1] = 3;
    memory.m.strides = memory.strides;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_assert(!info_of(memory.tensor).in_order);
    ck_ok(mt_tensor_read(memory.tensor, MT_FLOAT32, out, sizeof out));
    const float columns[] = {1, 4, 2, 5, 3, 6};
    ck_assert_mem_eq(out, columns, sizeof columns);
    const float other[] = {10, 40, 20, 50, 30, 60};
    ck_ok(mt_tensor_write(memory.tensor, MT_FLOAT32, other, sizeof other));
    ck_assert_float_eq(memory.data[1], 20);
    mt_tensor_free(memory.tensor);
    /* The first row three times: it can be read, not written. */
    memory.shape[0] = memory.shape[1] = 3;
    memory.strides[0] = 0, memory.strides[1] = 1;
    memory.m.bytes = 12;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_read(memory.tensor, MT_FLOAT32, out, sizeof out));
    ck_assert_float_eq(out[7], 20);
    refused(mt_tensor_write(memory.tensor, MT_FLOAT32, out, sizeof out), MT_EINVAL,
            "mt_tensor_write: elements of tensor share memory, as its strides tell");
    mt_tensor_free(memory.tensor);
    /* Windows of two that share one, and pairs with a gap between them. */
    memory.shape[0] = memory.shape[1] = 2;
    memory.strides[0] = 1;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_status(mt_tensor_write(memory.tensor, MT_FLOAT32, out, 16), MT_EINVAL);
    mt_tensor_free(memory.tensor);
    memory.strides[0] = 3;
    memory.m.bytes = sizeof memory.data;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_write(memory.tensor, MT_FLOAT32, other, 16));
    ck_assert_float_eq(memory.data[3], 20);
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 4);
}

/* One number, no element, most dimensions. */
TEST("memory", edges_of_shapes) {
    Memory memory;
    double value = 0;
    int64_t ones[MT_TENSOR_DIMS_MAX];
    memory.m.dims = 0;
    memory.m.shape = nullptr;
    memory.m.bytes = 4;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_read(memory.tensor, MT_FLOAT64, &value, sizeof value));
    ck_assert_double_eq(value, 1);
    mt_tensor_free(memory.tensor);
    memory.m.dims = 3;
    memory.m.shape = memory.shape;
    memory.m.data = nullptr;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_assert_uint_eq(info_of(memory.tensor).count, 0);
    ck_assert_ptr_null(info_of(memory.tensor).data);
    ck_ok(mt_tensor_read(memory.tensor, MT_FLOAT32, nullptr, 0));
    ck_ok(mt_tensor_write(memory.tensor, MT_FLOAT32, nullptr, 0));
    mt_tensor_free(memory.tensor);
    for (int64_t &one : ones) one = 1;
    memory.m.dims = MT_TENSOR_DIMS_MAX;
    memory.m.shape = ones;
    memory.m.data = memory.data;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_read(memory.tensor, MT_FLOAT64, &value, sizeof value));
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 3);
}

struct Refusal {
    void (*change)(Memory &);
    mt_status status;
    const char *line; /* after "mt_tensor_wrap: " */
};

const Refusal refusals[] = {
    {[](Memory &m) { m.m.data = nullptr; }, MT_EINVAL, "memory->data is NULL"},
    {[](Memory &m) { m.m.data = nullptr, m.m.strides = m.strides; }, MT_EINVAL,
     "memory->data is NULL"},
    {[](Memory &m) { m.m.dtype = MT_DTYPE_NONE; }, MT_EINVAL, "dtype 0 is none of mt_dtype"},
    {[](Memory &m) { m.m.dims = 65; }, MT_EINVAL, "memory->dims is 65; accepted: at most 64"},
    {[](Memory &m) { m.m.shape = nullptr; }, MT_EINVAL, "memory->shape is NULL"},
    {[](Memory &m) { m.shape[1] = -3; }, MT_EINVAL, "memory->shape[1] is -3; accepted: at least 0"},
    {[](Memory &m) { m.shape[0] = m.shape[1] = int64_t(1) << 31; }, MT_EINVAL,
     "memory->shape[1] is 2147483648; accepted: at most 1073741823 there, for "
     "9223372036854775807 bytes"},
    {[](Memory &m) { m.shape[1] = 4; }, MT_EINVAL,
     "memory->bytes is 24; accepted: at least 32, to the last element"},
    {[](Memory &m) { m.m.strides = m.strides, m.strides[1] = -1; }, MT_EINVAL,
     "memory->strides[1] is -1; accepted: at least 0, libtorch cannot step backwards: copy the "
     "values first"},
    {[](Memory &m) { m.m.strides = m.strides, m.strides[0] = 4; }, MT_EINVAL,
     "memory->bytes is 24; accepted: at least 28, to the last element"},
    {[](Memory &m) { m.m.strides = m.strides, m.strides[0] = INT64_MAX / 4; }, MT_EINVAL,
     "memory->strides[0] is 2305843009213693951; accepted: at most 2305843009213693948 there, for "
     "9223372036854775807 bytes"},
    {[](Memory &m) { m.m.device = "toaster"; }, MT_EINVAL,
     "'toaster' is not the name of a device; accepted: cpu, cuda, cuda:N, xpu, xpu:N, mps, "
     "sim:cuda, "
     "sim:mps; here: cpu"},
    {[](Memory &m) { m.m.device = "sim:cuda"; }, MT_ENOTSUP,
     "device 'sim:cuda' is simulated, and tensors get there by mt_torch_new alone"},
};

/* The memory comes back once, however the call fails. */
TEST("memory", refused_memory_comes_back) {
    for (const Refusal &r : refusals) {
        Memory memory;
        memory.tensor = reinterpret_cast<mt_tensor *>(&memory);
        std::string line = std::string("mt_tensor_wrap: ") + r.line;
        r.change(memory);
        mt_status status = mt_tensor_wrap(&memory.m, &memory.tensor);
        refused(status, r.status, with_cards_here(line).c_str());
        ck_assert_ptr_null(memory.tensor);
        ck_assert_int_eq(memory.released, 1);
    }
}

TEST("memory", arguments_of_wrap) {
    Memory memory;
    refused(mt_tensor_wrap(nullptr, &memory.tensor), MT_EINVAL, "mt_tensor_wrap: memory is NULL");
    refused(mt_tensor_wrap(&memory.m, nullptr), MT_EINVAL, "mt_tensor_wrap: out is NULL");
    ck_assert_int_eq(memory.released, 1);
    memory.m.size = 0;
    refused(mt_tensor_wrap(&memory.m, &memory.tensor), MT_EINVAL,
            "mt_tensor_wrap: memory->size is not set");
    ck_assert_int_eq(memory.released, 1);
    /* Of an older caller, whose struct ends before the strides. */
    memory.strides[0] = 77;
    memory.m.strides = memory.strides;
    memory.m.size = offsetof(mt_tensor_memory, strides);
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_assert_int_eq(info_of(memory.tensor).strides[0], 3);
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 1);
    /* A pointer that no element can have. */
    Memory odd;
    odd.m.data = reinterpret_cast<char *>(odd.data) + 2;
    odd.m.bytes = 0;
    ck_refused(mt_tensor_wrap(&odd.m, &odd.tensor), MT_EINVAL,
               "accepted for Float: a multiple of 4");
    ck_assert_int_eq(odd.released, 1);
    /* Without a release nothing is called, and nobody else frees. */
    odd.m.data = odd.data;
    odd.m.release = nullptr;
    ck_ok(mt_tensor_wrap(&odd.m, &odd.tensor));
    mt_tensor_free(odd.tensor);
    ck_assert_int_eq(odd.released, 1);
}

/* An error line of the callback's own is not the one that is told; what it throws ends there. */
TEST("memory", callbacks_that_misbehave) {
    Memory memory;
    memory.m.release = [](void *) {
        mt_status ignored = mt_set_error(MT_EIO, "of the callback");
        (void)ignored;
        throw std::runtime_error("of the callback");
    };
    memory.m.dims = 65;
    refused(mt_tensor_wrap(&memory.m, &memory.tensor), MT_EINVAL,
            "mt_tensor_wrap: memory->dims is 65; accepted: at most 64");
    memory.m.dims = 2;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    mt_tensor_free(memory.tensor);
}

/* ---- numbers ---- */

struct Dtype {
    mt_dtype dtype;
    size_t item;
    const char *name;
};

const Dtype dtypes[] = {
    {MT_FLOAT32, 4, "Float"},     {MT_FLOAT64, 8, "Double"}, {MT_FLOAT16, 2, "Half"},
    {MT_BFLOAT16, 2, "BFloat16"}, {MT_INT64, 8, "Long"},     {MT_INT32, 4, "Int"},
    {MT_UINT8, 1, "Byte"},        {MT_BOOL, 1, "Bool"},
};

/* Small numbers, as one dtype in a tensor, as another in an array, and back. */
static void there_and_back(const Dtype &in, const Dtype &out) {
    const float zeros[6] = {0, 0, 0, 0, 0, 0};
    const bool is_bool = in.dtype == MT_BOOL || out.dtype == MT_BOOL;
    alignas(8) unsigned char array[6 * 8];
    Memory memory;
    mt_tensor *copy;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_copy(memory.tensor, "cpu", in.dtype, &copy));
    mt_tensor_info info = info_of(copy);
    ck_assert_int_eq(info.dtype, in.dtype);
    ck_assert_str_eq(info.dtype_name, in.name);
    ck_assert_uint_eq(info.item_bytes, in.item);
    ck_status(mt_tensor_read(copy, out.dtype, array, 6 * out.item - 1), MT_EINVAL);
    ck_ok(mt_tensor_read(copy, out.dtype, array, 6 * out.item));
    ck_ok(mt_tensor_write(memory.tensor, MT_FLOAT32, zeros, sizeof zeros));
    ck_ok(mt_tensor_write(memory.tensor, out.dtype, array, 6 * out.item));
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq(memory.data[i], is_bool ? 1.0f : static_cast<float>(i + 1));
    mt_tensor_free(copy);
    mt_tensor_free(memory.tensor);
}

TEST("numbers", numbers_of_each_dtype) {
    for (const Dtype &in : dtypes)
        for (const Dtype &out : dtypes) there_and_back(in, out);
}

TEST("numbers", arguments_of_numbers) {
    Memory memory;
    float out[6];
    mt_tensor *other = nullptr;
    mt_tensor_info info = MT_TENSOR_INFO_INIT;
    memory.m.read_only = 1;
    memory.m.release = nullptr;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_assert_int_eq(info_of(memory.tensor).read_only, 1);
    refused(mt_tensor_read(memory.tensor, MT_FLOAT32, out, 23), MT_EINVAL,
            "mt_tensor_read: bytes is 23; accepted: at least 24, to the last element");
    refused(mt_tensor_read(memory.tensor, MT_FLOAT32, nullptr, 24), MT_EINVAL,
            "mt_tensor_read: data is NULL");
    refused(mt_tensor_read(memory.tensor, MT_DTYPE_NONE, out, 24), MT_EINVAL,
            "mt_tensor_read: dtype 0 is none of mt_dtype");
    refused(mt_tensor_read(nullptr, MT_FLOAT32, out, 24), MT_EINVAL,
            "mt_tensor_read: tensor is NULL");
    refused(mt_tensor_write(memory.tensor, MT_FLOAT32, out, 24), MT_EINVAL,
            "mt_tensor_write: tensor is read-only");
    /* What is of the memory is read-only as well; a copy is not. */
    ck_ok(mt_tensor_copy(memory.tensor, nullptr, MT_DTYPE_NONE, &other));
    ck_assert_int_eq(info_of(other).read_only, 0);
    ck_ok(mt_tensor_write(other, MT_FLOAT32, out, 24));
    memtrain::tensor(other) = memtrain::tensor(memory.tensor).select(0, 1);
    refused(mt_tensor_write(other, MT_FLOAT32, out, 24), MT_EINVAL,
            "mt_tensor_write: tensor is read-only");
    mt_tensor_free(other);
    refused(mt_tensor_describe(other, &info), MT_EINVAL,
            "mt_tensor_describe: tensor is not a live handle");
    info.size = 0;
    refused(mt_tensor_describe(memory.tensor, &info), MT_EINVAL,
            "mt_tensor_describe: out->size is not set");
    refused(mt_tensor_copy(memory.tensor, "sim:mps", MT_DTYPE_NONE, &other), MT_ENOTSUP,
            "mt_tensor_copy: device 'sim:mps' is simulated, and tensors get there by mt_torch_new "
            "alone");
    refused(mt_tensor_copy(memory.tensor, nullptr, MT_DTYPE_NONE, nullptr), MT_EINVAL,
            "mt_tensor_copy: out is NULL");
    mt_tensor_free(memory.tensor);
    ck_ok(mt_tensor_new(&other));
    info.size = sizeof info;
    refused(mt_tensor_describe(other, &info), MT_ESTATE,
            "mt_tensor_describe: tensor is a handle without a tensor in it");
    memtrain::tensor(other) = at::ones({2, 2}).to_sparse();
    refused(mt_tensor_describe(other, &info), MT_ENOTSUP, "mt_tensor_describe: tensor is sparse");
    memtrain::tensor(other) = at::ones({2}, at::kChar);
    ck_assert_int_eq(info_of(other).dtype, MT_DTYPE_NONE);
    ck_ok(mt_tensor_read(other, MT_FLOAT32, out, 8));
    ck_assert_float_eq(out[1], 1);
    mt_tensor_free(other);
}

/* A caller with a smaller struct gets what it has room for, and its size. */
TEST("numbers", older_info) {
    Memory memory;
    mt_tensor_info info;
    memset(&info, 0x55, sizeof info);
    info.size = offsetof(mt_tensor_info, count);
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_describe(memory.tensor, &info));
    ck_assert_uint_eq(info.size, offsetof(mt_tensor_info, count));
    ck_assert_uint_eq(info.dims, 2);
    ck_assert_uint_eq(info.count, SIZE_MAX / 0xff * 0x55);
    mt_tensor_free(memory.tensor);
}

/* Parameters are read and written between steps, through the handles that a visit lends. */
TEST("numbers", parameters_by_name) {
    Trainer trainer(options_of(MT_SGD));
    std::string before = trainer.hash();
    auto change = [](void *, const char *name, mt_tensor *tensor) {
        float values[5];
        if (std::string(name) != "linear.bias") return MT_OK;
        ck_assert(info_of(tensor).requires_grad);
        ck_ok(mt_tensor_read(tensor, MT_FLOAT32, values, sizeof values));
        values[2] += 1;
        return mt_tensor_write(tensor, MT_FLOAT32, values, sizeof values);
    };
    float bias = trainer.net->linear->bias[2].item<float>();
    ck_ok(mt_torch_visit_state(trainer.torch, change, nullptr));
    ck_assert_float_eq(trainer.net->linear->bias[2].item<float>(), bias + 1);
    ck_assert(before != trainer.hash());
    Batch batch(4);
    ck_ok(mt_train_step(trainer.torch, batch.get(), nullptr, nullptr));
}

/* ---- budgets and training ---- */

TEST("training", what_a_budget_counts) {
    std::vector<float> numbers(1 << 20);
    const int64_t shape[] = {1 << 20};
    mt_tensor *copy;
    Memory memory;
    memory.m.data = numbers.data();
    memory.m.bytes = numbers.size() * 4;
    memory.m.dims = 1;
    memory.m.shape = shape;
    size_t before = cpu_memory().allocated_bytes;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
    ck_ok(mt_tensor_copy(memory.tensor, nullptr, MT_FLOAT64, &copy));
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before + (8u << 20));
    ck_ok(mt_device_set_budget("cpu", before + (9u << 20)));
    mt_tensor *more = copy;
    ck_status(mt_tensor_copy(memory.tensor, nullptr, MT_DTYPE_NONE, &more), MT_EDEVMEM);
    ck_assert_ptr_null(more);
    DLManagedTensorVersioned *out;
    ck_status(mt_tensor_to_dlpack_versioned(memory.tensor, 1, &out), MT_EDEVMEM);
    ck_assert_ptr_null(out);
    mt_tensor_free(copy);
    ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 1);
}

/* Pictures whose channels lie innermost train to the bits of those in row-major order. */
TEST("training", trains_from_strided_memory) {
    Batch batch(6);
    std::vector<float> inner(6 * 3 * 8 * 8);
    const auto *outer = static_cast<const float *>(info_of(batch.images()).data);
    for (size_t n = 0; n < 6; n++)
        for (size_t c = 0; c < 3; c++)
            for (size_t i = 0; i < 64; i++)
                inner[(n * 64 + i) * 3 + c] = outer[(n * 3 + c) * 64 + i];
    const int64_t shape[] = {6, 3, 8, 8}, steps[] = {192, 1, 24, 3};
    Memory memory;
    memory.m.data = inner.data();
    memory.m.bytes = inner.size() * 4;
    memory.m.dims = 4;
    memory.m.shape = shape;
    memory.m.strides = steps;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_assert(memtrain::tensor(memory.tensor).equal(memtrain::tensor(batch.images())));
    mt_tensor *tensors[] = {memory.tensor, batch.labels()};
    mt_torch_batch data = {sizeof data, tensors, 2};
    mt_batch strided = {sizeof strided, &data, 6, 0};
    double loss[2];
    for (int i = 0; i < 2; i++) {
        Trainer trainer(options_of(MT_SGD));
        mt_chunk_result result = chunk_result();
        ck_ok(mt_train_step(trainer.torch, i ? &strided : batch.get(), &result, nullptr));
        loss[i] = result.loss_sum;
    }
    /* Other kernels serve another order of memory, so the last bits may differ. */
    ck_assert_double_eq_tol(loss[0], loss[1], 1e-4);
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 1);
}

/* Each request for memory fails in turn: no tensor, and what was lent comes back once. */
TEST("training", every_request_fails) {
    uint64_t requests = 0, failed = 1, n;
    for (n = 1; failed; n++) {
        Memory memory;
        mt_tensor *copy = nullptr;
        DLManagedTensorVersioned *out = nullptr;
        size_t before = cpu_memory().allocated_bytes;
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = mt_tensor_wrap(&memory.m, &memory.tensor);
        if (status == MT_OK) status = mt_tensor_copy(memory.tensor, nullptr, MT_FLOAT16, &copy);
        if (status == MT_OK) status = mt_tensor_to_dlpack_versioned(copy, 1, &out);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_status(status, failed ? MT_EDEVMEM : MT_OK);
        if (out) out->deleter(out);
        mt_tensor_free(copy);
        mt_tensor_free(memory.tensor);
        ck_assert_int_eq(memory.released, 1);
        ck_assert_uint_eq(cpu_memory().allocated_bytes, before);
    }
    ck_assert_uint_ge(n, 4); /* the two copies, and the run that went through */
}

int main() {
    for (const char *name : {"memory", "numbers", "training"})
        tcase_add_checked_fixture(suite_case_named(name), init, nullptr);
    return suite_run_named("shim_tensor");
}
