/*
 * html_text.c - see html_text.h.
 */
#include "html_text.h"

#include <memtrain/status.h>
#include <string.h>

static const char *entity_of(char c) {
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

/* Control characters may not stand on a page, not even as entities. */
void ex_html_escape(const char *text, FILE *out) {
    for (; *text; text++) {
        const char *entity = entity_of(*text);
        unsigned char c = (unsigned char)*text;
        if (entity)
            fputs(entity, out);
        else
            fputc((c < 32 && c != '\n') || c == 127 ? '?' : c, out);
    }
}

const char *ex_html_bytes(double bytes, char text[EX_FIGURE]) {
    return mt_format_size(bytes > 0 ? (size_t)bytes : 0, text, EX_FIGURE);
}

const char *ex_html_seconds(double seconds, char text[EX_FIGURE]) {
    if (seconds < 1e-3)
        snprintf(text, EX_FIGURE, "%.3g \xc2\xb5s", 1e6 * seconds);
    else if (seconds < 1)
        snprintf(text, EX_FIGURE, "%.3g ms", 1e3 * seconds);
    else if (seconds < 100)
        snprintf(text, EX_FIGURE, "%.3g s", seconds);
    else if (seconds < 6000)
        snprintf(text, EX_FIGURE, "%d min %d s", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(text, EX_FIGURE, "%.1f h", seconds / 3600);
    return text;
}

const char *ex_html_count(uint64_t count, char text[EX_FIGURE]) {
    char digits[24];
    size_t length = (size_t)snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    size_t used = 0;
    for (size_t i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

const char *ex_html_percent(double part, double whole, char text[EX_FIGURE]) {
    double percent = whole > 0 ? 100 * part / whole : 0;
    snprintf(text, EX_FIGURE, percent > 0 && percent < 1 ? "%.2g %%" : "%.1f %%", percent);
    return text;
}

void ex_html_chunks(const size_t *chunks, size_t count, char *text, size_t capacity) {
    size_t used = 0, low = count ? chunks[0] : 0, high = low;
    *text = '\0';
    for (size_t i = 0; i < count && used < capacity; i++) {
        int n = snprintf(text + used, capacity - used, i ? ",%zu" : "%zu", chunks[i]);
        used += n > 0 ? (size_t)n : 0;
        low = chunks[i] < low ? chunks[i] : low;
        high = chunks[i] > high ? chunks[i] : high;
    }
    if (count <= 6 && used < capacity) return;
    if (low == high)
        snprintf(text, capacity, "%zu of %zu", count, low);
    else
        snprintf(text, capacity, "%zu of %zu-%zu", count, low, high);
}

void ex_html_cut(const char *text, char *out, size_t capacity) {
    size_t length = strlen(text);
    if (length >= capacity) length = capacity - 1;
    while (length && text[length] && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    memcpy(out, text, length);
    out[length] = '\0';
}
