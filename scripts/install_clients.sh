#!/usr/bin/env bash
# Installs what the tests of python/tests train with, torchtitan, Megatron and transformers, each into a
# folder of its own below build/clients: never another torch, nothing into the environment itself.
# Downloads 25 MB, 200 MB unpacked: torchtitan (two versions, 0.4 and 1.3 MB), megatron-core (2.6 MB),
# transformers (13.5 MB), and what they import: tokenizers (3.4 MB), tyro, torchdata, torch_checkpointing, spmd_types, typeguard,
# docstring_parser (0.6 MB together). For triton, datasets and tensorboard (400 MB) the tests have
# stand-ins. Safe to call again; then it takes no time.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
[[ -x $python ]] || python=python3

install() {
  local folder=build/clients/$1
  shift
  if [[ -f $folder/.installed && $(<"$folder/.installed") == "$*" ]]; then
    return
  fi
  echo "clients: installing $*"
  rm -rf "$folder" "$folder.partial"
  if "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder.partial" "$@"; then
    echo "$*" >"$folder.partial/.installed"
    mv "$folder.partial" "$folder"
  else
    rm -rf "$folder.partial"
    echo "clients: $* could not be installed (no network?): their tests will be skipped" >&2
  fi
}

install common tokenizers==0.23.3 tyro==1.0.17 docstring-parser==0.18.0 typeguard==4.6.1 torchdata==0.11.0 \
  spmd_types==0.2.3 torch_checkpointing==0.1.1
install torchtitan-0.2.2 torchtitan==0.2.2
install torchtitan-0.3.0 torchtitan==0.3.0
install megatron-core-0.16.1 megatron-core==0.16.1
install transformers transformers==5.24.0 huggingface_hub==2.4.0 httpx2==2.16.2 httpcore2==2.16.2 anyio==4.16.0 idna==3.20 \
  h11==0.16.0 truststore==0.10.5 regex==2026.11.19 PyYAML==6.0.4 tqdm==4.70.1
