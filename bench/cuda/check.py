#!/usr/bin/env python3
"""Runs seeds of every CUDA family on small, ragged problems and compares them with fp64: meant to be run under
compute-sanitizer, where h200.py's timings would be in the way.

  compute-sanitizer --tool memcheck python3 check.py --library libniche_cuda_bench.so [--points N]"""
import argparse
import os
import sys

from h200 import find_nvrtc
from niche_device import Call, Niche
from ops_defaults import DEFAULT_ATTRS

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


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--library", required=True)
    p.add_argument("--points", type=int, default=6)
    p.add_argument("--ops", default="", help="comma-separated: these operators alone")
    p.add_argument("--cache", default="/tmp/niche_cubins")
    args = p.parse_args()
    os.makedirs(args.cache, exist_ok=True)
    niche = Niche(args.library, args.cache, find_nvrtc())
    import torch

    import bench_device
    from ops import DTYPES, OPS
    torch.cuda.init()
    niche.open_device()
    judge = bench_device.Bench.__new__(bench_device.Bench)  # its comparisons alone
    wrong = run = 0
    for op_name, dtype, consts, var in PROBLEMS:
        if args.ops and op_name not in args.ops.split(","):
            continue
        op, attrs = OPS[op_name], DEFAULT_ATTRS.get(op_name, {})
        gen = torch.Generator(device="cuda")
        gen.manual_seed(7)
        axes = op.extents(consts, var)
        tensors = op.make(axes, DTYPES[dtype], attrs, gen)
        want = op.reference(tensors, attrs)
        form = next(iter(op.forms(attrs)[0].values()))
        bar = judge.errors(op, bench_device.tensors_of(form(*tensors)), want)
        for c in niche.propose(op_name, dtype, consts, attrs, args.points):
            if not niche.holds(c["id"], var):
                continue
            kernel = niche.load(c["id"], torch)
            judge.poison(tensors, op)
            kernel(Call(tensors, axes))
            torch.cuda.synchronize()
            run += 1
            mine = judge.errors(op, [tensors[o] for o in op.outputs], want)
            if not judge.within(op, mine, bar, want, dtype):
                wrong += 1
                print("WRONG", c["name"], var, mine, bar)
    print(f"{run} kernels run, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
