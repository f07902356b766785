/*
 * interrupt.c - remembers Ctrl-C and SIGTERM; see interrupt.h.
 */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

static const int caught[] = {SIGINT, SIGTERM};

enum { CAUGHT = sizeof caught / sizeof caught[0] };

static volatile sig_atomic_t interrupted;

static void handle_by(void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (int i = 0; i < CAUGHT; i++) sigaction(caught[i], &action, NULL);
}

static void on_interrupt(int signal_number) {
    interrupted = signal_number;
    handle_by(SIG_DFL); /* the next one has its usual effect, whichever it is */
}

void ex_interrupt_catch(void) {
    handle_by(on_interrupt);
}

int ex_interrupted(void) {
    return interrupted;
}

const char *ex_interrupt_name(int signal_number) {
    return signal_number == SIGTERM ? "SIGTERM" : "Ctrl-C";
}
