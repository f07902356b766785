/* jpeg_file.h - pictures of one colour, made by the library that the programs decode with. */
#ifndef MEMTRAIN_TESTS_JPEG_FILE_H
#define MEMTRAIN_TESTS_JPEG_FILE_H

#include "cli.h"

#include <jpeglib.h>

/* A JPEG in memory in which every pixel has the same components; free() the result. */
static inline unsigned char *make_jpeg(int side, J_COLOR_SPACE space, const unsigned char *pixel,
                                       int components, int progressive, size_t *count) {
    struct jpeg_compress_struct encoder;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL, *row = malloc((size_t)side * (size_t)components);
    unsigned long size = 0;
    ck_assert_ptr_nonnull(row);
    for (int i = 0; i < side * components; i++) row[i] = pixel[i % components];
    encoder.err = jpeg_std_error(&errors);
    jpeg_create_compress(&encoder);
    jpeg_mem_dest(&encoder, &bytes, &size);
    encoder.image_width = encoder.image_height = (JDIMENSION)side;
    encoder.input_components = components;
    encoder.in_color_space = space;
    jpeg_set_defaults(&encoder);
    jpeg_set_quality(&encoder, 95, TRUE);
    if (progressive) jpeg_simple_progression(&encoder);
    jpeg_start_compress(&encoder, TRUE);
    while (encoder.next_scanline < encoder.image_height) jpeg_write_scanlines(&encoder, &row, 1);
    jpeg_finish_compress(&encoder);
    jpeg_destroy_compress(&encoder);
    free(row);
    *count = size;
    return bytes;
}

/* The same as a file of the test's folder, without its last bytes. */
static inline void write_jpeg(const char *name, int side, J_COLOR_SPACE space,
                              const unsigned char *pixel, int components, int progressive,
                              size_t cut) {
    size_t count;
    unsigned char *bytes = make_jpeg(side, space, pixel, components, progressive, &count);
    cli_write_bytes(cli_path(name), bytes, count - cut);
    free(bytes);
}

#endif
