"""memtrain_abi.py - what the tests in Python declare of memtrain's ABI and of DLPack's, by ctypes alone."""
import ctypes as c
import os
import sys

MT_OK, MT_EINVAL, MT_EDEVMEM, MT_ESTATE, MT_ENOTSUP = 0, -1, -3, -4, -8
MT_DTYPE_NONE, MT_FLOAT32, MT_FLOAT64, MT_FLOAT16, MT_BFLOAT16 = 0, 1, 2, 3, 4
MT_INT64, MT_INT32, MT_UINT8, MT_BOOL = 5, 6, 7, 8

RELEASE = c.CFUNCTYPE(None, c.c_void_p)


class Sized(c.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(c.sizeof(type(self)))
        for name, value in fields.items():
            setattr(self, name, value)


class TensorMemory(Sized):
    _fields_ = [("size", c.c_size_t), ("data", c.c_void_p), ("bytes", c.c_size_t), ("dtype", c.c_int),
                ("dims", c.c_size_t), ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
                ("device", c.c_char_p), ("read_only", c.c_int), ("release", RELEASE), ("user", c.c_void_p)]


class TensorInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("dtype", c.c_int), ("dtype_name", c.c_char_p), ("item_bytes", c.c_size_t),
                ("dims", c.c_size_t), ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
                ("count", c.c_size_t), ("bytes", c.c_size_t), ("data", c.c_void_p), ("device", c.c_char * 16),
                ("in_order", c.c_int), ("requires_grad", c.c_int), ("read_only", c.c_int)]


# ---- the seam of a trainer ---------------------------------------------------------------------------------


class Memory(Sized):
    _fields_ = [("size", c.c_size_t), ("budget_bytes", c.c_size_t), ("allocated_bytes", c.c_size_t),
                ("reserved_bytes", c.c_size_t), ("peak_bytes", c.c_size_t), ("free_bytes", c.c_size_t),
                ("alloc_retries", c.c_uint64)]


class Batch(Sized):
    _fields_ = [("size", c.c_size_t), ("data", c.c_void_p), ("count", c.c_size_t), ("id", c.c_uint64)]


class ChunkResult(Sized):
    _fields_ = [("size", c.c_size_t), ("loss_sum", c.c_double), ("units", c.c_double),
                ("metric_sums", c.c_double * 8), ("seconds", c.c_double), ("peak_bytes", c.c_size_t),
                ("refused", c.c_uint64), ("refused_bytes", c.c_size_t), ("refused_in_use_bytes", c.c_size_t)]


class StepReport(Sized):
    """The fields that are wanted: a caller may know fewer than the library."""
    _fields_ = [("size", c.c_size_t), ("step", c.c_uint64), ("samples", c.c_size_t),
                ("chunks", c.POINTER(c.c_size_t)), ("chunk_count", c.c_size_t), ("loss", c.c_double)]


MEMORY = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(Memory))
BEGIN = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(Batch))
ACCUMULATE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_size_t, c.c_size_t, c.c_double, c.POINTER(ChunkResult))
ROLLBACK = c.CFUNCTYPE(c.c_int, c.c_void_p)
APPLY = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p)


class Backend(Sized):
    """As far as apply, which is the last one that a backend must have."""
    _fields_ = [("size", c.c_size_t), ("self", c.c_void_p), ("describe", c.c_void_p), ("memory", MEMORY),
                ("reset_peak", c.c_void_p), ("empty_cache", c.c_void_p), ("begin", BEGIN),
                ("accumulate", ACCUMULATE), ("rollback", ROLLBACK), ("apply", APPLY)]


# ---- DLPack ------------------------------------------------------------------------------------------------


class DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


DELETER = c.CFUNCTYPE(None, c.c_void_p)


class DLManagedTensor(c.Structure):
    capsule, used = b"dltensor", b"used_dltensor"
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c.c_void_p), ("deleter", DELETER)]


class DLManagedTensorVersioned(c.Structure):
    capsule, used = b"dltensor_versioned", b"used_dltensor_versioned"
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("manager_ctx", c.c_void_p), ("deleter", DELETER),
                ("flags", c.c_uint64), ("dl_tensor", DLTensor)]


def python_function(name, result, *arguments):
    """A function of Python's C API, with an object as py_object, or as c_void_p where it must not be counted."""
    return c.PYFUNCTYPE(result, *arguments)((name, c.pythonapi))


capsule_new = python_function("PyCapsule_New", c.py_object, c.c_void_p, c.c_char_p, c.c_void_p)
capsule_pointer = python_function("PyCapsule_GetPointer", c.c_void_p, c.py_object, c.c_char_p)
capsule_rename = python_function("PyCapsule_SetName", c.c_int, c.py_object, c.c_char_p)
dying_is_valid = python_function("PyCapsule_IsValid", c.c_int, c.c_void_p, c.c_char_p)
dying_pointer = python_function("PyCapsule_GetPointer", c.c_void_p, c.c_void_p, c.c_char_p)


@c.PYFUNCTYPE(None, c.c_void_p)
def delete_unused(capsule):
    """The destructor of a capsule: a tensor that nobody has taken is given back."""
    for kind in (DLManagedTensor, DLManagedTensorVersioned):
        if dying_is_valid(capsule, kind.capsule):
            pointer = dying_pointer(capsule, kind.capsule)
            kind.from_address(pointer).deleter(pointer)


# ---- the libraries -----------------------------------------------------------------------------------------


def load(folder, name):
    """The library of that name, or None where it is not built."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    path = os.path.join(folder, "lib%s.%s" % (name, suffix))
    if not os.path.exists(path):
        return None
    library = c.CDLL(path)
    library.mt_last_error.restype = c.c_char_p
    return library


def text(library, function):
    """What a function without arguments says."""
    call = getattr(library, function)
    call.restype = c.c_char_p
    return call().decode()


class Failed(Exception):
    """A status that is not MT_OK, with the line that the library left for the thread."""

    def __init__(self, status, line):
        super().__init__("%d: %s" % (status, line))
        self.status, self.line = status, line


def check(library, status):
    if status != MT_OK:
        raise Failed(status, library.mt_last_error().decode())
