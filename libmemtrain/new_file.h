/*
 * new_file.h - a file that takes its name once it is whole and on the disk. Until then whatever had the name stays.
 */
#ifndef MT_NEW_FILE_H
#define MT_NEW_FILE_H

#include <memtrain/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Follows the name of a file that is being written. A crash may leave such a file; no user's file ends so. */
#define MT__UNFINISHED ".memtrain-tmp"

typedef struct mt__new_file {
    const char *function, *path; /* the caller's */
    char *unfinished, *previous, *folder;
    int file;                   /* open for writing, locked; -1: none */
    int keep;                   /* the file that has the name now stays as PATH.1 */
    int replaces;               /* there is one, with ... */
    unsigned mode, user, group; /* ... these */
} mt__new_file;

/*
 * Opens PATH.memtrain-tmp, which is new and locked. function and path are borrowed until the end.
 * MT_EINVAL: a link, a folder or a device has one of the names. MT_EIO: another process writes the file, or the
 * system refuses. After an error there is nothing to end.
 */
MT_API mt_status mt__new_file_open(mt__new_file *f, const char *function, const char *path,
                                   int keep);

MT_API mt_status mt__new_file_write(const mt__new_file *f, const void *data, size_t bytes);

/*
 * With MT_OK the file goes to the disk, and then takes its name, with mode and owner of the file that had it. With
 * any other status, which is returned, the file is removed; the error line stays.
 */
MT_API mt_status mt__new_file_end(mt__new_file *f, mt_status status);

/* MT_EIO: "cannot WHAT 'PATH': " and the system's words for errno. */
mt_status mt__io_error(const char *what, const char *path);

#ifdef __cplusplus
}
#endif
#endif
