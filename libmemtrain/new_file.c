/*
 * new_file.c - the one way in which this library writes files: see new_file.h. What is in them: safetensors_save.c,
 * and shim/model/script_file.cpp.
 */
#define _POSIX_C_SOURCE 200809L
#ifdef __APPLE__
#define _DARWIN_C_SOURCE /* F_FULLFSYNC, flock */
#endif

#include "new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

enum { PIECE = 1 << 30, LOCK_TRIES = 8 };

mt_status mt__io_error(const char *what, const char *path) {
    char words[128] = "?";
    if (strerror_r(errno, words, sizeof words) != 0) snprintf(words, sizeof words, "%d", errno);
    return mt_set_error(MT_EIO, "cannot %s '%.200s': %s", what, path, words);
}

/* ---- names ------------------------------------------------------------------------------------- */

static char *join(const char *path, const char *end) {
    size_t length = strlen(path), more = strlen(end) + 1;
    char *text = mt__alloc(mt__add(length, more), 1);
    if (!text) return NULL;
    memcpy(text, path, length);
    memcpy(text + length, end, more);
    return text;
}

static mt_status make_names(mt__new_file *f) {
    const char *slash = strrchr(f->path, '/');
    f->unfinished = join(f->path, MT__UNFINISHED);
    f->previous = join(f->path, ".1");
    f->folder = join(slash ? f->path : ".", "");
    if (!f->unfinished || !f->previous || !f->folder)
        return mt_set_error(MT_ENOMEM, "%s: out of host memory", f->function);
    if (slash) f->folder[slash == f->path ? 1 : slash - f->path] = '\0';
    return MT_OK;
}

/* /dev/null is not to be replaced, nor a link by a file that nobody looks for there. */
static mt_status check_name(const mt__new_file *f, const char *name, struct stat *info,
                            int *out_there) {
    *out_there = lstat(name, info) == 0;
    if (!*out_there) return errno == ENOENT ? MT_OK : mt__io_error("write", name);
    MT__CHECK(S_ISREG(info->st_mode),
              "%s: '%.200s' is %s; accepted: a regular file, or a name that is free", f->function,
              name,
              S_ISLNK(info->st_mode)   ? "a symbolic link"
              : S_ISDIR(info->st_mode) ? "a folder"
                                       : "a device, a pipe or a socket");
    return MT_OK;
}

static mt_status check_names(mt__new_file *f) {
    struct stat info, unused;
    int there;
    mt_status status = check_name(f, f->path, &info, &f->replaces);
    if (status != MT_OK || !f->replaces) return status;
    f->mode = (unsigned)info.st_mode & 0777;
    f->user = info.st_uid;
    f->group = info.st_gid;
    return f->keep ? check_name(f, f->previous, &unused, &there) : MT_OK;
}

/* ---- one writer -------------------------------------------------------------------------------- */

/* Whether the file that is open still has the name: another process may have renamed or removed it. */
static int has_name(const mt__new_file *f, int file) {
    struct stat open_one, named;
    return fstat(file, &open_one) == 0 && lstat(f->unfinished, &named) == 0 &&
           open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

/* A file system without locks has no other writer to tell of. */
static int lock(const mt__new_file *f, int file, int *out_busy) {
    *out_busy = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    return !*out_busy && has_name(f, file);
}

static mt_status busy(const mt__new_file *f) {
    return mt_set_error(MT_EIO, "cannot write '%.200s': it is being written by another process",
                        f->path);
}

/* A crash has left a file that nobody has locked. It is removed, so that a second name of it stays as it is. */
static mt_status remove_left(const mt__new_file *f, int *out_busy) {
    struct stat info;
    int there;
    mt_status status = check_name(f, f->unfinished, &info, &there);
    if (status != MT_OK || !there) return status;
    int file = open(f->unfinished, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return errno == ENOENT ? MT_OK : mt__io_error("write", f->unfinished);
    if (lock(f, file, out_busy) && unlink(f->unfinished) != 0)
        status = mt__io_error("remove", f->unfinished);
    close(file);
    return status;
}

/* Others may read the file when it has the mode of the one that it replaces, not before. */
static mt_status open_unfinished(mt__new_file *f) {
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, is_busy = 0;
    for (int i = 0; i < LOCK_TRIES && !is_busy; i++) {
        f->file = open(f->unfinished, flags, f->replaces ? 0600 : 0666);
        if (f->file >= 0) {
            if (lock(f, f->file, &is_busy)) return MT_OK;
            close(f->file);
            f->file = -1;
            continue;
        }
        if (errno != EEXIST) return mt__io_error("create", f->unfinished);
        mt_status status = remove_left(f, &is_busy);
        if (status != MT_OK) return status;
    }
    return busy(f);
}

static void free_names(mt__new_file *f) {
    mt__free(f->unfinished);
    mt__free(f->previous);
    mt__free(f->folder);
}

mt_status mt__new_file_open(mt__new_file *f, const char *function, const char *path, int keep) {
    *f = (mt__new_file){.function = function, .path = path, .file = -1, .keep = keep};
    mt_status status = make_names(f);
    if (status == MT_OK) status = check_names(f);
    if (status == MT_OK) status = open_unfinished(f);
    if (status != MT_OK) free_names(f);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------------- */

mt_status mt__new_file_write(const mt__new_file *f, const void *data, size_t bytes) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = write(f->file, from, mt__min(bytes, PIECE));
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = ENOSPC; /* nothing was written, and nobody says why */
        if (n <= 0) return mt__io_error("write", f->unfinished);
        from += n;
        bytes -= (size_t)n;
    }
    return MT_OK;
}

/*
 * Where the group cannot be kept, the other one gets what everybody gets. Some file systems have neither owners
 * nor modes; what they refuse leaves the file private.
 */
static void keep_mode(const mt__new_file *f) {
    unsigned mode = f->mode;
    if (!f->replaces) return;
    if (fchown(f->file, (uid_t)-1, f->group) != 0) mode = (mode & ~070u) | (mode & 07) << 3;
    (void)!fchown(f->file, f->user, (gid_t)-1);
    (void)!fchmod(f->file, (mode_t)mode);
}

/* On a Mac fsync leaves the data in the drive's own cache. */
static mt_status synchronize(const mt__new_file *f) {
#ifdef F_FULLFSYNC
    if (fcntl(f->file, F_FULLFSYNC) == 0) return MT_OK;
#endif
    return fsync(f->file) == 0 ? MT_OK : mt__io_error("write", f->unfinished);
}

/* ---- the name ---------------------------------------------------------------------------------- */

/* A second name is the way in which PATH is a whole file at every moment. */
static mt_status keep_previous(const mt__new_file *f) {
    if (!f->keep || access(f->path, F_OK) != 0) return MT_OK;
    if (unlink(f->previous) != 0 && errno != ENOENT) return mt__io_error("replace", f->previous);
    if (link(f->path, f->previous) == 0 || rename(f->path, f->previous) == 0) return MT_OK;
    return mt__io_error("write", f->previous);
}

/* The names are in the folder: they too have to reach the disk. Not every file system can be asked. */
static mt_status synchronize_folder(const mt__new_file *f) {
    int folder = open(f->folder, O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    if (folder < 0) return MT_OK;
    int failed = fsync(folder) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EBADF;
    mt_status status = failed ? mt__io_error("synchronise the folder of", f->path) : MT_OK;
    close(folder);
    return status;
}

static mt_status take_name(const mt__new_file *f) {
    mt_status status = has_name(f, f->file) ? keep_previous(f) : busy(f);
    if (status != MT_OK) return status;
    if (rename(f->unfinished, f->path) == 0) return MT_OK;
    status = mt__io_error("write", f->path);
    if (f->keep && access(f->path, F_OK) != 0 && rename(f->previous, f->path) != 0)
        mt_log(MT_LOG_WARNING, "the file that was '%.200s' is now '%.200s'", f->path, f->previous);
    return status;
}

/* Closed last: until then the lock keeps others from the unfinished file. */
mt_status mt__new_file_end(mt__new_file *f, mt_status status) {
    if (status == MT_OK) {
        keep_mode(f);
        status = synchronize(f);
    }
    if (status == MT_OK) status = take_name(f);
    if (status != MT_OK && has_name(f, f->file)) unlink(f->unfinished);
    close(f->file);
    if (status == MT_OK) status = synchronize_folder(f);
    free_names(f);
    return status;
}
