"""
A command in a control group, and the most that the group held behind the row that it prints: in_group.py MIB COMMAND...

Without root, or without control groups of their own, it runs outside of one, and a dash stands there.
"""
import os
import subprocess
import sys

from group import MIB, Group


def run(command, group=None):
    join = (lambda: group.write("cgroup.procs", os.getpid())) if group else None
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=join, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.strip()


def main(mib, command):
    try:
        group = Group(int(mib) * MIB)
    except OSError:
        code, row = run(command)
        print("%s - |" % row, flush=True)
        return code
    with group:
        code, row = run(command, group)
        if group.kills():
            code, row = 0, "| %s | killed | - | - | - | - | - | - |" % command[-3]
        print("%s %d |" % (row, group.peak() / MIB), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
