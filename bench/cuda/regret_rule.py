"""What the table loses at shapes that nobody measured: the arithmetic of regret.py, without a GPU.

Kernels are committed for the shapes that were seen: the quickest at each, and the quickest over all. An unseen shape is
served as the runtime does it (runtime/route_board.h): by the regions that the measured shapes span (`regions`, niche_device.py);
where those say nothing, by the committed kernel whose gain at every seen shape is large enough to count anywhere; else by
the library. Its regret is its time over that of the quickest of all candidates there, its ratio what the best library form
takes over it: below 1 the table loses by serving it."""
import math
import statistics

LIBRARY, NOTHING_NEAR = -1, -2


def committed(seen):
    """Names, best overall first. `seen`: one {name: us} a shape."""
    common = set.intersection(*(set(times) for times in seen)) if seen else set()
    over_all = sorted(common, key=lambda n: (sum(math.log(times[n]) for times in seen), n))[:1]
    at_each = [min(times, key=lambda n: (times[n], n)) for times in seen if times]
    return list(dict.fromkeys(over_all + at_each))


def reaching(names, seen, library, far_margin):
    """Those of `names` that gain so much at every seen shape at which they run that it counts anywhere."""
    def gains(n):
        return [us / times[n] for times, us in zip(seen, library) if n in times]
    return [n for n in names if gains(n) and min(gains(n)) > 1 + far_margin]


def at_unseen(kernel, times, library_us):
    """{regret, ratio} of `kernel` at one shape; None, or one that does not run there: the library serves."""
    best = min(times.values(), default=None)
    if kernel is None or kernel not in times:
        return {"kernel": None, "regret": None, "ratio": 1.0, "niche_us": None, "best_us": best, "library_us": library_us}
    return {"kernel": kernel, "regret": times[kernel] / best, "ratio": library_us / times[kernel], "niche_us": times[kernel],
            "best_us": best, "best": min(times, key=times.get), "library_us": library_us}


def summary(points):
    """Over all unseen shapes of all rows; regret over those that a kernel served."""
    regrets = sorted(p["regret"] for p in points if p["regret"] is not None)
    if not regrets:
        return {"shapes": len(points), "served": 0}
    return {"shapes": len(points), "served": len(regrets),
            "gain_geomean": math.exp(statistics.fmean(math.log(p["ratio"]) for p in points)),
            "regret_geomean": math.exp(statistics.fmean(math.log(r) for r in regrets)),
            "regret_worst": regrets[-1], "regret_p90": regrets[min(len(regrets) - 1, int(len(regrets) * 0.9))],
            "slower_than_library": sum(1 for p in points if p["regret"] is not None and p["ratio"] < 0.98)}
