/*
 * process.hpp - one side of a comparison in a process of its own, since a heap remembers what it has
 * served. It does a piece of work for each byte that comes in and answers with a line.
 */
#ifndef BENCH_PROCESS_HPP
#define BENCH_PROCESS_HPP

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace bench {

[[noreturn]] inline void give_up(const char *what) {
    std::perror(what);
    std::exit(1);
}

class Process {
public:
    /* Starts this program anew with other arguments. */
    explicit Process(std::vector<std::string> words) {
        int in[2], out[2];
        std::vector<char *> argv;
        for (std::string &word : words) argv.push_back(&word[0]);
        argv.push_back(nullptr);
        if (pipe(in) || pipe(out)) give_up("pipe");
        pid_ = fork();
        if (pid_ < 0) give_up("fork");
        if (pid_ == 0) {
            dup2(in[0], STDIN_FILENO);
            dup2(out[1], STDOUT_FILENO);
            for (int fd = 3; fd < 256; fd++) close(fd); /* ends of the other sides' pipes */
            execv(argv[0], argv.data());
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        to_ = in[1];
        from_ = fdopen(out[0], "r");
    }
    ~Process() {
        if (to_ >= 0) finish();
    }
    Process(const Process &) = delete;
    Process &operator=(const Process &) = delete;

    /* Has it do one piece of work; its line. */
    std::string step() {
        if (write(to_, "s", 1) != 1) give_up("a side has ended early");
        return line();
    }

    /* Has it end; its last line. */
    std::string finish() {
        std::string last;
        if (end(&last)) give_up("a side has failed");
        return last;
    }

    /* The same, as waitpid tells how it has ended; *last stays where it said nothing. */
    int end(std::string *last) {
        int status;
        char text[512];
        close(to_);
        to_ = -1;
        while (std::fgets(text, sizeof text, from_)) *last = text;
        std::fclose(from_);
        if (waitpid(pid_, &status, 0) != pid_) give_up("waitpid");
        return status;
    }

private:
    std::string line() {
        char text[512];
        if (!std::fgets(text, sizeof text, from_)) give_up("a side has ended early");
        return text;
    }

    pid_t pid_;
    int to_;
    FILE *from_;
};

/* In the child: whether another piece of work is asked for. */
inline bool asked() {
    char byte;
    return read(STDIN_FILENO, &byte, 1) == 1;
}

/* The answer to it. */
template <class... Values> void answer(const char *format, Values... values) {
    std::printf(format, values...);
    std::printf("\n");
    std::fflush(stdout);
}

} // namespace bench
#endif
