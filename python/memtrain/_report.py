"""Reports: figures by name, as a text, as a table of a notebook, and as a line of progress."""
import html
import sys
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sized, TextIO, TypeVar

from . import _native

Item = TypeVar("Item")


def _shown(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return "%d (%s)" % (value, _native.format_size(value)) if value else "0"
    if isinstance(value, float):
        return "%.6g" % value
    if name == "chunks":
        return chunks_in_words(value)
    if isinstance(value, dict):
        return ", ".join("%s %s" % (key, _shown(key, part)) for key, part in value.items())
    return str(value)


def chunks_in_words(chunks: List[int]) -> str:
    """[16, 16] is "2 x 16", and [16, 16, 8] is "2 x 16, 8"."""
    groups: List[List[int]] = []
    for samples in chunks:
        if groups and groups[-1][1] == samples:
            groups[-1][0] += 1
        else:
            groups.append([1, samples])
    return ", ".join("%d x %d" % (times, samples) if times > 1 else str(samples) for times, samples in groups)


class Report(dict):
    """Figures by name, also as attributes. str() has a line for each; a notebook shows a table."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError("%s has no %r; it has %s" % (type(self).__name__, name, ", ".join(self))) from None

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join("%-*s  %s" % (width, key, _shown(key, value)) for key, value in self.items())

    def _repr_html_(self) -> str:
        rows = "".join("<tr><td>%s</td><td>%s</td></tr>" % (html.escape(key), html.escape(_shown(key, value)))
                       for key, value in self.items())
        return "<table>%s</table>" % rows


class StepReport(Report):
    """What one step did. Bytes are of tensors, seconds those of the work, discarded work included."""

    step: int                    # counted from 1, over a run that was saved and loaded
    samples: int
    loss: float                  # mean over the batch's units
    metrics: Dict[str, float]    # means over the same
    chunks: List[int]            # samples of each
    ooms: int
    retries: int                 # times that the step was rolled back and retried
    discarded: int               # samples whose work was discarded
    grad_norm: float             # before clipping; NaN without clip_norm
    seconds: float
    skipped: str                 # why no update was made; "" where it was
    scale: float                 # of the GradScaler after the step; there only with scaler=
    reason: str                  # why these chunks
    predicted_peak_bytes: int    # 0: no prediction
    peak_bytes: int
    allocated_bytes: int
    budget_bytes: int


class EvalReport(Report):
    """What one evaluation gave."""

    samples: int
    loss: float                  # mean over the batch's units
    metrics: Dict[str, float]
    chunk_count: int
    retries: int
    seconds: float
    peak_bytes: int


class RunReport(Report):
    """The run so far."""

    steps: int
    skipped: int                 # steps without an update: loss or gradient not finite, or no units
    samples_trained: int
    samples_discarded: int       # whose work a rollback discarded
    ooms: int
    clears: int
    peak_bytes: int
    budget_bytes: int
    smallest_chunk: int
    largest_chunk: int
    seconds: float
    peak_resident_bytes: int       # of the process, code and libraries included
    predicted_resident_bytes: int  # the most that it will hold while tensors fill the budget; there only on the CPU


class Progress:
    """A line of text about a loop: rewritten on a terminal, written once at the end elsewhere."""

    def __init__(self, label: str, total: Optional[int], file: Optional[TextIO]) -> None:
        self.label, self.total, self.file = label, total, file or sys.stderr
        self.rewrites = self.file.isatty()
        self.began, self.samples, self.batches = time.monotonic(), 0, 0
        self.shown_at, self.width, self.text = -1.0, 0, ""

    def describe(self, report: Optional[Report]) -> str:
        parts = [self.label] if self.label else []
        parts.append("%d/%d" % (self.batches, self.total) if self.total else str(self.batches))
        if report is not None:
            parts.append("loss %.4f" % report["loss"])
            if "chunks" in report:
                parts.append("chunks " + chunks_in_words(report["chunks"]))
            parts.append("%.3g samples/s" % (self.samples / max(time.monotonic() - self.began, 1e-9)))
            parts.append("peak %s" % _native.format_size(report["peak_bytes"]))
        return "  ".join(parts)

    def count(self, report: Optional[Report]) -> None:
        self.batches += 1
        self.samples += report["samples"] if report is not None else 0
        self.text = self.describe(report)
        now = time.monotonic()
        if self.rewrites and now - self.shown_at >= 0.1:
            self.shown_at = now
            self.write()

    def write(self) -> None:
        self.file.write("\r" + self.text.ljust(self.width))
        self.file.flush()
        self.width = len(self.text)

    def end(self) -> None:
        if self.rewrites and self.batches:
            self.write()
            self.file.write("\n")
        elif self.batches:
            self.file.write(self.text + "\n")
        self.file.flush()


def follow(batches: Iterable[Item], last_report: Any, label: str, file: Optional[TextIO]) -> Iterator[Item]:
    """The batches, one by one, with a line about what was done with each. last_report() is that of now, or None."""
    progress = Progress(label, len(batches) if isinstance(batches, Sized) else None, file)
    try:
        for batch in batches:
            before = last_report()
            yield batch
            report = last_report()
            progress.count(report if report is not before else None)
    finally:
        progress.end()
