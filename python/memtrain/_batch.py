"""A batch: tensors in tuples, lists and dicts, nested in any way, whose dimension 0 is the samples."""
import copy
import hashlib
from collections.abc import Mapping, MutableMapping

import torch


def _walk(value, path, found):
    """Adds the tensors of a part to found, as (path, tensor)."""
    if isinstance(value, torch.Tensor):
        found.append((path, value))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _walk(part, "%s[%r]" % (path, key), found)
    elif isinstance(value, (tuple, list)):
        for index, part in enumerate(value):
            _walk(part, "%s[%d]" % (path, index), found)
    elif not (value is None or isinstance(value, (bool, int, float))):
        raise TypeError("%s is a %s; accepted: tensors in tuples, lists and dicts, numbers and None. Give trainer.step "
                        "the parts that loss_fn reads" % (path, type(value).__name__))


def _each(value, function):
    """The same part, of the same types, with function(tensor) in the place of each tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        parts = {key: _each(part, function) for key, part in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return parts
        own = copy.copy(value)  # a defaultdict, or one with attributes
        own.update(parts)
        return own
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(part, function) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_each(part, function) for part in value)
    return value


def pick(value, index):
    """The same part with copies of the samples that the index names."""
    return _each(value, lambda tensor: tensor.index_select(0, index))


def _number(key):
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


def refuse_inference(what, tensor):
    """Of a tensor that autograd cannot use, nor torch write to."""
    if tensor.is_inference():
        raise ValueError("%s was made under torch.inference_mode(), so nothing can train with it: make it outside, or clone it "
                         "there" % what)


def _version(tensor):
    return 0 if tensor.is_inference() else tensor._version


class Batch:
    """The arguments of a step, or of an evaluation, checked: as many samples in each tensor, all on the model's device."""

    def __init__(self, values, device, trains=True):
        self.values, self.parts = values, []
        _walk(values, "batch", self.parts)
        for path, tensor in self.parts if trains else ():
            refuse_inference(path, tensor)
            if tensor.grad_fn is not None:
                raise ValueError("%s has a graph, which the first chunk's backward pass would free: compute it in loss_fn, or "
                                 "detach() it" % path)
        if not self.parts:
            raise ValueError("the batch has no tensor, so no samples")
        for path, tensor in self.parts:
            self._check(path, tensor, device)
        self.count = self.parts[0][1].shape[0]
        if self.count == 0:
            raise ValueError("the batch has 0 samples")
        self._versions = [_version(tensor) for _, tensor in self.parts]

    def _check(self, path, tensor, device):
        if tensor.device != device:
            raise ValueError("the model is on %s and %s on %s; accepted: one device" % (device, path, tensor.device))
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "a nested tensor" if tensor.is_nested else tensor.layout
            raise ValueError("%s is %s; accepted: dense tensors" % (path, kind))
        if tensor.dim() == 0:
            raise ValueError("%s has no dimension of samples; what a chunk needs beside them loss_fn may capture" % path)
        first, own = self.parts[0], tensor.shape[0]
        if own != first[1].shape[0]:
            raise ValueError("%s has %d samples and %s has %d; accepted: as many in dimension 0 of each"
                             % (first[0], first[1].shape[0], path, own))

    def cut(self, first, count):
        return _each(self.values, lambda tensor: tensor.narrow(0, first, count))

    def check_unwritten(self):
        """A chunk that is done again must find what it found the first time."""
        for (path, tensor), version in zip(self.parts, self._versions):
            if _version(tensor) != version:
                raise ValueError("loss_fn writes to %s, which a step that is done again would read: write to a copy" % path)

    def shape(self, beside):
        """Two numbers and a length, as mt_shape has them. beside: what a chunk's memory depends on, too."""
        each = [(tensor.dtype, tuple(tensor.shape[1:])) for _, tensor in self.parts]
        length = sum(tensor[:1].numel() for _, tensor in self.parts)
        family = [(dtype, len(sizes)) for dtype, sizes in each]
        return _number((each, beside)), _number((family, beside)), length
