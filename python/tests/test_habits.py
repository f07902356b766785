"""What people do with PyTorch beside a plain loop: it has the bits of that loop, or one exception that names it."""
import collections
import copy
import pickle
import unittest
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import memtrain
from memtrain import _native

from subjects import difference, plain_step, seed, state_of
from test_trainer import CHUNKS, Case

Schedulers = torch.optim.lr_scheduler


def data(samples=10):
    generator = torch.Generator().manual_seed(4)
    return (torch.randn(samples, 16, generator=generator), torch.randint(0, 5, (samples,), generator=generator),
            torch.randint(0, 20, (samples, 6), generator=generator))


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def layers(activation=nn.ReLU):
    return nn.Sequential(nn.Linear(16, 32), activation(), nn.Linear(32, 5))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.first, self.last = reentrant, nn.Linear(16, 32), nn.Linear(32, 5)
        self.middle = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, x):
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.real = nn.Parameter(torch.randn(16, 5, dtype=torch.complex64)), nn.Linear(16, 5)

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight).abs() + self.real(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(16, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.cells(x.unsqueeze(1))[0][:, -1])


class SparseWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 5))

    def forward(self, tokens):
        return F.embedding(tokens, self.weight, sparse=True).mean(1)


def hooked():
    model = layers()
    model[2].register_full_backward_hook(lambda *_: None)
    model[0].register_forward_hook(lambda module, given, output: output * 1.5)
    model[2].weight.register_hook(lambda gradient: gradient * 0.5)
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


def normed():
    parametrizations = nn.utils.parametrizations
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(16, 32)), nn.ReLU(),
                         parametrizations.weight_norm(nn.Linear(32, 5)))


def frozen():
    model = layers()
    model[0].requires_grad_(False)
    return model


def penalty(model, x, y):
    x = x.detach().requires_grad_()
    output = model(x)
    gradient, = torch.autograd.grad(output.sum(), x, create_graph=True)
    return F.cross_entropy(output, y) + gradient.square().sum(1).mean()


def equation(model, x):
    output = model(x)
    gradient, = torch.autograd.grad(output.sum(), x, create_graph=True)
    return (gradient.sum(1) + output.sum(1)).square().mean()


def adam(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)


class Numbers(Case):
    """Bits of the plain loop that takes the same chunks."""

    def compare(self, build, loss_fn=loss_of, values=None, optimizer=adam, between=None, scheduler=None):
        values, states = values or data()[:2], []
        for ours in (False, True):
            torch.manual_seed(1)
            model = build()
            own = optimizer(model)
            rates = scheduler(own) if scheduler else None
            trainer = memtrain.Trainer(model, loss_fn, own) if ours else None
            seed()
            for step in range(4):
                if between:
                    between(step, model, own)
                if ours:
                    trainer.set_chunks(*CHUNKS)
                    trainer.step(*values)
                else:
                    plain_step(model, own, loss_fn, values, CHUNKS)
                if rates:
                    rates.step()
            states.append(state_of(model, own))
        self.assertEqual(difference(*states), [])

    def test_checkpoints(self):
        for reentrant in (False, True):
            self.compare(lambda: Checkpointed(reentrant))

    def test_models(self):
        for build in (Complex, Recurrent, hooked, normed, lambda: layers().bfloat16().float()):
            with self.subTest(build=build):
                self.compare(build)
        tokens = data()[2]
        self.compare(Tied, lambda model, tokens: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()), (tokens,))

    def test_derivatives_in_the_loss(self):
        self.compare(lambda: layers(nn.Tanh), penalty)
        self.compare(lambda: layers(nn.Tanh), equation, (data()[0].requires_grad_(),))

    def test_group_is_added(self):
        def between(step, model, optimizer):
            if step == 1:
                model[0].requires_grad_(True)
                optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-3})
        self.compare(frozen, between=between)

    def test_modes(self):
        def between(step, model, optimizer):
            model.train(step != 1)
            model[3].requires_grad_(step != 2)
        self.compare(lambda: nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 5)),
                     between=between, optimizer=lambda model: torch.optim.AdamW(model.parameters(), 1e-2))

    def test_type_changes(self):
        def between(step, model, optimizer):
            if step == 1:
                model.double()
        self.compare(layers, lambda model, x, y: loss_of(model, x.to(model[0].weight.dtype), y), between=between,
                     optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1))

    def test_refusals_where_parameters_change(self):
        """Memory for the sums of gradients is asked for anew, and the step that is retried has the same bits."""
        def run(nth):
            torch.manual_seed(1)
            model, values = frozen(), data()[:2]
            trainer = memtrain.Trainer(model, loss_of, torch.optim.AdamW(model.parameters(), 1e-2))
            seed()
            trainer.set_chunks(*CHUNKS)
            trainer.step(*values)
            model[0].requires_grad_(True)
            trainer.set_chunks(*CHUNKS)
            _native.inject(nth, False)
            try:
                report = trainer.step(*values)
            finally:
                failed = _native.injected()[1]
                _native.inject(0, False)
            self.assertEqual((report.ooms, failed), (1, 1) if nth else (0, 0))
            return state_of(model, trainer.optimizer)
        expected = run(0)
        for nth in range(1, 8):
            self.assertEqual(difference(expected, run(nth)), [], nth)

    def test_hook_of_the_optimizer(self):
        def clamped(model):
            optimizer = adam(model)
            optimizer.register_step_post_hook(lambda *_: [p.data.clamp_(-0.1, 0.1) for p in model.parameters()] and None)
            return optimizer
        self.compare(layers, optimizer=clamped)

    def test_optimizers(self):
        for name in ("Adafactor", "Muon", "RAdam", "Rprop", "Adamax"):
            if hasattr(torch.optim, name):
                self.compare(lambda: nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 5, bias=False)),
                             optimizer=lambda model: getattr(torch.optim, name)(model.parameters(), 1e-2))

    def test_schedulers(self):
        """Without the warning that the optimizer has not stepped."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for scheduler in (lambda o: Schedulers.OneCycleLR(o, 0.1, total_steps=8),
                              lambda o: Schedulers.SequentialLR(o, [Schedulers.LinearLR(o, total_iters=2),
                                                                    Schedulers.CosineAnnealingLR(o, 4)], [2])):
                self.compare(layers, scheduler=scheduler,
                             optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))

    def test_own_mappings(self):
        """A chunk has the batch's types: attributes and defaults stay."""
        class Attributes(collections.UserDict):
            @property
            def x(self):
                return self["x"]
        x, y, _ = data()
        own = {"x": x, "y": y}
        for batch in (Attributes(own), collections.defaultdict(list, own), collections.OrderedDict(own)):
            def loss_fn(model, given):
                self.assertIs(type(given), type(batch))
                self.assertLess(len(given["x"]), 10)
                if isinstance(given, collections.defaultdict):
                    self.assertEqual(given["other"], [])
                return loss_of(model, given.x if isinstance(given, Attributes) else given["x"], given["y"])
            model = layers()
            trainer = memtrain.Trainer(model, loss_fn, adam(model))
            trainer.set_chunks(*CHUNKS)
            trainer.step(batch)
            self.assertEqual((sorted(batch), len(batch["x"])), (["x", "y"], 10))


class Refused(Case):
    """One exception, which names it; everything is as before, and the script goes on."""

    def refuses(self, words, loss_fn, *values, build=layers, kind=ValueError):
        torch.manual_seed(1)
        model = build()
        wrong = [False]
        trainer = memtrain.Trainer(model, lambda *given: (loss_fn if wrong[0] else loss_of)(*given), adam(model))
        trainer.step(*data()[:2])
        seed()
        before, wrong[0] = state_of(model, trainer.optimizer), True
        trainer.set_chunks(*CHUNKS)
        self.refused(kind, words, trainer.step, *values)
        self.assertEqual(difference(before, state_of(model, trainer.optimizer)), [])
        self.assertTrue(all(p.grad is None for p in model.parameters()))
        wrong[0] = False
        trainer.step(*data()[:2])

    def test_gradients_in_the_loss(self):
        x, y, _ = data()

        def backward(model, x, y):
            loss = loss_of(model, x, y)
            loss.backward(retain_graph=True)
            return loss

        def zero(model, x, y):
            model.zero_grad()
            return loss_of(model, x, y)
        for loss_fn in (backward, zero):
            self.refuses("loss_fn changes the .grad of 0.weight, by backward() or zero_grad(): trainer.step does both", loss_fn,
                         x, y)

    def test_batches(self):
        x, y, _ = data()
        self.refuses("batch[0] has a graph", loss_of, nn.Linear(16, 16)(x), y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nested = torch.nested.nested_tensor(list(x))
        self.refuses("batch[0] is a nested tensor; accepted: dense tensors", loss_of, nested, y)

    def test_losses(self):
        x, y, _ = data()
        self.refuses("the loss is torch.complex64; accepted: a real number", lambda *given: loss_of(*given) * (1 + 0j), x, y)
        self.refuses("the loss has no graph", lambda model, x, y: (model(x).argmax(1) == y).sum(), x, y)

    def test_update_in_the_backward_pass(self):
        x, y, _ = data()
        model = layers()
        trainer = memtrain.Trainer(model, loss_of, adam(model))

        def update(parameter):
            parameter.data.sub_(parameter.grad)
            parameter.grad = None
        model[0].weight.register_post_accumulate_grad_hook(update)
        before = model[2].weight.detach().clone()
        trainer.set_chunks(*CHUNKS)
        trainer.step(x, y)
        self.assertFalse(torch.equal(before, model[2].weight))

    def test_parameters_of_others(self):
        x, y, _ = data()
        model = layers()
        trainer = memtrain.Trainer(model, loss_of, adam(model))
        trainer.step(x, y)
        trainer.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        self.refused(ValueError, "optimizer has a parameter of shape (3,) in group 1 that is none of the model's", trainer.step,
                     x, y)
        del trainer.optimizer.param_groups[1]
        last, model[2] = model[2], nn.Linear(32, 5)
        self.refused(ValueError, "optimizer has a parameter of shape (5, 32) in group 0 that is none of the model's",
                     trainer.step, x, y)
        model[2] = last
        trainer.step(x, y)

    def test_models(self):
        lazy = nn.Sequential(nn.LazyLinear(5))
        self.refused(ValueError, "the parameter 0.weight has no shape yet: run the model once before", memtrain.Trainer, lazy,
                     loss_of, torch.optim.SGD(lazy.parameters(), 0.1))
        half = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 5, device="meta"))
        self.refused(ValueError, "the model is on cpu, meta; accepted: one of cpu", memtrain.Trainer, half, loss_of, adam(half))

    def test_several_processes(self):
        model = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
        nn.Module.__init__(model)
        model.module = layers()
        self.refused(NotImplementedError, "model is a DistributedDataParallel; accepted: a model of one process",
                     memtrain.Trainer, model, loss_of, adam(model))

    def test_model_that_moves(self):
        model = layers()
        trainer = memtrain.Trainer(model, loss_of, adam(model))
        torch.__future__.set_swap_module_params_on_conversion(True)  # so that the optimizer's parameters move as well
        self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, False)
        model.to("meta")
        self.refused(ValueError, "the model has moved to meta, and the trainer was made on cpu: make another one",
                     trainer.step, *data()[:2])

    def test_sparse_gradient(self):
        """Added to dense sums, it is a dense one."""
        model, (_, y, tokens) = SparseWeight(), data()
        trainer = memtrain.Trainer(model, loss_of, torch.optim.SGD(model.parameters(), 0.1))
        expected = model.weight.detach() - 0.1 * torch.autograd.grad(loss_of(model, tokens, y), model.weight)[0].to_dense()
        trainer.set_chunks(*CHUNKS)
        trainer.step(tokens, y)
        torch.testing.assert_close(model.weight.detach(), expected)

    def test_copies(self):
        model = layers()
        trainer = memtrain.Trainer(model, loss_of, adam(model))
        report = trainer.step(*data()[:2])
        for function in (copy.copy, copy.deepcopy, pickle.dumps):
            self.refused(TypeError, "a memtrain.Trainer cannot be copied or pickled", function, trainer)
        self.assertEqual(str(pickle.loads(pickle.dumps(report))), str(report))
        self.assertEqual(str(copy.deepcopy(report)), str(report))

    def test_check_of_complex_parameters(self):
        model = Complex()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            report = memtrain.Trainer(model, loss_of, adam(model)).check(*data()[:2])
        self.assertTrue(report, report)


if __name__ == "__main__":
    unittest.main()
