/*
 * image.c - decoding (libjpeg, libpng), resizing, normalising and random numbers; see image.h.
 *
 * Both decoders report errors by longjmp. The functions that call setjmp keep everything they
 * need afterwards in a job structure of their caller and have no locals of their own, so nothing
 * is indeterminate after the jump and the caller has one place to release.
 */
#include "image.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

/* ---- error text ---------------------------------------------------------------------------- */

#define NAME_TAIL 300

void ex_error_set(ex_error *error, const char *name, const char *format, ...) {
    size_t length = strlen(name);
    const char *dots = length > NAME_TAIL ? "..." : "";
    const char *tail = length > NAME_TAIL ? name + length - NAME_TAIL : name;
    va_list arguments;
    int used;

    if (!error) {
        return;
    }
    used = snprintf(error->text, sizeof error->text, "%s%s: ", dots, tail);
    if (used > 0 && (size_t)used < sizeof error->text) {
        va_start(arguments, format);
        vsnprintf(error->text + used, sizeof error->text - (size_t)used, format, arguments);
        va_end(arguments);
    }
    for (char *c = error->text; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
}

static ex_status out_of_memory(ex_error *error, const char *name) {
    ex_error_set(error, name, "out of host memory");
    return EX_ENOMEM;
}

/* Decides from the header alone, before anything of the picture's size is allocated. */
static ex_status check_size(size_t width, size_t height, const char *name, ex_error *error) {
    if (width < EX_IMAGE_MIN_SIDE || height < EX_IMAGE_MIN_SIDE) {
        ex_error_set(error, name, "%zu x %zu pixels, at least %d on each side are needed", width,
                     height, EX_IMAGE_MIN_SIDE);
        return EX_EINPUT;
    }
    if (height > EX_IMAGE_MAX_PIXELS / width) {
        ex_error_set(error, name, "%zu x %zu pixels, at most %zu in all are decoded", width, height,
                     EX_IMAGE_MAX_PIXELS);
        return EX_EINPUT;
    }
    return EX_OK;
}

/* ---- JPEG ---------------------------------------------------------------------------------- */

/* A picture has some ten scans; thousands of them are an attack on the decoder's time. */
#define JPEG_MAX_SCANS 100

struct jpeg_job {
    struct jpeg_decompress_struct decoder;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    const unsigned char *bytes;
    size_t byte_count;
    const char *name;
    ex_image *out;
    ex_error *error;
    ex_status status;
};

_Noreturn static void jpeg_fail(struct jpeg_job *job, ex_status status) {
    job->status = status;
    longjmp(job->jump, 1);
}

static void on_jpeg_error(j_common_ptr decoder) {
    struct jpeg_job *job = decoder->client_data;
    char text[JMSG_LENGTH_MAX];

    if (job->errors.msg_code == JERR_OUT_OF_MEMORY) {
        jpeg_fail(job, out_of_memory(job->error, job->name));
    }
    job->errors.format_message(decoder, text);
    ex_error_set(job->error, job->name, "not a readable JPEG: %s", text);
    jpeg_fail(job, EX_EINPUT);
}

/*
 * libjpeg repairs what is missing with grey and calls that a warning. For training such a
 * picture is worse than none, so the warnings that mean lost picture data are errors here.
 */
static void on_jpeg_message(j_common_ptr decoder, int level) {
    struct jpeg_job *job = decoder->client_data;

    if (level >= 0) {
        return;
    }
    switch (job->errors.msg_code) {
    case JWRN_JPEG_EOF:
        ex_error_set(job->error, job->name, "truncated JPEG");
        jpeg_fail(job, EX_EINPUT);
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
        ex_error_set(job->error, job->name, "damaged JPEG data");
        jpeg_fail(job, EX_EINPUT);
    default:
        break;
    }
}

static void on_jpeg_output(j_common_ptr decoder) {
    (void)decoder; /* nothing in this file prints */
}

static void on_jpeg_progress(j_common_ptr decoder) {
    struct jpeg_job *job = decoder->client_data;

    if (job->decoder.input_scan_number > JPEG_MAX_SCANS) {
        ex_error_set(job->error, job->name, "JPEG with more than %d scans", JPEG_MAX_SCANS);
        jpeg_fail(job, EX_EINPUT);
    }
}

static ex_status check_jpeg_header(struct jpeg_job *job) {
    J_COLOR_SPACE space = job->decoder.jpeg_color_space;

    if (space == JCS_CMYK || space == JCS_YCCK) {
        ex_error_set(job->error, job->name, "CMYK JPEG, only RGB and grey are read");
        return EX_EINPUT;
    }
    return check_size(job->decoder.image_width, job->decoder.image_height, job->name, job->error);
}

/* The part between setjmp and the end; every failure leaves by longjmp. */
static void read_jpeg_pixels(struct jpeg_job *job) {
    struct jpeg_decompress_struct *decoder = &job->decoder;
    ex_status status;
    size_t stride;

    jpeg_create_decompress(decoder);
    decoder->client_data = job;
    decoder->progress = &job->progress;
    jpeg_mem_src(decoder, job->bytes, (unsigned long)job->byte_count);
    jpeg_read_header(decoder, TRUE);
    status = check_jpeg_header(job);
    if (status != EX_OK) {
        jpeg_fail(job, status);
    }
    decoder->out_color_space = JCS_RGB;
    jpeg_start_decompress(decoder);
    job->out->width = (int)decoder->output_width;
    job->out->height = (int)decoder->output_height;
    stride = (size_t)decoder->output_width * 3;
    job->out->pixels = malloc(stride * decoder->output_height);
    if (!job->out->pixels) {
        jpeg_fail(job, out_of_memory(job->error, job->name));
    }
    while (decoder->output_scanline < decoder->output_height) {
        JSAMPROW row = job->out->pixels + stride * decoder->output_scanline;
        jpeg_read_scanlines(decoder, &row, 1);
    }
    jpeg_finish_decompress(decoder);
}

static ex_status run_jpeg(struct jpeg_job *job) {
    if (setjmp(job->jump)) {
        return job->status;
    }
    read_jpeg_pixels(job);
    return EX_OK;
}

static ex_status decode_jpeg(const unsigned char *bytes, size_t byte_count, const char *name,
                             ex_image *out, ex_error *error) {
    struct jpeg_job job;
    ex_status status;

    memset(&job, 0, sizeof job);
    job.bytes = bytes;
    job.byte_count = byte_count;
    job.name = name;
    job.out = out;
    job.error = error;
    job.decoder.err = jpeg_std_error(&job.errors);
    job.decoder.client_data = &job; /* creating the decoder may fail already */
    job.errors.error_exit = on_jpeg_error;
    job.errors.emit_message = on_jpeg_message;
    job.errors.output_message = on_jpeg_output;
    job.progress.progress_monitor = on_jpeg_progress;
    status = run_jpeg(&job);
    jpeg_destroy_decompress(&job.decoder);
    return status;
}

/* ---- PNG ----------------------------------------------------------------------------------- */

/* Bounds one compressed text or profile chunk; none of them is used. */
#define PNG_MAX_CHUNK_BYTES (8 * 1024 * 1024)

struct png_job {
    png_structp png;
    png_infop info;
    png_bytepp rows;
    const unsigned char *bytes;
    size_t left;
    const char *name;
    ex_image *out;
    ex_error *error;
    ex_status status;
};

_Noreturn static void png_fail(struct png_job *job, ex_status status) {
    job->status = status;
    png_longjmp(job->png, 1);
}

_Noreturn static void on_png_error(png_structp png, png_const_charp text) {
    struct png_job *job = png_get_error_ptr(png);

    job->png = png;
    if (strcmp(text, "Out of memory") == 0) {
        png_fail(job, out_of_memory(job->error, job->name));
    }
    ex_error_set(job->error, job->name, "not a readable PNG: %s", text);
    png_fail(job, EX_EINPUT);
}

static void on_png_warning(png_structp png, png_const_charp text) {
    (void)png;
    (void)text; /* about chunks that do not matter here, such as colour profiles */
}

static void on_png_read(png_structp png, png_bytep target, size_t count) {
    struct png_job *job = png_get_io_ptr(png);

    if (count > job->left) {
        ex_error_set(job->error, job->name, "truncated PNG");
        png_fail(job, EX_EINPUT);
    }
    memcpy(target, job->bytes, count);
    job->bytes += count;
    job->left -= count;
}

/* Whatever the file holds, libpng is to hand out 8-bit RGBA. */
static void ask_for_rgba(struct png_job *job) {
    png_set_expand(job->png);
    png_set_scale_16(job->png);
    png_set_gray_to_rgb(job->png);
    png_set_add_alpha(job->png, 0xff, PNG_FILLER_AFTER);
    png_set_interlace_handling(job->png);
    png_read_update_info(job->png, job->info);
}

static void allocate_png(struct png_job *job, size_t width, size_t height) {
    job->out->width = (int)width;
    job->out->height = (int)height;
    job->out->pixels = malloc(width * height * 4);
    job->rows = malloc(height * sizeof *job->rows);
    if (!job->out->pixels || !job->rows) {
        png_fail(job, out_of_memory(job->error, job->name));
    }
    for (size_t y = 0; y < height; y++) {
        job->rows[y] = job->out->pixels + y * width * 4;
    }
}

static void read_png_pixels(struct png_job *job) {
    size_t width, height;
    ex_status status;

    png_set_read_fn(job->png, job, on_png_read);
    png_set_chunk_malloc_max(job->png, PNG_MAX_CHUNK_BYTES);
    png_set_user_limits(job->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* check_size decides */
    png_read_info(job->png, job->info);
    width = png_get_image_width(job->png, job->info);
    height = png_get_image_height(job->png, job->info);
    status = check_size(width, height, job->name, job->error);
    if (status != EX_OK) {
        png_fail(job, status);
    }
    ask_for_rgba(job);
    if (png_get_rowbytes(job->png, job->info) != width * 4) {
        png_error(job->png, "unexpected row size");
    }
    allocate_png(job, width, height);
    png_read_image(job->png, job->rows);
    png_read_end(job->png, NULL);
}

static ex_status run_png(struct png_job *job) {
    if (setjmp(png_jmpbuf(job->png))) {
        return job->status;
    }
    read_png_pixels(job);
    return EX_OK;
}

/*
 * Turns RGBA into RGB over white within the same buffer: the write position never passes the
 * read position. The freed quarter goes back; if that fails the larger buffer serves as well.
 */
static void flatten_over_white(ex_image *image) {
    size_t count = (size_t)image->width * (size_t)image->height;
    const unsigned char *from = image->pixels;
    unsigned char *to = image->pixels;
    unsigned char *smaller;

    for (size_t i = 0; i < count; i++, from += 4, to += 3) {
        unsigned alpha = from[3];
        unsigned white = (255 - alpha) * 255;

        for (int c = 0; c < 3; c++) {
            to[c] = (unsigned char)((from[c] * alpha + white + 127) / 255);
        }
    }
    smaller = realloc(image->pixels, count * 3);
    if (smaller) {
        image->pixels = smaller;
    }
}

static ex_status decode_png(const unsigned char *bytes, size_t byte_count, const char *name,
                            ex_image *out, ex_error *error) {
    struct png_job job = {NULL, NULL, NULL, bytes, byte_count, name, out, error, EX_EINPUT};
    ex_status status;

    job.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &job, on_png_error, on_png_warning);
    if (!job.png) {
        return out_of_memory(error, name);
    }
    job.info = png_create_info_struct(job.png);
    status = job.info ? run_png(&job) : out_of_memory(error, name);
    png_destroy_read_struct(&job.png, &job.info, NULL);
    free(job.rows);
    if (status == EX_OK) {
        flatten_over_white(out);
    }
    return status;
}

/* ---- files --------------------------------------------------------------------------------- */

ex_status ex_image_decode(const void *bytes, size_t byte_count, const char *name, ex_image *out,
                          ex_error *error) {
    static const unsigned char jpeg_magic[] = {0xff, 0xd8, 0xff};
    static const unsigned char png_magic[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    ex_status status = EX_EINPUT;

    memset(out, 0, sizeof *out);
    if (byte_count == 0) {
        ex_error_set(error, name, "empty file");
    } else if (byte_count >= sizeof jpeg_magic &&
               memcmp(bytes, jpeg_magic, sizeof jpeg_magic) == 0) {
        status = decode_jpeg(bytes, byte_count, name, out, error);
    } else if (byte_count >= sizeof png_magic && memcmp(bytes, png_magic, sizeof png_magic) == 0) {
        status = decode_png(bytes, byte_count, name, out, error);
    } else {
        ex_error_set(error, name, "neither a JPEG nor a PNG by its content");
    }
    if (status != EX_OK) {
        ex_image_clear(out);
    }
    return status;
}

/* Reads `size` bytes, the size the file had a moment ago; a file that changed is an error. */
static ex_status read_bytes(const char *path, size_t size, unsigned char *buffer, ex_error *error) {
    FILE *file = fopen(path, "rb");
    size_t got;

    if (!file) {
        ex_error_set(error, path, "%s", strerror(errno));
        return EX_EINPUT;
    }
    got = fread(buffer, 1, size, file);
    fclose(file);
    if (got != size) {
        ex_error_set(error, path, "cannot be read to its end");
        return EX_EINPUT;
    }
    return EX_OK;
}

ex_status ex_image_load(const char *path, ex_image *out, ex_error *error) {
    struct stat info;
    unsigned char *buffer;
    ex_status status;

    memset(out, 0, sizeof *out);
    if (stat(path, &info) != 0) {
        ex_error_set(error, path, "%s", strerror(errno));
        return EX_EINPUT;
    }
    if (!S_ISREG(info.st_mode)) { /* opening a pipe would wait for ever */
        ex_error_set(error, path, "not a regular file");
        return EX_EINPUT;
    }
    if ((uintmax_t)info.st_size > EX_IMAGE_MAX_FILE_BYTES) {
        ex_error_set(error, path, "file of more than %zu bytes", EX_IMAGE_MAX_FILE_BYTES);
        return EX_EINPUT;
    }
    buffer = malloc((size_t)info.st_size + 1);
    if (!buffer) {
        return out_of_memory(error, path);
    }
    status = read_bytes(path, (size_t)info.st_size, buffer, error);
    if (status == EX_OK) {
        status = ex_image_decode(buffer, (size_t)info.st_size, path, out, error);
    }
    free(buffer);
    return status;
}

void ex_image_clear(ex_image *image) {
    free(image->pixels);
    memset(image, 0, sizeof *image);
}

/* ---- resizing ------------------------------------------------------------------------------ */

/* For each output position: the first input position, how many, and their weights (sum 1). */
struct taps {
    int *first;
    int *count;
    float *weights; /* outputs x stride */
    int stride;
};

static void free_taps(struct taps *taps) {
    free(taps->first);
    free(taps->count);
    free(taps->weights);
}

static ex_status allocate_taps(struct taps *taps, int outputs, double support) {
    size_t n = (size_t)outputs;

    taps->stride = (int)ceil(support) * 2 + 1;
    taps->first = malloc(n * sizeof *taps->first);
    taps->count = malloc(n * sizeof *taps->count);
    taps->weights = malloc(n * (size_t)taps->stride * sizeof *taps->weights);
    if (!taps->first || !taps->count || !taps->weights) {
        free_taps(taps);
        return EX_ENOMEM;
    }
    return EX_OK;
}

/* Weights of one output whose centre lies at `centre` in input coordinates. */
static void fill_taps(struct taps *taps, int output, double centre, double support, int size) {
    float *weights = taps->weights + (size_t)output * (size_t)taps->stride;
    int first = (int)fmax(centre - support + 0.5, 0.0);
    int last = (int)fmin(centre + support + 0.5, size);
    double sum = 0.0;

    taps->first[output] = first;
    taps->count[output] = last - first;
    for (int i = first; i < last; i++) {
        double weight = fmax(1.0 - fabs(i + 0.5 - centre) / support, 0.0);

        weights[i - first] = (float)weight;
        sum += weight;
    }
    for (int i = first; i < last; i++) {
        weights[i - first] /= (float)sum;
    }
}

/* Taps that map `length` input units from `start` on to `outputs` positions. */
static ex_status make_taps(struct taps *taps, double start, double length, int size, int outputs) {
    double scale = length / outputs;
    double support = fmax(scale, 1.0);

    if (allocate_taps(taps, outputs, support) != EX_OK) {
        return EX_ENOMEM;
    }
    for (int i = 0; i < outputs; i++) {
        fill_taps(taps, i, start + (i + 0.5) * scale, support, size);
    }
    return EX_OK;
}

/*
 * One output pixel: a weighted sum of `count` pixels that lie `step` bytes apart. The sum is
 * positive, so adding a half and cutting rounds it.
 */
static void weigh(const unsigned char *from, size_t step, const float *weights, int count,
                  unsigned char *to) {
    float sum[3] = {0.5f, 0.5f, 0.5f};

    for (int i = 0; i < count; i++, from += step) {
        sum[0] += weights[i] * from[0];
        sum[1] += weights[i] * from[1];
        sum[2] += weights[i] * from[2];
    }
    for (int c = 0; c < 3; c++) {
        to[c] = (unsigned char)(sum[c] < 255.0f ? sum[c] : 255.0f);
    }
}

/* Shrinks or enlarges each of `rows` rows from `first_row` on to `width` pixels. */
static void pass_rows(const ex_image *image, const struct taps *taps, int first_row, int rows,
                      int width, unsigned char *to) {
    for (int y = 0; y < rows; y++) {
        const unsigned char *row =
            image->pixels + (size_t)(first_row + y) * (size_t)image->width * 3;

        for (int x = 0; x < width; x++, to += 3) {
            weigh(row + (size_t)taps->first[x] * 3, 3,
                  taps->weights + (size_t)x * (size_t)taps->stride, taps->count[x], to);
        }
    }
}

static void pass_columns(const unsigned char *from, const struct taps *taps, int first_row,
                         ex_image *out) {
    size_t stride = (size_t)out->width * 3;
    unsigned char *to = out->pixels;

    for (int y = 0; y < out->height; y++) {
        const unsigned char *top = from + (size_t)(taps->first[y] - first_row) * stride;

        for (int x = 0; x < out->width; x++, to += 3) {
            weigh(top + (size_t)x * 3, stride, taps->weights + (size_t)y * (size_t)taps->stride,
                  taps->count[y], to);
        }
    }
}

static ex_status allocate_image(ex_image *out, int width, int height) {
    out->width = width;
    out->height = height;
    out->pixels = malloc((size_t)width * (size_t)height * 3);
    return out->pixels ? EX_OK : EX_ENOMEM;
}

/* The two passes, rows first and only those rows that the second pass will look at. */
static ex_status resize_with(const ex_image *image, const struct taps *across,
                             const struct taps *down, ex_image *out) {
    int first_row = down->first[0];
    int rows = down->first[out->height - 1] + down->count[out->height - 1] - first_row;
    unsigned char *middle = malloc((size_t)rows * (size_t)out->width * 3);

    if (!middle) {
        return EX_ENOMEM;
    }
    pass_rows(image, across, first_row, rows, out->width, middle);
    pass_columns(middle, down, first_row, out);
    free(middle);
    return EX_OK;
}

/* Written so that a NaN is refused as well. */
static int box_is_inside(const ex_box *box, const ex_image *image) {
    const double slack = 1e-6; /* of rounding in the caller's arithmetic */

    return box->x >= 0.0 && box->y >= 0.0 && box->width > 0.0 && box->height > 0.0 &&
           box->x + box->width <= image->width + slack &&
           box->y + box->height <= image->height + slack;
}

ex_status ex_image_resize(const ex_image *image, const ex_box *box, int width, int height,
                          ex_image *out) {
    ex_box whole = {0.0, 0.0, image->width, image->height};
    struct taps across, down;
    ex_status status;

    memset(out, 0, sizeof *out);
    box = box ? box : &whole;
    if (width <= 0 || height <= 0 || (size_t)height > EX_IMAGE_MAX_PIXELS / (size_t)width ||
        !image->pixels || !box_is_inside(box, image)) {
        return EX_EINPUT;
    }
    if (make_taps(&across, box->x, box->width, image->width, width) != EX_OK) {
        return EX_ENOMEM;
    }
    status = make_taps(&down, box->y, box->height, image->height, height);
    if (status == EX_OK) {
        status = allocate_image(out, width, height);
        if (status == EX_OK) {
            status = resize_with(image, &across, &down, out);
        }
        free_taps(&down);
    }
    free_taps(&across);
    if (status != EX_OK) {
        ex_image_clear(out);
    }
    return status;
}

/*
 * One axis of a view: which output pixels lie on the picture, and which part of the picture
 * fills them exactly. At least one output pixel is kept however thin the overlap is.
 */
struct span {
    int first;
    int count;
    double start;
    double length;
};

static int find_span(double start, double length, int size, int side, struct span *out) {
    double low = fmax(start, 0.0);
    double high = fmin(start + length, size);
    double per_pixel = length / side;
    int last;

    if (!(length > 0.0) || !(high > low)) {
        return 0;
    }
    out->first = (int)fmin(floor((low - start) / per_pixel + 0.5), side - 1);
    last = (int)fmin(floor((high - start) / per_pixel + 0.5), side);
    out->count = last > out->first ? last - out->first : 1;
    out->start = fmax(start + out->first * per_pixel, 0.0);
    out->length = fmin(start + (out->first + out->count) * per_pixel, size) - out->start;
    if (out->length <= 0.0) {
        out->start = low;
        out->length = high - low;
    }
    return 1;
}

static void paste(const ex_image *part, int left, int top, ex_image *out) {
    for (int y = 0; y < part->height; y++) {
        memcpy(out->pixels + ((size_t)(top + y) * (size_t)out->width + (size_t)left) * 3,
               part->pixels + (size_t)y * (size_t)part->width * 3, (size_t)part->width * 3);
    }
}

ex_status ex_image_view(const ex_image *image, const ex_box *box, int side, ex_image *out) {
    ex_image part;
    struct span across, down;
    ex_box seen;
    ex_status status;

    memset(out, 0, sizeof *out);
    if (side <= 0 || (size_t)side > EX_IMAGE_MAX_PIXELS / (size_t)side ||
        !find_span(box->x, box->width, image->width, side, &across) ||
        !find_span(box->y, box->height, image->height, side, &down)) {
        return EX_EINPUT;
    }
    seen = (ex_box){across.start, down.start, across.length, down.length};
    status = ex_image_resize(image, &seen, across.count, down.count, &part);
    if (status != EX_OK) {
        return status;
    }
    if (part.width == side && part.height == side) {
        *out = part;
        return EX_OK;
    }
    status = allocate_image(out, side, side);
    if (status == EX_OK) {
        memset(out->pixels, 255, (size_t)side * (size_t)side * 3);
        paste(&part, across.first, down.first, out);
    } else {
        ex_image_clear(out);
    }
    ex_image_clear(&part);
    return status;
}

/* ---- pixels -------------------------------------------------------------------------------- */

void ex_image_flip(ex_image *image) {
    for (int y = 0; y < image->height; y++) {
        unsigned char *left = image->pixels + (size_t)y * (size_t)image->width * 3;
        unsigned char *right = left + (size_t)(image->width - 1) * 3;

        for (; left < right; left += 3, right -= 3) {
            for (int c = 0; c < 3; c++) {
                unsigned char kept = left[c];

                left[c] = right[c];
                right[c] = kept;
            }
        }
    }
}

void ex_image_normalise(const ex_image *image, float *planes) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f};
    static const float deviation[3] = {0.229f, 0.224f, 0.225f};
    size_t count = (size_t)image->width * (size_t)image->height;

    for (int c = 0; c < 3; c++) {
        for (size_t i = 0; i < count; i++) {
            *planes++ = ((float)image->pixels[i * 3 + (size_t)c] / 255.0f - mean[c]) / deviation[c];
        }
    }
}

/* ---- random numbers ------------------------------------------------------------------------ */

static uint64_t mix(uint64_t z) {
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t ex_random(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t stream) {
    return mix(mix(mix(mix(seed) + epoch) + index) + stream);
}

double ex_random_unit(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t stream) {
    return (double)(ex_random(seed, epoch, index, stream) >> 11) * 0x1.0p-53;
}
