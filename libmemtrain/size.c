/*
 * size.c - sizes as people write and read them.
 */
#include "internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct unit {
    const char *name;
    long double
        bytes; /* at least 64 bits of mantissa where it matters, so whole bytes stay exact */
} units[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", 1024},
    {"MiB", 1048576},
    {"GiB", 1073741824.0},
    {"TiB", 1099511627776.0},
    {"K", 1024},
    {"M", 1048576},
    {"G", 1073741824.0},
    {"T", 1099511627776.0},
};

static mt_status refuse(const char *text, size_t whole) {
    return mt_set_error(MT_EINVAL, "'%.64s' is not a size; accepted: 600MiB, 8GB, 1.5G, 4096%s",
                        text,
                        whole ? ", or a share such as 0.95 or 80%"
                              : "; a share, such as 0.95 or 80%, is not accepted here");
}

/* Compares without regard to case: ASCII only, so that the locale does not matter. */
static int same_word(const char *a, size_t length, const char *b) {
    if (strlen(b) != length) return 0;
    for (size_t i = 0; i < length; i++)
        if (tolower((unsigned char)a[i]) != tolower((unsigned char)b[i])) return 0;
    return 1;
}

static const struct unit *find_unit(const char *text, size_t length) {
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (same_word(text, length, units[i].name)) return &units[i];
    return NULL;
}

/* Reads digits and at most one point; strtod would take "inf", "0x" and the locale's comma. */
static const char *read_number(const char *p, long double *out) {
    long double value = 0, place = 1;
    int digits = 0;
    for (; isdigit((unsigned char)*p); p++, digits++) value = value * 10 + (*p - '0');
    if (*p == '.')
        for (p++; isdigit((unsigned char)*p); p++, digits++) value += (*p - '0') * (place /= 10);
    *out = value;
    return digits ? p : NULL;
}

mt_status mt_parse_size(const char *text, size_t whole, size_t *out_bytes) {
    long double value;
    MT__CHECK(out_bytes, "mt_parse_size: out_bytes is NULL");
    *out_bytes = 0;
    MT__CHECK(text, "mt_parse_size: text is NULL");
    const char *p = text;
    while (isspace((unsigned char)*p)) p++;
    const char *number = p;
    p = read_number(p, &value);
    if (!p) return refuse(text, whole);
    int is_fraction = memchr(number, '.', (size_t)(p - number)) != NULL && value < 1;
    while (isspace((unsigned char)*p)) p++;
    size_t length = strlen(p);
    while (length && isspace((unsigned char)p[length - 1])) length--;
    if (length == 1 && *p == '%') { /* a share in hundredths */
        length = 0;
        is_fraction = 1;
        value /= 100;
        if (value > 1) return refuse(text, whole);
    }
    const struct unit *unit = find_unit(p, length);
    if (!unit || value <= 0) return refuse(text, whole);
    if (length == 0 && is_fraction) {
        if (!whole) return refuse(text, whole);
        value *= (long double)whole;
    }
    long double bytes = value * unit->bytes;
    if (bytes < 1 || bytes >= 9.2e18L) return refuse(text, whole);
    *out_bytes = (size_t)llroundl(bytes);
    return MT_OK;
}

const char *mt_format_size(size_t bytes, char *text, size_t capacity) {
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (!text || capacity == 0) return text;
    if (bytes < 1024) {
        snprintf(text, capacity, "%zu B", bytes);
        return text;
    }
    double value = (double)bytes / 1024;
    size_t i = 0;
    _Static_assert(SIZE_MAX <= UINT64_MAX, "the last name is of 2^60 bytes");
    /* 1023.95 would print as 1024.0 */
    while (value >= 1023.95) {
        value /= 1024;
        i++;
    }
    /* "%.1f" would have the locale's decimal point, which mt_parse_size does not read. */
    unsigned tenths = (unsigned)rint(value * 10);
    snprintf(text, capacity, "%u.%u %s", tenths / 10, tenths % 10, names[i]);
    return text;
}
