"""Stands in for triton, 200 MB of which only the names are needed: no kernel of it runs here."""

__version__ = "0.0.0"


def jit(function=None, **_):
    """A kernel that says what it is when it is launched."""
    if function is None:
        return jit

    class Kernel:
        def __getitem__(self, grid):
            raise RuntimeError(f"{function.__name__} is a triton kernel: there is no triton here")

    return Kernel()


def cdiv(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def next_power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
