#!/usr/bin/env python3
"""Sweeps niche's CUDA templates on this machine's GPU, checks what they compute against fp64, and races the best of each
row against eager PyTorch, torch.compile and the best library form, beside a copy kernel of the same bytes.

  h200.py --library libniche_cuda_bench.so --out results.json [--rows memory|matrix|table|new|all] [--points N]
          [--seconds S] [--check N] [--ops A,B] [--families A,B]

--check N runs N candidates a family on the small ragged problems of check.py first. A candidate whose first run takes
longer than --hang seconds ends the program with status 9 and is left out by the next start: window.sh starts it again.

Graph time: a CUDA graph of many calls over rotating buffers that exceed the L2 cache, replays of all variants
interleaved. Cold: single calls after 256 MB were zeroed, as triton's do_bench. Rows are written as they come; a row that
is in the file already is left out, so that a run can go on where one stopped."""
import math
import os
import random
import statistics
import time

from check import NEW_PROBLEMS, check_problem
from compile_ahead import compile_ahead
from hang_guard import Guard
from niche_device import Niche, find_nvrtc
from options import parser, whole
from results_file import load_results, save_results
from rows import key_of, rows


def parse():
    p = parser(__doc__, "library", "out", "cache", "nvrtc", "ops", "points", "seconds", "jobs", "compile", "rounds", "hang", "commit",
               points=48, seconds=400, rounds=21)
    p.add_argument("--rows", default="table")
    p.add_argument("--families", default="", help="comma-separated: candidates of these families alone")
    p.add_argument("--check", type=whole(0), default=0, help="candidates a family on check.py's new problems, before the rows")
    return p.parse_args()


ARGS = None
START = time.time()
NICHE = None


def propose(op, dtype, consts, count):
    from ops_defaults import DEFAULT_ATTRS
    found = NICHE.propose(op, dtype, consts, DEFAULT_ATTRS.get(op, {}), count)
    return [c for c in found if not ARGS.families or c["family"] in ARGS.families.split(",")]


def log(text):
    print(f"[{time.time() - START:6.1f}] {text}", flush=True)


def save(results):
    save_results(ARGS.out, results)


def main():
    global NICHE
    os.makedirs(ARGS.cache, exist_ok=True)
    NICHE = Niche(ARGS.library, ARGS.cache, ARGS.nvrtc or find_nvrtc())
    results = load_results(ARGS.out)
    guard = Guard(ARGS.out + ".running", ARGS.hang)
    results["hung"] = guard.bad
    done = {r["key"] for r in results["rows"]}
    todo = [r for r in rows(ARGS.rows) if key_of(r) not in done and (not ARGS.ops or r[0] in ARGS.ops.split(","))]
    proposals = {}
    for row in todo:
        op, dtype, consts, _, _ = row
        proposals[key_of(row)] = propose(op, dtype, consts, ARGS.points)
    done_checks = results.setdefault("checks", {})
    to_check = [p for p in NEW_PROBLEMS if ARGS.check and key_of(p) not in done_checks
                and (not ARGS.ops or p[0] in ARGS.ops.split(","))]
    checks = {key_of(p): propose(p[0], p[1], p[2], ARGS.check) for p in to_check}
    copies = NICHE.propose("copy", "f32", {"N": 4}, {}, 4)
    pool, jobs = compile_ahead(NICHE, ARGS.jobs, {"copy": copies, **{"check " + k: c for k, c in checks.items()}, **proposals})
    log(f"{sum(map(len, jobs.values()))} candidates to compile in {ARGS.jobs} processes: {NICHE.about['toolchain']}")

    import bench_device
    bench = bench_device.Bench(NICHE, ARGS, log)
    results["machine"] = {**NICHE.device, "torch": bench.torch_version, "commit": ARGS.commit,
                          "nvrtc": NICHE.about["toolchain"]}
    bench.load_copies(copies, [j.get() for j in jobs["copy"]])
    bench.guard = guard
    for problem in to_check:
        k = key_of(problem)
        built = [j.get(timeout=240)[1] for j in jobs["check " + k]]
        run, wrong, refused = check_problem(NICHE, bench, problem, checks[k], guard)
        refused.update({c["name"]: b["error"][:500] for c, b in zip(checks[k], built) if "error" in b})
        done_checks[k] = {"run": run, "wrong": wrong, "refused": refused}
        log(f"check {k}: {run} run, {len(wrong)} wrong, {len(refused)} refused {list(refused.items())[:1]}")
        save(results)
    swept = []
    for row in todo:
        if time.time() - START > ARGS.seconds * 0.6:
            break
        k = key_of(row)
        try:
            swept.append(bench.sweep(row, k, proposals[k], [j.get(timeout=240) for j in jobs[k]]))
        except Exception as e:  # one row's failure is its own
            log(f"{k}: FAILED {type(e).__name__}: {str(e)[:300]}")
            results.setdefault("failures", {})[k] = str(e)[:2000]
            save(results)
    pool.terminate()  # what was not compiled by now is not waited for
    for state in swept:
        if time.time() - START > ARGS.seconds:
            break
        try:
            results["rows"].append(bench.race(state))
        except Exception as e:
            log(f"{state['key']}: FAILED {type(e).__name__}: {str(e)[:300]}")
            results.setdefault("failures", {})[state["key"]] = str(e)[:2000]
        save(results)
    results["launch"] = bench.launch_cost()
    save(results)
    print_table(results)


def print_table(results):
    print(f"{'row':58} {'eager':>8} {'compiled':>8} {'library':>8} {'niche':>8} {'copy':>7}  ratio [ci]  cold: lib niche copy")
    ratios = []
    for r in results["rows"]:
        print(f"{r['key']:58} {r['eager_us']:8.2f} {r['compiled_us'] or math.nan:8.2f} {r['best_library_us']:8.2f} "
              f"{r['niche_us']:8.2f} {r['copy_us']:7.2f}  {r['ratio']:.2f} [{r['ci_low']:.2f} {r['ci_high']:.2f}]  "
              f"{r['best_library_us_cold']:.1f} {r['niche_us_cold']:.1f} {r['copy_us_cold']:.1f}")
        if r["in_table"]:
            ratios.append((r["best_library_us"] / r["niche_us"], r["eager_us"] / r["niche_us"],
                           r["best_library_us"] / r.get("served_us", r["niche_us"])))
    if ratios:
        def gm(i):
            return math.exp(statistics.fmean(math.log(x[i]) for x in ratios))
        print(f"table rows: geometric mean {gm(0):.2f}x over the best library form, {gm(1):.2f}x over eager, "
              f"{gm(2):.2f}x over the best library form as it is served (graph time)")
    for k, c in results.get("checks", {}).items():
        if c["wrong"] or c["refused"]:
            print(f"CHECK {k}: wrong {c['wrong'][:2]} refused {list(c['refused'].items())[:1]}")
    if results.get("checks"):
        print(f"checks: {sum(c['run'] for c in results['checks'].values())} kernels run, "
              f"{sum(len(c['wrong']) for c in results['checks'].values())} wrong, "
              f"{sum(len(c['refused']) for c in results['checks'].values())} refused, {len(results.get('hung', []))} hung")
    print("launch:", results.get("launch"))


if __name__ == "__main__":
    ARGS = parse()
    random.seed(1)
    main()
