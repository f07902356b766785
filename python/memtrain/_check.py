"""Trainer.check: whether steps in chunks give the numbers of the whole batch. As memtrain/check.h, for a model of Python's."""
import math
from dataclasses import dataclass
from typing import List

import torch

from . import _native
from ._backend import read_output
from ._batch import Batch, pick
from ._helpers import OutOfMemory, forget
from ._undo import Buffers, Rng

# Relative differences that rounding alone does not make: of the loss, and of the gradient's length.
TOLERANCES = {torch.float64: (1e-9, 1e-7), torch.float32: (1e-5, 1e-3), torch.bfloat16: (5e-2, 2e-1), torch.float16: (5e-2, 2e-1)}
METRIC_TOLERANCE = 0.1


@dataclass
class Finding:
    """kind: "hidden state", "weighting", "coupling", "chunk fails", "no gradient", "written", "metric", "no graph",
    "not finite" or "buffer", which are faults; "random", "normalises" and "skipped" are information."""

    kind: str
    text: str
    name: str = ""           # of a parameter, buffer or metric
    difference: float = 0.0  # relative
    fault: bool = True


class CheckReport:
    """What Trainer.check has found. str() is a text, and bool() is whether there is no fault."""

    def __init__(self, samples: int, findings: List[Finding]) -> None:
        self.samples = samples
        self.findings = sorted(findings, key=lambda finding: not finding.fault)

    @property
    def faults(self) -> List[Finding]:
        return [finding for finding in self.findings if finding.fault]

    def __bool__(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        count = len(self.faults)
        lines = ["checked with %d samples: %d fault%s found" % (self.samples, count, "" if count == 1 else "s")]
        return "\n".join(lines + ["%s%s: %s" % ("" if f.fault else "(", f.kind, f.text + ("" if f.fault else ")"))
                                  for f in self.findings])

    __repr__ = __str__


class _Run:
    """Sums of a run of some chunks: loss, metrics, and the gradient in memory that no budget counts."""

    def __init__(self):
        self.loss_sum, self.units, self.metric_sums, self.gradients = 0.0, 0.0, {}, []

    @property
    def loss(self):
        return self.loss_sum / self.units if self.units else math.nan

    def is_finite(self):
        return math.isfinite(self.loss) and all(bool(torch.isfinite(g).all()) for g in self.gradients if g is not None)

    def metrics(self):
        return {name: total / self.units for name, total in self.metric_sums.items()}


class _Failed(Exception):
    """A loss_fn that raised something, as its cause."""


def _host_copy(tensor):
    """A copy in memory of Python's."""
    if not tensor.numel():
        return tensor.detach().clone()
    copy = torch.frombuffer(bytearray(tensor.nbytes), dtype=tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor.detach())


def _relative(one, other):
    return abs(one - other) / max(abs(one), abs(other), 1e-12) if one != other else 0.0


def _same(one, other):
    """Bit for bit, NaN included."""
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def _squares(tensor):
    """Their sum, in pieces: doubles of a whole tensor might not fit."""
    numbers = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    return sum(float(piece.double().square().sum()) for piece in numbers.split(1 << 20))


def _gradient_difference(one, other):
    """Length of the difference over the longer of the two; also whether all bits are equal."""
    apart = length = 0.0
    equal = True
    for a, b in zip(one.gradients, other.gradients):
        if a is None and b is None:
            continue
        a, b = (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)
        equal = equal and _same(a, b)
        apart += _squares(a - b)
        length += max(_squares(a), _squares(b))
    return (math.sqrt(apart / length) if length else 0.0), equal


class Check:
    def __init__(self, backend, batch):
        self.backend, self.model, self.loss_fn = backend, backend.model, backend.loss_fn
        self.whole = batch
        self.parameters = backend.find_parameters()
        self.findings, self.rng, self.buffers = [], Rng(backend.device), Buffers()
        kinds = {p.dtype for p in self.parameters}
        self.loss_tolerance, self.gradient_tolerance = max(TOLERANCES.get(kind, (5e-2, 2e-1)) for kind in kinds)

    def find(self, kind, text, **options):
        self.findings.append(Finding(kind, text, **options))

    def part(self, *parts):
        """A batch of these parts: each is a range of samples."""
        index = torch.tensor([sample for part in parts for sample in part], device=self.backend.device)
        return Batch(pick(self.whole.values, index), self.backend.device)

    def run(self, batch, chunks, gradients=True):
        """From the same random numbers and buffers each time."""
        self.rng.put_back()
        self.buffers.put_back()
        for parameter in self.model.parameters():
            parameter.grad = None
        run, first = _Run(), 0
        try:
            for count in chunks:
                values = batch.cut(first, count)
                _native.with_refusals_that_end(str(self.backend.device),
                                               lambda: self.run_chunk(run, values, count, gradients))
                first += count
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise _Failed from error
        if gradients:
            run.gradients = [None if p.grad is None else _host_copy(p.grad).div_(run.units or 1) for p in self.parameters]
        return run

    def run_chunk(self, run, values, count, gradients):
        with torch.set_grad_enabled(gradients):
            loss, units, metrics = read_output(self.loss_fn(self.model, *values))
            over = count if units is None else units
            if gradients and over:
                self.backend.check_graph(loss)
                (loss * over).backward()
        run.loss_sum += float(loss.detach()) * over if over else 0.0
        run.units += over
        for name, value in metrics.items():
            run.metric_sums[name] = run.metric_sums.get(name, 0.0) + (value * over if over else 0.0)

    # ---- in training mode ----------------------------------------------------------------------------------

    def training(self, parts):
        batch = self.part(*parts)
        versions = [(path, tensor, tensor._version) for path, tensor in batch.parts]
        kept = [p._version for p in self.model.parameters()]
        one = self.run(batch, [batch.count])
        for path, tensor, version in versions:
            if tensor._version != version:
                self.find("written", "loss_fn writes to %s: write to a copy" % path, name=path)
        for (name, parameter), version in zip(self.model.named_parameters(), kept):
            if parameter._version != version:
                self.find("written", "loss_fn writes to the parameter %s: do it after trainer.step()" % name, name=name)
        if any(finding.kind == "written" for finding in self.findings):
            return
        self.check_numbers(one)
        self.check_again(batch, one)
        self.check_buffers(batch, len(parts[0]))

    def check_numbers(self, run):
        names = {id(p): name for name, p in self.model.named_parameters()}
        without = [names[id(p)] for p, gradient in zip(self.parameters, run.gradients) if gradient is None]
        if without:
            self.find("no gradient", "%d parameter%s, %s first, received no gradient: look for a detach(), or set "
                      "requires_grad to False" % (len(without), "s" * (len(without) > 1), without[0]), name=without[0])
        wrong = [names[id(p)] for p, gradient in zip(self.parameters, run.gradients)
                 if gradient is not None and not bool(torch.isfinite(gradient).all())]
        if not math.isfinite(run.loss) or wrong:
            self.find("not finite", "the loss is %g%s" % (run.loss, ", and the gradient of %s is not finite" % wrong[0]
                                                          if wrong else ""), name=wrong[0] if wrong else "")

    def check_again(self, batch, one):
        other = self.run(batch, [batch.count])
        loss = _relative(one.loss, other.loss)
        gradient, equal = _gradient_difference(one, other)
        if loss > self.loss_tolerance or gradient > self.gradient_tolerance or (not equal and torch.get_num_threads() == 1):
            self.find("hidden state", "equal samples and random numbers gave the losses %.8g and %.8g: state in a plain "
                      "member or a generator of its own; make it a buffer, or draw from torch's generator"
                      % (one.loss, other.loss), difference=max(loss, gradient))
        elif not equal:
            self.find("random", "gradients differ by %.1g of their length from run to run" % gradient, fault=False)

    def check_buffers(self, batch, least):
        norm = torch.nn.modules.batchnorm._BatchNorm
        own = {id(b) for m in self.model.modules() if isinstance(m, norm) for b in m._buffers.values() if b is not None}
        if own:
            self.find("normalises", "batch norms see the samples of one chunk", fault=False)
        others = [(name, b) for name, b in self.model.named_buffers() if id(b) not in own]
        if not others or batch.count == least:
            return
        self.run(batch, [batch.count])
        if self.rng.has_moved():
            self.find("skipped", "buffers were not compared: the model draws random numbers", fault=False)
            return
        after = [_host_copy(b) for _, b in others]
        self.run(batch, [least, batch.count - least])
        for (name, buffer), copy in zip(others, after):
            if not torch.allclose(buffer.double(), copy.double(), rtol=self.gradient_tolerance, equal_nan=True):
                self.find("buffer", "%s has other values after two chunks than after one: change it after the step, or by "
                          "something that adds up over samples" % name, name=name)
                return

    # ---- in evaluation mode --------------------------------------------------------------------------------

    def evaluation(self, parts):
        least, batch = len(parts[0]), self.part(*parts)
        whole = self.run(batch, [batch.count])
        if self.rng.has_moved():
            self.find("skipped", "cuts were not compared: the model draws random numbers in evaluation mode", fault=False)
            return
        try:
            cut = self.run(batch, [batch.count - least, least])
        except _Failed as failed:
            error = failed.__cause__
            self.find("chunk fails", "chunks of %d and %d samples fail, and one of %d does not: %s: %s"
                      % (batch.count - least, least, batch.count, type(error).__name__, str(error).split("\n")[0]))
            return
        if whole.is_finite() and not cut.is_finite():
            self.find("chunk fails", "the loss of %d samples at once, or its gradient, is finite, and in chunks of %d and %d it is "
                      "not: a statistic over the samples of a chunk, like std(0), or a mean over what a chunk may lack"
                      % (batch.count, batch.count - least, least))
            return
        loss, (gradient, _) = _relative(whole.loss, cut.loss), _gradient_difference(whole, cut)
        if loss > self.loss_tolerance or gradient > self.gradient_tolerance:
            self.diagnose(parts, whole, cut, max(loss, gradient))
            return
        self.check_metrics(whole, cut)

    def losses(self, *combinations):
        return [self.run(self.part(*parts), [sum(map(len, parts))], gradients=False).loss for parts in combinations]

    def diagnose(self, parts, whole, cut, difference):
        a, b = parts[:2]
        la, lb, lab = self.losses([a], [b], [a, b])
        words = "the loss of %d samples at once is %.8g, and %.8g in two chunks: " % (sum(map(len, parts)), whole.loss, cut.loss)
        if _relative(lab, la + lb) <= self.loss_tolerance:
            self.find("weighting", words + "it is a sum; return a mean", difference=difference)
        elif self.is_mean_over_others(parts, la, lb, lab):
            self.find("weighting", words + "it looks like a mean over something else than %s; return (loss, units) with "
                      "what it is over" % ("samples" if cut.units == sum(map(len, parts)) else "these units"),
                      difference=difference)
        else:
            self.find("coupling", words + "the loss of a sample depends on the others of its chunk: negatives, statistics "
                      "of the batch, or data whose dimension 0 is not the samples; needs_whole_batch=True keeps it whole",
                      difference=difference)

    def is_mean_over_others(self, parts, la, lb, lab):
        """Each pair's loss lies between those of its parts, at places that fit units of three parts."""
        if len(parts) < 3:
            return False
        a, b, c = parts
        lc, lbc, lac = self.losses([c], [b, c], [a, c])

        def ratio(one, other, both):
            """Units of the other part over those of the one."""
            return (one - both) / (both - other) if both != other else math.inf
        ab, bc, ac = ratio(la, lb, lab), ratio(lb, lc, lbc), ratio(la, lc, lac)
        return all(0 < r < math.inf for r in (ab, bc, ac)) and _relative(ab * bc, ac) < 1e-2

    def check_metrics(self, whole, cut):
        one, other = whole.metrics(), cut.metrics()
        for name in sorted(one.keys() | other.keys()):
            if name not in one or name not in other:
                self.find("metric", "%s is not there in each chunk" % name, name=name)
            elif _relative(one[name], other[name]) > METRIC_TOLERANCE:
                self.find("metric", "%s is %.6g of samples at once, and %.6g in two chunks: return its mean over the same as "
                          "the loss" % (name, one[name], other[name]), name=name,
                          difference=_relative(one[name], other[name]))

    # ---- all of it -----------------------------------------------------------------------------------------

    def parts(self, least, count):
        """Ranges of samples that are not neighbours: the first, those in the middle, and the last."""
        middle = (self.whole.count - least) // 2
        starts = [0, middle, self.whole.count - least][:count] if count == 3 else [0, self.whole.count - least][:count]
        return [range(start, start + least) for start in starts]

    def try_parts(self, function, least):
        """With three parts, or fewer where the batch or the budget has no room for them. Returns the samples."""
        most = min(3, self.whole.count // least)
        for count in range(most, 0, -1):
            found = len(self.findings)
            try:
                function(self.parts(least, count))
                return count * least
            except (torch.OutOfMemoryError, MemoryError) as error:
                del self.findings[found:]
                if count == 1:
                    raise
                forget(error)

    # ---- where not even the smallest chunk fits ------------------------------------------------------------------

    def memory(self):
        """Bytes in use and those of the budget; 0: not known."""
        if self.backend.device.type == "cpu":
            return _native.allocated(), _native.budget()
        figures = _native.card_memory(str(self.backend.device))
        return figures["allocated_bytes"], figures["budget_bytes"]

    def explain(self, least, before, in_use):
        """As Trainer.explain() of a step. before: _native.refusals() when the check began, and the bytes in use then."""
        info, (_, budget) = self.backend.describe(), self.memory()
        count, asked, then = _native.refusals()
        # Of a card bytes are not told: what the host has refused beside it is no part of its figures.
        known = self.backend.device.type == "cpu" and count > before[0]
        size = _native.format_size
        names = (("parameters", "parameter_bytes"), ("optimiser state", "optimizer_bytes"), ("buffers", "buffer_bytes"))
        rows = [("budget", size(budget) if budget else "not known"), ("in use before the check", size(in_use))]
        rows += [("  " + name, size(info[key])) for name, key in names if info[key]]
        if known:
            rows.append(("the run needs beside it", "%s (at least; the last request was for %s)"
                         % (size(max(then + asked - in_use, asked)), size(asked))))
        more = "a budget of more than %s, how much is not known" % size(then + asked) if known and then + asked > budget else "more memory"
        remedies = [more + ": the run stopped at the first request that was refused (try half as much again)"]
        if least > 1:
            remedies.append("a smaller min_micro_batch than %d, if the network allows it" % least)
        remedies += ["smaller samples: a smaller picture, a shorter sequence", "not a smaller batch: a check takes these few alone"]
        return "\n".join(["A check with %d sample%s does not fit on %s: memory ran out, and everything was put back."
                          % (least, "s" * (least > 1), self.backend.device)]
                         + ["  %-28s %12s" % row for row in rows]
                         + ["What would make it fit:"] + ["  " + remedy for remedy in remedies]) + "\n"

    def put_back(self, modes, gradients, kept):
        self.rng.put_back()
        self.buffers.put_back()
        for module, training in modes:
            module.training = training
        for parameter, gradient, copy in zip(self.model.parameters(), gradients, kept):
            parameter.grad = gradient
            if not _same(parameter.detach().cpu(), copy):
                with torch.no_grad():
                    parameter.copy_(copy)

    def __call__(self):
        least, before, (in_use, _) = self.backend.describe()["min_micro_batch"], _native.refusals(), self.memory()
        if self.whole.count < least:
            raise ValueError("the batch has %d samples; accepted: at least %d, the smallest chunk" % (self.whole.count, least))
        try:
            return self.find_all(least)
        except (torch.OutOfMemoryError, MemoryError) as error:
            line = str(error).split("\n")[0]
            forget(error)
        raise OutOfMemory("a check with %d sample%s does not fit on %s: %s"
                          % (least, "s" * (least > 1), self.backend.device, line), self.explain(least, before, in_use))

    def find_all(self, least):
        self.rng.take()
        self.buffers.take(self.model)
        modes = [(module, module.training) for module in self.model.modules()]
        gradients = [p.grad for p in self.model.parameters()]
        kept = [_host_copy(p) for p in self.model.parameters()]
        try:
            samples = self.try_parts(self.training, least)
            stop = {finding.kind for finding in self.findings} & {"written", "not finite", "hidden state"}
            if self.backend.needs_whole_batch or self.whole.count < 2 * least or stop:
                self.find("skipped", "cuts were not compared", fault=False)
            else:
                self.model.eval()
                self.try_parts(lambda parts: self.evaluation(parts) if len(parts) > 1 else None, least)
        except _Failed as failed:
            error = failed.__cause__
            if not isinstance(error, ValueError) or "has no graph" not in str(error):
                raise error from None
            samples = least
            self.find("no graph", str(error))
        finally:
            self.put_back(modes, gradients, kept)
        return CheckReport(samples, self.findings)
