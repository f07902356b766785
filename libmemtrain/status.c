/*
 * status.c - version, status names, the error line of each thread, the log, host memory.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[MT__LINE];

static mt_log_fn log_fn;
static void *log_user;

static void *(*malloc_fn)(size_t) = malloc;
static void *(*realloc_fn)(void *, size_t) = realloc;
static void (*free_fn)(void *) = free;
static atomic_int allocated; /* whether any of the three has been used */

int mt_version_number(void) {
    return MT_VERSION_NUMBER;
}

const char *mt_version_string(void) {
    return MT_VERSION_STRING;
}

const char *mt_status_name(mt_status status) {
    switch ((int)status) {
#define NAME(name, value, text)                                                                    \
    case value:                                                                                    \
        return "MT_" #name;
        MT_STATUS_MAP(NAME)
#undef NAME
    default:
        return "MT_?";
    }
}

const char *mt_status_text(mt_status status) {
    switch ((int)status) {
#define TEXT(name, value, text)                                                                    \
    case value:                                                                                    \
        return text;
        MT_STATUS_MAP(TEXT)
#undef TEXT
    default:
        return "unknown status";
    }
}

const char *mt_last_error(void) {
    return last_error;
}

/* What is cut ends in three dots, so that its last word is not taken for a whole one. */
static void print_line(char line[MT__LINE], const char *format, va_list list) {
    if (vsnprintf(line, MT__LINE, format, list) >= MT__LINE) memcpy(line + MT__LINE - 4, "...", 4);
}

mt_status mt_set_error(mt_status status, const char *format, ...) {
    va_list list;
    char line[MT__LINE] = ""; /* the arguments may be the old line */
    va_start(list, format);
    if (format) print_line(line, format, list);
    va_end(list);
    memcpy(last_error, line, sizeof line);
    return status;
}

void mt_set_log(mt_log_fn fn, void *user) {
    log_fn = fn;
    log_user = user;
}

void mt_log(mt_log_level level, const char *format, ...) {
    char text[MT__LINE];
    va_list list;
    if (!log_fn || !format) return;
    va_start(list, format);
    print_line(text, format, list);
    va_end(list);
    log_fn(log_user, level, text);
}

mt_status mt_set_allocator(void *(*malloc_)(size_t), void *(*realloc_)(void *, size_t),
                           void (*free_)(void *)) {
    MT__CHECK(!malloc_ == !realloc_ && !malloc_ == !free_,
              "mt_set_allocator: give all three functions, or NULL for all");
    if (atomic_load(&allocated))
        return mt_set_error(MT_ESTATE, "mt_set_allocator: memory has been allocated already");
    malloc_fn = malloc_ ? malloc_ : malloc;
    realloc_fn = realloc_ ? realloc_ : realloc;
    free_fn = free_ ? free_ : free;
    return MT_OK;
}

void *mt__alloc(size_t count, size_t size) {
    if (count == 0 || size == 0 || count > SIZE_MAX / size) return NULL;
    atomic_store(&allocated, 1);
    void *block = malloc_fn(count * size);
    if (block) memset(block, 0, count * size);
    return block;
}

void *mt__grow(void *block, size_t count, size_t size) {
    if (count == 0 || size == 0 || count > SIZE_MAX / size) return NULL;
    atomic_store(&allocated, 1);
    return realloc_fn(block, count * size);
}

void mt__free(void *block) {
    if (block) free_fn(block);
}

void mt__copy_versioned(void *own, size_t own_size, const void *theirs, size_t theirs_size) {
    memcpy(own, theirs, mt__min(own_size, theirs_size));
    memcpy(own, &own_size, sizeof own_size); /* the first field is the size */
}

static size_t size_of(const void *theirs) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    return size;
}

mt_status mt__check_sized(const void *theirs, const char *function, const char *argument) {
    MT__CHECK(theirs, "%s: %s is NULL", function, argument);
    MT__CHECK(size_of(theirs) >= sizeof(size_t),
              "%s: %s->size is not set; the sizeof of its type is accepted", function, argument);
    return MT_OK;
}

mt_status mt__take_versioned(void *own, size_t own_size, const void *theirs, const char *function,
                             const char *argument) {
    mt_status status = mt__check_sized(theirs, function, argument);
    if (status == MT_OK) mt__copy_versioned(own, own_size, theirs, size_of(theirs));
    return status;
}

mt_status mt__bad_handle(const void *handle, const char *function, const char *argument) {
    return mt_set_error(MT_EINVAL, "%s: %s is %s", function, argument,
                        handle ? "not a live handle" : "NULL");
}
