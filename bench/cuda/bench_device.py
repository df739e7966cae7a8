"""One GPU's measurements: buffers, correctness against fp64, graph and cold times, paired races."""
import math
import statistics
import time

import torch

from niche_device import Call, NicheError
from ops import DTYPES, OPS
from ops_defaults import DEFAULT_ATTRS

TARGET_BYTES = 200e6  # of buffers that one graph walks over: more than three times the L2
FLUSH_BYTES = 256 << 20


def tensors_of(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


class Bench:
    def __init__(self, niche, args, log):
        self.niche, self.args, self.log = niche, args, log
        torch.cuda.init()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch._dynamo.config.cache_size_limit = 256
        self.torch_version = torch.__version__
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        niche.open_device()
        log(f"device: {niche.device['class']}, {niche.device['driver']}, torch {torch.__version__}")
        self.last_kernel = None

    # --- copy floor

    def load_copies(self, copies, compiled):
        self.copies = [self.niche.load(c["id"], torch) for c, (_, built) in zip(copies, compiled) if "error" not in built]

    def copy_variants(self, bytes_moved, launches):
        words = max(4, int(bytes_moved / 2 / 16) * 4)
        sets = max(1, min(launches, int(8e9 / (2 * words * 4))))
        pairs = [(torch.empty(words, dtype=torch.int32, device="cuda").random_(), torch.empty(words, dtype=torch.int32, device="cuda"))
                 for _ in range(sets)]
        calls = [Call(p, [words // 4, 4]) for p in pairs]
        return calls

    # --- timing

    def graph(self, run, launches):
        """A graph of `launches` calls of run(i)."""
        for i in range(2):
            run(i)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=self.stream, capture_error_mode="thread_local"):
            kept = [run(i) for i in range(launches)]
        del kept
        g.replay()
        torch.cuda.synchronize()
        return g

    def replay_us(self, g, launches, times=1):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(times):
            g.replay()
        b.record()
        b.synchronize()
        return a.elapsed_time(b) * 1e3 / launches / times

    def cold_us(self, runs, times):
        """Interleaved single calls after a flush; medians."""
        events = {name: [] for name in runs}
        for i in range(times):
            for name, run in runs.items():
                self.flush.zero_()
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                run(i)
                b.record()
                events[name].append((a, b))
            torch.cuda.synchronize()
        return {name: statistics.median(a.elapsed_time(b) for a, b in list_) * 1e3 for name, list_ in events.items()}

    # --- correctness

    def errors(self, op, got, want):
        """(max, rms) of the error a tensor, NaN and infinities of the reference left out of it; inf where one is amiss."""
        out = []
        for g, w in zip(got, want):
            if not g.is_floating_point():
                out.append((0.0, 0.0) if torch.equal(g, w) else (math.inf, math.inf))
                continue
            d = (g.double() - w).abs()
            worst = d.max().item()
            out.append((worst, d.square().mean().sqrt().item()) if math.isfinite(worst) else (math.inf, math.inf))
        return out

    def within(self, op, mine, bar, want, dtype):
        for (worst, rms), (lib_worst, lib_rms), w in zip(mine, bar, want):
            if op.exact or not w.is_floating_point():
                if worst != 0:
                    return False
                continue
            top = w.abs().max().item()
            floor = op.floor_f32 if dtype == "f32" else 2.0 ** -11 * 2.0 ** -8 * max(top, 1e-30)
            if not (worst <= op.factor * lib_worst + floor and rms <= op.factor * lib_rms + floor):
                return False
        return True

    def poison(self, args, op):
        for o in op.outputs:
            t = args[o]
            t.view(torch.uint8).fill_(0xFF)  # NaN, or -1

    # --- one row

    def sweep(self, row, key, proposals, compiled, may_fit_none=False):
        """may_fit_none: that no candidate's Guard holds the shape is no error."""
        name, dtype, consts, var, in_table = row
        op, dt = OPS[name], DTYPES[dtype]
        attrs = DEFAULT_ATTRS.get(name, {})
        started = time.time()
        gen = torch.Generator(device="cuda")
        gen.manual_seed(1234)
        axes = op.extents(consts, var)
        first = op.make(axes, dt, attrs, gen)
        moved = op.bytes(first)
        launches = int(min(64, max(4, math.ceil(TARGET_BYTES / moved))))
        sets = [first]
        for _ in range(launches - 1):
            if len(sets) * moved > 12e9:
                break
            fresh = op.make(axes, dt, attrs, gen)
            for c in op.constant:
                fresh[c] = first[c]
            sets.append(fresh)
        want = op.reference(first, attrs)
        forms, compile_forms = op.forms(attrs)
        state = {"row": row, "key": key, "launches": launches, "sets": sets, "forms": {}, "moved": moved, "axes": axes}
        bars = {}
        for form, fn in forms.items():
            try:
                bars[form] = self.errors(op, tensors_of(fn(*first)), want)
                g = self.graph(lambda i, fn=fn: fn(*sets[i % len(sets)]), launches)
                us = statistics.median(self.replay_us(g, launches) for _ in range(5))
                state["forms"][form] = (us, fn)
            except Exception as e:
                self.log(f"{key}: form {form}: {type(e).__name__} {str(e)[:120]}")
        if not state["forms"]:
            raise NicheError("no library form ran")
        best = min(state["forms"], key=lambda f: state["forms"][f][0])
        calls = [Call(s, axes) for s in sets]
        good, wrong, refused = [], [], []
        for c, (_, built) in zip(proposals, compiled):
            if "error" in built:
                refused.append((c["name"], built["error"]))
                continue
            if not self.niche.holds(c["id"], var):
                continue
            if self.guard.known_bad(c["name"]):
                refused.append((c["name"], "hung before"))
                continue
            try:
                with self.guard.watch(c["name"]):
                    kernel = self.niche.load(c["id"], torch)
                    self.poison(first, op)
                    kernel(calls[0])
                    torch.cuda.synchronize()
            except NicheError as e:
                refused.append((c["name"], str(e)))
                continue
            mine = self.errors(op, [first[o] for o in op.outputs], want)
            if not self.within(op, mine, bars[best], want, dtype):
                wrong.append((c["name"], mine))
                continue
            g = self.graph(lambda i, k=kernel: k(calls[i % len(calls)]), launches)
            us = min(self.replay_us(g, launches) for _ in range(3))
            good.append((us, c, kernel, mine, built))
            del g
        good.sort(key=lambda x: x[0])
        notes = {b["note"] for _, b in compiled if b.get("note")}
        for n, e in (wrong[:2] + refused[:2] + [("note", n) for n in list(notes)[:1]]):
            self.log(f"{key}: refused {n}: {str(e)[:300]}")
        self.log(f"{key}: {len(good)} right, {len(wrong)} wrong, {len(refused)} refused of {len(proposals)}; "
                 f"best {good[0][0] if good else math.nan:.2f} us {good[0][1]['point'] if good else ''} | library "
                 f"{state['forms'][best][0]:.2f} ({best}) | {moved / 1e6:.1f} MB | {time.time() - started:.1f} s "
                 f"| {good[0][4]['kernels'] if good else ''}")
        state.update({"good": good[:5], "counts": (len(good), len(wrong), len(refused)), "bar": bars[best],
                      "bar_form": best, "compile_forms": compile_forms,
                      "ranking": [(round(u, 3), c["point"]) for u, c, *_ in good[:8]],
                      "times": {c["name"]: u for u, c, *_ in good}})
        # Buffers are made again for the race: a sweep over many rows must not hold them all.
        state["sets"] = None
        torch.cuda.empty_cache()
        if not good and not (may_fit_none and not wrong and not refused):
            raise NicheError(f"no candidate is right: {wrong[:1]} {refused[:1]}")
        return state

    def verify(self, state, kernel, ident):
        """The kernel at other extents of its variable axes, ragged ones among them, on fresh inputs."""
        name, dtype, consts, var, _ = state["row"]
        op, dt, attrs = OPS[name], DTYPES[dtype], DEFAULT_ATTRS.get(name, {})
        gen = torch.Generator(device="cuda")
        checked = []
        for seed, lead in enumerate([1, 2, 31, 127, 263, max(1, var[0] // 3), var[0]]):
            v = (lead,) + tuple(var[1:])
            if not self.niche.holds(ident, v):
                continue
            gen.manual_seed(99 + seed)
            axes = op.extents(consts, v)
            args = op.make(axes, dt, attrs, gen)
            want = op.reference(args, attrs)
            self.poison(args, op)
            kernel(Call(args, axes))
            torch.cuda.synchronize()
            mine = self.errors(op, [args[o] for o in op.outputs], want)
            form = op.forms(attrs)[0][state["bar_form"]]
            bar = self.errors(op, tensors_of(form(*args)), want)
            if not self.within(op, mine, bar, want, dtype):
                return checked, f"wrong at {v}: {mine} against {bar}"
            checked.append(list(v))
        return checked, None

    def race(self, state):
        name, dtype, consts, var, in_table = state["row"]
        key, launches, axes, moved = state["key"], state["launches"], state["axes"], state["moved"]
        op, dt, attrs = OPS[name], DTYPES[dtype], DEFAULT_ATTRS.get(name, {})
        started = time.time()
        verified = []
        for us, c, kernel, mine, built in state["good"]:
            checked, why = self.verify(state, kernel, c["id"])
            if why is None:
                verified.append((c, kernel, mine, built, checked))
            else:
                self.log(f"{key}: {c['name']} {why}")
        if not verified:
            raise NicheError("the best candidates are wrong at other extents")
        gen = torch.Generator(device="cuda")
        gen.manual_seed(4321)
        first = op.make(axes, dt, attrs, gen)
        sets = [first]
        while len(sets) < launches and len(sets) * moved < 12e9:
            fresh = op.make(axes, dt, attrs, gen)
            for i in op.constant:
                fresh[i] = first[i]
            sets.append(fresh)
        calls = [Call(s, axes) for s in sets]
        # The sweep's three replays do not tell the best few apart: they race each other first, on other data
        # and in other replays than the race that is reported.
        heats = [(self.graph(lambda i, k=v[1]: k(calls[i % len(calls)]), launches), [], v) for v in verified]
        for _ in range(11):
            for g, us, _ in heats:
                us.append(self.replay_us(g, launches))
        c, kernel, mine, built, checked = min(heats, key=lambda h: statistics.median(h[1]))[2]
        del heats
        forms = {f: fn for f, (_, fn) in state["forms"].items()}
        if self.args.compile:
            for f, fn in state["compile_forms"].items():
                mode = "max-autotune-no-cudagraphs" if in_table and name in ("conv1d", "pffn", "optimized_fm") else None
                torch._dynamo.reset()
                forms[f] = torch.compile(fn, dynamic=False, mode=mode)
        runs = {f: (lambda i, fn=fn: fn(*sets[i % len(sets)])) for f, fn in forms.items()}
        runs["niche"] = lambda i: kernel(calls[i % len(calls)])
        copy_calls = self.copy_variants(moved, launches)
        for n, k in enumerate(self.copies):
            runs[f"copy{n}"] = lambda i, k=k: k(copy_calls[i % len(copy_calls)])
        graphs = {}
        for f, run in list(runs.items()):
            try:
                graphs[f] = self.graph(run, launches)
            except Exception as e:
                self.log(f"{key}: {f} cannot be captured: {type(e).__name__} {str(e)[:200]}")
                del runs[f]
        samples = {f: [] for f in graphs}
        order = list(graphs)
        # Replays that make a sample of about half a millisecond.
        times = {f: max(1, min(20, int(500 / max(1.0, self.replay_us(g, 1))))) for f, g in graphs.items()}
        for _ in range(self.args.rounds):
            for f in order:
                samples[f].append(self.replay_us(graphs[f], launches, times[f]))
            order = order[1:] + order[:1]
        median = {f: statistics.median(s) for f, s in samples.items()}
        eager = next(iter(state["forms"]))
        compiled = [f for f in median if f.startswith("compiled")]
        library = min((f for f in median if f != "niche" and not f.startswith("copy")), key=median.get)
        # What the server answers with where no kernel is faster: not what only Python or spare memory gives.
        fallback = min((f for f in median if f != "niche" and not f.startswith(("copy", "compiled")) and f not in op.rivals_alone),
                       key=median.get)
        copy = min((f for f in median if f.startswith("copy")), key=median.get)
        ratios = sorted(a / b for a, b in zip(samples[library], samples["niche"]))
        # Order statistics that enclose the median with 95 %.
        n = len(ratios)
        low = max(0, int(n / 2 - 0.98 * math.sqrt(n)) - 1)
        cold = self.cold_us({f: runs[f] for f in {eager, library, "niche", copy}}, 25)
        del graphs
        r = {"key": key, "op": name, "problem": {**consts, **dict(zip(op.var, var))}, "dtype": dtype, "seen": True,
             "in_table": in_table, "eager_us": median[eager],
             "compiled_us": min((median[f] for f in compiled), default=None),
             "best_library_us": median[library], "best_library_form": library, "niche_us": median["niche"],
             "best_fallback_us": median[fallback], "best_fallback_form": fallback,
             "served_us": min(median["niche"], median[fallback]),
             "ratio": statistics.median(ratios), "ci_low": ratios[low], "ci_high": ratios[n - 1 - low],
             "copy_us": median[copy], "kernel": c["name"], "point": c["point"],
             "eager_us_cold": cold[eager], "best_library_us_cold": cold[library], "niche_us_cold": cold["niche"],
             "copy_us_cold": cold[copy], "forms_us": {f: round(m, 3) for f, m in median.items()},
             "bytes": moved, "launches_a_graph": launches, "rounds": n, "candidates": state["counts"],
             "ranking": state["ranking"], "error": mine, "library_error": state["bar"], "verified_at": checked,
             "resources": built["kernels"], "times_through": "launch_cuda"}
        self.log(f"{key}: niche {r['niche_us']:.2f} library {r['best_library_us']:.2f} ({library}) eager {r['eager_us']:.2f} "
                 f"copy {r['copy_us']:.2f} ratio {r['ratio']:.3f} [{r['ci_low']:.3f} {r['ci_high']:.3f}] cold "
                 f"{cold['niche']:.1f}/{cold[library]:.1f}/{cold[copy]:.1f} | {time.time() - started:.1f} s")
        self.last = (kernel, calls[0])
        state["good"] = None
        torch.cuda.empty_cache()
        return r

    def launch_cost(self):
        """Host ns a launch, through the Kernel and bare, alternated on an idle queue: medians of 200 bursts of 30."""
        kernel = self.copies[0]
        x, y = (torch.empty(4, dtype=torch.int32, device="cuda") for _ in range(2))
        call = Call((x, y), [1, 4])
        ns = {0: [], 1: []}
        for i in range(400):
            ns[i % 2].append(kernel.launch_ns(i % 2, 30, call))
            torch.cuda.synchronize()
        return {"niche_ns": statistics.median(ns[0]), "bare_ns": statistics.median(ns[1]),
                "niche_minus_bare_ns": statistics.median(a - b for a, b in zip(ns[0], ns[1]))}
