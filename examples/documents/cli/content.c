/* content.c - see content.h. */
#include "content.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { PLACES = 512, PLACE_BYTES = 4096 };

uint64_t ex_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

uint64_t ex_hash_text(uint64_t hash, const char *text) {
    return ex_hash(hash, text, strlen(text) + 1);
}

static uint64_t hash_file(uint64_t hash, const char *path) {
    char piece[PLACE_BYTES];
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        if (file) fclose(file);
        return ex_hash(hash, path, strlen(path));
    }
    const long long bytes = ftell(file), last = bytes > PLACE_BYTES ? bytes - PLACE_BYTES : 0;
    hash = ex_hash(hash, &bytes, sizeof bytes);
    long long step = last / PLACES > PLACE_BYTES ? last / PLACES : PLACE_BYTES;
    for (long long at = 0; at < bytes; at += step) {
        size_t read =
            fseek(file, (long)at, SEEK_SET) == 0 ? fread(piece, 1, sizeof piece, file) : 0;
        hash = ex_hash(hash, piece, read);
    }
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
