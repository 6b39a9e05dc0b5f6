"""The package as pip installs it: what is in it, and a C++ project that builds against it."""

import os
import pathlib
import subprocess
import sys
import textwrap
import zipfile

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(*command: str | pathlib.Path, cwd: pathlib.Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=1500, env=environment or None
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder that holds the package swapline and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation"]
    # The compiler under the name that the main build calls it by: ccache tells names apart.
    environment = {"CXX": "c++", **os.environ}
    run(*command, "--no-deps", "-w", folder, ROOT, cwd=ROOT, **environment)
    (wheel,) = folder.glob("swapline-*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = site / "swapline" / "bin" / "swapline"
    program.chmod(0o755)
    return site


def python(code: str, site: pathlib.Path) -> str:
    # In a folder of its own: a folder "swapline" beside it would be found first.
    return run(sys.executable, "-c", textwrap.dedent(code), cwd=site.parent, PYTHONPATH=str(site))


def test_holds_libraries_headers_program_and_types(installed):
    package = installed / "swapline"
    for name in (
        "lib/libswapline.so",
        "lib/libswapline_sim.so",
        "lib/libswapline_sim_device.so",
        "include/swapline/swapline.h",
        "include/sim/torch/sim.h",
        "share/cmake/swapline/swaplineConfig.cmake",
        "bin/swapline",
        "py.typed",
        "_core.pyi",
        "_sim.pyi",
    ):
        assert (package / name).is_file(), name
    assert not list(package.rglob("*.cpp"))


def test_trains_where_it_is_installed(installed):
    printed = python(
        """
        import torch
        import swapline.optim
        import swapline.sim
        layer = torch.nn.Linear(8, 8, device="sim")
        optimizer = swapline.optim.AdamW(layer.parameters(), lr=0.1)
        layer(torch.ones(2, 8, device="sim")).sum().backward()
        optimizer.step()
        print(swapline.__file__, optimizer.stats()["num_copies_out"] > 0)
        """,
        installed,
    )
    assert printed.split() == [str(installed / "swapline" / "__init__.py"), "True"]


def test_the_import_takes_little_beside_that_of_torch(installed):
    printed = python(
        """
        import time
        start = time.perf_counter()
        import torch
        torch_there = time.perf_counter()
        import swapline.sim
        print((time.perf_counter() - torch_there) / (torch_there - start))
        """,
        installed,
    )
    print(f"import swapline.sim takes {float(printed):.3f} times as long as import torch")
    assert float(printed) < 0.3


def test_the_program_runs_from_the_package(installed):
    printed = run(
        sys.executable, "-m", "swapline", "devices", cwd=installed.parent, PYTHONPATH=str(installed)
    )
    assert "h100-sxm" in printed


def test_the_program_finds_the_simulator_in_the_package(installed):
    small = ("--training.steps=1", "--training.seq-len=64", "--model.num-layers=1")
    train = [sys.executable, "-m", "swapline", "train", "--training.local-batch-size=1", *small]
    printed = run(*train, cwd=installed.parent, PYTHONPATH=str(installed))
    assert "step:  1  loss:" in printed


def test_a_torch_of_another_minor_version_is_refused_in_words():
    from swapline._version import check_torch

    check_torch("2.13.9+cu130", built_with="2.13.0")
    with pytest.raises(ImportError, match=r"built with torch 2\.9\.1, and torch 2\.13\.0 .*pip"):
        check_torch("2.13.0", built_with="2.9.1")


def test_torch_is_that_of_the_python_which_pip_builds_for(tmp_path):
    # Whatever .venv or python3 there is besides.
    asked = tmp_path / "asked"
    python3 = tmp_path / "python"
    python3.write_text(f'#!/bin/sh\ntouch "{asked}"\nexec "{sys.executable}" "$@"\n')
    python3.chmod(0o755)
    options = ["-DSWAPLINE_SIM_ONLY=ON", "-DSWAPLINE_TESTS=OFF", "-DSWAPLINE_BENCH=OFF"]
    options += ["-DSWAPLINE_TRAINER=OFF", f"-DPython_EXECUTABLE={python3}"]
    run("cmake", "-S", ROOT, "-B", tmp_path / "build", *options, cwd=tmp_path, **os.environ)
    assert asked.exists()


def test_a_project_of_its_own_builds_and_runs(installed, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        """
        cmake_minimum_required(VERSION 3.24)
        project(client LANGUAGES CXX)
        find_package(swapline REQUIRED)
        add_executable(client client.cpp)
        target_link_libraries(client PRIVATE swapline::swapline swapline::swapline_sim)
        """
    )
    (tmp_path / "client.cpp").write_text(
        """
        #include <sim/torch/sim.h>
        #include <swapline/optimizer/adam.h>
        #include <ATen/ops/ones.h>
        #include <cstdio>
        int main() {
          const auto device = swapline::sim::device();
          auto context = std::make_shared<swapline::SwapContext>(device);
          const at::Tensor weight = at::ones({64, 64}, at::TensorOptions().device(device));
          weight.mutable_grad() = weight.clone();
          swapline::Adam optimizer(context, {{.params = {weight}}});
          optimizer.step();
          std::printf("%zu bytes of states\\n", optimizer.stats().state_bytes);
        }
        """
    )
    prefix = python("import swapline; print(swapline.cmake_prefix_path())", installed).strip()
    build = tmp_path / "build"
    configure = ["cmake", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"]
    run(*configure, f"-DSWAPLINE_PYTHON={sys.executable}", cwd=tmp_path, **os.environ)
    run("cmake", "--build", build, cwd=tmp_path, **os.environ)
    torch_lib = pathlib.Path(torch.__file__).parent / "lib"
    printed = run(build / "client", cwd=tmp_path, LD_LIBRARY_PATH=str(torch_lib))
    assert printed == f"{2 * 64 * 64 * 4} bytes of states\n"
