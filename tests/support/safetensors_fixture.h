/*
 * safetensors_fixture.h - a folder for one file of tensors, and what is written to it, for the
 * check_safetensors*.c. Each test runs in a process of its own, so there is one folder for all.
 */
#ifndef MEMTRAIN_TESTS_SAFETENSORS_FIXTURE_H
#define MEMTRAIN_TESTS_SAFETENSORS_FIXTURE_H

#include <memtrain/safetensors.h>

enum { PATH = 128, FILE_MOST = 8192 };

/* The file, and those that the library may have beside it. */
extern char folder[PATH], path[PATH + 16], temporary[PATH + 32], previous[PATH + 16];

/* Before and after a test. */
void make_folder(void);
void remove_folder(void);

int is_there(const char *name);
void put_file(const char *name, const void *data, size_t bytes);
size_t get_file(const char *name, unsigned char data[FILE_MOST]);

/* Shapes of 30 elements, of no element, and of one. */
extern const int64_t cube[3], none[3], one[1];

enum { DTYPES = 17, SHAPES = 4, MANY = DTYPES * SHAPES };

/* Each dtype in each shape, with bytes of its own. */
typedef struct content {
    mt_safetensors_tensor tensors[MANY];
    char names[MANY][32];
    unsigned char bytes[MANY][240];
} content;

void make_content(content *c);

extern const mt_safetensors_text texts[3];

mt_safetensors_save_options with_texts(void);

/* A small file of three tensors and metadata; returns its bytes. */
size_t put_small(unsigned char data[FILE_MOST]);

#endif
