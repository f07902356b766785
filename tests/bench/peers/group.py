"""
The programs of python/examples in a control group: a tenth more than the resident peak that trainer.report() foretells after
one epoch. The plain loops meet the same limit.

    group.py [NAME...]    a row for each; STEPS=500 in the environment. Needs root, and a kernel with control groups

A group does not pay for pages of files that others have read first. Those of torch were read before, so what they take in
the process is taken off the limit. Workers of a loader are other processes, so loaders have none here. One thread.
"""
import os
import re
import subprocess
import sys

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../python/examples")
STEPS = int(os.environ.get("STEPS", 500))
MIB = 1 << 20


def first_number(path, word=None):
    """The number behind a word in a file of lines, or the only one; 0: it is not there."""
    try:
        with open(path) as file:
            for line in file:
                words = line.split()
                if word is None or words[0] == word:
                    return int(words[-1 if word is None else 1])
    except OSError:
        pass
    return 0


class Group:
    """A control group of version 1 or 2, which goes with the object."""

    def __init__(self, limit):
        self.is_v1 = os.path.exists("/sys/fs/cgroup/memory/cgroup.procs")
        root = "/sys/fs/cgroup/memory" if self.is_v1 else "/sys/fs/cgroup"
        self.path = "%s/memtrain-python-%d" % (root, os.getpid())
        os.mkdir(self.path)
        self.write("memory.limit_in_bytes" if self.is_v1 else "memory.max", limit)
        self.write("memory.swappiness" if self.is_v1 else "memory.swap.max", 0)

    def write(self, name, number):
        with open(os.path.join(self.path, name), "w") as file:
            file.write(str(number))

    def kills(self):
        return first_number(self.path + ("/memory.oom_control" if self.is_v1 else "/memory.events"), "oom_kill")

    def peak(self):
        return first_number(self.path + ("/memory.max_usage_in_bytes" if self.is_v1 else "/memory.peak"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.rmdir(self.path)


def child(name, epochs):
    """main() of a program, and then what of the process are pages of files."""
    import torch
    torch.set_num_threads(1)
    sys.path.insert(0, EXAMPLES)
    program = __import__(name)
    loader = program.DataLoader
    program.DataLoader = lambda *arguments, **options: loader(*arguments, **dict(options, num_workers=0))
    program.main(epochs)
    with open("/proc/self/status") as status:
        print("file_bytes  %d" % (1024 * int(re.search(r"RssFile:\s*(\d+)", status.read())[1])))


def run(name, epochs, group=None):
    """The end of a program, and the numbers that it prints."""
    join = (lambda: group.write("cgroup.procs", os.getpid())) if group else None
    done = subprocess.run([sys.executable, __file__, "--child", name, str(epochs)], capture_output=True, text=True,
                          preexec_fn=join, stdin=subprocess.DEVNULL)
    numbers = {key: int(value) for key, value in re.findall(r"^(\w+) +(\d+)(?: |$)", done.stdout, re.M)}
    return done.returncode, numbers, done.stderr


def row(name):
    code, first, errors = run(name, 1)
    if code:
        print("| %s | not run: %s |" % (name, (errors.strip().split("\n") or [""])[-1]), flush=True)
        return
    foretold = first["predicted_resident_bytes"]
    limit = int(1.1 * foretold) - first["file_bytes"]
    with Group(limit) as group:
        code, numbers, errors = run(name, -(-STEPS // first["steps"]), group)
        kills, peak = group.kills(), group.peak()
    if code and not kills:
        sys.stderr.write(errors)
    with Group(limit) as group:
        plain, _, _ = run(name + "_before", 2, group)
        plain = "killed" if group.kills() else "failed" if plain else "went through %d steps" % (2 * first["steps"])
    print("| %s | %d | %d | %d | %d | %d | %d | %d | %s |" % (
        name, foretold / MIB, numbers.get("peak_resident_bytes", 0) / MIB, limit / MIB, peak / MIB, numbers.get("steps", 0), kills,
        bool(code and not kills), plain), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], int(sys.argv[3]))
    else:
        print("| program | foretold, MiB | held, MiB | limit of the group, MiB | its highest | steps | kills | errors "
              "| plain loop |\n|---|---|---|---|---|---|---|---|---|", flush=True)
        for name in sys.argv[1:] or ("classifier", "vit", "texts", "tagger", "segmentation", "lora"):
            row(name)
