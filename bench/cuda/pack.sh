#!/bin/sh
# pack.sh BUILD_DIR TARGET_DIR: what window.sh needs on a machine that has a GPU, a driver and Python with torch, but not
# this source tree: the benchmark library and programs, the shared libraries beside the C library and torch's that they
# need, and the scripts.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
cp "$here"/*.py "$here"/*.sh "$2/"
git -C "$here" rev-parse --short HEAD >"$2/COMMIT" 2>/dev/null || true
for f in libniche_cuda_bench.so niche_probe_check niche_handle_check; do
  [ -e "$1/bench/cuda/$f" ] || continue
  cp "$1/bench/cuda/$f" "$2/"
  strip "$2/$f"
  # Not the C library's, not torch's, not CUDA's.
  ldd "$1/bench/cuda/$f" | awk '$3 ~ /^\// {print $3}' |
    grep -vE '/torch/lib/|/nvidia/|/ld-linux|/lib(c|m|dl|rt|util|pthread|z|gcc_s|stdc\+\+)\.so' | while read -r lib; do
    cp -L "$lib" "$2/"
  done
done
