/* content.c - see content.h. */
#include "content.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <memtrain/safetensors.h>

enum { PLACES = 512, PLACE_BYTES = 4096 };

uint64_t ex_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t ex_hash_text(uint64_t hash, const char *text) {
    return ex_hash(hash, text, strlen(text) + 1);
}

/* Name, type and shape of each tensor, and its beginning, middle and end, however small: of other files nothing. */
static uint64_t hash_tensors(uint64_t hash, const char *path) {
    char piece[PLACE_BYTES];
    mt_safetensors *file;
    mt_safetensors_tensor tensor;
    if (mt_safetensors_open(path, &file) != MT_OK) {
        (void)!mt_set_error(MT_OK, "%s", "");
        return hash;
    }
    for (size_t i = 0; i < mt_safetensors_count(file); i++) {
        if (mt_safetensors_get(file, i, &tensor) != MT_OK) break;
        const size_t bytes = tensor.bytes < PLACE_BYTES ? (size_t)tensor.bytes : PLACE_BYTES;
        const uint64_t last = tensor.bytes - bytes, places[] = {0, last / 2, last};
        hash = ex_hash_text(hash, tensor.name);
        hash = ex_hash_text(hash, mt_st_dtype_name(tensor.dtype));
        hash = ex_hash(hash, &tensor.dims, sizeof tensor.dims);
        hash = ex_hash(hash, tensor.shape, tensor.dims * sizeof *tensor.shape);
        for (size_t k = 0; k < sizeof places / sizeof *places; k++)
            if (mt_safetensors_read(file, i, places[k], piece, bytes) == MT_OK)
                hash = ex_hash(hash, piece, bytes);
    }
    mt_safetensors_free(file);
    return hash;
}

static uint64_t hash_places(uint64_t hash, FILE *file, long long bytes) {
    char piece[PLACE_BYTES];
    const long long last = bytes > PLACE_BYTES ? bytes - PLACE_BYTES : 0;
    const long long step = last / PLACES > PLACE_BYTES ? last / PLACES : PLACE_BYTES;
    hash = ex_hash(hash, &bytes, sizeof bytes);
    for (long long at = 0; at < bytes && fseek(file, (long)at, SEEK_SET) == 0; at += step)
        hash = ex_hash(hash, piece, fread(piece, 1, sizeof piece, file));
    return hash;
}

static uint64_t hash_file(uint64_t hash, const char *path) {
    struct stat is;
    FILE *file = stat(path, &is) == 0 && S_ISREG(is.st_mode) ? fopen(path, "rb") : NULL;
    if (!file) return ex_hash(hash, path, strlen(path));
    hash = hash_tensors(hash_places(hash, file, (long long)is.st_size), path);
    fclose(file);
    return hash;
}

/* The names of an index and their files, which lie beside it, in its order. */
static uint64_t hash_files(uint64_t hash, const char *path, const json_t *map) {
    const char *slash = strrchr(path, '/'), *last = "", *name;
    char beside[4096];
    json_t *value, *names = (json_t *)map; /* which is only read */
    json_object_foreach(names, name, value) {
        const char *file = json_string_value(value);
        hash = ex_hash(hash, name, strlen(name));
        if (!file || strcmp(file, last) == 0) continue;
        snprintf(beside, sizeof beside, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, file);
        hash = hash_file(hash, beside);
        last = file;
    }
    return hash;
}

void ex_content_mark(const char *path, char *text, size_t capacity) {
    const char *end = strrchr(path, '.');
    json_t *index = end && strcmp(end, ".json") == 0 ? json_load_file(path, 0, NULL) : NULL;
    const json_t *map = json_object_get(index, "weight_map");
    uint64_t hash = map ? hash_files(EX_HASH_INIT, path, map) : hash_file(EX_HASH_INIT, path);
    json_decref(index);
    snprintf(text, capacity, "content %016" PRIx64, hash);
}
