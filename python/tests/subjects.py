"""What the tests train: networks with dropout and batch normalisation, batches, and their state as bytes."""
import ctypes
import random

import torch
from torch import nn
from torch.nn import functional as F

import memtrain

SAMPLES, CLASSES = 10, 5

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 1e-2, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 1e-2, fused=True),
    "adam amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, 1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "asgd": lambda p: torch.optim.ASGD(p),
}


def network(width=8):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def batch(samples=SAMPLES, side=8):
    generator = torch.Generator().manual_seed(4)
    return (torch.randn(samples, 3, side, side, generator=generator),
            torch.randint(0, CLASSES, (samples,), generator=generator))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def noisy_loss(model, x, y):
    """Draws from each of the generators that a step puts back."""
    return F.cross_entropy(model(x * (1 + 0.1 * random.random())), y)


def tensors_of(model, optimizer):
    """Everything that a step may change, by name."""
    found = dict(model.state_dict(keep_vars=True))
    for index, parameter in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        for key, value in optimizer.state.get(parameter, {}).items():
            found["%d.%s" % (index, key)] = value
    return found


def bits_of(value):
    """Without NumPy, which may not be there."""
    if not isinstance(value, torch.Tensor):
        return value
    whole = value.detach().contiguous()
    return tuple(value.shape), ctypes.string_at(whole.data_ptr(), whole.nbytes) if value.dim() else value.item()


def state_of(model, optimizer):
    state = {name: bits_of(value) for name, value in tensors_of(model, optimizer).items()}
    state["rng"] = bits_of(torch.get_rng_state())
    state["python"] = random.getstate()
    state["lr"] = [(g["lr"], sorted(g)) for g in optimizer.param_groups]
    return state


def difference(one, other):
    """The names whose bits differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def seed(number=5):
    torch.manual_seed(number)
    random.seed(number)


def cut(value, first, count):
    if isinstance(value, dict):
        return {key: cut(part, first, count) for key, part in value.items()}
    return value[first:first + count]


def plain_step(model, optimizer, loss_fn, values, chunks):
    """What a loop that adds up gradients by hand does. Of units it knows nothing."""
    optimizer.zero_grad()
    first, total = 0, sum(chunks)
    for count in chunks:
        output = loss_fn(model, *(cut(value, first, count) for value in values))
        loss = output["loss"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output
        (loss * (count / total)).backward()
        first += count
    optimizer.step()


class Quiet:
    """The log is not shown: small chunks of batch normalisation are warned of."""

    def __enter__(self):
        import logging
        logging.getLogger("memtrain").disabled = True

    def __exit__(self, *_):
        import logging
        logging.getLogger("memtrain").disabled = False


def trainer_for(name, loss_fn=loss_of, model=None, budget="256MiB", **options):
    model = model or network()
    optimizer = OPTIMIZERS[name](model.parameters())
    return model, optimizer, memtrain.Trainer(model, loss_fn, optimizer, budget, **options)
