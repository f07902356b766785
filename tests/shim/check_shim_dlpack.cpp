/*
 * check_shim_dlpack.cpp - tensors through DLPack, both ways and in both forms: whose deleter is called and when,
 * flags, versions, dtypes, and what is refused.
 */
#include <ATen/dlpack.h>

#include "tensor_subject.hpp"

using namespace check_shim;

namespace {

/* What another library hands out, in either form; deleted counts its deleter's calls. */
template <class Managed> struct Foreign {
    alignas(8) unsigned char data[64] = {};
    int64_t shape[2] = {2, 3}, strides[2] = {3, 1};
    int deleted = 0;
    Managed managed = {};
    mt_tensor *tensor = nullptr;

    Foreign() {
        for (int i = 0; i < 6; i++) floats()[i] = static_cast<float>(i + 1);
        managed.dl_tensor.data = data;
        managed.dl_tensor.device = {kDLCPU, 0};
        managed.dl_tensor.ndim = 2;
        managed.dl_tensor.dtype = {kDLFloat, 32, 1};
        managed.dl_tensor.shape = shape;
        managed.dl_tensor.strides = strides;
        managed.manager_ctx = this;
        managed.deleter = [](Managed *self) {
            static_cast<Foreign *>(self->manager_ctx)->deleted++;
        };
        set_version(managed);
    }
    Foreign(const Foreign &) = delete;
    Foreign &operator=(const Foreign &) = delete;

    float *floats() { return reinterpret_cast<float *>(data); }
    static void set_version(DLManagedTensor &) {}
    static void set_version(DLManagedTensorVersioned &m) { m.version = {1, 0}; }
};

using Plain = Foreign<DLManagedTensor>;
using Versioned = Foreign<DLManagedTensorVersioned>;

} // namespace

TEST("dlpack", dlpack_in) {
    Plain foreign;
    Versioned versioned;
    float out[6];
    ck_ok(mt_tensor_from_dlpack(&foreign.managed, &foreign.tensor));
    ck_assert_ptr_eq(info_of(foreign.tensor).data, foreign.data);
    ck_ok(mt_tensor_from_dlpack_versioned(&versioned.managed, &versioned.tensor));
    ck_assert_ptr_eq(info_of(versioned.tensor).data, versioned.data);
    ck_assert_int_eq(info_of(versioned.tensor).read_only, 0);
    ck_ok(mt_tensor_read(versioned.tensor, MT_FLOAT32, out, sizeof out));
    ck_assert_mem_eq(out, versioned.data, sizeof out);
    mt_tensor_free(foreign.tensor);
    ck_assert_int_eq(foreign.deleted, 1);
    at::Tensor view = memtrain::tensor(versioned.tensor).t();
    mt_tensor_free(versioned.tensor);
    ck_assert_int_eq(versioned.deleted, 0);
    view.reset();
    ck_assert_int_eq(versioned.deleted, 1);
    /* Older producers leave the strides out, and some begin behind the pointer. */
    Plain compact;
    compact.managed.dl_tensor.strides = nullptr;
    compact.managed.dl_tensor.byte_offset = 4;
    compact.managed.deleter = nullptr;
    ck_ok(mt_tensor_from_dlpack(&compact.managed, &compact.tensor));
    ck_assert_ptr_eq(info_of(compact.tensor).data, compact.data + 4);
    ck_assert_float_eq(memtrain::tensor(compact.tensor)[1][0].item<float>(), 5);
    mt_tensor_free(compact.tensor);
}

TEST("dlpack", dlpack_read_only) {
    Versioned foreign;
    DLManagedTensorVersioned *out;
    DLManagedTensor *plain;
    foreign.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    ck_ok(mt_tensor_from_dlpack_versioned(&foreign.managed, &foreign.tensor));
    ck_assert_int_eq(info_of(foreign.tensor).read_only, 1);
    refused(mt_tensor_write(foreign.tensor, MT_FLOAT32, foreign.data, 24), MT_EINVAL,
            "mt_tensor_write: tensor is read-only");
    refused(mt_tensor_to_dlpack(foreign.tensor, &plain), MT_ENOTSUP,
            "mt_tensor_to_dlpack: tensor is read-only, which this form cannot tell: "
            "mt_tensor_to_dlpack_versioned can");
    ck_assert_ptr_null(plain);
    ck_ok(mt_tensor_to_dlpack_versioned(foreign.tensor, 0, &out));
    ck_assert_uint_eq(out->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    ck_assert_ptr_eq(out->dl_tensor.data, foreign.data);
    out->deleter(out);
    ck_ok(mt_tensor_to_dlpack_versioned(foreign.tensor, 1, &out));
    ck_assert_uint_eq(out->flags, DLPACK_FLAG_BITMASK_IS_COPIED);
    ck_assert_ptr_ne(out->dl_tensor.data, foreign.data);
    out->deleter(out);
    mt_tensor_free(foreign.tensor);
    ck_assert_int_eq(foreign.deleted, 1);
}

/* Constant in the dlpack.h of libtorch 2.9; what is pointed to here is not. */
int64_t *changeable(const int64_t *numbers) {
    return const_cast<int64_t *>(numbers);
}

const struct {
    void (*change)(DLTensor &);
    mt_status status;
    const char *line; /* after the function's name */
} bad_dlpack[] = {
    {[](DLTensor &t) { t.data = nullptr; }, MT_EINVAL, "data is NULL"},
    {[](DLTensor &t) { t.ndim = -1; }, MT_EINVAL, "ndim is -1; accepted: 0 to 64"},
    {[](DLTensor &t) { t.ndim = 65; }, MT_EINVAL, "dims is 65; accepted: at most 64"},
    {[](DLTensor &t) { t.shape = nullptr; }, MT_EINVAL, "shape is NULL"},
    {[](DLTensor &t) { changeable(t.shape)[0] = -2; }, MT_EINVAL,
     "shape[0] is -2; accepted: at least 0"},
    {[](DLTensor &t) { changeable(t.strides)[0] = -3; }, MT_EINVAL,
     "strides[0] is -3; accepted: at least 0, libtorch cannot step backwards: copy the values "
     "first"},
    {[](DLTensor &t) { t.dtype.lanes = 4; }, MT_ENOTSUP,
     "dtype has code 2, 32 bits and 4 lanes, which libtorch has not"},
    {[](DLTensor &t) {
         t.dtype = {kDLInt, 4, 1};
     },
     MT_ENOTSUP, "dtype has code 0, 4 bits and 1 lanes, which libtorch has not"},
    {[](DLTensor &t) {
         t.dtype = {200, 32, 1};
     },
     MT_ENOTSUP, "dtype has code 200, 32 bits and 1 lanes, which libtorch has not"},
    {[](DLTensor &t) { t.device.device_type = kDLROCM; }, MT_ENOTSUP,
     "device_type is 10; accepted: 1 (CPU), 2 (CUDA), 14 (XPU), 3 (pinned)"},
    {[](DLTensor &t) {
         t.device = {kDLCUDA, 300};
     },
     MT_EINVAL, "device_id is 300; accepted: 0 to 127"},
    {[](DLTensor &t) {
         t.device = {kDLCUDA, 77};
     },
     MT_ENOTSUP, nullptr},
};

/* The deleter is called once, however the call fails. */
TEST("dlpack", refused_dlpack_is_deleted) {
    for (const auto &bad : bad_dlpack) {
        Plain plain;
        Versioned versioned;
        auto line_is = [&](const char *function) {
            if (!bad.line) return;
            std::string line = std::string(function) + ": " + bad.line;
            ck_assert_str_eq(mt_last_error(), line.c_str());
        };
        bad.change(plain.managed.dl_tensor);
        ck_status(mt_tensor_from_dlpack(&plain.managed, &plain.tensor), bad.status);
        line_is("mt_tensor_from_dlpack");
        bad.change(versioned.managed.dl_tensor);
        ck_status(mt_tensor_from_dlpack_versioned(&versioned.managed, &versioned.tensor),
                  bad.status);
        line_is("mt_tensor_from_dlpack_versioned");
        ck_assert_int_eq(plain.deleted * 10 + versioned.deleted, 11);
        ck_assert(!plain.tensor && !versioned.tensor);
    }
}

TEST("dlpack", arguments_of_dlpack) {
    Plain plain;
    Versioned versioned;
    DLManagedTensor *out;
    refused(mt_tensor_from_dlpack(nullptr, &plain.tensor), MT_EINVAL,
            "mt_tensor_from_dlpack: managed is NULL");
    refused(mt_tensor_from_dlpack(&plain.managed, nullptr), MT_EINVAL,
            "mt_tensor_from_dlpack: out is NULL");
    ck_assert_int_eq(plain.deleted, 1);
    versioned.managed.version = {2, 1};
    versioned.managed.dl_tensor.ndim = -7; /* not to be looked at */
    refused(mt_tensor_from_dlpack_versioned(&versioned.managed, &versioned.tensor), MT_ENOTSUP,
            "mt_tensor_from_dlpack_versioned: the version of DLPack is 2.1; accepted: 1.x");
    ck_assert_int_eq(versioned.deleted, 1);
    refused(mt_tensor_to_dlpack(nullptr, &out), MT_EINVAL, "mt_tensor_to_dlpack: tensor is NULL");
    refused(mt_tensor_to_dlpack(plain.tensor, nullptr), MT_EINVAL,
            "mt_tensor_to_dlpack: out is NULL");
}

/* Memory goes out, comes back, and its first owner hears of it at the very end. */
TEST("dlpack", dlpack_out_and_back) {
    Memory memory;
    mt_tensor *back;
    DLManagedTensor *out;
    DLManagedTensorVersioned *again;
    memory.shape[0] = 3, memory.shape[1] = 2;
    memory.strides[0] = 1, memory.strides[1] = 3;
    memory.m.strides = memory.strides;
    ck_ok(mt_tensor_wrap(&memory.m, &memory.tensor));
    ck_ok(mt_tensor_to_dlpack(memory.tensor, &out));
    mt_tensor_free(memory.tensor);
    ck_assert_int_eq(memory.released, 0);
    ck_assert_ptr_eq(out->dl_tensor.data, memory.data);
    ck_assert_int_eq(out->dl_tensor.ndim, 2);
    ck_assert_int_eq(out->dl_tensor.strides[1], 3);
    ck_assert_int_eq(out->dl_tensor.dtype.code * 100 + out->dl_tensor.dtype.bits, 232);
    ck_assert_int_eq(out->dl_tensor.device.device_type, kDLCPU);
    ck_ok(mt_tensor_from_dlpack(out, &back));
    ck_ok(mt_tensor_to_dlpack_versioned(back, 0, &again));
    mt_tensor_free(back);
    ck_assert_uint_eq(again->version.major, 1);
    ck_assert_uint_eq(again->flags, 0);
    ck_ok(mt_tensor_from_dlpack_versioned(again, &back));
    ck_assert_float_eq(memtrain::tensor(back)[1][1].item<float>(), 5);
    ck_assert_int_eq(memory.released, 0);
    mt_tensor_free(back);
    ck_assert_int_eq(memory.released, 1);
}

TEST("dlpack", dlpack_of_a_parameter) {
    mt_tensor *tensor;
    DLManagedTensor *out;
    DLManagedTensorVersioned *versioned;
    ck_ok(mt_tensor_new(&tensor));
    memtrain::tensor(tensor) = at::ones({3}).requires_grad_();
    refused(mt_tensor_to_dlpack(tensor, &out), MT_ENOTSUP,
            "mt_tensor_to_dlpack: tensor requires a gradient, which DLPack cannot tell: hand out a "
            "copy (mt_tensor_copy)");
    ck_status(mt_tensor_to_dlpack_versioned(tensor, 0, &versioned), MT_ENOTSUP);
    ck_ok(mt_tensor_to_dlpack_versioned(tensor, 1, &versioned));
    ck_assert_float_eq(static_cast<float *>(versioned->dl_tensor.data)[2], 1);
    versioned->deleter(versioned);
    mt_tensor *copy;
    ck_ok(mt_tensor_copy(tensor, nullptr, MT_DTYPE_NONE, &copy));
    ck_ok(mt_tensor_to_dlpack(copy, &out));
    mt_tensor_free(copy);
    out->deleter(out);
    mt_tensor_free(tensor);
}

/* Whatever libtorch has comes in and goes out; mt_dtype need not name it. */
TEST("dlpack", dlpack_dtypes) {
    const struct {
        DLDataType dtype;
        const char *name;
        mt_dtype ours;
    } all[] = {
        {{kDLFloat, 16, 1}, "Half", MT_FLOAT16},
        {{kDLFloat, 64, 1}, "Double", MT_FLOAT64},
        {{kDLBfloat, 16, 1}, "BFloat16", MT_BFLOAT16},
        {{kDLInt, 8, 1}, "Char", MT_DTYPE_NONE},
        {{kDLInt, 16, 1}, "Short", MT_DTYPE_NONE},
        {{kDLInt, 32, 1}, "Int", MT_INT32},
        {{kDLInt, 64, 1}, "Long", MT_INT64},
        {{kDLUInt, 8, 1}, "Byte", MT_UINT8},
        {{kDLBool, 8, 1}, "Bool", MT_BOOL},
        {{kDLComplex, 64, 1}, "ComplexFloat", MT_DTYPE_NONE},
    };
    for (const auto &row : all) {
        Plain foreign;
        DLManagedTensor *out;
        foreign.managed.dl_tensor.dtype = row.dtype;
        ck_ok(mt_tensor_from_dlpack(&foreign.managed, &foreign.tensor));
        ck_assert_str_eq(info_of(foreign.tensor).dtype_name, row.name);
        ck_assert_int_eq(info_of(foreign.tensor).dtype, row.ours);
        ck_ok(mt_tensor_to_dlpack(foreign.tensor, &out));
        ck_assert_mem_eq(&out->dl_tensor.dtype, &row.dtype, sizeof row.dtype);
        out->deleter(out);
        mt_tensor_free(foreign.tensor);
        ck_assert_int_eq(foreign.deleted, 1);
    }
}

int main() {
    tcase_add_checked_fixture(suite_case_named("dlpack"), init, nullptr);
    return suite_run_named("shim_dlpack");
}
