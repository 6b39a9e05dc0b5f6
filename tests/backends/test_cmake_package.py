"""find_package(swapline) on this backend's torch, by a C++ project that names no part of torch."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.any_schedule
BUILD = pathlib.Path(__file__).resolve().parents[2] / "build" / "release"
PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(client LANGUAGES CXX)
find_package(swapline REQUIRED)
add_executable(client client.cpp)
target_link_libraries(client PRIVATE swapline::swapline)
"""
# CUDA comes along with the package, as with torch's own; the others are loaded.
CLIENT = """
#include <swapline/swapline.h>
#include <ATen/ops/ones.h>
#include <cstdio>
#include <string>
int main(int argc, char** argv) {
  const std::string type = argv[1];
  const swapline::Backend backend(type == "cuda" ? "cpu" : type);
  const c10::Device device(type + ":0");
  auto context = std::make_shared<swapline::SwapContext>(device);
  const at::Tensor weight = at::ones({64, 64}, at::TensorOptions().device(device));
  weight.mutable_grad() = weight.clone();
  swapline::Adam optimizer(context, {{.params = {weight}}});
  optimizer.step();
  optimizer.drain();
  std::printf("%s %.2f\\n", device.str().c_str(), weight.sum().item<double>());
}
"""


def run(*command: str | pathlib.Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_program_needs_nothing_but_the_package(device, tmp_path):
    if not list((BUILD / "python" / "swapline").glob("_core*")) or not shutil.which("cmake"):
        pytest.skip(f"no package in {BUILD}, or no cmake to build with")
    prefix = tmp_path / "swapline"
    run("cmake", "--install", BUILD, "--component", "python", "--prefix", prefix)
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    (tmp_path / "client.cpp").write_text(CLIENT)
    paths = (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DSWAPLINE_PYTHON={sys.executable}")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", *paths)
    run("cmake", "--build", tmp_path / "build")
    # libswapline finds torch beside itself where it is installed; here it is told.
    folders = [str(pathlib.Path(torch.__file__).parent / "lib")]
    if device.kind == "npu":
        folders.insert(0, os.environ.get("HARNESS_RUNTIME", "") + "/lib")
    env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders)}
    printed = run(tmp_path / "build" / "client", device.kind, env=env)
    # The first step of Adam, with a decay of nothing: each weight by the learning rate.
    assert printed.splitlines()[-1] == f"{device.kind}:0 {64 * 64 * (1 - 1e-3):.2f}"
