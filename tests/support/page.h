/*
 * page.h - a report as a file: well-formed, fetching nothing, and what stands on it.
 */
#ifndef MEMTRAIN_TESTS_PAGE_H
#define MEMTRAIN_TESTS_PAGE_H

#include <stddef.h>

enum { PAGE_MOST = 4 << 20 };

/* The page that was read last. */
extern char page[PAGE_MOST];

/* Reads a file, which must be there. */
void page_read(const char *path);

/* How often the word is on it; that each of these is. */
size_t page_count(const char *word);
#define page_has(...) page_has_each((const char *const[]){__VA_ARGS__, NULL})
void page_has_each(const char *const *words);

/* Tags nest and end, texts are escaped: an SVG begins with its tag, a page with its type. */
void page_check_well_formed(void);
void page_check_self_contained(void);

/* Reads a page that must be so. */
void page_read_whole(const char *path);

#endif
