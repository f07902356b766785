"""Steps of memtrain.Trainer beside those of a plain loop, batches of all kinds, and what a step does with errors."""
import copy
import gc
import json
import math
import os
import signal
import sys
import unittest
from collections import OrderedDict, namedtuple

import torch
from torch import nn
from torch.nn import functional as F

import memtrain
from memtrain import _native

import subjects
from subjects import OPTIMIZERS, batch, difference, loss_of, network, plain_step, seed, state_of, trainer_for

CHUNKS = (4, 3, 3)
SLOW = os.environ.get("MT_TEST_SLOW") == "1"


class Case(unittest.TestCase):
    def setUp(self):
        self.quiet = subjects.Quiet()
        self.quiet.__enter__()
        memtrain.set_budget("256MiB")

    def tearDown(self):
        self.quiet.__exit__()

    def refused(self, kind, words, function, *arguments, **options):
        with self.assertRaises(kind) as caught:
            function(*arguments, **options)
        self.assertIn(words, str(caught.exception))
        return caught.exception


class Numbers(Case):
    """Bits of the plain loop that takes the same chunks."""

    def compare(self, name, loss_fn=loss_of, chunks=CHUNKS, steps=4, **options):
        values, model = batch(), network()
        optimizer = OPTIMIZERS[name](model.parameters())
        seed()
        for _ in range(steps):
            plain_step(model, optimizer, loss_fn, values, chunks)
        expected = state_of(model, optimizer)
        model, optimizer, trainer = trainer_for(name, loss_fn, **options)
        seed()
        for _ in range(steps):
            trainer.set_chunks(*chunks)
            report = trainer.step(*values)
            self.assertEqual(report.chunks, list(chunks))
        self.assertEqual(difference(expected, state_of(model, optimizer)), [], name)

    def test_optimizers(self):
        for name in OPTIMIZERS:
            self.compare(name, subjects.noisy_loss)

    def test_by_name(self):
        """The fused optimiser of that name, which a scheduler may take."""
        states = []
        for optimizer, options in ((None, {}), ("adamw", {"lr": 1e-2})):
            model = network()
            seed()
            trainer = memtrain.Trainer(model, loss_of, optimizer or OPTIMIZERS["adamw fused"](model.parameters()), **options)
            scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 1, 0.5)
            for _ in range(3):
                trainer.set_chunks(*CHUNKS)
                trainer.step(*batch())
                scheduler.step()
            states.append(state_of(model, trainer.optimizer))
        self.assertEqual(difference(*states), [])

    def test_one_chunk(self):
        self.compare("adamw", chunks=(10,))

    def test_in_place(self):
        self.compare("adamw", keep_chunks=-1)

    def test_heap(self):
        self.compare("sgd", planned_memory=False)

    def test_unused_parameter(self):
        """A parameter that no chunk reaches has no gradient, so that weight decay leaves it alone, as in a loop."""
        def build():
            torch.manual_seed(0)
            model = nn.ModuleDict({"used": nn.Linear(4, 2), "unused": nn.Linear(4, 2)})
            return model, torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.5)

        def loss_fn(model, x):
            return model["used"](x).square().mean()
        x = torch.randn(6, 4)
        model, optimizer = build()
        plain_step(model, optimizer, loss_fn, (x,), (3, 3))
        for options in ({}, {"keep_chunks": -1}):
            other, its = build()
            trainer = memtrain.Trainer(other, loss_fn, its, **options)
            trainer.set_chunks(3, 3)
            trainer.step(x)
            self.assertEqual(difference(state_of(model, optimizer), state_of(other, its)), [])

    def test_negative_zero(self):
        """A sum of gradients of -0.0 is -0.0."""
        for options in ({}, {"keep_chunks": -1}):
            model, seen = nn.Linear(3, 1, bias=False), []
            trainer = memtrain.Trainer(model, lambda m, x: (m.weight * x).sum(), torch.optim.SGD(model.parameters(), 0.1),
                                       before_update=lambda m: seen.append(m.weight.grad.clone()), **options)
            trainer.set_chunks(1, 1)
            trainer.step(torch.full((2, 3), -0.0))
            self.assertTrue(bool(torch.signbit(seen[0]).all()), seen)

    def test_clipping(self):
        values, model = batch(), network()
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        seed()
        optimizer.zero_grad()
        for first, count in ((0, 4), (4, 3), (7, 3)):
            (loss_of(model, *(v[first:first + count] for v in values)) * (count / 10)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        expected = state_of(model, optimizer)
        model, optimizer, trainer = trainer_for("sgd", clip_norm=0.01)
        seed()
        trainer.set_chunks(*CHUNKS)
        self.assertEqual(trainer.step(*values).grad_norm, float(norm))
        self.assertEqual(difference(expected, state_of(model, optimizer)), [])

    def test_scheduler(self):
        """A scheduler of torch's steers the optimiser as ever."""
        model, optimizer, trainer = trainer_for("sgd")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        seen = []
        for _ in range(3):
            seen.append(optimizer.param_groups[0]["lr"])
            trainer.step(*batch())
            scheduler.step()
        self.assertEqual(seen, [0.1, 0.05, 0.025])

    def test_before_update(self):
        """Sees the gradient of the whole batch, which is that of uncut samples to rounding."""
        torch.manual_seed(0)
        model, x = nn.Linear(6, 3), torch.randn(9, 6)
        seen = []
        trainer = memtrain.Trainer(model, lambda m, x: m(x).square().mean(), torch.optim.SGD(model.parameters(), 0.1),
                                   before_update=lambda m: seen.append(m.weight.grad.clone()))
        (expected,) = torch.autograd.grad(model(x).square().mean(), [model.weight])
        trainer.set_chunks(2, 3, 4)
        trainer.step(x)
        torch.testing.assert_close(seen[0], expected)
        self.assertIsNone(model.weight.grad)


class Units(Case):
    """A mean over tokens is that of the batch however it is cut."""

    @staticmethod
    def loss_of(model, tokens, labels):
        logits = model(tokens).flatten(0, 1)
        counted = int((labels != -100).sum())
        loss = F.cross_entropy(logits, labels.flatten(), ignore_index=-100)
        return {"loss": loss, "units": counted, "double": 2 * loss}

    def build(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
        tokens = torch.randint(0, 11, (8, 6))
        labels = tokens.clone()
        for row in range(8):
            labels[row, row % 6:] = -100
        return model, tokens, labels

    def test_gradient(self):
        model, tokens, labels = self.build()
        whole = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
        expected = torch.autograd.grad(whole, list(model.parameters()))
        seen = []
        trainer = memtrain.Trainer(model, self.loss_of, torch.optim.SGD(model.parameters(), 0.1),
                                   before_update=lambda m: seen.extend(p.grad.clone() for p in m.parameters()))
        trainer.set_chunks(3, 1, 4)
        report = trainer.step(tokens, labels)
        for one, other in zip(seen, expected):
            torch.testing.assert_close(one, other)
        self.assertAlmostEqual(report.loss, float(whole.detach()), 5)
        self.assertAlmostEqual(report.metrics["double"], 2 * report.loss, 5)

    def test_chunk_without_units(self):
        """Its loss is 0 / 0, and it adds nothing."""
        model, tokens, labels = self.build()
        labels[:2] = -100
        trainer = memtrain.Trainer(model, self.loss_of, torch.optim.SGD(model.parameters(), 0.1))
        trainer.set_chunks(2, 6)
        self.assertTrue(math.isfinite(trainer.step(tokens, labels).loss))
        self.assertTrue(all(bool(torch.isfinite(p).all()) for p in model.parameters()))

    def test_batch_without_units(self):
        model, tokens, labels = self.build()
        before = [p.clone() for p in model.parameters()]
        trainer = memtrain.Trainer(model, self.loss_of, torch.optim.SGD(model.parameters(), 0.1))
        self.assertEqual(trainer.step(tokens, torch.full_like(labels, -100)).skipped, "no units")
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))


class Batches(Case):
    def linear(self, loss_fn, **options):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        return model, memtrain.Trainer(model, loss_fn, torch.optim.SGD(model.parameters(), 0.1), **options)

    def test_nested(self):
        """Tensors in dicts, lists, tuples and named ones come in the same form, and with the same samples."""
        Pair = namedtuple("Pair", "left right")
        seen = []

        def loss_fn(model, one, two):
            seen.append(type(two["pair"]).__name__)
            self.assertTrue(torch.equal(one["x"][0], two["pair"].left))
            self.assertTrue(torch.equal(one["x"][0], two["pair"].right[0]))
            self.assertEqual((two["scale"], two["nothing"]), (0.5, None))
            return model(one["x"][0]).square().mean() * two["scale"]
        _, trainer = self.linear(loss_fn)
        x = torch.randn(6, 4)
        trainer.set_chunks(4, 2)
        trainer.step(OrderedDict(x=[x]), {"pair": Pair(x, (x,)), "scale": 0.5, "nothing": None})
        self.assertEqual(seen, ["Pair", "Pair"])

    def test_bad_parts(self):
        _, trainer = self.linear(lambda model, *parts: model(parts[0]).mean())
        x = torch.randn(6, 4)
        self.refused(ValueError, "batch[0] has 6 samples and batch[1]['y'] has 5", trainer.step, x, {"y": x[:5]})
        self.refused(ValueError, "batch[1] has no dimension of samples", trainer.step, x, torch.tensor(1.0))
        self.refused(ValueError, "the model is on cpu and batch[1] on meta", trainer.step, x, x.to("meta"))
        self.refused(TypeError, "batch[1] is a str", trainer.step, x, "text")
        self.refused(ValueError, "the batch has no tensor", trainer.step, 3)
        self.refused(ValueError, "the batch has 0 samples", trainer.step, x[:0])
        trainer.step(x)

    def test_written_batch(self):
        _, trainer = self.linear(lambda model, x: model(x.mul_(2)).mean())
        self.refused(ValueError, "loss_fn writes to batch[0]", trainer.step, torch.randn(6, 4))

    def test_written_parameter(self):
        def loss_fn(model, x):
            with torch.no_grad():
                model.bias.add_(1)
            return model(x).mean()
        _, trainer = self.linear(loss_fn)
        self.refused(ValueError, "loss_fn writes to the parameter bias", trainer.step, torch.randn(6, 4))

    def test_outputs(self):
        x = torch.randn(6, 4)
        for output, kind, words in (
                (lambda loss: loss.detach(), ValueError, "the loss has no graph"),
                (lambda loss: 1.0, TypeError, "loss of type float"),
                (lambda loss: loss.expand(2), ValueError, "loss of shape (2,)"),
                (lambda loss: (loss, -1), ValueError, "units -1"),
                (lambda loss: (loss, 1, 2), ValueError, "tuple of 3"),
                (lambda loss: {"los": loss}, ValueError, "without 'loss', with ['los']"),
                (lambda loss: {"loss": loss, "names": "a"}, TypeError, "metric 'names' of type str")):
            model, trainer = self.linear(lambda model, x, output=output: output(model(x).mean()))
            before = [p.clone() for p in model.parameters()]
            self.refused(kind, words, trainer.step, x)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(before, model.parameters())))

    def test_sparse(self):
        model = nn.Embedding(5, 3, sparse=True)
        self.refused(ValueError, "model is Embedding(sparse=True)", memtrain.Trainer, model, lambda m, x: m(x).mean(),
                     torch.optim.SGD(model.parameters(), 0.1))


class Arguments(Case):
    def build(self, optimizer, model=None, loss_fn=loss_of, **options):
        return memtrain.Trainer(model or self.model, loss_fn, optimizer, **options)

    def test_refused(self):
        self.model, other = network(), nn.Linear(7, 3)
        own = list(self.model.parameters())
        sgd = torch.optim.SGD(own, 0.1)
        self.refused(ValueError, "parameter of shape (3, 7) in group 1 that is none of the model's", self.build,
                     torch.optim.SGD([{"params": own}, {"params": other.parameters()}], 0.1))
        self.refused(ValueError, "optimizer is LBFGS, whose step() needs a closure", self.build, torch.optim.LBFGS(own))
        self.refused(ValueError, "SparseAdam", self.build, torch.optim.SparseAdam(own))
        self.refused(TypeError, "optimizer is a list", self.build, [])
        self.refused(TypeError, "model is a int", self.build, sgd, model=3)
        self.refused(TypeError, "loss_fn is a int", self.build, sgd, loss_fn=3)
        self.refused(TypeError, "no option 'micro'; accepted: clear_every", self.build, sgd, micro=3)
        self.refused(TypeError, "micro_batch is '3'; accepted: int", self.build, sgd, micro_batch="3")
        self.refused(ValueError, "7 apples", self.build, sgd, budget="7 apples")
        self.refused(ValueError, "the model is on meta", self.build, torch.optim.SGD(other.to("meta").parameters(), 0.1),
                     model=other)

    def test_own_closure(self):
        class Closing(torch.optim.SGD):
            def step(self, closure):
                return closure()
        self.model = network()
        self.refused(ValueError, "optimizer is Closing", self.build, Closing(self.model.parameters(), 0.1))


class Transactions(Case):
    """What a step raises leaves everything as it was, and the script goes on."""

    def attempt(self, kind, raising, where):
        """An exception that comes from loss_fn's second chunk, or from optimizer.step() when it has done its work."""
        error, calls = kind("my own"), []

        def loss_fn(model, x, y):
            calls.append(1)
            loss = loss_of(model, x, y)
            if where == "loss" and raising and len(calls) == 2:
                raise error
            return loss
        model, optimizer, trainer = trainer_for("adamw", loss_fn)
        if where == "step":
            original = optimizer.step

            def step(closure=None):
                original()
                if raising:
                    raise error
            optimizer.step = step
        seed()
        own = [torch.ones_like(p) for p in model.parameters()]
        for parameter, gradient in zip(model.parameters(), own):
            parameter.grad = gradient
        before = state_of(model, optimizer)
        trainer.set_chunks(*CHUNKS)
        with self.assertRaises(kind) as caught:
            trainer.step(*batch())
        self.assertIs(caught.exception, error)
        self.assertEqual(difference(before, state_of(model, optimizer)), [])
        for parameter, gradient in zip(model.parameters(), own):
            self.assertIs(parameter.grad, gradient)
            self.assertTrue(bool((gradient == 1).all()))
        raising = []
        trainer.step(*batch())

    def test_exceptions(self):
        for kind in (ValueError, RuntimeError, KeyboardInterrupt, SystemExit):
            for where in ("loss", "step"):
                with self.subTest(kind=kind.__name__, where=where):
                    self.attempt(kind, [1], where)

    def test_not_finite(self):
        model, optimizer, trainer = trainer_for("adamw")
        x, y = batch()
        seed()
        before = state_of(model, optimizer)
        self.assertEqual(trainer.step(x * math.nan, y).skipped, "loss not finite")
        self.assertEqual(difference(before, state_of(model, optimizer)), [])
        self.assertEqual(trainer.step(x, y).skipped, "")

    def test_norm_not_finite(self):
        model, optimizer, trainer = trainer_for("sgd", clip_norm=1.0)
        model[0].weight.register_hook(lambda gradient: gradient * math.inf)
        seed()
        before = state_of(model, optimizer)
        self.assertEqual(trainer.step(*batch()).skipped, "gradient not finite")
        self.assertEqual(difference(before, state_of(model, optimizer)), [])

    def test_step_inside_step(self):
        def loss_fn(model, x, y):
            trainer.step(x, y)
        model, _, trainer = trainer_for("sgd", loss_fn)
        self.refused(RuntimeError, "the trainer is busy", trainer.step, *batch())

    def test_evaluation_inside_step(self):
        """It is refused, and the step goes on with what it has: all training chunks, and modules as they were."""
        def loss_fn(model, x, y):
            if asking:
                self.refused(RuntimeError, "the trainer is busy", trainer.evaluate, x, y)
            loss = loss_of(model, x, y)
            return {"loss": loss, "units": len(x), "one": 1.0}
        states = []
        for asking in (False, True):
            model, optimizer, trainer = trainer_for("sgd", loss_fn)
            seed()
            trainer.set_chunks(*CHUNKS)
            self.assertEqual(trainer.step(*batch()).metrics, {"one": 1.0})
            states.append(state_of(model, optimizer))
        self.assertEqual(difference(*states), [])

    def interrupted(self, trainer, nth, own):
        """
        Control-C comes before the nth line of Python that a step runs, or of the package alone. Returns how many of these
        lines there were, and whether it came.
        """
        folder, lines, came = os.path.dirname(memtrain.__file__), [0], False

        def trace(frame, event, _):
            if event == "line" and (not own or frame.f_code.co_filename.startswith(folder)):
                lines[0] += 1
                if lines[0] == nth:
                    raise KeyboardInterrupt
            return trace
        trainer.set_chunks(*CHUNKS)
        values = batch()
        gc.collect()
        try:
            try:
                sys.settrace(trace)
                trainer.step(*values)
            finally:
                sys.settrace(None)
        except KeyboardInterrupt:
            came = True
        return lines[0], came

    def check_interrupts(self, own, stride, last):
        """Which ends were seen: steps that were rolled back, and steps that were taken."""
        model = network()
        weights = copy.deepcopy(model.state_dict())

        def start():
            model.load_state_dict(weights)
            seed()
            return trainer_for("adamw", model=model)
        for _ in range(2):  # the first step of a process runs more lines
            model, optimizer, trainer = start()
            undone = state_of(model, optimizer)
            count, _ = self.interrupted(trainer, 0, own)
        done, ends = state_of(model, optimizer), set()
        for nth in sorted(set(range(1, count + 1, 1 if SLOW else stride)) | set(range(count - last, count + 1))):
            model, optimizer, trainer = start()
            _, came = self.interrupted(trainer, nth, own)
            after = state_of(model, optimizer)
            taken = not came or bool(difference(undone, after))
            self.assertEqual(difference(done if taken else undone, after), [], nth)
            self.assertTrue(all(p.grad is None for p in model.parameters()), nth)
            self.assertTrue(torch.is_grad_enabled(), nth)
            self.assertEqual(trainer.step(*batch()).skipped, "")
            ends.add((came, taken))
        return ends

    def test_interrupts(self):
        """Control-C at any line: the step is taken, or not, and the next one can be."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.assertLessEqual({(True, False), (True, True)}, self.check_interrupts(True, 23, 45))
        self.assertIn((True, False), self.check_interrupts(False, 307, 0))

    def test_evaluation(self):
        """Loss of the whole batch in evaluation mode; modes of modules are put back one by one."""
        model, optimizer, trainer = trainer_for("sgd", micro_batch=3)
        model[1].eval()
        seed()
        before = state_of(model, optimizer)
        report = trainer.evaluate(*batch())
        self.assertEqual(difference(before, state_of(model, optimizer)), [])
        self.assertEqual([m.training for m in model[:4]], [True, False, True, True])
        model.eval()
        with torch.no_grad():
            self.assertAlmostEqual(report.loss, float(loss_of(model, *batch())), 5)
        self.assertGreater(report.chunk_count, 1)


class Reports(Case):
    def test_metrics(self):
        def loss_fn(model, x, y):
            output = model(x)
            return {"loss": F.cross_entropy(output, y), "right": (output.argmax(1) == y).float().mean()}
        model, _, trainer = trainer_for("sgd", loss_fn)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        model.eval()
        x, y = batch()
        right = float((model(x).argmax(1) == y).float().mean())
        trainer.set_chunks(5, 3, 2)
        report = trainer.step(x, y)
        self.assertAlmostEqual(report.metrics["right"], right, 6)
        self.assertEqual((report.step, report.samples, report.ooms), (1, 10, 0))
        self.assertIn("<td>loss</td>", report._repr_html_())
        self.assertRaises(AttributeError, lambda: report.nothing)
        run = trainer.report()
        self.assertEqual((run.steps, run.smallest_chunk, run.largest_chunk), (1, 2, 5))

    def test_trace(self):
        """Its steps have the learning rate that the update had."""
        lines = []
        _, optimizer, trainer = trainer_for("sgd", trace=lines.append)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(3):
            trainer.step(*batch())
            scheduler.step()
        steps = [event for event in map(json.loads, lines) if event["event"] == "step"]
        self.assertEqual([step["lr"] for step in steps], [0.1, 0.05, 0.025])


if __name__ == "__main__":
    unittest.main()
