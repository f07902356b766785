/*
 * check_ex_content.c - marks of what is in files: the same for the same content, another one for any other.
 */
#include "content.h"

#include "cli.h"

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
