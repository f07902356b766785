"""The backend of a trainer: the parts of a step, as memtrain/backend.h says what each promises."""
import math
from collections.abc import Mapping

import torch

from . import _native
from ._batch import refuse_inference
from ._helpers import forget
from ._pending import Pending
from ._undo import Buffers, OptimizerState, Rng, ScalerState, copied_bytes, of_one_kind


def _check_number(what, value):
    """The number, or the tensor of one."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError("loss_fn returned %s of shape %s; accepted: one number" % (what, tuple(value.shape)))
        return value.detach()
    if isinstance(value, (bool, int, float)):
        return float(value)
    raise TypeError("loss_fn returned %s of type %s; accepted: a number" % (what, type(value).__name__))


def read_output(output):
    """The loss, the units or None, and the metrics, numbers or tensors of one, of what loss_fn has returned."""
    units, metrics = None, {}
    if isinstance(output, Mapping):
        if "loss" not in output:
            raise ValueError("loss_fn returned a dict without 'loss', with %s" % sorted(map(str, output)))
        metrics = {key: value for key, value in output.items() if key not in ("loss", "units")}
        units, output = output.get("units"), output["loss"]
    elif isinstance(output, tuple):
        if len(output) != 2:
            raise ValueError("loss_fn returned a tuple of %d; accepted: (loss, units)" % len(output))
        output, units = output
    if not isinstance(output, torch.Tensor):
        raise TypeError("loss_fn returned a loss of type %s; accepted: a tensor" % type(output).__name__)
    if output.numel() != 1:
        raise ValueError("loss_fn returned a loss of shape %s; accepted: one number, the mean over the chunk"
                         % (tuple(output.shape),))
    if units is not None:
        units = float(_check_number("units", units))
        if not (units >= 0 and math.isfinite(units)):
            raise ValueError("loss_fn returned units %g; accepted: a number, at least 0" % units)
    return output, units, {str(key): _check_number("metric %r" % key, value) for key, value in metrics.items()}


def check_own(model, optimizer):
    own = set(map(id, model.parameters()))
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in own:
                raise ValueError("optimizer has a parameter of shape %s in group %d that is none of the model's; a layer that "
                                 "was replaced, or moved to another kind of device, has new ones"
                                 % (tuple(parameter.shape), index))


class Backend:
    def __init__(self, model, device, loss_fn, optimizer, clip_norm, before_update, needs_whole_batch, apply_not_finite, scaler):
        self.model, self.device, self.loss_fn, self.optimizer = model, device, loss_fn, optimizer
        self.clip_norm, self.before_update = clip_norm, before_update
        self.needs_whole_batch, self.apply_not_finite = needs_whole_batch, apply_not_finite
        self.scaler = scaler
        self.core = self.batch = self.undo = self.scaler_undo = None
        self.rng, self.chunk_rng = Rng(device), Rng(device)
        self.buffers, self.chunk_buffers = Buffers(), Buffers()
        self.parameters, self.all_parameters, self.sums = self.find_parameters(), [], None
        self.before, self.touched, self.versions, self.hooks = [], [], [], []
        self.fresh, self.share, self.has_units = True, 0.0, False
        self.units, self.metric_sums = 0.0, {}
        self.pending, self.collected = Pending(device) if device.type != "cpu" else None, []
        self.kept = None  # of an evaluation: units and sums before the chunks that are not told yet
        self.holds, self.kinds = False, []  # there are to be sums, of these parameters
        self.updates = False  # the last step has come as far as its update

    # ---- what the model is ---------------------------------------------------------------------------------

    def find_parameters(self):
        """Those that the optimiser updates and that train."""
        return [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]

    def normalises(self):
        norm = torch.nn.modules.batchnorm._BatchNorm
        return any(isinstance(m, norm) and m.training for m in self.model.modules())

    def describe(self):
        norm = self.normalises()
        if self.core is None:  # what a step keeps is there before the first is planned; later calls ask for no memory
            for rng, buffers in ((self.rng, self.buffers), (self.chunk_rng, self.chunk_buffers)):
                rng.take()
                buffers.take(self.model)
        return {
            "version": torch.__version__, "min_micro_batch": 2 if norm else 1, "normalises_over_batch": norm,
            "needs_whole_batch": self.needs_whole_batch,
            "parameter_bytes": sum(p.nbytes for p in self.model.parameters()),
            "gradient_bytes": sum(p.nbytes for p in self.parameters),
            "optimizer_bytes": self.optimizer_bytes(),
            "buffer_bytes": sum(buffer.nbytes for buffer in self.model.buffers()),
        }

    def optimizer_bytes(self):
        state = [value for kept in self.optimizer.state.values() if isinstance(kept, dict) for value in kept.values()]
        return sum(value.nbytes for value in state if isinstance(value, torch.Tensor))

    def shape(self):
        modes = [module.training for module in self.model.modules()]
        trains = [p.requires_grad for p in self.model.parameters()]
        return self.batch.shape((modes, trains))

    def is_finite(self):
        with torch.no_grad():
            return all(bool(torch.isfinite(p).all()) for p in self.parameters)

    # ---- gradients -----------------------------------------------------------------------------------------

    def hold_gradients(self, on):
        self.sums, self.holds = None, False
        if on:
            parameters = self.find_parameters()
            self.sums, self.kinds, self.holds = self.make_sums(parameters), self.kinds_of(parameters), True

    @staticmethod
    def kinds_of(parameters):
        return [(id(p), p.dtype, p.shape, p.device) for p in parameters]

    @staticmethod
    def make_sums(parameters):
        return [torch.empty_like(p, requires_grad=False) for p in parameters]

    @staticmethod
    def empty(sums):
        """-0.0: added to it, each number stays what it is, -0.0 too."""
        with torch.no_grad():
            for (part,) in of_one_kind(sums):
                if part[0].device.type == "cpu":
                    for total in part:
                        total.fill_(-0.0)
                else:
                    torch._foreach_zero_(part)
                    torch._foreach_neg_(part)

    def set_gradients(self, gradients):
        for parameter, gradient in zip(self.all_parameters, gradients):
            parameter.grad = gradient

    def clear_gradients(self):
        for parameter in self.all_parameters:
            parameter.grad = None

    def check_place(self, parameters):
        for parameter in parameters:
            if parameter.device != self.device:
                raise ValueError("the model has moved to %s, and the trainer was made on %s: make another one"
                                 % (parameter.device, self.device))

    def begin(self):
        self.updates = False
        parameters = self.find_parameters()
        inside, own = set(map(id, parameters)), {id(p): p for p in self.model.parameters()}
        if not inside <= own.keys():  # a group was added, or a layer replaced, since the trainer was made
            check_own(self.model, self.optimizer)
        kinds = self.kinds_of(parameters)
        if kinds != self.kinds:
            self.check_place(parameters)
            self.sums = None
        if self.holds and self.sums is None:
            self.sums = self.make_sums(parameters)
        self.kinds = kinds
        self.scaler_undo = ScalerState(self.scaler, self.device) if self.scaler is not None else None
        self.rng.take()
        self.buffers.take(self.model)
        self.empty(self.sums or [])
        self.parameters = parameters
        self.all_parameters = parameters + [p for number, p in own.items() if number not in inside]
        self.versions = [p._version for p in self.all_parameters]
        self.before = [p.grad for p in self.all_parameters]
        self.touched = [False] * len(parameters)
        self.reset()
        try:
            self.clear_gradients()
        except BaseException:  # an interrupt: what has not begun is not rolled back
            self.set_gradients(self.before)
            raise

    def reset(self):
        self.fresh, self.share, self.has_units = True, 0.0, False
        self.units, self.metric_sums, self.collected, self.kept = 0.0, {}, [], None
        if self.pending is not None:
            self.pending.clear()

    def mark(self):
        if not self.fresh:
            self.chunk_rng.take()
            self.chunk_buffers.take(self.model)

    def rewind(self):
        self.stop_telling()
        self.clear_gradients()
        (self.buffers if self.fresh else self.chunk_buffers).put_back()
        (self.rng if self.fresh else self.chunk_rng).put_back()

    def rollback(self):
        self.stop_telling()
        if self.undo is not None:
            self.undo.put_back()
            self.undo = None
        if self.scaler_undo is not None:
            self.scaler_undo.put_back()
        self.buffers.put_back()
        self.rng.put_back()
        self.set_gradients(self.before)
        self.reset()

    # ---- a chunk -------------------------------------------------------------------------------------------

    def name_of(self, parameter):
        return next(name for name, p in self.model.named_parameters() if p is parameter)

    def check_unwritten(self):
        self.batch.check_unwritten()
        for parameter, version in zip(self.all_parameters, self.versions):
            if parameter._version != version:
                raise ValueError("loss_fn writes to the parameter %s, which a step that is taken back could not undo: "
                                 "do it after trainer.step()" % self.name_of(parameter))

    def check_gradients_untouched(self, apart):
        """What loss_fn has done to .grad would be lost, or counted twice."""
        for index, parameter in enumerate(self.parameters):
            total, gradient = None if apart else self.sums[index], parameter.grad
            if gradient is not total or (total is not None and total._version != self.sum_versions[index]):
                raise ValueError("loss_fn changes the .grad of %s, by backward() or zero_grad(): trainer.step does both"
                                 % self.name_of(parameter))

    def tell_gradients(self):
        """Has the recording of a chunk know its gradients, until stop_telling()."""
        hooks = self.hooks

        def tell(parameter):
            if hooks and parameter.grad is not None:  # a hook of the model's may have taken it
                self.core.tell_gradient(parameter.grad.data_ptr())
        for parameter in self.parameters:
            hooks.append(parameter.register_post_accumulate_grad_hook(tell))

    def stop_telling(self):
        """May be called again where an interrupt came in between. A hook that one has left behind does nothing."""
        while self.hooks:
            self.hooks[-1].remove()
            self.hooks.pop()

    @staticmethod
    def check_graph(loss):
        refuse_inference("the loss", loss)
        if loss.is_complex():
            raise ValueError("the loss is %s; accepted: a real number" % loss.dtype)
        if not loss.requires_grad:
            raise ValueError("the loss has no graph: it was detached, computed without gradients, or from nothing that "
                             "trains")

    def backward(self, loss, weight):
        self.check_graph(loss)
        try:
            if self.core.is_recording():
                self.tell_gradients()
            weighted = loss * weight
            (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()
        finally:
            self.stop_telling()

    def add_gradients(self, apart):
        """The chunk's gradients are added to the sums, or are there already; without sums they stay where they are."""
        totals, added = [], []
        for index, parameter in enumerate(self.parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout != torch.strided:
                raise NotImplementedError("a gradient is %s, of a parameter of shape %s; accepted: dense gradients"
                                          % (gradient.layout, tuple(parameter.shape)))
            if self.sums is not None and not apart:
                self.touched[index] |= gradient._version > self.sum_versions[index]
                continue
            self.touched[index] = True
            if self.sums is not None:
                totals.append(self.sums[index])
                added.append(gradient)
        for part, gradients in of_one_kind(totals, added):
            torch._foreach_add_(part, gradients)

    def count(self, loss, over, metrics):
        """Figures of a chunk that is through. The sum of its loss, and what that is over."""
        if over:
            for name, value in metrics.items():
                self.metric_sums[name] = self.metric_sums.get(name, 0.0) + value * over
        return (loss * over if over else 0.0), float(over)

    def settle(self):
        """Waits for the chunks whose figures are still on the card. Whether there were any."""
        told = self.pending.read() if self.pending is not None else []
        for values, over, seconds in told:
            self.collected.append(self.count(values.pop(None), over, values) + (seconds,))
        return bool(told)

    def collect(self):
        """Sum of the loss, what it is over, and seconds, of the oldest chunk that was not waited for; settle() comes first."""
        return self.collected.pop(0)

    def compute(self, first, count, weight, apart, deferred):
        """Forward and backward pass. The weight by units, what the loss is over, the loss and metrics; None: they wait."""
        loss, units, metrics = read_output(self.loss_fn(self.model, *self.batch.cut(first, count)))
        over = count if units is None else units
        if units is not None:
            self.has_units = True
            weight *= units / count
        self.check_unwritten()  # before autograd finds it, which names no tensor
        self.check_gradients_untouched(apart)
        if deferred and self.pending.takes([loss, *metrics.values()]):
            self.pending.put({None: loss.detach(), **metrics}, over, count)
            metrics = None
        else:
            metrics = {name: float(value) for name, value in metrics.items()}
        if weight:
            self.backward(loss, weight)
        return weight, over, None if metrics is None else (float(loss.detach()), metrics)

    def accumulate(self, first, count, weight, marked, deferred):
        """What count() returns; None: the chunk is not waited for, see collect()."""
        apart = marked or self.sums is None
        if deferred:
            self.pending.begin()
        self.set_gradients([None] * len(self.all_parameters))
        if not apart:
            self.set_gradients(self.sums)
            self.sum_versions = [total._version for total in self.sums]
        try:
            with torch.enable_grad():
                weight, over, figures = self.compute(first, count, weight, apart, deferred)
        finally:
            torch.clear_autocast_cache()  # of an autocast around the step: weights in fewer bits, with their graph
        self.check_unwritten()
        with torch.no_grad():
            self.add_gradients(apart)
        if self.sums is not None:
            self.clear_gradients()
        self.fresh = False
        self.share += weight
        self.units += over
        if figures is None:
            self.pending.keep()
            return None
        loss, metrics = figures
        return self.count(loss, over, metrics)

    def evaluate(self, first, count, deferred):
        """What count() returns; None: the chunk is not waited for, see collect(). keep_for_evaluation() comes first."""
        if deferred:
            self.pending.begin()
        with torch.no_grad():
            loss, units, metrics = read_output(self.loss_fn(self.model, *self.batch.cut(first, count)))
            over = count if units is None else units
            waits = deferred and self.pending.takes([loss, *metrics.values()])
            if waits:
                self.pending.put({None: loss, **metrics}, over, count)
            else:
                loss, metrics = float(loss), {name: float(value) for name, value in metrics.items()}
        self.units += over
        return self.pending.keep() if waits else self.count(loss, over, metrics)

    def keep_for_evaluation(self, deferred):
        """
        What the next chunk is taken back to if it fails. Those whose figures are still to come are run again with it, so it is
        the state before the first of them. A chunk that is waited for begins when these are done.
        """
        if self.collected or (self.pending is not None and self.pending.chunks):
            if not deferred:
                self.settle()
            return
        self.kept = None
        self.chunk_rng.take()
        self.chunk_buffers.take(self.model)
        self.kept = self.units, dict(self.metric_sums)

    def take_back_evaluation(self):
        """May be called twice."""
        if self.kept is None:
            return
        self.chunk_rng.put_back()
        self.chunk_buffers.put_back()
        self.units, self.metric_sums = self.kept[0], dict(self.kept[1])
        self.collected = []
        if self.pending is not None:
            self.pending.clear()
        self.kept = None

    # ---- the update ----------------------------------------------------------------------------------------

    def gather_gradients(self):
        """Each parameter that a chunk has reached gets its sum; of units, divided by what they add up to."""
        sums = self.sums or [p.grad for p in self.parameters]
        self.clear_gradients()
        for parameter, total, touched in zip(self.parameters, sums, self.touched):
            parameter.grad = total if touched else None
        if self.has_units:
            for (part,) in of_one_kind([p.grad for p in self.parameters if p.grad is not None]):
                torch._foreach_div_(part, self.share)

    def clip(self):
        """The norm of the gradient where it is wanted, before clipping."""
        if self.clip_norm is None:
            return math.nan
        return float(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm))

    def keep_for_update(self):
        try:
            return OptimizerState(self.optimizer, self.scaler is not None)
        except torch.OutOfMemoryError as error:
            line = str(error).split("\n")[0]
            forget(error)
        raise torch.OutOfMemoryError(line + ", for the copy of parameters and optimiser state that an update is taken "
                                     "back with (fused=True does without)")

    def explain_update(self):
        """Of a step that failed there: what an update takes. Its state is as before the step."""
        parameters = sum(p.nbytes for p in self.parameters)
        made, copied = self.optimizer_bytes(), copied_bytes(self.optimizer, self.parameters, self.scaler is not None)
        words = ""
        if self.updates and copied:
            words += ("  fused=True in SGD, Adam and AdamW: after the first update it needs no copy of parameters and state, "
                      "%s, to be taken back with\n" % _native.format_size(copied))
        if self.updates and not made:
            words += ("  an optimiser with less state, which the first update makes: %s for Adam and AdamW, %s for SGD with "
                      "momentum, none without\n" % (_native.format_size(2 * parameters), _native.format_size(parameters)))
        return words

    def unscale(self):
        """Whether a gradient overflowed under the scale, which it is divided by."""
        if self.scaler is None:
            return False
        self.scaler.unscale_(self.optimizer)
        return any(bool(found.item()) for found in self.scaler._found_inf_per_device(self.optimizer).values())

    def skip(self, norm):
        self.rollback()
        self.clear_gradients()
        return norm, True, 0.0

    def rate(self):
        """Of the first group of parameters; 0 where it has none, or None."""
        return float(self.optimizer.param_groups[0].get("lr") or 0.0)

    def update(self):
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def apply(self):
        with torch.no_grad():
            self.gather_gradients()
            if self.unscale():
                self.scaler.update()  # to a smaller scale, which stays
                self.scaler_undo = None
                return self.skip(math.inf)
            norm = self.clip()
        if self.before_update is not None:
            self.before_update(self.model)
            if any(self.touched) and all(p.grad is None for p in self.parameters):
                raise ValueError("before_update leaves no gradient, as zero_grad() does: trainer.step clears them itself")
        if not (math.isfinite(norm) or self.clip_norm is None or self.apply_not_finite):
            return self.skip(norm)
        rate = self.rate()
        self.updates = True
        self.undo = self.keep_for_update()
        self.update()
        return norm, False, rate

    def commit(self):
        """The update stays. May be called twice."""
        self.clear_gradients()
        self.undo = self.scaler_undo = None
        self.before = []

    def means(self):
        return {name: total / self.units for name, total in self.metric_sums.items()}
