#!/usr/bin/env python3
"""Several runs of nri-contract for hack/contract: the columns of CONTRACT.md, and the matrix of violations.

    contract.py --table                   runs every available runtime; writes the columns into CONTRACT.md
    contract.py --table A.json B.json     the same from these results; all cairn*.json are cairn's
    contract.py --repeat N                the fast points N times each, in shares on concurrent cairns
    contract.py --violations [NAME...]    all points for each patch of tests/violations, compared with the patch's head
    contract.py --violations --fast ...   the same with the fast points, and those that must detect it: a third of the time

CONTRACT_JOBS=n runs n runtimes concurrently (default: two per processor; they mostly wait).
"""
import concurrent.futures
import datetime
import fcntl
import fnmatch
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib

import patched

REPO = pathlib.Path(__file__).resolve().parent.parent
SUITE = REPO / "nri/contract"
VIOLATIONS = REPO / "tests/violations"
RUNTIMES = ["cairn", "containerd", "crio"]
BEGIN = "<!-- hack/contract --table: begin -->"
END = "<!-- hack/contract --table: end -->"
JOBS = int(os.environ.get("CONTRACT_JOBS", 2 * (os.cpu_count() or 1)))


def run(runtime, out, *args, **env):
    """Runs the suite; returns its results, or the reason of a failure."""
    command = [str(REPO / "hack/contract"), runtime, "--quiet", "--json", str(out), *args]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True)
    if not out.exists():
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        return None, lines[-1].removeprefix("contract: ").removeprefix("nri-contract: ")
    return json.loads(out.read_text()), None


# ---- the columns ----------------------------------------------------------------------------------

def number(point):
    """A sort key: C-01.2 before C-01.10."""
    guarantee, _, name = point.partition("/")
    return guarantee.split("-")[0], [int(n) for n in re.findall(r"\d+", guarantee)], name


def cell(point):
    if point is None:
        return "–"
    return {
        "pass": "holds",
        "skip": f"skipped: {point.get('missing', '')}",
        "fail": "**fails**",
        "failed as expected": "**fails**",
        "passed unexpectedly": "holds",
    }[point["result"]]


def columns(results, absent):
    """The section of CONTRACT.md. A guarantee whose points all hold everywhere is one line."""
    today = datetime.date.today().isoformat()
    lines = [BEGIN, "", f"Made by `hack/contract --table` on {today}.", ""]
    lines += ["| runtime | NRI | points | hold | fail | skipped |", "|---|---|---|---|---|---|"]
    for name, result in results.items():
        if result is None:
            lines.append(f"| {name} | | | | | {absent[name]} |")
            continue
        kinds = [p["result"] for p in result["points"]]
        failing = sum(k in ("fail", "failed as expected") for k in kinds)
        skipped = kinds.count("skip")
        runtime = result["runtime"]
        lines.append(
            f"| {runtime['name']} {runtime['version']} | {runtime['nri']} | {len(kinds)} "
            f"| {len(kinds) - failing - skipped} | {failing} | {skipped} |"
        )
    there = {name: result for name, result in results.items() if result}
    names = [r["runtime"]["name"] for r in there.values()]
    lines += ["", "Points that do not hold everywhere; all others hold on each.", ""]
    lines += [f"| point | what must hold | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    by_id = {n: {p["id"]: p for p in r["points"]} for n, r in there.items()}
    titles = {p["id"]: p["title"] for r in there.values() for p in r["points"]}
    rows = {}
    for point in sorted(titles, key=number):
        cells = tuple(cell(by_id[name].get(point)) for name in there)
        if set(cells) != {"holds"}:
            rows.setdefault((point.partition("/")[0], cells), []).append(point)
    for (guarantee, cells), points in rows.items():
        # Equal results of several points of a guarantee are one row.
        many = [(f"{guarantee}/…", f"{len(points)} points, such as: {titles[points[0]]}")]
        each = [(point, titles[point]) for point in points]
        for point, title in many if len(points) > 5 else each:
            lines.append(f"| `{point}` | {title} | {' | '.join(cells)} |")
    for name, result in there.items():
        lines += deviations(name, result)
    return "\n".join([*lines, "", END])


def deviations(name, result):
    """The sentence of each failed cell, once for all of its points, with the steps that reproduce it."""
    known = SUITE / "known" / f"{name}.toml"
    if not known.exists():
        return []
    entries = tomllib.loads(known.read_text())
    failing = {p["id"] for p in result["points"] if p["result"] in ("fail", "failed as expected")}
    lines = ["", f"**What {result['runtime']['name']} does instead**", ""]
    for globs, entry in entries.items():
        if any(matches(globs, point) for point in failing):
            steps = f" *Steps:* {entry['steps']}" if entry.get("steps") else ""
            lines.append(f"- `{globs}`: {entry['because']}{steps}")
    return lines


def table(files):
    results, absent = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for runtime in RUNTIMES:
            given = [f for f in files if pathlib.Path(f).name.startswith(runtime)]
            if given:
                shares = [json.loads(pathlib.Path(f).read_text()) for f in given]
                results[runtime] = shares[0] | {"points": [p for share in shares for p in share["points"]]}
                continue
            results[runtime], absent[runtime] = run(runtime, pathlib.Path(scratch) / f"{runtime}.json")
    contract = REPO / "CONTRACT.md"
    text = contract.read_text()
    if BEGIN not in text:
        sys.exit("contract: CONTRACT.md has no place for the table")
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    contract.write_text(before + columns(results, absent) + after)
    print("contract: the columns of", ", ".join(n for n, r in results.items() if r), "are in CONTRACT.md")
    return 0


# ---- the violations' matrix -----------------------------------------------------------------------

def matches(globs, point):
    return any(fnmatch.fnmatchcase(point, glob.strip()) for glob in globs.split(","))


class Broken(Exception):
    """A missing result, with the reason."""


def catalogue():
    """The head of each patch."""
    heads = {path.stem: re.split("^--- ", path.read_text(), flags=re.M)[0] for path in VIOLATIONS.glob("*.patch")}
    return {name: tomllib.loads(head) for name, head in heads.items()}


def cargo(tree, verb, *words):
    """With hack/test's choice of packages and features, without debug information: a build is linked for each patch."""
    command = ["cargo", verb, "--workspace", "--features", "cairn/fault", *words]
    env = {"CARGO_TARGET_DIR": str(tree.parent), "CARGO_INCREMENTAL": "1", "CARGO_PROFILE_DEV_DEBUG": "0"}
    return subprocess.run(command, cwd=tree, env=os.environ | env, capture_output=True, text=True)


def build(tree, programs):
    """Builds cairn in the tree, into a separate directory with links to all other programs."""
    done = cargo(tree, "build", "--quiet", "--bin", "cairn")
    if done.returncode:
        raise Broken(f"does not build\n{done.stderr.rstrip()}")
    programs.mkdir()
    for program in pathlib.Path(os.environ["bin"]).iterdir():
        if program.is_file() and os.access(program, os.X_OK) and program.name != "cairn":
            (programs / program.name).symlink_to(program.resolve())
    shutil.copy2(tree.parent / "debug/cairn", programs)


def ask(programs, globs, fast):
    """Runs all points, or the fast ones and those of the globs, on the cairn in this directory; removes the directory."""
    points = {}
    try:
        for n, args in enumerate([["--fast"], ["--only", ",".join(globs)]] if fast else [[]]):
            result, why = run("cairn", programs / f"{n}.json", *args, CAIRN_BIN_DIR=str(programs))
            if result is None:
                raise Broken(f"no result: {why}")
            points |= {p["id"]: p["result"] for p in result["points"]}
    finally:
        shutil.rmtree(programs)
    return points, [point for point, kind in points.items() if kind in ("fail", "passed unexpectedly")]


def ask_nri(tree, test):
    """Whether this test of the crate nri passes in the tree."""
    files = [path for path in (tree / "nri/tests").rglob("*.rs") if f"fn {test}(" in path.read_text()]
    if len(files) != 1:
        raise Broken(f"the crate nri has {len(files)} tests called {test}")
    target = files[0].relative_to(tree / "nri/tests").parts[0].removesuffix(".rs")
    done = cargo(tree, "test", "--test", target, "--", test)
    result = re.search(rf"^test (?:\S*::)?{test} \.\.\. (ok|FAILED)$", done.stdout, re.M)
    if not result:
        raise Broken(f"(nri) {test} does not run\n{done.stderr.rstrip()}")
    return result[1] == "ok"


def caught(programs, caught_by, fast):
    """Checks that exactly the named points fail. Returns the faults, and the failed points."""
    try:
        points, failed = ask(programs, caught_by, fast)
    except Broken as error:
        return [str(error)], []
    expected = [point for point in points if any(matches(globs, point) for globs in caught_by)]
    wrong = [f"no point matches {globs}" for globs in caught_by if not any(matches(globs, point) for point in points)]
    wrong += [f"not caught by {point}" for point in expected if point not in failed]
    wrong += [f"also caught by {point}" for point in failed if point not in expected]
    return wrong, failed


def prepare(name, entry, tree, programs, fast):
    """Builds a violation; returns a function that runs its points or test."""
    try:
        patched.lay(tree, VIOLATIONS / f"{name}.patch")
        if "nri" not in entry:
            build(tree, programs)
            return lambda: caught(programs, entry["caught_by"], fast)
        test = entry["nri"]
        holds = ask_nri(tree, test)
        return lambda: ([f"not caught by (nri) {test}"], []) if holds else ([], [f"(nri) {test}"])
    except (Broken, patched.DoesNotApply) as error:
        wrong = [str(error)]
        return lambda: (wrong, [])


def without_a_patch(entries, tree, programs, fast):
    """The failures in the unchanged tree."""
    patched.lay(tree)
    failed = [f"(nri) {entry['nri']}" for entry in entries if "nri" in entry and not ask_nri(tree, entry["nri"])]
    globs = {glob for entry in entries for glob in entry.get("caught_by", [])}
    if globs:
        build(tree, programs)
        failed += ask(programs, sorted(globs), fast)[1]
    return failed


def report(name, ask, done):
    """Runs `ask` and prints its result; returns whether it has no faults."""
    try:
        wrong, failed = ask()
    finally:
        done()
    lines = [f"{'FAIL' if wrong else 'ok':<5} {name:<34} caught by {len(failed)}: {', '.join(failed)}"]
    lines += [f"      {line}" for text in wrong for line in text.splitlines()]
    print("\n".join(lines), flush=True)
    return not wrong


def violations(names, fast):
    every = catalogue()
    unknown = set(names) - set(every)
    if unknown:
        sys.exit(f"contract: no violation is called {', '.join(sorted(unknown))}")
    # Ordered by crate, which reduces builds.
    file = {name: re.search("^--- (.*)", (VIOLATIONS / f"{name}.patch").read_text(), re.M)[1] for name in every}
    chosen = sorted(names or every, key=lambda name: (file[name], name))
    tree = pathlib.Path(os.environ["CARGO_TARGET_DIR"]).resolve() / "violations/tree"
    tree.mkdir(parents=True, exist_ok=True)
    # Limits the programs that are built but not yet tested.
    places = threading.Semaphore(JOBS + 1)
    with (
        open(tree.parent / "lock", "w") as lock,
        tempfile.TemporaryDirectory(dir=tree.parent) as scratch,
        concurrent.futures.ThreadPoolExecutor(JOBS) as pool,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = pathlib.Path(scratch)
        try:
            failed = without_a_patch([every[name] for name in chosen], tree, scratch / "none", fast)
        except Broken as error:
            failed = [str(error)]
        if failed:
            sys.exit(f"contract: without a violation: {', '.join(failed)}")
        right = []
        for name in chosen:
            places.acquire()
            ask = prepare(name, every[name], tree, scratch / name, fast)
            right.append(pool.submit(report, name, ask, places.release))
        good = sum(done.result() for done in right)
    print(f"contract: {len(chosen)} violations, {good} caught by the points that say so and by no others")
    return 0 if good == len(chosen) else 1


# ---- repetitions -----------------------------------------------------------------------------------

def repeat(times, args):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"contract: the fast points {times} times each, --shuffle {seed}, in {JOBS} shares", flush=True)
    base = ["--fast", "--repeat", str(times), "--shuffle", str(seed), *args]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        shares = [
            pool.submit(run, "cairn", pathlib.Path(scratch) / f"{k}.json", *base, "--shard", f"{k}/{JOBS}")
            for k in range(1, JOBS + 1)
        ]
        points, missing = [], []
        for share in shares:
            result, why = share.result()
            points += result["points"] if result else []
            missing += [] if result else [why]
    for point in points:
        if point["result"] == "fail":
            print(f"FAIL  {point['id']}\n      expected: {point['expected']}\n      seen:     {point['seen']}")
    for why in missing:
        print(f"FAIL  a share has no result: {why}")
    failed = sum(p["result"] == "fail" for p in points)
    print(f"contract: {len(points)} fast points, {times} times each: {failed} failed")
    return 1 if failed or missing else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--table", *files]:
            sys.exit(table(files))
        case ["--repeat", times, *args]:
            sys.exit(repeat(int(times), args))
        case ["--violations", "--fast", *names]:
            sys.exit(violations(names, fast=True))
        case ["--violations", *names]:
            sys.exit(violations(names, fast=False))
        case _:
            sys.exit(__doc__)
