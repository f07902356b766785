"""What a script may get wrong: one exception each, which names it, and the script can go on."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import torch
from torch import nn

import memtrain

import subjects
from subjects import batch, difference, loss_of, network, seed, state_of, trainer_for
from test_trainer import Case


class BadInput(Case):
    def setUp(self):
        super().setUp()
        self.wrong = []
        self.model, self.optimizer, self.trainer = trainer_for("adamw", self.loss_fn)
        seed()
        self.trainer.step(*batch())

    def loss_fn(self, model, x, y):
        loss = loss_of(model, x, y)
        return self.wrong[0](loss) if self.wrong else loss

    def goes_on(self, kind, words, *values):
        """The step is refused and changes nothing, and the next one is taken."""
        before = state_of(self.model, self.optimizer)
        self.refused(kind, words, self.trainer.step, *values)
        self.assertEqual(difference(before, state_of(self.model, self.optimizer)), [])
        self.wrong = []
        self.assertEqual(self.trainer.step(*batch()).skipped, "")
        self.assertNotEqual(difference(before, state_of(self.model, self.optimizer)), [])

    def test_other_device(self):
        x, y = batch()
        self.goes_on(ValueError, "the model is on cpu and batch[0] on meta; accepted: one device", x.to("meta"), y)

    def test_model_on_another_device(self):
        model = network().to("meta")
        self.refused(ValueError, "the model is on meta; accepted: one of cpu", memtrain.Trainer, model, loss_of,
                     torch.optim.SGD(model.parameters(), 0.1))
        self.trainer.step(*batch())

    def test_no_graph(self):
        self.wrong = [lambda loss: loss.detach()]
        self.goes_on(ValueError, "the loss has no graph", *batch())

    def test_no_graph_outside(self):
        """A script that has switched gradients off keeps them off, and trains."""
        with torch.no_grad():
            self.trainer.step(*batch())
            self.assertFalse(torch.is_grad_enabled())

    def test_inference_mode(self):
        """What was made there cannot train: each of these is named. Steps and evaluations may be called there."""
        x, y = batch()
        words = " was made under torch.inference_mode(), so nothing can train with it: make it outside, or clone it there"
        with torch.inference_mode():
            other, built = x.clone(), network()
        self.goes_on(ValueError, "batch[0]" + words, other, y)
        self.refused(ValueError, "batch[0]" + words, self.trainer.check, other, y)
        self.refused(ValueError, "the parameter 0.weight" + words, memtrain.Trainer, built, loss_of,
                     torch.optim.SGD(built.parameters(), 0.1))

        def inside(loss):
            with torch.inference_mode():
                return loss + 1
        self.wrong = [inside]
        self.goes_on(ValueError, "the loss" + words, x, y)
        for holder, name, words_of in ((self.model[1]._buffers, "running_mean", "the model's buffer running_mean"),
                                       (self.optimizer.state[self.model[0].weight], "exp_avg",
                                        "a tensor of shape (8, 3, 3, 3) in the optimizer's state")):
            own = holder[name]
            with torch.inference_mode():
                holder[name] = own.clone()
            self.refused(ValueError, words_of + words, self.trainer.step, x, y)
            holder[name] = own
        expected = self.trainer.evaluate(x, y).loss
        with torch.inference_mode():
            self.assertAlmostEqual(self.trainer.evaluate(other, y.clone()).loss, expected, 5)
            self.assertEqual(self.trainer.evaluate(other[:3], y[:3]).samples, 3)  # another shape: described anew
            self.assertEqual(self.trainer.step(x, y).skipped, "")
            trainer = memtrain.Trainer(self.model, loss_of, self.optimizer)
            self.assertTrue(torch.is_inference_mode_enabled())
        self.assertEqual(trainer.step(x, y).skipped, "")
        self.assertEqual(self.trainer.step(x, y).skipped, "")

    def test_parts_disagree(self):
        x, y = batch()
        self.goes_on(ValueError, "batch[0] has 10 samples and batch[1] has 9; accepted: as many in dimension 0 of each", x,
                     y[:9])

    def test_texts(self):
        """Such as the names of files."""
        x, y = batch()
        self.goes_on(TypeError, "batch[2][0] is a str; accepted: tensors in tuples, lists and dicts, numbers and None", x, y,
                     ["a.png"] * 10)

    def test_optimizer_over_other_parameters(self):
        other = nn.Linear(7, 7)
        optimizer = torch.optim.SGD(list(self.model.parameters()) + list(other.parameters()), 0.1)
        self.refused(ValueError, "optimizer has a parameter of shape (7, 7) in group 0 that is none of the model's",
                     memtrain.Trainer, self.model, loss_of, optimizer)
        self.trainer.step(*batch())

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_forked_child(self):
        """The child is told, can go on without a trainer, and the parent trains."""
        with tempfile.NamedTemporaryFile("r") as file:
            child = os.fork()
            if not child:
                end = 1
                try:
                    for call in (lambda: self.trainer.step(*batch()), lambda: self.trainer.evaluate(*batch()),
                                 lambda: self.trainer.save(file.name + ".no"), lambda: self.trainer.check(*batch()),
                                 lambda: memtrain.Trainer(self.model, loss_of, self.optimizer, "1MiB")):
                        try:
                            call()
                        except RuntimeError as error:
                            with open(file.name, "a") as out:
                                out.write(str(error) + "\n")
                    end = 0
                finally:
                    os._exit(end)
            _, status = os.waitpid(child, 0)
            self.assertEqual(status, 0)
            line = "this is a child of the process that made the trainer: a trainer belongs to one process\n"
            own = ("this is a forked child of a process with a budget, and has none: a trainer is made in the parent, or in a "
                   "process of its own (spawn)\n")
            self.assertEqual(file.read(), 4 * line + own)
        self.trainer.step(*batch())

    def test_arguments(self):
        """Each names the argument, its value, and what is accepted."""
        model, optimizer = self.model, self.optimizer
        for kind, words, options in (
                (ValueError, "budget is 'much'; accepted: bytes as a number, or a text with a unit", {"budget": "much"}),
                (ValueError, "budget is '300'; accepted: bytes as a number, or a text with a unit", {"budget": "300"}),
                (ValueError, "budget is 0; accepted", {"budget": 0}),
                (ValueError, "budget is -5; accepted", {"budget": -5}),
                (ValueError, "budget is 1.5; accepted", {"budget": 1.5}),
                (ValueError, "clip_norm is 0; accepted: a number above 0, or None", {"clip_norm": 0}),
                (ValueError, "clip_norm is 'a'", {"clip_norm": "a"}),
                (TypeError, "before_update is a int; accepted: a function, or None", {"before_update": 3}),
                (TypeError, "trace is a str", {"trace": "file"}),
                (TypeError, "has no option 'micro'; accepted: clear_every, deterministic", {"micro": 4}),
                (TypeError, "micro_batch is '4'; accepted: int", {"micro_batch": "4"}),
                (ValueError, "micro_batch is -1; accepted: a number from 0 to 2147483647", {"micro_batch": -1}),
                (ValueError, "max_retries is 1180591620717411303424; accepted: a number from 0", {"max_retries": 1 << 70}),
                (ValueError, "clear_every is -3; accepted: a number from -2", {"clear_every": -3})):
            with self.subTest(options=options):
                self.refused(kind, words, memtrain.Trainer, model, loss_of, optimizer, **options)
        self.refused(TypeError, "model is a int", memtrain.Trainer, 3, loss_of, optimizer)
        self.refused(TypeError, "loss_fn is a str", memtrain.Trainer, model, "loss", optimizer)
        self.refused(TypeError, "optimizer is a NoneType", memtrain.Trainer, model, loss_of, None)
        self.refused(ValueError, "optimizer is 'lion'; accepted: a torch.optim.Optimizer, or sgd, adam, adamw",
                     memtrain.Trainer, model, loss_of, "lion", lr=1.0)
        self.refused(ValueError, "lr is None; accepted: a number above 0 beside optimizer='sgd'", memtrain.Trainer, model,
                     loss_of, "sgd")
        self.refused(ValueError, "lr is 0.1 beside an optimizer that has its own", memtrain.Trainer, model, loss_of,
                     optimizer, lr=0.1)
        with self.assertRaises(AttributeError):
            self.trainer.optimizer = optimizer
        self.assertEqual(memtrain.memory()["budget_bytes"], 256 << 20)
        self.trainer.step(*batch())

    def test_step_inside_another(self):
        """In any function of another trainer's: what it did could not be taken back with that one's step."""
        words = "a step inside a call of another trainer"
        model, _, inner = trainer_for("adamw", loss_of)
        before = state_of(model, inner.optimizer)

        def nested(loss):
            inner.step(*batch())
            return loss
        for call in (self.trainer.step, self.trainer.evaluate, self.trainer.check):
            self.wrong = [nested]
            self.refused(RuntimeError, words, call, *batch())
        self.wrong = []
        outer = memtrain.Trainer(self.model, loss_of, self.optimizer, before_update=lambda model: inner.step(*batch()))
        self.refused(RuntimeError, words, outer.step, *batch())
        self.assertEqual(difference(before, state_of(model, inner.optimizer)), [])
        for trainer in (self.trainer, inner):
            self.assertEqual(trainer.step(*batch()).skipped, "")

    def test_no_gradient_left(self):
        """An update of nothing is not made in silence."""
        trainer = memtrain.Trainer(self.model, loss_of, self.optimizer, before_update=lambda model: self.optimizer.zero_grad())
        before = state_of(self.model, self.optimizer)
        self.refused(ValueError, "before_update leaves no gradient", trainer.step, *batch())
        self.assertEqual(difference(before, state_of(self.model, self.optimizer)), [])
        self.trainer.step(*batch())

    def test_budget_of_a_trainer_that_was_not_made(self):
        with self.assertRaises(torch.OutOfMemoryError):
            memtrain.Trainer(self.model, loss_of, self.optimizer, budget=300)
        self.assertEqual(memtrain.memory()["budget_bytes"], 256 << 20)
        torch.randn(10000)

    def test_another_torch(self):
        """Built for another minor version of torch: the import says which is which. Another patch will do."""
        major, minor = torch.__version__.split(".")[:2]
        later = "%s.%d" % (major, int(minor) + 1)

        def imported(version):
            with tempfile.TemporaryDirectory() as folder:
                package = shutil.copytree(os.path.dirname(memtrain.__file__), os.path.join(folder, "memtrain"))
                with open(os.path.join(package, "_built.py"), "w") as file:
                    file.write("TORCH = %r\n" % version)
                path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
                code = "import memtrain; print(memtrain.__file__)"
                return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                      env=dict(os.environ, PYTHONPATH=path), cwd=folder)
        done = imported(later + ".1+cpu")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.strip().split("\n")[-1],
                         "ImportError: memtrain was built for torch %s.1+cpu, and torch %s is here: install it again beside this "
                         "one, by pip install --force-reinstall --no-build-isolation ./python" % (later, torch.__version__))
        done = imported("%s.%s.99" % (major, minor))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("memtrain", done.stdout)


if __name__ == "__main__":
    unittest.main()
