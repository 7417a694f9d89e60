#!/usr/bin/env python3
"""Tables of hack/bench from the results of cairn-bench-cri and cairn-bench-hostile.

  bench.py table FILE...   the table: medians over the sittings, their spread, and the ratio to the peer
  bench.py write FILE...   the same, also into docs/performance.md, and the curve into docs/growth.svg
  bench.py check FILE...   compares with the ratios in docs/performance.md: exit code 1 and a line for each that is worse
                           by more than 10 %
  bench.py hostile FILE...         the table beside plugins that misbehave: exit code 1 if cairn was blocked in a row
  bench.py hostile-write FILE...   the same, also into docs/performance.md

A file is one sitting of one runtime, as JSON lines of cairn-bench-cri --json, or of cairn-bench-hostile --json.
"""
import json
import os
import platform
import statistics
import sys
from datetime import date

PEER = "containerd"
WORSE = 1.10
HERE = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = os.path.join(HERE, "..", "docs", "performance.md")
PICTURE = os.path.join(HERE, "..", "docs", "growth.svg")


def marks(command):
    return f"<!-- hack/bench {command}: begin -->", f"<!-- hack/bench {command}: end -->"


PEERS, HOSTILE = marks("peers --write"), marks("nri --hostile --write")


def read(files):
    """{(pods, row): {runtime: [value of each sitting]}} in the order of the first sitting, and each row's unit."""
    figures, units = {}, {}
    for path in files:
        for line in open(path):
            one = json.loads(line)
            key = (one["pods"], one["row"])
            figures.setdefault(key, {}).setdefault(one["runtime"], []).append(one["value"])
            units[one["row"]] = one["unit"]
    return figures, units


def number(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def cell(values):
    if not values:
        return ""
    median = number(statistics.median(values))
    low, high = number(min(values)), number(max(values))
    return median if low == high else f"{median} ({low}–{high})"


def better(row_unit, ours, theirs):
    """The ratio by which ours is better: a higher rate, a lower time or size."""
    return ours / theirs if row_unit == "pods/s" else theirs / ours


def ratio(unit, by_runtime):
    ours, theirs = by_runtime.get("cairn"), by_runtime.get(PEER)
    if not ours or not theirs:
        return None
    ours, theirs = statistics.median(ours), statistics.median(theirs)
    return better(unit, ours, theirs) if ours and theirs else None


def table(figures, units):
    sittings = max(len(values) for one in figures.values() for values in one.values())
    lines = [
        f"{date.today()}, Linux {platform.release()}, {os.cpu_count()} cores, {sittings} sittings in turns; "
        "medians (lowest–highest); *times* is how many times better than containerd v2.4.2 in the same sittings.",
        "",
        "| pods | | unit | cairn | containerd | times |",
        "|---:|---|---|---:|---:|---:|",
    ]
    for (pods, row), by_runtime in sorted(figures.items(), key=lambda item: item[0][0]):
        times = ratio(units[row], by_runtime)
        times = number(times) if times else ""
        cells = (cell(by_runtime.get("cairn")), cell(by_runtime.get(PEER)))
        lines.append(f"| {pods} | {row} | {units[row]} | {cells[0]} | {cells[1]} | {times} |")
    return "\n".join(lines) + "\n"


def written(text):
    """{(pods, row): ratio} of the table in the document."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 6 and cells[0].isdigit() and cells[5]:
            found[int(cells[0]), cells[1]] = float(cells[5])
    return found


def document(place):
    """The text before, in and after a marked part of the document."""
    with open(DOCUMENT) as file:
        text = file.read()
    begin, end = place
    if begin not in text or end not in text:
        sys.exit(f"bench: {os.path.relpath(DOCUMENT)} has no place for the table: {begin} … {end}")
    head, rest = text.split(begin)
    return head, *rest.split(end)


def write(place, text):
    head, _, tail = document(place)
    with open(DOCUMENT, "w") as file:
        file.write(head + place[0] + "\n" + text + place[1] + tail)


CALLS = ("RunPodSandbox", "CreateContainer")


def hostile_cells(one):
    """The three cells of a runtime in a row."""
    if one is None or "note" in one:
        return [one["note"] if one else "", "", ""]
    cells = []
    for call in CALLS:
        figures = one[call]
        if not figures:
            cells.append("**none**")
            continue
        text = f"{figures['p50']:.0f} / {figures['p99']:.0f} ({figures['times']:.1f})"
        text = text if figures["holds"] else f"**{text}**"
        cells.append(text + (f", once {figures['once']:.0f}" if figures["once"] else ""))
    rate = f"{one['pods_s']:.1f} of {one['quiet_pods_s']:.1f}"
    failed = f", {one['failed']} calls failed" if one["failed"] else ""
    cells.append((f"**still for {one['gap_s']:.0f} s**" if one["still"] else rate) + failed)
    return cells


def hostile(files):
    """The table, and the number of rows in which cairn was blocked."""
    rows = {}
    for path in files:
        for line in open(path):
            one = json.loads(line)
            rows.setdefault(one["row"], {})[one["runtime"]] = one
    lines = [
        f"{date.today()}, Linux {platform.release()}, {os.cpu_count()} cores, one sitting. p50 / p99 in ms (p99, as a "
        "multiple of the quiet time right before and after); **bold**: more than 1.2 times the quiet p99; *once*: a "
        "wait of one request timeout, which is not in the p99; pods a second, beside the quiet ones.",
        "",
        "| while | cairn: RunPodSandbox | CreateContainer | pods/s "
        "| containerd v2.4.2: RunPodSandbox | CreateContainer | pods/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, by_runtime in rows.items():
        cells = [cell for runtime in ("cairn", PEER) for cell in hostile_cells(by_runtime.get(runtime))]
        lines.append("| " + " | ".join([row, *cells]) + " |")
    still = [row for row, by_runtime in rows.items() if by_runtime.get("cairn", {}).get("still")]
    return "\n".join(lines) + "\n", still


def picture(figures):
    """The time of pod to running by the number of pods, one line per runtime."""
    curves = {}
    for (pods, row), by_runtime in figures.items():
        if row == "pod to running, pod network":
            for runtime, values in by_runtime.items():
                curves.setdefault(runtime, {})[pods] = statistics.median(values)
    width, height, left, top, low = 640, 320, 56, 34, 40
    most_pods = max(max(curve) for curve in curves.values()) or 1
    most = max(max(curve.values()) for curve in curves.values()) * 1.1
    x = lambda pods: left + (width - left - 110) * pods / most_pods
    y = lambda ms: height - low - (height - low - top) * ms / most
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="18">Pod to running beside other pods, pod network, ms (median)</text>',
    ]
    for step in range(5):
        ms = most * step / 4
        out.append(f'<path d="M{left} {y(ms):.1f}H{width - 100}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms:.0f}</text>')
    for pods in sorted({pods for curve in curves.values() for pods in curve}):
        out.append(f'<text x="{x(pods):.1f}" y="{height - 18}" text-anchor="middle">{pods}</text>')
    for runtime, colour in (("containerd", "#888"), ("cairn", "#b5460f")):
        curve = sorted(curves.get(runtime, {}).items())
        if curve:
            points = " ".join(f"{x(pods):.1f},{y(ms):.1f}" for pods, ms in curve)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
            out += [f'<circle cx="{x(pods):.1f}" cy="{y(ms):.1f}" r="3" fill="{colour}"/>' for pods, ms in curve]
            out.append(f'<text x="{x(curve[-1][0]) + 8:.1f}" y="{y(curve[-1][1]) + 4:.1f}" fill="{colour}">{runtime}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def check(figures, units):
    before = written(document(PEERS)[1])
    if not before:
        sys.exit("bench: docs/performance.md has no figures yet: run hack/bench peers --write")
    worse, compared = [], 0
    for (pods, row), by_runtime in figures.items():
        now, then = ratio(units[row], by_runtime), before.get((pods, row))
        if now and then:
            compared += 1
            if then > now * WORSE:
                worse.append(f"{row}, {pods} pods: {number(now)} times containerd, was {number(then)}")
    if not compared:
        sys.exit("bench: nothing to compare: no row of docs/performance.md was measured")
    print("\n".join(worse) if worse else f"none of {compared} rows got worse by more than 10 %")
    return 1 if worse else 0


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("table", "write", "check", "hostile", "hostile-write"):
        sys.exit(__doc__)
    if sys.argv[1].startswith("hostile"):
        text, still = hostile(sys.argv[2:])
        print(text, end="")
        if sys.argv[1] == "hostile-write":
            write(HOSTILE, text)
        for row in still:
            print(f"bench: cairn stood still: {row}", file=sys.stderr)
        return 1 if still else 0
    figures, units = read(sys.argv[2:])
    if sys.argv[1] == "check":
        return check(figures, units)
    text = table(figures, units)
    print(text, end="")
    if sys.argv[1] == "write":
        write(PEERS, text)
        with open(PICTURE, "w") as file:
            file.write(picture(figures))
    return 0


sys.exit(main())
