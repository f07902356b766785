"""
A step on a real card, in a budget: memtrain beside loops by hand.

    card.py [NETWORK...]    rows for each network; STEPS=8 timed steps, after WARM=3, or 12 of memtrain's, which learns

By hand: the whole batch without a limit; the whole batch under the limit; then gradients accumulated over parts of 1, 2, 4, ...
samples under the limit, as long as they fit. The limit is torch.cuda.set_per_process_memory_fraction, for memtrain too.
Seconds are the median of a step, bytes the most that torch's allocator reserved. Batches are on the card. Weights and data are
random. AMP=1 has each in bfloat16's autocast. Needs torchvision and transformers.
"""
import contextlib
import gc
import os
import statistics
import sys
import time

import torch
from torch.nn import functional as F

import memtrain

STEPS, WARM, AMP = int(os.environ.get("STEPS", 8)), int(os.environ.get("WARM", 3)), os.environ.get("AMP") == "1"
DEVICE = torch.device(os.environ.get("DEVICE", "cuda"), 0)
GIB = 1 << 30


def pictures(samples, side, classes):
    return torch.randn(samples, 3, side, side, device=DEVICE), torch.randint(0, classes, (samples,), device=DEVICE)


def resnet50():
    """Document 000: 1024 pixels, batch 32."""
    from torchvision.models import resnet50
    return resnet50(num_classes=101), lambda: pictures(32, 1024, 101)


def efficientnet_b4():
    """Document 001: 640 pixels, batch 16."""
    from torchvision.models import efficientnet_b4
    return efficientnet_b4(num_classes=7), lambda: pictures(16, 640, 7)


def vit_b_32():
    """Document 003's tower: 224 pixels, batch 1024."""
    from torchvision.models import vit_b_32
    return vit_b_32(num_classes=512), lambda: pictures(1024, 224, 512)


def gpt2():
    """GPT-2 small, 1024 tokens, batch 32."""
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(use_cache=False)), lambda: (torch.randint(0, 50257, (32, 1024), device=DEVICE),) * 2


NETWORKS = {"resnet50": (resnet50, 8), "efficientnet_b4": (efficientnet_b4, 8), "vit_b_32": (vit_b_32, 6), "gpt2": (gpt2, 16)}


def loss_of(model, x, y):
    with torch.autocast("cuda", torch.bfloat16) if AMP else contextlib.nullcontext():
        if x.dtype == torch.int64:
            return F.cross_entropy(model(x).logits[:, :-1].flatten(0, 1).float(), y[:, 1:].flatten())
        return F.cross_entropy(model(x).float(), y)


def limit(size):
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, size / total) if size else 1.0, DEVICE)


def clean():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(DEVICE)


def timed(step, warm):
    times = []
    for turn in range(warm + STEPS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        if turn >= warm:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def row(name, what, seconds, chunks, more=""):
    print("| %s | %s | %s | %s | %.2f | %s |" % (name, what, "%.4f" % seconds if seconds else "out of memory", chunks,
                                               torch.cuda.max_memory_reserved(DEVICE) / GIB, more), flush=True)


def start(make):
    clean()
    torch.manual_seed(1)
    model, batch = make()
    model.to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), 1e-4), batch()


def by_hand(make, part):
    """A function that makes a step in parts; 0: the whole batch."""
    model, optimizer, (x, y) = start(make)

    def step():
        optimizer.zero_grad()
        for first in range(0, len(x), part or len(x)):
            piece = slice(first, first + (part or len(x)))
            loss = loss_of(model, x[piece], y[piece]) * (len(x[piece]) / len(x))
            loss.backward()
        loss.item()
        optimizer.step()
    return step


def hand_row(name, make, what, part):
    step = seconds = None
    try:
        step = by_hand(make, part)
        seconds = timed(step, WARM)
    except torch.OutOfMemoryError:
        pass
    row(name, what, seconds, part or "all")
    del step
    return seconds


def compare(name):
    make, gib = NETWORKS[name]
    limit(0)
    hand_row(name, make, "by hand, no limit", 0)
    limit(gib * GIB)
    hand_row(name, make, "by hand, %d GiB" % gib, 0)
    total = len(make()[1]()[0])
    part, best = max(1, total // 32), None
    while part < total:
        seconds = hand_row(name, make, "by hand, %d GiB" % gib, part)
        if not seconds:
            break
        best = min(best or seconds, seconds)
        part *= 2
    model, optimizer, batch = start(make)
    trainer = memtrain.Trainer(model, loss_of, optimizer, budget="%dGiB" % gib)
    reports = []
    try:
        seconds = timed(lambda: reports.append(trainer.step(*batch)), 12)
    except memtrain.OutOfMemory as error:
        return row(name, "memtrain, %d GiB" % gib, None, "", str(error))
    first = next((i for i in range(len(reports)) if reports[i].chunks == reports[-1].chunks), 0)
    run = trainer.report()
    row(name, "memtrain, %d GiB" % gib, seconds, " ".join(map(str, reports[-1].chunks)),
        "%d OOMs, %d samples discarded, this size first in step %d; %.3f of the fastest by hand; said %.3f, took %.3f GiB; %s"
        % (sum(r.ooms for r in reports), run.samples_discarded, first + 1, seconds / best if best else 0,
           reports[-1].predicted_peak_bytes / GIB, reports[-1].peak_bytes / GIB, reports[-1].reason))
    memtrain.set_budget(None, DEVICE)


if __name__ == "__main__":
    torch.backends.cudnn.benchmark = os.environ.get("BENCHMARK") == "1"
    print("torch %s, %s" % (torch.__version__, torch.cuda.get_device_name(DEVICE)))
    print("| network | loop | seconds a step | samples a part | highest, GiB | |\n|---|---|---|---|---|---|")
    for chosen in sys.argv[1:] or NETWORKS:
        compare(chosen)
