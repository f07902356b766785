/*
 * memtrain/call.h - calls any operator of libtorch from C, by its name.
 *
 *     mt_tensor *x, *y;                                    (y: a handle of mt_tensor_new)
 *     mt_call_into("aten::conv2d",
 *                  MT_VALUES(mt_value_tensor(x), mt_value_tensor(weight), mt_value_tensor(bias)),
 *                  MT_KEYWORDS({"padding", mt_value_int(1)}), y);
 *     mt_call_into("aten::relu", MT_VALUES(mt_value_tensor(y)), MT_NO_KEYWORDS, y);
 *
 * The library is libmemtrain_torch. The operators are those that Python calls torch.ops.aten.conv2d
 * and so on, and those of any library that has registered its own with libtorch's dispatcher. They
 * work as when they are called from C++. They record a graph if a tensor needs a gradient, run
 * under autocast, and take their memory from the budget. So a forward pass of them is a model
 * (mt_model_ops.loss) that mt_trainer trains. examples/conv.c is a whole one.
 *
 * A schema says what an operator takes and gives. mt_operator_schema prints it:
 *
 *     aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=[1, 1],
 *                  SymInt[2] padding=[0, 0], SymInt[2] dilation=[1, 1], SymInt groups=1) -> Tensor
 *
 * Values go to the arguments in their order. Keywords go to the arguments that they name. An
 * argument that is left out has its default. Arguments behind a * take keywords alone. This is what
 * a type of a schema accepts:
 *
 *     Tensor                    a tensor, but not an empty handle
 *     Tensor?, and any other ?  also none; for Tensor? an empty handle counts as none
 *     int, SymInt               an int
 *     float                     a double or an int
 *     Scalar                    an int, a double or a bool
 *     bool                      a bool, but not a number
 *     str, Dimname              a string
 *     ScalarType, Device        a dtype, a device
 *     Layout, MemoryFormat      a string with Python's name: "strided", "channels_last"
 *     int[], SymInt[]           ints; with a length, as in int[2], also one int for all
 *     float[], Scalar[]         doubles or ints; with a length also one number
 *     bool[], Tensor[]          bools, tensors; with a length also one bool
 *     Tensor?[]                 tensors; a NULL one counts as none
 *
 * Arguments of other types (Generator, Storage, complex numbers) can be left out, or be none, if
 * the schema allows it.
 *
 * A name is one of three kinds. "aten::add.Tensor" names an overload. "aten::relu.default" names
 * the overload that has no name of its own. "aten::add" means the first overload that accepts the
 * values, in the order in which they were registered. Results are new tensors. An operator that
 * changes its argument (relu_) or writes into one (out=) gives that tensor once more.
 *
 * If a name, a number of values, a type or a keyword is wrong, nothing is called. The line has the
 * schema. Of several overloads it has the schema of the one that comes closest:
 *
 *     mt_call: aten::relu: 2 values, accepted: at most 1; aten::relu(Tensor self) -> Tensor
 *
 * If the operator itself fails, the status is MT_ETORCH, and the line has its name and its own
 * words. It is MT_EDEVMEM when memory ran out, as everywhere. Some operators are not meant to be
 * called directly, such as the backward passes of others. They trust the sizes and indices that
 * they are given.
 *
 * Thread rule: any thread. A tensor that is changed belongs to one thread at a time. Do not call
 * operators of a library that has been unloaded.
 */
#ifndef MEMTRAIN_CALL_H
#define MEMTRAIN_CALL_H

#include <memtrain/torch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- values ---------------------------------------------------------------------------------- */

/* What a value is. */
typedef enum mt_value_kind {
    MT_VALUE_NONE = 0,
    MT_VALUE_TENSOR = 1,
    MT_VALUE_BOOL = 2,
    MT_VALUE_INT = 3,
    MT_VALUE_DOUBLE = 4,
    MT_VALUE_STRING = 5,
    MT_VALUE_DTYPE = 6,
    MT_VALUE_DEVICE = 7,
    MT_VALUE_INTS = 8,
    MT_VALUE_DOUBLES = 9,
    MT_VALUE_BOOLS = 10,
    MT_VALUE_TENSORS = 11
} mt_value_kind;

/* The content of a value. Its kind says which member counts. */
typedef union mt_value_content {
    mt_tensor *tensor;
    int boolean; /* 0: false. Anything else: true */
    int64_t integer;
    double real;
    const char *text; /* a string, or the name of a device ("sim:cuda" is the CPU) */
    mt_dtype dtype;
    const int64_t *integers;
    const double *reals;
    const unsigned char *booleans;
    mt_tensor *const *tensors;
} mt_value_content;

/*
 * An argument of an operator, or a result. What the pointers of an argument point to is borrowed
 * for the call. What the pointers of a result point to belongs to the value, see mt_values_free.
 */
typedef struct mt_value {
    mt_value_kind kind;
    int owned;    /* 1: a result, which mt_values_free releases */
    size_t count; /* elements of a list */
    mt_value_content is;
} mt_value;

/* An argument with its name. */
typedef struct mt_keyword {
    const char *name;
    mt_value value;
} mt_keyword;

static inline mt_value mt_value_of_kind(mt_value_kind kind, size_t count) {
    mt_value value;
    value.kind = kind;
    value.owned = 0;
    value.count = count;
    value.is.integer = 0;
    return value;
}

static inline mt_value mt_value_none(void) {
    return mt_value_of_kind(MT_VALUE_NONE, 0);
}

static inline mt_value mt_value_tensor(mt_tensor *tensor) {
    mt_value value = mt_value_of_kind(MT_VALUE_TENSOR, 0);
    value.is.tensor = tensor;
    return value;
}

static inline mt_value mt_value_bool(int boolean) {
    mt_value value = mt_value_of_kind(MT_VALUE_BOOL, 0);
    value.is.boolean = boolean;
    return value;
}

static inline mt_value mt_value_int(int64_t integer) {
    mt_value value = mt_value_of_kind(MT_VALUE_INT, 0);
    value.is.integer = integer;
    return value;
}

static inline mt_value mt_value_double(double real) {
    mt_value value = mt_value_of_kind(MT_VALUE_DOUBLE, 0);
    value.is.real = real;
    return value;
}

static inline mt_value mt_value_string(const char *text) {
    mt_value value = mt_value_of_kind(MT_VALUE_STRING, 0);
    value.is.text = text;
    return value;
}

static inline mt_value mt_value_dtype(mt_dtype dtype) {
    mt_value value = mt_value_of_kind(MT_VALUE_DTYPE, 0);
    value.is.dtype = dtype;
    return value;
}

static inline mt_value mt_value_device(const char *name) {
    mt_value value = mt_value_of_kind(MT_VALUE_DEVICE, 0);
    value.is.text = name;
    return value;
}

static inline mt_value mt_value_ints(const int64_t *integers, size_t count) {
    mt_value value = mt_value_of_kind(MT_VALUE_INTS, count);
    value.is.integers = integers;
    return value;
}

static inline mt_value mt_value_doubles(const double *reals, size_t count) {
    mt_value value = mt_value_of_kind(MT_VALUE_DOUBLES, count);
    value.is.reals = reals;
    return value;
}

static inline mt_value mt_value_bools(const unsigned char *booleans, size_t count) {
    mt_value value = mt_value_of_kind(MT_VALUE_BOOLS, count);
    value.is.booleans = booleans;
    return value;
}

static inline mt_value mt_value_tensors(mt_tensor *const *tensors, size_t count) {
    mt_value value = mt_value_of_kind(MT_VALUE_TENSORS, count);
    value.is.tensors = tensors;
    return value;
}

/*
 * Lists of values in the place of a call. Each stands for the two arguments that a list has. In C
 * only.
 */
#define MT_NO_VALUES NULL, 0
#define MT_NO_KEYWORDS NULL, 0
#ifndef __cplusplus
#define MT_VALUES(...)                                                                             \
    (const mt_value[]){__VA_ARGS__}, sizeof((const mt_value[]){__VA_ARGS__}) / sizeof(mt_value)
#define MT_KEYWORDS(...)                                                                           \
    (const mt_keyword[]){__VA_ARGS__},                                                             \
        sizeof((const mt_keyword[]){__VA_ARGS__}) / sizeof(mt_keyword)
/* mt_value_ints with these numbers: MT_INTS(32, 1, 3, 3). */
#define MT_INTS(...)                                                                               \
    mt_value_ints((const int64_t[]){__VA_ARGS__},                                                  \
                  sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#endif

/* ---- calls ------------------------------------------------------------------------------------ */

/*
 * Calls an operator.
 *
 * @param name           "aten::topk", "aten::add.Tensor"
 * @param values         value_count values, for the arguments in their order; may be NULL without
 *                       any
 * @param value_count    of values
 * @param keywords       keyword_count keywords; may be NULL without any
 * @param keyword_count  of keywords
 * @param results        room for the results. Each result is new: release them with mt_values_free.
 *                       A tensor is a new reference. A tensor that is not defined gives none. After
 *                       a failure all are none
 * @param capacity       values that results has room for; 0: results are dropped
 * @param out_count      number of results; may be NULL
 * @return MT_OK; MT_EINVAL with the schema in the line, also when there are more results than room;
 *         MT_ENOTSUP for a result that is not of these kinds (the operator has run then);
 *         MT_EDEVMEM; MT_ETORCH
 */
MT_API MT_NODISCARD mt_status mt_call(const char *name, const mt_value *values, size_t value_count,
                                      const mt_keyword *keywords, size_t keyword_count,
                                      mt_value *results, size_t capacity, size_t *out_count);

/*
 * Calls an operator whose first result is a tensor, and writes that tensor into a handle. Other
 * results are dropped.
 *
 * The result replaces the tensor that out had. out may be among the values of its own call. So a
 * chain of calls needs one handle. When the call fails, out keeps its tensor.
 *
 * @param out  a handle of mt_tensor_new, or one that a function of mt_model_ops has to write into
 * @return as mt_call
 */
MT_API MT_NODISCARD mt_status mt_call_into(const char *name, const mt_value *values,
                                           size_t value_count, const mt_keyword *keywords,
                                           size_t keyword_count, mt_tensor *out);

/*
 * Releases what results own (tensors, lists and strings), and makes them none. Values that are not
 * results are left alone. NULL is a no-op. To keep a tensor, take it out first: copy is.tensor, and
 * set kind to MT_VALUE_NONE.
 */
MT_API void mt_values_free(mt_value *values, size_t count);

/*
 * Writes the schemas of a name, one a line, in the order in which they are tried. The text is cut
 * if it is longer than capacity.
 *
 * @return the length without the final zero, as snprintf does; 0 when there is no such operator,
 *         and the error line says so
 */
MT_API size_t mt_operator_schema(const char *name, char *text, size_t capacity);

/* ---- gradients -------------------------------------------------------------------------------- */

/*
 * Computes the gradients of a scalar by tensors that need one ("aten::requires_grad_"). It is for
 * loops of your own: an mt_torch does it itself. The graph is used up. If a segment of
 * mt_checkpoint uses tensors other than its inputs, gradients through them are not seen here.
 *
 * @param loss     a tensor of one number, computed from inputs
 * @param inputs   count tensors
 * @param count    of inputs, and of outputs
 * @param outputs  handles that the gradients are written into; empty if the loss does not depend on
 *                 the input
 * @return MT_OK; MT_EINVAL; MT_EDEVMEM; MT_ETORCH
 */
MT_API MT_NODISCARD mt_status mt_gradients(mt_tensor *loss, mt_tensor *const *inputs, size_t count,
                                           mt_tensor *const *outputs);

/*
 * Calls body without a graph: operators that it calls on this thread record none. Use it to change
 * a parameter in place, or to save memory when no gradient is wanted. Calls may nest.
 *
 * @return what body returned
 */
MT_API MT_NODISCARD mt_status mt_no_grad(mt_status (*body)(void *user), void *user);

#ifdef __cplusplus
}
#endif
#endif
