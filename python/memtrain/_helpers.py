"""What the extension calls: exceptions and the log."""
import logging
import os
import traceback

import torch

_logger = logging.getLogger("memtrain")
_levels = (logging.DEBUG, logging.INFO, logging.WARNING)


class OutOfMemory(torch.OutOfMemoryError):
    """Not even the smallest chunk fits. The step, or the check, was taken back whole, and the script can go on."""

    def __init__(self, line: str, explanation: str = "") -> None:
        super().__init__(line)
        self._explanation = explanation

    def explain(self) -> str:
        """The budget, what is allocated, what the smallest chunk needs, and what would make it fit."""
        return self._explanation


def raise_out_of_memory(line, explanation):
    raise OutOfMemory(line, explanation)


def _chain(error):
    """The exception, and all that it came from."""
    waiting, seen = [error], set()
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__cause__, error.__context__]


def forget(error):
    """Lets go of what the frames of an exception hold, and of those that it came from: tensors of a chunk."""
    for each in list(_chain(error)):
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None


def forget_own(error):
    """Lets go of what this package's frames hold, such as a loss and its graph. The caller's frames stay as they are."""
    folder = os.path.dirname(__file__) + os.sep
    for each in _chain(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename.startswith(folder):
                try:
                    frame.clear()
                except RuntimeError:
                    pass  # it still runs


def log(level, text):
    _logger.log(_levels[level], text)
