#!/usr/bin/env bash
# Configures and builds the release preset, saying little unless it fails: build.sh [target ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
  "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
}
[[ -f build/release/CMakeCache.txt ]] || echo "build: first build in build/release, this takes minutes"
quietly cmake --preset release
quietly cmake --build build/release --parallel "$(nproc)" ${1:+--target "$@"}
