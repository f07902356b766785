/*
 * safetensors_save.c - writes the format. How the file takes its name: new_file.c.
 */
#include "safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char name_of[] = "mt_safetensors_save";

/* A tensor in the order of the file. */
typedef struct place {
    const mt_safetensors_tensor *tensor;
    size_t index; /* in the caller's list */
} place;

typedef struct saving {
    mt_safetensors_save_options options;
    place *places;
    size_t count;
    mt__text header;
    mt__new_file file;
} saving;

static mt_status no_memory(void) {
    return mt_set_error(MT_ENOMEM, "%s: out of host memory", name_of);
}

/* ---- what is to be written --------------------------------------------------------------------- */

static mt_status check_tensor(const saving *s, const mt_safetensors_tensor *t, size_t index) {
    char shown[MT__SHOWN];
    uint64_t bytes;
    MT__CHECK(t->name, "%s: tensors[%zu].name is NULL", name_of, index);
    mt__shown(t->name, shown);
    MT__CHECK(mt__is_utf8(t->name), "%s: the name of tensors[%zu] is no UTF-8", name_of, index);
    MT__CHECK(strcmp(t->name, MT__ST_METADATA) != 0,
              "%s: a tensor is named " MT__ST_METADATA "; accepted: any other name", name_of);
    MT__CHECK(mt_st_dtype_bytes(t->dtype), "%s: tensor '%s': dtype %d is none of mt_st_dtype",
              name_of, shown, (int)t->dtype);
    MT__CHECK(t->shape || !t->dims, "%s: tensor '%s': shape is NULL", name_of, shown);
    for (size_t i = 0; i < t->dims; i++)
        MT__CHECK(t->shape[i] >= 0,
                  "%s: tensor '%s': shape[%zu] is %" PRId64 "; accepted: at least 0", name_of,
                  shown, i, t->shape[i]);
    MT__CHECK(mt__st_bytes(t->dtype, t->dims, t->shape, &bytes),
              "%s: tensor '%s': its shape has 2^63 bytes or more", name_of, shown);
    MT__CHECK(t->bytes == bytes,
              "%s: tensor '%s': bytes is %" PRIu64 "; dtype and shape have %" PRIu64, name_of,
              shown, t->bytes, bytes);
    MT__CHECK(t->data || !bytes || s->options.fetch,
              "%s: tensor '%s': data is NULL and options->fetch too", name_of, shown);
    return MT_OK;
}

static mt_status check_metadata(const mt_safetensors_save_options *o) {
    char shown[MT__SHOWN];
    MT__CHECK(o->metadata || !o->metadata_count, "%s: options->metadata is NULL", name_of);
    for (size_t i = 0; i < o->metadata_count; i++) {
        const mt_safetensors_text *m = &o->metadata[i];
        MT__CHECK(m->key && m->value, "%s: options->metadata[%zu].%s is NULL", name_of, i,
                  m->key ? "value" : "key");
        MT__CHECK(mt__is_utf8(m->key) && mt__is_utf8(m->value),
                  "%s: options->metadata[%zu] is no UTF-8", name_of, i);
        for (size_t k = 0; k < i; k++)
            MT__CHECK(strcmp(o->metadata[k].key, m->key) != 0,
                      "%s: options->metadata has '%s' twice", name_of, mt__shown(m->key, shown));
    }
    return MT_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const place *)a)->tensor->name, ((const place *)b)->tensor->name);
}

/* Largest elements first; the dtypes' numbers rise with their bytes. */
static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    int d = (x->tensor->dtype < y->tensor->dtype) - (x->tensor->dtype > y->tensor->dtype);
    return d ? d : by_name(a, b);
}

static mt_status take_tensors(saving *s, const mt_safetensors_tensor *tensors) {
    char shown[MT__SHOWN];
    MT__CHECK(tensors || !s->count, "%s: tensors is NULL", name_of);
    for (size_t i = 0; i < s->count; i++) {
        mt_status status = check_tensor(s, &tensors[i], i);
        if (status != MT_OK) return status;
    }
    if (!s->count) return MT_OK;
    s->places = mt__alloc(s->count, sizeof *s->places);
    if (!s->places) return no_memory();
    for (size_t i = 0; i < s->count; i++) s->places[i] = (place){&tensors[i], i};
    qsort(s->places, s->count, sizeof *s->places, by_name);
    for (size_t i = 1; i < s->count; i++)
        MT__CHECK(by_name(&s->places[i - 1], &s->places[i]) != 0, "%s: tensor '%s' is there twice",
                  name_of, mt__shown(s->places[i].tensor->name, shown));
    qsort(s->places, s->count, sizeof *s->places, by_place);
    return MT_OK;
}

static void put_metadata(mt__text *x, const mt_safetensors_save_options *o) {
    mt__put(x, "\"" MT__ST_METADATA "\":{");
    for (size_t i = 0; i < o->metadata_count; i++) {
        if (i) mt__put(x, ",");
        mt__put_quoted(x, o->metadata[i].key);
        mt__put(x, ":");
        mt__put_quoted(x, o->metadata[i].value);
    }
    mt__put(x, "}");
}

static void put_tensor(mt__text *x, const mt_safetensors_tensor *t, uint64_t begin) {
    mt__put_quoted(x, t->name);
    mt__put(x, ":{\"dtype\":\"%s\",\"shape\":[", mt_st_dtype_name(t->dtype));
    for (size_t i = 0; i < t->dims; i++) mt__put(x, i ? ",%" PRId64 : "%" PRId64, t->shape[i]);
    mt__put(x, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + t->bytes);
}

/* Blanks at its end make its length a multiple of 8, so that the data are aligned. */
static mt_status make_header(saving *s) {
    mt__text *x = &s->header;
    uint64_t at = 0;
    mt__put(x, "{");
    if (s->options.metadata_count) put_metadata(x, &s->options);
    for (size_t i = 0; i < s->count; i++) {
        const mt_safetensors_tensor *t = s->places[i].tensor;
        MT__CHECK(t->bytes <= INT64_MAX - at, "%s: all tensors have 2^63 bytes or more", name_of);
        if (i || s->options.metadata_count) mt__put(x, ",");
        put_tensor(x, t, at);
        at += t->bytes;
    }
    mt__put(x, "}");
    while (!x->failed && x->length % 8) mt__put(x, " ");
    if (x->failed) return no_memory();
    MT__CHECK(x->length <= MT__ST_HEADER,
              "%s: names, shapes and metadata take %zu bytes; accepted: at most %d", name_of,
              x->length, MT__ST_HEADER);
    return MT_OK;
}

/* ---- writing it -------------------------------------------------------------------------------- */

static mt_status write_header(const saving *s) {
    unsigned char prefix[MT__ST_PREFIX];
    for (int i = 0; i < MT__ST_PREFIX; i++)
        prefix[i] = (unsigned char)((uint64_t)s->header.length >> (8 * i));
    mt_status status = mt__new_file_write(&s->file, prefix, sizeof prefix);
    return status == MT_OK ? mt__new_file_write(&s->file, s->header.data, s->header.length)
                           : status;
}

/* Piece by piece, as the caller gives them. */
static mt_status write_fetched(const saving *s, const place *p) {
    char shown[MT__SHOWN];
    for (uint64_t at = 0; at < p->tensor->bytes;) {
        const void *data = NULL;
        size_t bytes = 0;
        mt_status status = s->options.fetch(s->options.user, p->index, at, &data, &bytes);
        if (status != MT_OK) return status;
        MT__CHECK(data && bytes && bytes <= p->tensor->bytes - at,
                  "%s: fetch gave %zu bytes of '%s' at byte %" PRIu64 "; accepted: 1 to %" PRIu64,
                  name_of, data ? bytes : 0, mt__shown(p->tensor->name, shown), at,
                  p->tensor->bytes - at);
        status = mt__new_file_write(&s->file, data, bytes);
        if (status != MT_OK) return status;
        at += bytes;
    }
    return MT_OK;
}

static mt_status write_file(const saving *s) {
    mt_status status = write_header(s);
    for (size_t i = 0; i < s->count && status == MT_OK; i++) {
        const mt_safetensors_tensor *t = s->places[i].tensor;
        status = t->data ? mt__new_file_write(&s->file, t->data, (size_t)t->bytes)
                         : write_fetched(s, &s->places[i]);
    }
    return status;
}

mt_status mt_safetensors_save(const char *path, const mt_safetensors_tensor *tensors, size_t count,
                              const mt_safetensors_save_options *options) {
    saving s = {.count = count};
    s.options = (mt_safetensors_save_options)MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    MT__CHECK(path && *path, "%s: path is %s", name_of, path ? "empty" : "NULL");
    if (options) {
        MT__CHECK(options->size >= sizeof options->size, "%s: options->size is not set", name_of);
        mt__copy_versioned(&s.options, sizeof s.options, options, options->size);
    }
    mt_status status = check_metadata(&s.options);
    if (status == MT_OK) status = take_tensors(&s, tensors);
    if (status == MT_OK) status = make_header(&s);
    if (status == MT_OK) status = mt__new_file_open(&s.file, name_of, path, s.options.keep);
    if (status == MT_OK) status = mt__new_file_end(&s.file, write_file(&s));
    mt__free(s.header.data);
    mt__free(s.places);
    return status;
}
