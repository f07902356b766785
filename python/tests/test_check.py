"""Trainer.check finds what makes steps in chunks differ from those of the whole batch, and leaves all as it was."""
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import memtrain

import subjects
from subjects import batch, difference, loss_of, network, seed, state_of
from test_trainer import Case


class Counting(nn.Module):
    """Its output depends on how often it was called, or a buffer counts that."""

    def __init__(self, where):
        super().__init__()
        self.layer, self.where = nn.Linear(4, 3), where
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.where == "member":
            self.calls += 1
        else:
            self.seen += 1
        return self.layer(x) * (self.calls if self.where == "member" else 1)


def pixels():
    """A small network with large activations, and without batch norms."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


class Found(Case):
    def kinds(self, model, loss_fn, *values, faults=True, **options):
        """Faults, by kind and name, that a check has found; state is as before."""
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        trainer = memtrain.Trainer(model, loss_fn, optimizer, "256MiB", **options)
        model.train()
        seed()
        before, modes = state_of(model, optimizer), [m.training for m in model.modules()]
        self.report = trainer.check(*values)
        self.assertEqual(difference(before, state_of(model, optimizer)), [])
        self.assertEqual([m.training for m in model.modules()], modes)
        self.assertTrue(all(p.grad is None for p in model.parameters()))
        self.assertEqual(bool(self.report), not self.report.faults)
        return [(f.kind, f.name) for f in (self.report.faults if faults else self.report.findings)]

    def linear(self):
        torch.manual_seed(0)
        return nn.Linear(4, 3), torch.randn(9, 4), torch.randint(0, 3, (9,))

    def test_nothing(self):
        self.assertEqual(self.kinds(network(), loss_of, *batch()), [])
        self.assertIn("checked with 6 samples: 0 faults found", str(self.report))
        self.assertIn(("normalises", ""), [(f.kind, f.name) for f in self.report.findings])
        model, x, y = self.linear()
        self.assertEqual(self.kinds(model, loss_of, x, y, faults=False), [])
        self.assertEqual(self.report.samples, 3)

    def test_sum(self):
        model, x, y = self.linear()
        self.assertEqual(self.kinds(model, lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"), x, y),
                         [("weighting", "")])
        self.assertIn("it is a sum; return a mean", str(self.report))

    def test_mean_over_tokens(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
        tokens = torch.randint(0, 11, (6, 7))
        labels = tokens.clone()
        for row in range(6):
            labels[row, row + 1:] = -100

        def loss_fn(model, tokens, labels):
            return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
        self.assertEqual(self.kinds(model, loss_fn, tokens, labels), [("weighting", "")])
        self.assertIn("a mean over something else than samples; return (loss, units)", str(self.report))
        self.assertEqual(self.kinds(model, lambda m, t, l: (loss_fn(m, t, l), (l != -100).sum()), tokens, labels), [])

    def test_coupling(self):
        model, x, y = self.linear()

        def contrastive(model, x, y):
            z = F.normalize(model(x), dim=1)
            return F.cross_entropy(z @ z.T * 5, torch.arange(len(z)))
        self.assertEqual(self.kinds(model, contrastive, x, y), [("coupling", "")])
        self.assertEqual(self.kinds(model, contrastive, x, y, needs_whole_batch=True), [])

    def test_hidden_state(self):
        _, x, y = self.linear()
        self.assertEqual(self.kinds(Counting("member"), loss_of, x, y), [("hidden state", "")])

    def test_buffer(self):
        _, x, y = self.linear()
        self.assertEqual(self.kinds(Counting("buffer"), loss_of, x, y), [("buffer", "seen")])

    def test_written(self):
        model, x, y = self.linear()

        def loss_fn(model, x, y):
            with torch.no_grad():
                model.bias += 1
            return loss_of(model, x, y)
        self.assertEqual(self.kinds(model, loss_fn, x, y), [("written", "bias")])
        self.assertEqual(self.kinds(model, lambda m, x, y: loss_of(m, x, y.add_(0)), x, y), [("written", "batch[1]")])

    def test_no_gradient(self):
        model = nn.ModuleDict({"used": nn.Linear(4, 3), "unused": nn.Linear(4, 3)})
        _, x, y = self.linear()
        self.assertEqual(self.kinds(model, lambda m, x, y: loss_of(m["used"], x, y), x, y),
                         [("no gradient", "unused.weight")])

    def test_no_graph(self):
        model, x, y = self.linear()
        self.assertEqual(self.kinds(model, lambda m, x, y: loss_of(m, x, y).detach(), x, y), [("no graph", "")])

    def test_not_finite(self):
        model, x, y = self.linear()
        self.assertEqual(self.kinds(model, lambda m, x, y: loss_of(m, x, y) / 0.0, x, y), [("not finite", "weight")])

    def test_chunk_fails(self):
        model, x, y = self.linear()
        self.assertEqual(self.kinds(model, lambda m, x, y: loss_of(m, x.view(3, 4), y), x, y), [("chunk fails", "")])

    def test_chunk_is_not_finite(self):
        """std(0) of one sample is NaN."""
        model, x, y = self.linear()

        def spread(model, x, y):
            z = model(x)
            return F.cross_entropy(z, y) + F.relu(1 - z.std(0)).mean()
        self.assertEqual(self.kinds(model, spread, x, y), [("chunk fails", "")])
        self.assertIn("in chunks of 2 and 1 it is not", str(self.report))

    def test_metric(self):
        model, x, y = self.linear()
        self.assertEqual(self.kinds(model, lambda m, x, y: {"loss": loss_of(m, x, y), "count": float(len(x))}, x, y),
                         [("metric", "count")])

    def test_random_in_evaluation(self):
        model, x, y = self.linear()
        found = self.kinds(model, lambda m, x, y: loss_of(m, x + torch.randn_like(x), y), x, y, faults=False)
        self.assertEqual(found, [("skipped", "")])

    def test_little_room(self):
        """Fewer samples where three do not fit."""
        model = pixels()
        trainer = memtrain.Trainer(model, loss_of, torch.optim.SGD(model.parameters(), 0.1), "256MiB")
        values = batch(8, 64)
        used = memtrain.memory()["allocated_bytes"]
        samples = []
        for halves in (64, 5, 3):
            memtrain.set_budget(used + halves * (1 << 19))
            samples.append(trainer.check(*values).samples)
        self.assertEqual(samples[0], 3)
        self.assertLess(samples[-1], 3)
        memtrain.set_budget("256MiB")
        trainer.step(*values)

    def test_no_room(self):
        """OutOfMemory where the smallest chunk does not fit: what it was and what would help. Nothing has changed."""
        def explained(model, loss_fn, room, *words):
            optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
            trainer, values = memtrain.Trainer(model, loss_fn, optimizer, "256MiB"), batch(8, 64)
            trainer.step(*values)
            before, used = state_of(model, optimizer), memtrain.memory()["allocated_bytes"]
            memtrain.set_budget(used + room)
            with self.assertRaises(memtrain.OutOfMemory) as caught:
                trainer.check(*values)
            self.assertEqual(difference(before, state_of(model, optimizer)), [])
            self.assertEqual(memtrain.memory()["allocated_bytes"], used)
            text = caught.exception.explain()
            for part in words + ("in use before the check", "optimiser state", "What would make it fit", "smaller samples"):
                self.assertIn(part, text)
            memtrain.set_budget("256MiB")
            trainer.step(*values)
            self.assertTrue(trainer.check(*values))
            return str(caught.exception), text
        line, text = explained(pixels(), loss_of, 1 << 15, "the last request was for 48.0 KiB", "a budget of more than")
        self.assertRegex(line, "^a check with 1 sample does not fit on cpu: budget: there is no room for a request for 48.0 KiB")
        self.assertNotIn("min_micro_batch", text)
        line, text = explained(network(), loss_of, 1 << 15, "a smaller min_micro_batch than 2", "buffers")
        self.assertIn("a check with 2 samples does not fit on cpu", line)

        def greedy(model, x, y):
            if memtrain.memory()["budget_bytes"] < 1 << 28:
                raise MemoryError("no room for a list")
            return loss_of(model, x, y)
        line, text = explained(pixels(), greedy, 1 << 26)
        self.assertIn("1 sample does not fit on cpu: no room for a list", line)
        self.assertIn("\n  more memory", text)
        self.assertNotIn("the last request", text)

    def test_errors(self):
        """What fails for the whole batch comes out as it is."""
        model, x, y = self.linear()
        trainer = memtrain.Trainer(model, lambda m, x, y: m.nothing(x), torch.optim.SGD(model.parameters(), 0.1))
        self.refused(AttributeError, "nothing", trainer.check, x, y)
        norm = network()
        trainer = memtrain.Trainer(norm, loss_of, torch.optim.SGD(norm.parameters(), 0.1))
        self.refused(ValueError, "the batch has 1 samples; accepted: at least 2", trainer.check, *batch(1))


if __name__ == "__main__":
    unittest.main()
