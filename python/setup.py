"""Builds memtrain/_native against the torch that is installed: pip install --no-build-isolation ./python

The extension has libmemtrain's core, planned memory, the CPU's allocator and what asks cards for their memory in it, and
belongs to the minor version of torch that it was built with, which memtrain/_built.py names.
"""
import os
import re
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHIM = ["device_memory", "watch", "cpu_memory", "arena", "arena_plan", "arena_serve", "canary", "arena_mapping", "follow",
        "injection", "sim_memory", "pinned", "device_name", "guard", "arguments"]
EXACT = ["-ffp-contract=off", "-fvisibility=hidden", "-fPIC", "-O2", "-g1", "-Wall", "-Wextra"]


def version():
    with open(os.path.join(ROOT, "include/memtrain/status.h")) as header:
        text = header.read()
    return ".".join(re.search(r"MT_VERSION_%s (\d+)" % part, text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def sources():
    """The files in C++, the slowest first, and those in C."""
    cpp = [os.path.join(ROOT, "python/src/native.cpp")]
    for name in SHIM:
        (path,) = glob(os.path.join(ROOT, "shim", "**", name + ".cpp"), recursive=True)
        cpp.append(path)
    return cpp, sorted(glob(os.path.join(ROOT, "libmemtrain*", "**", "*.c"), recursive=True))


def quoted(folder):
    """Options for headers of this folder, which are included by their names alone."""
    return [part for path, _, _ in sorted(os.walk(os.path.join(ROOT, folder))) for part in ("-iquote", path)]


class Build(build_ext):
    """Compiles two files at a time: C with the flags of C, and C++ against the headers of torch."""

    def build_extension(self, extension):
        try:
            from torch import version as torch_version
        except ImportError:
            raise SystemExit("no torch here to build against: pip install --no-build-isolation ./python, beside torch")
        from torch.utils import cpp_extension
        minor = int(torch_version.__version__.split(".")[1])
        own = ["-I" + os.path.join(ROOT, "include")] + quoted("shim") + quoted("libmemtrain")
        torch_headers = [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
        cpp_flags = EXACT + ["-fvisibility-inlines-hidden", "-std=c++20" if minor >= 13 else "-std=c++17"]
        cpp, c = sources()
        jobs = [(path, cpp_flags + own + torch_headers) for path in cpp] + [(path, EXACT + ["-std=c11"] + own)
                                                                            for path in c]
        with ThreadPoolExecutor(int(os.environ.get("MEMTRAIN_JOBS", 2))) as pool:
            objects = list(pool.map(self.compile_one, jobs))
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(extension.name), target_lang="c++",
            libraries=["c10", "torch_cpu", "torch_python"], library_dirs=cpp_extension.library_paths(),
            extra_postargs=[] if os.uname().sysname == "Darwin" else ["-Wl,--exclude-libs,ALL"])
        with open(os.path.join(os.path.dirname(self.get_ext_fullpath(extension.name)), "_built.py"), "w") as file:
            file.write('"""Written by setup.py."""\nTORCH = "%s"\n' % torch_version.__version__)

    def compile_one(self, job):
        path, flags = job
        return self.compiler.compile([path], output_dir=self.build_temp, extra_postargs=flags)[0]


setup(version=version(), ext_modules=[Extension("memtrain._native", sources=[])], cmdclass={"build_ext": Build},
      package_data={"memtrain": ["py.typed", "*.pyi"]})
