#!/usr/bin/env bash
# Sets up what is missing, builds everything and runs every test. Ends with ctest's closing lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
bash scripts/install_clients.sh
bash scripts/build.sh
python=python3
[[ -x .venv/bin/python ]] && python=.venv/bin/python
# One thread: the models are small, and idle OpenMP threads spin.
failed=0
OMP_NUM_THREADS=1 PYTHONPATH=build/release/python "$python" -m pytest -q python/tests || failed=1
OMP_NUM_THREADS=1 PYTHONPATH=build/release/python "$python" -m pytest -q tests/backends || failed=1
# The CUDA wheel takes half a gigabyte: only where `run_backend_tests.sh cuda` has been called.
backends=(npu)
[[ ! -f build/backends/cuda/.installed ]] || backends+=(cuda)
for backend in "${backends[@]}"; do
  result=0
  bash scripts/run_backend_tests.sh "$backend" || result=$?
  case $result in
    0) ;;
    3) echo "tests/backends on $backend: skipped, its packages cannot be had here" ;;
    *) failed=1 ;;
  esac
done
ctest --test-dir build/release --output-on-failure -j2 || failed=1
exit "$failed"
