#!/usr/bin/env bash
# Sets up what is missing, builds the program and trains: bash scripts/run_train.sh [--section.field value ...]
# Without options: a 5 M parameter model on the Python library's sources, on a simulated accelerator,
# in well under a minute on two cores; the loss falls from 6.07 to 2.42. All options: --help.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

bash "$repo/scripts/setup.sh"
bash "$repo/scripts/build.sh" swapline_program
exec "$repo/build/release/swapline" train "$@"
