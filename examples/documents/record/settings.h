/*
 * settings.h - the flags that decide how a run ends, kept in a file of the run, and whether a later run
 * that goes by that file has the same.
 */
#ifndef EX_SETTINGS_H
#define EX_SETTINGS_H

#include "options.h"

#include <jansson.h>
#include <memtrain/status.h>

/* An earlier run's file, and what it is used for now, "a replay". */
typedef struct ex_earlier {
    const char *path, *use;
    int carries; /* 1: what a text names, weights say, is in the file: it need not be given again */
} ex_earlier;

/* An object of texts; NULL: out of memory. New reference. */
json_t *ex_settings_json(const ex_setting *settings, size_t count);

/* --channels-last of the earlier run: 0, 1; -1: not known. */
int ex_settings_order(const json_t *then);

/*
 * Each setting that the object has; a file of an earlier version has fewer of them.
 * @return MT_OK; MT_EINVAL with a line that names flag, both values and file
 */
MT_NODISCARD mt_status ex_settings_same(const ex_earlier *earlier, const json_t *then,
                                        const ex_setting *now, size_t count);

/* Adds ", --NAME" to a text for each setting that only one side has, which ex_settings_same passes over. */
void ex_settings_untold(const json_t *then, const ex_setting *now, size_t count, char *text,
                        size_t capacity);

/* ex_settings_same for one number; then below 0: the file does not tell. */
MT_NODISCARD mt_status ex_settings_same_number(const ex_earlier *earlier, const char *flag,
                                               int64_t now, int64_t then);

/* The same for one text; then NULL: the file does not tell. */
MT_NODISCARD mt_status ex_settings_same_text(const ex_earlier *earlier, const char *flag,
                                             const char *now, const char *then);

#endif
