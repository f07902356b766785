/*
 * interrupt.c - remembers Ctrl-C, SIGTERM and SIGHUP; see interrupt.h.
 */
#include "interrupt.h"

#include <signal.h>
#include <string.h>

/* Those that end the program when they come again are first. */
static const int caught[] = {SIGINT, SIGTERM, SIGHUP};

enum { ENDING = 2, CAUGHT = sizeof caught / sizeof caught[0] };

static volatile sig_atomic_t interrupted;

/* What is ignored stays so. */
static void handle_by(void (*handler)(int), int count) {
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    for (int i = 0; i < count; i++)
        if (sigaction(caught[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(caught[i], &action, NULL);
}

static void on_interrupt(int signal_number) {
    if (!interrupted) interrupted = signal_number;
    handle_by(SIG_DFL, ENDING);
}

void ex_interrupt_catch(void) {
    handle_by(on_interrupt, CAUGHT);
}

void ex_interrupt_no_pipe(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

int ex_interrupted(void) {
    return interrupted;
}

const char *ex_interrupt_name(int signal_number) {
    return signal_number == SIGTERM ? "SIGTERM" : signal_number == SIGHUP ? "SIGHUP" : "Ctrl-C";
}
