#!/bin/sh
# window.sh DIR OUT [h200.py's options]: everything that no GPU has run yet, in one call: each new family checked on small
# ragged problems, then swept and raced at its rows; a short table at the end. DIR: what pack.sh collected. Goes on where
# a call before it stopped, and past candidates that hang.
set -u
dir=$1
out=$2
shift 2
for attempt in 1 2 3 4 5 6; do
  python3 "$dir/h200.py" --library "$dir/libniche_cuda_bench.so" --out "$out" --rows new --check 24 --points 48 --rounds 21 "$@"
  rc=$?
  [ $rc -eq 9 ] || exit $rc
  echo "attempt $attempt: a candidate hung and is left out from now on"
done
exit 9
