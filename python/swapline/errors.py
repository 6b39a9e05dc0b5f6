"""The errors that are Swapline's own. All others are Python's and torch's."""


class HostMemoryError(MemoryError):
    """Pinned host memory could not be had.

    The message names the bytes asked for and free, the limit that was hit and the option to turn.
    """
