#!/usr/bin/env bash
# Sets up what is missing, builds everything and runs every test. Ends with ctest's closing lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
bash scripts/build.sh
if compgen -G 'python/tests/test_*.py' >/dev/null; then
  python=python3
  [[ -x .venv/bin/python ]] && python=.venv/bin/python
  "$python" -m pytest -q python/tests
fi
ctest --test-dir build/release --output-on-failure -j2
