#!/usr/bin/env bash
# What swapline does on this machine's device, in at most eight minutes and without a network:
#
#   check_device.sh cuda|npu [--python PATH] [arguments of bench/python/device_check]
#
# First tests/backends, then one table: copy rates, step times, memory, bits, host time
# (docs/benchmarks.md, "On a real device"). The package is the one that this Python has, or the one
# in build/release/python, or is built from this tree into build/check_device, which takes minutes
# more. Returns 1 where a test or a promise in the table failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kind=${1:-}
case $kind in
  cuda | npu) shift ;;
  *)
    echo "usage: check_device.sh cuda|npu [--python PATH] [arguments of device_check]" >&2
    exit 2
    ;;
esac
python=python3
if [[ ${1:-} == --python ]]; then
  python=${2:?--python needs a path}
  shift 2
fi

# Not `import swapline`: from this folder that finds the C++ sources.
has_package() {
  PYTHONPATH=${1:+$1:}${PYTHONPATH-} "$python" -c 'from swapline import SwapContext' 2>/dev/null
}
build_package() {
  echo "no swapline for $("$python" --version): building it" >&2
  "$python" -m pip install --quiet --no-build-isolation --no-deps --no-index --upgrade \
    --target build/check_device .
}
if ! has_package ""; then
  package=$PWD/build/release/python
  if ! has_package "$package"; then
    package=$PWD/build/check_device
    has_package "$package" || build_package
  fi
  export PYTHONPATH=$package${PYTHONPATH:+:$PYTHONPATH}
fi
"$python" -c 'import swapline, torch; print(swapline.__file__, "on torch", torch.__version__)'

failed=0
# Programs and CMake projects have nothing to say about the device; the table is printed below.
if "$python" -c 'import pytest' 2>/dev/null; then
  timeout -s INT 200 "$python" -m pytest -q --maxfail=10 -p no:cacheprovider -rs tests/backends \
    --device "$kind" --ignore tests/backends/test_program.py \
    --ignore tests/backends/test_cmake_package.py \
    --ignore tests/backends/test_device_check.py || failed=1
else
  echo "no pytest for $python: tests/backends is left out" >&2
  failed=1
fi
# An interrupt prints what was measured until then.
timeout -s INT -k 20 280 "$python" bench/python/device_check --device "$kind" "$@" || failed=1
exit "$failed"
