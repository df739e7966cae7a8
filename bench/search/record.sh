#!/bin/sh
# bench/search/record.sh [--seconds S] [--compile-only] [NAME...]: records the schedule spaces that `search` replays, on
# this machine, one thread. Restartable: what out/spaces holds is not measured again; --seconds ends it after that long
# (the rest another time). --compile-only, run on another core meanwhile, compiles ahead of the measurements. A finished
# recording is packed into bench/search/spaces. Wants a quiet machine. Spaces below held_out/ are not looked at while
# defaults are tuned.
set -eu
cd "$(dirname "$0")/../.."
record=${RECORD_SPACE:-build/release/bench/search/record_space}
[ -x "$record" ] || record=$(find build -name record_space -type f -perm -u+x | head -n 1)
[ -n "$record" ] || { echo "no record_space; ./dev build release makes it" >&2; exit 1; }
seconds=1000000 only=
while :; do
  case ${1:-} in
    --seconds) seconds=$2; shift 2 ;;
    --compile-only|--count) only=$1; shift ;;
    *) break ;;
  esac
done
names=${*:-"layer_norm softmax held_out/conv1d ikbo_linear_compression"}
for name in $names; do
  scratch=$PWD/out/spaces/compiled/$name
  mkdir -p "$scratch/objects" "out/spaces/$(dirname "$name")" "bench/search/spaces/$(dirname "$name")"
  cmp -s bench/search/remembering_compiler.sh "$scratch/c++" || install -m 755 bench/search/remembering_compiler.sh "$scratch/c++"
  rounds=3
  set -- --out "out/spaces/$name.recording" --seconds "$seconds" --rounds $rounds --scratch "$scratch" --compiler "$scratch/c++" $only
  case $name in
    # Each has 2,000 valid points and more on AVX2.
    layer_norm) set -- "$@" --op layer_norm --const N=1024 --problem M=16 ;;
    softmax) set -- "$@" --op softmax --dtype bf16 --const N=1024 --problem M=16 ;;
    held_out/conv1d) set -- "$@" --op conv1d --const Ci=32 --const Co=32 --const K=3 --problem B=1,L=100 ;;
    ikbo_linear_compression)
      set -- "$@" --op ikbo_linear_compression --const M=54 --const N=32 --const Kc=108 --const Ku=147 --problem B=8,U=1 ;;
    *) echo "no recipe for $name" >&2; exit 2 ;;
  esac
  "$record" "$@"
  [ -n "$only" ] && continue
  "$record" --pack "out/spaces/$name.recording" --rounds $rounds --out "bench/search/spaces/$name.space"
  "$record" "$@" --number "bench/search/spaces/$name.space"
done
