"""What a step can change, remembered and put back."""
import copy
import random
import sys

import torch

from . import _native
from ._batch import refuse_inference


def of_one_kind(*lists):
    """Lists of tensors, side by side, in parts of one device and type: what a card does in few kernels."""
    first = lists[0]
    if len({tensor.dtype for tensor in first}) <= 1 and len({tensor.get_device() for tensor in first}) <= 1:
        return [lists] if first else []
    kinds = [(tensor.dtype, tensor.get_device()) for tensor in first]
    return [tuple([one for one, its in zip(part, kinds) if its == kind] for part in lists) for kind in dict.fromkeys(kinds)]


class Copies:
    """Copies of tensors, taken and put back together. Putting back allocates nothing."""

    def __init__(self):
        self.tensors, self.saved = [], []

    def take(self):
        self.saved = [torch.empty_like(tensor, requires_grad=False) for tensor in self.tensors]
        self.take_again()

    def take_again(self):
        """Into the copies that are there."""
        with torch.no_grad():
            self._copy(self.saved, self.tensors)

    def put_back(self):
        with torch.no_grad():
            self._copy(self.tensors, self.saved)

    @staticmethod
    def _copy(to, source):
        for part, sources in of_one_kind(to, source):
            torch._foreach_copy_(part, sources)


class Kept:
    """What dicts, lists and tuples hold at any depth. Its tensors are copied, and nothing is allocated to put it back."""

    def __init__(self):
        self.copies, self.dicts, self.lists = Copies(), [], []

    def add(self, value, small_only=False):
        if isinstance(value, torch.Tensor):
            if not small_only or value.numel() <= 1:
                self.copies.tensors.append(value)
        elif isinstance(value, dict):
            self.dicts.append((value, dict(value)))
            for part in value.values():
                self.add(part, small_only)
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                self.lists.append((value, list(value)))
            for part in value:
                self.add(part, small_only)

    def put_back(self):
        self.copies.put_back()
        for value, was in self.dicts:
            value.clear()
            value.update(was)
        for value, was in self.lists:
            value[:] = was


class Rng:
    """The generators of torch for the CPU and the card, of Python and, where it is loaded, of NumPy."""

    def __init__(self, device):
        self.card = None if device.type == "cpu" else str(device)

    def take(self):
        self.torch = torch.get_rng_state()
        self.of_card = _native.rng_state(self.card) if self.card else None
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy = numpy.random.get_state() if numpy else None

    def put_back(self):
        torch.set_rng_state(self.torch)
        if self.card:
            _native.set_rng_state(self.card, self.of_card)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def has_moved(self):
        """Whether something was drawn since take()."""
        now = copy.copy(self)
        now.take()
        if self.numpy is not None and now.numpy is not None:
            if self.numpy[2:] != now.numpy[2:] or (self.numpy[1] != now.numpy[1]).any():
                return True
        if self.card and not torch.equal(self.of_card, now.of_card):
            return True
        return not torch.equal(self.torch, now.torch) or self.python != now.python


class ScalerState:
    """The scale of a torch.amp.GradScaler, and what it has found out about this step's gradients."""

    def __init__(self, scaler, device):
        self.scaler = scaler
        if scaler._scale is None:
            self.begin(device)
        self.saved = scaler.state_dict()

    def begin(self, device):
        """Its tensors are made with the first loss: both, or none."""
        try:
            self.scaler.scale(torch.ones((), device=device))
        except BaseException:
            self.scaler._scale = self.scaler._growth_tracker = None
            raise

    def put_back(self):
        self.scaler.load_state_dict(self.saved)
        self.scaler._per_optimizer_states.clear()


class Buffers:
    """The buffers of a model. The copies are kept from one step to the next."""

    def __init__(self):
        self.entries, self.copies = [], Copies()

    def take(self, model):
        entries = [(module, name, buffer) for module in model.modules()
                   for name, buffer in module._buffers.items() if buffer is not None]
        buffers = [buffer for _, _, buffer in entries]
        for _, name, buffer in entries:
            refuse_inference("the model's buffer %s" % name, buffer)
        copies = Copies()
        copies.tensors, copies.saved = buffers, self.copies.saved
        if [(b.shape, b.dtype, b.device) for b in buffers] == [(s.shape, s.dtype, s.device) for s in copies.saved]:
            copies.take_again()
        else:
            copies.take()
        self.entries, self.copies = entries, copies

    def put_back(self):
        for module, name, buffer in self.entries:
            module._buffers[name] = buffer
        self.copies.put_back()


def _updates_in_place(optimizer, parameters):
    """
    Whether step() asks for memory only before it changes a parameter, and then for what is no larger than a number: so
    it is of the fused optimisers, once their state is there.
    """
    if type(optimizer) not in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if not all(group.get("fused") for group in optimizer.param_groups):
        return False
    name = "momentum_buffer" if type(optimizer) is torch.optim.SGD else "exp_avg_sq"
    stateless = name == "momentum_buffer" and all(group["momentum"] == 0 for group in optimizer.param_groups)
    return stateless or all(isinstance(optimizer.state.get(p, {}).get(name), torch.Tensor) for p in parameters)


def copied_bytes(optimizer, parameters, scaled):
    """What an OptimizerState takes for an update of these."""
    if not scaled and _updates_in_place(optimizer, parameters):
        return 0
    state = Kept()
    state.add(optimizer.state)
    return sum(tensor.nbytes for tensor in list(parameters) + state.copies.tensors)


class OptimizerState:
    """
    Parameters that have gradients, and all that the optimiser keeps: its state, the options of its groups, its own
    counts. While it lives it takes as many bytes as these; with a fused optimiser next to none.
    """

    def __init__(self, optimizer, scaled=False):
        self.optimizer = optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        small = not scaled and _updates_in_place(optimizer, parameters)
        self.kept = kept = Kept()
        kept.copies.tensors += [] if small else parameters
        kept.add(optimizer.state, small)
        self.groups = [(group, {key: value for key, value in group.items() if key != "params"})
                       for group in optimizer.param_groups]
        for _, options in self.groups:
            kept.add(options)
        for tensor in kept.copies.tensors:
            refuse_inference("a tensor of shape %s in the optimizer's state" % (tuple(tensor.shape),), tensor)
        kept.copies.take()
        self.own = {key: value for key, value in vars(optimizer).items()
                    if value is None or isinstance(value, (bool, int, float, str))}

    def put_back(self):
        """May be called twice."""
        self.kept.put_back()
        for group, options in self.groups:
            for key in [key for key in group if key != "params" and key not in options]:
                del group[key]
            group.update(options)
        vars(self.optimizer).update(self.own)
