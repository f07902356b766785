"""PyTorch training inside a memory budget.

    trainer = memtrain.Trainer(model, loss_fn, optimizer, budget="6GiB")
    for x, y in loader:
        report = trainer.step(x, y)

docs/python.md says what has been run, and what has not.
"""
import torch  # its libraries come first

from ._built import TORCH as _built_for


def _check_version():
    """libtorch has no stable interface: what was built for one minor version would crash in another, or not load."""
    if _built_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise ImportError("memtrain was built for torch %s, and torch %s is here: install it again beside this one, by pip "
                          "install --force-reinstall --no-build-isolation ./python" % (_built_for, torch.__version__))


_check_version()

from . import _native  # noqa: E402
from ._check import CheckReport, Finding
from ._helpers import OutOfMemory
from ._report import EvalReport, Report, RunReport, StepReport
from ._trainer import Trainer, memory, predict_resident, set_budget

__version__: str = _native.version
__all__ = ["CheckReport", "EvalReport", "Finding", "OutOfMemory", "Report", "RunReport", "StepReport", "Trainer", "memory",
           "predict_resident", "set_budget"]
