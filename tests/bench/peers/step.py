"""
A step of memtrain's beside the same loop by hand: the same chunks, units and clipping, one thread.

    step.py [NAME...]    a row for each network of kinds.py: ratios of the processor's time, TURNS turns

Each side is a process of its own, so the loop by hand has libtorch's allocator. They take turns, a step each, so that what
else the machine does meets both. TURNS=20 BATCH=16 CHUNK=8 WARM=4 in the environment.
"""
import os
import statistics
import subprocess
import sys
import time

TURNS, BATCH, CHUNK, WARM = (int(os.environ.get(name, usual)) for name, usual in
                             (("TURNS", 20), ("BATCH", 16), ("CHUNK", 8), ("WARM", 4)))


def by_hand(kind):
    import torch
    from kinds import cut, loss_and_units

    def step(values):
        kind.optimizer.zero_grad()
        parts = [cut(values, first, CHUNK) for first in range(0, BATCH, CHUNK)]
        counts = [units_of(part) for part in parts]
        for part, count in zip(parts, counts):
            loss, _ = loss_and_units(kind.loss_of(kind.model, *part), CHUNK)
            (loss * (count / sum(counts))).backward()
            loss.item()
        if kind.clip is not None:
            torch.nn.utils.clip_grad_norm_(kind.model.parameters(), kind.clip)
        kind.optimizer.step()

    def units_of(part):
        """A loop by hand counts its words before it runs."""
        batch = part[0]
        if isinstance(batch, dict) and "padding" in batch:
            return int((batch["labels"] != -100).sum())
        return CHUNK
    return step


def with_memtrain(kind):
    import memtrain
    trainer = memtrain.Trainer(kind.model, kind.loss_of, kind.optimizer, "3GiB", micro_batch=CHUNK, clip_norm=kind.clip)
    return lambda values: trainer.step(*values)


def side(which, name):
    import torch
    import kinds
    torch.set_num_threads(1)
    kind = kinds.make(name)
    step = (by_hand if which == "hand" else with_memtrain)(kind)
    dataset = kind.dataset(4 * BATCH)
    batches = [kind.collate([dataset[index] for index in range(first, first + BATCH)]) for first in range(0, 4 * BATCH, BATCH)]
    for turn, _ in enumerate(sys.stdin):
        began = time.process_time()
        step(batches[turn % len(batches)])
        print(time.process_time() - began, flush=True)


def compare(name):
    sides = [subprocess.Popen([sys.executable, __file__, which, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
             for which in ("hand", "memtrain")]
    times = [[], []]
    for turn in range(WARM + TURNS):
        order = (0, 1) if turn % 2 else (1, 0)
        for which in order:
            print(file=sides[which].stdin, flush=True)
            line = sides[which].stdout.readline()
            if not line:
                raise SystemExit("step.py: a side of %s has ended" % name)
            if turn >= WARM:
                times[which].append(float(line))
    for process in sides:
        process.stdin.close()
        process.wait()
    pairs = statistics.median(own / hand for hand, own in zip(*times))
    print("| %s | %d x %d | %.3f | %.3f | %.3f | %.2f |" % (
        name, BATCH // CHUNK, CHUNK, statistics.median(times[1]) / statistics.median(times[0]), pairs,
        min(times[1]) / min(times[0]), statistics.median(times[0])), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] in (["hand"], ["memtrain"]):
        side(*sys.argv[1:])
    else:
        print("| network | chunks | medians | median of pairs | lowest | seconds by hand |\n|---|---|---|---|---|---|")
        for name in sys.argv[1:] or ("classifier", "vit", "texts", "tagger", "segmentation", "lora"):
            compare(name)
