/*
 * check_safetensors_save.c - files of tensors where memory or the disk fails: the old file stays or the new
 * one is whole, and which names are kept. What is in them: check_safetensors.c.
 */
#include "counting_allocator.h"
#include "safetensors_fixture.h"
#include "suite.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- a system that fails ------------------------------------------------------------------------- */

/*
 * The calls of the library to the system, counted; the n-th fails with error, or, for one that writes,
 * does half of its work where error is 0. They stand in the place of the C library's.
 */
static struct {
    size_t calls, fail_at;
    int error;
    const char *failed; /* which one */
    char seen[16];      /* their first letters, in their order; many of one kind are one */
    int sparse;         /* 1 MiB and more are neither written nor read, but counted: */
    size_t pieces, bytes, largest;
} disk;

static void note(const char *which) {
    size_t length = strlen(disk.seen);
    if (length && disk.seen[length - 1] == *which) return;
    if (length + 1 < sizeof disk.seen) disk.seen[length] = *which;
}

static int disk_fails(const char *which) {
    if (!disk.fail_at) return 0;
    note(which);
    if (++disk.calls != disk.fail_at) return 0;
    disk.failed = which;
    errno = disk.error;
    return 1;
}

/* Whether the piece is one that only counts. */
static int is_sparse(size_t bytes) {
    if (!disk.sparse || bytes < 1 << 20) return 0;
    disk.pieces++;
    disk.bytes += bytes;
    if (bytes > disk.largest) disk.largest = bytes;
    return 1;
}

ssize_t write(int file, const void *data, size_t bytes) {
    if (is_sparse(bytes)) return lseek(file, (off_t)bytes, SEEK_CUR) < 0 ? -1 : (ssize_t)bytes;
    int fails = disk_fails("write");
    if (fails && disk.error) return -1;
    struct iovec piece = {(void *)data, fails ? (bytes + 1) / 2 : bytes};
    return writev(file, &piece, 1);
}

ssize_t pread(int file, void *data, size_t bytes, off_t at) {
    if (is_sparse(bytes)) return (ssize_t)bytes;
    int fails = disk_fails("pread");
    if (fails && disk.error) return -1;
    struct iovec piece = {data, fails ? (bytes + 1) / 2 : bytes};
    return preadv(file, &piece, 1, at);
}

int fsync(int file) {
    if (disk_fails("fsync") && disk.error) return -1;
#ifdef F_FULLFSYNC
    return fcntl(file, F_FULLFSYNC);
#else
    return fdatasync(file);
#endif
}

int rename(const char *from, const char *to) {
    return disk_fails("rename") && disk.error ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int link(const char *from, const char *to) {
    return disk_fails("link") && disk.error ? -1 : linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

static void disk_fail_at(size_t n, int error) {
    disk.calls = 0;
    disk.fail_at = n;
    disk.error = error;
    disk.failed = NULL;
    memset(disk.seen, 0, sizeof disk.seen);
}

/* ---- memory and disks that fail ------------------------------------------------------------------- */

/* Another file than put_small's, under the same name. */
static mt_status save_other(int keep) {
    static content c;
    mt_safetensors_save_options options = with_texts();
    make_content(&c);
    options.keep = keep;
    return mt_safetensors_save(path, c.tensors, MANY, &options);
}

static void still_there(const unsigned char *data, size_t bytes) {
    unsigned char now[FILE_MOST];
    ck_assert_uint_eq(get_file(path, now), bytes);
    ck_assert_mem_eq(now, data, bytes);
    ck_assert(!is_there(temporary));
}

TEST_LOOP("faults", every_allocation_of_open_fails, 2) {
    mt_safetensors *file;
    size_t n = 1;
    ck_ok(counting_install());
    ck_ok(save_other(0));
    for (;; n++) {
        counting_fail_at(n, _i);
        mt_status status = mt_safetensors_open(path, &file);
        if (!counting_fired()) break;
        ck_assert_int_eq(status, MT_ENOMEM);
        ck_assert_ptr_null(file);
        ck_assert_uint_eq(counting_live(), 0);
    }
    ck_assert_uint_gt(n, 8);
    mt_safetensors_free(file);
    ck_assert_uint_eq(counting_live(), 0);
}

TEST_LOOP("faults", every_allocation_of_save_fails, 2) {
    static unsigned char data[FILE_MOST];
    size_t n = 1;
    ck_ok(counting_install());
    size_t bytes = put_small(data);
    for (;; n++) {
        counting_fail_at(n, _i);
        mt_status status = save_other(1);
        ck_assert_uint_eq(counting_live(), 0);
        if (!counting_fired()) break;
        ck_assert_int_eq(status, MT_ENOMEM);
        still_there(data, bytes);
    }
    ck_assert_uint_gt(n, 5);
    ck_assert(is_there(previous));
}

/* Each call to the system fails in turn: the old file stays, or the new one is complete. */
TEST_LOOP("faults", every_call_of_save_fails, 6) {
    static const int errors[] = {ENOSPC, EIO, EDQUOT};
    static unsigned char data[FILE_MOST];
    size_t bytes = put_small(data), seen = 0;
    for (size_t n = 1;; n++) {
        disk_fail_at(n, errors[_i % 3]);
        mt_status status = save_other(_i / 3);
        const char *failed = disk.failed;
        disk_fail_at(0, 0);
        if (!failed) break;
        mt_safetensors *file;
        ck_assert(!is_there(temporary));
        ck_ok(mt_safetensors_open(path, &file)); /* whichever it is, it is whole */
        size_t count = mt_safetensors_count(file);
        mt_safetensors_free(file);
        seen++;
        if (strcmp(failed, "link") == 0) { /* a second way is taken */
            ck_ok(status);
        } else {
            ck_assert_msg(status == MT_EIO, "%s: %s", failed, mt_status_name(status));
            ck_contains(mt_last_error(), strerror(errors[_i % 3]));
            ck_contains(mt_last_error(), path);
        }
        ck_assert_uint_eq(count, status == MT_OK || strstr(mt_last_error(), "folder") ? MANY : 3);
        put_file(path, data, bytes);
        remove(previous);
    }
    ck_assert_uint_gt(seen, MANY / 2);
}

/* Written, synchronised, the old one kept, renamed, and the folder synchronised: no other order is safe. */
TEST("faults", on_the_disk_before_its_name) {
    ck_ok(save_other(0));
    disk_fail_at(SIZE_MAX, EIO);
    ck_ok(save_other(1));
    ck_assert_str_eq(disk.seen, "wflrf");
    disk_fail_at(0, 0);
}

/* Half of a write, or none because a signal came, is no failure. */
TEST("faults", every_write_is_short) {
    static unsigned char whole[FILE_MOST], now[FILE_MOST];
    ck_ok(save_other(0));
    size_t bytes = get_file(path, whole);
    for (size_t n = 1; n < MANY; n++) {
        disk_fail_at(n, 0);
        ck_ok(save_other(0));
        const char *failed = disk.failed;
        disk_fail_at(0, 0);
        if (!failed || strcmp(failed, "write") != 0) break;
        ck_assert_uint_eq(get_file(path, now), bytes);
        ck_assert_mem_eq(now, whole, bytes);
        disk_fail_at(n, EINTR);
        ck_ok(save_other(0));
        disk_fail_at(0, 0);
    }
}

TEST_LOOP("faults", every_read_fails, 3) {
    static const int errors[] = {EIO, EINTR, 0};
    static unsigned char data[FILE_MOST];
    mt_safetensors *file = NULL;
    put_small(data);
    for (size_t n = 1; n < 8; n++) {
        disk_fail_at(n, errors[_i]);
        mt_status status = mt_safetensors_open(path, &file);
        if (status == MT_OK) status = mt_safetensors_read(file, 0, 0, data, 0);
        if (status == MT_OK) status = mt_safetensors_read(file, 1, 0, data, 120);
        int fails = disk.failed && errors[_i] == EIO;
        disk_fail_at(0, 0);
        ck_status(status, fails ? MT_EIO : MT_OK);
        mt_safetensors_free(file);
    }
}

/* The system's own limit of a file's size, in the place of a disk that is full, at every byte. */
TEST("faults", disk_full_anywhere) {
    static unsigned char data[FILE_MOST], whole[FILE_MOST];
    signal(SIGXFSZ, SIG_IGN);
    ck_ok(save_other(0));
    size_t all = get_file(path, whole), bytes = put_small(data);
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    for (size_t most = 0; most < all; most += most % 64 ? 1 : 63) {
        limit.rlim_cur = most;
        setrlimit(RLIMIT_FSIZE, &limit);
        mt_status status = save_other(1);
        limit.rlim_cur = before;
        setrlimit(RLIMIT_FSIZE, &limit); /* Check writes files too */
        ck_refused(status, MT_EIO, strerror(EFBIG));
        still_there(data, bytes);
        ck_assert(!is_there(previous));
    }
    ck_ok(save_other(1));
    ck_assert_uint_eq(get_file(path, data), all);
}

/* ---- large files ---------------------------------------------------------------------------------- */

/* What some systems do not take in one piece. No page of it is touched. */
TEST("names", more_than_4_gib_at_once) {
    const size_t gib = (size_t)1 << 30, bytes = 4 * gib + gib / 2;
    const int64_t shape[] = {(int64_t)bytes}, few[] = {3};
    mt_safetensors *file;
    mt_safetensors_tensor tensor;
    unsigned char last[3];
    unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        suite_skip("safetensors_save: more_than_4_gib_at_once", "no 4.5 GiB of addresses");
        return;
    }
    const mt_safetensors_tensor tensors[] = {{"a", MT_ST_U8, 1, shape, bytes, data},
                                             {"b", MT_ST_U8, 1, few, 3, "xyz"}};
    disk.sparse = 1;
    ck_ok(mt_safetensors_save(path, tensors, 2, NULL));
    ck_assert_uint_eq(disk.bytes, bytes);
    ck_assert_uint_eq(disk.pieces, 5);
    ck_assert_uint_le(disk.largest, gib);
    ck_ok(mt_safetensors_open(path, &file));
    ck_ok(mt_safetensors_get(file, 0, &tensor));
    ck_assert_uint_eq(tensor.bytes, bytes);
    ck_ok(mt_safetensors_read(file, 1, 0, last, 3));
    ck_assert_mem_eq(last, "xyz", 3);
    ck_ok(mt_safetensors_read(file, 0, bytes - 3, last, 3));
    ck_assert_mem_eq(last, "\0\0\0", 3);
    disk.pieces = disk.bytes = 0;
    ck_ok(mt_safetensors_read(file, 0, 0, data, bytes));
    ck_assert_uint_eq(disk.bytes, bytes);
    ck_assert_uint_eq(disk.pieces, 5);
    mt_safetensors_free(file);
    munmap(data, bytes);
}

/* ---- names ---------------------------------------------------------------------------------------- */

static void save_count(size_t count, int keep) {
    static content c;
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    make_content(&c);
    options.keep = keep;
    ck_ok(mt_safetensors_save(path, c.tensors, count, &options));
}

static size_t count_in(const char *name) {
    mt_safetensors *file;
    ck_ok(mt_safetensors_open(name, &file));
    size_t count = mt_safetensors_count(file);
    mt_safetensors_free(file);
    return count;
}

TEST("names", the_last_two_are_kept) {
    save_count(1, 1);
    ck_assert(!is_there(previous));
    for (size_t count = 2; count < 5; count++) {
        save_count(count, 1);
        ck_assert_uint_eq(count_in(path), count);
        ck_assert_uint_eq(count_in(previous), count - 1);
    }
    save_count(7, 0);
    ck_assert_uint_eq(count_in(path), 7);
    ck_assert_uint_eq(count_in(previous), 3);
    ck_assert(!is_there(temporary));
}

/* What a crash has left is written over; what another process is writing is not touched. */
TEST("names", a_temporary_file_is_there) {
    put_file(temporary, "left by a crash", 15);
    save_count(2, 0);
    ck_assert_uint_eq(count_in(path), 2);
    ck_assert(!is_there(temporary));
    put_file(temporary, "being written", 13);
    int other = open(temporary, O_WRONLY);
    ck_assert_int_eq(flock(other, LOCK_EX), 0);
    ck_refused(save_other(1), MT_EIO, "it is being written by another process");
    unsigned char data[FILE_MOST];
    ck_assert_uint_eq(get_file(temporary, data), 13);
    close(other);
    ck_ok(save_other(1));
}

TEST("names", no_folder) {
    char name[2 * PATH];
    snprintf(name, sizeof name, "%s/none/t", folder);
    ck_refused(mt_safetensors_save(name, NULL, 0, NULL), MT_EIO, strerror(ENOENT));
    ck_assert_int_eq(chdir(folder), 0);
    ck_ok(mt_safetensors_save("t", NULL, 0, NULL));
    ck_assert(is_there(path));
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("faults"), make_folder, remove_folder);
    tcase_add_checked_fixture(suite_case_named("names"), make_folder, remove_folder);
    return suite_run_named("safetensors_save");
}
