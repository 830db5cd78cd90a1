"""Lets the real SGLang 0.5.23 serve a tiny hybrid model with NEXTN on a machine without a GPU.

Needs TRITON_INTERPRET=1. Only device plumbing is changed; scheduling, loading, logging and serving are SGLang's.
Python imports this file by itself when its directory is on PYTHONPATH (module site).
"""

import importlib.abc
import importlib.machinery
import sys


def _interpretable_math(module):
    """Replace aliases of triton's math functions, which the interpreter cannot call, by jitted wrappers."""
    import shim_math

    for name in ("exp", "exp2", "log", "log2"):
        setattr(module, name, getattr(shim_math, name))


def _triton_tree(module):
    """Build the tree of drafts by triton's kernels, as on a device that has no CUDA extension."""
    module._is_xpu = True


AFTER_IMPORT = {
    "sglang.kernels.ops.attention.fla.op": _interpretable_math,
    "sglang.kernels.ops.speculative.spec_tree": _triton_tree,
}
"""What is done to a module once it has been imported."""

INSTEAD = {
    "sglang.kernels.ops.mamba.mamba_state_scatter_triton": (
        "if not (dst.is_cuda or dst.is_xpu) or dst.device != src.device:",
        "if dst.device != src.device:",
    ),
}
"""What is replaced in a module's source: a check that tensors are on a GPU."""


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in AFTER_IMPORT and name not in INSTEAD:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader, execute = spec.loader, spec.loader.exec_module

        def patched(module):
            if name in INSTEAD:
                old, new = INSTEAD[name]
                source = loader.get_source(name)
                assert old in source, f"{name} has changed"
                exec(compile(source.replace(old, new), spec.origin, "exec"), module.__dict__)  # noqa: S102
            else:
                execute(module)
                AFTER_IMPORT[name](module)

        loader.exec_module = patched
        return spec


def _patch_devices():
    import contextlib
    import types

    import torch
    from triton.runtime import autotuner

    torch.cpu.device = lambda *_, **__: contextlib.nullcontext()
    properties = types.SimpleNamespace(name="cpu", multi_processor_count=2, total_memory=8 * 2**30, major=9, minor=0)
    torch.cuda.get_device_properties = lambda *_, **__: properties
    make = autotuner.Autotuner.__init__

    def first_only(self, fn, arg_names, configs, *args, **kwargs):
        # Benchmarking under the interpreter would take for ever: the first configuration will do.
        make(self, fn, arg_names, list(configs or [])[:1], *args, **kwargs)

    autotuner.Autotuner.__init__ = first_only


# Of all interpreters that run with this on their path, only SGLang's own processes.
if any(word in argument for argument in sys.orig_argv for word in ("sglang", "multiprocessing", "spawn")):
    _patch_devices()
    sys.meta_path.insert(0, _Finder())
