"""What docs/python.md shows for Lightning and transformers, with the real packages: the weights of a loop of memtrain's alone."""
import importlib
import os
import re
import tempfile
import unittest
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import memtrain

import subjects
from subjects import loss_of

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "python.md")
SAMPLES, BATCH = 24, 8


class Network(nn.Module):
    """With its loss, as those of transformers have it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, subjects.CLASSES))

    def forward(self, x, labels=None):
        logits = self.layers(x)
        return logits if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def data():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, 16, generator=generator)
    return [(row, index % subjects.CLASSES) for index, row in enumerate(x)]


def shown(name, **known):
    """The class that the page shows."""
    with open(PAGE) as page:
        (code,) = [code for code in re.findall(r"```python\n(.*?)```", page.read(), re.S) if "class %s(" % name in code]
    names = dict(known, torch=torch, memtrain=memtrain, loss_of=loss_of)
    exec(code, names)
    return names[name]


class Frameworks(unittest.TestCase):
    def setUp(self):
        self.quiet = subjects.Quiet()
        self.quiet.__enter__()
        self.warnings = warnings.catch_warnings()
        self.warnings.__enter__()
        warnings.simplefilter("ignore")

    def tearDown(self):
        self.quiet.__exit__()
        self.warnings.__exit__(None, None, None)

    def needed(self, name):
        try:
            return importlib.import_module(name)
        except ImportError:
            self.skipTest("no " + name)

    def alone(self, epochs):
        """The state after the same steps."""
        model = Network()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        trainer = memtrain.Trainer(model, loss_of, optimizer, "200MiB", clip_norm=1.0)
        for _ in range(epochs):
            for batch in DataLoader(data(), BATCH):
                trainer.step(*batch)
        return model.state_dict()

    def same(self, model, epochs):
        """Near enough: chunks are chosen by what is fast here, and AdamW blows up what rounding does to small gradients."""
        torch.testing.assert_close(dict(model.state_dict()), dict(self.alone(epochs)), rtol=0, atol=1e-3)
        first, now = Network().state_dict(), model.state_dict()
        for name in first:
            self.assertGreater(float((first[name] - now[name]).abs().max()), 2e-3, name)

    def test_lightning(self):
        lightning = self.needed("lightning.pytorch")
        model = Network()
        module = shown("Module", lightning=importlib.import_module("lightning"))(model)
        with tempfile.TemporaryDirectory() as folder:
            trainer = lightning.Trainer(
                max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                enable_model_summary=False, default_root_dir=folder)
            trainer.fit(module, DataLoader(data(), BATCH))
        self.assertEqual(module.steps.report().steps, 2 * SAMPLES // BATCH)
        self.same(model, 2)

    def test_transformers(self):
        transformers = self.needed("transformers")
        self.needed("accelerate")
        model = Network()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

        def collate(samples):
            return {"x": torch.stack([x for x, _ in samples]), "labels": torch.tensor([y for _, y in samples])}
        with tempfile.TemporaryDirectory() as folder:
            options = transformers.TrainingArguments(
                folder, per_device_train_batch_size=BATCH, num_train_epochs=2, save_strategy="no", logging_strategy="no",
                report_to=[], use_cpu=True, disable_tqdm=True, lr_scheduler_type="constant", remove_unused_columns=False,
                train_sampling_strategy="sequential")
            trainer = shown("InBudget", transformers=transformers)(
                model, options, train_dataset=data(), data_collator=collate, optimizers=(optimizer, None))
            trainer.train()
        self.assertEqual(trainer.steps.report().steps, 2 * SAMPLES // BATCH)
        self.same(model, 2)


if __name__ == "__main__":
    unittest.main()
