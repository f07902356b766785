"""PyTorch training inside a memory budget.

    trainer = memtrain.Trainer(model, loss_fn, optimizer, budget="6GiB")
    for x, y in loader:
        report = trainer.step(x, y)

docs/python.md says what has been run, and what has not.
"""
import torch  # noqa: F401, its libraries come first

from . import _native
from ._check import CheckReport, Finding
from ._helpers import OutOfMemory
from ._report import EvalReport, Report, RunReport, StepReport
from ._trainer import Trainer, memory, predict_resident, set_budget

__version__: str = _native.version
__all__ = ["CheckReport", "EvalReport", "Finding", "OutOfMemory", "Report", "RunReport", "StepReport", "Trainer", "memory",
           "predict_resident", "set_budget"]
