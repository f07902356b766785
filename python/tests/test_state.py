"""Runs that stop and go on, losses that are scaled, and what is shown of a run."""
import io
import math
import os
import tempfile
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import memtrain
from memtrain import _native

import subjects
from subjects import batch, difference, loss_of, network, noisy_loss, seed, state_of, trainer_for
from test_trainer import CHUNKS, Case


def run(trainer, steps, scheduler):
    for _ in range(steps):
        trainer.set_chunks(*CHUNKS)
        trainer.step(*batch())
        scheduler.step()


class Saved(Case):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "run.pt")

    def build(self, name, **options):
        model, optimizer, trainer = trainer_for(name, noisy_loss, **options)
        return model, optimizer, trainer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def test_bits(self):
        """Two steps, a file, another model that takes it up, and two steps more: bits of four steps."""
        for name in subjects.OPTIMIZERS:
            with self.subTest(optimizer=name):
                model, optimizer, trainer, scheduler = self.build(name)
                seed()
                run(trainer, 2, scheduler)
                trainer.save(self.path, scheduler=scheduler, epoch=7, names=["a", 1.5])
                run(trainer, 2, scheduler)
                expected = state_of(model, optimizer)
                model, optimizer, trainer, scheduler = self.build(name)
                run(trainer, 1, scheduler)
                seed(99)
                self.assertEqual(trainer.load(self.path, scheduler=scheduler), {"epoch": 7, "names": ["a", 1.5]})
                self.assertEqual(trainer.report().steps, 2)
                run(trainer, 2, scheduler)
                self.assertEqual(difference(expected, state_of(model, optimizer)), [])
                self.assertEqual(trainer.report().steps, 4)

    def test_buffer_that_no_state_dict_has(self):
        model = network()
        model.register_buffer("own", torch.zeros(3), persistent=False)
        _, _, trainer = trainer_for("sgd", model=model)
        model.own += 5
        trainer.save(self.path)
        model.own.zero_()
        trainer.load(self.path)
        self.assertEqual(model.own.tolist(), [5, 5, 5])

    def test_plain_torch_reads_it(self):
        _, _, trainer = trainer_for("adamw")
        trainer.step(*batch())
        trainer.save(self.path)
        state = torch.load(self.path, weights_only=True)
        network().load_state_dict(state["model"])

    def test_refused(self):
        """A file of another run, or none, changes nothing."""
        model, optimizer, trainer, scheduler = self.build("adamw")
        trainer.step(*batch())
        trainer.save(self.path, epoch=1)
        other, its, loader = trainer_for("sgd")
        before = state_of(other, its)
        self.refused(ValueError, "has the state of AdamW; the optimizer is SGD", loader.load, self.path)
        _, _, wide = trainer_for("adamw", model=network(4))
        self.refused(ValueError, "0.weight has shape (4, 3, 3, 3)", wide.load, self.path)
        self.refused(KeyError, "has no state named 'scheduler'", trainer.load, self.path, scheduler=scheduler)
        _, _, scaled = trainer_for("adamw", scaler=torch.amp.GradScaler("cpu"))
        self.refused(ValueError, "was saved without a scaler", scaled.load, self.path)
        self.refused(TypeError, "place is a object", trainer.save, self.path, place=object())
        self.assertRaises(FileNotFoundError, trainer.load, self.path + ".no")
        with open(self.path, "rb") as file:
            whole = file.read()
        for content in (b"", b"text", whole[:len(whole) // 2]):
            with open(self.path, "wb") as file:
                file.write(content)
            self.refused(ValueError, "is no file of Trainer.save", loader.load, self.path)
        torch.save({"model": 1}, self.path)
        self.refused(ValueError, "is no file of Trainer.save", loader.load, self.path)
        self.assertEqual(difference(before, state_of(other, its)), [])

    def test_old_file_stays(self):
        """Where writing fails, the file from before is there, and no other."""
        _, _, trainer = trainer_for("sgd")
        trainer.save(self.path, epoch=1)
        save = torch.save

        def fail(state, file):
            file.write(b"half")
            raise OSError("disk full")
        torch.save = fail
        try:
            self.assertRaises(OSError, trainer.save, self.path, epoch=2)
        finally:
            torch.save = save
        self.assertEqual(os.listdir(self.folder.name), ["run.pt"])
        self.assertEqual(trainer.load(self.path), {"epoch": 1})

    def test_no_memory(self):
        """Each request of load fails in turn: all is as before, or all as in the file."""
        model, optimizer, trainer = trainer_for("adamw")
        trainer.step(*batch())
        trainer.save(self.path)
        saved = state_of(model, optimizer)
        trainer.step(*batch())
        before, nth = state_of(model, optimizer), 0
        while True:
            nth += 1
            _native.inject(nth, True)
            try:
                trainer.load(self.path)
            except torch.OutOfMemoryError:
                pass
            _, failed = _native.injected()
            _native.inject(0, False)
            if not failed:
                break
            self.assertEqual(difference(before, state_of(model, optimizer)), [], nth)
        self.assertGreater(nth, 10)
        self.assertEqual(difference(saved, state_of(model, optimizer)), [])


class Scaled(Case):
    """Losses that a torch.amp.GradScaler scales."""

    @staticmethod
    def plain(steps, scale, loss_fn, clip=None):
        model = network()
        optimizer, scaler = subjects.OPTIMIZERS["adamw"](model.parameters()), torch.amp.GradScaler("cpu", init_scale=scale)
        seed()
        for _ in range(steps):
            optimizer.zero_grad()
            first = 0
            for count in CHUNKS:
                part = [value[first:first + count] for value in batch()]
                scaler.scale(loss_fn(model, *part) * (count / 10)).backward()
                first += count
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
        return state_of(model, optimizer), scaler.state_dict()

    def test_bits(self):
        for clip in (None, 0.05):
            for name, loss_fn in (("float32", loss_of), ("bfloat16", self.in_fewer_bits)):
                with self.subTest(clip=clip, dtype=name):
                    expected, scale = self.plain(3, 1024.0, loss_fn, clip)
                    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                    model, optimizer, trainer = trainer_for("adamw", loss_fn, scaler=scaler, clip_norm=clip)
                    seed()
                    for _ in range(3):
                        trainer.set_chunks(*CHUNKS)
                        self.assertEqual(trainer.step(*batch()).scale, 1024.0)
                    self.assertEqual(difference(expected, state_of(model, optimizer)), [])
                    self.assertEqual(scaler.state_dict(), scale)

    @staticmethod
    def in_fewer_bits(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(x), y)

    def test_autocast_around_the_step(self):
        expected, _ = self.plain(2, 1.0, self.in_fewer_bits)
        model, optimizer, trainer = trainer_for("adamw", scaler=torch.amp.GradScaler("cpu", init_scale=1.0))
        seed()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for _ in range(2):
                trainer.set_chunks(*CHUNKS)
                trainer.step(*batch())
        self.assertEqual(difference(expected, state_of(model, optimizer)), [])

    def test_overflow(self):
        """The step is skipped and told, the scale halved, and the next one is taken."""
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        model, optimizer, trainer = trainer_for("adamw", scaler=scaler)
        wrong = [math.inf]
        model[0].weight.register_hook(lambda gradient: gradient * (wrong.pop() if wrong else 1.0))
        seed()
        before = state_of(model, optimizer)
        trainer.set_chunks(*CHUNKS)
        report = trainer.step(*batch())
        self.assertEqual((report.skipped, report.scale), ("gradient not finite", 1.0))
        self.assertEqual(difference(before, state_of(model, optimizer)), [])
        self.assertEqual(trainer.step(*batch()).skipped, "")
        self.assertEqual((trainer.report().steps, trainer.report().skipped), (2, 1))

    def test_each_request_fails(self):
        for first in (True, False):
            model = network()
            weights, values = {name: value.clone() for name, value in model.state_dict().items()}, batch()

            def start():
                model.load_state_dict(weights)
                scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
                _, optimizer, trainer = trainer_for("adamw", noisy_loss, model=model, scaler=scaler)
                seed()
                if not first:
                    trainer.set_chunks(*CHUNKS)
                    trainer.step(*values)
                trainer.set_chunks(*CHUNKS)
                return optimizer, scaler, trainer
            optimizer, scaler, trainer = start()
            _native.inject(0, False)
            trainer.step(*values)
            requests, _ = _native.injected()
            expected = state_of(model, optimizer), scaler.state_dict()
            numbers = list(range(1, requests + 1, 41)) + list(range(requests - 30, requests + 1))
            for nth in numbers:
                for persistent in (False, True):
                    optimizer, scaler, trainer = start()
                    before = state_of(model, optimizer), scaler.state_dict()
                    _native.inject(nth, persistent)
                    try:
                        trainer.step(*values)
                        wanted = expected
                    except memtrain.OutOfMemory:
                        wanted = before
                    finally:
                        _native.inject(0, False)
                    what = "request %d of %d, persistent %s" % (nth, requests, persistent)
                    self.assertEqual(wanted is before, persistent, what)
                    self.assertEqual(difference(wanted[0], state_of(model, optimizer)), [], what)
                    self.assertEqual(scaler.state_dict(), wanted[1], what)
                    if persistent:
                        trainer.set_chunks(*CHUNKS)
                        trainer.step(*values)
                        self.assertEqual(difference(expected[0], state_of(model, optimizer)), [], what)

    def test_refused(self):
        self.refused(TypeError, "scaler is a float; accepted: a torch.amp.GradScaler", trainer_for, "sgd", scaler=2.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Shown(Case):
    def test_report(self):
        _, _, trainer = trainer_for("sgd")
        trainer.set_chunks(4, 4, 2)
        report = trainer.step(*batch())
        self.assertRegex(str(report), r"\nchunks +2 x 4, 2\n")
        self.assertRegex(str(report), r"\nbudget_bytes +268435456 \(256\.0 MiB\)")
        report["<b>"] = "<i>"
        self.assertIn("<td>&lt;b&gt;</td><td>&lt;i&gt;</td>", report._repr_html_())
        self.assertIn("<td>chunks</td><td>2 x 4, 2</td>", report._repr_html_())
        with self.assertRaises(AttributeError) as caught:
            report.los
        self.assertIn("StepReport has no 'los'; it has step, samples, loss", str(caught.exception))

    def test_progress(self):
        """One line on a pipe; on a terminal it is rewritten."""
        _, _, trainer = trainer_for("sgd")
        for file, lines in ((io.StringIO(), r"^epoch 1  2/2  loss \d+\.\d{4}  chunks 2 x 5  \S+ samples/s  peak \S+ \S+\n$"),
                            (Terminal(), r"^\repoch 1  1/2  .*\repoch 1  2/2  loss .*\n$")):
            for x, y in trainer.progress([batch(), batch()], "epoch 1", file):
                trainer.set_chunks(5, 5)
                trainer.step(x, y)
            self.assertRegex(file.getvalue(), lines)
        self.assertEqual(list(trainer.progress(iter(()), "none", file=io.StringIO())), [])

    def test_progress_without_steps(self):
        _, _, trainer = trainer_for("sgd")
        file = io.StringIO()
        self.assertEqual(len(list(trainer.progress(iter([1, 2, 3]), file=file))), 3)
        self.assertEqual(file.getvalue(), "3\n")

    def test_broken_loop(self):
        _, _, trainer = trainer_for("sgd")
        file = Terminal()
        for values in trainer.progress([batch()] * 3, file=file):
            trainer.step(*values)
            break
        self.assertEqual(file.getvalue().count("\n"), 0)  # the first batch was not over yet
        file = Terminal()
        for index, values in enumerate(trainer.progress([batch()] * 3, file=file)):
            trainer.step(*values)
            if index:
                break
        self.assertTrue(file.getvalue().endswith("\n"))


class Kept(Case):
    """An exception that somebody keeps, as a notebook does, keeps nothing of a chunk."""

    def test_failed_step_frees_its_graph(self):
        def backward_fails(model, x, y):
            loss = loss_of(model, x, y)
            loss.register_hook(lambda gradient: 1 / 0)
            return loss

        def written(model, x, y):
            loss = loss_of(model, x, y)
            x.add_(0)
            return loss
        for loss_fn, kind in ((backward_fails, ZeroDivisionError), (written, ValueError),
                              (lambda model, x, y: (loss_of(model, x, y), 1, 2), ValueError),
                              (lambda model, x, y: {"loss": loss_of(model, x, y), "names": "a"}, TypeError),
                              (lambda model, x, y: (loss_of(model, x, y), -1), ValueError)):
            for planned in (True, False):
                _, _, trainer = trainer_for("sgd", loss_fn, planned_memory=planned)
                values = batch(8, 32)
                before = memtrain.memory()["allocated_bytes"]
                with self.assertRaises(kind) as caught:
                    raise_as_is(trainer.step, values)
                self.assertIsNotNone(caught.exception)
                self.assertLessEqual(memtrain.memory()["allocated_bytes"], before)


def raise_as_is(step, values):
    step(*values)


class Typed(unittest.TestCase):
    def test_annotations(self):
        """All that is public says what it takes and gives, and has a docstring."""
        import inspect
        import typing
        for name in memtrain.__all__:
            found = getattr(memtrain, name)
            self.assertTrue(found.__doc__, name)
            functions = [found] if inspect.isfunction(found) else [
                member for key, member in vars(found).items() if inspect.isfunction(member) and not key.startswith("_")]
            for function in functions:
                hints = typing.get_type_hints(function)
                wanted = set(inspect.signature(function).parameters) - {"self"} | {"return"}
                self.assertEqual(wanted - set(hints), set(), "%s.%s" % (name, function.__name__))
        folder = os.path.dirname(memtrain.__file__)
        for file in ("py.typed", "_native.pyi"):
            self.assertTrue(os.path.exists(os.path.join(folder, file)), file)

    def test_stub(self):
        """The extension has what its stub says, and no more."""
        import ast
        with open(os.path.join(os.path.dirname(memtrain.__file__), "_native.pyi")) as file:
            body = ast.parse(file.read()).body
        told = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))} | {"version"}
        self.assertEqual(told, {name for name in vars(_native) if not name.startswith("__")})
        for one in [node for node in body if isinstance(node, ast.ClassDef)]:
            for node in one.body:
                self.assertTrue(hasattr(getattr(_native, one.name), node.name), node.name)


if __name__ == "__main__":
    unittest.main()
