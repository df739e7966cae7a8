#!/usr/bin/env python3
"""Regret at unseen shapes: kernels are found at a few shapes of a row, then timed at others of the same Definition, beside
all other candidates and the library forms there (regret_rule.py says what is computed).

  regret.py --library libniche_cuda_bench.so --out regret.json [--points N] [--seconds S] [--ops A,B]

Times are h200.py's sweep: three replays of a graph over rotating buffers, so a regret below 1.03 is none. A row that is in
the file already is left out."""
import json
import os
import time

from compile_ahead import compile_ahead
from hang_guard import Guard
from niche_device import Niche, find_nvrtc
from options import parser
from regret_rule import LIBRARY, NOTHING_NEAR, at_unseen, committed, reaching, summary
from results_file import load_results, save_results

CONV = {"Ci": 96, "Co": 96, "K": 3}
# Operator, element type, constant axes, shapes that were seen, shapes that were not: between them, odd ones, and one of
# half and one of twice the extremes.
ROWS = [
    ("rms_norm", "bf16", {"N": 4096}, [(256,), (4096,)], [(128,), (333,), (777,), (1500,), (2049,), (8192,)]),
    ("fused_add_rms_norm", "bf16", {"N": 4096}, [(16,), (4096,)], [(8,), (77,), (500,), (1023,), (8192,)]),
    ("map_id", "i64", {"T": 10000}, [(50000,), (1000000,)], [(25000,), (77777,), (200001,), (499999,), (2000000,)]),
    ("conv1d", "f16", CONV, [(64, 200), (512, 200)], [(32, 200), (100, 200), (333, 200), (200, 150), (1024, 77)]),
    ("optimized_fm", "f16", {"N": 40, "D": 224, "K": 448}, [(128,), (1024,)], [(64,), (333,), (777,), (2048,)]),
    ("pffn", "f16", {"N": 150, "D": 96, "K": 192}, [(128,), (1024,)], [(64,), (333,), (777,), (2048,)]),
    ("sdpa_decode", "bf16", {"Hq": 32, "Hk": 8, "D": 128}, [(1, 4096), (8, 1024)], [(1, 2000), (3, 1037), (4, 3000), (16, 512)]),
    ("linear", "bf16", {"N": 4096, "K": 4096}, [(1,), (16,)], [(2,), (5,), (9,), (31,)]),
    ("embedding_bag", "f32", {"V": 100000, "D": 64}, [(50000, 1024), (200000, 4096)], [(9999, 321), (100001, 5000), (400000, 8192)]),
]

def servers(niche, seen, unseen, times, library, ids):
    """{unseen shape: name of the kernel that serves it; None: the library}."""
    known = [s for s in seen if s in times]
    names = committed([times[s] for s in known])
    if not names:
        return dict.fromkeys(unseen)
    points = [(list(s), [library[s]] + [times[s].get(n, 0) for n in names]) for s in known]
    who, far_margin = niche.regions(len(unseen[0]), [ids[n] for n in names], points, [list(s) for s in unseen])
    far = reaching(names, [times[s] for s in known], [library[s] for s in known], far_margin)
    by_id = {ids[n]: n for n in names}

    def serve(shape, ident):
        if ident == LIBRARY:
            return None
        if ident != NOTHING_NEAR:
            return by_id[ident]
        return next((n for n in far if niche.holds(ids[n], shape)), None)
    return {s: serve(s, i) for s, i in zip(unseen, who)}


def name(row):
    return f"{row[0]} {row[1]} " + " ".join(f"{k}={v}" for k, v in row[2].items())


def main(args):
    start = time.time()
    os.makedirs(args.cache, exist_ok=True)
    niche = Niche(args.library, args.cache, args.nvrtc or find_nvrtc())
    results = load_results(args.out)
    done = {r["row"] for r in results["rows"]}
    todo = [r for r in ROWS if name(r) not in done and (not args.ops or r[0] in args.ops.split(","))]
    from ops_defaults import DEFAULT_ATTRS
    proposals = {name(r): niche.propose(r[0], r[1], r[2], DEFAULT_ATTRS.get(r[0], {}), args.points) for r in todo}
    pool, jobs = compile_ahead(niche, args.jobs, proposals)

    import bench_device

    def log(text):
        print(f"[{time.time() - start:6.1f}] {text}", flush=True)

    bench = bench_device.Bench(niche, args, log)
    bench.guard = Guard(args.out + ".running", args.hang)
    results["machine"] = {**niche.device, "torch": bench.torch_version, "commit": args.commit}
    for row in todo:
        if time.time() - start > args.seconds:
            break
        op, dtype, consts, seen, unseen = row
        built = [j.get(timeout=240) for j in jobs[name(row)]]
        times, library = {}, {}
        for shape in seen + unseen:
            if time.time() - start > args.seconds + 30:
                break
            try:
                state = bench.sweep((op, dtype, consts, shape, False), f"{name(row)} x {shape}", proposals[name(row)], built,
                                    may_fit_none=True)
                times[shape], library[shape] = state["times"], min(us for us, _ in state["forms"].values())
            except Exception as e:  # one shape's failure is its own
                log(f"{name(row)} x {shape}: FAILED {type(e).__name__}: {str(e)[:200]}")
        ids = {p["name"]: p["id"] for p in proposals[name(row)]}
        who = servers(niche, seen, unseen, times, library, ids)
        points = [{"shape": list(s), **at_unseen(who[s], times[s], library[s])} for s in unseen if s in times]
        results["rows"].append({"row": name(row), "seen": [list(s) for s in seen], "points": points})
        results["summary"] = summary([p for r in results["rows"] for p in r["points"]])
        save_results(args.out, results)
        for p in points:
            log(f"{name(row)} x {p['shape']}: regret " + ("- (the library serves)" if p["regret"] is None else
                f"{p['regret']:.3f}, library over it {p['ratio']:.2f}"))
    pool.terminate()
    print("regret:", json.dumps(results.get("summary")))


if __name__ == "__main__":
    p = parser(__doc__, "library", "out", "cache", "nvrtc", "ops", "points", "seconds", "hang", "jobs", "commit", points=32, seconds=90)
    main(p.parse_args())
