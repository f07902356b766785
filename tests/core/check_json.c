/*
 * check_json.c - the little JSON that the library writes and reads, one token after the other. Whole
 * files, and bytes that are no UTF-8, are in check_safetensors.c; whole lines in check_trace.c.
 */
#include "counting_allocator.h"
#include "json.h"
#include "suite.h"

/* ---- strings and numbers ----------------------------------------------------------------------- */

static const struct {
    const char *text, *string; /* NULL: it is refused, ... */
    const char *problem;       /* ... in these words */
} strings[] = {
    {"\"a\"", "a", NULL},
    {" \t\r\n\"\"", "", NULL},
    {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", NULL},
    {"\"\\u0041\\u00e9\\u20AC\"", "A\xc3\xa9\xe2\x82\xac", NULL},
    {"\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", NULL},
    {"\"\\ud83d\"", NULL, "half of a pair of surrogates"},
    {"\"\\ude00\\ud83d\"", NULL, "half of a pair of surrogates"},
    {"\"\\ud83d\\ud83d\"", NULL, "half of a pair of surrogates"},
    {"\"\\ud83d\\ue000\"", NULL, "half of a pair of surrogates"},
    {"\"\\ud83d\\u12x4\"", NULL, "four hexadecimal digits"},
    {"\"\\u00\"", NULL, "four hexadecimal digits"},
    {"\"\\u", NULL, "four hexadecimal digits"},
    {"\"\\u0000\"", NULL, "a zero in a string"},
    {"\"\\x\"", NULL, "an escape that JSON does not have"},
    {"\"\\", NULL, "an escape that JSON does not have"},
    {"\"a\nb\"", NULL, "a control character"},
    {"\"a\xff\"", NULL, "no UTF-8"},
    {"\"a", NULL, "a string without an end"},
    {"a", NULL, "a string is expected"},
    {"", NULL, "a string is expected"},
};

static char scanned[200];

static mt__json scan(const char *text) {
    mt__json json = {scanned, strlen(text), 0, NULL};

    strcpy(scanned, text);
    return json;
}

TEST_LOOP("reads", string_is_read, LENGTH(strings)) {
    mt__json json = scan(strings[_i].text);
    char *string;
    int done = mt__json_string(&json, &string);

    ck_assert_int_eq(done, strings[_i].string != NULL);
    if (done) ck_assert_str_eq(string, strings[_i].string);
    if (done) ck_assert(mt__json_end(&json));
    if (!done) ck_contains(json.problem, strings[_i].problem);
}

static const struct {
    const char *text;
    uint64_t value;
    const char *problem; /* NULL: it is read */
} numbers[] = {
    {"0", 0, NULL},
    {" 42", 42, NULL},
    {"18446744073709551615", UINT64_MAX, NULL},
    {"18446744073709551616", 0, "above 2^64 - 1"},
    {"99999999999999999999", 0, "above 2^64 - 1"},
    {"07", 0, "begins with 0"},
    {"1.5", 0, "not whole"},
    {"1e3", 0, "not whole"},
    {"1E3", 0, "not whole"},
    {"-1", 0, "at least 0"},
    {"x", 0, "at least 0"},
    {"", 0, "at least 0"},
};

TEST_LOOP("reads", number_is_read, LENGTH(numbers)) {
    mt__json json = scan(numbers[_i].text);
    uint64_t value;

    ck_assert_int_eq(mt__json_whole(&json, &value), numbers[_i].problem == NULL);
    if (numbers[_i].problem == NULL) ck_assert_uint_eq(value, numbers[_i].value);
    if (numbers[_i].problem != NULL) ck_contains(json.problem, numbers[_i].problem);
}

/* ---- problems ----------------------------------------------------------------------------------- */

/* The first one stays, and behind it nothing is taken. */
TEST("reads", first_problem_stays) {
    mt__json json = scan("[1 2]");
    uint64_t value;
    char *string;

    ck_assert(mt__json_take(&json, '['));
    ck_assert(!mt__json_take(&json, ']')); /* a question, and no problem */
    ck_assert(mt__json_whole(&json, &value));
    ck_assert(!mt__json_expect(&json, ',', "a comma is expected"));
    ck_assert(!mt__json_take(&json, '2'));
    ck_assert(!mt__json_whole(&json, &value));
    ck_assert(!mt__json_string(&json, &string));
    ck_assert(!mt__json_end(&json));
    ck_assert_str_eq(json.problem, "a comma is expected");
    ck_assert_uint_eq(json.at, 3);
}

TEST("reads", end_is_the_end) {
    mt__json json = scan("1 \n ");
    uint64_t value;

    ck_assert(mt__json_whole(&json, &value) && mt__json_end(&json));
    json = scan("1 2");
    ck_assert(mt__json_whole(&json, &value) && !mt__json_end(&json));
    ck_contains(json.problem, "behind the end");
    json = scan("1");
    ck_assert(mt__json_whole(&json, &value));
    ck_assert(!mt__json_expect(&json, ',', "a comma is expected"));
    ck_assert(!mt__json_end(&json)); /* nothing is left, and not well */
    ck_assert_str_eq(json.problem, "a comma is expected");
}

/* ---- writing ------------------------------------------------------------------------------------ */

/* What is written is read: any bytes but zeros, and a piece of any length below its bound. */
TEST("writes", written_and_read) {
    mt__text text = {NULL, 0, 0, 0};
    char bytes[128], *string;
    mt__json json;

    for (int i = 0; i < 127; i++) bytes[i] = (char)(i + 1);
    bytes[127] = '\0';
    mt__put(&text, "{%*d:", 90, 7);
    mt__put_quoted(&text, bytes);
    mt__put(&text, "}");
    ck_assert_int_eq(text.failed, 0);
    ck_assert_uint_eq(strlen(text.data), text.length);
    json = (mt__json){text.data, text.length, 92, NULL};
    ck_assert(mt__json_string(&json, &string));
    ck_assert_str_eq(string, bytes);
    mt__free(text.data);
}

/* A piece of 95 bytes is one, of 96 none: then the whole line is dropped, and nothing is added to it. */
TEST("writes", piece_is_too_long) {
    mt__text text = {NULL, 0, 0, 0};

    mt__put(&text, "%95d", 1);
    ck_assert_int_eq(text.failed, 0);
    ck_assert_uint_eq(text.length, 95);
    mt__put(&text, "%96d", 1);
    ck_assert_int_eq(text.failed, 1);
    mt__put(&text, "x");
    ck_assert_uint_eq(text.length, 95);
    mt__free(text.data);
}

/* Each request for host memory fails in turn: so does the line. */
TEST("writes", without_host_memory) {
    size_t n = 0;
    int failed;

    ck_ok(counting_install());
    do {
        mt__text text = {NULL, 0, 0, 0};

        counting_fail_at(++n, 0);
        for (int i = 0; i < 3000; i++) mt__put(&text, "%d", i % 10);
        failed = text.failed;
        ck_assert_int_eq(failed, counting_fired() > 0);
        if (!failed) ck_assert_uint_eq(text.length, 3000);
        mt__free(text.data);
        ck_assert_uint_eq(counting_live(), 0);
    } while (failed);
    ck_assert_uint_gt(n, 2);
}

SUITE("json")
