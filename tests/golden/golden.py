"""Golden files: numbers from a reference implementation, and the state they were computed from.

The state (parameters, buffers, inputs) is not stored but made by a formula, here and, with the same
bits, in ../golden.hpp. This module is the Python half, for the gen_*.py beside it.

A file is little-endian: the magic "MTGOLDEN", u32 version, u32 records; for each record u32 length
and bytes of its name, u32 dtype (1 text, 2 int64, 3 float64), u32 dimensions, i64 sizes, elements.
"""

import struct

import numpy
import torch

MAGIC = b"MTGOLDEN"
VERSION = 1
TEXT, INT64, FLOAT64 = 1, 2, 3

SAMPLES = 8
MASK = (1 << 64) - 1


def seed_of(name):
    """FNV-1a of the name, 64 bits."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def bits(name, count):
    """The first elements of the name's sequence: splitmix64, 64 bits each."""
    with numpy.errstate(over="ignore"):
        index = numpy.arange(1, count + 1, dtype=numpy.uint64)
        z = numpy.uint64(seed_of(name)) + index * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return z ^ (z >> numpy.uint64(31))


def uniform(name, shape):
    """Multiples of 2^-15 in [-1, 1): 16 bits, so that float32 stays exact after scale and shift."""
    count = int(numpy.prod(shape, dtype=numpy.int64))
    values = (bits(name, count) >> numpy.uint64(48)).astype(numpy.float64) / 32768 - 1
    return torch.from_numpy(values.reshape(shape))


def state(name, shape):
    """The tensor of that name in a network, by what the end of its name and its rank say."""
    values = uniform(name, shape)
    if len(shape) >= 2:  # a weight: 1 to 2 over sqrt(inputs), a power of two, keeps the variance
        inputs, scale = int(numpy.prod(shape[1:])), 2.0
        while inputs * scale * scale > 4:
            scale /= 2
        return values * scale
    if name.endswith(("running_var", "weight")):
        return 1 + values / 2
    return values / 4


def fill(module):
    """Gives every parameter and floating-point buffer of the module its state."""
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(state(name, tensor.shape))


def classes(name, count, number):
    """Class numbers, as targets."""
    return torch.from_numpy((bits(name, count) % numpy.uint64(number)).astype(numpy.int64))


def digest(name, tensor):
    """Sum, L2 norm and some elements: [2 + SAMPLES], float64."""
    flat = tensor.detach().double().flatten()
    where = classes("sample/" + name, SAMPLES, flat.numel())
    return torch.cat([flat.sum().reshape(1), flat.norm().reshape(1), flat[where]])


class File:
    """A golden file in the making."""

    def __init__(self):
        self.records = []

    def add(self, name, value):
        if isinstance(value, str):
            data, dtype, shape = value.encode(), TEXT, [len(value.encode())]
        else:
            dtype = FLOAT64 if value.is_floating_point() else INT64
            array = value.detach().to(torch.float64 if dtype == FLOAT64 else torch.int64).numpy()
            data, shape = array.astype(array.dtype.newbyteorder("<")).tobytes(), list(value.shape)
        header = struct.pack("<I", len(name)) + name.encode()
        header += struct.pack(f"<II{len(shape)}q", dtype, len(shape), *shape)
        self.records.append(header + data)

    def write(self, path):
        with open(path, "wb") as out:
            out.write(MAGIC + struct.pack("<II", VERSION, len(self.records)))
            out.write(b"".join(self.records))
