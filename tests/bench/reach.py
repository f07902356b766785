"""
What the documents' configurations reach at their own size, each row against its bound (Linux; groups need root):

    reach.py BUILD [ROW...]     rows by the beginnings of their names: food, cash, prsmed, half, clip, profoct

    FOLDER=DIR    for weights, activations and checkpoints (default: BUILD/reach). `prsmed` writes a file of 14.5 GB there
    CORE=N        the one core that runs have (default: the last one)

A run is one process with one thread. Its limit is a memory control group where a row says so. Seconds are those of the steps,
from traces. Rows take minutes to an hour. The end is 1 if a figure is above its bound.
"""
import array
import glob
import json
import math
import operator
import os
import re
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from group import MIB, Group  # noqa: E402

BUILD = ""
FOLDER = ""
GIB = 1024  # MiB, as limits of groups are given
missed = []


# ---- rows --------------------------------------------------------------------------------------------------------------


def tell(row, what, figure, bound="", is_reached=True):
    print("| %s | %s | %s | %s |%s" % (row, what, figure, bound, "" if is_reached else " MISSED"), flush=True)
    if not is_reached:
        missed.append(row)


def at_most(row, what, value, bound, form="%.3f"):
    tell(row, what, form % value, "at most " + form % bound, value <= bound)


def is_so(row, what, value, bound):
    tell(row, what, value, bound, value == bound)


# ---- runs --------------------------------------------------------------------------------------------------------------


def file(name):
    return os.path.join(FOLDER, name)


def command_of(program, flags, trace):
    always = ["--threads", "1", "--workers", "0", "--no-validation", "--trace", trace]
    return [os.path.join(BUILD, "examples", program)] + flags.split() + always


def prepare(group):
    def before_exec():
        os.sched_setaffinity(0, {int(os.environ.get("CORE", os.cpu_count() - 1))})
        if group:
            group.write("cgroup.procs", os.getpid())
    return before_exec


class Run:
    """A program that ran to its end: how it ended, and what its trace tells."""

    def __init__(self, program, flags, group_mib=0):
        trace = file("trace.jsonl")
        for old in glob.glob(trace + "*"):
            os.remove(old)
        group = Group(group_mib * MIB) if group_mib else None
        try:
            child = subprocess.Popen(command_of(program, flags, trace), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, preexec_fn=prepare(group))
            self.text = child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = 0
            self.kills, self.group_peak = (group.kills(), group.peak()) if group else (0, 0)
        finally:
            if group:
                group.__exit__()
        self.is_through = status == 0
        self.user_seconds, self.resident = usage.ru_utime, usage.ru_maxrss * 1024
        events = [json.loads(line) for line in open(trace)] if os.path.exists(trace) else []
        self.steps = [event for event in events if event["event"] == "step"]
        self.ooms = sum(event["event"] == "oom" for event in events)
        self.state = events[0].get("allocated_bytes", 0) if events else 0
        self.peak = max([step["peak_bytes"] for step in self.steps] or [0])
        if not self.is_through:
            sys.stderr.write("%s %s\n%s" % (program, flags, self.text[-2000:]))

    def seconds(self, first=0, last=None):
        return sum(step["seconds"] for step in self.steps[first:last])

    def hash(self):
        found = re.search(r"state sha256 (\w+)", self.text)
        return found[1] if found else "none"

    def tell(self, row, what):
        chunks = [chunk for step in self.steps for chunk in step["chunks"]]
        figures = "peak %.1f MiB, resident %.0f, group %.0f; chunks of %s; %s s a step; %d OOMs, %d samples discarded" % (
            self.peak / MIB, self.resident / MIB, self.group_peak / MIB,
            "%d to %d" % (min(chunks), max(chunks)) if chunks else "none", ", ".join("%.1f" % step["seconds"] for step in self.steps),
            self.ooms, sum(step["discarded"] for step in self.steps))
        tell(row, what, figures if self.is_through else "killed" if self.kills else "failed", "goes through", self.is_through)


def explained(program, flags):
    """What --explain tells of the peak, and the seconds until it has; the run ends there."""
    begin = time.monotonic()
    child = subprocess.Popen(command_of(program, flags + " --explain", file("explain.jsonl")), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=prepare(None))
    peak = 0
    for line in child.stdout:
        found = re.match(r"A step of .* takes .* \((\d+) bytes\)", line)
        if found:
            peak = int(found[1])
            break
    seconds = time.monotonic() - begin
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait()
    return peak, seconds


def compare_explained(row, program, flags, real):
    peak, seconds = explained(program, flags)
    at_most(row, "seconds that --explain takes", seconds, 10, "%.1f")
    difference = 100 * (peak / max(1, real) - 1)
    tell(row, "peak told beside the real one, %.1f MiB" % (real / MIB), "%+.2f %%" % difference, "-1 to +3 %", -1 <= difference <= 3)


# ---- the documents -----------------------------------------------------------------------------------------------------


def food():
    """Document 000: ResNet-50, 1024 pixels, batch 32, in 3.2 GiB of resident memory."""
    flags = "--size published --image-size 1024 --batch 32 --budget-resident 3.2GiB --steps 1 --learned " + file("food.learned")
    for old in glob.glob(file("food.learned*")):
        os.remove(old)
    first = Run("food101", flags, 3277)
    first.tell("food", "without a learned file, group of 3.2 GiB")
    at_most("food", "OOMs", first.ooms, 1, "%d")
    second = Run("food101", flags, 3277)
    second.tell("food", "with the file that this run left")
    at_most("food", "OOMs", second.ooms, 0, "%d")
    is_so("food", "state of the two runs", second.hash()[:16], first.hash()[:16])
    fixed = {}
    for chunk in (2, 4, 8):
        run = Run("food101", "--size published --image-size 1024 --batch 8 --micro-batch %d --checkpointing on --budget 8GiB --steps 1"
                  % chunk)
        fixed[chunk] = run.seconds() / 8
    best = min(fixed, key=fixed.get)
    text = "time a sample beside chunks of %d with 8 GiB, %.2f s" % (best, fixed[best])
    at_most("food", text + ", without a learned file", first.seconds() / 32 / fixed[best], 1.15)
    at_most("food", text + ", with it", second.seconds() / 32 / fixed[best], 1.15)
    compare_explained("food", "food101", flags, second.peak)


def cash():
    """Document 001: EfficientNet-B4, 640 pixels, batch 16, in half of what 2 samples keep; tiers 1 to 3."""
    network = "--size published --phase1-epochs 0 --phase2-epochs 1"
    plain = Run("smartcash", network + " --batch 2 --micro-batch 2 --checkpointing off --steps 1 --budget 12GiB")
    plain.tell("cash", "2 samples, nothing saved")
    budget = (plain.state + (plain.peak - plain.state) // 2) // MIB
    flags = "%s --batch 16 --checkpointing on --budget %dMiB --steps 1" % (network, budget)
    half = Run("smartcash", flags)
    half.tell("cash", "batch 16 in %d MiB: half of these activations, beside the state" % budget)
    tell("cash", "smallest chunk", "%d" % min(half.steps[0]["chunks"]), "at least 2", min(half.steps[0]["chunks"]) >= 2)
    compare_explained("cash", "smartcash", flags, half.peak)
    Run("smartcash", network + " --tier 1 --device sim:mps --budget 4GiB --steps 1").tell("cash", "tier 1, sim:mps")
    for tier in (2, 3):
        Run("smartcash", "--size published --tier %d --budget 2GiB --steps 1" % tier, 2560).tell(
            "cash", "tier %d, group of 2.5 GiB" % tier)


def prsmed():
    """Document 002: 1024 pixels, batch 8, frozen 7.24 billion parameters in bfloat16, in a group of 4 GiB."""
    weights = file("7b.safetensors")
    if not os.path.exists(weights):
        subprocess.run([os.path.join(BUILD, "examples", "prsmed"), "--text-model", "7b", "--write-text-weights", weights], check=True)
    flags = "--size published --budget 3GiB --scenes 40 --epochs 2 --same-scenes --seed 27"
    text = " --text-model 7b --text-type bf16 --text-weights %s --cache-frozen" % weights
    run = Run("prsmed", flags + text, 4 * GIB)
    run.tell("prsmed", "two epochs of 5 steps, group of 4 GiB")
    is_so("prsmed", "steps", len(run.steps), 10)
    passes = re.findall(r"language model: (\d+) pass\w* in (\w+), of \d+ prompts, ([\d.]+) s;.* ([\d.]+) of the file a pass", run.text)
    for count, kind, seconds, share in passes:
        tell("prsmed", "passes of the language model in %s, and their seconds" % kind, "%s, %s" % (count, seconds))
        at_most("prsmed", "of the file, read by a pass", float(share), 1.1, "%.2f")
    alone = Run("prsmed", flags, 4 * GIB)
    alone.tell("prsmed", "the same without a language model")
    if len(run.steps) == 10 and len(alone.steps) == 10:
        at_most("prsmed", "second epoch, with kept states, beside one without any language model",
                run.seconds(5) / alone.seconds(5), 1.2)
    compare_explained("prsmed", "prsmed", flags + text, max(step["peak_bytes"] for step in run.steps[1:] or [{"peak_bytes": 0}]))


def half():
    """Document 002 with 0.5 billion parameters: in memory, and mapped in a group of 1.5 GiB."""
    weights = file("500m.safetensors")
    if not os.path.exists(weights):
        subprocess.run([os.path.join(BUILD, "examples", "prsmed"), "--text-model", "500m", "--write-text-weights", weights], check=True)
    flags = "--text-model 500m --text-weights %s --encoder tiny_vit --image-size 256 --micro-batch 4 --steps 4 --budget " % weights
    loaded = Run("prsmed", flags + "8GiB --frozen load")
    loaded.tell("half", "weights in memory")
    mapped = Run("prsmed", flags + "1GiB", 3 * GIB // 2)
    mapped.tell("half", "mapped, group of 1.5 GiB")
    is_so("half", "state", mapped.hash()[:16], loaded.hash()[:16])
    at_most("half", "time of the processor, mapped beside loaded", mapped.user_seconds / loaded.user_seconds, 1.5)


def moments(path):
    """The first moments of a checkpoint after one step, in the order of their names, some numbers at a time."""
    with open(path, "rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0]
        header = json.loads(stream.read(length))
        for name in sorted(header):
            if not name.startswith("optimizer.exp_avg."):
                continue
            begin, end = header[name]["data_offsets"]
            stream.seek(8 + length + begin)
            while begin < end:
                part = array.array("f")
                part.frombytes(stream.read(min(end - begin, 4 << 20)))
                begin += 4 * len(part)
                yield part


def difference_of(path, other):
    """Norm of the difference of two gradients beside the norm of the second."""
    apart = whole = 0.0
    for a, b in zip(moments(path), moments(other)):
        d = list(map(operator.sub, a, b))
        apart += math.fsum(map(operator.mul, d, d))
        whole += math.fsum(map(operator.mul, b, b))
    return math.sqrt(apart / whole)


def clip():
    """Document 003: ViT-B/32, the exact gradient of 128 pairs in the memory of 16 and a tenth."""
    flags = "--size published --steps 1 --clip 0 --batch 128 --accumulate 1 "
    sixteen = Run("car_clip", "--size published --steps 1 --clip 0 --batch 16 --accumulate 1 --micro-batch 16 --budget 8GiB")
    sixteen.tell("clip", "16 pairs")
    cut = flags + "--micro-batch 16 --budget %dMiB" % (1.1 * sixteen.peak / MIB)
    exact = Run("car_clip", cut + " --save " + file("exact.safetensors"), 4 * GIB)
    exact.tell("clip", "128 pairs in chunks of 16, group of 4 GiB")
    plain = Run("car_clip", "--size published --steps 1 --clip 0 --batch 16 --accumulate 8 --contrastive plain --micro-batch 16 --budget 8GiB")
    plain.tell("clip", "plain accumulation, 16 x 8")
    at_most("clip", "time beside plain accumulation", exact.seconds() / plain.seconds(), 1.5)
    whole = Run("car_clip", flags + "--micro-batch 128 --budget 16GiB --save " + file("whole.safetensors"))
    whole.tell("clip", "128 pairs at once")
    at_most("clip", "norm of the difference to the gradient at once, beside its norm",
            difference_of(file("exact.safetensors"), file("whole.safetensors")), 1e-5, "%.1e")
    for name in ("exact", "whole"):
        os.remove(file(name + ".safetensors"))
    compare_explained("clip", "car_clip", cut, exact.peak)


def profoct():
    """Document 004: the presets balanced and maximum at 224 pixels, 7 x 7, in 4 GiB and in the least."""
    always = "--size published --test-episodes 0"
    on_disk = " --offload file --offload-dir %s --micro-batch 1" % FOLDER
    # A second set of gradients comes with the second step, where there is room.
    for what, flags, budget in (
            ("balanced, checkpointing", "--steps 2 --checkpointing on --micro-batch 1", 3700),
            ("balanced, activations in a file, the least", "--steps 1 --checkpointing off" + on_disk, 2423),
            ("maximum, activations in a file", "--steps 2 --preset maximum --checkpointing off" + on_disk, 3700),
            ("maximum, activations in a file, the least", "--steps 1 --preset maximum --checkpointing off" + on_disk, 3032)):
        run = Run("profoct", "%s %s --budget %dMiB" % (always, flags, budget), 4 * GIB)
        run.tell("profoct", "%s, %d MiB, group of 4 GiB" % (what, budget))
        at_most("profoct", "OOMs", run.ooms, 0, "%d")
        compare_explained("profoct", "profoct", "%s %s --budget %dMiB" % (always, flags, budget), run.peak)
    matrix = subprocess.run(command_of("profoct", always + " --steps 1 --checkpointing on --covariance matrix --budget 3700MiB", file("m.jsonl")),
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=prepare(None))
    is_so("profoct", "the matrix of covariances is refused, and --covariance rows named",
          "yes" if matrix.returncode and "--covariance rows" in matrix.stdout else "no", "yes")


ROWS = (food, cash, prsmed, half, clip, profoct)


def main(arguments):
    global BUILD, FOLDER
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    BUILD = os.path.abspath(arguments[0])
    FOLDER = os.path.abspath(os.environ.get("FOLDER", os.path.join(BUILD, "reach")))
    os.makedirs(FOLDER, exist_ok=True)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    names = [row.__name__ for row in ROWS]
    for argument in arguments[1:]:
        if not any(name.startswith(argument) for name in names):
            sys.exit("reach.py: '%s' is no row; accepted: %s" % (argument, ", ".join(names)))
    print("| row | what | figure | bound |\n|---|---|---|---|", flush=True)
    for row in ROWS:
        if len(arguments) == 1 or any(row.__name__.startswith(argument) for argument in arguments[1:]):
            row()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
