/*
 * decode.c - pictures from files (libjpeg, libpng); see image.h.
 *
 * Both decoders report errors by longjmp. The functions that call setjmp keep everything they
 * need afterwards in a job structure of their caller and have no locals of their own, so nothing
 * is indeterminate after the jump and the caller has one place to release.
 */
#include "image.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/stat.h>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

/* What a decoded picture is to have: bytes a pixel. */
enum { RGB = 3, RGBA = 4 };

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
    return status;
}

/* ---- files --------------------------------------------------------------------------------- */

/* RGB as a JPEG has it becomes opaque RGBA; from the last pixel on, so that none is overwritten. */
static ex_status add_alpha(ex_image *image, const char *name, ex_error *error) {
    size_t count = (size_t)image->width * (size_t)image->height;
    unsigned char *pixels = realloc(image->pixels, count * RGBA);

    if (!pixels) {
        return out_of_memory(error, name);
    }
    image->pixels = pixels;
    for (size_t i = count; i-- > 0;) {
        memmove(pixels + i * RGBA, pixels + i * RGB, RGB);
        pixels[i * RGBA + RGB] = 255;
    }
    return EX_OK;
}

static ex_status decode(const void *bytes, size_t byte_count, const char *name, int channels,
                        ex_image *out, ex_error *error) {
    static const unsigned char jpeg_magic[] = {0xff, 0xd8, 0xff};
    static const unsigned char png_magic[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    ex_status status = EX_EINPUT;

    memset(out, 0, sizeof *out);
    if (byte_count == 0) {
        ex_error_set(error, name, "empty file");
    } else if (byte_count >= sizeof jpeg_magic &&
               memcmp(bytes, jpeg_magic, sizeof jpeg_magic) == 0) {
        status = decode_jpeg(bytes, byte_count, name, out, error);
        if (status == EX_OK && channels == RGBA) {
            status = add_alpha(out, name, error);
        }
    } else if (byte_count >= sizeof png_magic && memcmp(bytes, png_magic, sizeof png_magic) == 0) {
        status = decode_png(bytes, byte_count, name, out, error);
        if (status == EX_OK && channels == RGB) {
            flatten_over_white(out);
        }
    } else {
        ex_error_set(error, name, "neither a JPEG nor a PNG by its content");
    }
    if (status != EX_OK) {
        ex_image_clear(out);
    }
    return status;
}

ex_status ex_image_decode(const void *bytes, size_t byte_count, const char *name, ex_image *out,
                          ex_error *error) {
    return decode(bytes, byte_count, name, RGB, out, error);
}

/* Reads `size` bytes, the size the file had a moment ago; a file that changed is an error. */
static ex_status read_bytes(const char *path, size_t size, unsigned char *buffer, ex_error *error) {
    FILE *file = fopen(path, "rbe");
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

static ex_status load(const char *path, int channels, ex_image *out, ex_error *error) {
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
        status = decode(buffer, (size_t)info.st_size, path, channels, out, error);
    }
    free(buffer);
    return status;
}

ex_status ex_image_load(const char *path, ex_image *out, ex_error *error) {
    return load(path, RGB, out, error);
}

ex_status ex_image_load_alpha(const char *path, ex_image *out, ex_error *error) {
    return load(path, RGBA, out, error);
}
