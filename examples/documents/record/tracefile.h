/*
 * tracefile.h - the trace of a run as a file, one JSON object a line.
 */
#ifndef EX_TRACEFILE_H
#define EX_TRACEFILE_H

#include "options.h"

#include <memtrain/trainer.h>

typedef struct ex_tracefile ex_tracefile;

/*
 * Opens the file, which keeps its lines until the first new one comes: a run that is refused before it begins leaves
 * the trace of another. A link is followed, a pipe or a device is written to, as the shell's `>` does.
 * path NULL: *out is NULL, which all functions here take as "no trace".
 * @param out  new reference: close with ex_tracefile_close
 * @return MT_OK, MT_EINVAL (the file cannot be written), MT_ENOMEM
 */
MT_NODISCARD mt_status ex_tracefile_open(const char *path, ex_tracefile **out);

/* An mt_trace_fn with an ex_tracefile as user. Each line is on the disk's side when it returns, so
 * a run that is killed leaves whole lines. */
void ex_tracefile_line(void *user, const char *line);

/*
 * To be called once after the first lines: what cannot be written is better known before hours of
 * training than after. A write that fails later is warned of at once, and does not stop the run.
 * @return MT_OK; MT_EIO when a line could not be written
 */
MT_NODISCARD mt_status ex_tracefile_check(ex_tracefile *file);

typedef struct ex_traced_device {
    const char *asked; /* of --device */
    const char *left;  /* why the run was not begun on it, "device_left"; "": it was */
    size_t mapped;     /* bytes of weights that are pages of files, "mapped_bytes"; 0: none */
} ex_traced_device;

/*
 * Hands over a line of the program's own, to follow the first of the trainer's: what a replay of the
 * trace must have in common with this run and the trainer does not know.
 *
 *     {"event":"program","name":"food101","threads":2,"image_size":96,
 *      "settings":{"batch":"32"},"arguments":["--batch","32"],"device_asked":"auto"}
 *
 * resumed: the file that the run went on from, which stands there too; NULL: it began anew.
 */
void ex_trace_program(mt_trace_fn trace, void *user, const char *name, int threads,
                      int64_t image_size, const char *resumed, const ex_traced_device *device,
                      const ex_setting *settings, size_t count, char *const *argv);

/* @return MT_OK; MT_EIO when a line could not be written */
MT_NODISCARD mt_status ex_tracefile_close(ex_tracefile *file);

#endif
