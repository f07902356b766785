/*
 * html_file.h - the file of a report, which is written anew as a run goes on. The one before stays until the new one is
 * whole. A link is refused. Names below /dev/ and pipes are written to instead.
 */
#ifndef EX_HTML_FILE_H
#define EX_HTML_FILE_H

#include "html_page.h"

#include <memtrain/status.h>

typedef struct ex_html_file ex_html_file;

/*
 * Writes nothing yet to a file. A name that ends in ".svg" gets the plots alone.
 * @param flag  that names it in error lines, "--report"; borrowed
 * @param out   new reference: close with ex_html_file_close
 * @return MT_OK; MT_EINVAL (a link, a folder, or not to be written); MT_ENOMEM
 */
MT_NODISCARD mt_status ex_html_file_open(const char *flag, const char *path, ex_html_file **out);

/* Whether pages follow one another there; whether there is room for one alone, in a pipe or on standard output. */
int ex_html_file_is_stream(const ex_html_file *file);
int ex_html_file_takes_one(const ex_html_file *file);

/* @return MT_OK; MT_EIO; MT_ENOMEM. The arguments are those of ex_html_page. */
MT_NODISCARD mt_status ex_html_file_write(ex_html_file *file, ex_html_run *const *runs,
                                          size_t count, int refresh);

/* NULL is a no-op. @return MT_OK; MT_EIO */
mt_status ex_html_file_close(ex_html_file *file);

#endif
