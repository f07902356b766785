/*
 * safetensors_fixture.c - see safetensors_fixture.h.
 */
#include "safetensors_fixture.h"
#include "fake_backend.h"
#include "suite.h"

#include <stdio.h>
#include <unistd.h>

char folder[PATH], path[PATH + 16], temporary[PATH + 32], previous[PATH + 16];

void make_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/check_safetensors.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t", folder);
    snprintf(temporary, sizeof temporary, "%s/t.memtrain-tmp", folder);
    snprintf(previous, sizeof previous, "%s/t.1", folder);
}

void remove_folder(void) {
    remove(path);
    remove(temporary);
    remove(previous);
    ck_assert_int_eq(rmdir(folder), 0); /* nothing else was left there */
}

int is_there(const char *name) {
    return access(name, F_OK) == 0;
}

void put_file(const char *name, const void *data, size_t bytes) {
    FILE *file = fopen(name, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

size_t get_file(const char *name, unsigned char data[FILE_MOST]) {
    FILE *file = fopen(name, "rb");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(data, 1, FILE_MOST, file);
    fclose(file);
    ck_assert_uint_lt(bytes, FILE_MOST);
    return bytes;
}

static const mt_st_dtype dtypes[] = {
    MT_ST_BOOL, MT_ST_U8,  MT_ST_I8,  MT_ST_F8_E5M2, MT_ST_F8_E4M3, MT_ST_F8_E8M0,
    MT_ST_I16,  MT_ST_U16, MT_ST_F16, MT_ST_BF16,    MT_ST_I32,     MT_ST_U32,
    MT_ST_F32,  MT_ST_C64, MT_ST_F64, MT_ST_I64,     MT_ST_U64};

const int64_t cube[] = {2, 3, 5}, none[] = {3, 0, 2}, one[] = {1};

static const struct shape {
    size_t dims;
    const int64_t *shape;
    uint64_t elements;
} shapes[] = {{0, NULL, 1}, {3, cube, 30}, {3, none, 0}, {1, one, 1}};

_Static_assert(LENGTH(dtypes) == DTYPES && LENGTH(shapes) == SHAPES, "MANY is all of them");

void make_content(content *c) {
    uint64_t random = 5;
    for (int d = 0, n = 0; d < LENGTH(dtypes); d++)
        for (int s = 0; s < LENGTH(shapes); s++, n++) {
            snprintf(c->names[n], sizeof c->names[n], "%c.%d\n\"\\\xc3\xa9", 'a' + n % 7, n);
            for (size_t i = 0; i < sizeof c->bytes[n]; i++)
                c->bytes[n][i] = (unsigned char)fake_random(&random);
            c->tensors[n] = (mt_safetensors_tensor){
                c->names[n],     dtypes[d], shapes[s].dims,
                shapes[s].shape, 0,         shapes[s].elements ? c->bytes[n] : NULL};
            c->tensors[n].bytes = shapes[s].elements * mt_st_dtype_bytes(dtypes[d]);
        }
}

const mt_safetensors_text texts[] = {
    {"format", "pt"}, {"empty", ""}, {"a \"quoted\"\tkey", "line 1\nline 2\\ \xe2\x82\xac"}};

mt_safetensors_save_options with_texts(void) {
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    options.metadata = texts;
    options.metadata_count = LENGTH(texts);
    return options;
}

size_t put_small(unsigned char data[FILE_MOST]) {
    const mt_safetensors_tensor tensors[] = {{"one", MT_ST_F32, 3, cube, 120, data},
                                             {"two", MT_ST_U8, 1, one, 1, data},
                                             {"none", MT_ST_I64, 3, none, 0, NULL}};
    mt_safetensors_save_options options = with_texts();
    memset(data, 'x', 120);
    ck_ok(mt_safetensors_save(path, tensors, 3, &options));
    return get_file(path, data);
}
