/*
 * interrupt.h - Ctrl-C as a question that the training loop asks between two steps.
 */
#ifndef EX_INTERRUPT_H
#define EX_INTERRUPT_H

/* From now on the first Ctrl-C is only remembered; a second one ends the program at once. */
void ex_interrupt_catch(void);

/* 1 after the first Ctrl-C. */
int ex_interrupted(void);

#endif
