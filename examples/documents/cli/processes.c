/*
 * processes.c - starting and meeting other processes, and this one's share; see processes.h.
 */
#include "processes.h"

#include "program_path.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- starting them ----------------------------------------------------------------------------- */

int ex_processes_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0), port = 0;
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0)
        port = ntohs(address.sin_port);
    if (fd >= 0) close(fd);
    return port;
}

static int set_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    return setenv(name, text, 1);
}

static int set_rank(int rank) {
    return set_number("RANK", rank) || set_number("LOCAL_RANK", rank);
}

/* As torchrun tells them. */
static mt_status tell(int count) {
    int port = ex_processes_free_port();
    if (!port || setenv("MASTER_ADDR", "127.0.0.1", 1) || set_number("MASTER_PORT", port) ||
        set_number("WORLD_SIZE", count) || set_number("LOCAL_WORLD_SIZE", count))
        return mt_set_error(MT_EIO, "--processes: they have no way to meet: %s", strerror(errno));
    return MT_OK;
}

int ex_processes_end_with(pid_t parent) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
    /* A parent that has died before is told of by nobody any more: this process has another one by now. */
    return getppid() == parent;
}

static mt_status start(const char *path, char **argv, int rank, pid_t *out) {
    pid_t parent = getpid();
    if (set_rank(rank)) return mt_set_error(MT_ENOMEM, "out of memory for the environment");
    *out = fork();
    if (*out < 0) return mt_set_error(MT_EIO, "--processes: cannot start one: %s", strerror(errno));
    if (*out > 0) return MT_OK;
    if (!ex_processes_end_with(parent))
        _exit(1); /* without the first it has nobody to go on with */
    execv(path, argv);
    _exit(127);
}

/* Before libtorch has threads, which a fork would leave behind. */
static mt_status start_all(int count, char **argv, ex_processes *p) {
    char path[PATH_MAX];
    if (!ex_program_path(argv[0], path, sizeof path))
        return mt_set_error(MT_EIO, "--processes: the program is not found again: '%s'", argv[0]);
    mt_status status = tell(count);
    fflush(NULL);
    for (int rank = 1; rank < count && status == MT_OK; rank++) {
        status = start(path, argv, rank, &p->started[p->started_count]);
        if (status == MT_OK) p->started_count++;
    }
    if (status == MT_OK && set_rank(0)) status = mt_set_error(MT_ENOMEM, "out of memory");
    return status;
}

/* ---- what is each one's own -------------------------------------------------------------------- */

/* A whole number of the environment's; otherwise where it is not set, -1 where it is none. */
static int number_of(const char *name, int otherwise) {
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return otherwise;
    long number = strtol(text, &end, 10);
    return *end || number < 0 || number > 1000000 ? -1 : (int)number;
}

/* Where "run.best", "run.1" or "run.best.1" has ended with "run": --save writes these beside "run". */
static size_t length_of_name(const char *path) {
    size_t length = strlen(path);
    for (;;) {
        if (length > 2 && memcmp(path + length - 2, ".1", 2) == 0)
            length -= 2;
        else if (length > 5 && memcmp(path + length - 5, ".best", 5) == 0)
            length -= 5;
        else
            return length;
    }
}

const char *ex_processes_file(const char *path, int rank, char *text, size_t capacity) {
    if (!path || rank == 0 || strncmp(path, "/dev/", 5) == 0) return path;
    size_t length = length_of_name(path);
    snprintf(text, capacity, "%.*s.rank%d%s", (int)length, path, rank, path + length);
    return text;
}

static const char *own_file(ex_processes *p, int index, const char *path) {
    return ex_processes_file(path, p->group.rank, p->files[index], EX_FILE_CAPACITY);
}

static void take_share(ex_flags *flags, ex_processes *p) {
    flags->processes = p->group.count;
    flags->sharing = number_of("LOCAL_WORLD_SIZE", p->group.count);
    if (flags->sharing > p->group.count) flags->sharing = p->group.count;
    flags->card = number_of("LOCAL_RANK", 0);
    flags->save = own_file(p, 0, flags->save);
    flags->resume = own_file(p, 1, flags->resume);
    flags->trace = own_file(p, 2, flags->trace);
    flags->report = own_file(p, 3, flags->report);
    flags->learned = own_file(p, 4, flags->learned);
    if (p->group.rank == 0) return;
    flags->progress = EX_PROGRESS_OFF;
    if (!freopen("/dev/null", "w", stdout))
        mt_log(MT_LOG_WARNING, "process %d cannot be silenced", p->group.rank);
}

int64_t ex_processes_asked(const ex_flags *flags) {
    int64_t world = number_of("WORLD_SIZE", 1);
    return world > flags->processes ? world : flags->processes;
}

int ex_processes_is_first(void) {
    return number_of("RANK", 0) <= 0;
}

/* torchrun says how many; --processes may say so too. Before anybody waits for anybody. */
static mt_status check(const ex_flags *flags) {
    static const char *const numbers[] = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    int world = number_of("WORLD_SIZE", 0);
    if (ex_processes_asked(flags) == 1) return MT_OK;
    for (size_t i = 0; i < EX_ROWS(numbers); i++)
        if (number_of(numbers[i], (int)i) < (int)i)
            return mt_set_error(MT_EINVAL, "%s is '%s'; accepted: a whole number, at least %zu",
                                numbers[i], getenv(numbers[i]), i);
    if (world && flags->processes > 1 && flags->processes != world)
        return mt_set_error(MT_EINVAL, "--processes: %lld, but WORLD_SIZE is %s",
                            (long long)flags->processes, getenv("WORLD_SIZE"));
    if (flags->replay)
        return mt_set_error(MT_EINVAL, "--replay: not together with several processes, whose "
                                       "chunks are each one's own");
    if (flags->fallback & MT_RUNG_BIT(MT_RUNG_SMALLER_BATCH))
        return mt_set_error(MT_EINVAL, "--fallback: smaller-batch is not for several processes, "
                                       "whose batches keep their size");
    return MT_OK;
}

/* A process that has ended before all have met is one that the others would wait for. */
static void on_end_of_one(int signal_number) {
    static const char line[] =
        "a process that --processes started ended before all have met: see above\n";
    (void)signal_number;
    (void)!write(STDERR_FILENO, line, sizeof line - 1);
    _exit(1);
}

static void when_one_ends(void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_NOCLDSTOP; /* one that is stopped goes on, and has not ended */
    sigaction(SIGCHLD, &action, NULL);
}

mt_status ex_processes_open(ex_flags *flags, char **argv, ex_processes *out) {
    const mt_process_group alone = MT_PROCESS_GROUP_INIT;
    memset(out, 0, sizeof *out);
    out->group = alone;
    mt_status status = check(flags);
    int starts = flags->processes > 1 && number_of("WORLD_SIZE", 0) == 0;
    if (status == MT_OK && starts) when_one_ends(on_end_of_one);
    if (status == MT_OK && starts) status = start_all((int)flags->processes, argv, out);
    if (status == MT_OK) status = mt_process_group_open(NULL, &out->group);
    if (starts) when_one_ends(SIG_DFL);
    if (status == MT_OK && out->group.count > 1) take_share(flags, out);
    return status;
}

/* ---- while they run ----------------------------------------------------------------------------- */

static size_t share_count(const void *self, ex_split split) {
    const ex_processes *p = self;
    size_t all = p->whole.count(p->whole.self, split);
    return split == EX_TRAINING ? all / (size_t)p->group.count : all;
}

static ex_status share_fill(const void *self, ex_split split, uint64_t epoch, size_t first,
                            size_t count, void *const *buffers, ex_error *error) {
    const ex_processes *p = self;
    const ex_source *whole = &p->whole;
    void *places[EX_TENSORS];
    ex_status status = EX_OK;
    if (split != EX_TRAINING)
        return whole->fill(whole->self, split, epoch, first, count, buffers, error);
    for (size_t i = 0; i < count && status == EX_OK; i++) {
        size_t sample = (first + i) * (size_t)p->group.count + (size_t)p->group.rank;
        for (size_t k = 0; k < whole->tensor_count; k++)
            places[k] = (char *)buffers[k] + i * ex_tensor_bytes(&whole->tensors[k]);
        status = whole->fill(whole->self, split, epoch, sample, 1, places, error);
    }
    return status;
}

ex_source ex_processes_share(ex_processes *p, const ex_source *whole) {
    ex_source share = *whole;
    p->whole = *whole;
    if (p->group.count == 1) return share;
    share.self = p;
    share.count = share_count;
    share.fill = share_fill;
    return share;
}

/* Those of interrupt.h; of several that have come the first in this list is told by all. */
static const int shared_signals[] = {SIGINT, SIGTERM, SIGHUP};

enum { SHARED = sizeof shared_signals / sizeof shared_signals[0] };

int ex_processes_signal(const ex_processes *p, int signal_number) {
    double values[SHARED];
    if (p->group.count == 1) return signal_number;
    for (int i = 0; i < SHARED; i++) values[i] = signal_number == shared_signals[i];
    /* Where they are not to be reached the next step says so. */
    if (p->group.sum_doubles(p->group.self, values, SHARED) != MT_OK) return signal_number;
    for (int i = 0; i < SHARED; i++)
        if (values[i] > 0) return shared_signals[i];
    return 0;
}

/* All are x where n times the sum of squares is the square of the sum. */
mt_status ex_processes_same(const ex_processes *p, uint64_t number, const char *what) {
    enum { PIECES = 4 };
    double values[2 * PIECES], n = p->group.count;
    if (p->group.count == 1) return MT_OK;
    for (int i = 0; i < PIECES; i++) {
        values[i] = (double)(number >> (16 * i) & 0xffff);
        values[PIECES + i] = values[i] * values[i];
    }
    mt_status status = p->group.sum_doubles(p->group.self, values, 2 * PIECES);
    for (int i = 0; i < PIECES && status == MT_OK; i++)
        if (n * values[PIECES + i] != values[i] * values[i])
            status = mt_set_error(MT_EINVAL, "the %d processes %s", p->group.count, what);
    return status;
}

/* ---- the end ------------------------------------------------------------------------------------ */

/* Also one that was stopped by a signal, and has saved. */
static int ended_well(int status) {
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) > 128);
}

mt_status ex_processes_close(ex_processes *p) {
    int failed = 0, too_small = 0;
    /* Without this one they have nobody to wait for. */
    for (int i = 0; i < p->started_count && p->group.count == 1; i++) kill(p->started[i], SIGTERM);
    mt_process_group_close(&p->group);
    for (int i = 0; i < p->started_count; i++) {
        int status = 0;
        while (waitpid(p->started[i], &status, 0) < 0 && errno == EINTR) continue;
        failed += !ended_well(status);
        too_small += WIFEXITED(status) && WEXITSTATUS(status) == 3;
    }
    p->started_count = 0;
    if (!failed) return MT_OK;
    return mt_set_error(too_small ? MT_EDEVMEM : MT_EPEER,
                        too_small ? "%d of the processes that --processes started did not fit"
                                  : "%d of the processes that --processes started did not end well",
                        too_small ? too_small : failed);
}
