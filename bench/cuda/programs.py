#!/usr/bin/env python3
"""Free-form CUDA programs (tests/fixtures/free_form_cuda) in several settings against the best template and the library forms.

  programs.py --library libniche_cuda_bench.so --out programs.json [--points N] [--seconds S] [--compile 0|1] [--known h200.json]

Every kernel is checked against fp64 as in h200.py (same inputs, same bound); the best program and the best template then take turns with
the library's forms, torch.compile's and a copy of the same bytes. Rows are written as they come, and rows that are there already are left
out. --known: the templates' best points of an earlier run come first."""
import json
import os
import statistics
import time

from compile_ahead import compile_ahead
from hang_guard import Guard
from niche_device import Niche, NicheError, find_nvrtc
from options import parser
from program_variants import variants
from results_file import load_results, save_results
from rows import key_of, rows

ROWS = [("conv1d", (2048, 200)), ("pffn", (1024,)), ("optimized_fm", (333,)), ("pffn", (200,)), ("optimized_fm", (1024,)), ("conv1d", (128, 200)),
        ("linear", (33,))]
START = time.time()


def log(text):
    print(f"[{time.time() - START:6.1f}] {text}", flush=True)


def chosen_rows():
    every = rows("new")
    return [next(r for r in every if r[0] == op and r[3] == var and r[1] == ("bf16" if op == "linear" else "f32")) for op, var in ROWS]


def templates(niche, args, row, known):
    """Candidates of the families: those that were best before, then the first proposals."""
    from ops_defaults import DEFAULT_ATTRS
    op, dtype, consts, _, _ = row
    found = niche.propose(op, dtype, consts, DEFAULT_ATTRS.get(op, {}), 70)
    best = known.get(key_of(row), [])
    if op == "linear":  # the family that was written for this row and not measured there
        found = [c for c in found if c["family"] == "linear.staged"]
    found.sort(key=lambda c: best.index(c["point"]) if c["point"] in best else len(best))
    return found[:args.points * (3 if op == "linear" else 1)]


def race(bench, torch, row, key, contenders, forms):
    """Medians of interleaved replays, microseconds."""
    from niche_device import Call
    from ops import DTYPES, OPS
    from ops_defaults import DEFAULT_ATTRS
    name, dtype, consts, var, _ = row
    op, dt, attrs = OPS[name], DTYPES[dtype], DEFAULT_ATTRS.get(name, {})
    gen = torch.Generator(device="cuda")
    gen.manual_seed(4321)
    axes = op.extents(consts, var)
    sets = [op.make(axes, dt, attrs, gen)]
    moved = op.bytes(sets[0])
    launches = int(min(64, max(4, 200e6 // moved + 1)))
    while len(sets) < launches and len(sets) * moved < 12e9:
        fresh = op.make(axes, dt, attrs, gen)
        for i in op.constant:
            fresh[i] = sets[0][i]
        sets.append(fresh)
    calls = [Call(s, axes) for s in sets]
    runs = {n: (lambda i, k=k: k(calls[i % len(calls)])) for n, k in contenders.items()}
    runs.update({n: (lambda i, f=f: f(*sets[i % len(sets)])) for n, f in forms.items()})
    copies = bench.copy_variants(moved, launches)
    runs["copy"] = lambda i: bench.copies[0](copies[i % len(copies)])
    graphs = {}
    for n, run in runs.items():
        try:
            graphs[n] = bench.graph(run, launches)
        except Exception as e:
            log(f"{key}: {n} cannot be captured: {type(e).__name__} {str(e)[:200]}")
    samples = {n: [] for n in graphs}
    order = list(graphs)
    for _ in range(bench.args.rounds):
        for n in order:
            samples[n].append(bench.replay_us(graphs[n], launches))
        order = order[1:] + order[:1]
    return samples


def main(args):
    os.makedirs(args.cache, exist_ok=True)
    niche = Niche(args.library, args.cache, args.nvrtc or find_nvrtc())
    from ops_defaults import DEFAULT_ATTRS
    known = {}
    if args.known:
        with open(args.known) as f:
            known = {r["key"]: [p for _, p in r["ranking"]] for r in json.load(f)["rows"]}
    results = load_results(args.out)
    guard = Guard(args.out + ".running", 10)
    done = {r["key"] for r in results["rows"]}
    todo = [r for r in chosen_rows() if key_of(r) not in done and (not args.ops or r[0] in args.ops.split(","))]
    candidates = {}
    for row in todo:
        op, dtype, consts, _, _ = row
        k = key_of(row)
        if op != "linear":
            candidates["program " + k] = [niche.program(op, dtype, consts, DEFAULT_ATTRS.get(op, {}), n, t) for n, t in variants(op, consts)]
        candidates["template " + k] = templates(niche, args, row, known)
    copies = niche.propose("copy", "f32", {"N": 4}, {}, 4)
    pool, jobs = compile_ahead(niche, args.jobs, {"copy": copies, **candidates})
    log(f"{sum(map(len, jobs.values()))} candidates to compile in {args.jobs} processes")
    import torch

    import bench_device
    from ops import OPS
    bench = bench_device.Bench(niche, args, log)
    bench.load_copies(copies, [j.get() for j in jobs["copy"]])
    bench.guard = guard
    results["machine"] = {**niche.device, "torch": bench.torch_version, "commit": args.commit}
    for row in todo:
        if time.time() - START > args.seconds:
            log("no time left")
            break
        k = key_of(row)
        best, kernels, counts, ranking, errors = {}, {}, {}, {}, {}
        for kind in ("program", "template"):
            name = f"{kind} {k}"
            if name not in candidates:
                continue
            try:
                state = bench.sweep(row, name, candidates[name], [j.get(timeout=120) for j in jobs[name]])
            except Exception as e:
                log(f"{name}: FAILED {type(e).__name__}: {str(e)[:300]}")
                results.setdefault("failures", {})[name] = str(e)[:2000]
                continue
            _, c, kernel, mine, built = state["good"][0]
            best[kind], kernels[kind] = {"point": c["point"], "family": c["family"], "resources": built["kernels"]}, kernel
            counts[kind], ranking[kind], errors[kind], errors["library"] = state["counts"], state["ranking"], mine, state["bar"]
            log(f"{name}: {ranking[kind]}; errors {mine} library {state['bar']}")
        if not kernels:
            continue
        forms, compiled = OPS[row[0]].forms(DEFAULT_ATTRS.get(row[0], {}))
        if args.compile and time.time() - START < args.seconds:
            for f, fn in compiled.items():
                torch._dynamo.reset()
                forms[f] = torch.compile(fn, dynamic=False)
        samples = race(bench, torch, row, k, kernels, forms)
        median = {n: statistics.median(s) for n, s in samples.items()}
        library = min((n for n in median if n not in ("program", "template", "copy")), key=median.get)
        results["rows"].append({"key": k, "program_us": median.get("program"), "template_us": median.get("template"),
                                "best_library_us": median[library], "best_library_form": library, "copy_us": median["copy"],
                                "forms_us": {n: round(m, 3) for n, m in median.items()}, "best": best, "counts": counts,
                                "ranking": ranking, "error": errors})
        save_results(args.out, results)
        log("\n" + line_of(results["rows"][-1]))
        torch.cuda.empty_cache()
    pool.terminate()
    print_table(results)


def line_of(r):
    def number(v):
        return f"{v:9.2f}" if v is not None else "        -"

    def ratio(v):
        return f"{v / r['program_us']:.2f}" if v and r["program_us"] else "-"
    t, lib = r["template_us"], r["best_library_us"]
    return (f"{r['key']:52} {number(r['program_us'])} {number(t)} {number(lib)} {number(r['copy_us'])}  {ratio(t):>8} {ratio(lib):>8}  "
            f"{r['best_library_form']} | {r['best'].get('program', {}).get('point', '')} | {r['best'].get('template', {}).get('point', '')}")


def print_table(results):
    print(f"{'row':52}   program  template   library      copy  template/program  library/program", flush=True)
    for r in results["rows"]:
        print(line_of(r))
    for k, why in results.get("failures", {}).items():
        print(f"FAILED {k}: {why[:300]}")


if __name__ == "__main__":
    p = parser(__doc__, "library", "out", "cache", "nvrtc", "ops", "points", "seconds", "rounds", "compile", "jobs", "commit",
               points=4, seconds=120, rounds=11)
    p.add_argument("--known", default="", help="results of h200.py: its best points come first")
    main(p.parse_args())
