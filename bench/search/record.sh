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
names=${*:-"softmax rms_norm_backward optimized_fm mbdt held_out/layer_norm held_out/silu_mul held_out/conv1d"}
spaces=bench/search/spaces
mkdir -p $spaces/held_out
for name in $names; do
  set -- --out "$spaces/$name.space" --seconds "$seconds" --rounds 2 --points 4000
  case $name in
    softmax) set -- "$@" --op softmax --const N=512 --problem M=32 ;;
    rms_norm_backward) set -- "$@" --op rms_norm_backward --const N=512 --problem M=64 ;;
    optimized_fm) set -- "$@" --op optimized_fm --const N=40 --const D=224 --const K=448 --problem B=1 ;;
    mbdt) set -- "$@" --op mbdt --const F=32 --const K=8 --problem B=1024 ;;
    held_out/layer_norm) set -- "$@" --op layer_norm --const N=1024 --problem M=16 ;;
    held_out/silu_mul) set -- "$@" --op silu_mul --const N=2048 --problem M=16 ;;
    held_out/conv1d) set -- "$@" --op conv1d --const Ci=96 --const Co=96 --const K=3 --problem B=1,L=200 ;;
    *) echo "no recipe for $name" >&2; exit 2 ;;
  esac
  "$record" "$@"
done
