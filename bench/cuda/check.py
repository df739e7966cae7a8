#!/usr/bin/env python3
"""Runs seeds of every CUDA family on small, ragged problems and compares them with fp64: meant to be run under
compute-sanitizer, where h200.py's timings would be in the way.

  compute-sanitizer --tool memcheck python3 check.py --library libniche_cuda_bench.so [--points N]"""
import os
import sys

from hang_guard import Guard
from niche_device import Call, Niche, NicheError, find_nvrtc
from ops_defaults import DEFAULT_ATTRS
from options import parser
from rows import key_of

PROBLEMS = [
    ("rms_norm", "bf16", {"N": 1024}, (37,)), ("rms_norm", "f32", {"N": 333}, (5,)),
    ("fused_add_rms_norm", "f16", {"N": 4096}, (9,)), ("layer_norm", "bf16", {"N": 320}, (67,)),
    ("softmax", "bf16", {"N": 1000}, (33,)), ("silu_mul", "bf16", {"N": 776}, (13,)),
    ("rms_norm_backward", "bf16", {"N": 1024}, (531,)), ("map_id", "i64", {"T": 1001}, (4099,)),
    ("map_id", "i64", {"T": 100003}, (4099,)), ("mbdt", "f32", {"F": 33, "K": 16}, (1001,)),
    ("conv1d", "f16", {"Ci": 96, "Co": 96, "K": 3}, (300, 200)), ("conv1d", "bf16", {"Ci": 64, "Co": 72, "K": 5}, (7, 153)),
    ("optimized_fm", "f16", {"N": 24, "D": 224, "K": 2198}, (300,)), ("optimized_fm", "bf16", {"N": 40, "D": 96, "K": 448}, (601,)),
    ("pffn", "f16", {"N": 200, "D": 256, "K": 160}, (150,)), ("pffn", "bf16", {"N": 150, "D": 96, "K": 192}, (301,)),
]
# Families that no GPU has run yet: small, ragged, and more blocks than a persistent grid holds.
NEW_PROBLEMS = [
    ("gelu_mul", "bf16", {"N": 776}, (13,)), ("gelu_mul", "f32", {"N": 77}, (5,)), ("gelu_mul", "f16", {"N": 4096}, (2000,)),
    ("rope", "bf16", {"H": 8, "D": 128, "P": 500}, (37,)), ("rope", "f32", {"H": 3, "D": 36, "P": 50}, (1001,)),
    ("linear", "bf16", {"N": 1001, "K": 416}, (1,)), ("linear", "f16", {"N": 256, "K": 4096}, (7,)),
    ("linear", "bf16", {"N": 4096, "K": 1024}, (31,)), ("linear", "f32", {"N": 300, "K": 333}, (9,)),
    ("sdpa_decode", "bf16", {"Hq": 32, "Hk": 8, "D": 128}, (2, 333)), ("sdpa_decode", "f16", {"Hq": 3, "Hk": 3, "D": 64}, (5, 1)),
    ("sdpa_decode", "f32", {"Hq": 8, "Hk": 2, "D": 64}, (3, 100)),
    ("embedding_bag", "f32", {"V": 1000, "D": 37}, (999, 101)), ("embedding_bag", "bf16", {"V": 500, "D": 128}, (5000, 13)),
    ("ikbo_linear_compression", "f16", {"M": 100, "N": 72, "Kc": 50, "Ku": 88}, (37, 3)),
    ("ikbo_linear_compression", "bf16", {"M": 433, "N": 256, "Kc": 866, "Ku": 1178}, (17, 2)),
    ("ikbo_linear_compression", "f16", {"M": 433, "N": 256, "Kc": 866, "Ku": 1178}, (301, 7)),
    ("ikbo_linear_compression", "f16", {"M": 250, "N": 128, "Kc": 50, "Ku": 90}, (407, 3)),
    ("sdpa_decode", "f16", {"Hq": 32, "Hk": 2, "D": 64}, (3, 77)), ("sdpa_decode", "bf16", {"Hq": 10, "Hk": 2, "D": 96}, (2, 1500)),
    ("conv1d", "f32", {"Ci": 20, "Co": 40, "K": 5}, (300, 153)), ("optimized_fm", "f32", {"N": 24, "D": 100, "K": 448}, (601,)),
    ("pffn", "f32", {"N": 37, "D": 100, "K": 120}, (301,)), ("pffn", "f32", {"N": 150, "D": 96, "K": 192}, (3,)),
    ("conv1d", "f32", {"Ci": 32, "Co": 48, "K": 3}, (37, 61)), ("conv1d", "f32", {"Ci": 96, "Co": 96, "K": 3}, (5, 203)),
    ("optimized_fm", "f32", {"N": 40, "D": 224, "K": 448}, (7,)), ("optimized_fm", "f32", {"N": 24, "D": 224, "K": 2198}, (3,)),
]


def check_problem(niche, judge, problem, candidates, guard):
    """Runs each candidate once on poisoned outputs; (run, names of wrong ones, {name: why it was refused})."""
    import bench_device
    import torch
    from ops import DTYPES, OPS
    op_name, dtype, consts, var = problem
    op, attrs = OPS[op_name], DEFAULT_ATTRS.get(op_name, {})
    gen = torch.Generator(device="cuda")
    gen.manual_seed(7)
    axes = op.extents(consts, var)
    tensors = op.make(axes, DTYPES[dtype], attrs, gen)
    want = op.reference(tensors, attrs)
    form = next(iter(op.forms(attrs)[0].values()))
    bar = judge.errors(op, bench_device.tensors_of(form(*tensors)), want)
    run, wrong, refused = 0, [], {}
    for c in candidates:
        if not niche.holds(c["id"], var) or guard.known_bad(c["name"]):
            continue
        try:
            with guard.watch(c["name"]):
                kernel = niche.load(c["id"], torch)
                judge.poison(tensors, op)
                kernel(Call(tensors, axes))
                torch.cuda.synchronize()
        except NicheError as e:
            refused[c["name"]] = str(e)[:500]
            continue
        run += 1
        mine = judge.errors(op, [tensors[o] for o in op.outputs], want)
        if not judge.within(op, mine, bar, want, dtype):
            wrong.append(c["name"])
            print("WRONG", c["name"], var, mine, bar, flush=True)
    return run, wrong, refused


def main():
    p = parser(__doc__, "library", "points", "ops", "cache", points=6)
    p.add_argument("--new", action="store_true", help="NEW_PROBLEMS alone")
    args = p.parse_args()
    os.makedirs(args.cache, exist_ok=True)
    niche = Niche(args.library, args.cache, find_nvrtc())
    import torch

    import bench_device
    torch.cuda.init()
    niche.open_device()
    judge = bench_device.Bench.__new__(bench_device.Bench)  # its comparisons alone
    wrong = run = 0
    for problem in ([] if args.new else PROBLEMS) + NEW_PROBLEMS:
        op_name, dtype, consts, _ = problem
        if args.ops and op_name not in args.ops.split(","):
            continue
        candidates = niche.propose(op_name, dtype, consts, DEFAULT_ATTRS.get(op_name, {}), args.points)
        n, bad, refused = check_problem(niche, judge, problem, candidates, Guard(""))
        run, wrong = run + n, wrong + len(bad)
        for name, why in refused.items():
            print("REFUSED", name, why)
        print(op_name, dtype, consts, n, "run", len(bad), "wrong", flush=True)
    print(f"{run} kernels run, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
