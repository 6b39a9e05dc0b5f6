#!/usr/bin/env bash
# Installs what building and running needs and is missing: Debian packages (as root) and a Python
# environment with torch in .venv. Safe to call again; then it takes well under a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(g++ cmake ninja-build ccache python3-venv libgtest-dev libgmock-dev libcli11-dev nlohmann-json3-dev
  libtomlplusplus-dev libbenchmark-dev librapidcheck-dev)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  if [[ $status != installed ]]; then
    missing+=("$package")
  fi
done
if ((${#missing[@]} > 0)); then
  if ((EUID != 0)); then
    echo "Missing packages. Run this, then try again:" >&2
    echo "  sudo apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The Python package is a compiled module: it needs Python's own headers.
if ! python3 -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
  if ((EUID != 0)); then
    echo "Python's headers are missing. Run this, then try again: sudo apt-get install -y python3-dev" >&2
    exit 1
  fi
  echo "setup: installing python3-dev"
  apt-get install -y -qq --no-install-recommends python3-dev >/dev/null
fi

# Reads the version without importing torch, which takes seconds.
has_torch() {
  "$1" - 2>/dev/null <<'PYTHON'
import sys
from importlib.metadata import version
major, minor = (int(part) for part in version("torch").split(".")[:2])
version("numpy")
sys.exit(not (2, 9) <= (major, minor) < (2, 15))
PYTHON
}

python=.venv/bin/python
if ! [[ -x $python ]] || ! has_torch "$python"; then
  if has_torch python3; then
    python=python3
  else
    echo "setup: installing torch into .venv"
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
  fi
fi

# What python/tests and `pip install .` need; building the program and training go without.
test_packages=(pytest safetensors scikit-build-core matplotlib)
has_packages() {
  "$python" -c 'import sys; from importlib.metadata import version; [version(p) for p in sys.argv[1:]]' "$@" 2>/dev/null
}
if ! has_packages "${test_packages[@]}"; then
  echo "setup: installing ${test_packages[*]}"
  "$python" -m pip install --quiet --disable-pip-version-check "${test_packages[@]}" ||
    echo "setup: they could not be installed: python/tests will fail" >&2
fi
