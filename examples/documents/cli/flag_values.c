/*
 * flag_values.c - see flag_values.h.
 */
#include "flag_values.h"
#include "flags.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_BYTES 1048576 /* of a size without a unit */

#define MOST_OF_TYPE 40 /* characters */

/* Whether text is a type, or type:N with a number of at most three digits: libtorch gives names of that form. */
static int has_form_of_device(const char *text) {
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
    if (!length || length > MOST_OF_TYPE) return 0;
    if (!text[length]) return 1;
    size_t digits = strspn(text + length + 1, "0123456789");
    return text[length] == ':' && digits >= 1 && digits <= 3 && !text[length + 1 + digits];
}

/*
 * auto, sim:cuda, which is sim as well, sim:mps, or a name that libtorch may know: those of third parties' cards are known to it
 * alone. What is none is told when the device is looked for, beside those that are here.
 */
int ex_read_device(const char *text, void *target) {
    static const char *const simulated[] = {"sim:cuda", "sim:mps"};
    /* PyTorch's names for the only device of a type. */
    if (strcmp(text, "cpu:0") == 0) text = "cpu";
    if (strcmp(text, "mps:0") == 0) text = "mps";
    int known = has_form_of_device(text);
    for (size_t i = 0; i < EX_ROWS(simulated); i++)
        known = known || strcmp(text, simulated[i]) == 0;
    if (known) *(const char **)target = text;
    return known;
}

/* "1.5" or "64": so few bytes are meant by nobody, GiB or a share perhaps. */
static int lacks_unit(const char *text, size_t bytes) {
    size_t length = strlen(text);
    while (length && isspace((unsigned char)text[length - 1])) length--;
    return bytes < LEAST_BYTES && length && strchr("0123456789.", text[length - 1]);
}

/* Only the form is checked here: what a fraction is a fraction of is known with the device. */
int ex_read_budget(const char *text, void *target) {
    size_t bytes;
    if (strcmp(text, "auto") != 0 &&
        (mt_parse_size(text, SIZE_MAX / 2, &bytes) != MT_OK || lacks_unit(text, bytes)))
        return 0;
    *(const char **)target = text;
    return 1;
}

int ex_read_resident(const char *text, void *target) {
    size_t bytes;
    if (mt_parse_size(text, 0, &bytes) != MT_OK || lacks_unit(text, bytes)) return 0;
    *(size_t *)target = bytes;
    return 1;
}

/* A number of at least 1; *end is where it ended, NULL when there was none. */
static uint64_t read_positive(const char *text, const char **end) {
    char *stop;
    *end = NULL;
    if (*text < '0' || *text > '9') return 0;
    errno = 0;
    unsigned long long value = strtoull(text, &stop, 10);
    if (errno || value == 0) return 0;
    *end = stop;
    return value;
}

/* STEP:N or STEP:N:persistent */
int ex_read_inject(const char *text, void *target) {
    ex_inject inject = {0};
    const char *end;
    inject.step = read_positive(text, &end);
    if (!end || *end != ':') return 0;
    inject.request = read_positive(end + 1, &end);
    if (!end) return 0;
    inject.persistent = strcmp(end, ":persistent") == 0;
    if (*end && !inject.persistent) return 0;
    *(ex_inject *)target = inject;
    return 1;
}

/* N steps, or so many seconds, minutes or hours. */
int ex_read_save_every(const char *text, void *target) {
    ex_save_every every = {0, 0};
    const char *end;
    uint64_t number = read_positive(text, &end);
    if (!end || number > 1000000000 || (*end && end[1])) return 0;
    if (!*end)
        every.steps = number;
    else if (*end == 's' || *end == 'm' || *end == 'h')
        every.seconds = (double)number * (*end == 's' ? 1 : *end == 'm' ? 60 : 3600);
    else
        return 0;
    *(ex_save_every *)target = every;
    return 1;
}

/* ---- rungs ------------------------------------------------------------------------------------- */

/* In the order of the ladder. Minimal is of a CPU, so it takes that too. */
static const ex_word rungs[] = {
    {"amp", MT_RUNG_BIT(MT_RUNG_AMP)},
    {"smaller-batch", MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH)},
    {"cpu", MT_RUNG_BIT(MT_RUNG_CPU)},
    {"minimal", MT_RUNG_BIT(MT_RUNG_CPU) | MT_RUNG_BIT(MT_RUNG_MINIMAL)},
};

/* Its place in the list; EX_ROWS(rungs): there is none. */
static size_t rung_of(const char *name, size_t length) {
    size_t i = 0;
    while (i < EX_ROWS(rungs) &&
           (strlen(rungs[i].name) != length || strncmp(rungs[i].name, name, length) != 0))
        i++;
    return i;
}

/* none, or names with commas between, each once. */
int ex_read_fallback(const char *text, void *target) {
    int64_t all = 0;
    unsigned seen = 0;
    int is_none = strcmp(text, "none") == 0;
    for (const char *name = text; !is_none; name++) {
        size_t length = strcspn(name, ","), i = rung_of(name, length);
        if (i == EX_ROWS(rungs) || (seen & 1U << i)) return 0;
        seen |= 1U << i;
        all |= rungs[i].value;
        name += length;
        if (!*name) break;
    }
    *(int64_t *)target = all;
    return 1;
}

/* Minimal says cpu too. */
static int is_said_by_next(int64_t on, size_t i) {
    if (i + 1 == EX_ROWS(rungs)) return 0;
    int64_t next = rungs[i + 1].value;
    return (next & rungs[i].value) && (on & next) == next;
}

void ex_fallback_text(int64_t on, char text[EX_FALLBACK]) {
    size_t used = 0;
    for (size_t i = 0; i < EX_ROWS(rungs); i++) {
        if ((on & rungs[i].value) != rungs[i].value || is_said_by_next(on, i)) continue;
        used += (size_t)snprintf(text + used, EX_FALLBACK - used, "%s%s", used ? "," : "",
                                 rungs[i].name);
    }
    if (!used) snprintf(text, EX_FALLBACK, "none");
}
