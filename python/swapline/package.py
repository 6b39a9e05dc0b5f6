"""What the installed package holds beside its modules."""

import pathlib

__version__ = "0.1.0"

_FOLDER = pathlib.Path(__file__).parent


def cmake_prefix_path() -> str:
    """A folder for CMAKE_PREFIX_PATH, so that find_package(swapline) finds the C++ libraries:

    cmake -DCMAKE_PREFIX_PATH=$(python -c "import swapline; print(swapline.cmake_prefix_path())")
    """
    return str(_FOLDER / "share" / "cmake")


def program_path() -> pathlib.Path:
    """The program that `python -m swapline` calls."""
    return _FOLDER / "bin" / "swapline"
