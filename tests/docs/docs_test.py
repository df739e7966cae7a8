#!/usr/bin/env python3
"""What README.md and docs/ say holds: links lead somewhere, commands and options exist, blocks of commands run.

usage: docs_test.py text SOURCE_DIR              what needs no program: links, names of metrics, benchmarks, operators, keys
       docs_test.py options SOURCE_DIR NICHE     every `niche COMMAND --option` that a page mentions exists
       docs_test.py commands SOURCE_DIR BIN_DIR  runs each page's ```sh blocks, in order, in one scratch directory a page

A block that is not run stands after a line `<!-- not run: REASON -->`; one that wants a program that a machine may lack, after
`<!-- needs: PROGRAM -->`. The scratch directory holds a link to examples/.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PAGE_SECONDS = 400


def pages(root):
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), *sorted((root / "examples").rglob("*.md"))]


def prose(text):
    """The page without its blocks: links are looked for there."""
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def links_lead_somewhere(root):
    count = 0
    for page in pages(root):
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            to = (page.parent / path).resolve() if path else page
            assert to.exists(), f"{page}: link to {target}: no such file"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", to.read_text(encoding="utf-8"), re.M)
                names = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
                assert anchor in names, f"{page}: link to {target}: no such heading"
            count += 1
    assert count > 20, count
    return f"{count} links"


def the_metrics_are_those_of_the_runtime(root):
    emitted = set()
    for source in (root / "runtime").glob("*.cc"):
        emitted |= set(re.findall(r'm\.(?:counter|gauge)\(\s*"(niche_\w+)"', source.read_text(encoding="utf-8")))
    text = (root / "docs/operating.md").read_text(encoding="utf-8")
    table = text[text.index("## Metrics"):text.index("Reasons of `niche_fallback_calls_total`")]
    listed = set(re.findall(r"`(niche_[a-z_0-9]+)", table))
    assert emitted and emitted <= listed, f"docs/operating.md lacks {emitted - listed}"
    mentioned = {m for page in ("operating", "runtime") for m in re.findall(
        r"`(niche_[a-z0-9_]+)(?:`|\{| [=<>])", (root / f"docs/{page}.md").read_text(encoding="utf-8"))}
    assert mentioned <= listed, f"docs/operating.md does not list {mentioned - listed}"
    reasons = re.search(r"kReasonNames\[\] = \{(.*?)\}", (root / "dispatch/fallback_reason.cc").read_text(encoding="utf-8"), re.S)
    names = set(re.findall(r'"(\w+)"', reasons.group(1))) - {"none"}
    rows = text[text.index("Reasons of `niche_fallback_calls_total`"):text.index("## Configuration")]
    told = {r for row in re.findall(r"^\| (`.*?) \|", rows, re.M) for r in re.findall(r"`(\w+)`", row)}
    assert told == names, f"reasons: docs/operating.md lacks {names - told}, and has {told - names}"
    return f"{len(emitted)} metrics, {len(names)} reasons"


def benchmarks_exist(root):
    rows = [line.split(" | ") for line in (root / "bench/benchmarks.txt").read_text(encoding="utf-8").splitlines() if "|" in line]
    listed = {row[0] for row in rows}
    targets = set()
    for lists in (root / "bench").glob("*/CMakeLists.txt"):
        if lists.parent.name != "cuda":
            targets |= set(re.findall(r"add_executable\((\w+)", lists.read_text(encoding="utf-8")))
    targets -= {"record_space", "record_regions"}  # they record what benchmarks read
    made = {t.removeprefix("bench_") for t in targets} | {s.stem for s in (root / "bench").glob("*.sh")}
    assert listed == made, f"bench/benchmarks.txt lacks {made - listed}, and has {listed - made}"
    for page in pages(root):
        for name in re.findall(r"\./dev bench (\w+)", page.read_text(encoding="utf-8")):
            assert name in listed, f"{page}: ./dev bench {name}: no such benchmark"
    return f"{len(listed)} benchmarks"


def each_operator_has_its_page(root):
    ops = set()
    for row in re.findall(r"^\| (`\w+`.*?) \| ", (root / "docs/operators.md").read_text(encoding="utf-8").split("## Formulas")[0], re.M):
        ops |= set(re.findall(r"`(\w+)`", row))
    told = set()
    for page in (root / "kb/documents/constraints").glob("op_*.md"):
        told |= set(re.findall(r"^op: (\w+)$", page.read_text(encoding="utf-8"), re.M))
    assert len(ops) > 15 and ops <= told, f"kb/documents/constraints has no page for {ops - told}"
    return f"{len(ops)} operators"


def kernel_files_names_each_field(root):
    text = (root / "docs/kernel_files.md").read_text(encoding="utf-8")
    fields = set(re.findall(r'\{"(\w+)", ', (root / "evolve/verdict.cc").read_text(encoding="utf-8")))
    directives = set(re.findall(r"^//   // niche: (\w+)", (root / "evolve/candidate_text.h").read_text(encoding="utf-8"), re.M))
    assert len(fields) > 15 and len(directives) > 6
    for name in fields - {"var"}:
        assert f"`{name}`" in text, f"docs/kernel_files.md does not tell of the Verdict's '{name}'"
    for name in directives:
        assert f"`// niche: {name}" in text, f"docs/kernel_files.md does not tell of '// niche: {name}'"
    return f"{len(fields)} fields, {len(directives)} directives"


def options(root, niche):
    """Options behind `niche COMMAND` in prose, in blocks and in indented lines."""
    known, count = {}, 0

    def options_of(command):
        if command not in known:
            done = subprocess.run([niche, *command, "--help"], capture_output=True, text=True, timeout=60)
            known[command] = set(re.findall(r"(--[a-z][a-z-]*)", done.stdout)) if done.returncode == 0 else None
        return known[command]

    groups = {"cache", "kb"}
    inner = {"worker", "probe", "proposer"}  # processes, not commands for people
    for page in pages(root):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for rest in re.findall(r"(?:`|^ *|\| )niche ((?:[a-z]+)[^`\n]*)", text, re.M):
            words = rest.split()
            if words[0] in inner or not re.fullmatch(r"[a-z]+", words[0]):
                continue
            command = tuple(words[:2]) if words[0] in groups and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]) else (words[0],)
            if options_of(command) is None:
                # A sentence that begins a line with the name, not a command.
                assert not re.search(r"`niche " + re.escape(words[0]), text), f"{page}: `niche {' '.join(command)}`: no such command"
                continue
            for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", rest.split(" #")[0]):
                assert option in options_of(command), f"{page}: niche {' '.join(command)} has no {option}"
                count += 1
    assert count > 20, count
    print(f"{count} options of {sum(v is not None for v in known.values())} commands")


def blocks(page):
    """(line, commands, reason not to run, program needed) of each ```sh block."""
    lines, out = page.read_text(encoding="utf-8").splitlines(), []
    at = 0
    while at < len(lines):
        if lines[at].strip() == "```sh":
            end = lines.index("```", at + 1)
            before = lines[at - 1] if at else ""
            skip, needs = re.match(r"<!-- not run: (.+) -->", before), re.match(r"<!-- needs: (\S+) -->", before)
            out.append((at + 1, "\n".join(lines[at + 1:end]), skip and skip.group(1), needs and needs.group(1)))
            at = end
        at += 1
    return out


def commands(root, binaries):
    ran = 0
    environment = {k: v for k, v in os.environ.items() if not k.startswith("NICHE_")}
    environment["PATH"] = f"{binaries}:{environment['PATH']}"
    for page in pages(root):
        script = "set -eu\n"
        for line, text, skip, needs in blocks(page):
            if not skip and needs and shutil.which(needs) is None:
                skip = f"{needs} is not installed"
            if skip:
                print(f"{page.name}:{line}: not run: {skip}")
                continue
            script += f"echo '--- {page.name}:{line}'\n{text}\n"
            ran += 1
        if "---" not in script:
            continue
        scratch = tempfile.mkdtemp(prefix="niche-docs-")
        try:
            os.symlink(root / "examples", os.path.join(scratch, "examples"))
            done = subprocess.run(["sh", "-c", script], cwd=scratch, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=PAGE_SECONDS)
            assert done.returncode == 0, f"{page}: exit {done.returncode} after:\n{done.stdout[-4000:]}"
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    assert ran >= 5, ran
    print(f"{ran} blocks ran")


def main():
    root = pathlib.Path(sys.argv[2]).resolve()
    if sys.argv[1] == "text":
        for check in (links_lead_somewhere, the_metrics_are_those_of_the_runtime, benchmarks_exist, each_operator_has_its_page,
                      kernel_files_names_each_field):
            print(f"{check.__name__}: {check(root)}")
    elif sys.argv[1] == "options":
        options(root, sys.argv[3])
    else:
        commands(root, sys.argv[3])


if __name__ == "__main__":
    main()
