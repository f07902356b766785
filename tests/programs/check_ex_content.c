/*
 * check_ex_content.c - marks of what is in files: the same for the same content, another one for any other.
 */
#include "content.h"

#include "cli.h"

#include <memtrain/safetensors.h>

static char marks[2][32];

static int are_same(const char *a, const char *b) {
    ex_content_mark(cli_path(a), marks[0], sizeof marks[0]);
    ex_content_mark(cli_path(b), marks[1], sizeof marks[1]);
    ck_assert_uint_eq(strlen(marks[0]), strlen("content 0123456789abcdef"));
    return strcmp(marks[0], marks[1]) == 0;
}

static const struct {
    const char *name, *change; /* of b, which is a copy of a, by the shell in their folder */
    int same;
} rows[] = {
    {"a copy", ":", 1},
    {"another name", "mv b c; cp c b", 1},
    {"the first byte", "printf x | dd of=b bs=1 conv=notrunc", 0},
    {"a byte within", "printf x | dd of=b bs=1 seek=1234567 conv=notrunc", 0},
    {"the last byte", "printf x | dd of=b bs=1 seek=1999999 conv=notrunc", 0},
    {"a byte more", "printf x >> b", 0},
    {"nothing in it", ": > b", 0},
    {"no file", "rm b", 0},
};

TEST_LOOP("files", of_the_same_content, LENGTH(rows)) {
    cli_shell("cd '%s' && head -c 2000000 /dev/zero > a && cp a b && (%s) 2>/dev/null", cli_root,
              rows[_i].change);
    ck_assert_msg(are_same("a", "b") == rows[_i].same, "%s: %s, %s", rows[_i].name, marks[0],
                  marks[1]);
}

/* A folder is no file, and no loop without an end. */
TEST("files", of_a_folder) {
    cli_shell("mkdir '%s' '%s'", cli_path("one"), cli_path("two"));
    ck_assert(are_same("one", "one"));
    ck_assert(!are_same("one", "two"));
}

/* Weights of another training have small tensors that differ alone, such as those of norms: each is looked at. */
TEST_LOOP("files", of_small_tensors, 3) {
    enum { MANY = 16 << 20, FEW = 300 };
    static const int64_t large[] = {MANY / 4}, small[] = {FEW}, half[] = {MANY / 8};
    static float values[FEW];
    char *zeros = calloc(MANY, 1);
    const char *names[] = {"a", "b"};
    ck_assert_ptr_nonnull(zeros);
    for (int i = 0; i < 2; i++) {
        const mt_safetensors_tensor tensors[] = {{"l", MT_ST_F32, 1, large, MANY, zeros},
                                                 {"n", MT_ST_F32, 1, small, sizeof values, values},
                                                 {"o", MT_ST_F32, 1, half, MANY / 2, zeros}};
        values[(FEW - 1) * _i / 2] = (float)i;
        ck_assert_int_eq(mt_safetensors_save(cli_path(names[i]), tensors, 3, NULL), MT_OK);
    }
    ck_assert(are_same("a", "a"));
    ck_assert(!are_same("a", "b"));
    free(zeros);
}

/* A header of 16 KiB before 40 MiB, of which no place but the first is looked at: types and shapes are all in the mark. */
TEST_LOOP("files", of_types_and_shapes, 2) {
    enum { MANY = 40 << 20, TENSORS = 200 };
    static const int64_t large[] = {MANY / 4}, flat[] = {4}, square[] = {2, 2};
    static const float values[4];
    static char texts[TENSORS][16];
    mt_safetensors_tensor tensors[TENSORS];
    const char *names[] = {"a", "b"};
    char *zeros = calloc(MANY, 1);
    ck_assert_ptr_nonnull(zeros);
    for (int i = 0; i < TENSORS; i++) {
        snprintf(texts[i], sizeof texts[i], "tensor.%03d", i);
        tensors[i] = (mt_safetensors_tensor){texts[i], MT_ST_F32, 1, flat, sizeof values, values};
    }
    tensors[0] = (mt_safetensors_tensor){texts[0], MT_ST_F32, 1, large, MANY, zeros};
    for (int i = 0; i < 2; i++) {
        if (i && _i) tensors[TENSORS - 20].dtype = MT_ST_I32;
        if (i && !_i) tensors[TENSORS - 20].dims = 2, tensors[TENSORS - 20].shape = square;
        ck_assert_int_eq(mt_safetensors_save(cli_path(names[i]), tensors, TENSORS, NULL), MT_OK);
    }
    ck_assert(!are_same("a", "b"));
    free(zeros);
}

/* A large file is looked at in places, to its end. */
TEST("files", of_which_places_are_looked_at) {
    cli_shell("cd '%s' && truncate -s 300M a && cp --sparse=always a b", cli_root);
    ck_assert(are_same("a", "b"));
    cli_shell(
        "cd '%s' && tr '\\0' x < a | head -c 1000000 | dd of=b bs=1000000 seek=299 conv=notrunc "
        "2>/dev/null",
        cli_root);
    ck_assert(!are_same("a", "b"));
}

/* An index has the mark of what lies beside it. */
TEST("files", of_an_index) {
    static const char index[] =
        "{\"weight_map\": {\"x\": \"one.safetensors\", \"y\": \"two.safetensors\"}}";
    for (int i = 0; i < 3; i++) {
        cli_shell("mkdir '%s/%d'", cli_root, i);
        cli_write_file(cli_path(i == 0 ? "0/i.json" : i == 1 ? "1/i.json" : "2/i.json"), index);
        cli_shell("cd '%s/%d' && echo 1 > one.safetensors && echo %d > two.safetensors", cli_root,
                  i, i / 2);
    }
    ck_assert(are_same("0/i.json", "1/i.json"));
    ck_assert(!are_same("0/i.json", "2/i.json"));
}

int main(void) {
    cli_folder_case("files");
    return suite_run_named("ex_content");
}
