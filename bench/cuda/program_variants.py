"""Free-form CUDA programs (tests/fixtures/free_form_cuda) in other settings: the enumerators at the top of a text are replaced, and
the launch line is worked out anew. `program_variants.py ROW` says what a program's own launch line has to be."""
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = (os.path.join(HERE, "free_form_cuda"), os.path.join(HERE, "../../tests/fixtures/free_form_cuda"))


def program_of(row):
    """The program of the recorded answer `row`/1.reply.md."""
    for folder in FOLDERS:
        path = os.path.join(folder, row, "1.reply.md")
        if os.path.exists(path):
            with open(path) as f:
                return re.search(r"<CODE>\n(.*)</CODE>", f.read(), re.S).group(1)
    raise FileNotFoundError(row)


def conv1d(v):
    threads = 32 * 4 * (v["CO"] // 16 // v["MW"])
    pitch = (v["SPAN"] + 23) // 16 * 16 + 8
    words = v["CO"] * (v["CI"] * v["K"] + 4) + v["STAGES"] * v["CHUNK"] * pitch
    return f"grid=B*Lo/{v['SPAN']} threads={threads} shared={words * 4} per_sm=1"


def pffn(v):
    tiles, dp, chunk = (v["N"] + 15) // 16, (v["D"] + 7) // 8 * 8, v["GROUPS"] * v["GROUP_TILES"] * 8
    w1 = chunk if chunk % 16 == 8 else chunk + 8
    words = tiles * 16 * (dp + 4) + v["STAGES"] * (dp * w1 + chunk * (dp + 4))
    left = (v["GROUPS"] - 1) * tiles * (16 * (dp + 8) + 16)
    return f"grid=B threads={tiles * v['GROUPS'] * 32} shared={max(words, left) * 4} per_sm={v['BLOCKS']}"


def optimized_fm(v):
    np, kp = (v["N"] + 15) // 16 * 16, (v["N"] + 7) // 8 * 8
    m = np // 16
    x, grams = np * ((v["D"] + 7) // 8 * 8 + 4), 4 * m * (m + 1) * 128 + 2 * np * (kp + 4)
    pitch = v["TILE"] if v["TILE"] % 16 == 8 else v["TILE"] + 8
    words = max(x, grams) + v["STAGES"] * kp * pitch
    return f"grid=B*K/{v['TILE'] * v['TILES']} threads={v['WARPS'] * 32} shared={words * 4}"


LAUNCH = {"conv1d": conv1d, "pffn": pffn, "optimized_fm": optimized_fm}


def variant(op, text, settings):
    """The text with these enumerators and its own launch line."""
    for name, value in settings.items():
        text, count = re.subn(rf"\b{name} = -?\d+", f"{name} = {value}", text, count=1)
        if count != 1:
            raise ValueError(f"{op}: no enumerator {name}")
    heads = re.findall(r"enum : int \{ ([^}]*) \};", text)[:2]
    values = {n: int(x) for head in heads for n, x in re.findall(r"(\w+) = (-?\d+)", head)}
    return re.sub(r"// niche: phase run .*", "// niche: phase run " + LAUNCH[op](values), text, count=1)


def listed(names, *tuples):
    return [dict(zip(names, t)) for t in tuples]


PFFN_NAMES = ("GROUPS", "GROUP_TILES", "STAGES", "BLOCKS", "ROUND_W")
FM_NAMES = ("WARPS", "TILE", "TILES", "STAGES", "BLOCKS")
SETTINGS = {
    "conv1d": listed(("MW", "STAGES", "ROUND_X"), (3, 4, 0), (3, 8, 0), (2, 5, 0), (2, 8, 0), (3, 8, 1), (3, 3, 0)),
    "pffn_150": listed(PFFN_NAMES, (1, 2, 3, 2, 0), (1, 2, 2, 2, 0), (1, 6, 2, 1, 0), (1, 3, 3, 1, 0), (1, 3, 2, 2, 0), (2, 3, 2, 1, 0), (1, 1, 4, 2, 0),
                       (1, 2, 3, 2, 1)),
    "pffn_37": listed(PFFN_NAMES, (5, 3, 1, 1, 0), (3, 5, 1, 1, 0), (1, 3, 2, 3, 0), (3, 1, 2, 2, 0), (5, 1, 3, 1, 0), (1, 5, 1, 4, 0), (1, 5, 2, 2, 0)),
    "optimized_fm_40": listed(FM_NAMES, (8, 112, 4, 3, 2), (8, 112, 4, 2, 2), (8, 64, 7, 3, 2), (4, 112, 4, 3, 2), (4, 224, 1, 1, 2), (8, 224, 1, 1, 2),
                              (8, 224, 2, 2, 1), (4, 64, 7, 4, 3), (8, 64, 4, 3, 2)),
    "optimized_fm_24": listed(FM_NAMES, (4, 128, 9, 4, 2), (4, 128, 9, 3, 3), (8, 256, 5, 2, 2), (8, 256, 5, 3, 2), (4, 64, 18, 4, 4), (4, 128, 6, 3, 3),
                              (8, 128, 9, 4, 2), (4, 128, 18, 4, 2), (4, 256, 5, 3, 2)),
}


def row_of(op, consts):
    """The folder of a row's answer."""
    return op if op == "conv1d" else f"{op}_{consts['N']}"


def variants(op, consts):
    """[(name, text)] of a row: the settings that are worth a look, the recorded one first."""
    row = row_of(op, consts)
    text = program_of(row)
    return [("_".join(f"{k.lower()}{v}" for k, v in s.items()), variant(op, text, s)) for s in SETTINGS[row]]
