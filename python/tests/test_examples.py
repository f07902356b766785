"""The programs in python/examples: what differs in each pair, what docs/python.md shows of it, and that they train."""
import difflib
import importlib.util
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


def missing(*packages):
    """The first that is not there, or ""."""
    return next((name for name in packages if importlib.util.find_spec(name) is None), "")


class Examples(unittest.TestCase):
    def run_program(self, name, *epochs):
        code = "import %s as program; program.main(%s)" % (name, ", ".join(map(str, epochs)))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1500,
                              stdin=subprocess.DEVNULL, cwd=os.path.dirname(path_of(name)))
        self.assertEqual(done.returncode, 0, done.stderr)
        return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)], done.stdout

    def check(self, name, budget, steps, smallest_change, package="torch", apart=0.3):
        """
        It differs from the plain loop in ten lines, learns, and stays in its budget of so many MiB. The first losses of
        the two are as far apart as that: chunks draw other random numbers, and batch norms see fewer samples.
        """
        lines = differing(name)
        for sign in "+-":
            self.assertLessEqual(sum(line.startswith(sign) for line in lines), MOST_LINES)
        if missing(package):
            self.skipTest("no " + package)
        losses, output = self.run_program(name)
        self.assertLess(losses[-1], losses[0] - smallest_change, output)
        numbers = {key: int(value) for key, value in re.findall(r"^(\w+) +(\d+)(?: |$)", output, re.M)}
        self.assertEqual((numbers["steps"], numbers["skipped"], numbers["budget_bytes"]), (steps, 0, budget << 20), output)
        self.assertLessEqual(numbers["peak_bytes"], budget << 20)
        self.assertLess(numbers["largest_chunk"], 32)
        plain, _ = self.run_program(name + "_before", 1)
        self.assertAlmostEqual(losses[0], plain[0], delta=apart)

    def test_page(self):
        """The page shows what differs in each pair."""
        with open(os.path.join(ROOT, "docs", "python.md")) as page:
            shown = [block.splitlines() for block in re.findall(r"```diff\n(.*?)```", page.read(), re.S)]
        programs = sorted(name[:-10] for name in os.listdir(os.path.dirname(path_of(""))) if name.endswith("_before.py"))
        self.assertEqual(len(programs), len(shown))
        for name in programs:
            self.assertIn(differing(name), shown, name)

    def test_classifier(self):
        self.check("classifier", 300, 6, 0.1, "torchvision", apart=0.6)

    def test_vit(self):
        self.check("vit", 200, 6, 0.02, "timm")

    def test_texts(self):
        self.check("texts", 200, 6, 0.1, "transformers")

    def test_tagger(self):
        """The first losses are close to those of the plain loop: a mean over tokens is that of the batch."""
        self.check("tagger", 240, 6, 0.1, apart=0.05)

    def test_segmentation(self):
        self.check("segmentation", 320, 4, 0.02)

    def test_lora(self):
        """As close as the tagger's, for the same reason."""
        self.check("lora", 160, 4, 0.1, apart=0.05)


if __name__ == "__main__":
    unittest.main()
