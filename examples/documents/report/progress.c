/*
 * progress.c - a bar, or plain lines; see progress.h.
 */
#include "progress.h"
#include "clock.h"
#include "html_text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1 /* a bar is drawn at most this often */
#define PLAIN_SECONDS 60.0 /* a plain line comes at least this often, and ... */
#define PLAIN_LINES 4      /* ... so often in an epoch */
#define BAR_LEAST 5        /* cells of the bar */
#define BAR_USUAL 10
#define BAR_MOST 30

enum { LINE = 512 }; /* bytes of a line; a terminal that is wider gets no more */

/* ---- pieces ------------------------------------------------------------------------------------ */

/* "214/280 MiB", in the unit that suits the larger of the two. */
static void format_memory(size_t peak, size_t budget, char *text, size_t capacity) {
    const double mib = 1024.0 * 1024.0, gib = 1024.0 * mib;
    double most = (double)(budget > peak ? budget : peak);
    double unit = most < 10 * gib ? mib : gib;
    const char *name = most < 10 * gib ? "MiB" : "GiB";
    int digits = most < 10 * gib ? 0 : 1;
    if (budget)
        snprintf(text, capacity, "  %.*f/%.*f %s", digits, (double)peak / unit, digits,
                 (double)budget / unit, name);
    else
        snprintf(text, capacity, "  %.*f %s", digits, (double)peak / unit, name);
}

/* What stands behind the bar, from left to right. */
enum { LOSS, SPEED, MEMORY, CHUNKS, PIECES };
enum { PIECE = 48 };

/*
 * What gets room first when the line is too long for all: memory against the budget is what one of
 * these programs is watched for. BAR is the bar at its shortest.
 */
enum { BAR = PIECES };
static const int by_weight[] = {MEMORY, LOSS, BAR, SPEED, CHUNKS};

static void make_pieces(const ex_progress *p, char pieces[PIECES][PIECE]) {
    double seconds = ex_seconds() - p->started;
    double loss = p->loss_sum / (double)p->samples;
    snprintf(pieces[LOSS], PIECE, loss < 1000 ? "  loss %.2f" : "  loss %.3g", loss);
    snprintf(pieces[SPEED], PIECE, "  %.*f %.24s/s", (double)p->samples < 10 * seconds ? 1 : 0,
             seconds > 0 ? (double)p->samples / seconds : 0, p->unit);
    format_memory(p->peak_bytes, p->budget_bytes, pieces[MEMORY], PIECE);
    snprintf(pieces[CHUNKS], PIECE, "  chunks %s", p->chunks);
}

static size_t clamp(size_t value, size_t low, size_t high) {
    return value < low ? low : value > high ? high : value;
}

/* "=====>    " in so many cells. */
static void draw_cells(size_t done, size_t total, size_t cells, char *out) {
    size_t full = total ? cells * done / total : 0;
    memset(out, ' ', cells);
    memset(out, '=', full);
    if (full < cells) out[full] = '>';
    out[cells] = '\0';
}

/* ---- lines ------------------------------------------------------------------------------------- */

/* Takes the weightiest pieces that go into room, empties the others, and returns what is left. */
static size_t choose_pieces(char pieces[PIECES][PIECE], size_t room, int *has_bar) {
    int full = 0;
    *has_bar = 0;
    for (size_t i = 0; i < sizeof by_weight / sizeof by_weight[0]; i++) {
        int which = by_weight[i];
        size_t length = which == BAR ? strlen(" []") + BAR_LEAST : strlen(pieces[which]);
        full = full || length > room; /* nothing less weighty comes in for what had no room */
        if (full && which != BAR) pieces[which][0] = '\0';
        if (full) continue;
        if (which == BAR) *has_bar = 1;
        room -= length;
    }
    return room;
}

void ex_progress_line(const ex_progress *progress, size_t columns, char *line, size_t capacity) {
    const ex_progress *p = progress;
    char cells[BAR_MOST + 1] = "", pieces[PIECES][PIECE] = {""}, head[48], tail[48];
    size_t room = columns > 3 ? columns - 3 : 0; /* a terminal writes ^C behind the line */
    int has_bar;
    snprintf(head, sizeof head, "epoch %llu/%llu", (unsigned long long)p->epoch,
             (unsigned long long)p->epochs);
    snprintf(tail, sizeof tail, " %zu/%zu", p->done, p->steps);
    if (p->samples) make_pieces(p, pieces);
    size_t others = strlen(head) + strlen(tail);
    size_t left = choose_pieces(pieces, room > others ? room - others : 0, &has_bar);
    if (has_bar) draw_cells(p->done, p->steps, clamp(BAR_LEAST + left, 0, BAR_MOST), cells);
    snprintf(line, capacity, "%s%s%s%s%s%s%s%s%s", head, has_bar ? " [" : "", cells,
             has_bar ? "]" : "", tail, pieces[LOSS], pieces[SPEED], pieces[MEMORY], pieces[CHUNKS]);
    if (strlen(line) > room && room < capacity) line[room] = '\0';
}

static void plain_line(const ex_progress *p, char *line, size_t capacity) {
    char pieces[PIECES][PIECE] = {""};
    if (p->samples) make_pieces(p, pieces);
    snprintf(line, capacity, "epoch %llu/%llu  step %zu/%zu%s%s%s%s", (unsigned long long)p->epoch,
             (unsigned long long)p->epochs, p->done, p->steps, pieces[LOSS], pieces[SPEED],
             pieces[MEMORY], pieces[CHUNKS]);
}

/* ---- drawing ----------------------------------------------------------------------------------- */

static size_t columns_of(FILE *stream) {
    struct winsize size;
    if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

/* One write for the whole line, the rest of the old one erased behind it: nothing flickers. */
static void draw(ex_progress *p, const char *line) {
    char output[LINE + 8];
    int n = snprintf(output, sizeof output, "\r%s\033[K", line);
    fflush(p->stream);
    if (n > 0) fwrite(output, 1, (size_t)n, p->stream);
    fflush(p->stream);
    p->on_screen = 1;
    p->drawn_at = ex_seconds();
}

static void draw_bar(ex_progress *p) {
    char line[LINE];
    ex_progress_line(p, columns_of(p->stream), line, sizeof line);
    draw(p, line);
}

static void print_plain(ex_progress *p) {
    char line[LINE];
    plain_line(p, line, sizeof line);
    fprintf(p->stream, "%s\n", line);
    fflush(p->stream);
    p->drawn_at = ex_seconds();
}

/* At each quarter of the epoch, and once a minute. */
static int is_due(const ex_progress *p) {
    size_t lines = p->done * PLAIN_LINES / p->steps;
    size_t before = p->done ? (p->done - 1) * PLAIN_LINES / p->steps : 0;
    return lines > before || ex_seconds() - p->drawn_at >= PLAIN_SECONDS;
}

/* ---- public ------------------------------------------------------------------------------------ */

void ex_progress_init(ex_progress *progress, ex_progress_mode mode, const char *unit,
                      FILE *stream) {
    const char *terminal = getenv("TERM");
    int can_draw = isatty(fileno(stream)) && terminal && strcmp(terminal, "dumb") != 0;
    memset(progress, 0, sizeof *progress);
    progress->mode = mode;
    if (mode == EX_PROGRESS_AUTO) progress->mode = can_draw ? EX_PROGRESS_BAR : EX_PROGRESS_PLAIN;
    progress->unit = unit;
    progress->stream = stream;
}

void ex_progress_epoch(ex_progress *progress, uint64_t epoch, uint64_t epochs, size_t done,
                       size_t steps) {
    ex_progress *p = progress;
    p->epoch = epoch;
    p->epochs = epochs;
    p->steps = steps;
    p->done = done;
    p->samples = 0;
    p->loss_sum = 0;
    p->started = p->drawn_at = ex_seconds();
    if (p->mode == EX_PROGRESS_BAR) draw_bar(p);
}

void ex_progress_step(ex_progress *progress, const mt_step_report *report) {
    ex_progress *p = progress;
    size_t samples = report->samples * (p->processes ? p->processes : 1);
    p->done++;
    p->samples += samples;
    p->loss_sum += report->loss * (double)samples;
    /* A device that tells no peak, as MPS, tells what is there after the step. */
    p->peak_bytes = report->peak_bytes ? report->peak_bytes : report->allocated_bytes;
    p->budget_bytes = report->budget_bytes;
    ex_html_chunks(report->chunks, report->chunk_count, p->chunks, sizeof p->chunks);
    if (p->mode == EX_PROGRESS_PLAIN && is_due(p)) print_plain(p);
    if (p->mode != EX_PROGRESS_BAR) return;
    if (!p->on_screen || p->done >= p->steps || ex_seconds() - p->drawn_at >= REDRAW_SECONDS)
        draw_bar(p);
}

void ex_progress_evaluate(ex_progress *progress, size_t done, size_t total) {
    char cells[BAR_USUAL + 1], line[64];
    if (progress->mode != EX_PROGRESS_BAR) return;
    draw_cells(done, total, BAR_USUAL, cells);
    snprintf(line, sizeof line, "validation [%s] %zu/%zu", cells, done, total);
    size_t columns = columns_of(progress->stream);
    if (columns <= strlen(line)) line[columns - 1] = '\0';
    draw(progress, line);
}

void ex_progress_clear(ex_progress *progress) {
    if (!progress->on_screen) return;
    fputs("\r\033[K", progress->stream);
    fflush(progress->stream);
    progress->on_screen = 0;
}

void ex_progress_no_bar(ex_progress *progress) {
    ex_progress_clear(progress);
    if (progress->mode == EX_PROGRESS_BAR) progress->mode = EX_PROGRESS_PLAIN;
}

void ex_progress_log(void *user, mt_log_level level, const char *text) {
    ex_progress *p = user;
    if (level == MT_LOG_DEBUG || (level == MT_LOG_INFO && p->has_no_notes)) return;
    ex_progress_clear(p);
    fprintf(p->stream, "%s: %s\n", level == MT_LOG_WARNING ? "warning" : "note", text);
}
