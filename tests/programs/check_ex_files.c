/*
 * check_ex_files.c - two flags that mean one file, however that is spelled: refused before anything is opened.
 */
#include "files.h"
#include "cli.h"

#include <sys/stat.h>
#include <unistd.h>

typedef struct given {
    const char *read, *resume, *save, *weights, *trace, *report;
} given;

static const ex_option rows[] = {
    {.section = "Files"},
    EX_FLAG("read", EX_TEXT, given, read, "FILE", "read", .file = EX_FILE_READ),
    EX_FLAG("resume", EX_TEXT, given, resume, "FILE", "read first", .file = EX_FILE_RESUMED),
    EX_FLAG("save", EX_TEXT, given, save, "FILE", "written", .file = EX_FILE_SAVED),
    EX_FLAG("weights", EX_TEXT, given, weights, "FILE", "written once", .file = EX_FILE_REPLACED),
    EX_FLAG("trace", EX_TEXT, given, trace, "FILE", "written", .file = EX_FILE_WRITTEN),
    EX_FLAG("report", EX_TEXT, given, report, "FILE", "written", .file = EX_FILE_WRITTEN),
};

/* A folder of its own, in which "there" is a file with two more names and "in" a folder. */
static void set_up(void) {
    ck_assert_int_eq(chdir(cli_root), 0);
    cli_write_file("there", "");
    ck_assert_int_eq(mkdir("in", 0700), 0);
    ck_assert_int_eq(link("there", "hard"), 0);
    ck_assert_int_eq(symlink("there", "soft"), 0);
    ck_assert_int_eq(symlink("../made", "in/dangling"), 0);
    ck_assert_int_eq(symlink("in", "folder"), 0);
}

static int check(given files, int processes, ex_error *error) {
    const ex_table tables[] = {{rows, EX_ROWS(rows), &files}, {NULL, 0, NULL}};
    error->text[0] = '\0';
    return ex_files_check("cat", tables, processes, error);
}

/* What is refused: the two flags, and what is said of them. */
static const struct {
    given files;
    int processes;
    const char *words;
} clashes[] = {
    {{.resume = "there", .trace = "there"},
     1,
     "cat: --trace: 'there' is not accepted; accepted: "
     "another file than that of --resume"},
    {{.resume = "there", .trace = "./there"},
     1,
     "--trace: './there' is not accepted; accepted: "
     "another file than that of --resume, 'there'"},
    {{.resume = "there", .trace = "in/../there"}, 1, "of --resume, 'there'"},
    {{.resume = "hard", .trace = "there"}, 1, "of --resume, 'hard'"},
    {{.read = "soft", .report = "there"}, 1, "--report: 'there'"},
    {{.read = "there", .save = "soft"}, 1, "--save: 'soft'"},
    {{.trace = "new", .report = "./new"}, 1, "--report: './new'"},
    {{.trace = "in/new", .report = "folder/new"}, 1, "of --trace, 'in/new'"},
    {{.trace = "made", .report = "in/dangling"}, 1, "of --trace, 'made'"},
    {{.save = "run", .trace = "run.1"}, 1, "another file than that of --save, 'run.1'"},
    {{.save = "run", .trace = "./run.best"}, 1, "of --save, 'run.best'"},
    {{.save = "run", .report = "run.memtrain-tmp"}, 1, "--report: 'run.memtrain-tmp'"},
    {{.save = "run", .report = "run.best.1"}, 1, "--report: 'run.best.1'"},
    {{.save = "run", .report = "run.best.memtrain-tmp"}, 1, "--report: 'run.best.memtrain-tmp'"},
    {{.trace = "run", .weights = "run"}, 1, "--trace: 'run'"},
    {{.save = "run", .weights = "run"}, 1, "--weights: 'run'"},
    {{.save = "run.memtrain-tmp", .weights = "run"}, 1, "--weights: 'run.memtrain-tmp'"},
    {{.read = "there", .weights = "there"}, 1, "--weights: 'there'"},
    {{.save = "run", .trace = "run.rank1"}, 2, "--trace: 'run.rank1'"},
    {{.save = "run", .trace = "run.rank3.best"}, 4, "of --save, 'run.rank3.best'"},
    {{.trace = "t", .report = "t.rank1"}, 2, "--report: 't.rank1'"},
};

TEST_LOOP("files", one_file_is_refused, LENGTH(clashes)) {
    ex_error error;
    ck_assert_int_eq(check(clashes[_i].files, clashes[_i].processes, &error), -1);
    ck_contains(error.text, clashes[_i].words);
    ck_assert_ptr_null(strchr(error.text, '\n'));
}

static const struct {
    given files;
    int processes;
} apart[] = {
    {{NULL}, 1},
    {{.read = "there"}, 64},
    {{.resume = "there", .save = "there"}, 1},
    {{.resume = "there", .save = "./hard"}, 1},
    {{.resume = "run.1", .save = "run"}, 1},
    {{.resume = "there", .read = "there"}, 1},
    {{.save = "run", .trace = "run.jsonl", .report = "run.html", .weights = "run.safetensors"}, 1},
    {{.trace = "in/new", .report = "new"}, 1},
    {{.save = "run", .trace = "run.rank1"}, 1},
    {{.save = "run", .trace = "run.rank2"}, 2},
    {{.save = "run", .trace = "trace", .report = "report", .resume = "run"}, 64},
    {{.trace = "/dev/null", .report = "/dev/null"}, 2},
    {{.trace = "nowhere/t", .report = "nowhere/t"}, 1}, /* told of when it is opened */
};

TEST_LOOP("files", others_are_accepted, LENGTH(apart)) {
    ex_error error;
    int status = check(apart[_i].files, apart[_i].processes, &error);
    ck_assert_msg(status == 0, "%s", error.text);
}

int main(void) {
    tcase_add_checked_fixture(cli_folder_case("files"), set_up, NULL);
    return suite_run_named("ex_files");
}
