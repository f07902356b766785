"""
How else a loop gets through that does not fit: peers of memtrain's, one at a time, under one limit on the bytes of tensors.

    peers.py NAME NETWORK LIMIT    trains a network of kinds.py on SAMPLES samples, in batches of BATCH, and prints a row
    peers.py --versions

BATCH=32 SAMPLES=128 in the environment. All use the allocator of memtrain for the limit. Its refusal is a
torch.OutOfMemoryError, which accelerate, transformers and Lightning know on a GPU alone: here each is told that it is one.
Samples are counted where a forward pass begins. The loss is that of the trained network over these samples, in evaluation
mode; the time does not have it.
"""
import contextlib
import functools
import importlib.metadata
import logging
import os
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")

import memtrain  # noqa: E402
import torch  # noqa: E402
from memtrain import _native  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import kinds  # noqa: E402

BATCH, SAMPLES = int(os.environ.get("BATCH", 32)), int(os.environ.get("SAMPLES", 128))
NETWORK = sys.argv[2] if len(sys.argv) > 2 else ""
computed = updates = 0
trained = None


class Network(torch.nn.Module):
    """With its loss, as transformers wants it, and a count of samples."""

    def __init__(self):
        global trained
        super().__init__()
        trained = self
        self.kind = kinds.make(NETWORK)
        self.inner = self.kind.model

    def forward(self, batch):
        global computed
        (_, first), *_ = kinds.tensors_of(batch)
        computed += len(first)
        loss, units = kinds.loss_and_units(self.kind.loss_of(self.inner, *batch), len(first))
        return {"loss": loss, "units": units}


def optimizer_of(model):
    global updates
    updates = 0

    def count(*_):
        global updates
        updates += 1
    optimizer = model.kind.optimizer
    optimizer.register_step_post_hook(count)
    return optimizer


def loader_of(model, batch):
    return DataLoader(model.kind.dataset(SAMPLES), batch_size=batch, shuffle=True, collate_fn=collate_of(model))


def collate_of(model):
    return lambda samples: {"batch": list(model.kind.collate(samples))}


def train(batch, accumulate=1):
    model = Network().train()
    optimizer = optimizer_of(model)
    for number, values in enumerate(loader_of(model, batch), 1):
        loss = model(**values)["loss"] / accumulate
        loss.backward()
        if number % accumulate == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def plain():
    train(BATCH)


def fixed(parts):
    """A size that somebody has found out for this network, this limit and this batch."""
    train(BATCH // parts, parts)


def is_out_of_memory(known, error):
    return isinstance(error, torch.OutOfMemoryError) or known(error)


def tell_accelerate():
    from accelerate.utils import memory
    memory.should_reduce_batch_size = functools.partial(is_out_of_memory, memory.should_reduce_batch_size)
    return memory.find_executable_batch_size


def accelerate():
    """The batch becomes smaller until it fits, and training starts anew each time."""
    tell_accelerate()(train, starting_batch_size=BATCH)()


def accelerate_accumulating():
    """As accelerate's own example: what the batch loses, gradient accumulation makes up for, in whole numbers."""
    tell_accelerate()(lambda batch: train(batch, BATCH // batch), starting_batch_size=BATCH)()


def transformers():
    tell_accelerate()
    from transformers import Trainer, TrainingArguments
    model = Network()
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            folder, per_device_train_batch_size=BATCH, auto_find_batch_size=True, num_train_epochs=1, save_strategy="no",
            logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, max_grad_norm=1.0,
            remove_unused_columns=False)

        class Counting(Trainer):
            def create_optimizer(self, *arguments):
                if self.optimizer is None:
                    self.optimizer = optimizer_of(self.model)
                return self.optimizer
        Counting(model, options, train_dataset=model.kind.dataset(SAMPLES), data_collator=collate_of(model)).train()


def lightning():
    import lightning.pytorch
    from lightning.pytorch.tuner import Tuner, batch_size_scaling
    batch_size_scaling.is_oom_error = functools.partial(is_out_of_memory, batch_size_scaling.is_oom_error)

    class Module(lightning.pytorch.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.batch_size = Network(), 2

        def training_step(self, values):
            return self.network(**values)["loss"]

        def configure_optimizers(self):
            return optimizer_of(self.network)

        def train_dataloader(self):
            return loader_of(self.network, self.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        module = Module()
        trainer = lightning.pytorch.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, gradient_clip_val=1.0, default_root_dir=folder)
        # The finder doubles the batch from 2 on. It need not look beyond the batch that is wanted.
        Tuner(trainer).scale_batch_size(module, mode="power", init_val=2, max_trials=BATCH.bit_length() - 1)
        trainer.fit(module)


def memtrain_():
    model = Network()
    optimizer = optimizer_of(model)
    trainer = memtrain.Trainer(model, lambda model, batch: model(batch), optimizer, clip_norm=1.0)
    model.train()
    for values in loader_of(model, BATCH):
        trainer.step(values["batch"])


PEERS = {
    "whole": ("plain loop without a limit", plain),
    "plain": ("plain loop", plain),
    "half": ("plain loop, 2 chunks by hand", lambda: fixed(2)),
    "quarter": ("plain loop, 4 chunks by hand", lambda: fixed(4)),
    "eighth": ("plain loop, 8 chunks by hand", lambda: fixed(8)),
    "accelerate": ("accelerate, find_executable_batch_size", accelerate),
    "accelerate-accumulating": ("the same, with gradient accumulation", accelerate_accumulating),
    "transformers": ("transformers, auto_find_batch_size", transformers),
    "lightning": ("Lightning, scale_batch_size", lightning),
    "memtrain": ("memtrain", memtrain_),
}


def versions():
    found = []
    for name in ("torch", "accelerate", "transformers", "lightning"):
        try:
            found.append("%s %s" % (name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            found.append("no " + name)
    return ", ".join(found)


def loss_of_all():
    """The mean over all samples, of the network that was made last."""
    total = over = 0.0
    trained.eval()
    with torch.no_grad():
        for values in DataLoader(trained.kind.dataset(SAMPLES), batch_size=8, collate_fn=collate_of(trained)):
            output = trained(**values)
            total += float(output["loss"]) * float(output["units"])
            over += float(output["units"])
    return total / over


def main(name, network, limit):
    logging.disable(logging.WARNING)
    title, function = PEERS[name]
    memtrain.set_budget("64GiB" if name == "whole" else limit)
    refused, end = _native.refusals()[0], "finished"
    began, work = time.monotonic(), time.process_time()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            function()
    except torch.OutOfMemoryError:
        end = "out of memory"
    except ImportError as error:
        print("| %s | not run: %s |" % (title, error))
        return
    seconds, work = time.monotonic() - began, time.process_time() - work
    refused, vain, batch, loss = _native.refusals()[0] - refused, computed, "-", "-"
    if end == "finished":
        vain, batch, loss = computed - SAMPLES, "%.4g" % (SAMPLES / updates), "%.3f" % loss_of_all()
    print("| %s | %s | %s | %d | %d | %s | %.1f | %.0f |" % (title, end, batch, refused, vain, loss, work, seconds), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--versions"]:
        print(versions())
    else:
        main(*sys.argv[1:])
