#!/bin/bash
# window.sh DIR OUTDIR [SECONDS [CORES]]: sweep, race and checks on a GPU in one call of at most SECONDS (540).
# DIR: what pack.sh collected. Stages, each with its own time; one that fails or hangs stops none of the others, and results
# are on disk as they come:
#   handle     OpHandle on device tensors, launch cost              handle.json
#   probe      planted candidates beside a process that serves      probe.json
#   check      each new family on small ragged problems             new.json ("checks")
#   memcheck   the same under compute-sanitizer, fewer points       memcheck.txt
#   rows       sweep and race of the new families' rows             new.json ("rows")
# Started again with the same OUTDIR, it goes on: what is in new.json is left out, as are candidates that hung or faulted.
set -u
dir=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
end=$(($(date +%s) + ${3:-540}))
cores=${4:-12}
torch=$(python3 -c 'import os, importlib.util as u; print(os.path.dirname(u.find_spec("torch").origin))')
nvidia=$(dirname "$torch")/nvidia
nvrtc=$(ls "$nvidia"/cu13/lib/libnvrtc.so.1? "$nvidia"/cuda_nvrtc/lib/libnvrtc.so.1? /usr/local/cuda/lib64/libnvrtc.so.1? 2>/dev/null | head -n 1)
libraries=$dir:$torch/lib
for d in "$nvidia"/*/lib; do libraries=$libraries:$d; done

left() { echo $((end - $(date +%s))); }
# stage NAME LIMIT COMMAND...: within LIMIT seconds and what is left; its output to NAME.log, the end of it to us.
stage() {
  name=$1 limit=$2
  shift 2
  [ "$(left)" -lt "$limit" ] && limit=$(left)
  [ "$limit" -lt 15 ] && { echo "== $name: no time left"; return 0; }
  from=$(date +%s)
  timeout -k 5 "$limit" "$@" >>"$out/$name.log" 2>&1
  rc=$?
  echo "== $name: status $rc after $(($(date +%s) - from)) s"
  return $rc
}
# A candidate that hangs or faults ends h200.py with status 9; the next start leaves it out.
sweep() {
  name=$1 limit=$2
  shift 2
  for attempt in 1 2 3 4 5 6; do
    stage "$name" "$limit" python3 "$dir/h200.py" --library "$dir/libniche_cuda_bench.so" --out "$out/new.json" --nvrtc "$nvrtc" \
      --jobs "$cores" --commit "$(cat "$dir/COMMIT" 2>/dev/null)" --seconds $(($(left) - 45)) "$@"
    [ $? -eq 9 ] || break
    echo "   attempt $attempt: one candidate hung or faulted and is left out from now on"
  done
}

if [ ! -e "$out/handle.json" ]; then
  stage handle 60 env LD_LIBRARY_PATH="$libraries" "$dir/niche_handle_check" "$out/handle.json" "$nvrtc"
  tail -n 12 "$out/handle.log"
fi
if [ ! -e "$out/probe.json" ]; then
  stage probe 110 env LD_LIBRARY_PATH="$dir" "$dir/niche_probe_check" "$out/probe.json" "$nvrtc"
  tail -n 40 "$out/probe.log"
fi
sweep check 150 --rows none --check 16
grep -E '^CHECK|^checks|WRONG|HUNG|FAULT' "$out/check.log" | tail -n 20
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -n "$sanitizer" ] && [ ! -e "$out/memcheck.txt" ]; then
  stage memcheck 90 "$sanitizer" --tool memcheck --log-file "$out/memcheck.txt" python3 "$dir/check.py" \
    --library "$dir/libniche_cuda_bench.so" --points 4 --new
  tail -n 4 "$out/memcheck.log"
  tail -n 3 "$out/memcheck.txt"
fi
sweep rows 500 --rows new --points 40 --rounds 21
tail -n 45 "$out/rows.log"
