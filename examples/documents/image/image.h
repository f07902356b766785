/*
 * image.h - pictures for the example programs: decoding, resizing, normalising, random numbers.
 *
 * A picture is 8-bit RGB, rows from top to bottom, no padding. JPEG goes through libjpeg, PNG
 * through libpng; the type follows from the first bytes of the file, never from its name.
 * Nothing here prints or keeps global state: every function may run on any thread, as long as two
 * threads do not write the same picture. This belongs to the examples, not to the library.
 */
#ifndef EX_IMAGE_H
#define EX_IMAGE_H

#include <stddef.h>
#include <stdint.h>

/* Bounds on what is decoded: they turn a decompression bomb into an ordinary refusal. */
#define EX_IMAGE_MAX_FILE_BYTES ((size_t)64 * 1024 * 1024)
#define EX_IMAGE_MAX_PIXELS ((size_t)40 * 1000 * 1000)
#define EX_IMAGE_MIN_SIDE 8

typedef enum ex_status {
    EX_OK = 0,
    EX_EINPUT = -1, /* the file, the folder or an argument cannot be used; the text says why */
    EX_ENOMEM = -2  /* host memory ran out: says nothing about the input */
} ex_status;

/* One line of text without the newline, for the caller to show. */
typedef struct ex_error {
    char text[512];
} ex_error;

/* `pixels` holds width * height * 3 bytes; release with ex_image_clear(). */
typedef struct ex_image {
    int width;
    int height;
    unsigned char *pixels;
} ex_image;

/* A rectangle in picture coordinates; it need not lie on whole pixels. */
typedef struct ex_box {
    double x;
    double y;
    double width;
    double height;
} ex_box;

/*
 * Writes "NAME: REASON" into `error` (which may be NULL). Control characters in either become '?',
 * so that the text stays one line, and of a very long name only the tail is kept.
 */
void ex_error_set(ex_error *error, const char *name, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

/*
 * Reads and decodes one file. Refused with EX_EINPUT and a line that names the file: what is
 * neither JPEG nor PNG, empty or truncated files, damaged JPEG data, CMYK and YCCK JPEGs (their
 * colours need a profile that nothing here applies), pictures below EX_IMAGE_MIN_SIDE on a side
 * or above EX_IMAGE_MAX_PIXELS, files above EX_IMAGE_MAX_FILE_BYTES.
 * Accepted and converted: grey, palette, 16-bit, interlaced; alpha is composited over white.
 * Embedded colour profiles, gamma and EXIF orientation are ignored.
 * Transient memory: the file, and for a PNG 4 bytes a pixel (160 MB at the limit); a progressive
 * JPEG costs about 6 bytes a pixel more than its result.
 * On failure `out` is {0, 0, NULL}.
 */
ex_status ex_image_load(const char *path, ex_image *out, ex_error *error);

/*
 * The same with 4 bytes a pixel, the last of them the alpha, not multiplied in; 255 where the file has
 * none. ex_image_clear releases it; all else in this header takes pictures of 3 bytes a pixel.
 */
ex_status ex_image_load_alpha(const char *path, ex_image *out, ex_error *error);

/* ex_image_load from memory; `name` serves the error text only. */
ex_status ex_image_decode(const void *bytes, size_t byte_count, const char *name, ex_image *out,
                          ex_error *error);

/* Releases the pixels; a cleared or zeroed picture may be cleared again. */
void ex_image_clear(ex_image *image);

/*
 * Resizes the part `box` of a picture (NULL: all of it) to width x height with a triangle filter
 * whose support grows with the shrinking factor, so that shrinking averages instead of aliasing.
 * Pillow's Image.resize(size, BILINEAR, box) gives the same within one level. `box` must lie
 * inside the picture. @return EX_OK, EX_EINPUT or EX_ENOMEM.
 */
ex_status ex_image_resize(const ex_image *image, const ex_box *box, int width, int height,
                          ex_image *out);

/*
 * Renders what the rectangle `box` sees as a side x side picture: squashed if the box is not
 * square, white where the box reaches beyond the picture. The three ways to make a picture square
 * (pad, crop, squash) and every shift or scale are choices of the box.
 * @return EX_OK, EX_EINPUT or EX_ENOMEM.
 */
ex_status ex_image_view(const ex_image *image, const ex_box *box, int side, ex_image *out);

/* Mirrors left and right in place. */
void ex_image_flip(ex_image *image);

/*
 * Writes 3 planes (red, green, blue) of height x width floats: value / 255, minus the mean and
 * divided by the standard deviation of ImageNet's pictures for that channel.
 */
void ex_image_normalise(const ex_image *image, float *planes);

/*
 * 64 random bits as a pure function of the four numbers (splitmix64 over each in turn). There is
 * no generator state: a batch is the same whoever computes it, in whatever order. `stream` tells
 * apart several draws for the same index.
 */
uint64_t ex_random(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t stream);

/* The same bits as a number in [0, 1). */
double ex_random_unit(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t stream);

#endif
