/*
 * page.c - see page.h.
 */
#include "page.h"
#include "suite.h"

#include <ctype.h>

enum { DEPTH_MOST = 64 };

char page[PAGE_MOST];

void page_read(const char *path) {
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    size_t length = fread(page, 1, sizeof page - 1, file);
    page[length] = '\0';
    fclose(file);
}

size_t page_count(const char *word) {
    size_t found = 0;
    for (const char *p = page; (p = strstr(p, word)); p += strlen(word)) found++;
    return found;
}

/* Not ck_contains, whose message would be the whole page. */
void page_has_each(const char *const *words) {
    for (; *words; words++)
        ck_assert_msg(strstr(page, *words) != NULL, "'%s' is not on the page", *words);
}

static const char *skip_name(const char *p) {
    while (isalnum((unsigned char)*p) || *p == '-') p++;
    return p;
}

/* name="value" with nothing in the value that would have to be escaped. */
static const char *skip_attributes(const char *p) {
    while (*p == ' ' || *p == '\n') {
        p = skip_name(p + strspn(p, " \n"));
        ck_assert_msg(p[0] == '=' && p[1] == '"', "an attribute without a value: %.40s", p);
        p += 2 + strcspn(p + 2, "\"<");
        ck_assert_msg(*p == '"', "an attribute that does not end: %.40s", p);
        p++;
    }
    return p;
}

static const char *skip_text(const char *p) {
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (; *p && *p != '<'; p++) {
        int known = *p != '&';
        for (int i = 0; i < LENGTH(entities); i++)
            known = known || strncmp(p, entities[i], strlen(entities[i])) == 0;
        ck_assert_msg(known, "an ampersand that is not escaped: %.40s", p);
        ck_assert_msg(*p != '>', "text with >: %.40s", p);
        ck_assert_msg((unsigned char)*p >= 32 || *p == '\n', "a control character: %d", *p);
    }
    return p;
}

/* Tags nest and end; style and script have neither < nor &, so they need no rule of their own. */
void page_check_well_formed(void) {
    static const char type[] = "<!DOCTYPE html>\n";
    int is_page = strncmp(page, type, sizeof type - 1) == 0;
    const char *open[DEPTH_MOST], *p = page + (is_page ? sizeof type - 1 : 0);
    size_t depth = 0;
    ck_assert_int_eq(strncmp(p, is_page ? "<html " : "<svg ", is_page ? 6 : 5), 0);
    while (*p) {
        if (*p != '<') {
            int is_code = depth && (strncmp(open[depth - 1], "style", 5) == 0 ||
                                    strncmp(open[depth - 1], "script", 6) == 0);
            p = is_code ? p + strcspn(p, "<&") : skip_text(p);
            continue;
        }
        int ends = p[1] == '/';
        const char *name = p + 1 + ends, *after = skip_name(name);
        size_t length = (size_t)(after - name);
        ck_assert_msg(length > 0, "not a tag: %.40s", p);
        p = skip_attributes(after);
        int alone = p[0] == '/';
        p += alone;
        ck_assert_msg(*p == '>', "a tag that does not end: %.40s", name);
        p++;
        if (ends) {
            ck_assert_msg(depth > 0 && strncmp(open[depth - 1], name, length) == 0 &&
                              skip_name(open[depth - 1]) == open[depth - 1] + length,
                          "closed but not open: %.40s", name);
            depth--;
        } else if (!alone) {
            ck_assert_uint_lt(depth, DEPTH_MOST);
            open[depth++] = name;
        }
    }
    ck_assert_uint_eq(depth, 0);
}

void page_check_self_contained(void) {
    static const char *const words[] = {"http:",   "https:", "src=", "href=", "url(",
                                        "@import", "fetch(", "nan",  "inf\"", "-nan"};
    for (int i = 0; i < LENGTH(words); i++)
        ck_assert_msg(!strstr(page, words[i]), "'%s' is on the page", words[i]);
}

void page_read_whole(const char *path) {
    page_read(path);
    page_check_well_formed();
    page_check_self_contained();
}
