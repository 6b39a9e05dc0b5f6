#!/usr/bin/env bash
# A real backend's torch without its hardware: setup_backend.sh npu|cuda
#
# An environment of its own in build/backends/NAME/venv (npu: torch 2.13.0 and torch_npu, 0.2 GB to
# download; cuda: the CUDA build of torch, 0.5 GB, and NVIDIA's headers), and the fake runtime that it
# runs on in build/backends/NAME/runtime (harness/README.md). Returns 3 where a package cannot be had.
# Safe to call again; then it takes seconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

backend=${1:-}
common=(numpy pytest)
case $backend in
  npu) packages=(torch==2.13.0 pyyaml "${common[@]}") without_needs=(torch-npu==2.13.0) ;;
  cuda)
    # What torch names of NVIDIA's is 3 GB; stand-ins take its place.
    packages=(filelock typing-extensions sympy networkx jinja2 fsspec "setuptools>=77.0.3" "${common[@]}")
    without_needs=("torch===2.13.0")
    headers=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88)
    ;;
  *) echo "usage: setup_backend.sh npu|cuda" >&2; exit 2 ;;
esac
root=build/backends/$backend
python=$root/venv/bin/python

cannot() {
  echo "$backend: $1 could not be installed from the package index" >&2
  exit 3
}
pip_install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@"
}

wanted="${packages[*]} ${without_needs[*]} ${headers[*]-}"
if [[ ! -f $root/.installed || $(<"$root/.installed") != "$wanted" ]]; then
  echo "$backend: installing $wanted into $root/venv"
  rm -rf "$root"
  mkdir -p "$root"
  python3 -m venv "$root/venv"
  pip_install "${packages[@]}" || cannot "${packages[*]}"
  pip_install --no-deps "${without_needs[@]}" || cannot "${without_needs[*]}"
  if [[ $backend == cuda ]]; then
    pip_install --no-deps --target "$root/headers" "${headers[@]}" || cannot "${headers[*]}"
  fi
  echo "$wanted" >"$root/.installed"
fi

log=$root/build.log
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
cmake -S harness -B "$root/runtime" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHARNESS_BACKEND="$backend" \
  -DSWAPLINE_PYTHON="$PWD/$python" -DVENDOR_INCLUDE="$PWD/$root/headers/nvidia/cu13/include" >"$log" 2>&1 &&
  cmake --build "$root/runtime" >>"$log" 2>&1 || { cat "$log" >&2; exit 1; }

# Where the wheel looks for them; "-": on the library path.
if [[ $backend == cuda ]]; then
  { cat "$root/runtime/stand_ins/names.txt"; echo "libnvidia-ml.so.1 nvidia/cu13/lib"; } |
    while read -r library folder; do
      mkdir -p "$site/$folder"
      ln -sf "$PWD/$root/runtime/lib/$library" "$site/$folder/$library"
    done
fi
