#!/bin/sh
# bench/free_form.sh [--json FILE] [--seconds S]: sessions in which a model's recorded programs (tests/fixtures/free_form)
# run beside the templates of the operator: is a free-form program that passed every gate better than the best template point
# of the same session? Figures are the screen's or, where a candidate was judged, the judge's: paired, on fresh values, against
# the best library form. A template point counts with its screen (good to some 5 %) when it was not judged.
set -eu
cd "$(dirname "$0")/.."
niche=${NICHE:-build/release/bin/niche}
json=
seconds=45
while [ $# -gt 0 ]; do
  case $1 in
    --json) json=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    *) echo "free_form: what is '$1'?" >&2; exit 2 ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() {
  name=$1
  shift
  "$niche" evolve --cache "$work/$name" --seconds "$seconds" --questions 1 --seed 1 \
    --proposer "exec:tests/fixtures/free_form/replay.sh tests/fixtures/free_form/$name" "$@" 2>"$work/$name.log" ||
    { tr '\r' '\n' <"$work/$name.log" | tail -n 20 >&2; echo "free_form: the session of $name failed" >&2; exit 1; }
  "$niche" export last --cache "$work/$name" --format jsonl --out "$work/$name.jsonl"
}
run softmax --op softmax --const N=10 --problem M=1024
run layer_norm --op layer_norm --const N=16 --problem M=1024
run mbdt --op mbdt --const F=32 --const K=31 --problem B=1024
python3 bench/free_form_report.py --json "$json" "$work/softmax.jsonl" "$work/layer_norm.jsonl" "$work/mbdt.jsonl"
