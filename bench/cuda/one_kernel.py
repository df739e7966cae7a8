#!/usr/bin/env python3
"""Launches one of niche's kernels a few times, for a profiler to look at:

  ncu --clock-control none --csv --page raw --set full -k regex:run --launch-skip 2 --launch-count 1 \\
      python3 one_kernel.py --library libniche_cuda_bench.so --op rms_norm --dtype bf16 --const N=4096 --shape 4096 \\
      [--kernel NAME] [--launches 4]

Without --kernel: the family's first proposal that compiles and holds at the shape. Its name and point come first on stdout."""
import os

from niche_device import Call, Niche, NicheError, find_nvrtc
from options import parser, whole


def main(args):
    os.makedirs(args.cache, exist_ok=True)
    niche = Niche(args.library, args.cache, args.nvrtc or find_nvrtc())
    from ops_defaults import DEFAULT_ATTRS
    consts = {k: int(v) for k, v in (c.split("=") for c in args.const)}
    shape = tuple(int(x) for x in args.shape.split(","))
    attrs = DEFAULT_ATTRS.get(args.op, {})
    chosen = None
    for c in niche.propose(args.op, args.dtype, consts, attrs, args.points):
        if (args.kernel and c["name"] != args.kernel) or not niche.holds(c["id"], shape):
            continue
        try:
            niche.compile(c["id"])
            chosen = c
            break
        except NicheError as e:
            print(c["name"], e)
    if chosen is None:
        raise SystemExit("no such kernel")
    print("kernel", chosen["name"], chosen["point"], flush=True)
    import torch
    from ops import DTYPES, OPS
    niche.open_device()
    kernel = niche.load(chosen["id"], torch)
    gen = torch.Generator(device="cuda")
    gen.manual_seed(1)
    op = OPS[args.op]
    axes = op.extents(consts, shape)
    call = Call(op.make(axes, DTYPES[args.dtype], attrs, gen), axes)
    for _ in range(args.launches):
        kernel(call)
    torch.cuda.synchronize()


if __name__ == "__main__":
    p = parser(__doc__, "library", "points", "cache", "nvrtc", points=64)
    p.add_argument("--op", required=True)
    p.add_argument("--dtype", required=True)
    p.add_argument("--const", action="append", default=[])
    p.add_argument("--shape", required=True)
    p.add_argument("--kernel", default="")
    p.add_argument("--launches", type=whole(1), default=4)
    main(p.parse_args())
