#!/usr/bin/env python3
"""record_many.py --record PROGRAM --out DIR [--seconds 540] [--scratch DIR] [--rounds N] [--refinements N] [NAME...]: record.sh for a machine with many cores.

First all cores compile (a compiler that remembers keeps the objects in --scratch); then one core of each physical one measures
and nothing else runs: the three rounds of every space side by side, each on a core of its own; then the five refinements of
the best. Spaces whose compiling does not end in time are left out and said so: run it again, what is compiled and
measured stays. Writes DIR/NAME.space as soon as the rounds are there, again after the refinements, and a table last.
"""
import argparse, json, math, os, shutil, statistics, subprocess, sys, time

ROUNDS, REFINEMENTS = 3, 5
# As in record.sh; conv1d costs most to compile, so it comes first. Where a processor has AVX-512 the spaces are those of
# AVX2 all the same (--isa avx2): with both vector widths they have two to four times the points, too many to compile here.
SPACES = {
    "held_out/conv1d": "--op conv1d --const Ci=32 --const Co=32 --const K=3 --problem B=1,L=100",
    "ikbo_linear_compression":
        "--op ikbo_linear_compression --const M=54 --const N=32 --const Kc=108 --const Ku=147 --problem B=8,U=1",
    "softmax": "--op softmax --dtype bf16 --const N=1024 --problem M=16",
    "layer_norm": "--op layer_norm --const N=1024 --problem M=16",
    "pffn": "--op pffn --const N=100 --const D=32 --const K=64 --problem B=1",
    "optimized_fm": "--op optimized_fm --const N=24 --const D=64 --const K=160 --problem B=2",
    "held_out/conv1d_wide": "--op conv1d --const Ci=64 --const Co=64 --const K=3 --problem B=1,L=64",
    "held_out/softmax_avx512": "--op softmax --const N=768 --problem M=24",
    "held_out/pffn_avx512": "--op pffn --const N=64 --const D=64 --const K=128 --problem B=2 --only lanes=16",
    "held_out/ikbo_avx512": "--op ikbo_linear_compression --const M=54 --const N=32 --const Kc=108 --const Ku=147 --problem B=8,U=1 --only lanes=16",
}
# For processors with AVX-512 alone: both vector widths, as a session there searches them, or the wide one (--only lanes=16).
AVX512 = {"held_out/softmax_avx512", "held_out/pffn_avx512", "held_out/ikbo_avx512"}
# Neighbouring problems, for `reuse`: recorded when they are named. What is searched there is what a session saw: one round
# without refinements is like a session's screens.
NEAR = {
    "near/conv1d": "--op conv1d --const Ci=48 --const Co=48 --const K=3 --problem B=2,L=150",
    "near/ikbo_linear_compression":
        "--op ikbo_linear_compression --const M=72 --const N=48 --const Kc=144 --const Ku=196 --problem B=12,U=1",
    "near/softmax": "--op softmax --dtype bf16 --const N=768 --problem M=32",
    "near/layer_norm": "--op layer_norm --const N=768 --problem M=32",
    "near/pffn": "--op pffn --const N=150 --const D=48 --const K=96 --problem B=1",
    "near/optimized_fm": "--op optimized_fm --const N=32 --const D=96 --const K=192 --problem B=3",
}
# The same Definitions at another batch, as live traffic has them: the sources are those of the spaces themselves, and share
# their compiled objects.
BATCH = {
    "batch/conv1d": "--op conv1d --const Ci=32 --const Co=32 --const K=3 --problem B=4,L=100",
    "batch/ikbo_linear_compression":
        "--op ikbo_linear_compression --const M=54 --const N=32 --const Kc=108 --const Ku=147 --problem B=32,U=1",
    "batch/softmax": "--op softmax --dtype bf16 --const N=1024 --problem M=64",
    "batch/layer_norm": "--op layer_norm --const N=1024 --problem M=64",
    "batch/pffn": "--op pffn --const N=100 --const D=32 --const K=64 --problem B=4",
    "batch/optimized_fm": "--op optimized_fm --const N=24 --const D=64 --const K=160 --problem B=8",
}
# Of which space the compiled objects are.
OBJECTS = {n: n.removeprefix("batch/") for n in BATCH} | {"batch/conv1d": "held_out/conv1d"}


def physical_first(cpus):
    """CPUs of different physical cores first, then their siblings."""
    seen, first, rest = set(), [], []
    for c in sorted(cpus):
        try:
            core = open(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list").read().strip()
        except OSError:
            core = str(c)
        (rest if core in seen else first).append(c)
        seen.add(core)
    return first, rest


class Pool:
    """Runs jobs (key, argv) with one CPU each, until all are done or `until`; keys of those that succeeded."""

    def __init__(self, cpus, log):
        self.cpus, self.log = cpus, log

    def run(self, jobs, until):
        free, running, done = list(self.cpus), {}, set()
        jobs = list(jobs)
        while jobs or running:
            while jobs and free and time.time() < until:
                key, argv = jobs.pop(0)
                cpu = free.pop(0)
                p = subprocess.Popen(argv, stdout=self.log, stderr=self.log, start_new_session=True,
                                     preexec_fn=lambda cpu=cpu: os.sched_setaffinity(0, {cpu}))
                running[p] = (key, cpu)
            for p in list(running):
                if p.poll() is None:
                    continue
                key, cpu = running.pop(p)
                free.append(cpu)
                if p.returncode == 0:
                    done.add(key)
                else:
                    print(f"failed with {p.returncode}: {key}", flush=True)
            if time.time() >= until + 3:
                for p in running:
                    os.killpg(p.pid, 9)
                    p.wait()
                break
            time.sleep(0.05)
        return done


def describe(path):
    with open(path) as f:
        header = json.loads(f.readline())
        points_of = {}  # of each kernel, as RecordedSpace has them; the last column numbers it, where several points are one
        for i, line in enumerate(f):
            values = line.split()
            params = len(header["families"][int(values[0])]["params"])
            points_of.setdefault(values[params + 2] if len(values) > params + 2 else i, []).append(float(values[params + 1]))
        points = i + 1
        # Different measurements of one kernel; points that were recorded as one have one value.
        several = [v for v in ([math.log(x) for x in set(c) if x > 0] for c in points_of.values()) if len(v) > 1]
        freedom = sum(len(v) - 1 for v in several)
        squares = sum((x - sum(v) / len(v)) ** 2 for v in several for x in v)
        costs = [sorted(c)[len(c) // 2] for c in points_of.values()]
    passing = [c for c in costs if c > 0]
    within = sum(c <= 1.02 * min(passing) for c in passing)
    return {"space": header["space"], "note": header["note"], "points": points, "kernels": len(costs), "passing": len(passing),
            "best": min(passing), "median": statistics.median(passing), "within_1_02": within,
            "noise": math.sqrt(squares / freedom) if freedom else None,
            "random_evals_to_1_02": (len(costs) + 1) / (within + 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--scratch", default="/tmp/niche_spaces")
    parser.add_argument("--cpus", type=int, default=0, help="use so many of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--refinements", type=int, default=REFINEMENTS, help="0: a neighbour, as its session would see it")
    parser.add_argument("--only", action="append", default=[], metavar="NAME=VALUE", help="as record_space's")
    parser.add_argument("names", nargs="*")
    o = parser.parse_args()
    start = time.time()
    here = os.path.dirname(os.path.abspath(__file__))
    out = os.path.abspath(o.out)
    names = o.names or list(SPACES)
    cpus = sorted(os.sched_getaffinity(0))[:o.cpus or None]
    first, rest = physical_first(cpus)
    limits = ["--isa", "avx2"] if "avx512" in open("/proc/cpuinfo").read() else []
    limits += [x for r in o.only for x in ("--only", r)]
    log = open(os.path.join(out, "record.log"), "a")
    args, rounds, refined, compiled = {}, {}, {}, {}
    for n in names:
        scratch = os.path.join(o.scratch, OBJECTS.get(n, n))
        kept = os.path.join(scratch, n.replace("/", "."))  # of this problem
        os.makedirs(kept, exist_ok=True)
        os.makedirs(os.path.join(scratch, "objects"), exist_ok=True)
        os.makedirs(os.path.dirname(os.path.join(out, n)), exist_ok=True)
        compiler = os.path.join(scratch, "c++")
        shutil.copy(os.path.join(here, "remembering_compiler.sh"), compiler)
        os.chmod(compiler, 0o755)
        args[n] = [o.record, *(SPACES | NEAR | BATCH)[n].split(), *([] if n in AVX512 else limits), "--rounds", str(o.rounds), "--scratch", scratch, "--compiler", compiler]
        rounds[n] = [os.path.join(kept, f"round{r}") for r in range(1, o.rounds + 1)]
        refined[n] = [os.path.join(kept, f"refined{r}") for r in range(1, o.refinements + 1)]
    elapsed = lambda: f"{time.time() - start:5.0f} s"
    print(f"{elapsed()}: {len(cpus)} CPUs, {len(first)} physical; {limits}", flush=True)
    all_cpus, quiet = Pool(first + rest, log), Pool(first, log)
    parts = len(cpus)
    jobs = [((n, i), [*args[n], "--out", "/dev/null", "--compile-only", "--part", f"{i}/{parts}"])
            for n in names for i in range(parts)]
    done = all_cpus.run(jobs, start + 0.62 * o.seconds)
    ready = [n for n in names if all((n, i) in done for i in range(parts))]
    print(f"{elapsed()}: compiled: {ready}; not in time: {[n for n in names if n not in ready]}", flush=True)

    def pack(n):
        target = os.path.join(out, n + ".space")
        argv = [o.record, "--rounds", str(o.rounds), "--out", target]
        for f in rounds[n]:
            argv += ["--pack", f] if os.path.exists(f) else []
        for f in refined[n]:
            argv += ["--refined", f] if os.path.exists(f) else []
        subprocess.run(argv, check=True)
        subprocess.run([*args[n], "--out", target, "--number", target], check=True)

    jobs = [((n, r), [*args[n], "--out", rounds[n][r], "--round", str(r + 1)]) for r in range(o.rounds) for n in ready]
    done = quiet.run(jobs, start + 0.9 * o.seconds)
    ready = [n for n in ready if all((n, r) in done for r in range(o.rounds))]
    for n in ready:
        pack(n)
    print(f"{elapsed()}: rounds done: {ready}", flush=True)

    base = {n: [x for f in rounds[n] for x in ("--from", f)] for n in ready}
    again = [(n, r) for r in range(o.refinements) for n in ready]
    all_cpus.run([((n, r), [*args[n], "--out", "/dev/null", "--compile-only", "--refine", str(r + 1), *base[n]]) for n, r in again],
                 start + 0.96 * o.seconds)
    quiet.run([((n, r), [*args[n], "--out", refined[n][r], "--refine", str(r + 1), *base[n]]) for n, r in again],
              start + o.seconds)
    rows = []
    for n in ready:
        pack(n)
        rows.append(describe(os.path.join(out, n + ".space")))
        r = rows[-1]
        print(f"{n:36} {r['points']:6} points {r['passing']:6} pass  best {r['best']:.4f} median {r['median']:.4f}  "
              f"{r['within_1_02']:3} within 2 %, noise {'-' if r['noise'] is None else format(r['noise'], '.1%')}: random needs {r['random_evals_to_1_02']:.0f}"
              f"{'' if r['random_evals_to_1_02'] >= 100 and r['passing'] >= 2000 else '  TOO EASY'}  ({r['note']})")
    json.dump(rows, open(os.path.join(out, "spaces.json"), "w"), indent=1)
    print(f"{elapsed()}: done", flush=True)


if __name__ == "__main__":
    main()
