#!/bin/sh
# bench/served.sh [--json FILE]: niche against the best library forms and against an AOTInductor package of the same
# model. Exporting needs the whole torch: it goes into a second environment, .venv-bench.
set -eu
cd "$(dirname "$0")/.."
bin=build/release/bench/bin/served
out=out/served
cache=out/demo/cache
[ -d "$cache" ] || { echo "no evolved kernels in $cache: run ./dev demo first" >&2; exit 2; }
mkdir -p "$out"
if [ ! -x .venv-bench/bin/python ] || ! .venv-bench/bin/python -c 'import torch' 2>/dev/null; then
  echo "[niche] installing the whole torch into .venv-bench (about 6 GB)" >&2
  python3 -m venv .venv-bench
  .venv-bench/bin/pip install -q --disable-pip-version-check torch==2.11.0 numpy
fi
if [ ! -e "$out/ranker.pt2" ]; then
  "$bin" --dump-weights "$out/weights.pt"
  .venv-bench/bin/python bench/served/export_ranker.py "$out/weights.pt" "$out/ranker.pt2"
fi
# The package links the whole libtorch.so, which the CPU half in .venv lacks.
LD_LIBRARY_PATH=$(echo "$PWD"/.venv-bench/lib/python3*/site-packages/torch/lib)
export LD_LIBRARY_PATH
exec "$bin" --package "$out/ranker.pt2" --cache "$cache" "$@"
