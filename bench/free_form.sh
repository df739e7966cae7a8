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
python3 - "$json" "$work/softmax.jsonl" "$work/layer_norm.jsonl" "$work/mbdt.jsonl" <<'PY'
import json, sys
rows = []
for path in sys.argv[2:]:
    nodes = [json.loads(line) for line in open(path)]
    def best(kind):
        ours = [n for n in nodes if (n["family"] == "model") == kind and n["cost"] > 0]
        return min(ours, key=lambda n: n["cost"], default=None)
    template, program = best(False), best(True)
    row = {"definition": nodes[0]["definition"], "templates_tried": sum(n["family"] != "model" for n in nodes)}
    for name, n in (("template", template), ("program", program)):
        if n:
            row[name] = {"speedup": round(n["reward"], 3), "outcome": n["outcome"],
                         "what": n["family"] + " " + json.dumps(n["point"].get("name", n["point"]))}
    if template and program:
        row["program_over_template"] = round(template["cost"] / program["cost"], 3)
    rows.append(row)
    print(json.dumps(row, indent=1))
if sys.argv[1]:
    json.dump(rows, open(sys.argv[1], "w"), indent=1)
PY
