#!/usr/bin/env python3
"""The `niche` program's refusals and ends: typing errors that must change nothing, signals, a session that was killed.

usage: cli_test.py NICHE SOURCE_DIR
"""
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile

from niche_program import NICHE, SECONDS, SOURCE, niche

KERNEL = """// niche: phase run tasks=M{words}
extern "C" void run(const void* raw, long begin, long end) { (void)raw, (void)begin, (void)end; }
"""


def tending_a_cache_that_is_not_there_makes_none(directory):
    typo = os.path.join(directory, "cahce")
    for command in (["prune"], ["verify", "--remove"]):
        done = niche("cache", *command, "--cache", typo, expect=1)
        assert "no cache of kernels is there" in done.stderr and typo in done.stderr, done.stderr
        assert not os.path.exists(typo), f"{command} made {typo}"


def a_problem_names_each_variable_axis_once(directory):
    kernel = os.path.join(directory, "kernel.cc")
    with open(kernel, "w", encoding="ascii") as f:
        f.write(KERNEL.replace("{words}", ""))
    op = ["--op", "rms_norm", "--const", "N=1024"]
    for problem, says in (("M=16,Q=3", "no variable axis 'Q'"), ("M=16,N=8", "no variable axis 'N'"),
                          ("M=16,M=17", "axis 'M' is given twice"), ("Q=16", "axis 'M' is missing")):
        for command in (["evaluate", kernel], ["evolve", "--cache", os.path.join(directory, "none")]):
            done = niche(*command, *op, "--problem", problem, expect=2)
            assert says in done.stderr, (command, problem, done.stderr)
    done = niche("evolve", "--cache", os.path.join(directory, "none"), *op, "--problem", "M=16:x", expect=2)
    assert "weight" in done.stderr, done.stderr
    for value in ("-9", "0", "x"):
        with open(kernel, "w", encoding="ascii") as f:
            f.write(KERNEL.replace("{words}", f" parallel_min={value}"))
        done = niche("evaluate", kernel, *op, "--problem", "M=16", expect=2)
        assert f"'parallel_min={value}'" in done.stderr, done.stderr


class Evolving:
    """`niche evolve` that has begun to try candidates."""

    def __init__(self, cache):
        self.process = subprocess.Popen(
            [NICHE, "evolve", "--op", "rms_norm", "--const", "N=1024", "--problem", "M=64", "--seconds", "100", "--cache", cache],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        text = ""
        while " tried" not in text:
            piece = self.process.stderr.read(1)
            assert piece, f"it ended: {text}"
            text += piece

    def end(self):
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out + err


def the_first_signal_ends_a_session_and_the_second_the_program(cache):
    session = Evolving(cache)
    session.process.send_signal(signal.SIGINT)
    code, text = session.end()
    assert code == 0 and "stopped after" in text, (code, text)
    session = Evolving(cache)
    # Two different ones: of one number, a second that comes before the first was taken is no second.
    session.process.send_signal(signal.SIGINT)
    session.process.send_signal(signal.SIGTERM)
    code, text = session.end()
    assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM) and "leaving at once" in text, (code, text)


def a_killed_session_is_shown_as_killed(cache):
    session = Evolving(cache)
    rows = niche("sessions", "--cache", cache, expect=0).stdout.splitlines()
    assert " running " in rows[1], rows
    session.process.send_signal(signal.SIGKILL)
    session.end()
    rows = niche("sessions", "--cache", cache, expect=0).stdout.splitlines()
    assert " killed " in rows[1], rows


def a_missing_cache_is_an_error_and_is_not_made(directory):
    typo = os.path.join(directory, "no", "cahce")
    explain = ["explain", "--op", "rms_norm", "--const", "N=1024", "M=4"]
    archive = os.path.join(directory, "archive")
    for command in (explain, ["cache", "list"], ["cache", "verify"], ["cache", "export", archive], ["sessions"], ["tree"],
                    ["export"], ["kb", "skills"]):
        done = niche(*command, "--cache", typo, expect=1)
        assert typo in done.stderr and done.stdout == "", (command, done.stdout, done.stderr)
        assert not os.path.exists(os.path.dirname(typo)) and not os.path.exists(archive), command
    empty = os.path.join(directory, "empty")
    os.mkdir(empty, 0o700)
    done = niche(*explain, "--cache", empty, expect=0)
    assert "nothing of this environment" in done.stdout and "is there yet" in done.stdout, done.stdout
    assert "unusable" not in done.stdout and done.stderr == "", (done.stdout, done.stderr)
    assert os.listdir(empty) == [], os.listdir(empty)


def what_lies_in(directory):
    found = {}
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            with open(path, "rb") as f:
                found[name] = (os.stat(path).st_mtime_ns, f.read())
    return found


READING = (["sessions"], ["tree"], ["export"], ["kb", "skills"])


def looking_changes_nothing_and_takes_no_right_to_write(cache):
    """`cache` holds a session that was killed, with its log, and skills."""
    # As somebody else, who may read it and no more; root may write anywhere and becomes nobody.
    os.chmod(cache, 0o555)
    os.chmod(os.path.dirname(cache), 0o755)
    before = what_lies_in(cache)
    assert "trajectories.sqlite-wal" in before, before.keys()
    for command in READING:
        own = niche(*command, "--cache", cache, expect=0)
        user = {"user": 65534} if os.getuid() == 0 else {}
        other = subprocess.run([NICHE, *command, "--cache", cache], capture_output=True, text=True, timeout=SECONDS, **user)
        assert (other.returncode, other.stdout, other.stderr) == (0, own.stdout, own.stderr), (command, other, own)
        assert what_lies_in(cache) == before, command
    os.chmod(cache, 0o700)


def all_sessions_are_exported(directory, cache):
    many = os.path.join(directory, "many")
    shutil.copytree(cache, many)
    db = sqlite3.connect(os.path.join(many, "trajectories.sqlite"))
    for n in range(70):
        for table in ("sessions", "nodes"):
            row = list(db.execute(f"SELECT * FROM {table} LIMIT 1").fetchone())
            row[0] = f"copy{n}"  # of both the first column
            db.execute(f"INSERT INTO {table} VALUES({','.join('?' * len(row))})", row)
    db.commit()
    db.close()
    lines = [json.loads(line) for line in niche("export", "all", "--cache", many, expect=0).stdout.splitlines()]
    assert sum(line["session"].startswith("copy") for line in lines) == 70, len(lines)
    lines = niche("export", "all", "--limit", "3", "--cache", many, expect=0).stdout.splitlines()
    assert len({json.loads(line)["session"] for line in lines}) == 3, len(lines)


def an_empty_file_is_no_store(directory):
    empty = os.path.join(directory, "zero")
    os.mkdir(empty, 0o700)
    for name in ("trajectories.sqlite", "skills.sqlite"):
        open(os.path.join(empty, name), "w").close()
    before = what_lies_in(empty)
    for command in READING:
        done = niche(*command, "--cache", empty, expect=1)
        assert "empty" in done.stderr and empty in done.stderr and done.stdout == "", (command, done.stderr)
        assert what_lies_in(empty) == before, command


def what_cannot_be_written_is_an_error(directory, cache):
    printing = [[*command, "--cache", cache] for command in READING[:3]]  # whether there are skills is chance
    printing += [["config"], ["kb", "list"], ["kb", "search", "row"], ["cache", "list", "--cache", cache], ["--help"], ["--version"],
                 ["explain", "--op", "rms_norm", "--const", "N=1024", "--cache", cache, "M=64"]]
    for command in printing:
        with open("/dev/full", "w") as full:
            done = subprocess.run([NICHE, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=SECONDS)
        assert done.returncode == 1 and "standard output" in done.stderr, (command, done.returncode, done.stderr)
    for command in (["tree", "--html"], ["export", "--out"]):
        done = niche(*command, "/dev/full", "--cache", cache, expect=1)
        assert "/dev/full: No space left on device" in done.stderr and done.stdout == "", (command, done.stdout, done.stderr)
        nowhere = os.path.join(directory, "no", "such", "place")
        done = niche(*command, nowhere, "--cache", cache, expect=1)
        assert nowhere in done.stderr and done.stdout == "", (command, done.stdout, done.stderr)


def an_operator_without_a_family_needs_a_proposer(directory):
    cache = os.path.join(directory, "own")
    own = ["--definition", SOURCE + "/examples/user_ops/squared_relu.json", "--cache", cache]
    done = niche("evolve", *own, "--problem", "M=64", "--seconds", "60", expect=1)
    assert "no template family of 'squared_relu'" in done.stderr and "no proposer" in done.stderr, done.stderr
    shown = niche("explain", *own, "M=64", expect=0).stdout
    assert "no family and no proposer" in shown, shown


def typing_errors_name_what_is_near():
    for words, near in ((["evolv"], "'evolve'"), (["cache", "lst"], "'list'"),
                        (["evolve", "--optoin-that-is-far"], None), (["evolve", "--proposr", "exec:x"], "'--proposer'"),
                        (["explain", "--op-libary=x", "M=1"], "'--op-library'")):
        done = niche(*words, expect=2)
        said = "did you mean " + (near or "")
        assert (said in done.stderr) == (near is not None), (words, done.stderr)


def values_that_cannot_be_are_told_before_anything_starts(directory):
    cache = os.path.join(directory, "never")
    evolve = ["evolve", "--problem", "M=4", "--cache", cache]
    norm = ["--op", "rms_norm", "--const", "N=64"]
    for words, code, says in (
            ([*evolve, "--op", "rms_nrom"], 1, ("'rms_nrom'", "did you mean 'rms_norm'?")),
            ([*evolve, "--op", "entirely_else"], 1, ("there are:", " softmax", "--op-library")),
            ([*evolve, *norm, "--dtype", "i64"], 1, ("i64", "lists: f32 f16 bf16")),
            ([*evolve, *norm, "--threads", "9999"], 2, ("--threads", "9999", "not in range")),
            ([*evolve, *norm, "--threads", "0"], 2, ("--threads",)),
            ([*evolve, *norm, "--device", "gpu"], 2, ("--device", "'gpu'", "cpu or cuda:N")),
            ([*evolve, *norm, "--device", "cuda:"], 2, ("'cuda:'", "cpu or cuda:N")),
            ([*evolve, *norm, "--seconds", "-3"], 2, ("--seconds", "'-3' is not a number above 0")),
            ([*evolve, *norm, "--seconds", "nan"], 2, ("'nan' is not a number above 0",)),
            ([*evolve, *norm, "--model-budget", "-1"], 2, ("'-1' is not 0 or a number above it",)),
            *(([*evolve, *norm, flag, value], 2, (flag, f"'{value}' is not")) for flag, value in (
                ("--seconds", "inf"), ("--seconds", "1e300"), ("--seconds", "5x"), ("--seconds", "0x5"), ("--target", "nan"),
                ("--evaluations", "1.5"), ("--evaluations", "99999999999999999999"), ("--seed", "-1"), ("--seed", "1e3"),
                ("--seed", "18446744073709551616"), ("--questions", "-1"), ("--model-tokens", "nan"), ("--answer-seconds", "nan"))),
            ([*evolve, *norm, "--target", "-1"], 2, ("--target", "'-1' is not 0 or a number above it")),
            (["evolve", "--problem", "M=0", "--cache", cache, *norm], 2, ("axis 'M' is 0", "at least 1")),
            (["evolve", "--problem", "M=-4", "--cache", cache, *norm], 2, ("axis 'M' is -4",)),
            (["evolve", "--problem", "M=4:0x2", "--cache", cache, *norm], 2, ("weight",)),
            (["evolve", "--problem", "M= 4", "--cache", cache, *norm], 2, ("NAME=NUMBER",)),
            (["kb", "search", "--metric", "dram_pct=lots", "row"], 2, ("'dram_pct=lots'",)),
            (["kb", "search", "--metric", "dram_pct=nan", "row"], 2, ("'dram_pct=nan'",)),
            (["kb", "search", "--bytes", "-1", "row"], 2, ("--bytes", "'-1' is not a whole number")),
            (["sessions", "--limit", "0", "--cache", cache], 2, ("--limit",)),
            (["export", "--limit", "nan", "--cache", cache], 2, ("--limit",)),
            (["cache", "prune", "--unserved-days", "nan", "--cache", cache], 2, ("'nan' is not a number from 0 to 36500",)),
            (["cache", "prune", "--bytes", "-5", "--cache", cache], 2, ("--bytes", "'-5' is not a whole number")),
            (["replay", "/dev/null", "--rate", "nan"], 2, ("--rate", "'nan' is not a number from 0")),
            (["replay", "/dev/null", "--tokens-per-event", "inf"], 2, ("--tokens-per-event", "'inf' is not a number")),
            (["cache", "prune", "--unserved-days", "-3", "--cache", cache], 2, ("--unserved-days",)),
            (["explain", *norm, "M=4"], 2, ("which cache?", "NICHE_CACHE_DIR")), (["evolve"], 2, ("--cache",))):
        done = niche(*words, expect=code)
        assert all(text in done.stderr for text in says), (words, done.stderr)
        assert len(done.stderr) < 500 and done.stdout == "", (words, done.stdout, done.stderr)
    assert not os.path.exists(cache)


def a_server_that_does_not_answer_is_named(directory):
    trace = os.path.join(directory, "trace.csv")
    with open(trace, "w", encoding="ascii") as f:
        f.write("TIMESTAMP,ContextTokens,GeneratedTokens\n" +
                "".join(f"2023-11-16 18:17:0{second}.0000000,100,10\n" for second in range(4)))
    with socket.socket() as held:  # bound and not listening: nobody else gets the port, and nobody answers
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        done = niche("replay", trace, "--port", str(port), expect=1)
    said = rf"4 of 4 requests failed; the first: request [1-4] to 127\.0\.0\.1:{port}/rank: no answer"
    assert re.search(said, done.stderr), done.stderr
    assert f"127.0.0.1:{port}" in json.loads(done.stdout)["first_failure"], done.stdout


def every_key_is_told():
    text = niche("config", expect=0).stdout
    for key in ("cache_dir", "proposer_usd_max", "http_address"):
        assert f"\n{key}\n" in text and f"NICHE_{key.upper()}" in text, key
    assert "int 1048576..1000000000000000 bytes; default: 4294967296; NICHE_CACHE_BYTES_MAX" in text, text


def main():
    directory = tempfile.mkdtemp(prefix="niche-cli-")
    cache = os.path.join(directory, "cache")
    try:
        tending_a_cache_that_is_not_there_makes_none(directory)
        a_problem_names_each_variable_axis_once(directory)
        the_first_signal_ends_a_session_and_the_second_the_program(cache)
        a_killed_session_is_shown_as_killed(cache)
        looking_changes_nothing_and_takes_no_right_to_write(cache)
        all_sessions_are_exported(directory, cache)
        an_empty_file_is_no_store(directory)
        what_cannot_be_written_is_an_error(directory, cache)
        a_missing_cache_is_an_error_and_is_not_made(directory)
        an_operator_without_a_family_needs_a_proposer(directory)
        typing_errors_name_what_is_near()
        values_that_cannot_be_are_told_before_anything_starts(directory)
        a_server_that_does_not_answer_is_named(directory)
        every_key_is_told()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print("all held")


if __name__ == "__main__":
    main()
