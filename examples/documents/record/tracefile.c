/*
 * tracefile.c - writes the lines of a trace; see tracefile.h.
 */
#include "tracefile.h"
#include "settings.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ex_tracefile {
    FILE *stream;
    int begun;   /* the lines of an older run are gone */
    int error;   /* errno of the first write that failed */
    int checked; /* the first lines were written, and the run is under way */
    int told;    /* the failure has been returned */
    char path[];
};

mt_status ex_tracefile_open(const char *path, ex_tracefile **out) {
    *out = NULL;
    if (!path) return MT_OK;
    ex_tracefile *file = calloc(1, sizeof *file + strlen(path) + 1);
    if (!file) return mt_set_error(MT_ENOMEM, "out of host memory");
    memcpy(file->path, path, strlen(path) + 1);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    file->stream = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file->stream) {
        int why = errno;
        if (descriptor >= 0) close(descriptor);
        free(file);
        return mt_set_error(MT_EINVAL, "--trace: cannot write '%s': %s", path, strerror(why));
    }
    *out = file;
    return MT_OK;
}

/* Pipes and devices have no older lines. */
static int begin(ex_tracefile *file) {
    struct stat info;
    int descriptor = fileno(file->stream);
    if (file->begun) return 1;
    file->begun =
        fstat(descriptor, &info) == 0 && (!S_ISREG(info.st_mode) || ftruncate(descriptor, 0) == 0);
    return file->begun;
}

void ex_tracefile_line(void *user, const char *line) {
    ex_tracefile *file = user;
    errno = 0;
    if (!file ||
        (begin(file) && fprintf(file->stream, "%s\n", line) >= 0 && fflush(file->stream) == 0))
        return;
    if (file->error) return;
    file->error = errno ? errno : EIO;
    if (file->checked)
        mt_log(MT_LOG_WARNING, "--trace: from here on '%s' is not whole: %s", file->path,
               strerror(file->error));
}

mt_status ex_tracefile_check(ex_tracefile *file) {
    if (!file) return MT_OK;
    file->checked = 1;
    if (!file->error || file->told) return MT_OK;
    file->told = 1;
    return mt_set_error(MT_EIO, "--trace: cannot write '%s': %s", file->path,
                        strerror(file->error));
}

/* One that is not UTF-8 cannot stand in JSON. */
static json_t *argument(const char *text) {
    json_t *value = json_string(text);
    return value ? value : json_string("?");
}

static void add_device(json_t *object, const ex_traced_device *device) {
    if (!device) return;
    json_object_set_new(object, "device_asked", argument(device->asked));
    if (*device->left) json_object_set_new(object, "device_left", argument(device->left));
    if (device->mapped)
        json_object_set_new(object, "mapped_bytes", json_integer((json_int_t)device->mapped));
}

void ex_trace_program(mt_trace_fn trace, void *user, const char *name, int threads,
                      int64_t image_size, const char *resumed, const ex_traced_device *device,
                      const ex_setting *settings, size_t count, char *const *argv) {
    json_t *arguments = json_array(), *values = ex_settings_json(settings, count);
    for (char *const *a = argv + 1; *argv && *a; a++)
        json_array_append_new(arguments, argument(*a));
    json_t *object =
        json_pack("{ss ss si sI so so}", "event", "program", "name", name, "threads", threads,
                  "image_size", (json_int_t)image_size, "settings", values, "arguments", arguments);
    if (resumed) json_object_set_new(object, "resumed", argument(resumed));
    add_device(object, device);
    char *line = json_dumps(object, JSON_COMPACT);
    if (line) trace(user, line);
    free(line);
    json_decref(object);
}

mt_status ex_tracefile_close(ex_tracefile *file) {
    if (!file) return MT_OK;
    if (fclose(file->stream) != 0 && !file->error) file->error = errno;
    mt_status status = ex_tracefile_check(file);
    free(file);
    return status;
}
