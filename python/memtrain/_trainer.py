"""The trainer, and the budget of the process."""
import inspect
import os
import threading
import weakref

import torch

from . import _native
from ._backend import Backend
from ._batch import Batch
from ._undo import Rng

_policy = {"micro_batch": int, "min_micro_batch": int, "max_micro_batch": int, "clear_every": int,
           "deterministic": bool, "max_retries": int, "keep_chunks": int}
_held = {}  # of each trainer that lives: the memory of its tensors that the budget's allocator did not make
_numbers = iter(range(1, 1 << 62))
_is_child_told = False


def set_budget(budget=None):
    """
    The most that all tensors of the process may take: "6GiB", "600MiB" or bytes; None: nine tenths of what the host
    has left. Tensors that were made before the first call are not counted, but for those of a trainer's model and
    optimiser, which count while the trainer lives.
    """
    global _is_child_told
    _native.install()
    if not _is_child_told:
        os.register_at_fork(after_in_child=_native.enter_child)
        _is_child_told = True
    _native.set_budget(_native.parse_size(str(budget)) if budget is not None else 0)


def memory():
    """Bytes of tensors: the budget, what is allocated now, and the highest so far."""
    if not _native.installed():
        raise RuntimeError("memtrain.memory: no budget has been set")
    return {"budget_bytes": _native.budget(), "allocated_bytes": _native.allocated(), "peak_bytes": _native.peak(),
            "resident_bytes": _native.resident_bytes()}


class Report(dict):
    """Figures by name, also as attributes."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def _repr_html_(self):
        rows = "".join("<tr><td>%s</td><td>%s</td></tr>" % (key, value) for key, value in self.items())
        return "<table>%s</table>" % rows


def _tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)


def _count_existing(number, model, optimizer):
    """What was there before the allocator counts once, whoever else has it."""
    tensors = list(model.parameters()) + list(model.buffers()) + list(_tensors_in(dict(optimizer.state)))
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    _held[number] = dict(map(_native.uncounted, tensors))
    _tell_held()


def _tell_held():
    together = {}
    for memory_of in _held.values():
        together.update(memory_of)
    _native.hold(sum(together.values()))


def _stop_counting(number):
    _held.pop(number, None)
    _tell_held()


def _rng_of_now():
    """Some kilobytes, asked for once more where they are refused: nobody else answers for them."""
    rng = Rng()
    try:
        rng.take()
    except torch.OutOfMemoryError:
        rng.take()
    return rng


def _check_optimizer(model, optimizer):
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError("optimizer is a %s; accepted: a torch.optim.Optimizer" % type(optimizer).__name__)
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
        raise ValueError("optimizer is %s, whose step() needs a closure; accepted: optimisers that step without" % name)
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError("optimizer is SparseAdam, whose gradients are sparse; accepted: optimisers of dense gradients")
    own = set(map(id, model.parameters()))
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in own:
                raise ValueError("optimizer has a parameter of shape %s in group %d that is none of the model's"
                                 % (tuple(parameter.shape), index))
    if not any(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("optimizer has no parameter that requires a gradient")


def _check_device(model):
    devices = sorted({str(t.device) for t in list(model.parameters()) + list(model.buffers())})
    if devices != ["cpu"]:
        raise NotImplementedError("the model is on %s; accepted: cpu (docs/python.md says what has run)"
                                  % ", ".join(devices))
    return torch.device("cpu")


def _check_gradients(model):
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise ValueError("%s is %s(sparse=True), whose gradients are sparse; accepted: dense gradients"
                             % (name or "model", type(module).__name__))


def _check_policy(options):
    for name, value in options.items():
        if name not in _policy:
            raise TypeError("memtrain.Trainer has no option %r; accepted: %s" % (name, ", ".join(sorted(_policy))))
        if isinstance(value, bool) != (_policy[name] is bool) or not isinstance(value, (bool, int)):
            raise TypeError("%s is %r; accepted: a %s" % (name, value, _policy[name].__name__))


class Trainer:
    """
    Steps of a model inside a budget of memory. Each step cuts its batch into chunks that fit, adds up their gradients
    and calls optimizer.step() once. Where memory runs out, what is missing is done again in other chunks; where not
    even the smallest fits, the step is taken back whole and memtrain.OutOfMemory raised.

    loss_fn(model, *batch) returns the loss of these samples, a mean: a tensor of one number, or (loss, units) where the
    mean is over something else than samples, tokens say, or a dict with "loss", and "units" and metrics where wanted:
    means over the same. A chunk has the same arguments as the batch, with fewer samples in dimension 0.

    budget          for all tensors of the process, see memtrain.set_budget; None: what is set, or the default
    clip_norm       as torch.nn.utils.clip_grad_norm_ between backward and step; None: no clipping
    before_update   called with the model when the gradients of the batch are in .grad, before optimizer.step()
    needs_whole_batch  the loss couples the samples, and the batch must not be cut
    planned_memory  chunks lie in one piece of memory, each tensor at a place that is planned
    apply_not_finite   an update is made where loss or clipped norm is not finite; else that step is taken back
    trace           called with each line of the trace (docs/trace.md)
    micro_batch, min_micro_batch, max_micro_batch, deterministic, max_retries, clear_every, keep_chunks
                    as in mt_policy_options (docs/policy.md)
    """

    def __init__(self, model, loss_fn, optimizer, budget=None, *, clip_norm=None, before_update=None,
                 needs_whole_batch=False, planned_memory=True, apply_not_finite=False, trace=None, **policy):
        if not isinstance(model, torch.nn.Module):
            raise TypeError("model is a %s; accepted: a torch.nn.Module" % type(model).__name__)
        if not callable(loss_fn):
            raise TypeError("loss_fn is a %s; accepted: a function of model and batch" % type(loss_fn).__name__)
        _check_policy(policy)
        _check_optimizer(model, optimizer)
        _check_gradients(model)
        self._device = _check_device(model)
        if budget is not None or not _native.installed():
            set_budget(budget)
        self._number = next(_numbers)
        _count_existing(self._number, model, optimizer)
        weakref.finalize(self, _stop_counting, self._number)
        self._backend = Backend(model, loss_fn, optimizer, clip_norm, before_update, needs_whole_batch,
                                apply_not_finite)
        self._core = _native.Core(self._backend, dict(policy, apply_not_finite=apply_not_finite), trace, planned_memory)
        self._backend.core = weakref.proxy(self._core)
        self._process, self._busy = os.getpid(), threading.Lock()

    def _run(self, function, batch):
        """function(samples) for a batch; one at a time, and in the process that made the trainer."""
        if os.getpid() != self._process:
            raise RuntimeError("this is a child of the process that made the trainer: a trainer belongs to one process")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("the trainer is busy: a step is called inside of a step, or by another thread")
        backend = self._backend
        try:
            backend.batch = Batch(batch, self._device)
            report = Report(function(backend.batch.count))
            report["metrics"] = backend.means() if backend.units else {}
            return report
        finally:
            backend.batch = None
            self._busy.release()

    def step(self, *batch):
        """
        One step of the optimiser on a batch of tensors, tuples and dicts, whose dimension 0 are the samples. Gradients
        are cleared, so .grad is None afterwards. Raises what loss_fn raises, with everything as it was before.
        """
        return self._run(self._core.step, batch)

    def evaluate(self, *batch):
        """Loss and metrics without gradients, in chunks, with the model in evaluation mode meanwhile."""
        modules = [(module, module.training) for module in self._backend.model.modules()]
        rng = _rng_of_now()

        def evaluate(samples):
            self._backend.reset()
            self._backend.model.eval()
            return self._core.evaluate(samples)
        try:
            return self._run(evaluate, batch)
        finally:
            rng.put_back()
            for module, training in modules:
                module.training = training

    def set_chunks(self, *samples):
        """The chunks of the next step, in place of those that would be chosen."""
        self._core.set_chunks(list(samples))

    def explain(self):
        """Why the last step or evaluation did not fit, as a text; "" where it did."""
        return self._core.explain()

    def report(self):
        """The run so far."""
        return Report(self._core.summary())
