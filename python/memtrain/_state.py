"""The state of a run in a file of torch.save's: tensors, numbers and texts, which torch.load reads with weights_only."""
import os
import random
import sys
from collections.abc import Mapping

import torch

from . import _native

FORMAT = 1


def check_plain(name, value):
    """Only what torch.load(weights_only=True) reads back."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_plain("%s[%r]" % (name, key), part)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            check_plain("%s[%d]" % (name, index), part)
    elif not (value is None or isinstance(value, (bool, int, float, str, bytes, torch.Tensor))):
        raise TypeError("%s is a %s; accepted: something with a state_dict(), tensors, numbers, texts and None, in lists, "
                        "tuples and dicts" % (name, type(value).__name__))


def write(path, state):
    """The file is there whole, or the one from before is."""
    path = os.path.realpath(path)
    part = "%s.%d.part" % (path, os.getpid())
    try:
        with open(part, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path):
    """Its tensors lie in the file, mapped: they are not counted."""
    path = os.fspath(path)
    with open(path, "rb"):  # a missing file is told in the system's words
        pass
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError("%s is no file of Trainer.save, or it is damaged" % path) from error
    version = state.get("memtrain") if isinstance(state, dict) else None
    if version != FORMAT:
        raise ValueError("%s is no file of Trainer.save with format %d" % (path, FORMAT))
    return state


# ---- generators --------------------------------------------------------------------------------------------


def rng_state(device):
    """Of a card there is one more, under its type."""
    numpy = sys.modules.get("numpy")
    state = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if numpy:
        name, key, *rest = numpy.random.get_state()
        state["numpy"] = [str(name), [int(word) for word in key], *(part.item() if hasattr(part, "item") else part
                                                                     for part in rest)]
    if device.type != "cpu":
        state[device.type] = _native.rng_state(str(device))
    return state


def prepare_rng(state, device):
    """A function that sets the generators. All memory is taken here."""
    own, of_card = state["torch"].clone(), clone(state.get(device.type))

    def put():
        torch.set_rng_state(own)
        if of_card is not None:
            _native.set_rng_state(str(device), of_card)
        random.setstate(state["python"])
        if "numpy" in state and sys.modules.get("numpy"):
            sys.modules["numpy"].random.set_state(tuple(state["numpy"]))
    return put


# ---- model and optimiser -----------------------------------------------------------------------------------


def model_tensors(model):
    """Parameters and buffers by name, those that a state_dict leaves out included."""
    found = dict(model.state_dict(keep_vars=True))
    for name, buffer in model.named_buffers():
        found.setdefault(name, buffer)
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def model_state(model):
    return {name: value.detach() for name, value in model_tensors(model).items()}


def check_model(path, model, saved):
    own = model_tensors(model)
    for name in sorted(own.keys() ^ saved.keys()):
        raise ValueError("%s has %s%s, and the model has%s" % (path, "" if name in saved else "no ", name,
                                                              " not" if name in saved else " it"))
    for name, tensor in own.items():
        theirs = saved[name]
        if (tensor.shape, tensor.dtype) != (theirs.shape, theirs.dtype):
            raise ValueError("%s: %s has shape %s and %s in the model, and %s and %s in %s"
                             % (path, name, tuple(tensor.shape), tensor.dtype, tuple(theirs.shape), theirs.dtype, "the file"))
    return own


def optimizer_state(optimizer):
    return {"name": type(optimizer).__name__, "state": optimizer.state_dict()}


def check_optimizer(path, optimizer, saved):
    if saved["name"] != type(optimizer).__name__:
        raise ValueError("%s has the state of %s; the optimizer is %s" % (path, saved["name"], type(optimizer).__name__))
    own = [len(group["params"]) for group in optimizer.param_groups]
    theirs = [len(group["params"]) for group in saved["state"]["param_groups"]]
    if own != theirs:
        raise ValueError("%s has parameter groups of %s parameters; the optimizer has %s" % (path, theirs, own))


def clone(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: clone(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(clone(part) for part in value)
    return value


def _beside(parameter, group, name, value):
    """A copy where the parameter is, as torch's load_state_dict places it: counts of steps stay on the host, as a rule."""
    is_count = name == "step" and not (group.get("fused") or group.get("capturable"))
    if not isinstance(value, torch.Tensor) or is_count:
        return clone(value)
    return value.to(parameter.device, copy=True)


def prepare_optimizer(optimizer, saved):
    """A function that puts the saved state in place. All memory is taken here."""
    places = {}
    for own, theirs in zip(optimizer.param_groups, saved["state"]["param_groups"]):
        places.update((number, (p, theirs)) for number, p in zip(theirs["params"], own["params"]))
    state = {}
    for key, value in saved["state"]["state"].items():
        if key in places:
            parameter, group = places[key]
            state[parameter] = {name: _beside(parameter, group, name, part) for name, part in value.items()}
        else:
            state[key] = clone(value)
    groups = [{key: clone(value) for key, value in group.items() if key != "params"}
              for group in saved["state"]["param_groups"]]

    def put():
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, values in zip(optimizer.param_groups, groups):
            group.update(values)
    return put
