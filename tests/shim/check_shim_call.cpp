/*
 * check_shim_call.cpp - operators called by name: each kind of value against the same call in C++, overloads,
 * defaults and keywords, what is refused and in which words, results, gradients, memory that runs out.
 */
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <memtrain/call.h>
#include <memtrain/torch.hpp>

#include "suite.h" /* last: its macro fail would break C++ headers */

namespace {

using Values = std::vector<mt_value>;
using Keywords = std::vector<mt_keyword>;

/* A handle that is freed with the object. */
class Handle {
public:
    explicit Handle(const at::Tensor &content = {}) {
        ck_ok(mt_tensor_new(&handle_));
        memtrain::tensor(handle_) = content;
    }
    ~Handle() { mt_tensor_free(handle_); }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    mt_tensor *get() const { return handle_; }
    operator mt_value() const { return mt_value_tensor(handle_); }
    at::Tensor &operator*() const { return memtrain::tensor(handle_); }

private:
    mt_tensor *handle_ = nullptr;
};

mt_status call(const char *name, const Values &values, const Keywords &keywords, mt_value *results,
               size_t capacity, size_t *count = nullptr) {
    return mt_call(name, values.data(), values.size(), keywords.data(), keywords.size(), results,
                   capacity, count);
}

mt_status into(const Handle &out, const char *name, const Values &values,
               const Keywords &keywords = {}) {
    return mt_call_into(name, values.data(), values.size(), keywords.data(), keywords.size(),
                        out.get());
}

/* What the operator gives, a tensor. */
at::Tensor result_of(const char *name, const Values &values, const Keywords &keywords = {}) {
    Handle out;
    ck_ok(into(out, name, values, keywords));
    return *out;
}

void same(const at::Tensor &ours, const at::Tensor &theirs) {
    ck_assert(ours.defined());
    ck_assert_int_eq(static_cast<int>(ours.scalar_type()), static_cast<int>(theirs.scalar_type()));
    ck_assert(ours.equal(theirs));
}

at::Tensor pictures() {
    at::manual_seed(3);
    return at::randn({4, 3, 9, 9});
}

/* ---- values ------------------------------------------------------------------------------------ */

TEST("values", tensors_and_lists_of_ints) {
    Handle x(pictures()), weight(at::randn({5, 3, 3, 3})), bias(at::randn({5})), empty;
    const int64_t two[] = {2, 2}, stride[] = {2, 1};
    at::Tensor strided = at::conv2d(*x, *weight, *bias, {2, 1}, {2, 2});
    same(result_of("aten::conv2d", {x, weight, bias}), at::conv2d(*x, *weight, *bias));
    same(result_of("aten::conv2d",
                   {x, weight, bias, mt_value_ints(stride, 2), mt_value_ints(two, 2)}),
         strided);
    same(result_of("aten::conv2d", {x, weight, bias, mt_value_ints(stride, 2), mt_value_int(2)}),
         strided);
    same(result_of("aten::conv2d", {x, weight, mt_value_none()}), at::conv2d(*x, *weight));
    same(result_of("aten::conv2d", {x, weight, empty}), at::conv2d(*x, *weight));
    same(result_of("aten::conv2d", {x, weight}, {{"padding", mt_value_string("same")}}),
         at::conv2d(*x, *weight, {}, {1, 1}, "same"));
}

TEST("values", numbers) {
    Handle x(pictures());
    same(result_of("aten::add", {x, mt_value_int(2)}), *x + 2);
    same(result_of("aten::add", {x, mt_value_double(0.5)}), *x + 0.5);
    same(result_of("aten::add", {x, mt_value_bool(7)}), at::add(*x, at::Scalar(true)));
    same(result_of("aten::leaky_relu", {x, mt_value_int(1)}), at::leaky_relu(*x, 1));
    same(result_of("aten::elu", {x, mt_value_double(0.25)}), at::elu(*x, 0.25));
    Handle one(at::ones({}));
    same(result_of("aten::permute", {one, mt_value_ints(nullptr, 0)}), at::ones({}));
}

TEST("values", an_int_is_a_float_where_one_is_wanted) {
    Handle x(at::ones({1000}));
    at::manual_seed(5);
    at::Tensor theirs = at::dropout(*x, 0.5, true);
    at::manual_seed(5);
    same(result_of("aten::dropout", {x, mt_value_double(0.5), mt_value_bool(1)}), theirs);
    same(result_of("aten::dropout", {x, mt_value_int(1), mt_value_bool(1)}), at::zeros({1000}));
    same(result_of("aten::dropout", {x, mt_value_int(1), mt_value_bool(0)}), *x);
}

TEST("values", strings_dtypes_devices_and_formats) {
    Handle x(pictures());
    const int64_t shape[] = {2, 3};
    same(result_of("aten::gelu", {x}, {{"approximate", mt_value_string("tanh")}}),
         at::gelu(*x, "tanh"));
    same(result_of("aten::to", {x, mt_value_dtype(MT_FLOAT64)}), (*x).to(at::kDouble));
    same(result_of("aten::to", {x}, {{"dtype", mt_value_dtype(MT_BFLOAT16)}}),
         (*x).to(at::kBFloat16));
    same(result_of("aten::to", {x, mt_value_device("cpu"), mt_value_dtype(MT_INT32)}),
         (*x).to(at::kInt));
    same(result_of("aten::ones", {mt_value_ints(shape, 2)},
                   {{"dtype", mt_value_dtype(MT_INT64)},
                    {"layout", mt_value_string("strided")},
                    {"device", mt_value_device("cpu")},
                    {"pin_memory", mt_value_bool(0)}}),
         at::ones({2, 3}, at::kLong));
    at::Tensor last =
        result_of("aten::contiguous", {x}, {{"memory_format", mt_value_string("channels_last")}});
    ck_assert(last.is_contiguous(at::MemoryFormat::ChannelsLast));
    same(last, *x);
    mt_tensor *both[] = {x.get(), x.get()};
    same(result_of("aten::einsum", {mt_value_string("abij,abjk->abik"), mt_value_tensors(both, 2)}),
         at::einsum("abij,abjk->abik", {*x, *x}));
}

TEST("values", lists_of_tensors_and_doubles) {
    Handle x(pictures()), index(at::arange(2));
    mt_tensor *both[] = {x.get(), x.get()}, *indices[] = {nullptr, index.get()};
    const double scales[] = {2.0, 3.0};
    mt_value lists[1];
    same(result_of("aten::cat", {mt_value_tensors(both, 2), mt_value_int(1)}),
         at::cat({*x, *x}, 1));
    same(result_of("aten::index", {x, mt_value_tensors(indices, 2)}),
         at::index(*x, {std::nullopt, *index}));
    same(result_of("aten::upsample_nearest2d", {x, mt_value_none(), mt_value_doubles(scales, 2)}),
         at::upsample_nearest2d(*x, at::OptionalIntArrayRef(), at::ArrayRef<double>(scales, 2)));
    ck_ok(call("aten::_foreach_add", {mt_value_tensors(both, 2), mt_value_doubles(scales, 2)}, {},
               lists, 1));
    ck_assert_int_eq(lists[0].kind, MT_VALUE_TENSORS);
    same(memtrain::tensor(lists[0].is.tensors[1]), *x + 3.0);
    mt_values_free(lists, 1);
}

TEST("values", lists_of_bools) {
    Handle x(at::randn({2, 3, 4})), weight(at::randn({5, 3, 2})), slope(at::randn({2, 5, 3}));
    const unsigned char mask[] = {1, 0, 2};
    mt_value one = mt_value_int(1), no = mt_value_bool(0), results[3];
    const int64_t ones[] = {1}, zeros[] = {0};
    size_t count = 0;
    ck_ok(call("aten::convolution_backward",
               {slope, x, weight, mt_value_none(), mt_value_ints(ones, 1), mt_value_ints(zeros, 1),
                mt_value_ints(ones, 1), no, mt_value_ints(zeros, 1), one, mt_value_bools(mask, 3)},
               {}, results, 3, &count));
    auto theirs = at::convolution_backward(*slope, *x, *weight, at::OptionalIntArrayRef(), {1}, {0},
                                           {1}, false, {0}, 1, {true, false, true});
    ck_assert_uint_eq(count, 3);
    same(memtrain::tensor(results[0].is.tensor), std::get<0>(theirs));
    ck_assert_int_eq(results[1].kind == MT_VALUE_TENSOR, std::get<1>(theirs).defined());
    same(memtrain::tensor(results[2].is.tensor), std::get<2>(theirs));
    mt_values_free(results, 3);
}

/* ---- overloads, defaults, keywords ------------------------------------------------------------- */

TEST("schemas", overloads) {
    Handle x(pictures()), y(at::randn({4, 3, 9, 9})), out(at::empty({0}));
    same(result_of("aten::add", {x, y}), *x + *y);
    same(result_of("aten::add.Tensor", {x, y}, {{"alpha", mt_value_int(3)}}), at::add(*x, *y, 3));
    same(result_of("aten::add.Scalar", {x, mt_value_int(1), mt_value_int(3)}), *x + 3);
    same(result_of("aten::relu.default", {x}), at::relu(*x));
    same(result_of("aten::sum", {x}), at::sum(*x));
    same(result_of("aten::sum", {x, mt_value_int(1)}), at::sum(*x, {1}));
    same(result_of("aten::sum", {x, mt_value_int(1), mt_value_bool(1)}), at::sum(*x, {1}, true));
    same(result_of("aten::pow", {x, mt_value_int(2)}), at::pow(*x, 2));
    same(result_of("aten::pow", {mt_value_int(2), x}), at::pow(2, *x));
    same(result_of("aten::add", {x, y}, {{"out", out}}), *x + *y);
    same(*out, *x + *y);
}

TEST("schemas", keywords_in_any_order) {
    Handle x(pictures()), weight(at::randn({6, 3, 3, 3}));
    same(result_of("aten::conv2d", {},
                   {{"padding", mt_value_int(1)}, {"weight", weight}, {"input", x}}),
         at::conv2d(*x, *weight, {}, {1, 1}, {1, 1}));
}

TEST("schemas", in_place) {
    Handle x(at::ones({3})), y(at::ones({3}));
    void *data = (*x).data_ptr();
    ck_ok(call("aten::add_", {x, y}, {}, nullptr, 0));
    same(*x, at::full({3}, 2.0));
    ck_ok(into(x, "aten::mul_", {x, mt_value_int(2)}));
    same(*x, at::full({3}, 4.0));
    ck_assert_ptr_eq((*x).data_ptr(), data);
}

TEST("schemas", schemas) {
    char text[2048], little[8];
    size_t length = mt_operator_schema("aten::relu", text, sizeof text);
    ck_assert_str_eq(text, "aten::relu(Tensor self) -> Tensor\naten::relu.out(Tensor self, *, "
                           "Tensor(a!) out) -> Tensor(a!)");
    ck_assert_uint_eq(length, strlen(text));
    ck_assert_uint_eq(mt_operator_schema("aten::relu", little, sizeof little), length);
    ck_assert_str_eq(little, "aten::r");
    ck_assert_uint_eq(mt_operator_schema("aten::relu", nullptr, 0), length);
    mt_operator_schema("aten::conv2d.default", text, sizeof text);
    ck_assert_str_eq(text, "aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] "
                           "stride=[1, 1], SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], "
                           "SymInt groups=1) -> Tensor");
    ck_assert_uint_eq(mt_operator_schema("aten::nothing_like_it", text, sizeof text), 0);
    ck_contains(mt_last_error(), "mt_operator_schema: there is no operator");
    ck_assert_str_eq(text, "");
}

/* ---- results ----------------------------------------------------------------------------------- */

TEST("results", several_results) {
    Handle x(pictures());
    mt_value results[4];
    size_t count = 9;
    auto theirs = at::topk(*x, 2);
    ck_ok(call("aten::topk", {x, mt_value_int(2)}, {}, results, 4, &count));
    ck_assert_uint_eq(count, 2);
    same(memtrain::tensor(results[0].is.tensor), std::get<0>(theirs));
    same(memtrain::tensor(results[1].is.tensor), std::get<1>(theirs));
    ck_assert_int_eq(results[2].kind, MT_VALUE_NONE);
    mt_tensor *gone = results[0].is.tensor;
    mt_values_free(results, 4);
    ck_assert_int_eq(results[0].kind, MT_VALUE_NONE);
    ck_assert_ptr_null(mt_tensor_get(gone));
    mt_values_free(results, 4);
    mt_values_free(nullptr, 4);
}

TEST("results", results_of_each_kind) {
    Handle x(at::full({1}, 2.5)), n(at::full({1}, 7, at::kLong)), b(at::ones({1}, at::kBool)),
        parts(at::arange(7));
    mt_value result[1];
    ck_ok(call("aten::item", {x}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_DOUBLE);
    ck_assert_double_eq(result[0].is.real, 2.5);
    ck_ok(call("aten::item", {n}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_INT);
    ck_assert_int_eq(result[0].is.integer, 7);
    ck_ok(call("aten::item", {b}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_BOOL);
    ck_assert_int_eq(result[0].is.boolean, 1);
    ck_ok(call("aten::result_type", {x, n}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_DTYPE);
    ck_assert_int_eq(result[0].is.dtype, MT_FLOAT32);
    ck_ok(call("aten::split", {parts, mt_value_int(3)}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_TENSORS);
    ck_assert_uint_eq(result[0].count, 3);
    same(memtrain::tensor(result[0].is.tensors[2]), at::full({1}, 6, at::kLong));
    mt_tensor *gone = result[0].is.tensors[0];
    mt_values_free(result, 1);
    ck_assert_ptr_null(mt_tensor_get(gone));
    Handle complex(at::complex(*x, *x));
    ck_refused(call("aten::item", {complex}, {}, result, 1), MT_ENOTSUP, "Complex");
    ck_assert_int_eq(result[0].kind, MT_VALUE_NONE);
}

std::string text_of(std::string text) {
    return text + "!";
}
std::vector<int64_t> ints_of(int64_t n) {
    return {n, n + 1};
}
std::vector<double> doubles_of(double x) {
    return {x, 2 * x};
}
c10::List<bool> bools_of(c10::List<bool> list) {
    list.push_back(true);
    return list;
}
std::vector<std::string> texts_of(std::string text) {
    return {text};
}

/* Those of a library that is registered when others have been called already; and what only such ones give. */
TEST("results", operators_of_others) {
    mt_value result[1], one = mt_value_int(1), text = mt_value_string("so");
    const unsigned char two[] = {1, 0};
    ck_status(call("check_call::ints", {one}, {}, result, 1), MT_EINVAL);
    torch::Library library(torch::Library::DEF, "check_call", std::nullopt, __FILE__, __LINE__);
    library.def("text", text_of).def("ints", ints_of).def("doubles", doubles_of);
    library.def("bools", bools_of).def("texts", texts_of);
    ck_ok(call("check_call::text", {text}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_STRING);
    ck_assert_str_eq(result[0].is.text, "so!");
    mt_values_free(result, 1);
    ck_ok(call("check_call::ints", {mt_value_int(7)}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_INTS);
    ck_assert_uint_eq(result[0].count, 2);
    ck_assert_int_eq(result[0].is.integers[1], 8);
    mt_values_free(result, 1);
    ck_ok(call("check_call::doubles.default", {one}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_DOUBLES);
    ck_assert_double_eq(result[0].is.reals[1], 2);
    mt_values_free(result, 1);
    ck_ok(call("check_call::bools", {mt_value_bools(two, 2)}, {}, result, 1));
    ck_assert_int_eq(result[0].kind, MT_VALUE_BOOLS);
    ck_assert_uint_eq(result[0].count, 3);
    ck_assert_int_eq(result[0].is.booleans[0], 1);
    ck_assert_int_eq(result[0].is.booleans[1], 0);
    mt_values_free(result, 1);
    ck_refused(call("check_call::texts", {text}, {}, result, 1), MT_ENOTSUP,
               "the result is a list of another kind");
}

/* Given values are the caller's. */
TEST("results", values_that_are_no_results_stay) {
    Handle x(at::ones({1}));
    mt_value given[] = {x, mt_value_int(3)};
    mt_values_free(given, 2);
    ck_assert_int_eq(given[0].kind, MT_VALUE_TENSOR);
    ck_assert_ptr_nonnull(mt_tensor_get(x.get()));
    ck_assert_int_eq(given[1].is.integer, 3);
}

/* ---- what is refused --------------------------------------------------------------------------- */

#define RELU "; aten::relu(Tensor self) -> Tensor"

struct Refused {
    const char *name;
    Values values;
    Keywords keywords;
    const char *line;
};

void refused(const Refused &one) {
    Handle out(at::ones({1}));
    mt_value result = mt_value_int(5);
    size_t count = 5;
    std::string line = std::string("mt_call: ") + one.line;
    ck_status(call(one.name, one.values, one.keywords, &result, 1, &count), MT_EINVAL);
    ck_assert_msg(line == std::string(mt_last_error()).substr(0, line.size()),
                  "'%s' instead of '%s'", mt_last_error(), line.c_str());
    ck_assert_int_eq(result.kind, MT_VALUE_NONE);
    ck_assert_uint_eq(count, 0);
    ck_status(into(out, one.name, one.values, one.keywords), MT_EINVAL);
    same(*out, at::ones({1}));
}

TEST("refused", wrong_names) {
    Handle x(at::ones({1}));
    refused(
        {"aten::con2d", {x}, {}, "there is no operator 'aten::con2d'; there is 'aten::conv2d'"});
    refused(
        {"aten::linaer", {x}, {}, "there is no operator 'aten::linaer'; there is 'aten::linear'"});
    refused({"relu", {x}, {}, "there is no operator 'relu'; there is 'aten::relu'"});
    refused({"cross_entropy",
             {x},
             {},
             "there is no operator 'cross_entropy'; there is 'aten::cross_entropy_loss'"});
    refused({"", {}, {}, "there is no operator ''"});
    refused({"aten::add.Tenser",
             {x, x},
             {},
             "there is no operator 'aten::add.Tenser'; there is 'aten::add.Tensor'"});
    refused({"aten::no_operator_has_this_name", {}, {}, "there is no operator 'aten::no_op"});
}

TEST("refused", wrong_arity) {
    Handle x(at::ones({1}));
    refused({"aten::relu.default",
             {x, x},
             {},
             "aten::relu.default: 2 values, accepted: at most 1" RELU});
    refused({"aten::relu.default", {}, {}, "aten::relu.default: argument 'self' is missing" RELU});
    refused({"aten::relu",
             {},
             {},
             "aten::relu: argument 'self' is missing" RELU " (1 of 2 overloads)"});
    refused({"aten::conv2d",
             {x},
             {},
             "aten::conv2d: argument 'weight' is missing; aten::conv2d(Tensor input, "});
    refused(
        {"aten::add.Tensor",
         {x, x, mt_value_int(1)},
         {},
         "aten::add.Tensor: 3 values, accepted: at most 2; aten::add.Tensor(Tensor self, Tensor "
         "other, *, Scalar alpha=1) -> Tensor"});
}

TEST("refused", wrong_types) {
    Handle x(at::ones({1})), empty;
    mt_tensor *hole[] = {x.get(), nullptr};
    refused({"aten::relu.default",
             {mt_value_int(1)},
             {},
             "aten::relu.default: argument 'self' is of kind int, accepted: Tensor self" RELU});
    refused({"aten::relu.default",
             {empty},
             {},
             "aten::relu.default: argument 'self' is an empty tensor, accepted: Tensor self" RELU});
    refused({"aten::dropout",
             {x, mt_value_double(0.5), mt_value_int(1)},
             {},
             "aten::dropout: argument 'train' is of kind int, accepted: bool train; "
             "aten::dropout(Tensor input, float p, bool train) -> Tensor"});
    refused({"aten::add",
             {x, mt_value_string("1")},
             {},
             "aten::add: argument 'other' is of kind string, accepted: Tensor other; "
             "aten::add.Tensor(Tensor self, Tensor other"});
    refused({"aten::flatten.using_ints",
             {x, mt_value_double(1)},
             {},
             "aten::flatten.using_ints: argument 'start_dim' is of kind double, accepted: int "
             "start_dim=0; aten::flatten.using_ints(Tensor(a) self"});
    refused({"aten::reshape",
             {x, mt_value_int(1)},
             {},
             "aten::reshape: argument 'shape' is of kind int, accepted: SymInt[] shape; "});
    refused(
        {"aten::cat",
         {mt_value_tensors(hole, 2)},
         {},
         "aten::cat: argument 'tensors' is a list with an empty one among its tensors, accepted: "
         "Tensor[] tensors; "});
    refused({"aten::relu.default",
             {mt_value_none()},
             {},
             "aten::relu.default: argument 'self' is of kind none"});
    refused({"aten::contiguous",
             {x},
             {{"memory_format", mt_value_string("rows")}},
             "aten::contiguous: argument 'memory_format' is 'rows', accepted: contiguous_format, "
             "preserve_format, channels_last, channels_last_3d; "});
}

TEST("refused", wrong_keywords) {
    Handle x(at::ones({1}));
    refused({"aten::relu.default",
             {x},
             {{"inplace", mt_value_bool(1)}},
             "aten::relu.default: keyword 'inplace' is no argument" RELU});
    refused({"aten::relu.default",
             {x},
             {{"self", x}},
             "aten::relu.default: argument 'self' is given twice" RELU});
    refused({"aten::relu.default",
             {},
             {{"self", x}, {"self", x}},
             "aten::relu.default: argument 'self' is given twice" RELU});
    refused({"aten::relu", {x}, {{nullptr, x}}, "keywords[0].name is NULL"});
}

TEST("refused", broken_values) {
    Handle x(at::ones({1}));
    char nothing = 0; /* where no handle ever is, as where one was that is freed */
    mt_tensor *stale = reinterpret_cast<mt_tensor *>(&nothing);
    mt_tensor *list[] = {x.get(), stale};
    mt_value senseless = mt_value_int(1);
    int kind = 77;
    memcpy(&senseless.kind, &kind, sizeof kind);
    refused({"aten::relu", {mt_value_tensor(stale)}, {}, "values[0] is not a live handle"});
    refused({"aten::add", {x, mt_value_tensor(nullptr)}, {}, "values[1] is a tensor that is NULL"});
    refused({"aten::cat", {mt_value_tensors(list, 2)}, {}, "values[0]: tensor 1 is not a live"});
    refused(
        {"aten::cat", {mt_value_tensors(nullptr, 2)}, {}, "values[0] is a list of 2 tensors that"});
    refused({"aten::relu", {senseless}, {}, "values[0].kind is 77"});
    refused({"aten::to", {x, mt_value_dtype(MT_DTYPE_NONE)}, {}, "values[1]: dtype 0 is none of"});
    refused(
        {"aten::to", {x}, {{"device", mt_value_device(nullptr)}}, "keywords[0] is a device that"});
    refused({"aten::to",
             {x},
             {{"device", mt_value_device("toaster")}},
             "'toaster' is not the name of a"});
    refused({"aten::relu", {x}, {{"self", mt_value_tensor(stale)}}, "keywords[0] is not a live"});
}

TEST("refused", broken_calls) {
    Handle x(at::ones({3})), out;
    mt_value values[] = {x, mt_value_int(1)}, result[1];
    ck_status(mt_call(nullptr, nullptr, 0, nullptr, 0, nullptr, 0, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_call: name is NULL");
    ck_status(mt_call("aten::relu", nullptr, 1, nullptr, 0, nullptr, 0, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_call: values is NULL");
    ck_status(mt_call("aten::relu", values, 1, nullptr, 1, nullptr, 0, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_call: keywords is NULL");
    ck_status(mt_call("aten::relu", values, 1, nullptr, 0, nullptr, 1, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_call: results is NULL");
    ck_refused(mt_call("aten::topk", values, 2, nullptr, 0, result, 1, nullptr), MT_EINVAL,
               "mt_call: aten::topk: capacity is 1, accepted: 0, or at least 2; "
               "aten::topk(Tensor self, SymInt k, ");
    ck_status(mt_call_into("aten::relu", values, 1, nullptr, 0, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_call_into: out is NULL");
    ck_refused(mt_call_into("aten::item", values, 1, nullptr, 0, out.get()), MT_EINVAL,
               "aten::item: the first result is no tensor; aten::item(Tensor");
    ck_status(mt_call_into("aten::split", values, 2, nullptr, 0, out.get()), MT_EINVAL);
    ck_assert_uint_eq(mt_operator_schema(nullptr, nullptr, 0), 0);
    ck_assert_str_eq(mt_last_error(), "mt_operator_schema: name is NULL");
}

TEST("refused", what_the_operator_says) {
    Handle x(pictures()), weight(at::randn({5, 4, 3, 3})), out;
    ck_refused(into(out, "aten::conv2d", {x, weight}), MT_ETORCH,
               "aten::conv2d: Given groups=1, weight of size [5, 4, 3, 3]");
}

/* ---- gradients --------------------------------------------------------------------------------- */

/* A convolution, a norm and a linear layer, the way that C would have it. */
at::Tensor chain(const Handle &x, const Handle &weight, const Handle &linear,
                 const Handle &labels) {
    Handle y;
    ck_ok(into(y, "aten::conv2d", {x, weight}));
    ck_ok(into(y, "aten::relu", {y}));
    ck_ok(into(y, "aten::flatten", {y, mt_value_int(1)}));
    ck_ok(into(y, "aten::linear", {y, linear}));
    ck_ok(into(y, "aten::cross_entropy_loss", {y, labels}));
    return *y;
}

TEST("gradients", gradients_are_those_of_cpp) {
    Handle x(pictures()), weight(at::randn({5, 3, 3, 3})), linear(at::randn({10, 245})),
        labels(at::arange(4)), unused(at::ones({1}));
    for (const Handle *parameter : {&weight, &linear, &unused})
        ck_ok(into(*parameter, "aten::requires_grad_", {*parameter}));
    at::Tensor theirs = at::cross_entropy_loss(
        at::linear(at::relu(at::conv2d(*x, *weight)).flatten(1), *linear), *labels);
    auto wanted = torch::autograd::grad({theirs}, {*weight, *linear});
    Handle loss(chain(x, weight, linear, labels)), first, second, third(at::ones({1}));
    mt_tensor *inputs[] = {weight.get(), linear.get(), unused.get()};
    mt_tensor *outputs[] = {first.get(), second.get(), third.get()};
    same(*loss, theirs);
    ck_ok(mt_gradients(loss.get(), inputs, 3, outputs));
    same(*first, wanted[0]);
    same(*second, wanted[1]);
    ck_assert(!(*third).defined());
}

TEST("gradients", backward_by_name) {
    Handle x(at::ones({3}));
    ck_ok(into(x, "aten::requires_grad_", {x}));
    Handle loss(result_of("aten::sum", {Handle(result_of("aten::mul", {x, x}))}));
    mt_tensor *inputs[] = {x.get()};
    ck_ok(call("aten::_backward", {loss, mt_value_tensors(inputs, 1)}, {}, nullptr, 0));
    same((*x).grad(), at::full({3}, 2.0));
}

TEST("gradients", gradients_that_cannot_be) {
    Handle x(at::ones({3})), y(at::ones({3}).requires_grad_()), empty, out;
    Handle loss(at::sum(*y));
    mt_tensor *one[] = {x.get()}, *good[] = {y.get()}, *outputs[] = {out.get()};
    ck_status(mt_gradients(loss.get(), one, 1, outputs), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_gradients: inputs[0] needs no gradient");
    ck_status(mt_gradients(y.get(), good, 1, outputs), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_gradients: loss is no tensor of one number");
    ck_status(mt_gradients(empty.get(), good, 1, outputs), MT_EINVAL);
    ck_status(mt_gradients(loss.get(), good, 1, nullptr), MT_EINVAL);
    ck_assert_str_eq(mt_last_error(), "mt_gradients: outputs is NULL");
    ck_status(mt_gradients(nullptr, good, 1, outputs), MT_EINVAL);
    ck_ok(mt_gradients(loss.get(), good, 1, outputs));
    ck_status(mt_gradients(x.get(), good, 1, outputs), MT_EINVAL);
}

/* The part of a chain that is computed again; its calls are counted. */
struct Part {
    const Handle &weight;
    int runs;

    static mt_status run(void *self, mt_tensor *const *inputs, size_t, mt_tensor *const *outputs,
                         size_t) {
        auto *part = static_cast<Part *>(self);
        mt_value values[] = {mt_value_tensor(inputs[0]), part->weight};
        part->runs++;
        mt_status status = mt_call_into("aten::conv2d", values, 2, nullptr, 0, outputs[0]);
        values[0] = mt_value_tensor(outputs[0]);
        return status == MT_OK ? mt_call_into("aten::relu", values, 1, nullptr, 0, outputs[0])
                               : status;
    }
};

TEST("gradients", a_segment_of_calls) {
    Handle x(pictures()), weight(at::randn({5, 3, 3, 3}).requires_grad_()), y, gradient;
    auto wanted = torch::autograd::grad({at::relu(at::conv2d(*x, *weight)).sum()}, {*weight});
    Part part{weight, 0};
    mt_segment_ops ops = MT_SEGMENT_OPS_INIT;
    mt_tensor *inputs[] = {x.get()}, *outputs[] = {y.get()};
    ops.run = Part::run;
    (*x).requires_grad_();
    ck_ok(mt_checkpoint(&ops, &part, inputs, 1, outputs, 1));
    ck_ok(into(y, "aten::sum", {y}));
    mt_tensor *parameters[] = {weight.get()}, *gradients[] = {gradient.get()};
    ck_ok(mt_gradients(y.get(), parameters, 1, gradients));
    ck_assert(!(*gradient).defined());
    ck_ok(call("aten::_backward", {y, mt_value_tensors(nullptr, 0)}, {}, nullptr, 0));
    same((*weight).grad(), wanted[0]);
    ck_assert_int_eq(part.runs, 2);
}

mt_status multiply(void *user) {
    auto *handles = static_cast<Handle **>(user);
    mt_value values[] = {*handles[0], *handles[0]};
    return mt_call_into("aten::mm", values, 2, nullptr, 0, handles[1]->get());
}

TEST("gradients", autocast) {
    Handle x(at::randn({4, 4})), y;
    Handle *handles[] = {&x, &y};
    ck_ok(mt_amp_autocast("cpu", MT_BFLOAT16, multiply, handles));
    same(*y, at::mm((*x).to(at::kBFloat16), (*x).to(at::kBFloat16)));
}

mt_status add_one(void *user) {
    mt_value values[] = {*static_cast<Handle *>(user), mt_value_int(1)};
    return mt_call("aten::add_", values, 2, nullptr, 0, nullptr, 0, nullptr);
}

TEST("gradients", no_grad) {
    Handle x(at::ones({3}).requires_grad_());
    ck_refused(add_one(&x), MT_ETORCH, "leaf Variable");
    ck_ok(mt_no_grad(add_one, &x));
    ck_assert((*x).equal(at::full({3}, 2.0)));
    ck_status(mt_no_grad(nullptr, &x), MT_EINVAL);
    ck_status(add_one(&x), MT_ETORCH);
}

/* ---- threads ------------------------------------------------------------------------------------ */

/* All of them ask for names that nobody has asked for before. */
TEST("threads", several_threads) {
    const char *const names[] = {"aten::sin", "aten::cos", "aten::exp", "aten::nothing"};
    std::vector<std::thread> threads;
    std::atomic<int> good{0}, refusals{0};
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&] {
            mt_tensor *x = nullptr;
            float one = 1;
            if (mt_tensor_from_memory(&one, MT_FLOAT32, 0, nullptr, &x) != MT_OK) return;
            mt_value value = mt_value_tensor(x);
            for (int i = 0; i < 40; i++) {
                mt_status status =
                    mt_call(names[i % 4], &value, 1, nullptr, 0, nullptr, 0, nullptr);
                good += status == MT_OK;
                refusals += status == MT_EINVAL;
            }
            mt_tensor_free(x);
        });
    for (std::thread &thread : threads) thread.join();
    ck_assert_int_eq(good, 4 * 30);
    ck_assert_int_eq(refusals, 4 * 10);
}

/* ---- memory ------------------------------------------------------------------------------------ */

TEST("memory", memory_that_runs_out) {
    Handle x(pictures()), out(at::ones({1}));
    mt_value results[2];
    for (uint64_t n = 1;; n++) {
        uint64_t requests, failed;
        ck_ok(mt_inject_oom(n, 0));
        mt_status status = call("aten::topk", {x, mt_value_int(2)}, {}, results, 2);
        mt_injected(&requests, &failed);
        ck_ok(mt_inject_oom(0, 0));
        ck_status(status, failed ? MT_EDEVMEM : MT_OK);
        ck_assert_int_eq(results[0].kind, failed ? MT_VALUE_NONE : MT_VALUE_TENSOR);
        mt_values_free(results, 2);
        if (failed) continue;
        ck_assert_uint_gt(n, 2);
        break;
    }
    ck_ok(mt_device_set_budget("cpu", 1 << 20));
    const int64_t large[] = {1 << 20};
    ck_status(into(out, "aten::zeros", {mt_value_ints(large, 1)}), MT_EDEVMEM);
    same(*out, at::ones({1}));
}

} // namespace

SUITE("shim_call")
