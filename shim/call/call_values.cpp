/*
 * call_values.cpp - from a C value to what an argument of a schema takes, and back from a result.
 *
 * The types of a schema come in two forms: int, and what it stands for (ScalarType, SymInt). The second one
 * tells more, and is what is looked at here.
 */
#include "call_values.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include <ATen/core/jit_type.h>

#include "arguments.hpp"
#include "device_name.hpp"
#include "guard.hpp"
#include "lend.hpp"
#include "tensor.hpp"

namespace memtrain::shim {
namespace {

using c10::IValue;
using c10::TypeKind;

constexpr const char *kinds[] = {"none",  "tensor", "bool", "int",     "double", "string",
                                 "dtype", "device", "ints", "doubles", "bools",  "tensors"};
constexpr int kind_count = sizeof kinds / sizeof kinds[0];

/* Values that a schema has as numbers, by the names that Python has for them. */
struct Word {
    const char *name;
    int64_t number;
};

constexpr Word layouts[] = {
    {"strided", static_cast<int64_t>(c10::Layout::Strided)},
    {"sparse_coo", static_cast<int64_t>(c10::Layout::Sparse)},
    {"sparse_csr", static_cast<int64_t>(c10::Layout::SparseCsr)},
};

constexpr Word formats[] = {
    {"contiguous_format", static_cast<int64_t>(c10::MemoryFormat::Contiguous)},
    {"preserve_format", static_cast<int64_t>(c10::MemoryFormat::Preserve)},
    {"channels_last", static_cast<int64_t>(c10::MemoryFormat::ChannelsLast)},
    {"channels_last_3d", static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d)},
};

template <size_t N> bool convert_word(const Word (&words)[N], const mt_value &value, IValue &out) {
    if (value.kind != MT_VALUE_STRING) return false;
    for (const Word &word : words) {
        if (std::strcmp(word.name, value.is.text) != 0) continue;
        out = IValue(word.number);
        return true;
    }
    return false;
}

} // namespace

const char *kind_name(const mt_value &value) {
    int kind = number_of(value.kind);
    return kind >= 0 && kind < kind_count ? kinds[kind] : "?";
}

/* ---- checks ------------------------------------------------------------------------------------ */

namespace {

constexpr size_t most_members = size_t{1} << 32;

bool is_list(int kind) {
    return kind >= MT_VALUE_INTS && kind <= MT_VALUE_TENSORS;
}

/* Whose members have to be live handles, or NULL. */
void check_tensors(const char *function, const char *list, size_t index, const mt_value &value) {
    for (size_t i = 0; i < value.count; i++)
        if (value.is.tensors[i] && !mt__handle_is(value.is.tensors[i], MT__KIND_TENSOR))
            fail(MT_EINVAL, "%s: %s[%zu]: tensor %zu is not a live handle", function, list, index,
                 i);
}

} // namespace

void check_value(const char *function, const char *list, size_t index, const mt_value &value) {
    int kind = number_of(value.kind);
    if (kind < 0 || kind >= kind_count)
        fail(MT_EINVAL, "%s: %s[%zu].kind is %d; accepted: one of mt_value_kind", function, list,
             index, kind);
    if (kind == MT_VALUE_TENSOR && !mt__handle_is(value.is.tensor, MT__KIND_TENSOR))
        fail(MT_EINVAL, "%s: %s[%zu] is %s", function, list, index,
             value.is.tensor ? "not a live handle" : "a tensor that is NULL");
    if ((kind == MT_VALUE_STRING || kind == MT_VALUE_DEVICE) && !value.is.text)
        fail(MT_EINVAL, "%s: %s[%zu] is a %s that is NULL", function, list, index, kinds[kind]);
    if (kind == MT_VALUE_DTYPE && !type_named(number_of(value.is.dtype)))
        fail(MT_EINVAL, "%s: %s[%zu]: dtype %d is none of mt_dtype", function, list, index,
             number_of(value.is.dtype));
    if (is_list(kind) && value.count > most_members)
        fail(MT_EINVAL, "%s: %s[%zu] is a list of %zu %s; accepted: at most %zu", function, list,
             index, value.count, kinds[kind], most_members);
    if (is_list(kind) && value.count && !value.is.integers)
        fail(MT_EINVAL, "%s: %s[%zu] is a list of %zu %s that is NULL", function, list, index,
             value.count, kinds[kind]);
    if (kind == MT_VALUE_TENSORS) check_tensors(function, list, index, value);
}

/* ---- what is given ----------------------------------------------------------------------------- */

namespace {

bool convert_tensor(const mt_value &value, IValue &out) {
    if (value.kind != MT_VALUE_TENSOR || !value.is.tensor->tensor.defined()) return false;
    out = value.is.tensor->tensor;
    return true;
}

bool convert_number(const mt_value &value, bool integers, bool reals, bool booleans, IValue &out) {
    if (value.kind == MT_VALUE_INT && integers)
        out = value.is.integer;
    else if (value.kind == MT_VALUE_DOUBLE && reals)
        out = value.is.real;
    else if (value.kind == MT_VALUE_BOOL && booleans)
        out = value.is.boolean != 0;
    else
        return false;
    return true;
}

/* An operator that wants a float gets one, whatever it is given. */
bool convert_float(const mt_value &value, IValue &out) {
    if (value.kind == MT_VALUE_INT)
        out = static_cast<double>(value.is.integer);
    else if (value.kind == MT_VALUE_DOUBLE)
        out = value.is.real;
    else
        return false;
    return true;
}

bool convert_device(const mt_value &value, IValue &out) {
    Device device = c10::Device(c10::kCPU);
    if (value.kind != MT_VALUE_DEVICE) return false;
    check(parse_device(value.is.text, "mt_call", &device));
    out = IValue(device.where);
    return true;
}

bool convert_one(const mt_value &value, TypeKind wanted, IValue &out) {
    switch (wanted) {
    case TypeKind::TensorType:
        return convert_tensor(value, out);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
        return convert_number(value, true, false, false, out);
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
        return convert_float(value, out);
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
        return convert_number(value, false, false, true, out);
    case TypeKind::NumberType:
        return convert_number(value, true, true, true, out);
    case TypeKind::StringType:
        if (value.kind != MT_VALUE_STRING) return false;
        out = IValue(value.is.text);
        return true;
    case TypeKind::ScalarTypeType:
        if (value.kind != MT_VALUE_DTYPE) return false;
        out = IValue(*type_named(number_of(value.is.dtype)));
        return true;
    case TypeKind::LayoutType:
        return convert_word(layouts, value, out);
    case TypeKind::MemoryFormatType:
        return convert_word(formats, value, out);
    case TypeKind::DeviceObjType:
        return convert_device(value, out);
    default:
        return false;
    }
}

/* So many of the list's members, from its value or from one that stands for all. */
template <class Number, class Item>
c10::List<Number> list_of(size_t count, const Item *items, size_t step) {
    c10::List<Number> list;
    list.reserve(count);
    for (size_t i = 0; i < count; i++) list.push_back(static_cast<Number>(items[i * step]));
    return list;
}

/* Lists of numbers of one type. length: how often one number counts; 0: that is no list. */
template <class Number>
bool convert_numbers(const mt_value &value, bool reals, size_t length, IValue &out) {
    const auto &is = value.is;
    if (value.kind == MT_VALUE_INTS)
        out = list_of<Number>(value.count, is.integers, 1);
    else if (value.kind == MT_VALUE_DOUBLES && reals)
        out = list_of<Number>(value.count, is.reals, 1);
    else if (value.kind == MT_VALUE_INT && length)
        out = list_of<Number>(length, &is.integer, 0);
    else if (value.kind == MT_VALUE_DOUBLE && reals && length)
        out = list_of<Number>(length, &is.real, 0);
    else
        return false;
    return true;
}

bool convert_booleans(const mt_value &value, size_t length, IValue &out) {
    bool all = value.kind == MT_VALUE_BOOL && value.is.boolean != 0;
    if (value.kind == MT_VALUE_BOOLS)
        out = list_of<bool>(value.count, value.is.booleans, 1);
    else if (value.kind == MT_VALUE_BOOL && length)
        out = list_of<bool>(length, &all, 0);
    else
        return false;
    return true;
}

/* Each keeps its type: a Scalar may be an int. */
bool convert_scalars(const mt_value &value, IValue &out) {
    c10::impl::GenericList list(c10::NumberType::get());
    if (value.kind != MT_VALUE_INTS && value.kind != MT_VALUE_DOUBLES) return false;
    for (size_t i = 0; i < value.count; i++) {
        if (value.kind == MT_VALUE_INTS)
            list.push_back(IValue(value.is.integers[i]));
        else
            list.push_back(IValue(value.is.reals[i]));
    }
    out = IValue(std::move(list));
    return true;
}

bool convert_tensors(const mt_value &value, IValue &out) {
    c10::List<at::Tensor> list;
    if (value.kind != MT_VALUE_TENSORS) return false;
    for (size_t i = 0; i < value.count; i++) {
        const mt_tensor *tensor = value.is.tensors[i];
        if (!tensor || !tensor->tensor.defined()) return false;
        list.push_back(tensor->tensor);
    }
    out = std::move(list);
    return true;
}

bool convert_optional_tensors(const mt_value &value, IValue &out) {
    c10::List<std::optional<at::Tensor>> list;
    if (value.kind != MT_VALUE_TENSORS) return false;
    for (size_t i = 0; i < value.count; i++) {
        const mt_tensor *tensor = value.is.tensors[i];
        bool there = tensor && tensor->tensor.defined();
        list.push_back(there ? std::optional<at::Tensor>(tensor->tensor) : std::nullopt);
    }
    out = std::move(list);
    return true;
}

bool convert_list(const mt_value &value, const c10::Type &element, size_t length, IValue &out) {
    switch (element.kind()) {
    case TypeKind::TensorType:
        return convert_tensors(value, out);
    case TypeKind::OptionalType:
        return element.castRaw<c10::OptionalType>()->getElementType()->kind() ==
                   TypeKind::TensorType &&
               convert_optional_tensors(value, out);
    case TypeKind::IntType:
    case TypeKind::SymIntType:
        return convert_numbers<int64_t>(value, false, length, out);
    case TypeKind::FloatType:
        return convert_numbers<double>(value, true, length, out);
    case TypeKind::BoolType:
        return convert_booleans(value, length, out);
    case TypeKind::NumberType:
        return convert_scalars(value, out);
    default:
        return false;
    }
}

/* None, where the argument can be that. */
bool is_none(const mt_value &value) {
    return value.kind == MT_VALUE_NONE ||
           (value.kind == MT_VALUE_TENSOR && !value.is.tensor->tensor.defined());
}

} // namespace

bool convert(const mt_value &value, const c10::Argument &argument, IValue &out) {
    const c10::Type *type = argument.real_type().get();
    if (type->kind() == TypeKind::OptionalType) {
        if (is_none(value)) {
            out = IValue();
            return true;
        }
        type = type->castRaw<c10::OptionalType>()->getElementType().get();
    }
    if (type->kind() != TypeKind::ListType) return convert_one(value, type->kind(), out);
    size_t length = argument.N() ? static_cast<size_t>(*argument.N()) : 0;
    return convert_list(value, *type->castRaw<c10::ListType>()->getElementType(), length, out);
}

namespace {

template <size_t N> std::string list_words(const Word (&words)[N]) {
    std::string list;
    for (const Word &word : words) list += std::string(list.empty() ? "" : ", ") + word.name;
    return list;
}

} // namespace

std::string words_of(const c10::Argument &argument) {
    const c10::Type *type = argument.real_type().get();
    if (type->kind() == TypeKind::OptionalType)
        type = type->castRaw<c10::OptionalType>()->getElementType().get();
    if (type->kind() == TypeKind::LayoutType) return list_words(layouts);
    return type->kind() == TypeKind::MemoryFormatType ? list_words(formats) : "";
}

/* ---- what is given back ------------------------------------------------------------------------ */

namespace {

/* Memory for a list or a string of a result, at least one byte. Throws std::bad_alloc. */
template <class Item> Item *take_items(size_t count) {
    auto *items = static_cast<Item *>(std::calloc(count ? count : 1, sizeof(Item)));
    if (!items) throw std::bad_alloc();
    return items;
}

mt_value owned(mt_value value) {
    value.owned = 1;
    return value;
}

template <class Item, class List> const Item *copy_items(const List &list) {
    auto *items = take_items<Item>(list.size());
    for (size_t i = 0; i < list.size(); i++) items[i] = static_cast<Item>(list[i]);
    return items;
}

mt_value string_out(const std::string &text) {
    char *copy = take_items<char>(text.size() + 1);
    std::memcpy(copy, text.c_str(), text.size() + 1);
    return owned(mt_value_string(copy));
}

/* Freed as any result when a handle in the middle cannot be had. */
mt_value tensors_out(const std::vector<at::Tensor> &list) {
    auto **handles = take_items<mt_tensor *>(list.size());
    mt_value value = owned(mt_value_tensors(handles, list.size()));
    try {
        for (size_t i = 0; i < list.size(); i++) handles[i] = new_handle(list[i]);
    } catch (...) {
        mt_values_free(&value, 1);
        throw;
    }
    return value;
}

mt_value dtype_out(int64_t number) {
    auto type = static_cast<c10::ScalarType>(number);
    mt_dtype dtype = dtype_of(type);
    if (dtype != MT_DTYPE_NONE) return mt_value_dtype(dtype);
    fail(MT_ENOTSUP, "mt_call: the result is the dtype %s, which mt_dtype has not",
         c10::toString(type));
}

mt_value list_out(const IValue &result) {
    if (result.isTensorList()) return tensors_out(result.toTensorVector());
    if (result.isIntList()) {
        auto list = result.toIntVector();
        return owned(mt_value_ints(copy_items<int64_t>(list), list.size()));
    }
    if (result.isDoubleList()) {
        auto list = result.toDoubleVector();
        return owned(mt_value_doubles(copy_items<double>(list), list.size()));
    }
    if (result.isBoolList()) {
        auto list = result.toBoolList();
        std::vector<unsigned char> booleans;
        for (bool one : list) booleans.push_back(one);
        return owned(mt_value_bools(copy_items<unsigned char>(booleans), booleans.size()));
    }
    fail(MT_ENOTSUP, "mt_call: the result is a list of another kind (%s) than mt_value has",
         result.tagKind().c_str());
}

} // namespace

mt_value hand_out(IValue &&result, const c10::Argument &declared) {
    if (result.isNone()) return mt_value_none();
    if (result.isTensor()) {
        at::Tensor tensor = std::move(result).toTensor();
        return tensor.defined() ? owned(mt_value_tensor(new_handle(std::move(tensor))))
                                : mt_value_none();
    }
    if (result.isInt())
        return declared.real_type()->kind() == TypeKind::ScalarTypeType
                   ? dtype_out(result.toInt())
                   : mt_value_int(result.toInt());
    if (result.isDouble()) return mt_value_double(result.toDouble());
    if (result.isBool()) return mt_value_bool(result.toBool());
    if (result.isString()) return string_out(result.toStringRef());
    if (result.isList()) return list_out(result);
    fail(MT_ENOTSUP, "mt_call: the result is of another kind (%s) than mt_value has",
         result.tagKind().c_str());
}

} // namespace memtrain::shim

using namespace memtrain::shim;

extern "C" void mt_values_free(mt_value *values, size_t count) {
    for (size_t i = 0; values && i < count; i++) {
        mt_value &value = values[i];
        if (!value.owned) continue;
        void *memory; /* of a list or a string */
        std::memcpy(&memory, &value.is, sizeof memory);
        if (value.kind == MT_VALUE_TENSOR) mt_tensor_free(value.is.tensor);
        if (value.kind == MT_VALUE_TENSORS)
            for (size_t k = 0; k < value.count; k++) mt_tensor_free(value.is.tensors[k]);
        if (value.kind != MT_VALUE_TENSOR) std::free(memory);
        value = mt_value_none();
    }
}
