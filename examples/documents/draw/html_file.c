/*
 * html_file.c - see html_file.h.
 */
#include "html_file.h"
#include "libmemtrain/new_file.h"
#include "writable.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ex_html_file {
    const char *flag;
    FILE *stream; /* of a pipe or a device; NULL: a file, made anew each time */
    int is_svg, takes_one;
    char path[];
};

static mt_status fail(const ex_html_file *file, mt_status status) {
    return mt_set_error(status, "%s: cannot write '%s': %s", file->flag, file->path,
                        strerror(errno ? errno : EIO));
}

static void put_page(const ex_html_file *file, ex_html_run *const *runs, size_t count, int refresh,
                     FILE *out) {
    if (file->is_svg)
        ex_svg_page(runs, count, out);
    else
        ex_html_page(runs, count, refresh, out);
}

static mt_status write_stream(ex_html_file *file, ex_html_run *const *runs, size_t count) {
    errno = 0;
    clearerr(file->stream);
    put_page(file, runs, count, 0, file->stream);
    return fflush(file->stream) == 0 && !ferror(file->stream) ? MT_OK : fail(file, MT_EIO);
}

mt_status ex_html_file_write(ex_html_file *file, ex_html_run *const *runs, size_t count,
                             int refresh) {
    mt__new_file to;
    char *page = NULL;
    size_t bytes = 0;
    if (file->stream) return write_stream(file, runs, count);
    FILE *stream = open_memstream(&page, &bytes);
    if (stream) put_page(file, runs, count, refresh, stream);
    if (!stream || fclose(stream) != 0) {
        free(page);
        return mt_set_error(MT_ENOMEM, "out of host memory for %s", file->flag);
    }
    mt_status status = mt__new_file_open(&to, file->flag, file->path, 0);
    if (status == MT_OK) status = mt__new_file_end(&to, mt__new_file_write(&to, page, bytes));
    free(page);
    return status;
}

/* What the shell's `>` would write to: standard output, a device, a pipe. */
static int is_stream(const char *path) {
    struct stat info;
    return strncmp(path, "/dev/", 5) == 0 || (lstat(path, &info) == 0 && S_ISFIFO(info.st_mode));
}

static mt_status open_stream(ex_html_file *file) {
    struct stat info;
    file->stream = fopen(file->path, "we");
    if (!file->stream) return fail(file, MT_EINVAL);
    file->takes_one = fstat(fileno(file->stream), &info) != 0 || !S_ISCHR(info.st_mode) ||
                      strcmp(file->path, "/dev/stdout") == 0;
    return MT_OK;
}

mt_status ex_html_file_open(const char *flag, const char *path, ex_html_file **out) {
    size_t length = strlen(path);
    *out = NULL;
    ex_html_file *file = calloc(1, sizeof *file + length + 1);
    if (!file) return mt_set_error(MT_ENOMEM, "out of host memory");
    memcpy(file->path, path, length + 1);
    file->flag = flag;
    file->is_svg = length > 4 && strcmp(path + length - 4, ".svg") == 0;
    mt_status status = is_stream(path) ? open_stream(file) : ex_check_writable(flag, path);
    if (status == MT_OK)
        *out = file;
    else
        free(file);
    return status;
}

int ex_html_file_is_stream(const ex_html_file *file) {
    return file->stream != NULL;
}

int ex_html_file_takes_one(const ex_html_file *file) {
    return file->takes_one;
}

mt_status ex_html_file_close(ex_html_file *file) {
    mt_status status = MT_OK;
    if (file && file->stream && fclose(file->stream) != 0) status = fail(file, MT_EIO);
    free(file);
    return status;
}
