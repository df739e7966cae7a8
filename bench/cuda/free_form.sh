#!/bin/sh
# free_form.sh NICHE FIXTURES OUT [SECONDS]: sessions on a GPU in which a model's recorded CUDA programs (FIXTURES:
# tests/fixtures/free_form_cuda, with ../free_form/replay.sh or replay.sh in it) run beside the templates of the operator. For each: is the
# program that passed every gate better than the best template point of the same session? At most SECONDS a row (45) and what a
# judgement under way takes. Restartable: a row whose OUT/ROW.jsonl is there is left out. The report comes last.
set -u
niche=$1 fixtures=$2 out=$3 seconds=${4:-45}
here=$(cd "$(dirname "$0")" && pwd)
replay=$fixtures/replay.sh
[ -e "$replay" ] || replay=$fixtures/../free_form/replay.sh
report=$here/free_form_report.py
[ -e "$report" ] || report=$here/../free_form_report.py
mkdir -p "$out"
row() {
  name=$1 answer=$2
  shift 2
  [ -e "$out/$name.jsonl" ] && return
  rm -rf "$out/cache_$name"
  timeout -k 5 $((seconds + 60)) "$niche" evolve --device cuda:0 --cache "$out/cache_$name" --seconds "$seconds" --questions 2 --seed 1 \
    --proposer "exec:sh $replay $fixtures/$answer" "$@" >"$out/$name.log" 2>&1
  echo "$name: status $?: $(tr '\r' '\n' <"$out/$name.log" | tail -n 1 | cut -c1-200)"
  "$niche" export last --cache "$out/cache_$name" --format jsonl --out "$out/$name.part" >>"$out/$name.log" 2>&1 && mv "$out/$name.part" "$out/$name.jsonl"
}
# Small batches first: the references of the large ones, in fp64 on the host, take most of a session.
row conv1d_128 conv1d --op conv1d --const Ci=96 --const Co=96 --const K=3 --problem B=128,L=200
row pffn_37 pffn_37 --op pffn --const N=37 --const D=100 --const K=120 --problem B=200
row optimized_fm_40 optimized_fm_40 --op optimized_fm --const N=40 --const D=224 --const K=448 --problem B=333
row pffn_150 pffn_150 --op pffn --const N=150 --const D=96 --const K=192 --problem B=256
row conv1d_2048 conv1d --op conv1d --const Ci=96 --const Co=96 --const K=3 --problem B=2048,L=200
row optimized_fm_24 optimized_fm_24 --op optimized_fm --const N=24 --const D=224 --const K=2198 --problem B=256
set -- "$out"/*.jsonl
[ -e "$1" ] && python3 "$report" --json "$out/free_form.json" "$@"
