"""Figures of chunks that a card was not waited for."""
import time

import torch

from . import _native

_MOST, _WIDTH = 64, 8  # chunks that wait at most; numbers of one
_small = (torch.float32, torch.float16, torch.bfloat16, torch.bool)  # types that float32 holds exactly
_whole = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Pending:
    """
    Loss and metrics of chunks, which stay on the card, a row a chunk, until all of them are read at once. So the host
    prepares a chunk while the card computes the one before.
    """

    def __init__(self, device):
        dtype = torch.float64 if _native.has_doubles(str(device)) else torch.float32
        self.rows = torch.zeros(_MOST, _WIDTH, dtype=dtype, device=device)
        self.integers = None  # the same where there are no doubles
        self.clear()

    def clear(self):
        self.chunks, self.last, self.began = [], None, 0.0

    def begin(self):
        """A chunk begins, whose figures may have to wait."""
        if not self.chunks:
            self.began = time.perf_counter()

    def takes(self, values):
        """Whether these numbers and tensors can wait, and there is a row for them."""
        here = [value for value in values if self._waits(value)]
        exact = self.rows.dtype == torch.float64 or all(value.dtype in _small + _whole for value in here)
        return len(here) <= _WIDTH and exact and len(self.chunks) < _MOST

    def put(self, values, over, samples):
        """values: numbers and tensors of one number, by name; over: what their mean is over. They count once keep() is called."""
        known, names = {}, []
        for name, value in values.items():
            if self._waits(value):
                apart = self.rows.dtype == torch.float32 and value.dtype in _whole
                row = self._rows_of(apart)[len(self.chunks)]
                row[len(names)].copy_(value.reshape(()), non_blocking=True)
                names.append((name, apart))
            else:
                known[name] = float(value)
        self.last = names, known, over, samples

    def keep(self):
        self.chunks.append(self.last)

    def read(self):
        """Waits for the card. A list of (values, over, seconds), a chunk each, which do not wait any more."""
        if not self.chunks:
            return []
        apart = any(is_apart for names, _, _, _ in self.chunks for _, is_apart in names)
        rows = [self._rows_of(which)[:len(self.chunks)].tolist() for which in ([False, True] if apart else [False])]
        seconds = time.perf_counter() - self.began
        total = sum(samples for _, _, _, samples in self.chunks)
        told = [({**known, **{name: float(rows[is_apart][i][k]) for k, (name, is_apart) in enumerate(names)}}, over,
                 seconds * samples / total) for i, (names, known, over, samples) in enumerate(self.chunks)]
        self.clear()
        return told

    def _rows_of(self, apart):
        if apart and self.integers is None:
            self.integers = torch.zeros_like(self.rows, dtype=torch.int64)
        return self.integers if apart else self.rows

    def _waits(self, value):
        return isinstance(value, torch.Tensor) and value.device == self.rows.device
