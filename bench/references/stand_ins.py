"""What lets an original run here unmodified: modules in place of those that it imports, and the
simulated device under the name that it expects. Our own words; nothing of the originals."""

import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

import torch


def put_module(name: str, **contents: Any) -> ModuleType:
    """A module under a name, and its parents. What a real one already holds there stays."""
    parent, _, last = name.rpartition(".")
    module = sys.modules.get(name)
    if module is None:
        module = ModuleType(name)
        module.__path__ = []  # others may be put below it
        sys.modules[name] = module
    if parent:
        setattr(put_module(parent), last, module)
    for key, value in contents.items():
        setattr(module, key, value)
    return module


def load_file(name: str, path: pathlib.Path) -> ModuleType:
    """A file of an original, unmodified, as the module `name`; its parents are stand-ins."""
    parent, _, last = name.rpartition(".")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    setattr(put_module(parent), last, module)
    return module


def remove_modules(*packages: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


def device_module(name: str) -> ModuleType:
    """torch.sim under another name, with the default stream that it does not have."""
    module = ModuleType(name)
    for key in dir(torch.sim):
        if not key.startswith("__"):
            setattr(module, key, getattr(torch.sim, key))
    first = torch.sim.current_stream()
    module.default_stream = lambda device=None: first
    return module


def absent(folder: str | None, option: str, file: str) -> str | None:
    """Why a file of a checkout is not there."""
    if folder is None:
        return f"{option} not given"
    if not (pathlib.Path(folder) / file).is_file():
        return f"{option}: no {file} in it"
    return None


def absent_package(file: str) -> str | None:
    """Why a file of an installed package is not there; nothing is imported."""
    return None if file_of_package(file) else f"{file.split('/')[0]} is not installed"


def file_of_package(file: str) -> pathlib.Path | None:
    for folder in map(pathlib.Path, sys.path):
        if (folder / file).is_file():
            return folder / file
    return None
