/*
 * interrupt.h - Ctrl-C and SIGTERM as a question that the training loop asks between two steps.
 */
#ifndef EX_INTERRUPT_H
#define EX_INTERRUPT_H

/*
 * From now on the first SIGINT (Ctrl-C) or SIGTERM (kill, timeout, a batch system) is only
 * remembered; a second one of either kind ends the program at once.
 */
void ex_interrupt_catch(void);

/* The number of the signal that came first; 0: none. */
int ex_interrupted(void);

/* "Ctrl-C" or "SIGTERM". */
const char *ex_interrupt_name(int signal_number);

#endif
