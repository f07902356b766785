"""check_ctypes.py FOLDER - the ABI from another language, and tensors through DLPack from and to NumPy.

FOLDER has the libraries, and SNIPPETS in the environment is a folder of what the pages show. Prints "ok NAME",
"FAIL NAME: why" or "SKIP: NAME: why" for each test.
"""
import ctypes as c
import gc
import os
import sys
import threading
import traceback

import memtrain_abi as abi

try:
    import numpy
except ImportError:
    numpy = None

core = abi.load(sys.argv[1], "memtrain")
shim = abi.load(sys.argv[1], "memtrain_torch")


class Tensor:
    """A handle of the library's."""

    def __init__(self, function, *arguments):
        self.handle = c.c_void_p()
        abi.check(shim, function(*arguments, c.byref(self.handle)))

    def free(self):
        shim.mt_tensor_free(self.handle)

    def info(self):
        info = abi.TensorInfo()
        abi.check(shim, shim.mt_tensor_describe(self.handle, c.byref(info)))
        return info

    def read(self, count):
        out = (c.c_double * count)()
        abi.check(shim, shim.mt_tensor_read(self.handle, abi.MT_FLOAT64, out, c.c_size_t(c.sizeof(out))))
        return list(out)

    def write(self, values):
        array = (c.c_double * len(values))(*values)
        abi.check(shim, shim.mt_tensor_write(self.handle, abi.MT_FLOAT64, array, c.c_size_t(c.sizeof(array))))

    def to_dlpack(self, kind, copy=0):
        out = c.POINTER(kind)()
        if kind is abi.DLManagedTensor:
            abi.check(shim, shim.mt_tensor_to_dlpack(self.handle, c.byref(out)))
        else:
            abi.check(shim, shim.mt_tensor_to_dlpack_versioned(self.handle, copy, c.byref(out)))
        return out

    # What numpy.from_dlpack asks of an object.
    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        kind = abi.DLManagedTensorVersioned if max_version else abi.DLManagedTensor
        out = self.to_dlpack(kind, 1 if copy else 0)
        return abi.capsule_new(c.cast(out, c.c_void_p), kind.capsule, c.cast(abi.delete_unused, c.c_void_p))


def wrap(memory):
    return Tensor(shim.mt_tensor_wrap, c.byref(memory))


def take(array, kind):
    """The array as a tensor: its capsule is marked as used first, since the tensor is handed over in any case."""
    versioned = kind is abi.DLManagedTensorVersioned
    capsule = array.__dlpack__(max_version=(1, 0)) if versioned else array.__dlpack__()
    pointer = abi.capsule_pointer(capsule, kind.capsule)
    abi.capsule_rename(capsule, kind.used)
    function = shim.mt_tensor_from_dlpack_versioned if versioned else shim.mt_tensor_from_dlpack
    return Tensor(function, c.c_void_p(pointer))


def refused(status, words, function, *arguments):
    """The call must fail with that status and a line that has the words."""
    try:
        function(*arguments)
    except abi.Failed as failed:
        assert failed.status == status, failed
        assert words in failed.line, failed
        return
    raise AssertionError("it was not refused: " + words)


# ---- the tests ---------------------------------------------------------------------------------------------


def trainer():
    """A backend in Python: a line through points, which cannot hold more than ten of them at once."""
    xs = [i / 32 - 1 for i in range(64)]
    state = {"w": 0.0, "b": 0.0, "gradient": (0.0, 0.0), "calls": 0}

    def memory(_, out):
        out[0].allocated_bytes = 16
        return abi.MT_OK

    def clear(*_):
        state["gradient"] = (0.0, 0.0)
        return abi.MT_OK

    def accumulate(_, first, count, weight, out):
        if count > 10:
            return core.mt_set_error(abi.MT_EDEVMEM, b"more than ten points")
        part = xs[first:first + count]
        errors = [state["w"] * x + state["b"] - (2 * x + 1) for x in part]
        dw, db = sum(2 * e * x for e, x in zip(errors, part)), sum(2 * e for e in errors)
        gw, gb = state["gradient"]
        state["gradient"] = (gw + weight * dw / count, gb + weight * db / count)
        out[0].loss_sum, out[0].units = sum(e * e for e in errors), count
        state["calls"] += 1
        return abi.MT_OK

    def apply(*_):
        state["w"] -= 0.3 * state["gradient"][0]
        state["b"] -= 0.3 * state["gradient"][1]
        return abi.MT_OK

    backend = abi.Backend(memory=abi.MEMORY(memory), begin=abi.BEGIN(clear), rollback=abi.ROLLBACK(clear),
                          accumulate=abi.ACCUMULATE(accumulate), apply=abi.APPLY(apply))
    handle, report = c.c_void_p(), abi.StepReport()
    batch = abi.Batch(count=64)
    abi.check(core, core.mt_trainer_new(c.byref(backend), None, c.byref(handle)))
    for _ in range(60):
        abi.check(core, core.mt_trainer_step(handle, c.byref(batch), c.byref(report)))
        chunks = report.chunks[:report.chunk_count]
        assert sum(chunks) == 64 and max(chunks) <= 10, chunks
    core.mt_trainer_free(handle)
    assert report.step == 60 and report.loss < 1e-4, report.loss
    assert abs(state["w"] - 2) < 0.05 and abs(state["b"] - 1) < 0.05, state


def memory():
    """A tensor over an array of ctypes' with strides, and the callback that gets it back."""
    array, released = (c.c_float * 6)(1, 2, 3, 4, 5, 6), []
    lent = abi.TensorMemory(
        data=c.addressof(array), bytes=c.sizeof(array), dtype=abi.MT_FLOAT32, dims=2,
        shape=(c.c_int64 * 2)(3, 2), strides=(c.c_int64 * 2)(1, 3), user=77, release=abi.RELEASE(released.append))
    tensor = wrap(lent)
    info = tensor.info()
    assert info.shape[:info.dims] == [3, 2] and info.strides[:info.dims] == [1, 3]
    assert (info.device, info.dtype_name, info.data) == (b"cpu", b"Float", c.addressof(array))
    assert tensor.read(6) == [1, 4, 2, 5, 3, 6]
    tensor.write([10, 40, 20, 50, 30, 60])
    assert list(array) == [10, 20, 30, 40, 50, 60]
    assert released == []
    tensor.free()
    assert released == [77], released
    lent.strides[0] = -1
    refused(abi.MT_EINVAL, "memory->strides[0] is -1", wrap, lent)
    assert released == [77, 77], released
    refused(abi.MT_EINVAL, "tensor is not a live handle", tensor.info)


def dlpack():
    """Both forms with a deleter in Python, in and out again."""
    for kind in (abi.DLManagedTensor, abi.DLManagedTensorVersioned):
        array, deleted = (c.c_int64 * 4)(1, 2, 3, 4), []
        shape = (c.c_int64 * 1)(4)
        managed = kind(deleter=abi.DELETER(deleted.append))
        managed.dl_tensor = abi.DLTensor(c.addressof(array), 1, 0, 1, 0, 64, 1, shape, None, 0)
        if kind is abi.DLManagedTensor:
            tensor = Tensor(shim.mt_tensor_from_dlpack, c.byref(managed))
        else:
            managed.major = 1
            tensor = Tensor(shim.mt_tensor_from_dlpack_versioned, c.byref(managed))
        assert tensor.info().dtype == abi.MT_INT64 and tensor.read(4) == [1, 2, 3, 4]
        out = tensor.to_dlpack(kind)
        tensor.free()
        assert out[0].dl_tensor.data == c.addressof(array) and deleted == []
        out[0].deleter(c.cast(out, c.c_void_p))
        assert deleted == [c.addressof(managed)], deleted


def errors_by_thread():
    """Two threads that fail at the same time, and one that does not, read lines of their own."""
    wrong, start = [], threading.Barrier(3)

    def fails(threads):
        expected = "mt_torch_set_threads: threads is %d, must be at least 1" % threads
        start.wait()
        for _ in range(2000):
            if shim.mt_torch_set_threads(threads) != abi.MT_EINVAL or shim.mt_last_error().decode() != expected:
                wrong.append(shim.mt_last_error())

    def does_not():
        start.wait()
        for _ in range(2000):
            if shim.mt_torch_get_threads() < 1 or shim.mt_last_error() != b"":
                wrong.append(shim.mt_last_error())

    threads = [threading.Thread(target=fails, args=(-1,)), threading.Thread(target=fails, args=(-2,)),
               threading.Thread(target=does_not)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]


def kinds():
    """The forms of DLPack that this NumPy hands out."""
    new = tuple(int(part) for part in numpy.__version__.split(".")[:2]) >= (2, 1)
    return (abi.DLManagedTensor, abi.DLManagedTensorVersioned) if new else (abi.DLManagedTensor,)


def numpy_in():
    """Arrays as tensors: the same memory, each dtype, strides, and the array is let go of at the end."""
    dtypes = {"float32": abi.MT_FLOAT32, "float64": abi.MT_FLOAT64, "float16": abi.MT_FLOAT16,
              "int64": abi.MT_INT64, "int32": abi.MT_INT32, "uint8": abi.MT_UINT8, "int8": abi.MT_DTYPE_NONE,
              "int16": abi.MT_DTYPE_NONE}
    for kind in kinds():
        for name, dtype in dtypes.items():
            array = numpy.arange(12, dtype=name).reshape(3, 4)
            references = sys.getrefcount(array)
            tensor = take(array, kind)
            info = tensor.info()
            assert info.dtype == dtype and info.data == array.ctypes.data, name
            assert tensor.read(12) == list(range(12)), name
            array[1, 2] = 99
            assert tensor.read(12)[6] == 99, name
            tensor.write(range(12, 0, -1))
            assert array[0, 0] == 12 and array[2, 3] == 1, name
            assert sys.getrefcount(array) == references + 1, name
            tensor.free()
            assert sys.getrefcount(array) == references, name
        array = numpy.arange(12, dtype="float32").reshape(3, 4)
        tensor = take(array.T[1:], kind)
        assert tensor.info().strides[:2] == [1, 4] and tensor.read(9) == [1, 5, 9, 2, 6, 10, 3, 7, 11]
        tensor.free()
        references = sys.getrefcount(array)
        refused(abi.MT_EINVAL, "strides[0] is -4; accepted: at least 0", take, array[::-1], kind)
        gc.collect()
        assert sys.getrefcount(array) == references


def page():
    """What docs/tensors.md shows, with what it takes for granted."""
    array, tensor = numpy.arange(3, dtype="float32"), c.c_void_p()
    references = sys.getrefcount(array)
    names = {"array": array, "tensor": tensor, "memtrain": shim, "c_void_p": c.c_void_p, "byref": c.byref,
             "PyCapsule_GetPointer": abi.capsule_pointer, "PyCapsule_SetName": abi.capsule_rename}
    with open(os.path.join(os.environ["SNIPPETS"], "capsule.py")) as lines:
        exec(lines.read(), names)
    abi.check(shim, names["status"])
    info = abi.TensorInfo()
    abi.check(shim, shim.mt_tensor_describe(tensor, c.byref(info)))
    assert info.data == array.ctypes.data
    shim.mt_tensor_free(tensor)
    names.clear()
    gc.collect()
    assert sys.getrefcount(array) == references


def numpy_out():
    """Tensors as arrays: the same memory, which stays when the handle is gone, and is released once."""
    shape, released = (c.c_int64 * 2)(2, 3), []
    data = (c.c_float * 6)(1, 2, 3, 4, 5, 6)
    release = abi.RELEASE(released.append)  # ctypes frees a callback that nothing refers to
    tensor = wrap(abi.TensorMemory(data=c.addressof(data), dtype=abi.MT_FLOAT32, dims=2, shape=shape,
                                   release=release))
    array = numpy.from_dlpack(tensor)
    assert array.dtype == numpy.float32 and array.ctypes.data == c.addressof(data)
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    tensor.write([6, 5, 4, 3, 2, 1])
    assert array.tolist() == [[6, 5, 4], [3, 2, 1]]
    unused = tensor.__dlpack__()
    tensor.free()
    row = array[1]
    del array
    gc.collect()
    assert released == []
    del row
    gc.collect()
    assert released == []
    del unused
    gc.collect()
    assert len(released) == 1, released


def numpy_read_only():
    """A read-only array comes in as that, and goes out as that or as a copy."""
    if len(kinds()) == 1:
        return "NumPy %s hands out no versions" % numpy.__version__
    array = numpy.arange(4, dtype="float32")
    array.flags.writeable = False
    tensor = take(array, abi.DLManagedTensorVersioned)
    assert tensor.info().read_only == 1
    refused(abi.MT_EINVAL, "mt_tensor_write: tensor is read-only", tensor.write, [0, 0, 0, 0])
    again = numpy.from_dlpack(tensor)
    assert not again.flags.writeable and again.ctypes.data == array.ctypes.data
    copy = numpy.from_dlpack(tensor, copy=True)
    assert copy.flags.writeable and copy.ctypes.data != array.ctypes.data
    assert copy.tolist() == array.tolist()
    tensor.free()
    return None


def run(name, test, reason=None):
    """Prints what came of it; whether it has not failed. A test returns why it had nothing to do."""
    try:
        reason = reason or test()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print("FAIL python %s: %s" % (name, traceback.format_exc().strip().splitlines()[-1]))
        return False
    print("SKIP: python %s: %s" % (name, reason) if reason else "ok python %s" % name)
    return True


def main():
    no_core = None if core else "libmemtrain is not built"
    no_shim = None if shim else "libmemtrain_torch is not built"
    no_numpy = no_shim or (None if numpy else "Python has no NumPy (Debian: python3-numpy)")
    results = [
        run("trainer", trainer, no_core),
        run("memory", memory, no_shim),
        run("dlpack", dlpack, no_shim),
        run("errors by thread", errors_by_thread, no_shim),
        run("numpy in", numpy_in, no_numpy),
        run("page on tensors", page, no_numpy),
        run("numpy out", numpy_out, no_numpy),
        run("numpy read-only", numpy_read_only, no_numpy),
    ]
    sys.exit(0 if all(results) else 1)


main()
