/*
 * files.h - the files that a command line names: no two flags may have one, where either of them writes it.
 *
 * All that a run is going to write is known from its flags before anything is opened: rows of the tables say what
 * becomes of the file that they name (ex_file_use in options.h).
 */
#ifndef EX_FILES_H
#define EX_FILES_H

#include "options.h"

/*
 * Looks for two flags that mean one file. Files are compared as the system knows them (device and inode), so that
 * links and other spellings of a path are seen; one that is not there yet is compared by its folder and its name.
 * Names that come with a file count as well: --save FILE also writes FILE.1, FILE.best and FILE.memtrain-tmp, and each of
 * several processes has files of its own.
 * @param program    name that the error line begins with
 * @param tables     the list ends with a NULL row; targets are read
 * @param processes  how many take part, at least 1
 * @return 0; -1 with a line in error that names both flags
 */
int ex_files_check(const char *program, const ex_table *tables, int processes, ex_error *error);

#endif
