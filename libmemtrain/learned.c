/*
 * learned.c - what a policy has learnt as a file, for the next run.
 *
 * Lines of whole numbers behind a letter. First what the file is of, which has to be the same; last a checksum.
 *
 *     o RUNGS                                                    that were on
 *     k MODE SHAPE RUNGS FAMILY LENGTH TOO_SMALL LEARNT PARTIAL  a kind; the lines up to the next one are of it
 *     r FROM TOP                                                 a range, and its models
 *     m WAY MARGIN FROM RUN (START RISE)...
 *     l WAY LOW LOW_PEAK HIGH HIGH_PEAK SMALLEST LARGEST ROOM (CHUNK ROOM PATIENCE)x2 RESIDUAL
 *     s (SAMPLES RUNS NANOSECONDS)...                            times
 */
#include "json.h"
#include "new_file.h"
#include "policy_state.h"
#include "tuned.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LINE "memtrain learned 2"

static const int64_t MOST_BYTES = INT64_MAX / 8; /* of a line of a model */

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t checksum(const char *text, size_t length) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++) sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3u;
    return sum;
}

/* What a file has to be of. */
static void put_head(const mt_policy *p, mt__text *out) {
    mt__put(out, FIRST_LINE "\nlibrary %s\ndevice ", mt_version_string());
    mt__put_quoted(out, p->info.device ? p->info.device : "");
    mt__put(out, "\nversion ");
    mt__put_quoted(out, p->info.version ? p->info.version : "");
    mt__put(out, "\nmodel %016" PRIx64 "\nthreads %d\n", p->info.model, p->info.threads);
}

/* ---- writing ----------------------------------------------------------------------------------- */

static void put_failure(const mt__failure *f, mt__text *out) {
    mt__put(out, " %zu %" PRId64 " %u", f->chunk, (int64_t)f->room, f->patience);
}

static void put_limits(const mt__limits *l, int way, mt__text *out) {
    mt__put(out, "l %d %zu %zu", way, l->low.samples, l->low.bytes);
    mt__put(out, " %zu %zu", l->high.samples, l->high.bytes);
    mt__put(out, " %zu %zu %" PRId64, l->smallest_ran, l->largest_ran, (int64_t)l->proven_room);
    put_failure(&l->failed[0], out);
    put_failure(&l->failed[1], out);
    mt__put(out, " %zu\n", l->residual);
}

static void put_model(const mt_memory_model *model, mt__text *out) {
    const mt__part *p = model->part;
    mt__put(out, " %zu %zu %zu", model->margin, p->from, p->run);
    for (const mt__line *l = model->lines; l < model->lines + p->count; l++)
        mt__put(out, " %" PRId64 " %" PRId64, l->start, l->rise);
}

static void put_kind(const mt__kind *k, mt__text *out) {
    mt__put(out, "k %d %" PRId64 " %u", (int)k->key.mode, (int64_t)k->key.shape, k->key.rungs);
    mt__put(out, " %" PRId64 " %zu", (int64_t)k->family, k->length);
    mt__put(out, " %zu %zu %d\n", k->too_small, k->learnt, k->is_partial);
    for (const mt__range *r = k->range; r < k->range + k->ranges; r++) {
        mt__put(out, "r %zu %zu\n", r->from, r->top);
        for (int way = 0; way < MT__WAYS; way++) {
            if (!r->model[way]) continue;
            mt__put(out, "m %d", way);
            put_model(r->model[way], out);
            mt__put(out, "\n");
        }
    }
    for (int way = 0; way < MT__WAYS; way++) put_limits(&k->limits[way], way, out);
    const mt__sizes *s = &k->times->sizes;
    if (s->count) mt__put(out, "s");
    for (const mt__size *e = s->entry; e < s->entry + s->count; e++)
        mt__put(out, " %zu %zu %.0f", e->samples, mt__min(e->runs, MT__TIMES),
                mt__kind_seconds(k, e->samples) * 1e9);
    if (s->count) mt__put(out, "\n");
}

/* What was told from other lengths is told from them again. */
static int is_worth(const mt__kind *k) {
    return !k->is_inherited && (k->has_run || k->ranges);
}

/* The oldest first: the one that is read last is the newest again. */
static void put_bucket(const mt__kind *kind, mt__text *out) {
    const mt__kind *all[MT__IN_BUCKET];
    size_t count = 0;
    for (; kind; kind = kind->next) all[count++] = kind;
    while (count--)
        if (is_worth(all[count])) put_kind(all[count], out);
}

mt_status mt_policy_save(const mt_policy *policy, const char *path) {
    mt__text text = {NULL, 0, 0, 0};
    mt__new_file file;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_save");
    MT__CHECK(path, "mt_policy_save: path is NULL");
    if (!policy->info.model)
        return mt_set_error(MT_ENOTSUP, "mt_policy_save: mt_backend_info.model is 0: it is not "
                                        "known which runs could use the file");
    put_head(policy, &text);
    mt__put(&text, "o %u\n", policy->ladder.rungs);
    for (size_t i = 0; i < MT__BUCKETS; i++) put_bucket(policy->kinds[i], &text);
    if (!text.failed) mt__put(&text, "end %016" PRIx64 "\n", checksum(text.data, text.length));
    mt_status status = text.failed ? mt_set_error(MT_ENOMEM, "mt_policy_save: out of host memory")
                                   : mt__new_file_open(&file, "mt_policy_save", path, 0);
    if (status == MT_OK)
        status = mt__new_file_end(&file, mt__new_file_write(&file, text.data, text.length));
    mt__free(text.data);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* A file as a text; its numbers are read line by line. */
typedef struct reader {
    mt_policy *policy;
    char *text; /* ends with a zero */
    const char *at;
    int64_t *numbers; /* of the line */
    size_t count, capacity;
    mt__kind *kind;   /* that lines are of; NULL: they are left out, or there was none yet */
    int is_partial;   /* of that kind */
    int has_begun;    /* a kind has come */
    int lacks_memory; /* host memory ran out */
    size_t kinds;
} reader;

/* *out is NULL where there is no file: it is the first run. */
static mt_status read_whole(const char *path, char **out) {
    mt__text text = {NULL, 0, 0, 0};
    char piece[4096];
    FILE *f = fopen(path, "rbe");
    *out = NULL;
    if (!f && errno == ENOENT) return MT_OK;
    if (!f) return mt_set_error(MT_EIO, "it cannot be read: %s", strerror(errno));
    for (size_t n; !text.failed && (n = fread(piece, 1, sizeof piece, f)) > 0;) {
        char *data = mt__grow(text.data, text.length + n + 1, 1);
        text.failed = !data;
        if (!data) break;
        text.data = data;
        memcpy(data + text.length, piece, n);
        text.length += n;
        data[text.length] = 0;
    }
    int is_bad = ferror(f) || !text.length || strlen(text.data) != text.length;
    fclose(f);
    *out = text.data;
    if (text.failed) return mt_set_error(MT_ENOMEM, "mt_policy_load: out of host memory");
    return is_bad ? mt_set_error(MT_EIO, "it is damaged") : MT_OK;
}

/* Whether the last line tells what the others come to; it is cut off. */
static int is_whole(char *text) {
    char line[32];
    size_t length = strlen(text);
    if (length < 21) return 0;
    snprintf(line, sizeof line, "end %016" PRIx64 "\n", checksum(text, length - 21));
    if (strcmp(text + length - 21, line)) return 0;
    text[length - 21] = 0;
    return 1;
}

/* The first line that is another one: what the file is of, where it is of something else. */
static mt_status differ(const char *theirs, const char *ours) {
    for (size_t line; line = strcspn(ours, "\n") + 1, !strncmp(ours, theirs, line);) {
        theirs += line;
        ours += line;
    }
    return mt_set_error(MT_EINVAL, "it was written for '%.*s', and this run has '%.*s'",
                        (int)strcspn(theirs, "\n"), theirs, (int)strcspn(ours, "\n"), ours);
}

/* Whether the file is of such a run; what follows comes next. */
static mt_status check_head(reader *r) {
    mt__text head = {NULL, 0, 0, 0};
    mt_status status = MT_OK;
    put_head(r->policy, &head);
    if (head.failed)
        status = mt_set_error(MT_ENOMEM, "mt_policy_load: out of host memory");
    else if (strncmp(r->text, FIRST_LINE "\n", strlen(FIRST_LINE) + 1))
        status = mt_set_error(MT_EINVAL, "it does not begin with '" FIRST_LINE "'");
    else if (!is_whole(r->text))
        status = mt_set_error(MT_EINVAL, "it is damaged");
    else if (strncmp(r->text, head.data, head.length))
        status = differ(r->text, head.data);
    if (status == MT_OK) r->at = r->text + head.length;
    mt__free(head.data);
    return status;
}

/* The letter of the next line, whose numbers are read; 0: there is none, or it is wrong. */
static char next_line(reader *r) {
    char letter = *r->at;
    if (!letter) return 0;
    r->count = 0;
    for (r->at++; *r->at == ' ';) {
        char *end;
        if (r->count == r->capacity) {
            size_t capacity = 2 * r->capacity + 64;
            int64_t *more = mt__grow(r->numbers, capacity, sizeof *more);
            r->lacks_memory = !more;
            if (!more) return 0;
            r->numbers = more;
            r->capacity = capacity;
        }
        errno = 0;
        r->numbers[r->count++] = strtoll(r->at, &end, 10);
        if (errno || end == r->at) return 0;
        r->at = end;
    }
    return *r->at == '\n' ? (r->at++, letter) : 0;
}

static size_t number(const reader *r, size_t i) {
    return (size_t)r->numbers[i];
}

/* Whether it would take the place of a kind that is known. */
static int has_no_place(const mt_policy *p, mt_mode mode, unsigned rungs) {
    const mt__key key = {mode, p->shape.id, rungs};
    int count = 0;
    for (const mt__kind *k = p->kinds[mt__policy_bucket(&key)]; k; k = k->next) count++;
    return count == MT__IN_BUCKET && !mt__policy_find_kind(p, mode, rungs);
}

/* A kind of which nothing is known yet. */
static int take_kind(reader *r) {
    const int64_t *n = r->numbers;
    mt_policy *p = r->policy;
    mt_shape before = p->shape;
    r->kind = NULL;
    r->has_begun = 1;
    if (r->count != 8 || (uint64_t)n[0] >= MT__MODES || n[4] < 0 || n[5] < 0 || n[6] < 0) return 0;
    p->shape = (mt_shape){(uint64_t)n[1], (uint64_t)n[3], number(r, 4)};
    int is_full = has_no_place(p, (mt_mode)n[0], (unsigned)n[2]);
    mt__kind *k = is_full ? NULL : mt__policy_kind(p, (mt_mode)n[0], (unsigned)n[2]);
    p->shape = before;
    r->lacks_memory = !k && !is_full;
    if (!k) return is_full;
    if (k->has_run && !k->is_inherited) return 1;
    mt__kind_drop_ranges(k);
    k->too_small = number(r, 5);
    k->learnt = number(r, 6);
    k->has_run = n[7] == 0;
    r->is_partial = !k->has_run;
    r->kind = k;
    r->kinds++;
    return 1;
}

static int take_range(reader *r) {
    mt__kind *k = r->kind;
    if (r->count != 2 || r->numbers[0] < 1 || r->numbers[1] < r->numbers[0]) return 0;
    if (k->ranges == MT__RANGES || (k->ranges && number(r, 0) <= k->range[k->ranges - 1].top))
        return 0;
    k->range[k->ranges++] = (mt__range){number(r, 0), number(r, 1), {NULL, NULL}};
    k->is_partial = r->is_partial;
    return 1;
}

/* NULL where the numbers are none of a model, or when out of host memory. */
static mt_memory_model *make_model(const int64_t *numbers, size_t count) {
    mt_memory_model *model = NULL;
    size_t lines = count < 5 ? 0 : (count - 3) / 2;
    mt__line *all = lines ? mt__alloc(lines, sizeof *all) : NULL;
    int is_one = all && count % 2 && numbers[0] >= 0 && numbers[1] > 0 && numbers[2] > 0;
    for (size_t i = 0; is_one && i < lines; i++) {
        all[i] = (mt__line){numbers[3 + 2 * i], numbers[4 + 2 * i]};
        is_one = all[i].start > -MOST_BYTES && all[i].start < MOST_BYTES &&
                 all[i].rise > -MOST_BYTES && all[i].rise < MOST_BYTES;
    }
    mt__part part = {0, 0, lines, 1};
    if (is_one) {
        part.from = (size_t)numbers[1];
        part.run = (size_t)numbers[2];
        model = mt__memory_model_of(all, &part, (size_t)numbers[0]);
    }
    mt__free(all);
    return model;
}

static int take_model(reader *r) {
    mt__kind *k = r->kind;
    if (r->count < 2 || (uint64_t)r->numbers[0] >= MT__WAYS || !k->ranges) return 0;
    mt_memory_model **model = &k->range[k->ranges - 1].model[r->numbers[0]];
    if (!*model) *model = make_model(r->numbers + 1, r->count - 1);
    return *model != NULL;
}

static int take_limits(reader *r) {
    if (r->count != 15 || (uint64_t)r->numbers[0] >= MT__WAYS) return 0;
    mt__limits *l = &r->kind->limits[r->numbers[0]];
    *l = (mt__limits){.low = {number(r, 1), number(r, 2)},
                      .high = {number(r, 3), number(r, 4)},
                      .smallest_ran = number(r, 5),
                      .largest_ran = number(r, 6),
                      .proven_room = number(r, 7),
                      .residual = number(r, 14)};
    for (size_t i = 0; i < 2; i++) {
        unsigned patience = (unsigned)r->numbers[10 + 3 * i];
        l->failed[i] = (mt__failure){number(r, 8 + 3 * i), number(r, 9 + 3 * i),
                                     r->kind->plans + patience, patience};
    }
    return 1;
}

/* Kinds that share their times have them once. */
static int take_times(reader *r) {
    mt__sizes *s = &r->kind->times->sizes;
    if (r->kind->times->kinds == 1) s->count = 0; /* a copy of another length's */
    int is_new = !s->count;
    if (r->count % 3) return 0;
    if (is_new) s->batches = HUNDREDTH; /* so that none runs again before there was work */
    for (size_t i = 0; i < r->count; i += 3) {
        double seconds = (double)r->numbers[i + 2] * 1e-9;
        if (r->numbers[i] < 1 || r->numbers[i + 1] < 1 || r->numbers[i + 2] < 1) return 0;
        for (int64_t run = 0; is_new && run < r->numbers[i + 1] && run < MT__TIMES; run++)
            mt__kind_note_time(r->kind, number(r, i), seconds);
    }
    return 1;
}

static int take_line(reader *r, char letter) {
    if (letter == 'k') return take_kind(r);
    if (letter == 'o' && r->count == 1) {
        mt__rungs_begin_with(r->policy, (unsigned)r->numbers[0]);
        return 1;
    }
    if (!letter || !r->kind) return letter && r->has_begun;
    if (letter == 'r') return take_range(r);
    if (letter == 'm') return take_model(r);
    if (letter == 'l') return take_limits(r);
    return letter == 's' && take_times(r);
}

static mt_status load(reader *r, const char *path) {
    mt_status status = read_whole(path, &r->text);
    if (status == MT_OK && !r->text) return MT_OK;
    if (status == MT_OK) status = check_head(r);
    while (status == MT_OK && *r->at)
        if (!take_line(r, next_line(r)))
            status = r->lacks_memory ? mt_set_error(MT_ENOMEM, "mt_policy_load: out of host memory")
                                     : mt_set_error(MT_EINVAL, "'%.20s' is not understood", r->at);
    return status;
}

mt_status mt_policy_load(mt_policy *policy, const char *path, size_t *kinds) {
    reader r = {policy, NULL, NULL, NULL, 0, 0, NULL, 0, 0, 0, 0};
    if (kinds) *kinds = 0;
    MT__CHECK_HANDLE(policy, MT__KIND_POLICY, "mt_policy_load");
    MT__CHECK(path, "mt_policy_load: path is NULL");
    if (!policy->info.model)
        return mt_set_error(MT_ENOTSUP, "mt_policy_load: mt_backend_info.model is 0: it is not "
                                        "known which runs could use the file");
    mt_status status = policy->options.deterministic
                           ? mt_set_error(MT_EINVAL, "chunks of a deterministic run do not depend "
                                                     "on runs before it")
                           : load(&r, path);
    mt__free(r.text);
    mt__free(r.numbers);
    if (kinds) *kinds = r.kinds;
    if (status == MT_OK || status == MT_ENOMEM) return status;
    mt_log(MT_LOG_INFO, "'%s' is left out: %s", path, mt_last_error());
    return mt_set_error(MT_OK, "%s", "");
}
