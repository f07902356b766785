"""What a step can change, remembered and put back."""
import copy
import random
import sys

import torch

from . import _native


def _keep(value, small_only=False):
    """A function that puts the value back as it is now, and returns it. Putting back allocates nothing."""
    if isinstance(value, torch.Tensor):
        if small_only and value.numel() > 1:
            return lambda: value
        saved = value.detach().clone()
        return lambda: value.detach().copy_(saved) is not None and value
    if isinstance(value, dict):
        kept = {key: _keep(part, small_only) for key, part in value.items()}

        def put_back():
            parts = {key: part() for key, part in kept.items()}
            value.clear()
            value.update(parts)
            return value
        return put_back
    if isinstance(value, (list, tuple)):
        parts = [_keep(part, small_only) for part in value]

        def put_back_list():
            inside = [part() for part in parts]
            if isinstance(value, list):
                value[:] = inside
            return value
        return put_back_list
    return lambda: value


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
        self.entries, self.saved = [], []

    def take(self, model):
        entries = [(module, name, buffer) for module in model.modules()
                   for name, buffer in module._buffers.items() if buffer is not None]
        saved = self.saved
        if [(b.shape, b.dtype) for _, _, b in entries] != [(s.shape, s.dtype) for s in saved]:
            saved = [torch.empty_like(buffer) for _, _, buffer in entries]
        with torch.no_grad():
            for (_, _, buffer), copy in zip(entries, saved):
                copy.copy_(buffer)
        self.entries, self.saved = entries, saved

    def put_back(self):
        with torch.no_grad():
            for (module, name, buffer), copy in zip(self.entries, self.saved):
                module._buffers[name] = buffer
                buffer.copy_(copy)

    def bytes(self):
        return sum(copy.nbytes for copy in self.saved)


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


class OptimizerState:
    """
    Parameters that have gradients, and all that the optimiser keeps: its state, the options of its groups, its own
    counts. While it lives it takes as many bytes as these; with a fused optimiser next to none.
    """

    def __init__(self, optimizer, scaled=False):
        self.optimizer = optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        small = not scaled and _updates_in_place(optimizer, parameters)
        self.parameters = [] if small else [_keep(parameter) for parameter in parameters]
        self.state = {key: _keep(state, small) for key, state in optimizer.state.items()}
        self.groups = [(group, {key: _keep(value) for key, value in group.items() if key != "params"})
                       for group in optimizer.param_groups]
        self.own = {key: value for key, value in vars(optimizer).items()
                    if value is None or isinstance(value, (bool, int, float, str))}

    def put_back(self):
        """May be called twice."""
        with torch.no_grad():
            for parameter in self.parameters:
                parameter()
            state = {key: kept() for key, kept in self.state.items()}
            self.optimizer.state.clear()
            self.optimizer.state.update(state)
            for group, kept in self.groups:
                for key in [key for key in group if key != "params" and key not in kept]:
                    del group[key]
                group.update({key: value() for key, value in kept.items()})
        vars(self.optimizer).update(self.own)
