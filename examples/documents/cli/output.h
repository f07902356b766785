/*
 * output.h - standard output is a result too: whether all of it was written.
 */
#ifndef EX_OUTPUT_H
#define EX_OUTPUT_H

/*
 * To be called when everything has been printed. A disk that is full takes the lines of a run and
 * says nothing.
 * @return 1; 0 after one line on standard error when something could not be written
 */
int ex_output_end(const char *program);

#endif
