/*
 * interrupt.c - remembers Ctrl-C; see interrupt.h.
 */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    interrupted = 1;
}

void ex_interrupt_catch(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART | SA_RESETHAND; /* the second one has its usual effect */
    sigaction(SIGINT, &action, NULL);
}

int ex_interrupted(void) {
    return interrupted != 0;
}
