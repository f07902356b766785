/*
 * check_new_file.c - how files take their names: modes and owners, what is no file, a second writer, what a crash
 * leaves. Seen through mt_safetensors_save; where memory or the disk fails: check_safetensors_save.c.
 */
#include "safetensors_fixture.h"
#include "suite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static char target[PATH + 16]; /* of links */

static void make_all(void) {
    make_folder();
    snprintf(target, sizeof target, "%s/target", folder);
}

static void remove_all(void) {
    remove(target);
    remove_folder();
}

/* Where a test looks on while the file is being written. */
typedef void look_fn(void);

static mt_status look(void *user, size_t index, uint64_t offset, const void **out_data,
                      size_t *out_bytes) {
    (void)index;
    (void)offset;
    (*(look_fn **)user)();
    *out_data = "seven b";
    *out_bytes = 7;
    return MT_OK;
}

static mt_status save_as(const char *name, int keep, look_fn *on_look) {
    const int64_t shape[] = {7};
    const mt_safetensors_tensor tensor = {"t", MT_ST_U8, 1, shape, 7, on_look ? NULL : "seven b"};
    mt_safetensors_save_options options = MT_SAFETENSORS_SAVE_OPTIONS_INIT;
    options.keep = keep;
    options.fetch = look;
    options.user = &on_look;
    return mt_safetensors_save(name, &tensor, 1, &options);
}

static mt_status save(void) {
    return save_as(path, 0, NULL);
}

static struct stat info_of(const char *name) {
    struct stat info;
    ck_assert_msg(lstat(name, &info) == 0, "%s: %s", name, strerror(errno));
    return info;
}

static unsigned mode_of(const char *name) {
    return info_of(name).st_mode & 07777;
}

static void ck_holds(const char *name, const char *text) {
    unsigned char data[FILE_MOST];
    size_t bytes = get_file(name, data);
    ck_assert_uint_eq(bytes, strlen(text));
    ck_assert_mem_eq(data, text, bytes);
}

/* A whole file of ours. */
static void ck_saved(void) {
    mt_safetensors *file;
    ck_ok(mt_safetensors_open(path, &file));
    mt_safetensors_free(file);
    ck_assert(!is_there(temporary));
}

/* ---- modes and owners ---------------------------------------------------------------------------- */

TEST_LOOP("modes", a_mode_stays, 6) {
    static const mode_t modes[] = {0600, 0640, 0644, 0660, 0400, 0777};
    put_file(path, "old", 3);
    ck_assert_int_eq(chmod(path, modes[_i]), 0);
    ck_ok(save());
    ck_assert_uint_eq(mode_of(path), modes[_i]);
    ck_ok(save_as(path, 1, NULL));
    ck_assert_uint_eq(mode_of(path), modes[_i]);
    ck_assert_uint_eq(mode_of(previous), modes[_i]);
}

TEST_LOOP("modes", a_new_file_has_the_mode_of_the_umask, 4) {
    static const mode_t masks[] = {022, 027, 077, 0};
    umask(masks[_i]);
    ck_ok(save());
    ck_assert_uint_eq(mode_of(path), 0666 & ~masks[_i]);
}

static void is_private(void) {
    ck_assert_uint_eq(mode_of(temporary), 0600);
}

/* Nobody can open it before it has the mode of the one that it replaces. */
TEST("modes", private_while_it_is_written) {
    umask(0);
    put_file(path, "old", 3);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_ok(save_as(path, 0, is_private));
}

/* Needs root, which alone can give files away. */
TEST("modes", an_owner_stays) {
    if (geteuid() != 0) {
        suite_skip("an_owner_stays", "only root can give a file away");
        return;
    }
    put_file(path, "old", 3);
    ck_assert_int_eq(chown(path, 1234, 4321), 0);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_ok(save());
    ck_assert_uint_eq(info_of(path).st_uid, 1234);
    ck_assert_uint_eq(info_of(path).st_gid, 4321);
    ck_assert_uint_eq(mode_of(path), 0640);
}

/* Its members were to read the file, those of the writer's own group were not. */
TEST("modes", a_group_that_cannot_stay) {
    if (geteuid() != 0) {
        suite_skip("a_group_that_cannot_stay", "only root can be another user");
        return;
    }
    put_file(path, "old", 3);
    ck_assert_int_eq(chown(path, 1234, 4321), 0);
    ck_assert_int_eq(chmod(path, 0664), 0);
    ck_assert_int_eq(chmod(folder, 0777), 0);
    ck_assert_int_eq(setegid(5555), 0);
    ck_assert_int_eq(seteuid(1234), 0);
    mt_status status = save();
    ck_assert_int_eq(seteuid(0), 0);
    ck_ok(status);
    ck_assert_uint_eq(info_of(path).st_gid, 5555);
    ck_assert_uint_eq(mode_of(path), 0644);
}

/* ---- what is no file ------------------------------------------------------------------------------ */

static int make_link(const char *name) {
    put_file(target, "victim", 6);
    return symlink(target, name);
}

static int make_dangling(const char *name) {
    return symlink(target, name);
}

static int make_pipe(const char *name) {
    return mkfifo(name, 0600);
}

static int make_dir(const char *name) {
    return mkdir(name, 0700);
}

/* As /dev/null. */
static int make_device(const char *name) {
    return mknod(name, S_IFCHR | 0666, makedev(1, 3));
}

static const struct {
    int (*make)(const char *name);
    const char *words;
} others[] = {{make_link, "is a symbolic link; accepted: a regular file"},
              {make_dangling, "is a symbolic link"},
              {make_pipe, "is a device, a pipe or a socket"},
              {make_dir, "is a folder"},
              {make_device, "is a device, a pipe or a socket"}};

/* At PATH, at the unfinished file's name, and at PATH.1: refused by name, and as it was. */
TEST_LOOP("names", not_a_file, 3 * LENGTH(others)) {
    const char *names[] = {path, temporary, previous}, *name = names[_i % 3];
    int kind = _i / 3;
    if (others[kind].make(name) != 0) {
        suite_skip("not_a_file", "a device cannot be made here");
        return;
    }
    if (name != path) put_file(path, "old", 3);
    struct stat before = info_of(name);
    ck_refused(save_as(path, 1, NULL), MT_EINVAL, name);
    ck_contains(mt_last_error(), others[kind].words);
    struct stat after = info_of(name);
    ck_assert(before.st_ino == after.st_ino && before.st_mode == after.st_mode);
    if (name != path) ck_holds(path, "old");
    if (name != temporary) ck_assert(!is_there(temporary));
    ck_assert_int_eq(is_there(target), kind == 0);
    if (kind == 0) ck_holds(target, "victim");
    remove(name);
    ck_ok(save_as(path, 1, NULL));
}

/* Without a mknod of one's own: refused without harm. */
TEST("names", the_null_device) {
    struct stat before = info_of("/dev/null");
    ck_refused(save_as("/dev/null", 0, NULL), MT_EINVAL, "'/dev/null' is a device");
    struct stat after = info_of("/dev/null");
    ck_assert(S_ISCHR(after.st_mode) && before.st_ino == after.st_ino);
}

TEST("names", a_users_own_file_beside_it) {
    snprintf(target, sizeof target, "%s/t.tmp", folder);
    put_file(target, "mine", 4);
    ck_ok(save());
    ck_holds(target, "mine");
}

/* ---- two writers, and crashes --------------------------------------------------------------------- */

static void cannot_begin(void) {
    ck_refused(save(), MT_EIO, "it is being written by another process");
    ck_assert(is_there(temporary));
}

TEST("writers", a_second_writer) {
    put_file(path, "old", 3);
    ck_ok(save_as(path, 0, cannot_begin));
    ck_saved();
    ck_ok(save());
}

static void take_away(void) {
    ck_assert_int_eq(remove(temporary), 0);
    put_file(temporary, "another's", 9);
}

/* Where there are no locks, another writer may take it for what a crash has left. */
TEST("writers", taken_away) {
    put_file(path, "old", 3);
    ck_refused(save_as(path, 1, take_away), MT_EIO, "it is being written by another process");
    ck_holds(path, "old");
    ck_holds(temporary, "another's");
    ck_assert(!is_there(previous));
}

static void crash(void) {
    _exit(42);
}

TEST("writers", a_crash_while_it_is_written) {
    int status;
    put_file(path, "old", 3);
    pid_t child = fork();
    if (child == 0) _exit(save_as(path, 1, crash) == MT_OK ? 1 : 2);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 42);
    ck_holds(path, "old");
    ck_assert(is_there(temporary) && !is_there(previous));
    ck_ok(save());
    ck_saved();
}

/* A second name of what is left keeps its bytes. */
TEST("writers", what_is_left_has_another_name) {
    put_file(temporary, "left", 4);
    ck_assert_int_eq(link(temporary, target), 0);
    ck_ok(save());
    ck_holds(target, "left");
    ck_saved();
}

static void is_closed_by_exec(void) {
    struct stat wanted = info_of(temporary), info;
    int found = 0;
    for (int file = 3; file < 256; file++) {
        if (fstat(file, &info) != 0 || info.st_ino != wanted.st_ino) continue;
        found++;
        ck_assert(fcntl(file, F_GETFD) & FD_CLOEXEC);
    }
    ck_assert_int_eq(found, 1);
}

TEST("writers", no_descriptor_for_children) {
    ck_ok(save_as(path, 0, is_closed_by_exec));
}

int main(void) {
    tcase_add_checked_fixture(suite_case_named("modes"), make_all, remove_all);
    tcase_add_checked_fixture(suite_case_named("names"), make_all, remove_all);
    tcase_add_checked_fixture(suite_case_named("writers"), make_all, remove_all);
    return suite_run_named("new_file");
}
