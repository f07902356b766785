"""What the extension calls: exceptions and the log."""
import logging
import traceback

import torch

_logger = logging.getLogger("memtrain")
_levels = (logging.DEBUG, logging.INFO, logging.WARNING)


class OutOfMemory(torch.OutOfMemoryError):
    """Not even the smallest chunk fits. The step was taken back whole, and the script can go on."""

    def __init__(self, line, explanation=""):
        super().__init__(line)
        self._explanation = explanation

    def explain(self):
        """The budget, what is allocated, what the smallest chunk needs, and what would make it fit."""
        return self._explanation


def raise_out_of_memory(line, explanation):
    raise OutOfMemory(line, explanation)


def forget(error):
    """Lets go of what the frames of an exception hold, and of those that it came from: tensors of a chunk."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def log(level, text):
    _logger.log(_levels[level], text)
