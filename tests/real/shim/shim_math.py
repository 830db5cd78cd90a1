"""triton's math functions behind jitted functions, which its interpreter can call from other kernels."""

import triton
import triton.language as tl


@triton.jit
def exp(x):
    """Exponential."""
    return tl.exp(x)


@triton.jit
def exp2(x):
    """Power of two."""
    return tl.exp2(x)


@triton.jit
def log(x):
    """Natural logarithm."""
    return tl.log(x)


@triton.jit
def log2(x):
    """Logarithm to base two."""
    return tl.log2(x)
