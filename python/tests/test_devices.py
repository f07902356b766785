"""
CUDA, XPU, MPS and a card of a third party, on the test device (tests/device/): on_card.py in a process for each. Without one
that was built for this torch (make build/tests/libcard_cuda.so, and those of xpu, mps and custom) the tests are skipped.
MT_TEST_DEVICE=cuda is the real card.
"""
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
REAL = os.environ.get("MT_TEST_DEVICE", "")
CARDS = os.environ.get("MT_TEST_CARDS_AT", os.path.join(HERE, "../../build/tests"))


def minor(version):
    return ".".join(version.split(".")[:2])


def why_not(kind):
    """Why there is no such device for this torch, or None."""
    if REAL:
        return None if kind == REAL else "the device is %s" % REAL
    path = os.path.join(CARDS, "libcard_%s.so" % kind)
    if not os.path.exists(path):
        return "no %s: make build/tests/%s" % (os.path.basename(path), os.path.basename(path))
    with open(path, "rb") as file:
        built = re.search(rb"test device for torch ([0-9.]+)", file.read())
    here = importlib.metadata.version("torch")
    if not built or minor(built[1].decode()) != minor(here):
        return "the test device is for torch %s, and this is %s" % (built[1].decode() if built else "of another time", here)
    return None


def told_by(case, kind):
    done = subprocess.run([sys.executable, os.path.join(HERE, "on_card.py"), kind], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env=dict(os.environ, MT_TEST_CARDS_AT=CARDS, OMP_NUM_THREADS="1"))
    case.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    return json.loads(done.stdout.strip().split("\n")[-1])


class Devices(unittest.TestCase):
    host = None

    def agree(self, kind):
        self.kind = kind
        reason = why_not(kind)
        if reason:
            self.skipTest(reason)
        Devices.host = host = Devices.host or told_by(self, "cpu")
        card = told_by(self, kind)
        for one, other in zip(host["losses"], card["losses"]):
            self.assertAlmostEqual(one, other, delta=1e-5)
        self.assertAlmostEqual(host["evaluated"], card["evaluated"], delta=1e-5)
        self.assertEqual(host["rights"], card["rights"])
        self.check_budget(kind, card)
        self.check_waits(card)
        self.check_evaluation(card)
        self.check_faults(card)
        self.check_files(card)
        self.check_refusals("%s:0" % kind, card)
        return card

    def check_budget(self, kind, card):
        self.assertEqual(card["budget"], 160 << 20)
        if kind != "custom":  # whose allocator takes no limit
            self.assertLessEqual(card["held"], card["budget"])
        self.assertEqual(sum(card["chunks"]), 256)
        self.assertGreater(len(card["chunks"]), 1)
        self.assertEqual(card["run"]["steps"], 4)
        self.assertEqual(card["run"]["samples_trained"], 4 * 256)
        self.assertNotIn("predicted_resident_bytes", card["run"])
        self.assertEqual(card["peak"] == 0, kind == "mps")  # which keeps none

    def check_waits(self, card):
        """
        One for all chunks, one for the norm; on MPS also two that look whether the GPU did what it was given, and one for a metric
        of integers, as there are no doubles.
        """
        self.assertTrue(card["same"])
        if not REAL:
            once, each = card["waits"]
            self.assertLessEqual(once, 2 if self.kind != "mps" else 5)
            self.assertGreaterEqual(each, 8)

    def check_evaluation(self, card):
        """One for all chunks; on MPS one for integers, and one that looks whether the GPU did what it was given."""
        self.assertTrue(card["evaluation_same"])
        self.assertEqual(card["evaluation_wrong"], [])
        self.assertGreater(card["evaluation_tried"], 10)
        if not REAL:
            once, each = card["evaluation_waits"]
            self.assertLessEqual(once, 1 if self.kind != "mps" else 3)
            self.assertGreaterEqual(each, 8)

    def check_faults(self, card):
        self.assertGreater(card["requests"], 50)
        self.assertGreater(card["tried"], 15)
        self.assertEqual(card["wrong"], [])
        self.assertIn("does not fit", card["explained"])
        self.assertEqual((card["drawn"], card["put_back"], card["moved"]), ("OutOfMemory", True, True))

    def check_files(self, card):
        self.assertEqual((card["epoch"], card["went_on"]), (3, True))
        self.assertLess(card["on_cpu"], 1e-5)
        self.assertIn("0 faults found", card["check"])
        if "detours" in card:
            self.assertGreater(card["refused"], 20)
            self.assertEqual(card["detours"], 0)

    def check_refusals(self, name, card):
        self.assertEqual(card["batch"], "ValueError: the model is on %s and batch[0] on cpu; accepted: one device" % name)
        self.assertEqual(card["index"], "ValueError: device is %s:7; accepted: cpu, %s" % (name[:-2], name))
        self.assertEqual(card["name"], "ValueError: device is gpu; accepted: cpu, %s" % name)
        self.assertEqual(card["two"], "ValueError: the model is on cpu, %s; accepted: one of cpu, %s" % (name, name))

    def test_cuda(self):
        self.agree("cuda")

    def test_xpu(self):
        self.agree("xpu")

    def test_custom(self):
        self.agree("custom")

    def test_mps(self):
        """Where the GPU ignores what it is given, a step says so."""
        card = self.agree("mps")
        if REAL:
            return
        self.assertIn("the GPU ignores what it is given", card["ignored"])
        self.assertEqual(card["works"], "nothing was raised")


if __name__ == "__main__":
    unittest.main()
