#!/usr/bin/env bash
# tests/backends on the unmodified wheels of real backends, over fake runtimes:
#
#   run_backend_tests.sh npu|cuda|all [pytest's arguments]
#
# Sets up what is missing and builds it. Prints host waits, schedules and races at the end. Returns 3
# where a backend's packages cannot be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -gt 0 ]] || { echo "usage: run_backend_tests.sh npu|cuda|all [pytest's arguments]" >&2; exit 2; }
case $1 in
  npu | cuda) backends=("$1") ;;
  all) backends=(npu cuda) ;;
  *) echo "$1: no backend; there are npu, cuda, all" >&2; exit 2 ;;
esac
shift

bash scripts/setup.sh
bash scripts/build.sh
failed=0
for backend in "${backends[@]}"; do
  bash scripts/setup_backend.sh "$backend"
  root=$PWD/build/backends/$backend
  # torch_npu finds its vendor's libraries on the library path, CUDA's torch beside itself.
  libraries=${LD_LIBRARY_PATH-}
  [[ $backend != npu ]] || libraries=$root/runtime/lib${libraries:+:$libraries}
  # A backend whose queue has ended may wait for ever.
  timeout --kill-after=10 1500 env HARNESS_RUNTIME="$root/runtime" LD_LIBRARY_PATH="$libraries" OMP_NUM_THREADS=1 \
    PYTHONPATH=build/release/python "$root/venv/bin/python" -m pytest -q -p no:cacheprovider -rfEs \
    tests/backends --device "$backend" "$@" || failed=1
done
exit "$failed"
