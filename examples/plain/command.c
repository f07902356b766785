/*
 * command.c - see command.h.
 */
#include "command.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

const char plain_help[] =
    "plain_c: teaches a network to read digits, inside a memory budget\n\n"
    "Usage: plain_c [--FLAG VALUE]...\n\n"
    "  --batch N             samples of a step, at most 1024 (64)\n"
    "  --micro-batch N       most samples of a chunk, or auto: chosen (auto)\n"
    "  --budget SIZE         most memory of weights, gradients and chunks (384KiB)\n"
    "  --epochs N            times through the 2000 pictures (6)\n"
    "  --steps N             stop after so many\n"
    "  --seed N              of pictures, first weights and noise (1)\n"
    "  --trace FILE          write what was decided, a JSON object a line\n"
    "  --replay FILE         take the chunks of an earlier run, which wrote FILE\n"
    "  --inject-oom STEP:N   have request N for memory of a step refused, once\n"
    "  --help                this\n";

/* At most 18 digits, without a sign or blanks. Returns what is behind them; NULL: there are none. */
static const char *read_digits(const char *text, size_t *out) {
    const char *p = text;
    for (*out = 0; *p >= '0' && *p <= '9' && p - text < 18; p++)
        *out = 10 * *out + (size_t)(*p - '0');
    return p > text ? p : NULL;
}

/* ---- flags ------------------------------------------------------------------------------------- */

static mt_status read_number(const char *name, const char *text, size_t least, size_t most,
                             size_t *out) {
    const char *end = read_digits(text, out);
    if (end && !*end && *out >= least && *out <= most) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: '%.64s'; accepted: a whole number from %zu to %zu", name,
                        text, least, most);
}

static mt_status read_micro_batch(const char *text, size_t *out) {
    const char *end = read_digits(text, out);
    if (strcmp(text, "auto") == 0 || (end && !*end && *out >= 1 && *out <= PLAIN_MOST_BATCH))
        return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "--micro-batch: '%.64s'; accepted: auto, or a whole number from 1 to %d",
                        text, PLAIN_MOST_BATCH);
}

static mt_status read_budget(const char *text, size_t *out) {
    if (mt_parse_size(text, 0, out) == MT_OK) return MT_OK;
    return mt_set_error(MT_EINVAL, "--budget: '%.64s'; accepted: a size such as 600KiB or 3MiB",
                        text);
}

static mt_status read_fault(const char *text, plain_flags *f) {
    const char *p = read_digits(text, &f->fail_step);
    p = p && *p == ':' ? read_digits(p + 1, &f->fail_at) : NULL;
    if (p && !*p && f->fail_step && f->fail_at) return MT_OK;
    return mt_set_error(MT_EINVAL,
                        "--inject-oom: '%.64s'; accepted: STEP:N, a step and the number of a "
                        "request in it, both from 1",
                        text);
}

static mt_status read_path(const char *name, const char *text, const char **out) {
    *out = text;
    return *text ? MT_OK : mt_set_error(MT_EINVAL, "%s: ''; accepted: the path of a file", name);
}

static mt_status read_flag(const char *name, const char *text, plain_flags *f) {
    if (!strcmp(name, "--batch")) return read_number(name, text, 1, PLAIN_MOST_BATCH, &f->batch);
    if (!strcmp(name, "--micro-batch")) return read_micro_batch(text, &f->micro_batch);
    if (!strcmp(name, "--budget")) return read_budget(text, &f->budget_bytes);
    if (!strcmp(name, "--epochs")) return read_number(name, text, 1, 1000, &f->epochs);
    if (!strcmp(name, "--steps")) return read_number(name, text, 1, 1000000, &f->steps);
    if (!strcmp(name, "--seed")) return read_number(name, text, 0, 1000000000, &f->seed);
    if (!strcmp(name, "--trace")) return read_path(name, text, &f->trace);
    if (!strcmp(name, "--replay")) return read_path(name, text, &f->replay);
    if (!strcmp(name, "--inject-oom")) return read_fault(text, f);
    return mt_set_error(MT_EINVAL, "%.64s: no such flag; --help lists them", name);
}

/* However the two are spelled: a trace that is not there yet is none to replay. */
static int is_one_file(const char *a, const char *b) {
    struct stat first, second;
    if (strcmp(a, b) == 0) return 1;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

mt_status plain_read_flags(int argc, char **argv, plain_flags *out) {
    *out = (plain_flags){.batch = 64, .epochs = 6, .seed = 1, .budget_bytes = (size_t)384 << 10};
    for (int i = 1; i < argc; i += 2) {
        out->help = strcmp(argv[i], "--help") == 0;
        if (out->help) return MT_OK;
        mt_status status = read_flag(argv[i], i + 1 < argc ? argv[i + 1] : "", out);
        if (status != MT_OK) return status;
    }
    if (out->trace && out->replay && is_one_file(out->trace, out->replay))
        return mt_set_error(MT_EINVAL, "--trace: '%s' is the file of --replay; accepted: another",
                            out->trace);
    return MT_OK;
}

/* ---- replay ------------------------------------------------------------------------------------ */

/*
 * libmemtrain writes the keys of a line without blanks and in one order, so that comparing text does in
 * place of a reader of JSON. A trace that something else has written anew is refused.
 */
#define STEP "{\"event\":\"step\","
#define CHUNKS "\"chunks\":"

mt_status plain_replay_open(const plain_flags *flags, FILE **out) {
    char line[1024] = "", same[64];
    *out = NULL;
    if (!flags->replay) return MT_OK;
    FILE *file = fopen(flags->replay, "re");
    if (!file) return mt_set_error(MT_EINVAL, "--replay: '%s': %s", flags->replay, strerror(errno));
    snprintf(same, sizeof same, "\"batch\":%zu,\"seed\":%zu,", flags->batch, flags->seed);
    if (fgets(line, sizeof line, file) && strstr(line, "\"plain_c\"") && strstr(line, same)) {
        *out = file;
        return MT_OK;
    }
    fclose(file);
    return mt_set_error(MT_EINVAL,
                        "--replay: '%s' is no trace of plain_c with --batch %zu and --seed %zu",
                        flags->replay, flags->batch, flags->seed);
}

/* The list behind the key; 0: it is no list of numbers, or too long. */
static size_t read_chunks(const char *line, size_t *chunks) {
    size_t count = 0;
    const char *p = strstr(line, CHUNKS);
    if (p) p += strlen(CHUNKS);
    while (p && (*p == '[' || *p == ',') && count < PLAIN_MOST_BATCH) {
        p = read_digits(p + 1, &chunks[count]);
        count++;
    }
    return p && *p == ']' ? count : 0;
}

mt_status plain_replay_next(FILE *replay, uint64_t step, size_t *chunks, size_t *count) {
    char line[16384], start[64];
    snprintf(start, sizeof start, STEP "\"step\":%llu,", (unsigned long long)step);
    *count = 0;
    do {
        if (!fgets(line, sizeof line, replay)) return MT_OK;
    } while (strncmp(line, STEP, strlen(STEP)) != 0);
    if (strncmp(line, start, strlen(start)) == 0) *count = read_chunks(line, chunks);
    if (*count) return MT_OK;
    return mt_set_error(MT_EINVAL, "--replay: the line of step %llu is damaged",
                        (unsigned long long)step);
}
