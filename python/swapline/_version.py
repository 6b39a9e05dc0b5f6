"""Whether the torch that is here is the one that the binding was built with."""

BUILT_WITH_FILE = "_built_with.txt"


def check_torch(found: str, built_with: str | None = None) -> None:
    """Raises ImportError when `found`, a torch version, has another minor version than the one
    that Swapline was built with (libtorch's C++ interface changes with each)."""
    if built_with is None:
        import pathlib

        built_with = (pathlib.Path(__file__).parent / BUILT_WITH_FILE).read_text().strip()
    if found.split(".")[:2] != built_with.split(".")[:2]:
        raise ImportError(
            f"swapline was built with torch {built_with}, and torch {found} is installed. "
            f"Install torch {'.'.join(built_with.split('.')[:2])}, or build swapline again: "
            "pip install --no-build-isolation --force-reinstall --no-deps ."
        )
