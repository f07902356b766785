"""The trainer, and the budget of the process."""
import contextlib
import inspect
import os
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, Mapping, Optional, TextIO, Tuple, TypeVar, Union

import torch

from . import _native, _state
from ._backend import Backend, check_own
from ._batch import Batch, refuse_inference
from ._check import Check, CheckReport
from ._report import EvalReport, Report, RunReport, StepReport, follow
from ._undo import Rng

# What loss_fn returns: a loss, (loss, units), or a dict with "loss" and perhaps "units" and metrics.
Number = Union[torch.Tensor, float, int]
Output = Union[torch.Tensor, Tuple[torch.Tensor, Number], Mapping[str, Number]]
Budget = Union[str, int, None]
Device = Union[str, torch.device]
Item = TypeVar("Item")

_policy = {"micro_batch": int, "min_micro_batch": int, "max_micro_batch": int, "clear_every": int,
           "deterministic": bool, "max_retries": int, "keep_chunks": int}
_fused = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_held: Dict[int, Dict[int, int]] = {}  # of each trainer that lives: the memory of its tensors that the budget's allocator did not make
_numbers = iter(range(1, 1 << 62))
_least = {"clear_every": -2, "keep_chunks": -1}  # of options that are numbers; others: 0
_is_child_told = _is_child = False  # a child is to be told that it is one; this process is such a child


def _enter_child():
    global _is_child
    _is_child = True
    _native.enter_child()


def set_budget(budget: Budget = None, device: Device = "cpu") -> None:
    """
    The most that all tensors of the process may take on a device: "6GiB", "600MiB" or bytes; None: nine tenths of what
    the host has left, or 0.95 of what is free on the card. On the CPU, tensors that were made before the first call are
    not counted, but for those of a trainer's model and optimiser, which count while the trainer lives. On a card the limit
    is on what torch's allocator reserves. Raises ValueError for a device that is not here, and names those that are.
    """
    global _is_child_told
    size, where = _bytes_of(budget), _device_of(device)
    if where.type != "cpu":
        _native.set_card_budget(str(where), size)
        return
    _native.install()
    if not _is_child_told:
        # Pages that wait for a chunk: the parent's next one would copy them, and leave a child the old ones.
        os.register_at_fork(before=_native.drop_pages, after_in_child=_enter_child)
        _is_child_told = True
    _native.set_budget(size)


def _budget_of(device):
    """What set_budget takes to set it again."""
    if device.type != "cpu":
        return _native.card_memory(str(device))["budget_bytes"] or None
    return (_native.budget() or None) if _native.installed() else None


def _bytes_of(budget, name="budget"):
    if budget is None:
        return 0
    try:
        has_unit = not isinstance(budget, str) or not budget.strip().isdigit()
        if isinstance(budget, (str, int)) and not isinstance(budget, bool) and has_unit:
            size = _native.parse_size(str(budget))
            if size > 0:
                return size
    except ValueError:
        pass
    raise ValueError('%s is %r; accepted: bytes as a number, or a text with a unit such as "6GiB" or "600MiB", above 0' % (name, budget))


def _device_of(device):
    """The device by its name. ValueError where it is none of those that are here."""
    here, known = _native.devices(), None
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError):
        pass
    if known is not None and known.type != "cpu" and known.index is None:
        known = torch.device(known.type, 0)
    if known is None or ("cpu" if known.type == "cpu" else str(known)) not in here:
        raise ValueError("device is %s; accepted: %s" % (device, ", ".join(here)))
    return torch.device("cpu") if known.type == "cpu" else known


def memory(device: Device = "cpu") -> Dict[str, int]:
    """
    Bytes of tensors: budget_bytes, allocated_bytes (now) and peak_bytes (so far; 0 on MPS, which keeps none). Of a card
    also reserved_bytes, which its allocator holds. Of the CPU also those of the process, code and libraries included:
    resident_bytes (now) and peak_resident_bytes (so far). Raises RuntimeError where no budget of the CPU has been set,
    ValueError for a device that is not here.
    """
    where = _device_of(device)
    if where.type != "cpu":
        return _native.card_memory(str(where))
    if not _native.installed():
        raise RuntimeError("memtrain.memory: no budget has been set")
    return {"budget_bytes": _native.budget(), "allocated_bytes": _native.allocated(), "peak_bytes": _native.peak(),
            "resident_bytes": _native.resident_bytes(), "peak_resident_bytes": _native.peak_resident_bytes()}


def predict_resident(tensors: Budget = None) -> int:
    """
    The most bytes that the process will hold in memory while its tensors take at most so many: "300MiB" or bytes; None:
    the budget. An estimate: memory of others than tensors is taken to stay as it is, so ask after the first steps. Workers
    of a DataLoader are other processes, and are not in it. Raises RuntimeError where no budget has been set.
    """
    if not _native.installed():
        raise RuntimeError("memtrain.predict_resident: no budget has been set")
    return _native.predict_resident(_bytes_of(tensors, "tensors") or _native.budget())


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


def _rng_of_now(device):
    """Some kilobytes, asked for once more where they are refused: nobody else answers for them."""
    rng = Rng(device)
    try:
        rng.take()
    except torch.OutOfMemoryError:
        rng.take()
    return rng


def _make_optimizer(model, optimizer, lr):
    """The optimiser, or the fused one of that name."""
    if not isinstance(optimizer, str):
        if lr is not None:
            raise ValueError("lr is %r beside an optimizer that has its own; accepted: None" % (lr,))
        return optimizer
    if optimizer not in _fused:
        raise ValueError("optimizer is %r; accepted: a torch.optim.Optimizer, or %s" % (optimizer, ", ".join(_fused)))
    if not (isinstance(lr, (int, float)) and lr > 0):
        raise ValueError("lr is %r; accepted: a number above 0 beside optimizer=%r" % (lr, optimizer))
    return _fused[optimizer]((p for p in model.parameters() if p.requires_grad), lr, fused=True)


def _check_optimizer(model, optimizer):
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError("optimizer is a %s; accepted: a torch.optim.Optimizer, or a name" % type(optimizer).__name__)
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
        raise ValueError("optimizer is %s, whose step() needs a closure; accepted: optimisers that step without" % name)
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError("optimizer is SparseAdam, whose gradients are sparse; accepted: optimisers of dense gradients")
    check_own(model, optimizer)
    if not any(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("optimizer has no parameter that requires a gradient")


def _leave_inference_mode():
    """Tensors that live longer than a call are made outside of it."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def _check_device(model):
    """The one device of the model."""
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError("the parameter %s has no shape yet: run the model once before" % name)
        refuse_inference("the parameter %s" % name, parameter)
    devices, here = sorted({str(t.device) for t in list(model.parameters()) + list(model.buffers())}), _native.devices()
    if len(devices) != 1 or devices[0] not in here:
        raise ValueError("the model is on %s; accepted: one of %s" % (", ".join(devices) or "no device", ", ".join(here)))
    return torch.device(devices[0])


def _take_work_spaces(device):
    """
    cuBLAS keeps memory of the card from a thread's first product on, and cuBLASLt from the first with a bias: this thread
    and that of backward passes take theirs before a chunk is recorded.
    """
    if device.type != "cuda":
        return
    with torch.enable_grad():
        row = torch.ones(16, device=device)
        square = torch.ones(16, 16, device=device, requires_grad=True)

        def multiply(gradient):
            torch.addmm(row, gradient, gradient)
        square.register_hook(multiply)
        torch.addmm(row, torch.mm(square, square), square).sum().backward()


def _check_scaler(scaler):
    """The scaler, or None where it does nothing."""
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError("scaler is a %s; accepted: a torch.amp.GradScaler" % type(scaler).__name__)
    return scaler if scaler.is_enabled() else None


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
            raise TypeError("%s is %r; accepted: %s" % (name, value, _policy[name].__name__))
        least = _least.get(name, 0)
        if not least <= value < 1 << 31:
            raise ValueError("%s is %r; accepted: a number from %d to %d" % (name, value, least, (1 << 31) - 1))


class Trainer:
    """
    Steps of a model inside a budget of memory. Each step cuts its batch into chunks that fit, adds up their gradients
    and calls optimizer.step() once. Where memory runs out, what is missing is done again in other chunks; where not
    even the smallest fits, the step is taken back whole and memtrain.OutOfMemory raised.

    model           a torch.nn.Module on one device: the CPU, or a card of CUDA, XPU or MPS. Batches are on the same
    loss_fn         loss_fn(model, *batch) returns the loss of these samples, a mean: a tensor of one number, or
                    (loss, units) where the mean is over something else than samples, tokens say, or a dict with "loss",
                    and "units" and metrics where wanted: means over the same. A chunk has the same arguments as the
                    batch, with fewer samples in dimension 0
    optimizer       any of torch.optim over the model's parameters that steps without a closure; or "sgd", "adam" or
                    "adamw" with lr=, which is torch's with fused=True over what trains, and then trainer.optimizer
    budget          for all tensors of the process on that device, see memtrain.set_budget; None: what is set, or the
                    default
    clip_norm       as torch.nn.utils.clip_grad_norm_ between backward and step; None: no clipping
    scaler          a torch.amp.GradScaler: losses are scaled, gradients unscaled before clipping. A step whose gradient
                    overflows is skipped, which the report says, and the scale becomes smaller
    before_update   called with the model when the gradients of the batch are in .grad, before optimizer.step(); it may
                    change them, but not drop them all
    needs_whole_batch  the loss couples the samples, and the batch must not be cut
    planned_memory  chunks lie in one piece of memory, each tensor at a place that is planned; on the CPU alone
    apply_not_finite   an update is made where loss or clipped norm is not finite; else that step is taken back
    trace           called with each line of the trace (docs/trace.md)
    micro_batch, min_micro_batch, max_micro_batch   samples of a chunk
    deterministic, max_retries, clear_every, keep_chunks   as in mt_policy_options (docs/policy.md)

    Raises ValueError, TypeError or NotImplementedError, which name argument, value and what is accepted.
    """

    def __init__(self, model: torch.nn.Module, loss_fn: Callable[..., Output],
                 optimizer: Union[torch.optim.Optimizer, str], budget: Budget = None, *, lr: Optional[float] = None,
                 clip_norm: Optional[float] = None, scaler: Any = None,
                 before_update: Optional[Callable[[torch.nn.Module], Any]] = None, needs_whole_batch: bool = False,
                 planned_memory: bool = True, apply_not_finite: bool = False,
                 trace: Optional[Callable[[str], Any]] = None, **policy: int) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError("model is a %s; accepted: a torch.nn.Module" % type(model).__name__)
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise NotImplementedError("model is a DistributedDataParallel; accepted: a model of one process")
        if not callable(loss_fn):
            raise TypeError("loss_fn is a %s; accepted: a function of model and batch" % type(loss_fn).__name__)
        if clip_norm is not None and not (isinstance(clip_norm, (int, float)) and clip_norm > 0):
            raise ValueError("clip_norm is %r; accepted: a number above 0, or None" % (clip_norm,))
        for name, function in (("before_update", before_update), ("trace", trace)):
            if function is not None and not callable(function):
                raise TypeError("%s is a %s; accepted: a function, or None" % (name, type(function).__name__))
        if _is_child:
            raise RuntimeError("this is a forked child of a process with a budget, and has none: a trainer is made in the "
                               "parent, or in a process of its own (spawn)")
        _check_policy(policy)
        scaler = _check_scaler(scaler)
        optimizer = _make_optimizer(model, optimizer, lr)
        _check_optimizer(model, optimizer)
        _check_gradients(model)
        self._device = _check_device(model)
        is_cpu = self._device.type == "cpu"
        before = _budget_of(self._device)
        if budget is not None or (is_cpu and not _native.installed()):
            set_budget(budget, self._device)
        self._number = next(_numbers)
        try:
            if is_cpu:
                _count_existing(self._number, model, optimizer)
                weakref.finalize(self, _stop_counting, self._number)
            _take_work_spaces(self._device)
            self._backend = Backend(model, self._device, loss_fn, optimizer, clip_norm, before_update, needs_whole_batch,
                                    apply_not_finite, scaler)
            policy["apply_not_finite"] = apply_not_finite
            with _leave_inference_mode():
                self._core = _native.Core(self._backend, str(self._device), policy, trace, planned_memory)
        except BaseException:
            if budget is not None:
                set_budget(before, self._device)
            raise
        self._backend.core = weakref.proxy(self._core)
        self._process, self._gate = os.getpid(), _native.Gate()
        self._last: Optional[Report] = None
        self._steps_before = self._skipped = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a memtrain.Trainer cannot be copied or pickled: make one for the copy of the model; save() writes the "
                        "state of the run")

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The one that the trainer was made with, or made."""
        return self._backend.optimizer

    def _alone(self, what, function):
        """function(), one at a time, and in the process that made the trainer."""
        if os.getpid() != self._process:
            raise RuntimeError("this is a child of the process that made the trainer: a trainer belongs to one process")
        refusal = "the trainer is busy: %s is called inside of a step, or by another thread" % what
        inside = "a step inside a call of another trainer, which could not take it back: run one after the other"
        with _leave_inference_mode():
            return self._gate.run(function, refusal, inside if what == "a step" else "")

    def _run(self, kind, what, function, batch):
        """function(samples) for a batch."""
        backend = self._backend

        def run():
            try:
                backend.batch = Batch(batch, self._device, trains=kind is StepReport)
                report = kind(function(backend.batch.count))
                report["metrics"] = backend.means() if backend.units else {}
                self._last = report
                return report
            finally:
                backend.batch = None
        return self._alone(what, run)

    def step(self, *batch: Any) -> StepReport:
        """
        One step of the optimiser on a batch of tensors, tuples and dicts, whose dimension 0 are the samples: [n, ...],
        with the same n for all. Gradients are cleared, so .grad is None afterwards. Raises what loss_fn raises, with
        everything as it was before, and memtrain.OutOfMemory where not even the smallest chunk fits.
        """
        report = self._run(StepReport, "a step", self._core.step, batch)
        report["step"] += self._steps_before
        if report["skipped"]:
            self._skipped += 1
        if self._backend.scaler is not None:
            report["scale"] = self._backend.scaler.get_scale()
        return report

    def evaluate(self, *batch: Any) -> EvalReport:
        """Loss and metrics without gradients, in chunks, with the model in evaluation mode meanwhile."""
        modules = [(module, module.training) for module in self._backend.model.modules()]
        rng = _rng_of_now(self._device)

        def evaluate(samples):
            self._backend.reset()
            self._backend.updates = False
            self._backend.model.eval()
            return self._core.evaluate(samples)
        try:
            return self._run(EvalReport, "an evaluation", evaluate, batch)
        finally:
            rng.put_back()
            for module, training in modules:
                module.training = training

    def set_chunks(self, *samples: int) -> None:
        """The chunks of the next step, in place of those that would be chosen. They add up to its batch."""
        self._core.set_chunks(list(samples))

    def explain(self) -> str:
        """Why the last step or evaluation did not fit, as a text of several lines; "" where it did."""
        return self._core.explain()

    def report(self) -> RunReport:
        """The run so far."""
        report = RunReport(steps=0, skipped=self._skipped)
        report.update(self._core.summary())
        report["steps"] += self._steps_before
        report["peak_resident_bytes"] = _native.peak_resident_bytes()
        if self._device.type == "cpu":
            report["predicted_resident_bytes"] = predict_resident()
        return report

    def check(self, *batch: Any) -> CheckReport:
        """
        Whether steps in chunks give the numbers of the whole batch, and steps that are retried too: call it once with a
        batch, while the model is new. A few samples run, and everything is put back. The report's text says what is
        wrong and what to do. It cannot see a coupling that exists in training mode alone. Raises memtrain.OutOfMemory where
        not even the smallest chunk fits.
        """
        def check():
            self._backend.batch = Batch(batch, self._device)
            try:
                return Check(self._backend, self._backend.batch)()
            finally:
                self._backend.batch = None
        return self._alone("a check", check)

    def save(self, path: Union[str, "os.PathLike[str]"], **others: Any) -> None:
        """
        Writes all that a run needs to go on bit for bit: parameters, buffers, the optimiser, the scaler, the generators
        of torch, Python and NumPy, and the count of steps. Others by name: what has a state_dict(), such as a scheduler
        or an EMA, and plain values, such as the epoch. The file is there whole, or the one from before is; torch.load
        reads it with weights_only=True. Raises TypeError (a value that is not plain), OSError.
        """
        def save():
            parts = {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in others.items()}
            optimizer, scaler = _state.optimizer_state(self._backend.optimizer), self._backend.scaler
            for name, value in list(parts.items()) + [("the optimizer's state", optimizer)]:
                _state.check_plain(name, value)
            _state.write(path, {
                "memtrain": _state.FORMAT, "version": _native.version, "model": _state.model_state(self._backend.model),
                "optimizer": optimizer, "scaler": scaler.state_dict() if scaler is not None else None,
                "rng": _state.rng_state(self._device), "steps": self.report().steps, "skipped": self._skipped, "others": parts,
                "plain": [name for name, value in others.items() if not hasattr(value, "state_dict")]})
        self._alone("save", save)

    def load(self, path: Union[str, "os.PathLike[str]"], **others: Any) -> Dict[str, Any]:
        """
        Puts in place what save has written, and returns its plain values by name. Others by name: what has a
        load_state_dict(). Raises ValueError (another model or optimiser, no such file of save's), KeyError (others that
        the file has not) or OutOfMemory, before anything has changed; OSError.
        """
        def load():
            backend, state = self._backend, _state.read(path)
            model = _state.check_model(path, backend.model, state["model"])
            _state.check_optimizer(path, backend.optimizer, state["optimizer"])
            if (backend.scaler is None) != (state["scaler"] is None):
                raise ValueError("%s was saved with%s a scaler" % (path, "out" if state["scaler"] is None else ""))
            for name in others:
                if name not in state["others"] or name in state["plain"]:
                    raise KeyError("%s has no state named %r; it has %s"
                                   % (path, name, sorted(set(state["others"]) - set(state["plain"]))))
            put_optimizer = _state.prepare_optimizer(backend.optimizer, state["optimizer"])
            put_rng = _state.prepare_rng(state["rng"], self._device)
            parts = _state.clone(state["others"])
            with torch.no_grad():
                for name, tensor in model.items():
                    tensor.copy_(state["model"][name])
            put_optimizer()
            if backend.scaler is not None:
                backend.scaler.load_state_dict(state["scaler"])
            for name, other in others.items():
                other.load_state_dict(parts[name])
            self._steps_before = state["steps"] - self._core.summary()["steps"]
            self._skipped = state["skipped"]
            put_rng()
            return {name: parts[name] for name in state["plain"]}
        return self._alone("load", load)

    def progress(self, batches: Iterable[Item], label: str = "", file: Optional[TextIO] = None) -> Iterator[Item]:
        """
        The batches, one by one, with a line about the loop: batches, loss, chunks, samples a second, peak. On a terminal
        the line is rewritten as the loop goes; elsewhere it is written once, at the end. file: default sys.stderr.
        """
        return follow(batches, lambda: self._last, label, file)
