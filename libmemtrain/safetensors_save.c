/*
 * safetensors_save.c - writes the format, in a file that takes its name once it is safely on the disk.
 */
#define _POSIX_C_SOURCE 200809L
#ifdef __APPLE__
#define _DARWIN_C_SOURCE /* F_FULLFSYNC, flock */
#endif

#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char name_of[] = "mt_safetensors_save";

enum { PIECE = 1 << 30, LOCK_TRIES = 8 };

/* A tensor in the order of the file. */
typedef struct place {
    const mt_safetensors_tensor *tensor;
    size_t index; /* in the caller's list */
} place;

typedef struct saving {
    const char *path;
    char *temporary, *previous, *folder;
    mt_safetensors_save_options options;
    place *places;
    size_t count;
    mt__text header;
    int file;
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

static mt_status write_all(const saving *s, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = write(s->file, from, mt__min(bytes, PIECE));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* nothing was written, and nobody says why */
        if (n <= 0) return mt__io_error("write", s->temporary);
        from += n;
        bytes -= (size_t)n;
    }
    return MT_OK;
}

static mt_status write_header(const saving *s) {
    unsigned char prefix[MT__ST_PREFIX];
    for (int i = 0; i < MT__ST_PREFIX; i++)
        prefix[i] = (unsigned char)((uint64_t)s->header.length >> (8 * i));
    mt_status status = write_all(s, prefix, sizeof prefix);
    return status == MT_OK ? write_all(s, s->header.data, s->header.length) : status;
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
        status = write_all(s, data, bytes);
        if (status != MT_OK) return status;
        at += bytes;
    }
    return MT_OK;
}

/* On a Mac fsync leaves the data in the drive's own cache. */
static mt_status synchronize(const saving *s) {
#ifdef F_FULLFSYNC
    if (fcntl(s->file, F_FULLFSYNC) == 0) return MT_OK;
#endif
    return fsync(s->file) == 0 ? MT_OK : mt__io_error("write", s->temporary);
}

static mt_status write_file(const saving *s) {
    mt_status status = write_header(s);
    for (size_t i = 0; i < s->count && status == MT_OK; i++) {
        const mt_safetensors_tensor *t = s->places[i].tensor;
        status =
            t->data ? write_all(s, t->data, (size_t)t->bytes) : write_fetched(s, &s->places[i]);
    }
    return status == MT_OK ? synchronize(s) : status;
}

/* ---- names ------------------------------------------------------------------------------------- */

/* A name that is there already must be a regular file's: /dev/null is not to be replaced. */
static mt_status check_path(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return errno == ENOENT ? MT_OK : mt__io_error("write", path);
    MT__CHECK(S_ISREG(info.st_mode), "%s: '%.200s' is no regular file", name_of, path);
    return MT_OK;
}

static char *join(const char *path, const char *end) {
    size_t length = strlen(path), more = strlen(end) + 1;
    char *text = mt__alloc(mt__add(length, more), 1);
    if (!text) return NULL;
    memcpy(text, path, length);
    memcpy(text + length, end, more);
    return text;
}

static mt_status make_names(saving *s) {
    const char *slash = strrchr(s->path, '/');
    s->temporary = join(s->path, ".tmp");
    s->previous = join(s->path, ".1");
    s->folder = join(slash ? s->path : ".", "");
    if (!s->temporary || !s->previous || !s->folder) return no_memory();
    if (slash) s->folder[slash == s->path ? 1 : slash - s->path] = '\0';
    return MT_OK;
}

/*
 * Whether the file that is open is the one that has the name: another process may have given it its
 * final name, or removed it, while this one waited to lock it. A file system without locks has none.
 */
static int is_ours(const saving *s, int *out_busy) {
    struct stat open_one, named;
    *out_busy = flock(s->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    return !*out_busy && fstat(s->file, &open_one) == 0 && lstat(s->temporary, &named) == 0 &&
           open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

/* Opens PATH.tmp, locked and empty. */
static mt_status open_temporary(saving *s) {
    int busy = 0;
    for (int i = 0; i < LOCK_TRIES && !busy; i++) {
        s->file =
            open(s->temporary, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (s->file < 0) return mt__io_error("create", s->temporary);
        if (is_ours(s, &busy)) {
            if (ftruncate(s->file, 0) == 0) return MT_OK;
            mt_status status = mt__io_error("write", s->temporary);
            unlink(s->temporary);
            return status;
        }
        close(s->file);
        s->file = -1;
    }
    return mt_set_error(MT_EIO, "cannot write '%.200s': it is being written by another process",
                        s->path);
}

/* A second name is the way in which PATH is a whole file at every moment. */
static mt_status keep_previous(const saving *s) {
    if (!s->options.keep || access(s->path, F_OK) != 0) return MT_OK;
    if (unlink(s->previous) != 0 && errno != ENOENT) return mt__io_error("replace", s->previous);
    if (link(s->path, s->previous) == 0 || rename(s->path, s->previous) == 0) return MT_OK;
    return mt__io_error("write", s->previous);
}

/* The names are in the folder: they too have to reach the disk. Not every file system can be asked. */
static mt_status synchronize_folder(const saving *s) {
    int folder = open(s->folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (folder < 0) return MT_OK;
    int failed = fsync(folder) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EBADF;
    mt_status status = failed ? mt__io_error("synchronise the folder of", s->path) : MT_OK;
    close(folder);
    return status;
}

static mt_status take_name(const saving *s) {
    mt_status status = keep_previous(s);
    if (status != MT_OK) return status;
    if (rename(s->temporary, s->path) == 0) return MT_OK;
    status = mt__io_error("write", s->path);
    if (s->options.keep && access(s->path, F_OK) != 0 && rename(s->previous, s->path) != 0)
        mt_log(MT_LOG_WARNING, "the file that was '%.200s' is now '%.200s'", s->path, s->previous);
    return status;
}

/* Closed last: until then the lock keeps others from PATH.tmp. */
static mt_status save(saving *s) {
    mt_status status = open_temporary(s);
    if (status != MT_OK) {
        if (s->file >= 0) close(s->file);
        return status;
    }
    status = write_file(s);
    if (status == MT_OK) status = take_name(s);
    if (status != MT_OK) unlink(s->temporary);
    close(s->file);
    return status == MT_OK ? synchronize_folder(s) : status;
}

mt_status mt_safetensors_save(const char *path, const mt_safetensors_tensor *tensors, size_t count,
                              const mt_safetensors_save_options *options) {
    saving s = {.path = path, .count = count, .file = -1};
    s.options = (mt_safetensors_save_options)MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    MT__CHECK(path && *path, "%s: path is %s", name_of, path ? "empty" : "NULL");
    if (options) {
        MT__CHECK(options->size >= sizeof options->size, "%s: options->size is not set", name_of);
        mt__copy_versioned(&s.options, sizeof s.options, options, options->size);
    }
    mt_status status = check_metadata(&s.options);
    if (status == MT_OK) status = take_tensors(&s, tensors);
    if (status == MT_OK) status = make_header(&s);
    if (status == MT_OK) status = check_path(path);
    if (status == MT_OK) status = make_names(&s);
    if (status == MT_OK) status = save(&s);
    mt__free(s.header.data);
    mt__free(s.places);
    mt__free(s.temporary);
    mt__free(s.previous);
    mt__free(s.folder);
    return status;
}
