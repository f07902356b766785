"""Every request for memory of a step fails in turn, once and for good."""
import copy
import importlib
import os
import sys
import unittest

import torch

import memtrain
from memtrain import _native

import subjects
from subjects import OPTIMIZERS, batch, difference, seed, state_of

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples")
SLOW = os.environ.get("MT_TEST_SLOW") == "1"
CHUNKS = (4, 3, 3)


def examples(*names):
    """Modules of python/examples."""
    if EXAMPLES not in sys.path:
        sys.path.insert(0, EXAMPLES)
    return [importlib.import_module(name) for name in names]


def needed(case, name):
    try:
        return importlib.import_module(name)
    except ImportError:
        case.skipTest("no " + name)


class Subject:
    """A trainer that can be put back to where it was: before its first step, or behind it."""

    def __init__(self, name, first, network=None, **options):
        """network: model, loss_fn and values; else a small one."""
        self.model, self.loss_fn, self.values = network or (subjects.network(), subjects.noisy_loss, batch())
        self.name, self.first, self.options = name, first, options
        self.optimizer = OPTIMIZERS[name]([p for p in self.model.parameters() if p.requires_grad])
        seed()
        if not first:
            subjects.plain_step(self.model, self.optimizer, self.loss_fn, self.values, CHUNKS)
        self.optimizer.zero_grad()
        self.weights = copy.deepcopy(self.model.state_dict())
        self.state = copy.deepcopy(self.optimizer.state_dict())
        self.groups = [dict(g) for g in self.optimizer.param_groups]

    def start(self):
        """As it was, with a new trainer."""
        self.model.load_state_dict(self.weights)
        if self.first:
            self.optimizer.state.clear()
        else:
            self.optimizer.load_state_dict(copy.deepcopy(self.state))
        seed()
        self.trainer = memtrain.Trainer(self.model, self.loss_fn, self.optimizer, "256MiB", **self.options)

    def step(self, nth, persistent, chunks=CHUNKS):
        """The state after a step whose nth request fails; requests, those that failed, and the error."""
        if chunks:
            self.trainer.set_chunks(*chunks)
        error = report = None
        _native.inject(nth, persistent)
        try:
            report = self.trainer.step(*self.values)
        except memtrain.OutOfMemory as raised:
            error = str(raised)
        requests, failed = _native.injected()
        _native.inject(0, False)
        return state_of(self.model, self.optimizer), requests, failed, error, report


class Faults(unittest.TestCase):
    def setUp(self):
        self.quiet = subjects.Quiet()
        self.quiet.__enter__()

    def tearDown(self):
        _native.inject(0, False)
        self.quiet.__exit__()

    def loop(self, subject, stride, persistent, chunks=CHUNKS):
        """Returns how many requests failed, and were told."""
        subject.start()
        before = state_of(subject.model, subject.optimizer)
        expected, requests, _, error, report = subject.step(0, False, chunks)
        self.assertIsNone(error)
        self.assertGreater(requests, 50)
        tried = 0
        for nth in range(1, requests + 1, 1 if SLOW else stride):
            subject.start()
            allocated = memtrain.memory()["allocated_bytes"]
            after, _, failed, error, report = subject.step(nth, persistent, chunks)
            what = "%s, request %d of %d" % (subject.name, nth, requests)
            self.assertGreaterEqual(failed, 1, what)
            if persistent:
                self.assertIsNotNone(error, what)
                self.assertEqual(difference(before, after), [], what)
                self.assertTrue(all(p.grad is None for p in subject.model.parameters()), what)
                self.assertLessEqual(memtrain.memory()["allocated_bytes"], allocated, what)
            else:
                self.assertIsNone(error, what)
                self.assertEqual(report.ooms, 1, what)
                self.assertEqual(difference(expected, after) if chunks else [], [], what)
            tried += 1
        return tried

    def test_each_request_once(self):
        """The step recovers, and its bits are those of a step that met no fault."""
        for name in OPTIMIZERS:
            for first in (True, False):
                with self.subTest(optimizer=name, first=first):
                    self.assertGreater(self.loop(Subject(name, first), 5 if name == "adamw" else 29, False), 1)

    def test_each_request_for_good(self):
        """The step gives up, and all is as before it, also where the optimiser had begun."""
        for name in OPTIMIZERS:
            for first in (True, False):
                with self.subTest(optimizer=name, first=first):
                    self.assertGreater(self.loop(Subject(name, first), 11 if name == "adamw" else 47, True), 1)

    def test_without_marks(self):
        """Gradients are added in place, and an OOM costs the step."""
        subject = Subject("sgd", False, keep_chunks=-1)
        self.loop(subject, 5, False)
        self.loop(subject, 11, True)

    def test_heap(self):
        subject = Subject("adamw", False, planned_memory=False)
        self.loop(subject, 11, False)

    def chosen(self, subject, stride):
        """Chunks are the policy's, recordings included: what went through is what a replay of its chunks makes."""
        subject.start()
        _, requests, _, _, _ = subject.step(0, False, None)
        for nth in range(1, requests + 1, 1 if SLOW else stride):
            subject.start()
            after, _, _, error, report = subject.step(nth, False, None)
            self.assertIsNone(error)
            subject.start()
            expected, _, _, _, _ = subject.step(0, False, report.chunks)
            self.assertEqual(difference(expected, after), [], "request %d, chunks %s" % (nth, report.chunks))

    def test_chosen_chunks(self):
        self.chosen(Subject("adamw", False), 23)

    def test_branches(self):
        """A backward that dies between branches leaves none of their gradients behind."""
        (networks,) = examples("networks")
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(networks.LoRA(torch.nn.Linear(192, 192), 4) for _ in range(2)), torch.nn.Linear(192, 5))
        x, y = batch()
        self.loop(Subject("sgd", False, (model, subjects.loss_of, (x.flatten(1), y))), 1, True)

    def test_whole_batch(self):
        """One chunk, whose gradients stay where they are made when memory is short."""
        self.loop(Subject("sgd", False), 5, False, (10,))

    def example(self, optimizer, model, loss_fn, values):
        """The steps of one of the examples' kinds, with fewer and smaller samples."""
        subject = Subject(optimizer, False, (model, loss_fn, values))
        self.assertGreater(self.loop(subject, 307, False), 0)
        self.assertGreater(self.loop(subject, 907, True), 0)
        self.chosen(subject, 709)

    def test_tagger(self):
        """A mean over tokens, with its units, and padding."""
        networks, tagger = examples("networks", "tagger")
        batch_of = networks.collate([networks.Texts(10, 400)[index][:16 - index] for index in range(10)])
        self.example("adamw", networks.Tagger(words=400, width=32, layers=2), tagger.loss_of, (batch_of,))

    def test_classifier(self):
        """A residual network of one block a stage."""
        resnet = needed(self, "torchvision.models.resnet")
        model = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
        self.example("sgd", model, subjects.loss_of, batch(10, 32))

    def test_vit(self):
        """Dropped paths, and labels that are mixed."""
        timm = needed(self, "timm")
        model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5, drop_path_rate=0.2, depth=3)
        x, y = batch(10, 32)
        labels = 0.7 * torch.nn.functional.one_hot(y, 5) + 0.3 * torch.nn.functional.one_hot(y.flip(0), 5)
        self.example("adamw", model, subjects.loss_of, (x, labels))

    def test_texts(self):
        """The program's classifier with a thinner encoder."""
        bert = needed(self, "transformers")
        networks, texts = examples("networks", "texts")
        model = texts.Classifier(classes=4)
        model.encoder = bert.BertModel(bert.BertConfig(
            vocab_size=400, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=128), add_pooling_layer=False)
        model.head = torch.nn.Linear(32, 4)
        batch_of = networks.collate_labelled([(text[:16 - index], label) for index, (text, label) in
                                              enumerate(map(networks.LabelledTexts(10, 400).__getitem__, range(10)))])
        self.example("adamw", model, texts.loss_of, (batch_of,))

    def test_segmentation(self):
        """Dice, and a metric beside the loss."""
        networks, segmentation = examples("networks", "segmentation")
        x, _ = batch(10, 32)
        model = networks.UNet(widths=(4, 8, 8))
        self.example("adamw fused", model, segmentation.loss_of, (x, (x[:, :1] > 0).float()))

    def test_lora(self):
        """Frozen layers, and few parameters that train."""
        networks, lora = examples("networks", "lora")
        torch.manual_seed(0)
        model = networks.add_lora(networks.Decoder(words=500, width=32, layers=2), rank=4)
        tokens = networks.collate([networks.Texts(10, 500)[index][:20 - index] for index in range(10)])["tokens"]
        self.example("adamw", model, lora.loss_of, (tokens,))

    def test_evaluation(self):
        subject = Subject("sgd", False, (subjects.network(), subjects.loss_of, batch()))
        subject.start()
        before, expected = state_of(subject.model, subject.optimizer), subject.trainer.evaluate(*subject.values).loss
        _native.inject(0, False)
        subject.trainer.evaluate(*subject.values)
        requests, _ = _native.injected()
        for nth in range(1, requests + 1):
            subject.start()
            _native.inject(nth, False)
            report = subject.trainer.evaluate(*subject.values)
            _native.inject(0, False)
            self.assertAlmostEqual(report.loss, expected, 5)
            self.assertEqual(difference(before, state_of(subject.model, subject.optimizer)), [])


if __name__ == "__main__":
    unittest.main()
