"""check_inside_torch.py FOLDER [STUB] - the libraries in a process where Python's torch is loaded.

With STUB, a library that is called as the one of Python's torch and has nothing in it, that is what is loaded: what
is then not available does not depend on the rest. Prints "ok NAME", "FAIL NAME: why" or "SKIP: NAME: why".
"""
import ctypes as c
import os
import sys
import traceback

import memtrain_abi as abi

stub = sys.argv[2] if len(sys.argv) > 2 else None
name = "python inside torch" + (" (a stub)" if stub else "")

if stub:
    c.CDLL(stub)
else:
    try:
        import torch
    except (ImportError, OSError) as error:
        print("SKIP: %s: Python has no torch that can be loaded (%s)" % (name, str(error).splitlines()[0]))
        sys.exit(0)

shim = abi.load(sys.argv[1], "memtrain_torch")
BODY = c.CFUNCTYPE(c.c_int, c.c_void_p)


def refused(status, line, function, *arguments):
    """The call must fail with that status and exactly that line."""
    assert function(*arguments) == status, (line, shim.mt_last_error())
    assert shim.mt_last_error().decode() == line, shim.mt_last_error()


def what_is_not_available():
    """Each function that needs our allocator or engine says so; a budget is kept and not enforced."""
    memory, tensor, copy = abi.Memory(), c.c_void_p(), c.c_void_p()
    data, shape = (c.c_float * 1024)(), (c.c_int64 * 1)(1024)
    body = BODY(lambda _: abi.MT_OK)
    abi.check(shim, shim.mt_torch_init(None))
    assert shim.mt_torch_enforces_budget() == 0
    refused(abi.MT_ENOTSUP, "mt_inject_oom: our CPU allocator is not installed", shim.mt_inject_oom, c.c_uint64(1), 0)
    refused(abi.MT_ENOTSUP, "mt_device_hold: nothing counts the CPU's tensors", shim.mt_device_hold, b"cpu",
            c.c_size_t(1))
    if os.path.exists("/proc/self/statm"):
        refused(abi.MT_ENOTSUP, "mt_device_set_resident_budget: our CPU allocator is not installed",
                shim.mt_device_set_resident_budget, b"cpu", c.c_size_t(1 << 30))
    assert shim.mt_device_simulate(b"sim:cuda", None) == abi.MT_ENOTSUP
    assert shim.mt_offload(b"cpu", 1, None, body, None) == abi.MT_ENOTSUP
    assert "mt_offload" in shim.mt_last_error().decode(), shim.mt_last_error()
    abi.check(shim, shim.mt_device_set_budget(b"cpu", c.c_size_t(1024)))
    abi.check(shim, shim.mt_device_memory(b"cpu", c.byref(memory)))
    assert (memory.budget_bytes, memory.allocated_bytes, memory.peak_bytes) == (1024, 0, 0)
    lent = abi.TensorMemory(data=c.addressof(data), dtype=abi.MT_FLOAT32, dims=1, shape=shape)
    abi.check(shim, shim.mt_tensor_wrap(c.byref(lent), c.byref(tensor)))
    abi.check(shim, shim.mt_tensor_copy(tensor, None, 0, c.byref(copy)))
    shim.mt_tensor_free(copy)
    shim.mt_tensor_free(tensor)


def tensors_of_torch():
    """Tensors of Python's torch come in and go out over the same memory; it goes on as before."""
    assert torch.__version__.split("+")[0] == abi.text(shim, "mt_torch_version"), "another version"
    theirs = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    capsule = theirs.__dlpack__(max_version=(1, 0))
    pointer = abi.capsule_pointer(capsule, abi.DLManagedTensorVersioned.capsule)
    abi.capsule_rename(capsule, abi.DLManagedTensorVersioned.used)
    ours, out, info = c.c_void_p(), c.POINTER(abi.DLManagedTensorVersioned)(), abi.TensorInfo()
    abi.check(shim, shim.mt_tensor_from_dlpack_versioned(c.c_void_p(pointer), c.byref(ours)))
    abi.check(shim, shim.mt_tensor_describe(ours, c.byref(info)))
    assert info.data == theirs.data_ptr() and info.shape[:2] == [2, 3]
    abi.check(shim, shim.mt_tensor_to_dlpack_versioned(ours, 0, c.byref(out)))
    shim.mt_tensor_free(ours)
    kind = abi.DLManagedTensorVersioned
    back = torch.from_dlpack(abi.capsule_new(c.cast(out, c.c_void_p), kind.capsule,
                                             c.cast(abi.delete_unused, c.c_void_p)))
    back[1, 2] = 99
    assert theirs[1, 2] == 99 and back.data_ptr() == theirs.data_ptr()
    weight = torch.ones(3, requires_grad=True)
    (theirs @ weight).sum().backward()
    assert weight.grad.tolist() == [3, 5, 101], weight.grad


def main():
    if not shim:
        print("SKIP: %s: libmemtrain_torch is not built" % name)
        return 0
    try:
        if not stub:
            tensors_of_torch()
        what_is_not_available()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        print("FAIL %s: %s" % (name, traceback.format_exc().strip().splitlines()[-1]))
        return 1
    print("ok %s" % name)
    return 0


sys.exit(main())
