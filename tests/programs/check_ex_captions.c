/*
 * check_ex_captions.c - tests of examples/documents/data/captions.h and tokens.h: the list and what is wrong with one,
 * captions, the split by titles, batches as pure functions, pictures that find no room.
 *
 * Runs from the project's root: the pictures are those of examples/data, seen through a link.
 */
#include "captions.h"
#include "cli.h"
#include "tokens.h"

#include <unistd.h>

enum { SIDE = 16, BYTES = 3 * SIDE * SIDE, MOST = 64 };

static void link_pictures(void) {
    for (int i = 0; i < 2; i++)
        cli_shell("ln -s \"$PWD/examples/data/food/fruit\" '%s'",
                  cli_path(i ? "captioned" : "fruit"));
}

static void write_list(const char *text) {
    cli_write_file(cli_path("captions.json"), text);
}

static ex_captions_options options_of(size_t batch) {
    return (ex_captions_options){.seed = 3, .side = SIDE, .batch = batch};
}

static ex_captions *open_with(const char *folder, ex_captions_options options) {
    ex_captions *captions = NULL;
    ex_error error = {""};
    ck_assert_msg(ex_captions_read(folder, &options, &captions, &error) == EX_OK, "%s", error.text);
    return captions;
}

/* Those that come with the programs, kept small. */
static ex_captions *open_data(size_t batch) {
    return open_with("examples/data", options_of(batch));
}

/* ---- tokens ---------------------------------------------------------------------------------- */

TEST("captions", tokens_are_bytes) {
    static const struct {
        const char *text;
        int64_t tokens[6];
    } rows[] = {
        {"", {256, 258, 257, 257, 257, 257}},           {"ab", {256, 'a', 'b', 258, 257, 257}},
        {"abcd", {256, 'a', 'b', 'c', 'd', 258}},       {"abcdefg", {256, 'a', 'b', 'c', 'd', 258}},
        {"\xc3\xa9", {256, 0xc3, 0xa9, 258, 257, 257}},
    };
    int64_t tokens[7];
    for (int i = 0; i < LENGTH(rows); i++) {
        tokens[6] = -1;
        ex_tokens_write(rows[i].text, 6, tokens);
        ck_assert_mem_eq(tokens, rows[i].tokens, sizeof rows[i].tokens);
        ck_assert_int_eq(tokens[6], -1);
    }
    ck_assert_int_eq(EX_TOKEN_END, EX_TOKEN_COUNT - 1);
}

/* Those of CLIP's own tokenizer, where a word has no merges: "a" is 320, "," 267, "1" 272. */
TEST("captions", tokens_as_clip_numbers_them) {
    static const struct {
        const char *text;
        int64_t tokens[7];
    } rows[] = {
        {"", {49406, 49407, 0, 0, 0, 0, 0}},
        {"a, 1", {49406, 320, 267, 272, 49407, 0, 0}},
        {"A,1", {49406, 320, 267, 272, 49407, 0, 0}},
        {"ab 12", {49406, 64, 321, 272, 273, 49407, 0}},
        {"a!?b", {49406, 320, 0, 286, 321, 49407, 0}},
        {"abcdefgh", {49406, 64, 65, 66, 67, 68, 49407}},
        {"\xc3\xa9", {49406, 127, 358, 49407, 0, 0, 0}}, /* bytes 0xc3 and 0xa9, a letter */
        {"\x7f\xad", {49406, 477, 511, 49407, 0, 0, 0}},
    };
    int64_t tokens[8];
    for (int i = 0; i < LENGTH(rows); i++) {
        tokens[7] = -1;
        ex_tokens_write_clip(rows[i].text, 7, tokens);
        ck_assert_mem_eq(tokens, rows[i].tokens, sizeof rows[i].tokens);
        ck_assert_int_eq(tokens[7], -1);
    }
    ck_assert_int_eq(EX_CLIP_END, EX_CLIP_COUNT - 1);
}

/* Each byte has a number of its own. */
TEST("captions", bytes_as_clip_numbers_them) {
    char seen[256] = "";
    for (int byte = 33; byte < 256; byte++) {
        const char text[] = {(char)byte, 0};
        int64_t tokens[3];
        ex_tokens_write_clip(text, 3, tokens);
        if (byte >= 'A' && byte <= 'Z') continue; /* as the small letter */
        ck_assert_int_ge(tokens[1], 256);
        ck_assert_int_lt(tokens[1], 512);
        ck_assert_int_eq(seen[tokens[1] - 256]++, 0);
    }
}

/* ---- the list -------------------------------------------------------------------------------- */

TEST("captions", captions_say_title_and_folder) {
    static const char *const captions[] = {"a picture of an apple, fruit",
                                           "a picture of banana, bent", "a picture of cherries",
                                           "a picture of lemon"};
    char text[128];
    write_list(
        "[[\"fruit/apple.jpg\", \"an apple\", [\"food\"]],"
        " [\"captioned/banana.jpg\", \"banana\", [\"unsorted\", \"yellow\", \"bent\", \"long\"]],"
        " [\"captioned/cherries.jpg\", \"cherries\", [\"unsorted\"]],"
        " [\"captioned/lemon.png\", \"lemon\"],"
        " [\"fruit/orange.png\", \"orange\", [\"unsorted\", \"bent\", \"unsorted\"]], "
        "[\"fruit/pear.png\", \"pear\"],"
        " [\"fruit/prune.png\", \"prune\"]]");
    ex_captions *c = open_with(cli_root, options_of(0));
    ck_assert_uint_eq(c->count, 7);
    ck_assert_uint_eq(c->validation, 1);
    int found = 0;
    for (size_t i = 0; i < c->count; i++) {
        ex_captions_text(&c->pairs[i], text, sizeof text);
        for (int j = 0; j < LENGTH(captions); j++) found += strcmp(text, captions[j]) == 0;
    }
    ck_assert_int_eq(found, LENGTH(captions));
    ex_captions_free(c);
    ex_captions_free(NULL);
}

static const struct {
    const char *text, *words;
} wrong[] = {
    {NULL, "captions.json"},
    {"", "captions.json"},
    {"{}", "expected [[\"FILE\""},
    {"[[\"fruit/apple.jpg\", \"apple\"], [\"fruit/pear.png\"]]", "entry 2"},
    {"[[\"fruit/apple.jpg\", \"\"]]", "entry 1"},
    {"[\"fruit/apple.jpg\"]", "entry 1"},
    {"[]", "0 pictures"},
    {"[[\"fruit/apple.jpg\", \"apple\"]]", "1 pictures"},
};

TEST_LOOP("captions", a_list_that_is_none, LENGTH(wrong)) {
    ex_captions_options options = options_of(0);
    ex_captions *captions;
    ex_error error = {""};
    if (wrong[_i].text) write_list(wrong[_i].text);
    ck_assert_int_eq(ex_captions_read(cli_root, &options, &captions, &error), EX_EINPUT);
    ck_assert_ptr_null(captions);
    ck_says(error.text, cli_root, wrong[_i].words);
}

static void count_line(void *user, const char *line) {
    ck_assert(strstr(line, "broken.png") || strstr(line, "gone.png"));
    ++*(int *)user;
}

TEST("captions", pictures_that_cannot_be_used_are_skipped) {
    int lines = 0;
    ex_captions_options options = options_of(0);
    options.warn = count_line;
    options.user = &lines;
    cli_write_file(cli_path("broken.png"), "no picture");
    write_list("[[\"broken.png\", \"a\"], [\"gone.png\", \"b\"], [\"fruit/apple.jpg\", \"c\"],"
               " [\"fruit/pear.png\", \"d\"], [\"fruit/prune.png\", \"e\"],"
               " [\"fruit/banana.jpg\", \"f\"], [\"fruit/lemon.png\", \"g\"],"
               " [\"fruit/orange.png\", \"h\"], [\"fruit/cherries.jpg\", \"i\"]]");
    ex_captions *c = open_with(cli_root, options);
    ck_assert_int_eq(lines, 2);
    ck_assert_uint_eq(c->skipped, 2);
    ck_assert_uint_eq(c->count, 7);
    ex_captions_free(c);
}

/* ---- the split ------------------------------------------------------------------------------- */

TEST("captions", no_title_is_on_both_sides) {
    ex_captions *c = open_data(0);
    char text[256], other[256];
    ck_assert_uint_gt(c->count, 800);
    ck_assert_uint_ge(c->validation, 128);
    ck_assert_uint_lt(c->validation, c->count / 6);
    for (size_t i = 0; i < c->validation; i++)
        for (size_t j = c->validation; j < c->count; j++) {
            ex_captions_text(&c->pairs[i], text, sizeof text);
            ex_captions_text(&c->pairs[j], other, sizeof other);
            ck_assert_str_ne(text, other);
            ck_assert_str_ne(c->pairs[i].title, c->pairs[j].title);
            ck_assert(c->pairs[i].group != c->pairs[j].group);
        }
    ex_captions_free(c);
}

/* Capitals, and what stands in brackets, make no other title. */
TEST("captions", titles_that_are_alike) {
    static const char *const titles[] = {"glove", "Glove", "glove (b and w)", "gloves"};
    char list[1024] = "[";
    for (int i = 0; i < 12; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s[\"fruit/apple.jpg\", \"%s\"]",
                 i ? "," : "", i < 4 ? titles[i] : "abcdefgh" + i - 4);
    strcat(list, "]");
    write_list(list);
    ex_captions *c = open_with(cli_root, options_of(0));
    uint64_t groups[4] = {0};
    for (size_t i = 0; i < c->count; i++)
        for (int j = 0; j < 4; j++)
            if (strcmp(c->pairs[i].title, titles[j]) == 0) groups[j] = c->pairs[i].group;
    ck_assert(groups[0] == groups[1] && groups[0] == groups[2] && groups[0] != groups[3]);
    ex_captions_free(c);
}

/* ---- batches --------------------------------------------------------------------------------- */

typedef struct batch {
    unsigned char pixels[MOST * BYTES];
    int64_t tokens[MOST * EX_CAPTION_CONTEXT];
} batch;

static void fill(const ex_captions *c, ex_split split, uint64_t epoch, size_t first, size_t count,
                 batch *out) {
    ex_source source = ex_captions_source(c);
    ck_assert_uint_eq(ex_tensor_bytes(&source.tensors[0]), BYTES);
    void *buffers[] = {out->pixels, out->tokens};
    ex_error error = {""};
    ck_assert_msg(source.fill(source.self, split, epoch, first, count, buffers, &error) == EX_OK,
                  "%s", error.text);
}

TEST("captions", splits_are_multiples_of_the_batch) {
    ex_captions *all = open_data(0);
    for (size_t n = 1; n <= 4096; n *= 8) {
        ex_captions *c = open_data(n);
        ex_source source = ex_captions_source(c);
        const size_t splits[] = {all->count - all->validation, all->validation};
        for (int split = 0; split < 2; split++) {
            size_t expected = splits[split] > n ? splits[split] / n * n : splits[split];
            ck_assert_uint_eq(source.count(c, (ex_split)split), expected);
        }
        ex_captions_free(c);
    }
    ex_captions_free(all);
}

/* However an epoch is cut; and another one is another. */
TEST("captions", batches_are_pure_functions) {
    static batch whole, part, other;
    ex_captions *c = open_data(0);
    for (int split = 0; split < 2; split++) {
        fill(c, (ex_split)split, 2, 0, MOST, &whole);
        for (size_t i = MOST; i-- > 0;) {
            fill(c, (ex_split)split, 2, i, 1, &part);
            ck_assert_mem_eq(part.pixels, whole.pixels + i * BYTES, BYTES);
            ck_assert_mem_eq(part.tokens, whole.tokens + i * EX_CAPTION_CONTEXT,
                             EX_CAPTION_CONTEXT * sizeof(int64_t));
        }
        fill(c, (ex_split)split, 3, 0, MOST, &other);
        int same = memcmp(&whole, &other, sizeof whole) == 0;
        ck_assert_int_eq(same, split == EX_VALIDATION);
    }
    ex_captions_free(c);
}

/* Keywords are said in training alone, and pictures stay what they are. */
TEST("captions", keywords_are_said_in_training) {
    static batch plain, said;
    ex_captions *c = open_data(0);
    fill(c, EX_TRAINING, 1, 0, MOST, &plain);
    c->options.keywords = 1;
    fill(c, EX_TRAINING, 1, 0, MOST, &said);
    ck_assert_mem_eq(plain.pixels, said.pixels, sizeof plain.pixels);
    size_t others = 0;
    for (size_t i = 0; i < MOST; i++)
        others +=
            memcmp(plain.tokens + i * EX_CAPTION_CONTEXT, said.tokens + i * EX_CAPTION_CONTEXT,
                   EX_CAPTION_CONTEXT * sizeof(int64_t)) != 0;
    ck_assert_uint_gt(others, MOST / 2);
    ck_assert_uint_lt(others, MOST);
    fill(c, EX_VALIDATION, 1, 0, MOST, &said);
    c->options.keywords = 0;
    fill(c, EX_VALIDATION, 1, 0, MOST, &plain);
    ck_assert_mem_eq(plain.tokens, said.tokens, sizeof plain.tokens);
    ex_captions_free(c);
}

/* The same batches from pictures that are decoded again, as long as they are there. */
TEST("captions", pictures_without_room) {
    static batch kept, again;
    ex_captions_options options = options_of(0);
    void *buffers[] = {again.pixels, again.tokens};
    ex_error error = {""};
    write_list("[[\"fruit/apple.jpg\", \"c\"], [\"fruit/pear.png\", \"d\"],"
               " [\"fruit/prune.png\", \"e\"], [\"fruit/banana.jpg\", \"f\"],"
               " [\"fruit/lemon.png\", \"g\"], [\"fruit/orange.png\", \"h\"],"
               " [\"fruit/cherries.jpg\", \"i\"]]");
    ex_captions *c = open_with(cli_root, options);
    ck_assert_uint_eq(c->not_kept, 0);
    ck_assert_uint_gt(c->pixel_bytes, 0);
    options.max_bytes = c->pixel_bytes / 2;
    ex_captions *half = open_with(cli_root, options);
    ck_assert_uint_gt(half->not_kept, 0);
    ck_assert_uint_lt(half->not_kept, 7);
    fill(c, EX_TRAINING, 1, 0, 6, &kept);
    fill(half, EX_TRAINING, 1, 0, 6, &again);
    ck_assert_mem_eq(&kept, &again, sizeof kept);
    ck_assert_int_eq(unlink(cli_path("fruit")), 0);
    ex_source source = ex_captions_source(half);
    ck_assert_int_eq(source.fill(half, EX_TRAINING, 1, 0, 6, buffers, &error), EX_EINPUT);
    ck_contains(error.text, "fruit/");
    ex_captions_free(half);
    ex_captions_free(c);
}

int main(void) {
    tcase_add_checked_fixture(cli_folder_case("captions"), link_pictures, NULL);
    return suite_run_named("ex_captions");
}
