#!/bin/sh
# bench/warm_start.sh [--json FILE] [--seconds S] [--seeds N] [--jobs N] [NAME...]: what reuse saves. For each operator a
# session on a neighbouring problem, then sessions on another one with several seeds: from scratch (an empty store, and without
# the templates' own seeds as well: policy "random"), and with the neighbour's store. Counted are the evaluations before the
# first kernel that was judged to be within 5 % of the best one judged in any session of that problem. Wants a quiet machine;
# --jobs N runs N sessions side by side, each on a core of its own.
set -eu
cd "$(dirname "$0")/.."
niche=${NICHE:-build/release/bin/niche}
json= seconds=60 seeds=5 jobs=1
while :; do
  case ${1:-} in
    --json) json=$2; shift 2 ;;
    --seconds) seconds=$2; shift 2 ;;
    --seeds) seeds=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || set -- conv1d pffn layer_norm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/session" <<'SESSION'
#!/bin/sh
# session NICHE WORK CORES ARGUMENTS...: niche evolve on the first free one of the cores.
niche=$1 work=$2 cores=$3
shift 3
for core in $cores; do
  exec 9>"$work/core.$core"
  flock -n 9 || continue
  taskset -c "$core" "$niche" evolve "$@" >"$work/log.$core" 2>&1 && exit 0
  tr '\r' '\n' <"$work/log.$core" | tail -n 20 >&2
  echo "warm_start: a session failed: $*" >&2
  exit 255
done
echo "warm_start: no free core of: $cores" >&2
exit 255
SESSION
cores=$(python3 -c "import os; print(*sorted(os.sched_getaffinity(0))[:$jobs])")
[ "$(echo "$cores" | wc -w)" = "$jobs" ] || { echo "warm_start: --jobs $jobs, but the cores are: $cores" >&2; exit 2; }
# run_all: the sessions of standard input, one a line.
run_all() { xargs -r -P "$jobs" -L 1 sh "$work/session" "$niche" "$work" "$cores"; }
problem() {  # NAME near|far
  case $1.$2 in
    conv1d.near) echo "--op conv1d --const K=3 --const Ci=48 --const Co=48 --problem B=2,L=150" ;;
    conv1d.far) echo "--op conv1d --const K=3 --const Ci=32 --const Co=32 --problem B=1,L=100" ;;
    pffn.near) echo "--op pffn --const N=75 --const D=48 --const K=96 --problem B=1" ;;
    pffn.far) echo "--op pffn --const N=50 --const D=32 --const K=64 --problem B=1" ;;
    layer_norm.near) echo "--op layer_norm --const N=768 --problem M=32" ;;
    layer_norm.far) echo "--op layer_norm --const N=1024 --problem M=16" ;;
    *) echo "warm_start: no recipe for $1" >&2; return 1 ;;
  esac
}
for name; do problem "$name" near >/dev/null || exit 2; done
for name; do
  echo "--cache $work/$name.past --seconds $seconds --seed 1 --policy default $(problem "$name" near)"
done | run_all
for name; do
  for seed in $(seq "$seeds"); do
    for start in random default warm; do
      cache=$work/$name.$start.$seed
      [ $start != warm ] || { mkdir "$cache"; cp "$work/$name.past/trajectories.sqlite" "$cache"; }
      policy=default
      [ $start != random ] || policy=random
      echo "--cache $cache --seconds $seconds --seed $seed --policy $policy $(problem "$name" far)"
    done
  done
done >"$work/sessions"
run_all <"$work/sessions"
python3 - "$work" "$json" "$seeds" "$@" <<'PY'
import json, math, sqlite3, sys
work, out, seeds, names = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
def judged(cache):  # [(evaluations before, cost)] of the newest session, in order
    db = sqlite3.connect(f"file:{cache}/trajectories.sqlite?mode=ro", uri=True)
    (session,) = db.execute("select id from sessions order by started_unix_ns desc limit 1").fetchone()
    screened, rows = 0, []
    for kind, outcome, cost in db.execute("select kind, outcome, cost from evaluations where session=? order by seq", (session,)):
        screened += kind == "screen"
        if kind == "judge" and outcome == "faster":
            rows.append((screened, cost))
    return screened, rows
rows = []
for name in names:
    runs = {start: [judged(f"{work}/{name}.{start}.{s}") for s in range(1, seeds + 1)] for start in ("random", "default", "warm")}
    best = min(c for sessions in runs.values() for _, r in sessions for _, c in r)
    mean = {}
    for start, sessions in runs.items():
        evals = [next((n for n, c in r if c <= 1.05 * best), total) for total, r in sessions]  # censored at the session's end
        mean[start] = math.exp(sum(math.log(max(1, e)) for e in evals) / len(evals))
        rows.append({"space": name, "start": start, "evals_to_1_05": evals, "evals_to_1_05_geomean": round(mean[start], 1),
                     "best_speedup": round(1 / best, 3)})
        print(f"{name:12} {start:8} evaluations to 1.05x of the best: {mean[start]:7.1f}  {evals}")
    print(f"{name:12} warm start needs {mean['default'] / mean['warm']:.1f}x fewer than the default from scratch, "
          f"{mean['random'] / mean['warm']:.1f}x fewer than random")
if out:
    json.dump(rows, open(out, "w"), indent=1)
PY
