/*
 * safetensors.c - reads the format: the header is checked as a whole when a file is opened. Writing is in
 * safetensors_save.c.
 *
 * The format: https://github.com/huggingface/safetensors, "Format" and the checks of its reader.
 */
#define _POSIX_C_SOURCE 200809L

#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct tensor {
    const char *name; /* into the header */
    mt_st_dtype dtype;
    size_t dims, shape; /* where its sizes begin among all */
    uint64_t begin, end;
} tensor;

struct mt_safetensors {
    char *path;
    int file;
    uint64_t data_at, data_bytes;
    char *header;    /* decoded where it stands: all names and texts are in it */
    tensor *tensors; /* by name */
    size_t count, capacity;
    int64_t *shapes; /* of all tensors */
    size_t shape_count, shape_capacity;
    mt_safetensors_text *metadata; /* by key */
    size_t metadata_count, metadata_capacity;
    int has_metadata; /* though it may be empty */
};

/* ---- dtypes ------------------------------------------------------------------------------------ */

static const struct dtype {
    mt_st_dtype dtype;
    const char *name;
    size_t bytes;
} dtypes[] = {
    {MT_ST_BOOL, "BOOL", 1},       {MT_ST_U8, "U8", 1},           {MT_ST_I8, "I8", 1},
    {MT_ST_F8_E5M2, "F8_E5M2", 1}, {MT_ST_F8_E4M3, "F8_E4M3", 1}, {MT_ST_F8_E8M0, "F8_E8M0", 1},
    {MT_ST_I16, "I16", 2},         {MT_ST_U16, "U16", 2},         {MT_ST_F16, "F16", 2},
    {MT_ST_BF16, "BF16", 2},       {MT_ST_I32, "I32", 4},         {MT_ST_U32, "U32", 4},
    {MT_ST_F32, "F32", 4},         {MT_ST_C64, "C64", 8},         {MT_ST_F64, "F64", 8},
    {MT_ST_I64, "I64", 8},         {MT_ST_U64, "U64", 8},
};

#define DTYPES                                                                                     \
    "BOOL, U8, I8, F8_E5M2, F8_E4M3, F8_E8M0, I16, U16, F16, BF16, I32, U32, F32, C64, F64, I64, " \
    "U64"

static const struct dtype *find_dtype(mt_st_dtype dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

const char *mt_st_dtype_name(mt_st_dtype dtype) {
    const struct dtype *d = find_dtype(dtype);
    return d ? d->name : "?";
}

size_t mt_st_dtype_bytes(mt_st_dtype dtype) {
    const struct dtype *d = find_dtype(dtype);
    return d ? d->bytes : 0;
}

int mt__st_bytes(mt_st_dtype dtype, size_t dims, const int64_t *shape, uint64_t *out) {
    uint64_t item = mt_st_dtype_bytes(dtype), all = item;
    int is_empty = 0;
    for (size_t i = 0; i < dims; i++) {
        uint64_t size = (uint64_t)shape[i];
        is_empty |= size == 0;
        if (size > 1 && all > INT64_MAX / size) return 0;
        if (size > 1) all *= size;
    }
    *out = is_empty ? 0 : all;
    return 1;
}

/* ---- errors ------------------------------------------------------------------------------------ */

const char *mt__shown(const char *name, char text[MT__SHOWN]) {
    size_t length = strlen(name);
    snprintf(text, MT__SHOWN, length < MT__SHOWN ? "%s" : "%.96s...", name);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    return text;
}

/* The file is not what it should be. */
MT_PRINTF(2, 3) static mt_status refuse(const mt_safetensors *f, const char *format, ...) {
    char reason[320];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    return mt_set_error(MT_EINVAL, "'%.180s' is no safetensors file: %s", f->path, reason);
}

static mt_status no_json(const mt_safetensors *f, const mt__json *json) {
    return refuse(f, "its header, byte %zu: %s", json->at, json->problem);
}

static mt_status no_memory(const mt_safetensors *f) {
    return mt_set_error(MT_ENOMEM, "out of host memory for the header of '%.200s'", f->path);
}

/* ---- the file ---------------------------------------------------------------------------------- */

/* MT_EIO when the file ends before. */
static mt_status read_at(const mt_safetensors *f, uint64_t at, void *data, size_t bytes) {
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(f->file, to, mt__min(bytes, (size_t)1 << 30), (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return mt__io_error("read", f->path);
        if (n == 0)
            return mt_set_error(MT_EIO, "cannot read '%.200s': it has become shorter since",
                                f->path);
        to += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return MT_OK;
}

/* Without O_NONBLOCK a pipe would be waited for. */
static mt_status open_file(mt_safetensors *f, uint64_t *out_bytes) {
    struct stat info;
    f->file = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->file < 0) return mt__io_error("open", f->path);
    if (fstat(f->file, &info) != 0) return mt__io_error("read", f->path);
    if (!S_ISREG(info.st_mode)) return refuse(f, "no regular file");
    *out_bytes = (uint64_t)info.st_size;
    return MT_OK;
}

static mt_status read_header(mt_safetensors *f, uint64_t file_bytes, mt__json *json) {
    unsigned char prefix[MT__ST_PREFIX];
    uint64_t length = 0;
    if (file_bytes < MT__ST_PREFIX)
        return refuse(f, "it has %" PRIu64 " bytes; at least %d are the length of its header",
                      file_bytes, MT__ST_PREFIX);
    mt_status status = read_at(f, 0, prefix, sizeof prefix);
    if (status != MT_OK) return status;
    for (int i = MT__ST_PREFIX - 1; i >= 0; i--) length = length << 8 | prefix[i];
    if (length < 2 || length > MT__ST_HEADER)
        return refuse(f, "it does not begin with the length of a header");
    if (length > file_bytes - MT__ST_PREFIX)
        return refuse(f, "its header has %" PRIu64 " bytes, and the file ends after %" PRIu64,
                      length, file_bytes - MT__ST_PREFIX);
    f->data_at = MT__ST_PREFIX + length;
    f->data_bytes = file_bytes - f->data_at;
    f->header = mt__alloc((size_t)length + 1, 1);
    if (!f->header) return no_memory(f);
    *json = (mt__json){f->header, (size_t)length, 0, NULL};
    return read_at(f, MT__ST_PREFIX, f->header, (size_t)length);
}

/* ---- the header -------------------------------------------------------------------------------- */

/* Room for one more item in an array that doubles; 0: no memory. */
static int room_for_one(void *items, size_t count, size_t *capacity, size_t size) {
    void *old, *grown;
    if (count < *capacity) return 1;
    size_t more = *capacity ? 2 * *capacity : 16;
    memcpy(&old, items, sizeof old);
    grown = mt__grow(old, more, size);
    if (!grown) return 0;
    memcpy(items, &grown, sizeof grown);
    *capacity = more;
    return 1;
}

static mt_status take_dtype(mt_safetensors *f, mt__json *json, tensor *t) {
    char *name, shown[MT__SHOWN], text[MT__SHOWN];
    if (!mt__json_string(json, &name)) return no_json(f, json);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0) t->dtype = dtypes[i].dtype;
    if (t->dtype != MT_ST_NONE) return MT_OK;
    return refuse(f, "tensor '%s': dtype '%.20s' is not known; accepted: " DTYPES,
                  mt__shown(t->name, shown), mt__shown(name, text));
}

static mt_status take_shape(mt_safetensors *f, mt__json *json, tensor *t) {
    char shown[MT__SHOWN];
    uint64_t size;
    t->shape = f->shape_count;
    if (!mt__json_expect(json, '[', "a list of sizes is expected")) return no_json(f, json);
    if (mt__json_take(json, ']')) return MT_OK;
    do {
        if (!mt__json_whole(json, &size)) return no_json(f, json);
        if (size > INT64_MAX)
            return refuse(f, "tensor '%s': a size of %" PRIu64 " is too large",
                          mt__shown(t->name, shown), size);
        if (!room_for_one(&f->shapes, f->shape_count, &f->shape_capacity, sizeof *f->shapes))
            return no_memory(f);
        f->shapes[f->shape_count++] = (int64_t)size;
        t->dims++;
    } while (mt__json_take(json, ','));
    return mt__json_expect(json, ']', "',' or ']' is expected") ? MT_OK : no_json(f, json);
}

static mt_status take_offsets(mt_safetensors *f, mt__json *json, tensor *t) {
    static const char problem[] = "two numbers in brackets are expected";
    if (mt__json_expect(json, '[', problem) && mt__json_whole(json, &t->begin) &&
        mt__json_expect(json, ',', problem) && mt__json_whole(json, &t->end) &&
        mt__json_expect(json, ']', problem))
        return MT_OK;
    return no_json(f, json);
}

static mt_status take_field(mt_safetensors *f, mt__json *json, tensor *t, unsigned *seen) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    char *key, shown[MT__SHOWN], text[MT__SHOWN];
    unsigned i = 0;
    if (!mt__json_string(json, &key)) return no_json(f, json);
    while (i < 3 && strcmp(key, keys[i]) != 0) i++;
    if (i == 3)
        return refuse(f, "tensor '%s': '%s' is not known; accepted: dtype, shape, data_offsets",
                      mt__shown(t->name, shown), mt__shown(key, text));
    if (*seen & 1u << i)
        return refuse(f, "tensor '%s': %s is there twice", mt__shown(t->name, shown), key);
    *seen |= 1u << i;
    if (!mt__json_expect(json, ':', "':' is expected")) return no_json(f, json);
    return i == 0   ? take_dtype(f, json, t)
           : i == 1 ? take_shape(f, json, t)
                    : take_offsets(f, json, t);
}

static mt_status check_bytes(const mt_safetensors *f, const tensor *t) {
    char shown[MT__SHOWN];
    uint64_t bytes;
    mt__shown(t->name, shown);
    if (!mt__st_bytes(t->dtype, t->dims, f->shapes + t->shape, &bytes))
        return refuse(f, "tensor '%s': its shape has 2^63 bytes or more", shown);
    if (t->end < t->begin || t->end > f->data_bytes)
        return refuse(f,
                      "tensor '%s': data_offsets %" PRIu64 " to %" PRIu64
                      "; accepted: rising, at most the %" PRIu64 " that are there",
                      shown, t->begin, t->end, f->data_bytes);
    if (t->end - t->begin != bytes)
        return refuse(f,
                      "tensor '%s': data_offsets have %" PRIu64 " bytes, dtype and shape %" PRIu64,
                      shown, t->end - t->begin, bytes);
    return MT_OK;
}

static mt_status take_tensor(mt_safetensors *f, mt__json *json, const char *name) {
    char shown[MT__SHOWN];
    tensor t = {.name = name};
    unsigned seen = 0;
    if (!mt__json_expect(json, '{', "'{' is expected")) return no_json(f, json);
    if (!mt__json_take(json, '}')) {
        do {
            mt_status status = take_field(f, json, &t, &seen);
            if (status != MT_OK) return status;
        } while (mt__json_take(json, ','));
        if (!mt__json_expect(json, '}', "',' or '}' is expected")) return no_json(f, json);
    }
    if (seen != 7)
        return refuse(f, "tensor '%s' has no %s", mt__shown(name, shown),
                      !(seen & 1)   ? "dtype"
                      : !(seen & 2) ? "shape"
                                    : "data_offsets");
    if (!room_for_one(&f->tensors, f->count, &f->capacity, sizeof *f->tensors)) return no_memory(f);
    f->tensors[f->count++] = t;
    return check_bytes(f, &t);
}

static mt_status take_metadata(mt_safetensors *f, mt__json *json) {
    char *key, *value;
    if (f->has_metadata) return refuse(f, MT__ST_METADATA " is there twice");
    f->has_metadata = 1;
    if (!mt__json_expect(json, '{', "'{' is expected")) return no_json(f, json);
    if (mt__json_take(json, '}')) return MT_OK;
    do {
        if (!mt__json_string(json, &key) || !mt__json_expect(json, ':', "':' is expected") ||
            !mt__json_string(json, &value))
            return no_json(f, json);
        if (!room_for_one(&f->metadata, f->metadata_count, &f->metadata_capacity,
                          sizeof *f->metadata))
            return no_memory(f);
        f->metadata[f->metadata_count++] = (mt_safetensors_text){key, value};
    } while (mt__json_take(json, ','));
    return mt__json_expect(json, '}', "',' or '}' is expected") ? MT_OK : no_json(f, json);
}

static mt_status take_header(mt_safetensors *f, mt__json *json) {
    char *name;
    if (f->header[0] != '{') return refuse(f, "its header does not begin with '{'");
    json->at = 1;
    if (mt__json_take(json, '}')) return mt__json_end(json) ? MT_OK : no_json(f, json);
    do {
        if (!mt__json_string(json, &name) || !mt__json_expect(json, ':', "':' is expected"))
            return no_json(f, json);
        mt_status status = strcmp(name, MT__ST_METADATA) == 0 ? take_metadata(f, json)
                                                              : take_tensor(f, json, name);
        if (status != MT_OK) return status;
    } while (mt__json_take(json, ','));
    if (!mt__json_expect(json, '}', "',' or '}' is expected") || !mt__json_end(json))
        return no_json(f, json);
    return MT_OK;
}

/* ---- all tensors together ---------------------------------------------------------------------- */

static int by_place(const void *a, const void *b) {
    const tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const mt_safetensors_text *)a)->key, ((const mt_safetensors_text *)b)->key);
}

/* One behind the other, from the first byte to the last. */
static mt_status check_places(mt_safetensors *f) {
    char shown[MT__SHOWN];
    uint64_t at = 0;
    if (f->count) qsort(f->tensors, f->count, sizeof *f->tensors, by_place);
    for (size_t i = 0; i < f->count; i++) {
        const tensor *t = &f->tensors[i];
        if (t->begin != at)
            return refuse(f,
                          "tensor '%s' begins at byte %" PRIu64 " of the data, %s: %" PRIu64
                          " is expected",
                          mt__shown(t->name, shown), t->begin,
                          t->begin < at ? "in another tensor" : "behind a hole", at);
        at = t->end;
    }
    if (at == f->data_bytes) return MT_OK;
    return refuse(f, "%" PRIu64 " bytes at its end belong to no tensor", f->data_bytes - at);
}

static mt_status check_names(mt_safetensors *f) {
    char shown[MT__SHOWN];
    if (f->count) qsort(f->tensors, f->count, sizeof *f->tensors, by_name);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->tensors[i - 1].name, f->tensors[i].name) == 0)
            return refuse(f, "tensor '%s' is there twice", mt__shown(f->tensors[i].name, shown));
    if (f->metadata_count) qsort(f->metadata, f->metadata_count, sizeof *f->metadata, by_key);
    for (size_t i = 1; i < f->metadata_count; i++)
        if (strcmp(f->metadata[i - 1].key, f->metadata[i].key) == 0)
            return refuse(f, MT__ST_METADATA " has '%s' twice",
                          mt__shown(f->metadata[i].key, shown));
    return MT_OK;
}

static mt_status fill(mt_safetensors *f) {
    uint64_t file_bytes = 0;
    mt__json json = {NULL, 0, 0, NULL};
    mt_status status = open_file(f, &file_bytes);
    if (status == MT_OK) status = read_header(f, file_bytes, &json);
    if (status == MT_OK) status = take_header(f, &json);
    if (status == MT_OK) status = check_places(f);
    if (status == MT_OK) status = check_names(f);
    if (status == MT_OK && !mt__handle_add(f, MT__KIND_SAFETENSORS)) status = no_memory(f);
    return status;
}

static void destroy(mt_safetensors *f) {
    if (f->file >= 0) close(f->file);
    mt__free(f->metadata);
    mt__free(f->shapes);
    mt__free(f->tensors);
    mt__free(f->header);
    mt__free(f->path);
    mt__free(f);
}

/* ---- public ------------------------------------------------------------------------------------ */

mt_status mt_safetensors_open(const char *path, mt_safetensors **out) {
    MT__CHECK(out, "mt_safetensors_open: out is NULL");
    *out = NULL;
    MT__CHECK(path, "mt_safetensors_open: path is NULL");
    mt_safetensors *f = mt__alloc(1, sizeof *f);
    if (f) f->path = mt__alloc(strlen(path) + 1, 1);
    if (!f || !f->path) {
        mt__free(f);
        return mt_set_error(MT_ENOMEM, "mt_safetensors_open: out of host memory");
    }
    memcpy(f->path, path, strlen(path) + 1);
    f->file = -1;
    mt_status status = fill(f);
    if (status == MT_OK)
        *out = f;
    else
        destroy(f);
    return status;
}

void mt_safetensors_free(mt_safetensors *file) {
    if (mt__handle_remove(file, MT__KIND_SAFETENSORS)) destroy(file);
}

size_t mt_safetensors_count(const mt_safetensors *file) {
    return mt__handle_is(file, MT__KIND_SAFETENSORS) ? file->count : 0;
}

static mt_status check_index(const mt_safetensors *file, size_t index, const char *function) {
    MT__CHECK_HANDLE(file, MT__KIND_SAFETENSORS, function);
    MT__CHECK(index < file->count, "%s: index is %zu; accepted: below %zu", function, index,
              file->count);
    return MT_OK;
}

mt_status mt_safetensors_get(const mt_safetensors *file, size_t index, mt_safetensors_tensor *out) {
    MT__CHECK(out, "mt_safetensors_get: out is NULL");
    *out = (mt_safetensors_tensor){0};
    mt_status status = check_index(file, index, "mt_safetensors_get");
    if (status != MT_OK) return status;
    const tensor *t = &file->tensors[index];
    *out = (mt_safetensors_tensor){t->name,           t->dtype,
                                   t->dims,           t->dims ? file->shapes + t->shape : NULL,
                                   t->end - t->begin, NULL};
    return MT_OK;
}

mt_status mt_safetensors_find(const mt_safetensors *file, const char *name, size_t *out_index) {
    char shown[MT__SHOWN];
    MT__CHECK(out_index, "mt_safetensors_find: out_index is NULL");
    *out_index = 0;
    MT__CHECK_HANDLE(file, MT__KIND_SAFETENSORS, "mt_safetensors_find");
    MT__CHECK(name, "mt_safetensors_find: name is NULL");
    tensor key = {.name = name}, *found = NULL;
    if (file->count) found = bsearch(&key, file->tensors, file->count, sizeof key, by_name);
    MT__CHECK(found, "mt_safetensors_find: '%.200s' has no tensor '%s'", file->path,
              mt__shown(name, shown));
    *out_index = (size_t)(found - file->tensors);
    return MT_OK;
}

mt_status mt_safetensors_read(const mt_safetensors *file, size_t index, uint64_t offset, void *data,
                              size_t bytes) {
    mt_status status = check_index(file, index, "mt_safetensors_read");
    if (status != MT_OK) return status;
    const tensor *t = &file->tensors[index];
    uint64_t all = t->end - t->begin;
    MT__CHECK(offset <= all && bytes <= all - offset,
              "mt_safetensors_read: %zu bytes from byte %" PRIu64 " on; the tensor has %" PRIu64,
              bytes, offset, all);
    MT__CHECK(data || !bytes, "mt_safetensors_read: data is NULL");
    return read_at(file, file->data_at + t->begin + offset, data, bytes);
}

mt_status mt__st_place(const mt_safetensors *file, size_t index, int *out_descriptor,
                       uint64_t *out_offset) {
    mt_status status = check_index(file, index, "mt__st_place");
    if (status != MT_OK) return status;
    *out_descriptor = file->file;
    *out_offset = file->data_at + file->tensors[index].begin;
    return MT_OK;
}

const char *mt_safetensors_metadata(const mt_safetensors *file, const char *key) {
    if (!key || !mt__handle_is(file, MT__KIND_SAFETENSORS) || !file->metadata_count) return NULL;
    mt_safetensors_text wanted = {key, NULL}, *found;
    found = bsearch(&wanted, file->metadata, file->metadata_count, sizeof wanted, by_key);
    return found ? found->value : NULL;
}
