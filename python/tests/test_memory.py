"""The budget inside Python's process: what is counted, refused and left alone, in threads and other processes too."""
import gc
import io
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import weakref

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import memtrain
from memtrain import _native

import subjects
from subjects import batch, difference, loss_of, network, seed, state_of, trainer_for

MIB = 1 << 20


def allocated():
    return memtrain.memory()["allocated_bytes"]


class Pictures(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        torch.empty(8 * MIB)  # more than the parent's budget leaves
        return torch.full((3, 8, 8), float(index)), index % subjects.CLASSES


def child(code, timeout=300):
    """What a Python of its own prints that runs the code."""
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout,
                          env=dict(os.environ, PYTHONPATH=path))
    return (done.stderr if done.returncode else done.stdout).strip()


class Memory(unittest.TestCase):
    def setUp(self):
        gc.collect()
        memtrain.set_budget("256MiB")
        self.quiet = subjects.Quiet()
        self.quiet.__enter__()

    def tearDown(self):
        memtrain.set_budget("256MiB")
        self.quiet.__exit__()

    def test_refusal(self):
        """What exceeds the budget is refused, and what does not is counted to the byte and given back."""
        before = allocated()
        memtrain.set_budget(before + 4 * MIB)
        tensor = torch.empty(MIB)
        self.assertEqual(allocated(), before + 4 * MIB)
        with self.assertRaises(torch.OutOfMemoryError) as caught:
            torch.empty(1)
        self.assertIn("budget: there is no room for a request for 4 B", str(caught.exception))
        del tensor
        self.assertEqual(allocated(), before)
        self.assertEqual(torch.empty(MIB).numel(), MIB)

    def test_threads(self):
        """Together they never exceed it."""
        before, refused = allocated(), []
        memtrain.set_budget(before + 4 * MIB)
        _native.reset_peak()

        def take():
            for _ in range(200):
                try:
                    torch.empty(MIB // 2)
                except torch.OutOfMemoryError:
                    refused.append(1)
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertLessEqual(memtrain.memory()["peak_bytes"], before + 4 * MIB)
        self.assertEqual(allocated(), before)

    def test_late(self):
        """Tensors from before the allocator die as ever; those of a trainer count, once, while it lives."""
        self.assertEqual(child("""
            import gc, torch
            from torch import nn
            model = nn.Linear(1000, 1000, bias=False)
            model.tied = nn.Linear(1000, 1000, bias=False)
            model.tied.weight = model.weight
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            other, view = torch.ones(5000), torch.arange(6.0)[2:]
            import memtrain
            memtrain.set_budget("64MiB")
            print(memtrain.memory()["allocated_bytes"])
            trainer = memtrain.Trainer(model, lambda m, x: m(x).square().mean(), optimizer)
            second = memtrain.Trainer(model, lambda m, x: m(x).square().mean(), optimizer, planned_memory=False)
            rng = 4 * 5056
            print(memtrain.memory()["allocated_bytes"] - rng - 3 * 4000000)  # the weight once, and sums of each
            print(float(other.sum()), view.tolist())
            del other, view, second
            gc.collect()
            print(memtrain.memory()["allocated_bytes"] - rng // 2 - 2 * 4000000)
            print(trainer.step(torch.randn(4, 1000)).chunks)
            del trainer
            gc.collect()
            print(memtrain.memory()["allocated_bytes"] - 4000000)  # the momentum
        """).split("\n"), ["0", "0", "5000.0 [2.0, 3.0, 4.0, 5.0]", "0", "[2, 2]", "0"])

    def test_budget_holds(self):
        """Chunks keep the peak within it, for a batch that takes several times as much at once."""
        model, optimizer = network(16), None
        x, y = batch(64, 32)
        before = allocated()
        loss = loss_of(model, x, y)
        _native.reset_peak()
        loss.backward()
        whole = memtrain.memory()["peak_bytes"] - before
        model.zero_grad()
        del loss
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        trainer = memtrain.Trainer(model, loss_of, optimizer, before + whole // 4)
        for _ in range(6):
            report = trainer.step(x, y)
            self.assertLessEqual(report.peak_bytes, before + whole // 4)
            self.assertGreater(len(report.chunks), 3)
        self.assertEqual(trainer.report().ooms, 0)

    def test_predict_resident(self):
        """What the process holds, and what tensors that fill the budget take beside it, and a fiftieth of that."""
        _, _, trainer = trainer_for("sgd")
        trainer.step(*batch())
        few, many = memtrain.predict_resident(allocated() + MIB), memtrain.predict_resident("256MiB")
        self.assertLess(few, many)
        self.assertLessEqual(many - few, (256 * MIB - allocated()) * 51 // 50)
        self.assertGreater(few, MIB)
        report = trainer.report()
        self.assertGreaterEqual(report.predicted_resident_bytes, 256 * MIB)
        self.assertGreater(report.peak_resident_bytes, MIB)
        with self.assertRaisesRegex(ValueError, "tensors is 'much'; accepted: bytes"):
            memtrain.predict_resident("much")

    def test_too_small(self):
        """OutOfMemory says why; the model is as before, and nothing of the attempt is kept."""
        model, optimizer, trainer = trainer_for("adamw")
        x, y = batch(8, 64)
        seed()
        before, taken = state_of(model, optimizer), allocated()
        memtrain.set_budget(taken + MIB // 8)
        with self.assertRaises(memtrain.OutOfMemory) as caught:
            trainer.step(x, y)
        error = caught.exception
        self.assertIsInstance(error, torch.OutOfMemoryError)
        self.assertIn("does not fit on cpu", str(error))
        self.assertIn("What would make it fit", error.explain())
        self.assertEqual(error.explain(), trainer.explain())
        memtrain.set_budget("256MiB")
        self.assertLessEqual(allocated(), taken)
        self.assertEqual(difference(before, state_of(model, optimizer)), [])
        trainer.step(x, y)
        self.assertEqual(trainer.explain(), "")

    def test_no_room_for_the_copy(self):
        """Parameters and state are copied for the update: where that does not fit, it says so."""
        torch.manual_seed(0)
        model = nn.Linear(512, 512)
        x = torch.randn(4, 512)

        def build(**options):
            optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **options)
            trainer = memtrain.Trainer(model, lambda m, x: m(x).square().mean(), optimizer, "256MiB")
            trainer.step(x)
            return trainer
        trainer = build()
        memtrain.set_budget(allocated() + 5 * MIB // 2)
        with self.assertRaises(memtrain.OutOfMemory) as caught:
            trainer.step(x)
        self.assertIn("fused=True does without", str(caught.exception))
        del trainer
        trainer = build(fused=True)
        memtrain.set_budget(allocated() + 5 * MIB // 2)
        trainer.step(x)

    def test_explained_update(self):
        """Where the update does not fit, the text is about the update: what it asked for, what it makes, what would help."""
        torch.manual_seed(0)
        model, x = nn.Linear(512, 512), torch.randn(4, 512)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        trainer = memtrain.Trainer(model, lambda m, x: m(x).square().mean(), optimizer, "256MiB")

        def explained(room):
            memtrain.set_budget(allocated() + room)
            with self.assertRaises(memtrain.OutOfMemory) as caught:
                trainer.step(x)
            text = caught.exception.explain()
            self.assertEqual(text, trainer.explain())
            for words in ("the optimiser's update after chunks that did fit", "in use before the update",
                          "the last request was for 1.0 MiB", "a budget of more than", "not smaller chunks or samples"):
                self.assertIn(words, text)
            self.assertNotIn("a chunk needs", text)
            return text
        first = explained(5 * MIB // 2)  # room for the copies, and for a part of the state
        self.assertIn("first update makes: 2.0 MiB for Adam and AdamW, 1.0 MiB for SGD with momentum", first)
        self.assertIn("no copy of parameters and state, 1.0 MiB", first)
        self.assertEqual(trainer.report().ooms, 1)  # chunks are not run again in vain
        memtrain.set_budget("256MiB")
        trainer.step(x)
        second = explained(5 * MIB // 2)
        self.assertIn("no copy of parameters and state, 3.0 MiB", second)
        self.assertRegex(second, "optimiser state +2.0 MiB")
        self.assertIn("SGD keeps 1.0 MiB less", second)
        self.assertNotIn("first update", second.replace("after the first update", ""))
        other = torch.randn(2, 512, 512)
        memtrain.set_budget(allocated() + MIB // 64)
        with self.assertRaises(memtrain.OutOfMemory) as caught:
            trainer.evaluate(other)
        self.assertNotIn("update", caught.exception.explain())
        memtrain.set_budget("256MiB")
        trainer.step(x)

    def test_own_handler(self):
        """A loss_fn that handles an OOM of its own, and one that keeps the exception with its frames."""
        kept = []

        def loss_fn(model, x, y):
            try:
                torch.empty(1 << 40)
            except torch.OutOfMemoryError as error:
                kept.append(error)
            return loss_of(model, x, y)
        _, _, trainer = trainer_for("sgd", loss_fn)
        self.assertEqual(trainer.step(*batch()).ooms, 0)
        self.assertTrue(kept)

    def test_kept_exception(self):
        """Whoever keeps an OOM's exception keeps none of the chunk's tensors with it."""
        kept = []

        def loss_fn(model, x, y):
            large = torch.empty(MIB)
            if not kept:
                try:
                    torch.empty(1 << 40)
                except torch.OutOfMemoryError as error:
                    kept.append(error)
                    raise
            return loss_of(model, x, y) + 0 * large[0].nan_to_num()
        _, _, trainer = trainer_for("sgd", loss_fn, planned_memory=False)
        before = allocated()
        self.assertEqual(trainer.step(*batch()).ooms, 1)
        self.assertLess(allocated(), before + MIB)

    def test_error_after_own_handler(self):
        """A refusal in the same chunk does not make an OOM of another error."""
        def loss_fn(model, x, y):
            try:
                torch.empty(1 << 40)
            except torch.OutOfMemoryError:
                raise KeyError("mine") from None
        _, _, trainer = trainer_for("sgd", loss_fn)
        self.assertRaises(KeyError, trainer.step, *batch())

    def test_numpy(self):
        """Memory goes both ways: an array of a counted tensor keeps it, NumPy's own is not counted."""
        try:
            import numpy
        except ImportError:
            self.skipTest("no NumPy")
        before = allocated()
        array = torch.arange(1000.0).numpy()
        self.assertEqual(allocated(), before + 4000)
        self.assertEqual(array[999], 999)
        del array
        gc.collect()
        self.assertEqual(allocated(), before)
        tensor = torch.from_numpy(numpy.ones(1000))
        self.assertEqual(allocated(), before)
        self.assertEqual(float(tensor.sum()), 1000)

    def test_save(self):
        model, optimizer, trainer = trainer_for("adamw")
        trainer.step(*batch())
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file)
        other, its, _ = trainer_for("adamw")
        other.load_state_dict(loaded["model"])
        its.load_state_dict(loaded["optimizer"])
        self.assertEqual(difference(state_of(model, optimizer), state_of(other, its)), [])

    def test_storages(self):
        """A storage that grows, one in shared memory, and one that is a file's."""
        before = allocated()
        tensor = torch.empty(10)
        tensor.resize_(100000)
        tensor.zero_()
        self.assertEqual(allocated(), before + 400000)
        tensor.share_memory_()
        self.assertEqual(allocated(), before)
        with tempfile.NamedTemporaryFile() as file:
            mapped = torch.from_file(file.name, shared=True, size=1000)
            mapped.fill_(1)
            self.assertEqual(allocated(), before)

    def test_compiled(self):
        """A compiled model's tensors count: its chunks fit where the batch would not, and a request that fails is done again."""
        out = child("""
            import os, tempfile
            with tempfile.TemporaryDirectory() as folder:
                os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1")
                import torch, memtrain
                from memtrain import _native
                from torch import nn
                torch.manual_seed(0)
                plain = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
                model, x = torch.compile(plain, dynamic=True), torch.randn(4096, 64)
                try:
                    model(x[:8]).sum().backward()
                except Exception as error:
                    print("cannot compile: " + str(error).split("\\n")[0])
                    raise SystemExit
                plain.zero_grad()
                with torch.no_grad():
                    expected = plain(x).square().mean().item()
                memtrain.set_budget("1GiB")
                trainer = memtrain.Trainer(model, lambda m, x: m(x).square().mean(), torch.optim.SGD(plain.parameters(), 0.1))
                budget = memtrain.memory()["allocated_bytes"] + (3 << 20)
                memtrain.set_budget(budget)
                report = trainer.step(x)
                print(abs(report.loss - expected) < 1e-5, len(report.chunks) > 3, (1 << 20) < report.peak_bytes <= budget)
                for nth in (5, 30):
                    _native.inject(nth, False)
                    print(trainer.step(x).ooms)
                    _native.inject(0, False)
        """, 1500)
        if out.startswith("cannot compile"):
            self.skipTest(out)
        self.assertEqual(out.split("\n"), ["True True True", "1", "1"])

    def test_trainer_is_freed(self):
        _, _, trainer = trainer_for("sgd")
        trainer.step(*batch())
        gone = weakref.ref(trainer)
        del trainer
        self.assertIsNone(gone())


class Processes(unittest.TestCase):
    """A model of 4 MiB, and a budget that leaves little beside it."""

    CODE = """
        import os, torch
        import memtrain, subjects, test_memory
        from torch.utils.data import DataLoader

        def main():
            model, optimizer, trainer = subjects.trainer_for("sgd", budget="16MiB")
            with subjects.Quiet():
                %s

        if __name__ == "__main__":
            main()
    """

    def run_script(self, *lines):
        code = textwrap.dedent(self.CODE) % ("\n" + " " * 8).join(lines)
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(code)
        try:
            path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")])
            done = subprocess.run([sys.executable, file.name], capture_output=True, text=True, timeout=300,
                                  env=dict(os.environ, PYTHONPATH=path))
            return (done.stderr if done.returncode else done.stdout).strip().split("\n")
        finally:
            os.unlink(file.name)

    def test_loader_workers(self):
        """They have memory of their own: none is refused for what the parent may take."""
        for method in ("fork", "spawn"):
            with self.subTest(method=method):
                out = self.run_script(
                    "loader = DataLoader(test_memory.Pictures(), 8, num_workers=2, multiprocessing_context=%r)" % method,
                    "for epoch in range(2):",
                    "    print(sum(trainer.step(x, y).samples for x, y in loader))")
                self.assertEqual(out, ["24", "24"])

    def test_pages_of_forked_children(self):
        """Pages that wait for chunks are no child's: the parent's next chunk would copy them, and leave it the old ones."""
        out = self.run_script(
            "trainer.step(*subjects.batch(16, 64))",
            "planned = memtrain._native.planned_bytes()",
            "print(planned > 1 << 20)",
            "child = os.fork()",
            "if not child:",
            "    print(memtrain._native.planned_bytes(), flush=True)",
            "    os._exit(0)",
            "os.waitpid(child, 0)",
            "report = trainer.step(*subjects.batch(16, 64))",
            "print(report.samples, memtrain._native.planned_bytes() > 1 << 20)")
        self.assertEqual(out, ["True", "0", "16 True"])

    def test_forked_child(self):
        out = self.run_script(
            "trainer.step(*subjects.batch())",
            "child = os.fork()",
            "if not child:",
            "    try:",
            "        trainer.step(*subjects.batch())",
            "    except RuntimeError as error:",
            "        print(error, flush=True)",
            "    os._exit(0)",
            "os.waitpid(child, 0)",
            "print(trainer.step(*subjects.batch()).samples)")
        self.assertEqual(out, ["this is a child of the process that made the trainer: a trainer belongs to one process",
                               "10"])


if __name__ == "__main__":
    unittest.main()
