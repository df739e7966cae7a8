#!/bin/sh
# bench/search/record.sh [--seconds S] [NAME...]: records the schedule spaces that `search` replays, on this machine, one
# thread. Restartable: what a file holds is not measured again; --seconds ends it after that long (the rest another time).
# Wants a quiet machine: a point costs some 60 ms a round. Spaces below held_out/ are not looked at while defaults are tuned.
set -eu
cd "$(dirname "$0")/../.."
record=${RECORD_SPACE:-build/release/bench/search/record_space}
[ -x "$record" ] || record=$(find build -name record_space -type f -perm -u+x | head -n 1)
[ -n "$record" ] || { echo "no record_space; ./dev build release makes it" >&2; exit 1; }
seconds=1000000
[ "${1:-}" = --seconds ] && { seconds=$2; shift 2; }
names=${*:-"layer_norm conv1d held_out/pffn held_out/ikbo_linear_compression"}
spaces=bench/search/spaces
mkdir -p $spaces/held_out
for name in $names; do
  set -- --out "$spaces/$name.space" --seconds "$seconds" --rounds 2 --points 10000
  case $name in
    # Each has 2,000 valid points and more on AVX2.
    layer_norm) set -- "$@" --op layer_norm --const N=1024 --problem M=16 ;;
    conv1d) set -- "$@" --op conv1d --const Ci=32 --const Co=32 --const K=3 --problem B=1,L=100 ;;
    held_out/pffn) set -- "$@" --op pffn --const N=50 --const D=32 --const K=64 --problem B=1 ;;
    held_out/ikbo_linear_compression)
      set -- "$@" --op ikbo_linear_compression --const M=54 --const N=32 --const Kc=108 --const Ku=147 --problem B=8,U=1 ;;
    *) echo "no recipe for $name" >&2; exit 2 ;;
  esac
  "$record" "$@"
done
