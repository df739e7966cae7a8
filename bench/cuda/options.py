"""The command lines of the scripts that run on a GPU machine: an option that several have is described here, once."""
import argparse
import math
import os


def whole(least):
    """A whole number, not below `least`."""
    def parse(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least:
            raise argparse.ArgumentTypeError(f"'{text}' is not a whole number, {least} or more")
        return value
    return parse


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return value


OPTIONS = {
    "library": dict(required=True, help="libniche_cuda_bench.so"),
    "out": dict(required=True, help="results, as JSON; what is in the file already is left out"),
    "cache": dict(default="/tmp/niche_cubins", help="directory of compiled kernels"),
    "nvrtc": dict(default="", help="NVRTC's library; default: the one of torch"),
    "ops": dict(default="", help="comma-separated: these operators alone"),
    "points": dict(type=whole(1), help="candidates a family and row"),
    "rounds": dict(type=whole(1), help="of a race"),
    "seconds": dict(type=positive, help="start no row after this time"),
    "hang": dict(type=positive, default=20, help="seconds until a candidate's first run counts as hung"),
    "jobs": dict(type=whole(1), default=max(1, (os.cpu_count() or 2) - 2), help="processes that compile"),
    "compile": dict(type=int, choices=(0, 1), default=1, help="0: leave torch.compile out"),
    "commit": dict(default="", help="of the sources, for the results"),
}


def parser(description, *names, **defaults):
    """A parser with these options of OPTIONS; `defaults` has the script's own."""
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in names:
        p.add_argument("--" + name, **{**OPTIONS[name], **({"default": defaults.pop(name)} if name in defaults else {})})
    assert not defaults, defaults
    return p
