#!/bin/sh
# pack.sh BUILD_DIR TARGET_DIR: what h200.py needs on a machine that has a GPU, a driver and Python with torch, but not
# this source tree: the benchmark library, the one shared library beside the C library that it needs, and the scripts.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
cp "$1/bench/cuda/libniche_cuda_bench.so" "$here"/*.py "$here/window.sh" "$2/"
nettle=$(ldd "$2/libniche_cuda_bench.so" | awk '/libnettle/ {print $3}')
[ -z "$nettle" ] || cp -L "$nettle" "$2/"
strip --strip-debug "$2/libniche_cuda_bench.so"
