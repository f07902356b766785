/*
 * check_ex_image.c - tests of decoding in examples/documents/image/image.h: every kind of good file, every
 * kind of bad file, damaged input. What is done with decoded pictures: check_ex_resize.c.
 *
 * Runs from the project's root (it reads examples/data). All other files are written here, into
 * a temporary folder, by the same libraries that the decoder uses.
 */
#include "image.h"

#include "jpeg_file.h"
#include "pixels.h"

#include <dirent.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <png.h>

#define DATA "examples/data/food"
#define PATH_BYTES 512

/* ---- fixtures and file writers -------------------------------------------------------------- */

static unsigned char *read_whole(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes;
    long size;
    ck_assert_msg(file != NULL, "cannot open %s", path);
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    ck_assert_int_ge(size, 0);
    bytes = malloc((size_t)size + 1);
    ck_assert_ptr_nonnull(bytes);
    *count = fread(bytes, 1, (size_t)size, file);
    fclose(file);
    if (*count != (size_t)size) ck_abort_msg("cannot read %s", path);
    return bytes;
}

/* What one kind of PNG is made of: every pixel has the same `pixel_bytes` bytes. */
struct png_kind {
    int depth;
    int colour_type;
    int interlace;
    unsigned char pixel[8];
    int pixel_bytes;
    unsigned char expected[3];
};

/* `cut` bytes are left off at the end. */
static void write_png(const char *name, int side, const struct png_kind *kind, long cut) {
    static png_color palette[2] = {{10, 20, 30}, {200, 100, 0}};
    static png_byte alpha[2] = {255, 0};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    FILE *file = fopen(cli_path(name), "wb");
    unsigned char row[64 * 8];
    ck_assert(file != NULL && side <= 64);
    for (int i = 0; i < side * kind->pixel_bytes; i++) row[i] = kind->pixel[i % kind->pixel_bytes];
    png_init_io(png, file);
    png_set_IHDR(png, info, (png_uint_32)side, (png_uint_32)side, kind->depth, kind->colour_type,
                 kind->interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (kind->colour_type == PNG_COLOR_TYPE_PALETTE) {
        png_set_PLTE(png, info, palette, 2);
        png_set_tRNS(png, info, alpha, 2, NULL);
    }
    png_write_info(png, info);
    for (int pass = png_set_interlace_handling(png); pass > 0; pass--)
        for (int y = 0; y < side; y++) png_write_row(png, row);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    fflush(file);
    ck_assert_int_eq(ftruncate(fileno(file), ftell(file) - cut), 0);
    fclose(file);
}

/* The CRC of PNG chunks, written out so that the test needs no further library. */
static uint32_t chunk_crc(const unsigned char *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

static void put32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(value >> (24 - 8 * i));
}

static uint32_t get32(const unsigned char *from) {
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

/* Makes the checksums right again, so that damage reaches the code behind them. */
static void repair_chunks(unsigned char *bytes, size_t count) {
    size_t at = 8;
    while (at + 12 <= count) {
        size_t length = get32(bytes + at);
        if (length > count - at - 12) break;
        put32(bytes + at + 8 + length, chunk_crc(bytes + at + 4, length + 4));
        at += length + 12;
    }
}

/* ---- decoding good files -------------------------------------------------------------------- */

static const struct png_kind png_kinds[] = {
    {8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, {1, 2, 3}, 3, {1, 2, 3}},
    {8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_ADAM7, {250, 2, 3}, 3, {250, 2, 3}},
    {8, PNG_COLOR_TYPE_RGBA, PNG_INTERLACE_NONE, {9, 9, 9, 0}, 4, {255, 255, 255}},
    {8, PNG_COLOR_TYPE_RGBA, PNG_INTERLACE_NONE, {0, 255, 100, 51}, 4, {204, 255, 224}},
    {8, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, {77}, 1, {77, 77, 77}},
    {8, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_INTERLACE_ADAM7, {0, 51}, 2, {204, 204, 204}},
    {16, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, {0x80, 0x80}, 2, {128, 128, 128}},
    {16,
     PNG_COLOR_TYPE_RGBA,
     PNG_INTERLACE_ADAM7,
     {0xff, 0xff, 0x10, 0x10, 0, 0, 0xff, 0xff},
     8,
     {255, 16, 0}},
    {8, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, {0}, 1, {10, 20, 30}},
    {8, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_ADAM7, {1}, 1, {255, 255, 255}},
    {1, PNG_COLOR_TYPE_PALETTE, PNG_INTERLACE_NONE, {0}, 1, {10, 20, 30}},
    {1, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, {0xff}, 1, {255, 255, 255}},
    {4, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, {0x55}, 1, {85, 85, 85}},
};

/* Every kind of PNG comes out as 8-bit RGB over white. */
TEST_LOOP("decoding", png_kind_decodes, LENGTH(png_kinds)) {
    const struct png_kind *kind = &png_kinds[_i];
    ex_image image;
    ex_error error;
    write_png("kind.png", 21, kind, 0);
    ck_assert_msg(ex_image_load(cli_path("kind.png"), &image, &error) == EX_OK, "%s", error.text);
    ck_assert_int_eq(image.width, 21);
    ck_assert_int_eq(image.height, 21);
    for (int y = 0; y < 21; y++)
        for (int x = 0; x < 21; x++) check_pixel(&image, x, y, kind->expected, 0);
    ex_image_clear(&image);
}

/* Baseline and progressive; lossy, hence the tolerance of 3 levels. */
TEST_LOOP("decoding", jpeg_decodes, 2) {
    static const unsigned char pixel[3] = {200, 120, 40};
    ex_image image;
    ex_error error;
    write_jpeg("rgb.jpg", 33, JCS_RGB, pixel, 3, _i, 0);
    ck_assert_msg(ex_image_load(cli_path("rgb.jpg"), &image, &error) == EX_OK, "%s", error.text);
    ck_assert_int_eq(image.width, 33);
    check_pixel(&image, 0, 0, pixel, 3);
    check_pixel(&image, 32, 32, pixel, 3);
    ex_image_clear(&image);
}

TEST("decoding", grey_jpeg_decodes) {
    static const unsigned char grey[3] = {90, 90, 90};
    ex_image image;
    write_jpeg("grey.jpg", 16, JCS_GRAYSCALE, grey, 1, 0, 0);
    ck_assert_int_eq(ex_image_load(cli_path("grey.jpg"), &image, NULL), EX_OK);
    check_pixel(&image, 7, 7, grey, 2);
    ex_image_clear(&image);
}

/* The type follows from the content: a JPEG named .png is a JPEG. */
TEST("decoding", name_does_not_matter) {
    static const unsigned char pixel[3] = {1, 200, 3};
    ex_image image;
    write_jpeg("wrong.png", 16, JCS_RGB, pixel, 3, 0, 0);
    ck_assert_int_eq(ex_image_load(cli_path("wrong.png"), &image, NULL), EX_OK);
    ex_image_clear(&image);
}

/* Calls `visit` for every embedded picture. */
static void each_embedded(void (*visit)(const char *path, void *user), void *user) {
    DIR *classes = opendir(DATA);
    const struct dirent *entry, *file;
    ck_assert_msg(classes != NULL, "run from the project's root: %s is missing", DATA);
    while ((entry = readdir(classes)) != NULL) {
        char path[2 * PATH_BYTES];
        DIR *files;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", DATA, entry->d_name);
        files = opendir(path);
        while (files && (file = readdir(files)) != NULL) {
            if (file->d_name[0] != '.') {
                snprintf(path, sizeof path, "%s/%s/%s", DATA, entry->d_name, file->d_name);
                visit(path, user);
            }
        }
        if (files) closedir(files);
    }
    closedir(classes);
}

static void load_embedded(const char *path, void *user) {
    size_t *count = user;
    ex_image image;
    ex_error error;
    ck_assert_msg(ex_image_load(path, &image, &error) == EX_OK, "%s", error.text);
    ck_assert_int_le(image.width, 128);
    ck_assert_int_le(image.height, 128);
    ex_image_clear(&image);
    ++*count;
}

TEST("decoding", embedded_pictures_decode) {
    size_t count = 0;
    each_embedded(load_embedded, &count);
    ck_assert_uint_eq(count, 279);
}

/* ---- decoding bad files --------------------------------------------------------------------- */

static const unsigned char colour[4] = {10, 220, 30, 40};

static void make_truncated_jpeg(void) {
    write_jpeg("bad", 64, JCS_RGB, colour, 3, 0, 20);
}

static void make_cmyk_jpeg(void) {
    write_jpeg("bad", 32, JCS_CMYK, colour, 4, 0, 0);
}

/* The frame header of a small JPEG is patched to claim 60,000 x 60,000 pixels. */
static void make_huge_jpeg(void) {
    size_t count, at = 0;
    unsigned char *bytes = make_jpeg(16, JCS_RGB, colour, 3, 0, &count);
    while (at + 9 < count && !(bytes[at] == 0xff && bytes[at + 1] == 0xc0)) at++;
    ck_assert_uint_lt(at + 9, count);
    put32(bytes + at + 5, (uint32_t)60000 << 16 | 60000);
    cli_write_bytes(cli_path("bad"), bytes, count);
    free(bytes);
}

static void make_damaged_png(void) {
    size_t count;
    write_png("bad", 40, &png_kinds[0], 0);
    unsigned char *bytes = read_whole(cli_path("bad"), &count);
    bytes[count - 20] ^= 0x55;
    cli_write_bytes(cli_path("bad"), bytes, count);
    free(bytes);
}

/* Nothing but a header that claims 50,000 x 50,000 pixels: 10 GB as RGBA. */
static void make_huge_png(void) {
    unsigned char bytes[45] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n',
                               0,    0,   0,   13,  'I',  'H',  'D',  'R'};
    put32(bytes + 16, 50000);
    put32(bytes + 20, 50000);
    bytes[24] = 8; /* bits a channel */
    bytes[25] = PNG_COLOR_TYPE_RGBA;
    memcpy(bytes + 37, "IDAT", 4); /* an empty chunk of picture data ends the header */
    repair_chunks(bytes, sizeof bytes);
    cli_write_bytes(cli_path("bad"), bytes, sizeof bytes);
}

static void make_directory(void) {
    ck_assert_int_eq(mkdir(cli_path("bad"), 0700), 0);
}

/* A sparse file: its size is refused before a byte of it is read. */
static void make_large(void) {
    cli_write_file(cli_path("bad"), "");
    ck_assert_int_eq(truncate(cli_path("bad"), (off_t)EX_IMAGE_MAX_FILE_BYTES + 1), 0);
}

/* What makes the file, or what stands in it, or a PNG without its last bytes. */
static const struct bad_file {
    const char *reason;
    void (*make)(void);
    const char *text;
    int png_side;
    long cut;
} bad_files[] = {
    {"truncated JPEG", .make = make_truncated_jpeg},
    {"60000 x 60000 pixels, at most", .make = make_huge_jpeg},
    {"CMYK", .make = make_cmyk_jpeg},
    {"1 x 1 pixels, at least 8", .png_side = 1},
    {"truncated PNG", .png_side = 40, .cut = 15},
    {"truncated PNG", .png_side = 40, .cut = 12}, /* all but the chunk that ends a PNG */
    {"not a readable PNG", .make = make_damaged_png},
    {"50000 x 50000 pixels, at most", .make = make_huge_png},
    {"neither a JPEG nor a PNG", .text = "this is no picture\n"},
    {"empty file", .text = ""},
    {"JPEG", .text = "\xff\xd8\xff"}, /* its magic bytes alone */
    {"not a regular file", .make = make_directory},
    {"No such file", .make = NULL},
    {"file of more than", .make = make_large},
};

static void check_one_line(const ex_error *error, const char *name) {
    ck_contains(error->text, name);
    ck_assert_ptr_null(strchr(error->text, '\n'));
}

/* Each bad file gives one line that names it and the reason, and no picture. */
TEST_LOOP("decoding", bad_file_is_refused, LENGTH(bad_files)) {
    const struct bad_file *bad = &bad_files[_i];
    const char *path = cli_path("bad");
    ex_image image = {1, 1, NULL};
    ex_error error = {{0}};
    if (bad->make) bad->make();
    if (bad->text) cli_write_file(path, bad->text);
    if (bad->png_side) write_png("bad", bad->png_side, &png_kinds[0], bad->cut);
    ck_assert_msg(ex_image_load(path, &image, &error) == EX_EINPUT, "not '%s'", bad->reason);
    check_one_line(&error, path);
    ck_contains(error.text, bad->reason);
    ck_assert_ptr_null(image.pixels);
    ck_assert_int_eq(image.width, 0);
}

/* Names beyond the buffer lose their head, names with control characters stay one line. */
TEST("decoding", error_text_is_bounded) {
    char name[2000];
    ex_error error;
    memset(name, 'a', sizeof name);
    memcpy(name + sizeof name - 5, "z\npg", 5);
    ex_error_set(&error, name, "%s", "the reason");
    ck_contains(error.text, "z?pg: the reason");
    ck_assert_uint_lt(strlen(error.text), sizeof error.text);
    ex_error_set(NULL, name, "%s", "nobody listens");
}

/* ---- damaged input -------------------------------------------------------------------------- */

#define FUZZ_SECONDS 3.0

struct fuzz {
    uint64_t round;
    size_t refused, accepted;
    struct timespec start;
};

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

/* Flips up to eight bytes and now and then cuts the end off; returns the new length. */
static size_t damage(unsigned char *bytes, size_t count, uint64_t round) {
    uint64_t flips = ex_random(7, round, 0, 0) % 9;
    for (uint64_t i = 1; i <= flips; i++)
        bytes[ex_random(7, round, i, 0) % count] ^= (unsigned char)ex_random(7, round, i, 1);
    if (ex_random(7, round, 0, 1) % 4 == 0) count = (size_t)(ex_random(7, round, 0, 2) % count);
    if (ex_random(7, round, 0, 3) % 2 == 0 && count > 8 && bytes[1] == 'P')
        repair_chunks(bytes, count);
    return count;
}

static void fuzz_one(const char *path, void *user) {
    struct fuzz *fuzz = user;
    size_t count, kept;
    unsigned char *bytes, *exact;
    ex_image image;
    ex_error error;
    if (seconds_since(&fuzz->start) > FUZZ_SECONDS) return;
    bytes = read_whole(path, &count);
    kept = damage(bytes, count, fuzz->round++);
    exact = malloc(kept ? kept : 1); /* its own block, so that a sanitizer sees reads past it */
    ck_assert_ptr_nonnull(exact);
    memcpy(exact, bytes, kept);
    if (ex_image_decode(exact, kept, path, &image, &error) == EX_OK) {
        size_t size = (size_t)image.width * (size_t)image.height * 3;
        ck_assert(image.width >= EX_IMAGE_MIN_SIDE && image.height >= EX_IMAGE_MIN_SIDE);
        ck_assert_uint_le(image.pixels[0] + image.pixels[size - 1], 510);
        fuzz->accepted++;
    } else {
        check_one_line(&error, path);
        ck_assert_ptr_null(image.pixels);
        fuzz->refused++;
    }
    ex_image_clear(&image);
    free(exact);
    free(bytes);
}

/* Damaged files are decoded or refused; a sanitizer build sees whether memory stays intact. */
TEST("decoding", damaged_files_do_no_harm) {
    struct fuzz fuzz = {0, 0, 0, {0, 0}};
    clock_gettime(CLOCK_MONOTONIC, &fuzz.start);
    for (int i = 0; i < 40; i++) each_embedded(fuzz_one, &fuzz);
    ck_assert_uint_gt(fuzz.refused, 0);
    ck_assert_uint_gt(fuzz.accepted, 0);
}

int main(void) {
    cli_folder_case("decoding");
    return suite_run_named("ex_image");
}
