"""
Trains on the test device (tests/device/) in a process of its own, which loads it before torch: on_card.py cuda|xpu|mps|custom|cpu.
What came of it is a line of JSON. The test device is one of libtorch's own types, so Python's torch takes it for a card:
all that has to be said is that it is initialised, which torch would ask a driver for. MT_TEST_DEVICE=cuda is a real card.
"""
import ctypes
import importlib.util
import json
import os
import sys
import tempfile
import types

KIND = sys.argv[1]
REAL = os.environ.get("MT_TEST_DEVICE") == KIND
BUDGET = 160 << 20


def load(kind):
    """The test device, behind those libraries of Python's torch that it is to find."""
    folder = os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "lib")
    for name in ("libc10.so", "libtorch_cpu.so") + (("libtorch_cuda.so",) if kind == "cuda" else ()):
        if os.path.exists(os.path.join(folder, name)):
            ctypes.CDLL(os.path.join(folder, name), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(os.path.join(os.environ["MT_TEST_CARDS_AT"], "libcard_%s.so" % kind), ctypes.RTLD_GLOBAL)


card = load(KIND) if KIND != "cpu" and not REAL else None

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

if card and KIND in ("cuda", "xpu"):
    getattr(torch, KIND)._initialized = True
if REAL and KIND == "cuda":  # the same bits again, and whole floats as on the CPU
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False

import memtrain  # noqa: E402
from memtrain import _native  # noqa: E402

if KIND == "custom":
    # What the package of a card of a third party brings along: torch asks for it by the card's name.
    first = _native.rng_state("custom:0")
    torch._register_device_module(KIND, types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: 1, current_device=lambda: 0,
        _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: _native.set_rng_state("custom:0", first)))

DEVICE = torch.device(KIND, 0) if KIND != "cpu" else torch.device("cpu")
told = {}


def inject(nth, persistent=False):
    _native.inject(nth, persistent)


def injected():
    return _native.injected()


def network(width=32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


def much_memory():
    """A MiB a sample, and little to compute."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 32, 1), *(nn.Tanh() for _ in range(7)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(32, 5))


def batch(number, samples=32, side=16):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(samples, 3, side, side, generator=generator)
    return x.to(DEVICE), torch.randint(0, 5, (samples,), generator=generator).to(DEVICE)


def loss_of(model, x, y):
    output = model(x)
    right = output.argmax(1) == y
    return {"loss": F.cross_entropy(output, y), "right": right.float().mean(), "hits": right.sum()}


def trainer_for(make=network, **options):
    model = make().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return model, memtrain.Trainer(model, loss_of, optimizer, **options)


def bits(model):
    return b"".join(value.detach().cpu().numpy().tobytes() for value in model.state_dict().values())


def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:  # its text is what is tested
        return "%s: %s" % (type(error).__name__, error)
    return "nothing was raised"


def train():
    """The same chunks everywhere."""
    model, trainer = trainer_for(clip_norm=1.0)
    told["losses"] = []
    for number in range(5):
        trainer.set_chunks(12, 12, 8)
        report = trainer.step(*batch(number))
        told["losses"].append(report.loss)
    told["rights"] = report.metrics["right"]
    told["evaluated"] = trainer.evaluate(*batch(9)).loss


def stay_in_budget():
    """Chunks are chosen. What the card's allocator holds stays below the limit, and so does the whole run."""
    model, trainer = trainer_for(much_memory, budget=BUDGET)
    for number in range(4):
        report = trainer.step(*batch(number, 256, 32))
        memory = memtrain.memory(DEVICE)
        told["held"] = max(told.get("held", 0), memory["reserved_bytes"])
    told["budget"], told["chunks"] = memory["budget_bytes"], report.chunks
    told["peak"], told["run"] = memory["peak_bytes"], dict(trainer.report())
    memtrain.set_budget(None, DEVICE)


def counted():
    """What the test device has counted (tests/device/card.h): kernels, waits, ..."""
    counters = (ctypes.c_uint64 * 9)()
    card.mt_card_read(counters)
    return counters


def wait_once():
    """A step of eight chunks of known size, and the same run with each chunk waited for."""
    def run(waits):
        model, trainer = trainer_for(clip_norm=1.0)
        if waits:
            trainer._backend.pending.takes = lambda values: False
        for number in range(6):
            values = batch(number)
            trainer.set_chunks(*[4] * 8)
            before = card and counted()[1]
            report = trainer.step(*values)
            waited = card and counted()[1] - before
        return waited, [report.loss, report.metrics["right"], bits(model)]
    once, each = run(False), run(True)
    told["waits"], told["same"] = (once[0], each[0]), once[1] == each[1]


class Counting(nn.Module):
    """Counts its chunks, in evaluations too."""
    def __init__(self):
        super().__init__()
        self.body = network()
        self.register_buffer("chunks", torch.zeros(1))

    def forward(self, x):
        self.chunks += 1
        return F.dropout(self.body(x), 0.1, training=True)


def evaluate_once():
    """An evaluation of eight chunks of known size, and the same with each chunk waited for; then its requests fail."""
    def start(waits=False):
        model, trainer = trainer_for(Counting, micro_batch=4)
        if waits:
            trainer._backend.pending.takes = lambda values: False
        values = batch(7)
        for _ in range(2):
            trainer.evaluate(*values)
        torch.manual_seed(7)
        return model, trainer, values

    def evaluate(nth, persistent, model, trainer, values):
        """Waits for the card, requests that failed, and the figures with the model's bits; of one that fails the bits alone."""
        inject(nth, persistent)
        before = card and counted()[1]
        try:
            report = trainer.evaluate(*values)
            seen = [report.loss, report.metrics["right"]]
        except torch.OutOfMemoryError:
            seen = []
        waited = card and counted()[1] - before
        _, failed = injected()
        inject(0)
        return waited, failed, seen + [bits(model)]
    unchanged = [bits(start()[0])]
    once, each = evaluate(0, False, *start()), evaluate(0, False, *start(waits=True))
    told["evaluation_waits"], told["evaluation_same"] = (once[0], each[0]), once[2] == each[2]
    told["evaluation_wrong"], told["evaluation_tried"] = [], 0
    for persistent in (False, True):
        nth, failed = 1, 1
        while failed:
            _, failed, seen = evaluate(nth, persistent, *start())
            if seen != (unchanged if persistent and failed else once[2]):
                told["evaluation_wrong"].append([nth, persistent, failed, seen[:-1]])
            told["evaluation_tried"] += 1
            nth += 1 if os.environ.get("MT_TEST_SLOW") == "1" else 7


def fail_in_turn():
    """Some of the requests of a step whose chunks are not waited for, once and for good."""
    def start():
        model, trainer = trainer_for()
        for number in range(4):
            trainer.set_chunks(12, 12, 8)
            trainer.step(*batch(number))
        trainer.set_chunks(12, 12, 8)
        torch.manual_seed(7)
        return model, trainer, batch(7)
    model, trainer, values = start()
    inject(0)
    loss = trainer.step(*values).loss
    requests, _ = injected()
    expected = bits(model)
    told["requests"], told["wrong"], told["tried"] = requests, [], 0
    for nth in range(1, requests + 1, 1 if os.environ.get("MT_TEST_SLOW") == "1" else max(1, requests // 8)):
        for persistent in (False, True):
            model, trainer, values = start()
            before = bits(model)
            inject(nth, persistent)
            try:
                report = trainer.step(*values)
                ooms = report.ooms if report.loss == loss else -2
            except memtrain.OutOfMemory as error:
                ooms = -1
                told["explained"] = error.explain()
            finally:
                _, failed = injected()
                inject(0)
            right = (-1, before) if persistent else (1, expected)
            if (ooms, bits(model)) != right or not failed:
                told["wrong"].append([nth, persistent, ooms, failed])
            told["tried"] += 1


def detours():
    """Convolutions of the test device that went on after a work space was refused, as cuDNN's do."""
    return counted()[7]


def check_in_trouble():
    """A convolution whose work space is refused does not go on, in a step and in a check."""
    if KIND != "cuda" or REAL:
        return
    torch.backends.cudnn.deterministic = True
    card.mt_card_use_work_space(ctypes.c_size_t(1 << 20))
    told["refused"] = 0
    model, trainer = trainer_for()
    trainer.step(*batch(1))
    for nth in range(1, 60):
        inject(nth)
        try:
            trainer.check(*batch(1)) if nth % 4 else trainer.step(*batch(2))
        except torch.OutOfMemoryError:
            pass
        told["refused"] += injected()[1]
        inject(0)
    told["detours"] = detours()
    card.mt_card_use_work_space(ctypes.c_size_t(0))


def go_on():
    """A file of a card is read there, and on the CPU."""
    model, trainer = trainer_for()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.pt")
        trainer.step(*batch(1))
        trainer.save(path, epoch=3)
        torch.manual_seed(1)
        trainer.set_chunks(16, 16)
        trainer.step(*batch(2))
        other, again = trainer_for()
        told["epoch"] = again.load(path)["epoch"]
        again.set_chunks(16, 16)
        again.step(*batch(2))
        told["went_on"] = bits(other) == bits(model)
        here = network()
        on_cpu = memtrain.Trainer(here, loss_of, torch.optim.AdamW(here.parameters(), 1e-3), budget="256MiB")
        on_cpu.load(path)
        on_cpu.set_chunks(16, 16)
        x, y = batch(2)
        on_cpu.step(x.cpu(), y.cpu())
        told["on_cpu"] = max((a - b.cpu()).abs().max().item() for a, b in zip(here.parameters(), model.parameters()))


def draw():
    """Dropout draws from the card's generator, which a step that fails puts back."""
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 16 * 16, 5)).to(DEVICE)
    trainer = memtrain.Trainer(model, loss_of, "sgd", lr=0.1)
    before = memtrain._native.rng_state(str(DEVICE))
    trainer.set_chunks(32)
    values = batch(1)
    inject(3, True)
    told["drawn"] = refused(trainer.step, *values).split(":")[0]
    inject(0)
    told["put_back"] = torch.equal(before, memtrain._native.rng_state(str(DEVICE)))
    trainer.step(*batch(1))
    told["moved"] = not torch.equal(before, memtrain._native.rng_state(str(DEVICE)))


def be_refused():
    model, trainer = trainer_for()
    x, y = batch(1)
    told["batch"] = refused(trainer.step, x.cpu(), y)
    told["index"] = refused(memtrain.set_budget, "1GiB", "%s:7" % KIND)
    told["name"] = refused(memtrain.memory, "gpu")
    model[0].to("cpu")
    told["two"] = refused(memtrain.Trainer, model, loss_of, "sgd", lr=0.1)


def be_ignored():
    """Metal ignores what it is given once memory has run out while it worked."""
    model, trainer = trainer_for()
    trainer.step(*batch(1))
    card.mt_card_ignore(1)
    told["ignored"] = refused(trainer.step, *batch(2))
    card.mt_card_ignore(0)
    told["works"] = refused(trainer_for()[1].step, *batch(2))


train()
if KIND != "cpu":
    stay_in_budget()
    go_on()
    draw()
    wait_once()
    evaluate_once()
    fail_in_turn()
    told["check"] = str(trainer_for()[1].check(*batch(1)))
    check_in_trouble()
    be_refused()
if card and KIND == "mps":
    be_ignored()
print(json.dumps(told))
