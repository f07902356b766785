"""The programs in python/examples: what differs in each pair, what docs/python.md shows of it, and that they train."""
import difflib
import os
import re
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MOST_LINES = 10


def path_of(name):
    return os.path.join(ROOT, "python", "examples", name + ".py")


def differing(name):
    """Lines as diff -u shows them, without its heading."""
    with open(path_of(name + "_before")) as before, open(path_of(name)) as after:
        lines = difflib.unified_diff(before.read().splitlines(), after.read().splitlines(), lineterm="")
    return [line.rstrip() for line in lines][2:]


class Examples(unittest.TestCase):
    def run_program(self, name):
        done = subprocess.run([sys.executable, path_of(name)], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)], done.stdout

    def check(self, name, budget, smallest_loss):
        lines = differing(name)
        for sign in "+-":
            self.assertLessEqual(sum(line.startswith(sign) for line in lines), MOST_LINES)
        losses, output = self.run_program(name)
        self.assertLess(losses[1], losses[0] - smallest_loss, output)
        numbers = {key: int(value) for key, value in re.findall(r"'(\w+)': (\d+)", output)}
        self.assertEqual((numbers["steps"], numbers["ooms"], numbers["budget_bytes"]), (6, 0, budget << 20), output)
        self.assertLessEqual(numbers["peak_bytes"], budget << 20)
        self.assertLess(numbers["largest_chunk"], 32)
        return losses

    def test_page(self):
        with open(os.path.join(ROOT, "docs", "python.md")) as page:
            shown = re.search(r"```diff\n(.*?)```", page.read(), re.S)[1]
        self.assertEqual(shown.splitlines(), differing("classifier"))

    def test_classifier(self):
        self.check("classifier", 300, 0.1)
        self.run_program("classifier_before")

    def test_tagger(self):
        """The first losses are close to those of the plain loop: a mean over tokens is that of the batch."""
        losses = self.check("tagger", 240, 0.1)
        plain, _ = self.run_program("tagger_before")
        self.assertAlmostEqual(losses[0], plain[0], 1)


if __name__ == "__main__":
    unittest.main()
