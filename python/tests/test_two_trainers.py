"""python/examples/gan.py: two trainers in one budget, over two networks of which each step runs both."""
import os
import re
import sys
import tempfile
import unittest

import torch

import memtrain
from memtrain import _native

import test_examples
from subjects import difference, plain_step, seed, state_of
from test_trainer import Case

sys.path.insert(0, os.path.dirname(test_examples.path_of("gan")))
import gan  # noqa: E402

MIB, CHUNKS = 1 << 20, (4, 3, 3)


def data():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(10, 3, 32, 32, generator=generator), torch.randn(10, 64, generator=generator)


class TwoTrainers(Case):
    def build(self):
        torch.manual_seed(1)
        nets = gan.networks(8)
        return (nets, *gan.trainers(nets, "256MiB"))

    def state(self, nets, critic, generator):
        return [state_of(nets, trainer.optimizer) for trainer in (critic, generator)]

    def unequal(self, before, after):
        return [name for one, other in zip(before, after) for name in difference(one, other)]

    def step(self, trainer, *values):
        trainer.set_chunks(*CHUNKS)
        return trainer.step(*values)

    def test_numbers(self):
        """Bits of a plain loop with the same chunks."""
        pictures, noise = data()
        nets, critic, generator = self.build()
        optimizers = critic.optimizer, generator.optimizer
        seed()
        for _ in range(3):
            plain_step(nets, optimizers[0], gan.critic_loss, (pictures, noise), CHUNKS)
            plain_step(nets, optimizers[1], gan.generator_loss, (noise,), CHUNKS)
        expected = [state_of(nets, optimizer) for optimizer in optimizers]
        nets, critic, generator = self.build()
        seed()
        for _ in range(3):
            self.step(critic, pictures, noise)
            self.step(generator, noise)
        self.assertEqual(self.unequal(expected, self.state(nets, critic, generator)), [])

    def test_one_runs_out_of_memory(self):
        """Neither network, nor an optimiser, nor a batch norm has changed, and both go on with the bits of an undisturbed run."""
        pictures, noise = data()
        seed()
        expected = None
        for disturbed in (False, True):
            nets, critic, generator = self.build()
            seed()
            self.step(critic, pictures, noise)
            self.step(generator, noise)
            if disturbed:
                before = self.state(nets, critic, generator)
                for trainer, values in ((generator, (noise,)), (critic, (pictures, noise))):
                    _native.inject(30, True)  # behind the first batch norms
                    try:
                        self.refused(memtrain.OutOfMemory, "does not fit on cpu", trainer.step, *values)
                    finally:
                        _native.inject(0, False)
                    self.assertIn("What would make it fit", trainer.explain())
                memtrain.set_budget("256KiB")  # less than there is
                self.refused(memtrain.OutOfMemory, "does not fit on cpu", critic.step, pictures, noise)
                memtrain.set_budget("256MiB")
                self.assertEqual(self.unequal(before, self.state(nets, critic, generator)), [])
            self.step(critic, pictures, noise)
            self.step(generator, noise)
            state = self.state(nets, critic, generator)
            expected = expected or state
        self.assertEqual(self.unequal(expected, state), [])

    def test_one_budget(self):
        """It is of the process: the second trainer has what is set, or sets it for both."""
        nets, critic, generator = self.build()
        self.assertEqual(generator.report().budget_bytes, 256 * MIB)
        other = memtrain.Trainer(nets, gan.generator_loss, generator.optimizer, "128MiB")
        other.step(data()[1])
        self.assertEqual(critic.step(*data()).budget_bytes, 128 * MIB)

    def test_file(self):
        """One file has both networks; the other optimiser is saved by its name."""
        pictures, noise = data()
        nets, critic, generator = self.build()
        for _ in range(2):
            critic.step(pictures, noise)
            generator.step(noise)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        expected, path = self.state(nets, critic, generator), os.path.join(folder.name, "gan.pt")
        generator.save(path, critic=critic.optimizer)
        nets, critic, generator = self.build()
        generator.load(path, critic=critic.optimizer)
        self.assertEqual(self.unequal(expected, self.state(nets, critic, generator)), [])

    def test_program(self):
        _, output = test_examples.Examples("test_page").run_program("gan", 1)
        self.assertIn("epoch 1  critic ", output)
        numbers = {key: int(value) for key, value in re.findall(r"^(\w+) +(\d+)(?: |$)", output, re.M)}
        self.assertEqual((numbers["steps"], numbers["skipped"], numbers["budget_bytes"]), (2, 0, 120 * MIB), output)
        self.assertLessEqual(numbers["peak_bytes"], 120 * MIB)
        self.assertLess(numbers["largest_chunk"], 64)


if __name__ == "__main__":
    unittest.main()
