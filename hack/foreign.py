"""hack/foreign runs this: lists the suites, or runs one beside its runtime and compares it with what is expected of it."""
import collections, json, os, pathlib, random, re, shutil, subprocess, sys, threading, time, tomllib

REPO = pathlib.Path(__file__).resolve().parent.parent
EXPECTED = REPO / "tests/foreign/expected"
CLASSES = ("choice", "internal", "words", "stand-in", "host")
Result = collections.namedtuple("Result", "name state why")


def expected(suite):
    """What is known of a suite; each deviation is complete, and none is a fault of cairn's."""
    file = tomllib.loads((EXPECTED / (suite + ".toml")).read_text())
    for entry in file.get("deviation", []):
        where = "%s.toml: %s" % (suite, entry.get("test"))
        wrong = set(entry) - {"test", "class", "reason", "requirement", "on", "sometimes"}
        assert not wrong and entry.get("reason"), "%s: wants a reason, and has %s" % (where, wrong or "none")
        assert entry["class"] in CLASSES, "%s: class is one of %s" % (where, ", ".join(CLASSES))
        if entry["class"] == "choice":
            rows = "".join(path.read_text() for path in (REPO / "docs/requirements").glob("*.md"))
            assert "| %s |" % entry["requirement"] in rows, "%s: no such requirement" % where
    return file


def listed_on(file, runtime):
    return [entry for entry in file.get("deviation", []) if runtime in entry.get("on", ["cairn"])]


def by_class(entries):
    counts = collections.Counter(entry["class"] for entry in entries)
    return ", ".join("%s %d" % (name, counts[name]) for name in CLASSES if counts[name]) or "none"


def list_suites():
    print("%-11s %-40s %5s  %s" % ("suite", "of", "tests", "listed deviations of cairn"))
    for path in sorted(EXPECTED.glob("*.toml")):
        file = expected(path.stem)
        entries = listed_on(file, "cairn")
        of = "%s %s" % (file["module"].removeprefix("github.com/"), file["version"])
        print("%-11s %-40s %5d  %d: %s" % (path.stem, of, file["tests"], len(entries), by_class(entries)))


class Keeper(threading.Thread):
    """Starts a runtime again that a test has ended, as an init system does, but slowly enough for the test to see it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.ends = 0

    def run(self):
        while True:
            time.sleep(0.1)
            pid = open(os.environ["PID_FILE"]).read().strip()
            if os.path.exists("/proc/%s/exe" % pid) and os.readlink("/proc/%s/exe" % pid):
                continue
            self.ends += 1
            time.sleep(3)
            subprocess.run([os.path.dirname(os.environ["RESTART"]) + "/start"])


def clean():
    for what in ("rmp", "rm"):
        command = ["crictl", "--config", "/dev/null", "-r", os.environ["CRI"], "-t", "60s", what, "-f", "-a"]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def reason(lines):
    """The first error that a test printed, on one line."""
    text = "\n".join(lines)
    found = re.search(r"Error:\s+(.*?)\n\s+(?:Test|Messages):", text, re.S) or re.search(r"_test\.go:\d+: (.*)", text)
    return re.sub(r"\s+", " ", found.group(1) if found else (lines or ["no output"])[-1])[:300]


def go_results(name, output, ended):
    """The cases of a Go test: those without cases of their own."""
    states, lines, current = {}, collections.defaultdict(list), name
    for line in output.splitlines():
        if started := re.match(r"=== (?:RUN|CONT|NAME) +(\S+)", line):
            current = started.group(1)
        elif end := re.match(r" *--- (PASS|FAIL|SKIP): (\S+) ", line):
            states[end.group(2)] = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}[end.group(1)]
        else:
            lines[current].append(line)
    if name not in states:
        return [Result(name, "failed", ended or reason(lines[current]))]
    results = []
    for case, state in states.items():
        inner = [other for other in states if other.startswith(case + "/")]
        # A test may fail by itself after its cases.
        if not inner or state == "failed" and all(states[other] != "failed" for other in inner):
            results.append(Result(case, state, "" if state == "passed" else reason(lines[case])))
    return results


def containerd(file, runtime, only):
    keep = Keeper()
    keep.start()
    flags = ["-cri-endpoint=" + os.environ["CRI"], "-containerd-bin=" + runtime, "-build-dir=/usr/local/bin"]
    env = dict(os.environ, TMPDIR="/mnt", PATH="/usr/local/bin:" + os.environ["PATH"])
    command = ["containerd-integration", *flags]
    names = subprocess.run([*command, "-test.list=."], env=env, capture_output=True, text=True, check=True).stdout.split()
    names = [name for name in names if name.startswith("Test")]
    for entry in file["not_run"]:
        if stale := [name for name in entry["tests"] if name not in names]:
            return names, [Result(name, "failed", "not_run names it, but there is no such test") for name in stale]
        names = [name for name in names if name not in entry["tests"]]
    results = []
    for name in names:
        if not re.search(only, name):
            continue
        ended, output = "", open("%s/%s.log" % (os.environ["FOREIGN_LOGS"], name), "w+")
        test = subprocess.Popen([*command, "-test.v", "-test.run=^%s$" % name], env=env, cwd="/mnt", stdout=output, stderr=output)
        try:
            test.wait(file["limit"])
        except subprocess.TimeoutExpired:
            test.kill()
            ended = "not finished after %d s" % file["limit"]
        output.seek(0)
        cases = go_results(name, output.read(), ended)
        results += cases
        if any(case.state == "failed" for case in cases):
            clean()
    return names, results


def critest(file, runtime, only):
    seed = int(os.environ.get("CRITEST_SEED") or random.randrange(1, 32768))
    print("seed %d" % seed)
    common = ["--runtime-endpoint", os.environ["CRI"], "--image-endpoint", os.environ["CRI"], "--config", "/dev/null",
              "--runtime-service-timeout=120s", "--nri-socket=" + os.environ["NRI"].removeprefix("unix://"), "--ginkgo.no-color"]
    skip = "--ginkgo.skip=" + "|".join(test for entry in file["not_run"] for test in entry["tests"])
    runs = [("", ["--ginkgo.randomize-all", "--ginkgo.seed=%d" % seed]),
            ("again: ", ["--ginkgo.randomize-all", "--ginkgo.seed=%d" % (seed + 1)]),
            ("WebSocket: ", ["--websocket-exec", "--websocket-attach", "--websocket-portforward", "--ginkgo.focus=Streaming"]),
            ("four at a time: ", ["-parallel=4"])]
    names, results = [], []
    for number, (prefix, flags) in enumerate(runs if only == "." else runs[:1]):
        report = "%s/critest-%d.json" % (os.environ["FOREIGN_LOGS"], number)
        chosen = [] if only == "." else ["--ginkgo.focus=" + only]
        command = ["timeout", str(file["limit"]), "critest", *common, skip, *chosen, "--ginkgo.json-report=" + report, *flags]
        with open(report.replace("json", "out"), "w+") as out:
            subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=os.environ["FOREIGN_LOGS"])
            out.seek(0)
            last = out.read().strip().splitlines()[-1:]
        if not os.path.exists(report):
            results.append(Result(prefix + "all", "failed", "no report; the last line of critest: %s" % last))
            continue
        for spec in (spec for suite in json.load(open(report)) for spec in suite["SpecReports"] or []):
            name = " ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]]).removeprefix("[k8s.io] ")
            state = {"passed": "passed", "skipped": "skipped", "pending": "skipped"}.get(spec["State"], "failed")
            why = (spec.get("Failure") or {}).get("Message", "").split("\n")[0]
            # Left out by name or expression, which has no reason; benchmarks are no specs.
            if spec["LeafNodeType"] != "It" and state != "failed" or state == "skipped" and not why or "benchmark" in name:
                continue
            results.append(Result(prefix + name, state, why[:300]))
            if not prefix:
                names.append(name)
    return names, results


def nri(file, runtime, only):
    command = ["cargo", "test", "--quiet", "-p", "nri", "--test", "foreign", "--", "--ignored", "--nocapture"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    cases = [Result(*line.removeprefix("@case ").split("\t")) for line in output.splitlines() if line.startswith("@case ")]
    return [case.name for case in cases], [case for case in cases if re.search(only, case.name)]


def run(suite, runtime, only):
    file, start = expected(suite), time.time()
    peer = {"containerd": "containerd-tests", "critest": "critest", "nri": "nri-merges"}[suite]
    built = (pathlib.Path(os.environ["CAIRN_PEERS"]) / "stamp" / peer).read_text()
    assert built.startswith(file["version"]), "%s.toml is about %s, and hack/peers built %s" % (suite, file["version"], built)
    try:
        names, results = {"containerd": containerd, "critest": critest, "nri": nri}[suite](file, runtime, only)
    finally:
        if "RESTART" in os.environ:
            shutil.copy(os.path.dirname(os.environ["RESTART"]) + "/runtime.log", os.environ["FOREIGN_LOGS"])
    entries = listed_on(file, runtime)
    states, bad, lines, found = collections.Counter(), [], [], collections.Counter()
    skips, listed = collections.defaultdict(list), []
    for result in results:
        hits = [entry for entry in entries if re.fullmatch(entry["test"], result.name)]
        if result.state == "failed" and hits:
            listed.append(hits[0])
            lines.append("LISTED %s, %s %s: %s" % (hits[0]["class"], result.name, hits[0].get("requirement", ""), result.why))
        else:
            states[result.state] += 1
        if result.state == "failed" and not hits:
            bad.append("FAILED %s: %s" % (result.name, result.why))
        if result.state == "skipped":
            skips[result.why].append(result.name)
        for entry in hits:
            found[entry["test"]] += 1
            if result.state != "failed" and not entry.get("sometimes"):
                bad.append("LISTED, BUT %s: %s (%s)" % (result.state, result.name, entry["class"]))
    if only == ".":
        if len(names) != file["tests"]:
            bad.append("the suite has %d tests, and not %d" % (len(names), file["tests"]))
        bad += ["LISTED, BUT NOT RUN: " + entry["test"] for entry in entries if not found[entry["test"]]]
    if not results:
        bad.append("no test ran")
    lines += ["SKIPPED %d: %s (%s%s)" % (len(cases), why, cases[0], ", ..." if cases[1:] else "") for why, cases in skips.items()]
    print("\n".join(lines + bad))
    print("%s %s on %s: %d tests, %d cases: %d passed, %d skipped by themselves, %d listed (%s), %d failed; %d s" % (
        suite, file["version"], runtime, len(names), len(results), states["passed"], states["skipped"], len(listed),
        by_class(listed), states["failed"], time.time() - start))
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(list_suites() if sys.argv[1] == "list" else run(*sys.argv[2:]))
    except AssertionError as error:
        sys.exit("foreign: %s" % error)
