/*
 * folder.h - the pictures of one folder, for sources that are not class folders (dataset.h).
 */
#ifndef EX_FOLDER_H
#define EX_FOLDER_H

#include "image.h"

/* Takes one of them; another status than EX_OK ends the list. */
typedef ex_status (*ex_folder_fn)(void *user, const char *path, const char *name, ex_error *error);

/*
 * Calls fn with each file whose name ends in ".png", in the byte order of their names, hidden ones left
 * out.
 * A folder that is not there has none.
 * @return EX_OK, or what fn returned; EX_EINPUT where the folder cannot be read, with the system's words; EX_ENOMEM
 */
ex_status ex_folder_pngs(const char *folder, ex_folder_fn fn, void *user, ex_error *error);

/* Whether there is such a folder. @return EX_OK; EX_EINPUT with the system's words */
ex_status ex_folder_check(const char *folder, ex_error *error);

#endif
