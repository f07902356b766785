/*
 * interrupt.h - signals that end a run, as a question that the training loop asks between two steps.
 */
#ifndef EX_INTERRUPT_H
#define EX_INTERRUPT_H

/*
 * From now on the first SIGINT (Ctrl-C), SIGTERM (kill, timeout, a batch system) or SIGHUP (the terminal has gone) is
 * only remembered. A second SIGINT or SIGTERM ends the program at once; a second SIGHUP does not, since the system
 * and the shell send one each. A signal that is ignored now stays ignored: nohup and background jobs of a
 * script mean that.
 */
void ex_interrupt_catch(void);

/*
 * From now on a write into a pipe that nobody reads fails, as any other write that fails: a trace says so in a warning,
 * standard output at the end. Without this the first such write would end the run, unsaved.
 */
void ex_interrupt_no_pipe(void);

/* The number of the signal that came first; 0: none. */
int ex_interrupted(void);

/* "Ctrl-C", "SIGTERM" or "SIGHUP". */
const char *ex_interrupt_name(int signal_number);

#endif
