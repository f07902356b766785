/*
 * writable.c - see writable.h.
 */
#include "writable.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

mt_status ex_check_writable(const char *flag, const char *path) {
    char folder[4096];
    struct stat there;
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (!path) return MT_OK;
    int is_there = lstat(path, &there) == 0;
    if (is_there && S_ISLNK(there.st_mode))
        return mt_set_error(MT_EINVAL,
                            "%s: '%s' is a symbolic link; accepted: a regular file, or a name that "
                            "is free",
                            flag, path);
    if (is_there && !S_ISREG(there.st_mode))
        return mt_set_error(MT_EINVAL, "%s: '%s' is there and is not a regular file", flag, path);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    if (access(folder, W_OK) == 0) return MT_OK;
    return mt_set_error(MT_EINVAL, "%s: cannot write '%s': %s", flag, path, strerror(errno));
}
