"""What a kernel that was found at some shapes loses at others: the arithmetic of regret.py, without a GPU.

A region is served by the kernel that is quickest over the shapes that were seen (geometric mean; a kernel that does not
run at one of them is none). At a shape that nobody saw its regret is its time over that of the quickest kernel there, and
its ratio what the best library form takes over it. Below 1 the table would lose by serving it there."""
import math
import statistics


def region_kernel(seen):
    """The name that is best over `seen`: one {name: us} a shape. None: no kernel runs at all of them."""
    common = set.intersection(*(set(times) for times in seen)) if seen else set()
    return min(common, key=lambda n: (sum(math.log(times[n]) for times in seen), n), default=None)


def at_unseen(kernel, times, library_us):
    """{regret, ratio} of `kernel` at one shape; regret None: it does not run there, and the library serves."""
    if kernel not in times:
        return {"regret": None, "ratio": 1.0, "niche_us": None, "best_us": min(times.values(), default=None),
                "library_us": library_us}
    best = min(times.values())
    return {"regret": times[kernel] / best, "ratio": library_us / times[kernel], "niche_us": times[kernel],
            "best_us": best, "best": min(times, key=times.get), "library_us": library_us}


def summary(points):
    """Over all shapes of all rows at which a kernel ran."""
    regrets = sorted(p["regret"] for p in points if p["regret"] is not None)
    if not regrets:
        return {"shapes": len(points), "served": 0}
    return {"shapes": len(points), "served": len(regrets),
            "regret_geomean": math.exp(statistics.fmean(math.log(r) for r in regrets)),
            "regret_worst": regrets[-1], "regret_p90": regrets[min(len(regrets) - 1, int(len(regrets) * 0.9))],
            "slower_than_library": sum(1 for p in points if p["regret"] is not None and p["ratio"] < 0.98)}
