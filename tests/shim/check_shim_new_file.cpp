/*
 * check_shim_new_file.cpp - all that writes files here does it in one way: on the disk before it takes its name, with
 * the mode of the file that had it, and never in the place of a link or a device. Why: check_new_file.c.
 */
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "script_subject.hpp"

using namespace script_subject;

/* ---- calls to the system, in their order -------------------------------------------------------------- */

namespace {
std::string calls;
}

/* They stand in the place of the C library's. */
extern "C" int fsync(int file) {
    calls += "fsync ";
    return fdatasync(file);
}

extern "C" int rename(const char *from, const char *to) noexcept {
    calls += "rename ";
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

namespace {

/* ---- the three functions that write ------------------------------------------------------------------- */

mt_status save_state(const Run &run, const char *path) {
    return mt_torch_save(run.torch, path, nullptr);
}

mt_status save_weights(const Run &run, const char *path) {
    return mt_model_save_weights(run.model, path);
}

mt_status save_script(const Run &run, const char *path) {
    return mt_script_save(run.model, path);
}

struct Writer {
    const char *name;
    mt_status (*save)(const Run &run, const char *path);
};
const Writer writers[] = {{"mt_torch_save", save_state},
                          {"mt_model_save_weights", save_weights},
                          {"mt_script_save", save_script}};
enum { WRITERS = LENGTH(writers) };

struct Subject {
    Folder folder;
    std::string net, path, unfinished;
    Run run;
    Subject()
        : net((prepare(), saved_net(folder))), path(folder.file("b.pt")),
          unfinished(path + ".memtrain-tmp"), run(loaded(net)) {}
};

mode_t mode_of(const std::string &path) {
    struct stat info;
    ck_assert_int_eq(lstat(path.c_str(), &info), 0);
    return info.st_mode;
}

TEST_LOOP("writers", on_the_disk_before_its_name, WRITERS) {
    Subject s;
    calls.clear();
    ck_ok(writers[_i].save(s.run, s.path.c_str()));
    ck_assert_str_eq(calls.c_str(), "fsync rename fsync ");
    ck_assert_uint_gt(bytes_of(s.path).size(), 500);
}

TEST_LOOP("writers", a_mode_stays, 2 * WRITERS) {
    Subject s;
    const Writer &writer = writers[_i / 2];
    mode_t mode = _i % 2 ? 0640 : 0600;
    write_bytes(s.path, "old");
    ck_assert_int_eq(chmod(s.path.c_str(), mode), 0);
    ck_ok(writer.save(s.run, s.path.c_str()));
    ck_assert_uint_eq(mode_of(s.path) & 07777, mode);
}

/* Whatever has the name of the file or of the unfinished one is as it was. */
void refused(const Subject &s, const Writer &writer, const std::string &name, const char *words) {
    mode_t before = mode_of(name);
    ck_refused(writer.save(s.run, s.path.c_str()), MT_EINVAL, name.c_str());
    ck_contains(mt_last_error(), words);
    ck_assert_uint_eq(mode_of(name), before);
    ck_assert_int_eq(unlink(name.c_str()), 0);
    ck_ok(writer.save(s.run, s.path.c_str()));
}

TEST_LOOP("writers", a_link, 2 * WRITERS) {
    Subject s;
    std::string name = _i % 2 ? s.path : s.unfinished, victim = bytes_of(s.net);
    ck_assert_int_eq(symlink(s.net.c_str(), name.c_str()), 0);
    refused(s, writers[_i / 2], name, "is a symbolic link");
    ck_assert(bytes_of(s.net) == victim);
}

/* Made as /dev/null is, where that is allowed; a pipe is refused in the same words. */
TEST_LOOP("writers", a_device, 2 * WRITERS) {
    Subject s;
    std::string name = _i % 2 ? s.path : s.unfinished;
    if (mknod(name.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0)
        ck_assert_int_eq(mkfifo(name.c_str(), 0666), 0);
    refused(s, writers[_i / 2], name, "is a device, a pipe or a socket");
}

TEST_LOOP("writers", a_second_writer, WRITERS) {
    Subject s;
    write_bytes(s.unfinished, "being written");
    int other = open(s.unfinished.c_str(), O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(other, LOCK_EX), 0);
    ck_refused(writers[_i].save(s.run, s.path.c_str()), MT_EIO,
               "it is being written by another process");
    ck_assert(bytes_of(s.unfinished) == "being written");
    ck_assert_int_ne(access(s.path.c_str(), F_OK), 0);
    close(other);
    ck_ok(writers[_i].save(s.run, s.path.c_str()));
}

TEST_LOOP("writers", a_users_own_file, WRITERS) {
    Subject s;
    std::string mine = s.path + ".tmp";
    write_bytes(mine, "mine");
    ck_ok(writers[_i].save(s.run, s.path.c_str()));
    ck_assert(bytes_of(mine) == "mine");
    ck_assert_int_eq(unlink(mine.c_str()), 0);
}

} // namespace

SUITE("shim_new_file")
