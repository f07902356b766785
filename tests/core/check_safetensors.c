/*
 * check_safetensors.c - files of tensors: what is written is read back, what is damaged is refused
 * in words. Memory and disks that fail: check_safetensors_save.c.
 */
#include "fake_backend.h"
#include "safetensors_fixture.h"
#include "suite.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- there and back ------------------------------------------------------------------------------ */

static void same_tensor(const mt_safetensors *file, const mt_safetensors_tensor *expected,
                        const void *bytes) {
    mt_safetensors_tensor found;
    unsigned char read[256];
    size_t index;
    ck_ok(mt_safetensors_find(file, expected->name, &index));
    ck_ok(mt_safetensors_get(file, index, &found));
    ck_assert_str_eq(found.name, expected->name);
    ck_assert_int_eq(found.dtype, expected->dtype);
    ck_assert_uint_eq(found.dims, expected->dims);
    for (size_t i = 0; i < found.dims; i++) ck_assert_int_eq(found.shape[i], expected->shape[i]);
    ck_assert_uint_eq(found.bytes, expected->bytes);
    ck_assert_ptr_null(found.data);
    ck_ok(mt_safetensors_read(file, index, 0, read, (size_t)found.bytes));
    ck_assert_mem_eq(read, bytes, found.bytes);
    if (!found.bytes) return;
    ck_ok(mt_safetensors_read(file, index, found.bytes - 1, read, 1));
    ck_assert_uint_eq(read[0], ((const unsigned char *)bytes)[found.bytes - 1]);
    ck_status(mt_safetensors_read(file, index, 1, read, (size_t)found.bytes), MT_EINVAL);
    ck_status(mt_safetensors_read(file, index, UINT64_MAX, read, 1), MT_EINVAL);
}

TEST("files", round_trip) {
    static content c;
    mt_safetensors *file;
    mt_safetensors_tensor a, b;
    mt_safetensors_save_options options = with_texts();
    make_content(&c);
    ck_ok(mt_safetensors_save(path, c.tensors, MANY, &options));
    ck_assert(!is_there(temporary));
    ck_ok(mt_safetensors_open(path, &file));
    ck_assert_uint_eq(mt_safetensors_count(file), MANY);
    for (int i = 0; i < MANY; i++) same_tensor(file, &c.tensors[i], c.bytes[i]);
    for (size_t i = 1; i < MANY; i++) {
        ck_ok(mt_safetensors_get(file, i - 1, &a));
        ck_ok(mt_safetensors_get(file, i, &b));
        ck_assert_int_lt(strcmp(a.name, b.name), 0);
    }
    for (int i = 0; i < LENGTH(texts); i++)
        ck_assert_str_eq(mt_safetensors_metadata(file, texts[i].key), texts[i].value);
    ck_assert_ptr_null(mt_safetensors_metadata(file, "none"));
    mt_safetensors_free(file);
}

/* The header as it stands in the file: elements of 8 bytes first, then names; blanks to the eighth. */
TEST("files", header_as_written) {
    static const char expected[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"z\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,"
        "8]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]},"
        "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[16,17]}}";
    const char data[] = "0123456789";
    const mt_safetensors_tensor tensors[] = {{"c", MT_ST_U8, 1, one, 1, data},
                                             {"b", MT_ST_F32, 1, one, 4, data + 1},
                                             {"a", MT_ST_F32, 1, one, 4, data + 5},
                                             {"z", MT_ST_I64, 0, NULL, 8, data}};
    const mt_safetensors_text text = {"k", "v"};
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    unsigned char file[FILE_MOST];
    size_t length = sizeof expected - 1, padded = (length + 7) / 8 * 8;
    options.metadata = &text;
    options.metadata_count = 1;
    ck_ok(mt_safetensors_save(path, tensors, 4, &options));
    ck_assert_uint_eq(get_file(path, file), 8 + padded + 17);
    ck_assert_uint_eq(file[0] | file[1] << 8, padded);
    ck_assert_mem_eq(file + 2, "\0\0\0\0\0\0", 6);
    ck_assert_mem_eq(file + 8, expected, length);
    for (size_t i = length; i < padded; i++) ck_assert_int_eq(file[8 + i], ' ');
    ck_assert_mem_eq(file + 8 + padded, "01234567567812340", 17);
}

TEST("files", nothing_in_it) {
    mt_safetensors *file;
    unsigned char data[FILE_MOST];
    ck_ok(mt_safetensors_save(path, NULL, 0, NULL));
    ck_assert_uint_eq(get_file(path, data), 16);
    ck_assert_mem_eq(data, "\x08\0\0\0\0\0\0\0{}      ", 16);
    ck_ok(mt_safetensors_open(path, &file));
    ck_assert_uint_eq(mt_safetensors_count(file), 0);
    ck_assert_ptr_null(mt_safetensors_metadata(file, "k"));
    mt_safetensors_free(file);
}

/* Tensor 1 comes in pieces of 7 bytes; tensor 0 has data. */
typedef struct source {
    const unsigned char *bytes;
    size_t calls, fail_at;
    size_t given; /* bytes of a piece; 0: senseless answers */
} source;

static mt_status fetch(void *user, size_t index, uint64_t offset, const void **out_data,
                       size_t *out_bytes) {
    source *s = user;
    ck_assert_uint_eq(index, 1);
    if (++s->calls == s->fail_at) return mt_set_error(MT_EDEVMEM, "no room for the piece");
    *out_data = s->bytes + offset;
    *out_bytes = 30 - offset < s->given ? (size_t)(30 - offset) : s->given;
    return MT_OK;
}

TEST("files", fetched) {
    const unsigned char bytes[] = "abcdefghijklmnopqrstuvwxyzABCD";
    const mt_safetensors_tensor tensors[] = {{"whole", MT_ST_U8, 3, cube, 30, bytes},
                                             {"pieces", MT_ST_U8, 3, cube, 30, NULL}};
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    source s = {bytes, 0, 0, 7};
    mt_safetensors *file;
    options.fetch = fetch;
    options.user = &s;
    ck_ok(mt_safetensors_save(path, tensors, 2, &options));
    ck_assert_uint_eq(s.calls, 5);
    ck_ok(mt_safetensors_open(path, &file));
    same_tensor(file, &tensors[0], bytes);
    same_tensor(file, &tensors[1], bytes);
    mt_safetensors_free(file);
    for (s.fail_at = 1; s.fail_at <= 5; s.fail_at++) {
        s.calls = 0;
        ck_status(mt_safetensors_save(path, tensors, 2, &options), MT_EDEVMEM);
        ck_assert_str_eq(mt_last_error(), "no room for the piece");
        ck_assert(!is_there(temporary));
    }
    s = (source){bytes, 0, 0, 0};
    ck_refused(mt_safetensors_save(path, tensors, 2, &options), MT_EINVAL,
               "fetch gave 0 bytes of 'pieces' at byte 0; accepted: 1 to 30");
    options.fetch = NULL;
    ck_refused(mt_safetensors_save(path, tensors, 2, &options), MT_EINVAL,
               "tensor 'pieces': data is NULL and options->fetch too");
}

/* ---- damaged files ------------------------------------------------------------------------------- */

/* A file of this header and so many bytes of data. */
static void put_header(const char *header, size_t length, size_t data) {
    unsigned char file[FILE_MOST] = {0};
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, length);
    put_file(path, file, 8 + length + data);
}

#define T(fields) "{\"t\":{" fields "}}"
#define F32(shape, offsets) "\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets
#define NAMED(name, offsets)                                                                       \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets "}"

static const struct damaged {
    const char *header;
    size_t data;
    const char *word;
} damaged[] = {
    {"[]", 0, "does not begin with '{'"},
    {" {}", 0, "does not begin with '{'"},
    {"{ ", 0, "byte 2: a string is expected"},
    {"{}{", 0, "byte 2: something behind the end"},
    {"{}}", 0, "something behind the end"},
    {"{,}", 0, "a string is expected"},
    {T(F32("[1]", "[0,4]") ","), 4, "a string is expected"},
    {"{\"t\"}", 0, "':' is expected"},
    {"{\"t\":[]}", 0, "'{' is expected"},
    {"{\"t\":null}", 0, "'{' is expected"},
    {"{\"t\":{\"dtype\":{\"dtype\":1}}}", 0, "a string is expected"},
    {"{\"t", 0, "a string without an end"},
    {"{\"t\\", 0, "an escape that JSON does not have"},
    {"{\"\\x\":1}", 0, "an escape that JSON does not have"},
    {"{\"\\u12g4\":1}", 0, "\\u without four hexadecimal digits"},
    {"{\"\\u12", 0, "\\u without four hexadecimal digits"},
    {"{\"\\u0000\":1}", 0, "a zero in a string"},
    {"{\"\\ud800\":1}", 0, "half of a pair of surrogates"},
    {"{\"\\ud800\\u0041\":1}", 0, "half of a pair of surrogates"},
    {"{\"\\udc00\":1}", 0, "half of a pair of surrogates"},
    {"{\"a\nb\":1}", 0, "a control character in a string"},
    {"{\"\x80\":1}", 0, "no UTF-8"},
    {"{\"\xc3\":1}", 0, "no UTF-8"},
    {"{\"\xc0\x80\":1}", 0, "no UTF-8"},
    {"{\"\xed\xa0\x80\":1}", 0, "no UTF-8"},
    {"{\"\xf4\x90\x80\x80\":1}", 0, "no UTF-8"},
    {"{\"\xf8\x88\x80\x80\x80\":1}", 0, "no UTF-8"},
    {"{\"\xe2\x82", 0, "no UTF-8"},
    {T(""), 0, "tensor 't' has no dtype"},
    {T("\"dtype\":\"F32\""), 0, "tensor 't' has no shape"},
    {T("\"dtype\":\"F32\",\"shape\":[]"), 0, "tensor 't' has no data_offsets"},
    {T(F32("[1]", "[0,4]") ",\"dtype\":\"F32\""), 4, "tensor 't': dtype is there twice"},
    {T(F32("[1]", "[0,4]") ",\"strides\":[]"), 4, "'strides' is not known; accepted: dtype"},
    {T("\"dtype\":\"F4\""), 0, "dtype 'F4' is not known; accepted: BOOL"},
    {T("\"dtype\":\"f32\""), 0, "dtype 'f32' is not known"},
    {T("\"dtype\":\"\""), 0, "dtype '' is not known"},
    {T("\"dtype\":32"), 0, "a string is expected"},
    {T("\"shape\":4"), 0, "a list of sizes is expected"},
    {T("\"shape\":[4"), 0, "',' or ']' is expected"},
    {T("\"shape\":[4,]"), 0, "a whole number of at least 0 is expected"},
    {T("\"shape\":[-1]"), 0, "a whole number of at least 0 is expected"},
    {T("\"shape\":[1.5]"), 0, "a number that is not whole"},
    {T("\"shape\":[1e3]"), 0, "a number that is not whole"},
    {T("\"shape\":[01]"), 0, "a number that begins with 0"},
    {T("\"shape\":[\"4\"]"), 0, "a whole number of at least 0 is expected"},
    {T("\"shape\":[[4]]"), 0, "a whole number of at least 0 is expected"},
    {T("\"shape\":[18446744073709551616]"), 0, "a number above 2^64 - 1"},
    {T("\"shape\":[9223372036854775808]"), 0, "a size of 9223372036854775808 is too large"},
    {T("\"data_offsets\":[0]"), 0, "two numbers in brackets are expected"},
    {T("\"data_offsets\":[0,4,8]"), 0, "two numbers in brackets are expected"},
    {T(F32("[1]", "[0,5]")), 5, "data_offsets have 5 bytes, dtype and shape 4"},
    {T(F32("[2]", "[0,4]")), 4, "data_offsets have 4 bytes, dtype and shape 8"},
    {T(F32("[0]", "[0,4]")), 4, "data_offsets have 4 bytes, dtype and shape 0"},
    {T(F32("[4294967296,4294967296]", "[0,0]")), 0, "its shape has 2^63 bytes or more"},
    {T(F32("[4294967296,0,4294967296]", "[0,0]")), 0, "its shape has 2^63 bytes or more"},
    {T(F32("[4611686018427387905]", "[0,4]")), 4, "its shape has 2^63 bytes or more"},
    {T(F32("[1]", "[4,0]")), 4, "data_offsets 4 to 0; accepted: rising"},
    {T(F32("[1]", "[0,4]")), 3, "data_offsets 0 to 4; accepted: rising, at most the 3"},
    {T(F32("[1]", "[18446744073709551612,18446744073709551615]")), 4, "accepted: rising"},
    {T(F32("[1]", "[0,4]")), 5, "1 bytes at its end belong to no tensor"},
    {T(F32("[1]", "[1,5]")), 5, "tensor 't' begins at byte 1 of the data, behind a hole: 0"},
    {"{}", 1, "1 bytes at its end belong to no tensor"},
    {"{" NAMED("a", "[0,4]") "," NAMED("b", "[3,7]") "}", 7,
     "tensor 'b' begins at byte 3 of the data, in another tensor: 4 is expected"},
    {"{" NAMED("a", "[0,4]") "," NAMED("b", "[0,4]") "}", 4, "in another tensor"},
    {"{" NAMED("a", "[0,4]") "," NAMED("b", "[5,9]") "}", 9, "behind a hole: 4 is expected"},
    {"{" NAMED("a", "[0,4]") "," NAMED("a", "[4,8]") "}", 8, "tensor 'a' is there twice"},
    {"{" NAMED("a", "[0,4]") "," NAMED("\\u0061", "[4,8]") "}", 8, "tensor 'a' is there twice"},
    {"{" NAMED("a\\nb", "[0,4]") "," NAMED("a\\nb", "[4,8]") "}", 8, "tensor 'a?b' is there twice"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "a string is expected"},
    {"{\"__metadata__\":{\"k\":null}}", 0, "a string is expected"},
    {"{\"__metadata__\":{\"k\":{}}}", 0, "a string is expected"},
    {"{\"__metadata__\":[]}", 0, "'{' is expected"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "__metadata__ has 'k' twice"},
    {"{\"__metadata__\":{\"k\":\"1\"},\"__metadata__\":{}}", 0, "__metadata__ is there twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is there twice"},
    {"{\"__metadata__\":{\"k\":\"1\"", 0, "',' or '}' is expected"},
};

static void refused(const char *word) {
    mt_safetensors *file = (mt_safetensors *)path;
    ck_status(mt_safetensors_open(path, &file), MT_EINVAL);
    ck_assert_ptr_null(file);
    ck_contains(mt_last_error(), word);
    ck_contains(mt_last_error(), path);
    ck_assert_ptr_null(strchr(mt_last_error(), '\n'));
}

TEST_LOOP("damaged", damaged_header, LENGTH(damaged)) {
    const struct damaged *d = &damaged[_i];
    put_header(d->header, strlen(d->header), d->data);
    refused(d->word);
}

/* What looks odd and is all right. */
static const struct odd {
    const char *header;
    size_t data;
} odd[] = {
    {"{}", 0},
    {"{ \t\r\n}", 0},
    {"{\"__metadata__\":{}}  ", 0},
    {T(F32("[1]", "[0,4]")) " \n", 4},
    {"{ \"t\" : { \"data_offsets\" : [ 0 , 4 ] , \"shape\" : [ 1 ] , \"dtype\" : \"F32\" } }", 4},
    {"{" NAMED("b", "[4,8]") "," NAMED("\\ud83d\\ude00\\/", "[0,4]") "}", 8},
    {"{\"\":{" F32("[]", "[0,4]") "}}", 4},
    {"{\"e\":{" F32("[0]", "[4,4]") "},\"t\":{" F32("[]", "[0,4]") "},\"u\":{" F32("[]",
                                                                                   "[4,8]") "}}",
     8},
    {T(F32("[0,4294967296]", "[0,0]")), 0},
};

TEST_LOOP("damaged", odd_header, LENGTH(odd)) {
    mt_safetensors *file;
    put_header(odd[_i].header, strlen(odd[_i].header), odd[_i].data);
    ck_ok(mt_safetensors_open(path, &file));
    mt_safetensors_free(file);
}

TEST("damaged", zero_in_the_header) {
    put_header("{\"a\0b\":1}", 9, 0);
    refused("a control character in a string");
    put_header("{}\0\0", 4, 0);
    refused("something behind the end");
}

TEST("damaged", length_of_the_header) {
    static const struct {
        uint64_t length;
        const char *word;
    } rows[] = {
        {0, "it does not begin with the length of a header"},
        {1, "it does not begin with the length of a header"},
        {3, "its header has 3 bytes, and the file ends after 2"},
        {100000000, "and the file ends after 2"},
        {100000001, "it does not begin with the length of a header"},
        {(uint64_t)1 << 63, "it does not begin with the length of a header"},
        {UINT64_MAX, "it does not begin with the length of a header"},
        {UINT64_MAX - 7, "it does not begin with the length of a header"},
    };
    for (int r = 0; r < LENGTH(rows); r++) {
        unsigned char file[10] = "........{}";
        for (int i = 0; i < 8; i++) file[i] = (unsigned char)(rows[r].length >> 8 * i);
        put_file(path, file, sizeof file);
        refused(rows[r].word);
    }
    put_file(path, "", 0);
    refused("it has 0 bytes; at least 8");
}

TEST("damaged", no_file) {
    mt_safetensors *file;
    ck_refused(mt_safetensors_open(path, &file), MT_EIO, "No such file");
    ck_refused(mt_safetensors_open(folder, &file), MT_EINVAL, "no regular file");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    refused("no regular file");
}

TEST("damaged", cut_off_anywhere) {
    static unsigned char data[FILE_MOST];
    mt_safetensors *file;
    size_t bytes = put_small(data);
    for (size_t n = 0; n < bytes; n++) {
        put_file(path, data, n);
        ck_status(mt_safetensors_open(path, &file), MT_EINVAL);
    }
    data[bytes] = 'x';
    put_file(path, data, bytes + 1);
    refused("1 bytes at its end belong to no tensor");
}

/* A file that loses its end while it is open. */
TEST("damaged", cut_off_while_open) {
    static unsigned char data[FILE_MOST];
    mt_safetensors *file;
    size_t bytes = put_small(data), index;
    ck_ok(mt_safetensors_open(path, &file));
    ck_assert_int_eq(truncate(path, (off_t)bytes - 2), 0);
    ck_ok(mt_safetensors_find(file, "one", &index));
    ck_refused(mt_safetensors_read(file, index, 0, data, 120), MT_EIO,
               "it has become shorter since");
    mt_safetensors_free(file);
}

/* Reads all there is to read. */
static void read_all(const mt_safetensors *file) {
    static unsigned char bytes[FILE_MOST];
    mt_safetensors_tensor tensor;
    size_t index;
    for (size_t i = 0; i < mt_safetensors_count(file); i++) {
        ck_ok(mt_safetensors_get(file, i, &tensor));
        ck_assert_uint_le(tensor.bytes, sizeof bytes);
        ck_ok(mt_safetensors_read(file, i, 0, bytes, (size_t)tensor.bytes));
        ck_ok(mt_safetensors_find(file, tensor.name, &index));
        ck_assert_uint_eq(index, i);
    }
}

/* One to four bytes change, some of them to bytes that the header is made of: no crash, and no lie. */
TEST_LOOP("damaged", random_damage, 4) {
    static const char tokens[] = "{}[],:\"\\u0123456789dtyphasF";
    static unsigned char data[FILE_MOST], changed[FILE_MOST];
    uint64_t random = (uint64_t)_i + 1;
    size_t bytes = put_small(data), opened = 0;
    for (int round = 0; round < 4000; round++) {
        mt_safetensors *file;
        memcpy(changed, data, bytes);
        for (uint64_t n = fake_random(&random) % 4 + 1; n > 0; n--) {
            uint64_t r = fake_random(&random);
            size_t at = round % 2 ? r % bytes : r % (bytes - 121);
            changed[at] =
                (unsigned char)(r & 1u << 20 ? r >> 32
                                             : (uint64_t)tokens[(r >> 32) % (sizeof tokens - 1)]);
        }
        put_file(path, changed, bytes);
        mt_status status = mt_safetensors_open(path, &file);
        ck_assert_msg(status == MT_OK || status == MT_EINVAL, "%s", mt_last_error());
        if (status != MT_OK) continue;
        read_all(file);
        mt_safetensors_free(file);
        opened++;
    }
    ck_assert_uint_gt(opened, 100); /* bytes of the data, and letters of names */
}

/* ---- what the caller may get wrong ---------------------------------------------------------------- */

TEST("arguments", wrong_arguments) {
    static const int64_t negative[] = {-1}, large[] = {INT64_MAX};
    const mt_safetensors_tensor good = {"t", MT_ST_U8, 1, one, 1, "x"};
    const struct {
        mt_safetensors_tensor tensor;
        const char *word;
    } rows[] = {
        {{NULL, MT_ST_U8, 1, one, 1, "x"}, "tensors[0].name is NULL"},
        {{"\xff", MT_ST_U8, 1, one, 1, "x"}, "the name of tensors[0] is no UTF-8"},
        {{"__metadata__", MT_ST_U8, 1, one, 1, "x"}, "a tensor is named __metadata__"},
        {{"t", MT_ST_NONE, 1, one, 1, "x"}, "tensor 't': dtype 0 is none of mt_st_dtype"},
        {{"t", (mt_st_dtype)2, 1, one, 1, "x"}, "dtype 2 is none of mt_st_dtype"},
        {{"t", MT_ST_U8, 1, NULL, 1, "x"}, "tensor 't': shape is NULL"},
        {{"t", MT_ST_U8, 1, negative, 1, "x"}, "shape[0] is -1; accepted: at least 0"},
        {{"t", MT_ST_F32, 1, large, 1, "x"}, "its shape has 2^63 bytes or more"},
        {{"t", MT_ST_F32, 1, one, 1, "x"}, "bytes is 1; dtype and shape have 4"},
        {{"t", MT_ST_U8, 1, one, 1, NULL}, "data is NULL and options->fetch too"},
    };
    for (int i = 0; i < LENGTH(rows); i++) {
        ck_refused(mt_safetensors_save(path, &rows[i].tensor, 1, NULL), MT_EINVAL, rows[i].word);
    }
    const mt_safetensors_tensor twice[] = {good, {"u", MT_ST_F32, 1, one, 4, "xxxx"}, good};
    ck_refused(mt_safetensors_save(path, twice, 3, NULL), MT_EINVAL, "tensor 't' is there twice");
    ck_refused(mt_safetensors_save(NULL, &good, 1, NULL), MT_EINVAL, "path is NULL");
    ck_status(mt_safetensors_save("", &good, 1, NULL), MT_EINVAL);
    ck_refused(mt_safetensors_save(path, NULL, 1, NULL), MT_EINVAL, "tensors is NULL");
    ck_refused(mt_safetensors_save(folder, &good, 1, NULL), MT_EINVAL, "is a folder");
    ck_status(mt_safetensors_save("/dev/full", &good, 1, NULL), MT_EINVAL);
    ck_assert(!is_there(path));
}

TEST("arguments", wrong_metadata) {
    const mt_safetensors_text rows[][2] = {{{"k", "v"}, {"k", "w"}},
                                           {{"k", "v"}, {NULL, "w"}},
                                           {{"k", NULL}, {"l", "w"}},
                                           {{"k", "v"}, {"l", "\xc3"}}};
    const char *const words[] = {"has 'k' twice", "metadata[1].key is NULL",
                                 "metadata[0].value is NULL", "metadata[1] is no UTF-8"};
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    options.metadata_count = 2;
    for (int i = 0; i < LENGTH(rows); i++) {
        options.metadata = rows[i];
        ck_refused(mt_safetensors_save(path, NULL, 0, &options), MT_EINVAL, words[i]);
    }
    options.metadata = NULL;
    ck_status(mt_safetensors_save(path, NULL, 0, &options), MT_EINVAL);
    options.size = 0;
    ck_refused(mt_safetensors_save(path, NULL, 0, &options), MT_EINVAL, "options->size is not set");
}

TEST("arguments", handles) {
    static unsigned char data[FILE_MOST];
    mt_safetensors *file;
    mt_safetensors_tensor tensor;
    size_t index;
    put_small(data);
    ck_status(mt_safetensors_open(NULL, &file), MT_EINVAL);
    ck_status(mt_safetensors_open(path, NULL), MT_EINVAL);
    ck_ok(mt_safetensors_open(path, &file));
    ck_refused(mt_safetensors_get(file, 3, &tensor), MT_EINVAL, "index is 3; accepted: below 3");
    ck_assert_ptr_null(tensor.name);
    ck_status(mt_safetensors_get(file, 0, NULL), MT_EINVAL);
    ck_status(mt_safetensors_read(file, 1, 0, NULL, 1), MT_EINVAL);
    ck_refused(mt_safetensors_find(file, "three", &index), MT_EINVAL, "has no tensor 'three'");
    ck_status(mt_safetensors_find(file, NULL, &index), MT_EINVAL);
    ck_status(mt_safetensors_find(file, "one", NULL), MT_EINVAL);
    ck_assert_ptr_null(mt_safetensors_metadata(file, NULL));
    mt_safetensors_free(file);
    mt_safetensors_free(file);
    mt_safetensors_free(NULL);
    ck_assert_uint_eq(mt_safetensors_count(file), 0);
    ck_assert_ptr_null(mt_safetensors_metadata(file, "format"));
    ck_refused(mt_safetensors_get(file, 0, &tensor), MT_EINVAL, "file is not a live handle");
    ck_status(mt_safetensors_read(file, 0, 0, data, 0), MT_EINVAL);
    ck_status(mt_safetensors_find(file, "one", &index), MT_EINVAL);
    ck_assert_str_eq(mt_st_dtype_name((mt_st_dtype)99), "?");
    ck_assert_uint_eq(mt_st_dtype_bytes((mt_st_dtype)99), 0);
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("files"), make_folder, remove_folder);
    tcase_add_checked_fixture(suite_case_named("damaged"), make_folder, remove_folder);
    tcase_add_checked_fixture(suite_case_named("arguments"), make_folder, remove_folder);
    return suite_run_named("safetensors");
}
