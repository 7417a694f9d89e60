"""hack/foreign runs this: lists the suites, or runs one beside its runtime and compares it with the expectations."""
import collections, json, os, pathlib, random, re, shutil, subprocess, sys, threading, time, tomllib

REPO = pathlib.Path(__file__).resolve().parent.parent
EXPECTED = REPO / "tests/foreign/expected"
CLASSES = ("choice", "internal", "words", "stand-in", "host")
# Keys of an entry: those it must have, and those it may have.
KEYS = {"not_run": ({"tests", "reason"}, set()),
        "skipped": ({"tests", "reason"}, {"on"}),
        "deviation": ({"tests", "reason", "class"}, {"on", "requirement", "error", "sometimes"})}


class Result(collections.namedtuple("Result", "run name state why")):
    """A case in one run of its suite. State: passed, skipped, failed, or raced: failed, and passed when repeated alone."""
    __slots__ = ()

    def __str__(self):
        return self.name if self.run == "all" else "%s: %s" % (self.run, self.name)

    def among(self, patterns):
        """The patterns that name it: in every run, or after the name of a run in that."""
        return [test for test in patterns if re.fullmatch(test, self.name) or re.fullmatch(test, str(self))]


def expected(suite):
    """The expectations of a suite; each entry is complete, and no deviation is a fault of cairn's."""
    file = tomllib.loads((EXPECTED / (suite + ".toml")).read_text())
    rows = "".join(path.read_text() for path in (REPO / "docs/requirements").glob("*.md"))
    for kind, (required, optional) in KEYS.items():
        for entry in file.setdefault(kind, []):
            where = "%s.toml: %s of %s" % (suite, kind, entry.get("tests"))
            assert all(entry.get(key) for key in required), "%s: each of %s is required" % (where, sorted(required))
            assert not set(entry) - required - optional, "%s: unknown key among %s" % (where, sorted(entry))
            # Each alternative must occur: it is an element of the list.
            assert not any("|" in test for test in entry["tests"]), "%s: alternatives are elements of tests" % where
            if kind != "deviation":
                continue
            assert entry["class"] in CLASSES, "%s: class is one of %s" % (where, ", ".join(CLASSES))
            if entry["class"] == "choice":
                assert "| %s |" % entry["requirement"] in rows, "%s: no such requirement" % where
            if entry["class"] in ("internal", "words"):
                assert entry.get("error"), "%s: its error is required" % where
    return file


def listed_on(file, kind, runtime):
    return [entry for entry in file[kind] if runtime in entry.get("on", ["cairn"])]


def by_class(entries):
    counts = collections.Counter(entry["class"] for entry in entries)
    return ", ".join("%s %d" % (name, counts[name]) for name in CLASSES if counts[name]) or "none"


def list_suites():
    print("%-11s %-40s %5s  %s" % ("suite", "of", "tests", "entries of deviations of cairn"))
    for path in sorted(EXPECTED.glob("*.toml")):
        file = expected(path.stem)
        entries = listed_on(file, "deviation", "cairn")
        of = "%s %s" % (file["module"].removeprefix("github.com/"), file["version"])
        print("%-11s %-40s %5d  %d: %s" % (path.stem, of, file["tests"], len(entries), by_class(entries)))


class Keeper(threading.Thread):
    """Starts a runtime again that has ended, as an init system does, but slowly enough for a test to see it."""

    def __init__(self):
        super().__init__(daemon=True)
        self.lock, self.ends, self.log = threading.Lock(), 0, ""
        self.dir = pathlib.Path(os.environ["RESTART"]).parent
        self.start()

    @staticmethod
    def has_ended():
        try:
            pid = pathlib.Path(os.environ["PID_FILE"]).read_text().strip()
            # Empty while a runtime is being started.
            return bool(pid) and not os.readlink("/proc/%s/exe" % pid)
        except FileNotFoundError:
            # No such process, or a zombie.
            return True

    def look(self):
        with self.lock:
            if self.has_ended():
                self.ends += 1
                self.log = " / ".join((self.dir / "runtime.log").read_text(errors="replace").splitlines()[-5:])
                time.sleep(3)
                subprocess.run([self.dir / "start"])

    def run(self):
        while True:
            time.sleep(0.1)
            self.look()

    def take(self):
        """The number of ends since the last call."""
        self.look()
        with self.lock:
            ends, self.ends = self.ends, 0
        return ends


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
        return [Result("all", name, "failed", ended or reason(lines[current]))]
    results = []
    for case, state in states.items():
        inner = [other for other in states if other.startswith(case + "/")]
        # A test may fail by itself after its cases.
        if not inner or state == "failed" and all(states[other] != "failed" for other in inner):
            results.append(Result("all", case, state, "" if state == "passed" else reason(lines[case])))
    if ended and all(result.state != "failed" for result in results):
        results.append(Result("all", name, "failed", ended))
    return results


def containerd(file, runtime, only):
    keep = Keeper()
    flags = ["-cri-endpoint=" + os.environ["CRI"], "-containerd-bin=" + runtime, "-build-dir=/usr/local/bin"]
    env = dict(os.environ, TMPDIR="/mnt", PATH="/usr/local/bin:" + os.environ["PATH"])
    command = ["containerd-integration", *flags]
    names = subprocess.run([*command, "-test.list=."], env=env, capture_output=True, text=True, check=True).stdout.split()
    names = [name for name in names if name.startswith("Test")]
    excluded = [name for entry in file["not_run"] for name in entry["tests"]]
    bad = ["STALE: no test is called %s" % name for name in [*excluded, *file["restarts"]] if name not in names]
    names = [name for name in names if name not in excluded]

    def go_test(path, log):
        ended, output = "", open("%s/%s.log" % (os.environ["FOREIGN_LOGS"], log), "w+")
        pattern = "/".join("^%s$" % re.escape(part) for part in path.split("/"))
        test = subprocess.Popen([*command, "-test.v", "-test.run=" + pattern], env=env, cwd="/mnt",
                                stdout=output, stderr=output)
        try:
            if code := test.wait(file["limit"]):
                ended = "exit code %d without a failed case" % code
        except subprocess.TimeoutExpired:
            test.kill()
            test.wait()
            ended = "not finished after %d s" % file["limit"]
        output.seek(0)
        results = go_results(path.split("/")[0], output.read(), ended)
        if any(result.state == "failed" for result in results):
            clean()
        return results

    races = [test for entry in listed_on(file, "deviation", runtime) if entry.get("sometimes") for test in entry["tests"]]
    results = []
    for name in names:
        if not re.search(only, name):
            continue
        for result in go_test(name, name):
            if result.state == "failed" and result.among(races):
                log = "%s-alone" % result.name.replace("/", "-")
                if any(all(alone.state == "passed" for alone in go_test(result.name, log)) for _ in range(3)):
                    result = result._replace(state="raced")
            results.append(result)
        if keep.take() and name not in file["restarts"]:
            bad.append("FAILED %s: the runtime ended; its log: %s" % (name, keep.log))
    return names, results, bad


def critest(file, runtime, only):
    seed = int(os.environ.get("CRITEST_SEED") or random.randrange(1, 32768))
    print("seed %d" % seed)
    keep = Keeper()
    common = ["--runtime-endpoint", os.environ["CRI"], "--image-endpoint", os.environ["CRI"], "--config", "/dev/null",
              "--runtime-service-timeout=120s", "--nri-socket=" + os.environ["NRI"].removeprefix("unix://"),
              "--ginkgo.no-color"]
    skip = "|".join(test for entry in file["not_run"] for test in entry["tests"])
    # Name, expression of its specs, flags.
    runs = [("all", only, ["--ginkgo.randomize-all", "--ginkgo.seed=%d" % seed]),
            ("again", only, ["--ginkgo.randomize-all", "--ginkgo.seed=%d" % (seed + 1)]),
            ("WebSocket", "Streaming", ["--websocket-exec", "--websocket-attach", "--websocket-portforward"]),
            ("four at a time", only, ["-parallel=4"])]
    names, results, bad = [], [], []
    for number, (run, focus, flags) in enumerate(runs if only == "." else runs[:1]):
        report = "%s/critest-%d.json" % (os.environ["FOREIGN_LOGS"], number)
        chosen = [] if focus == "." else ["--ginkgo.focus=" + focus]
        command = ["timeout", str(file["limit"]), "critest", *common, "--ginkgo.skip=" + skip, *chosen,
                   "--ginkgo.json-report=" + report, *flags]
        with open(report.replace("json", "out"), "w+") as out:
            # Its files in /tmp are in /mnt, which ends with the namespaces.
            code = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=os.environ["FOREIGN_LOGS"],
                                  env=dict(os.environ, TMPDIR="/mnt")).returncode
            out.seek(0)
            last = " / ".join(out.read().strip().splitlines()[-3:])
        if keep.take():
            bad.append("FAILED %s: the runtime ended; its log: %s" % (run, keep.log))
        if not os.path.exists(report):
            bad.append("FAILED %s: no report, exit code %d; its last lines: %s" % (run, code, last))
            continue
        failed = 0
        for spec in (spec for suite in json.load(open(report)) for spec in suite["SpecReports"] or []):
            name = " ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]])
            why = re.sub(r"\s+", " ", (spec.get("Failure") or {}).get("Message", ""))[:300]
            state = {"passed": "passed", "skipped": "skipped"}.get(spec["State"], "failed")
            if spec["LeafNodeType"] != "It":
                # Before and after the specs.
                if state == "failed":
                    bad.append("FAILED %s: %s: %s" % (run, spec["LeafNodeType"], why or spec["State"]))
                    failed += 1
                continue
            # Benchmarks are no specs.
            if re.search(skip, name) or not re.search(focus, name) or "benchmark" in name:
                continue
            if state != "passed" and not why:
                state, why = "failed", "did not run: state %r without a reason" % spec["State"]
            failed += state == "failed"
            results.append(Result(run, name.removeprefix("[k8s.io] "), state, why))
            if run == "all":
                names.append(name)
        if code and not failed:
            bad.append("FAILED %s: exit code %d without a failed spec; its last lines: %s" % (run, code, last))
    return names, results, bad


def nri(file, runtime, only):
    command = ["cargo", "test", "--quiet", "-p", "nri", "--test", "foreign", "--", "--ignored", "--nocapture"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    lines = [line.removeprefix("@case ").split("\t") for line in output.splitlines() if line.startswith("@case ")]
    cases = [Result("all", *line) for line in lines]
    return [case.name for case in cases], [case for case in cases if re.search(only, case.name)], []


def node(file, runtime, only):
    keep = Keeper()
    work = pathlib.Path("/mnt/node")
    # The suite writes its files beside its program.
    shutil.copytree(os.environ["CAIRN_PEERS"] + "/node", work)
    # The cgroup of the runtime, whose figures it reads.
    for group in pathlib.Path("/sys/fs/cgroup").glob("*/cgroup.procs"):
        own = group.parent / "runtime"
        own.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group.parent / setting).exists():
                (own / setting).write_text((group.parent / setting).read_text())
        (own / "cgroup.procs").write_text(pathlib.Path(os.environ["PID_FILE"]).read_text())
    # As test/e2e_node/jenkins/default-kubelet-config.yaml has it, except for the disk, and cgroup v1.
    (work / "kubelet.json").write_text(json.dumps({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs", "cgroupRoot": "/", "podCIDR": "10.100.0.0/24", "volumeStatsAggPeriod": "10s",
        "fileCheckFrequency": "10s", "evictionPressureTransitionPeriod": "30s", "serializeImagePulls": False,
        "evictionHard": {"memory.available": "250Mi", "nodefs.available": "500Mi", "imagefs.available": "500Mi"},
        "failCgroupV1": False, "volumePluginDir": "/var/lib/kubelet/volume-plugins"}))
    # The suite looks at the machine first: at its kernel, and not at the packages of a distribution.
    (work / "system.yaml").write_text("os: Linux\n")
    bad = []
    results = kubernetes(file, runtime, only, bad, work / "ginkgo", work / "e2e_node.test", "--prepull-images=false",
                         "--container-runtime-endpoint=" + os.environ["CRI"], "--kubelet-config-file=%s/kubelet.json" % work,
                         "--system-spec-name=cairn", "--system-spec-file=%s/system.yaml" % work,
                         "--kubelet-flags=--runtime-cgroups=/runtime --system-cgroups=/system")
    if ends := keep.take():
        bad.append("FAILED: the runtime ended %d times; its log: %s" % (ends, keep.log))
    return [result.name for result in results], results, bad


def cluster(file, runtime, only):
    bad, peers = [], os.environ["CAIRN_PEERS"]
    # The suite writes its files beside its program: in a directory that ends with the cluster.
    suite = shutil.copy(peers + "/cluster/e2e.test", os.path.dirname(os.environ["KUBECONFIG"]))
    results = kubernetes(file, runtime, only, bad, peers + "/node/ginkgo", suite, "--provider=skeleton",
                         "--kubectl-path=%s/bin/kubectl" % peers)
    return [result.name for result in results], results, bad


def kubernetes(file, runtime, only, bad, ginkgo, suite, *flags):
    """The results of a suite of Kubernetes; those that fail only sometimes run again."""
    logs = os.environ["FOREIGN_LOGS"]
    skip = "|".join(test for entry in file["not_run"] for test in entry["tests"])

    def specs(name, focus):
        """The results of the specs with such names."""
        command = ["timeout", str(file["limit"] + 60), ginkgo, "--timeout=%ds" % file["limit"], "--procs=%d" % file["processes"], "--no-color",
                   "--label-filter=" + file["labels"], *(["--skip=" + skip] if skip else []),
                   *(["--focus=" + focus] if focus != "." else []), "--output-dir=" + logs,
                   "--json-report=%s.json" % name, suite, "--", *flags, "--report-dir=%s/%s" % (logs, name)]
        with open("%s/%s.out" % (logs, name), "w+") as out:
            code = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=os.path.dirname(suite),
                                  env=dict(os.environ, PATH="/usr/local/bin:" + os.environ["PATH"])).returncode
            out.seek(0)
            last = " / ".join(out.read().strip().splitlines()[-3:])
        if not os.path.exists("%s/%s.json" % (logs, name)):
            bad.append("FAILED: no report, exit code %d; its last lines: %s" % (code, last))
            return []
        results = []
        for spec in (spec for suite in json.load(open("%s/%s.json" % (logs, name))) for spec in suite["SpecReports"] or []):
            why = re.sub(r"\s+", " ", (spec.get("Failure") or {}).get("Message", ""))[:300]
            state = {"passed": "passed", "skipped": "skipped"}.get(spec["State"], "failed")
            title = " ".join([*(spec.get("ContainerHierarchyTexts") or []), spec["LeafNodeText"]])
            if spec["LeafNodeType"] != "It":
                if state == "failed":
                    bad.append("FAILED %s: %s" % (spec["LeafNodeType"], why or spec["State"]))
            # Those that the flags leave out have no reason.
            elif state != "skipped" or why:
                results.append(Result("all", title, state, why or spec["State"] * (state == "failed")))
        return results

    races = [test for entry in listed_on(file, "deviation", runtime) if entry.get("sometimes") for test in entry["tests"]]
    results = specs("specs", only)
    if raced := [result for result in results if result.state == "failed" and result.among(races)]:
        alone = specs("alone", "|".join(re.escape(result.name) + "$" for result in raced))
        passed = [result.name for result in alone if result.state == "passed"]
        results = [result._replace(state="raced") if result.name in passed and result in raced else result for result in results]
    return results


def compare(file, runtime, results, complete):
    """Compares results with entries, and entries with results: lines to print, lines that fail the run, and a summary."""
    deviations, skipped = listed_on(file, "deviation", runtime), listed_on(file, "skipped", runtime)
    states, listed, found, lines, bad = collections.Counter(), [], set(), [], []
    skips = collections.defaultdict(list)
    for result in results:
        deviation = next((entry for entry in deviations if result.among(entry["tests"])), None)
        skip = next((entry for entry in skipped if result.among(entry["tests"])), None)
        for entry in filter(None, (deviation, skip)):
            found.update(map(str, result.among(entry["tests"])))
        sometimes = deviation and deviation.get("sometimes")
        if deviation and result.state == ("raced" if sometimes else "failed"):
            listed.append(deviation)
            if re.search(deviation.get("error", ""), result.why):
                lines.append("LISTED %s, %s %s: %s" % (
                    deviation["class"], result, deviation.get("requirement", ""), result.why))
            else:
                bad.append("LISTED, BUT another error: %s: %s, and not %r" % (result, result.why, deviation["error"]))
            continue
        states[result.state] += 1
        if result.state == "skipped":
            skips[result.why].append(str(result))
            if not skip:
                bad.append("SKIPPED, BUT NOT LISTED: %s: %s" % (result, result.why))
        elif result.state == "failed":
            bad.append("FAILED %s: %s%s" % (result, result.why, "; and three times alone" if sometimes else ""))
        elif skip or deviation and not sometimes:
            bad.append("LISTED, BUT %s: %s (%s)" % (result.state, result, "skipped" if skip else deviation["class"]))
    if complete:
        tests = [test for entry in deviations + skipped for test in entry["tests"]]
        bad += ["LISTED, BUT NOT RUN: " + test for test in tests if test not in found]
        cases, pinned = collections.Counter(result.run for result in results), file["cases"][runtime]
        bad += ["the run %r has %d cases, and not %d" % (run, cases[run], pinned.get(run, 0))
                for run in sorted({*cases, *pinned}) if cases[run] != pinned.get(run, 0)]
    for why, cases in skips.items():
        lines.append("SKIPPED %d: %s (%s%s)" % (len(cases), why, cases[0], ", ..." if cases[1:] else ""))
    summary = "%d cases: %d passed, %d skipped, %d listed (%s), %d failed" % (
        len(results), states["passed"], states["skipped"], len(listed), by_class(listed), states["failed"])
    return lines, bad, summary


def run(suite, runtime, only):
    file, start = expected(suite), time.time()
    peer = {"containerd": "containerd-tests", "critest": "critest", "nri": "nri-merges", "node": "node-tests",
            "node-serial": "node-tests", "cluster": "cluster-tests"}[suite]
    built = (pathlib.Path(os.environ["CAIRN_PEERS"]) / "stamp" / peer).read_text()
    assert built.startswith(file["version"]), (
        "%s.toml is about %s, and hack/peers built %s" % (suite, file["version"], built))
    try:
        names, results, bad = {"containerd": containerd, "critest": critest, "nri": nri, "node": node,
                               "node-serial": node, "cluster": cluster}[suite](file, runtime, only)
    finally:
        if "RESTART" in os.environ:
            shutil.copy(os.path.dirname(os.environ["RESTART"]) + "/runtime.log", os.environ["FOREIGN_LOGS"])
    lines, wrong, summary = compare(file, runtime, results, only == ".")
    bad += wrong
    if only == "." and len(names) != file["tests"]:
        bad.append("the suite has %d tests, and not %d" % (len(names), file["tests"]))
    if not results:
        bad.append("no test ran")
    print("\n".join(lines + bad))
    print("%s %s on %s: %d tests, %s; %d s" % (suite, file["version"], runtime, len(names), summary, time.time() - start))
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(list_suites() if sys.argv[1] == "list" else run(*sys.argv[2:]))
    except AssertionError as error:
        sys.exit("foreign: %s" % error)
