"""swapline.torchtitan without a torchtitan that it knows."""

import importlib
import sys

import pytest


@pytest.fixture
def no_torchtitan(monkeypatch, tmp_path):
    """A path on which torchtitan may be put; this folder's own name is taken away."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "torchtitan" or name.startswith("swapline.torchtitan"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_says_that_it_is_not_installed(no_torchtitan):
    with pytest.raises(ImportError, match="not installed; supported: 0.2.x"):
        importlib.import_module("swapline.torchtitan")


def test_names_a_version_that_it_does_not_know(no_torchtitan):
    (no_torchtitan / "torchtitan").mkdir()
    (no_torchtitan / "torchtitan" / "__init__.py").touch()
    metadata = no_torchtitan / "torchtitan-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torchtitan\nVersion: 0.1.0\n")
    with pytest.raises(ImportError, match="does not know torchtitan 0.1.0; supported: 0.2.x"):
        importlib.import_module("swapline.torchtitan")
