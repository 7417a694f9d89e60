"""The node of the tests: cairn and a kubelet, as units of a Debian or as programs in namespaces of this machine; and the
table of what is expected of them."""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import traceback
import typing
import urllib.request

from place import child_of, inside, make_cgroups, outside

IMAGE = "registry.k8s.io/e2e-test-images/busybox:1.29-2"
# Of a runtime that has a pause process by an image.
PAUSE = "registry.k8s.io/pause:3.9"
PORT, READ_ONLY, HEALTH = 10350, 10355, 10348
# Seconds that no program of a test takes, be its node as slow as an emulated one.
LONGEST = 1500
# A program that ends when it is told to.
FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.2; done"


class Failed(Exception):
    """What was expected and what was seen."""


def run(*argv, check=True, text="", **more):
    """What a program prints, without the space around it. `text` is its standard input."""
    try:
        ran = subprocess.run(argv, capture_output=True, text=True, input=text, timeout=LONGEST, **more)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(map(str, argv))}: has not ended after {LONGEST} s") from None
    if check and ran.returncode:
        raise Failed(f"{' '.join(map(str, argv))}: {(ran.stderr or ran.stdout).strip()[-300:]}")
    return ran.stdout.strip()


def until(seconds, what, condition):
    """Waits for a condition; answers its value."""
    end = time.monotonic() + seconds * Node.patience
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (Failed, OSError, LookupError, ValueError, TypeError, StopIteration) as error:
            last = error
        if time.monotonic() > end:
            raise Failed(f"waited {int(seconds * Node.patience)} s, timed out: {what}" + (f" ({last})" if last else ""))
        time.sleep(0.3)


def expect(what, expected, seen):
    if callable(expected):
        if not expected(seen):
            raise Failed(f"{what}: saw {seen!r}")
    elif seen != expected:
        raise Failed(f"{what}: expected {expected!r}, saw {seen!r}")


def read(path):
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


# ---- the node ----------------------------------------------------------------------------------


class Unit:
    """A daemon of systemd."""

    def __init__(self, name):
        self.name = self.title = name

    def start(self):
        run("systemctl", "start", self.name)

    def stop(self):
        run("systemctl", "stop", self.name)

    def pid(self):
        return int(run("systemctl", "show", "-P", "MainPID", self.name))

    def kill(self):
        """By force; systemd brings it back."""
        before = self.pid()
        os.kill(before, signal.SIGKILL)
        until(60, f"{self.name} is back", lambda: self.pid() not in (0, before))

    def log(self):
        return run("journalctl", "-u", self.name, "--no-pager", "-o", "cat")


class Program:
    """A daemon that is our child, or that of the program by which it entered another place."""

    def __init__(self, name, argv, log, cwd=None, place=None):
        self.name, self.argv, self.path, self.cwd, self.child = name, argv, log, cwd, None
        self.enter, self.title = (place.enter, f"{name}-{place.name}") if place else ([], name)

    def start(self):
        with open(self.path, "ab") as log:
            self.child = subprocess.Popen([*self.enter, *self.argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.cwd)

    def stop(self):
        if self.child and self.child.poll() is None:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(20)
                return
            self.crash()

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid() or self.child.pid, number)

    def pid(self):
        if not self.child:
            return 0
        return child_of(self.child.pid) if self.enter else self.child.pid

    def crash(self):
        """Ends it by force."""
        self.signal(signal.SIGKILL)
        self.child.wait()

    def kill(self):
        self.crash()
        self.start()

    def log(self):
        """Empty if it was never started."""
        return read(pathlib.Path(self.path))


CONTAINERD = """version = 3
root = "{work}/root"
state = "{work}/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{certs}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{peers}"]
    conf_dir = "{work}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = {systemd}
[plugins."io.containerd.nri.v1.nri"]
  plugin_path = "{work}/plugins"
  plugin_config_path = "{work}/plugin-conf"
"""


def release_of(kubelet):
    """(1, 37) of a kubelet that is v1.37.2."""
    version = run(kubelet, "--version").removeprefix("Kubernetes v")
    return tuple(int(number) for number in version.split(".")[:2])


class Node:
    # How many times longer than elsewhere things may take: others work on this machine, and a node is emulated.
    patience = 2

    # Whether its pods have no network until its cluster has given it their subnet.
    gets_subnet = False

    def __init__(self, work, on_node, kubelet, name="node", place=None, address="127.0.0.1"):
        """Its kubelet, a program, is asked at this address."""
        self.work, self.on_node, self.name, self.address = pathlib.Path(work), on_node, name, address
        # The kubelet's feature gates, whatever a test adds.
        self.release, self.gates = release_of(kubelet), {}
        self.place, self.enter = place, place.enter if place else []
        Node.patience = 4 if on_node else 2
        self.manifests = self.work / "manifests"
        self.shared = self.work / "shared"
        for path in (self.manifests, self.shared):
            path.mkdir(parents=True, exist_ok=True)
        self.shared.chmod(0o777)

    def config(self, more):
        """The kubelet's configuration, with these settings on top; answers its file."""
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self.manifests),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "enableServer": True, "address": self.address, "port": PORT, "readOnlyPort": READ_ONLY,
            "healthzPort": HEALTH, "healthzBindAddress": self.address,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "fileCheckFrequency": "1s", "syncFrequency": "10s",
            "podLogsDir": str(self.work / "podlogs"),
            "failSwapOn": False,
            "evictionHard": {"memory.available": "300Mi" if self.on_node else "50Mi",
                             "nodefs.available": "600Mi" if self.on_node else "1%",
                             "imagefs.available": "600Mi" if self.on_node else "1%"},
            "evictionPressureTransitionPeriod": "10s",
            "enforceNodeAllocatable": ["pods"],
            "clusterDNS": ["10.0.0.10"], "clusterDomain": "cluster.local",
            "containerLogMaxSize": "50Ki", "containerLogMaxFiles": 3, "containerLogMonitorInterval": "3s",
            "featureGates": {},
        }
        gates = dict(self.gates)
        if self.release >= (1, 32):
            config["crashLoopBackOff"] = {"maxContainerRestartPeriod": "20s"}
            gates["KubeletCrashLoopBackOffMax"] = True
        config.update(more)
        config["featureGates"] = {**gates, **config["featureGates"]}
        path = self.work / "kubelet.yaml"
        path.write_text(json.dumps(config, indent=1))
        return path

    def containerd(self, peers, certs, systemd):
        """Writes a configuration for it, to compare; answers how it is run."""
        path = self.work / "containerd.toml"
        path.write_text(CONTAINERD.format(work=self.work, peers=peers, certs=certs, socket=self.socket, pause=PAUSE, systemd=str(systemd).lower()))
        return [f"{peers}/containerd", "--config", str(path)]

    def set_bridge(self, subnet, masquerade):
        """What cairn's own bridge does, for a runtime that has none."""
        (self.work / "cni" / "10-pods.conflist").write_text(json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": masquerade, "hairpinMode": True,
             "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": True}}]}))

    def start(self):
        self.serve()
        # A kubelet ends where nobody listens.
        self.kubelet.start()
        self.healthy()

    def serve(self):
        self.runtime.start()
        until(60, f"{self.runtime.name} serves", lambda: self.crictl("version"))

    def healthy(self):
        until(90, "the kubelet is healthy", lambda: self.get(HEALTH, "/healthz") == "ok" and self.pods() is not None)

    def configure(self, more, *flags):
        """The kubelet once more, with other settings on top of its own."""
        self.kubelet.stop()
        self.config({**self.own, **more})
        self.flags(flags)
        self.kubelet.start()
        self.healthy()

    def get(self, port, path):
        with urllib.request.urlopen(f"http://{self.address}:{port}{path}", timeout=20) as answer:
            return answer.read().decode(errors="replace")

    def pods(self):
        return json.loads(self.get(READ_ONLY, "/pods"))["items"] or []

    def run(self, *argv, **more):
        """What a program prints that is run on the node."""
        return run(*self.enter, *argv, **more)

    def crictl(self, *args):
        return self.run(self.crictl_program, "--config", "/dev/null", "-t", "60s", "-r", f"unix://{self.socket}",
                   "-i", f"unix://{self.socket}", *args)

    def secure(self, method, path):
        """The kubelet's own port; its certificate is one it made itself."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"https://{self.address}:{PORT}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.read().decode(errors="replace")


class RealNode(Node):
    """An emulated node. The runtime is cairn by its package's unit, or containerd in its place, to compare it with."""

    def __init__(self, work, runtime="cairn"):
        super().__init__(work, True, "/usr/local/bin/kubelet")
        self.socket = f"/run/{runtime}/{runtime}.sock"
        self.crictl_program = "crictl"
        self.programs = "/opt/node/programs"
        self.root, self.state = "/var/lib/cairn", pathlib.Path("/run/cairn")
        self.own = {"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "5s"}
        config = self.config(self.own)
        unit = pathlib.Path("/etc/systemd/system/kubelet.service")
        unit.write_text(f"""[Unit]
Description=kubelet of the tests
After=cairn.service
[Service]
EnvironmentFile=-{self.work}/flags
ExecStart=/usr/local/bin/kubelet --config {config} --root-dir {self.work}/kubelet --cert-dir {self.work}/cert --v=2 $FLAGS
Restart=always
RestartSec=1
KillMode=process
[Install]
WantedBy=multi-user.target
""")
        if runtime == "containerd":
            self.in_the_place_of_cairn()
        run("systemctl", "daemon-reload")
        self.runtime, self.kubelet = Unit(runtime), Unit("kubelet")

    def in_the_place_of_cairn(self):
        """Its shim, runc and the network's programs are beside it."""
        peers = "/opt/node/containerd"
        for path in ("plugins", "plugin-conf", "cni"):
            (self.work / path).mkdir()
        # Cairn's bridge stays when it ends.
        self.set_bridge("10.90.0.0/16", True)
        pathlib.Path("/etc/systemd/system/containerd.service").write_text(f"""[Unit]
Description=containerd, to compare with
Conflicts=cairn.service
After=cairn.service
[Service]
Type=notify
Restart=always
RestartSec=1
Environment=PATH={peers}:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={' '.join(self.containerd(peers, '/etc/cairn/certs.d', systemd=True))}
Delegate=yes
KillMode=process
LimitNOFILE=infinity
TasksMax=infinity
OOMScoreAdjust=-999
""")

    def flags(self, flags):
        (self.work / "flags").write_text(f"FLAGS={' '.join(flags)}\n")

    def end(self):
        self.kubelet.stop()
        if self.runtime.name != "cairn":
            self.runtime.stop()
            run("ip", "link", "del", "pods0", check=False)
            os.unlink("/etc/systemd/system/containerd.service")
            run("systemctl", "daemon-reload")
            run("systemctl", "start", "cairn")


class Here(Node):
    """A node on this machine: where the tests are, see outside(), or in a place of its own. The runtime is cairn, or containerd to
    compare it with."""

    def __init__(self, work, runtime="cairn", gets_subnet=False, kubelet=None, **more):
        """`kubelet` is the release of an older one (1.30)."""
        program = f"{os.environ['CAIRN_PEERS']}/bin/kubelet{f'-{kubelet}' if kubelet else ''}"
        super().__init__(work, False, program, **more)
        work, self.gets_subnet = str(work), gets_subnet
        # The first node's work is in the directory that the run has, and every other's in a directory of that.
        name = self.cgroup = f"{self.work.parent.name}.{self.name}" if self.place else self.work.name
        bins, peers = os.environ["CAIRN_BIN_DIR"], os.environ["CAIRN_PEERS"] + "/bin"
        self.programs = peers
        self.crictl_program = f"{peers}/crictl"
        self.socket, self.root, self.state = f"{work}/cairn.sock", f"{work}/root", self.work / "state"
        self.netns = self.state.with_name("netns")
        for path in ("plugins", "plugin-conf", "cni", "certs"):
            (self.work / path).mkdir()
        images = pathlib.Path(os.environ["REGISTRY"], "images.tsv").read_text().splitlines()
        for host in {image.split("/")[0] for image in images}:
            (self.work / "certs" / host).mkdir()
            (self.work / "certs" / host / "hosts.toml").write_text(
                f'server = "https://{host}"\n[host."http://127.0.0.1:5000"]\ncapabilities = ["pull", "resolve"]\n')
        self.set_network('bridge = ""' if gets_subnet else "")
        (self.work / "registry.yml").write_text(
            "version: 0.1\nlog: {level: warn}\nhttp: {addr: 127.0.0.1:5000}\n"
            f"storage: {{filesystem: {{rootdirectory: {os.environ['REGISTRY']}}}, "
            "maintenance: {uploadpurging: {enabled: false}, readonly: {enabled: true}}}\n")
        self.registry = self.program("registry", "docker-registry", "serve", work + "/registry.yml")
        # Its NRI socket is where every node has it.
        self.runtime = self.program(
            "cairn", f"{bins}/cairn", "serve", "--config", f"{work}/cairn.toml", "--root", f"{work}/root", "--state", f"{work}/state",
            "--listen", f"unix://{self.socket}", "--nri-plugin-dir", f"{work}/plugins",
            "--nri-plugin-config-dir", f"{work}/plugin-conf", "--cni-conf-dir", f"{work}/cni", "--cni-cache-dir", f"{work}/cni-cache",
            "--registry-config-dir", f"{work}/certs")
        if runtime == "containerd":
            if not gets_subnet:
                self.set_bridge("10.88.0.0/16", True)
            # Its shim and runc are beside it.
            os.environ["PATH"] = f"{peers}:{os.environ['PATH']}"
            self.runtime = self.program("containerd", *self.containerd(peers, f"{work}/certs", systemd=False))
        make_cgroups(name)
        self.own = {"cgroupDriver": "cgroupfs", "cgroupRoot": f"/{name}", "enforceNodeAllocatable": ["none"]}
        if self.release >= (1, 31):
            self.own["failCgroupV1"] = False
        config = self.config(self.own)
        self.plain = [program, "--config", str(config), "--root-dir", f"{work}/kubelet", "--cert-dir", f"{work}/cert", "--v=2"]
        self.kubelet = self.program("kubelet", *self.plain)

    def program(self, name, *argv):
        return Program(name, argv, f"{self.work}/{name}.log", place=self.place)

    def set_network(self, lines):
        (self.work / "cairn.toml").write_text(f'version = 1\n[cgroup]\nparent = "/{self.cgroup}"\n[network]\n{lines}\n')

    def take_subnet(self, subnet, pods):
        """Gives its pods a network of these addresses, under which they are known to all of the cluster's pods."""
        self.subnet = subnet
        if self.runtime.name != "cairn":
            self.set_bridge(subnet, False)
            return
        self.set_network(f'subnet = "{subnet}"\nnon_masquerade_cidrs = ["{pods}"]')
        self.runtime.stop()
        self.serve()

    def flags(self, flags):
        self.kubelet.argv = self.plain + list(flags)

    def start(self):
        self.registry.start()
        super().start()

    def end(self):
        for daemon in (self.kubelet, self.runtime, self.registry):
            daemon.stop()


def http(address, port, path="/"):
    return urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=5).read().decode()


def nothing_is_left(node):
    """Of all pods that were on the node."""
    until(120, "no sandbox is left", lambda: node.crictl("pods", "-q") == "" and node.crictl("ps", "-aq") == "")
    # Of another runtime these are not known.
    if node.runtime.name == "cairn":
        left = [p for d in ("pods", "ns", "containers", "pause") for p in (node.state / d).glob("*")]
        expect("directories of pods in the state directory", [], left)
    until(60, "no link of a pod is left", lambda: all(": uplink@" in link for link in node.run("ip", "-o", "link", "show", "type", "veth").splitlines()))
    until(60, "no cgroup of a pod is left", lambda: not run("find", "/sys/fs/cgroup", "-type", "d", "-name", "*pod????????[-_]????[-_]*", "-path",
                                                         "*kubepods*" if node.on_node else f"*/{node.cgroup}/*"))


# ---- the table -----------------------------------------------------------------------------------


class Test(typing.NamedTuple):
    name: str
    function: typing.Callable
    marks: dict


class Table:
    """Tests, each named by what is expected."""

    def __init__(self, name):
        self.name, self.tests, self.wanted, self.held, self.failed, self.left_out = name, [], [], 0, 0, 0
        self.printing = threading.Lock()

    def test(self, **marks):
        def add(function):
            self.tests.append(Test(function.__name__.replace("_", " "), function, marks))
            return function
        return add

    def arguments(self, doc, *more, check=lambda args: None):
        """The command line's, which `check` may refuse; ends the program where that is all that was asked."""
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--node", action="store_true")
        where.add_argument("--here", action="store_true")
        where.add_argument("--list", action="store_true")
        parser.add_argument("--results")
        for name, options in more:
            parser.add_argument(name, **options)
        parser.add_argument("names", nargs="*", help="parts of names")
        self.refuse = parser.error
        args = parser.parse_args()
        check(args)
        self.wanted = [t for t in self.tests if not args.names or any(n in t.name for n in args.names)]
        if not self.wanted:
            print(f"{self.name}: no test has such a name", file=sys.stderr)
            sys.exit(2)
        if args.list:
            print("\n".join(t.name for t in self.wanted))
            sys.exit(0)
        return args

    def node(self, args, **more):
        """The node that the command line names."""
        if args.node:
            work = f"/var/lib/node-{self.name}"
            shutil.rmtree(work, ignore_errors=True)
            return RealNode(work, more.get("runtime", "cairn"))
        if "CAIRN_NODE_INSIDE" not in os.environ:
            outside(self.name)
        inside()
        return Here(os.environ["CAIRN_NODE_INSIDE"], **more)

    @staticmethod
    def made(name, function):
        return Test(name, function, {})

    def leave_out(self, why):
        """Leaves out the tests for which `why` has a reason; prints it."""
        for test in self.wanted[:]:
            if reason := why(test.marks):
                print(f"left out {test.name}\n         {reason}", flush=True)
                self.wanted.remove(test)
                self.left_out += 1

    def hold(self, tests, jobs=1):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.one, tests))

    def one(self, test):
        """Whether it held."""
        began = time.monotonic()
        try:
            test.function()
            result, why = "ok", ""
        except Failed as reason:
            result, why = "FAILED", str(reason)
        except Exception:
            result, why = "FAILED", traceback.format_exc()[-600:]
        with self.printing:
            print(f"{result:8} {test.name:80} {time.monotonic() - began:6.1f} s" + (f"\n         {why}" if why else ""), flush=True)
            if why:
                self.failed += 1
            else:
                self.held += 1
        return not why

    def broken(self, what, error, daemons):
        print(f"FAILED   {what} does not come up: {error}")
        for daemon in daemons:
            print(f"---- {daemon.title}\n{daemon.log()[-1500:]}")
        self.failed += 1

    def end(self, args, daemons):
        """Keeps the daemons' logs; answers the exit code."""
        if args.results:
            os.makedirs(args.results, exist_ok=True)
            for daemon in daemons:
                (pathlib.Path(args.results) / f"{daemon.title}.log").write_text(daemon.log())
        print(f"{self.name}: {self.held} held, {self.failed} failed" + (f", {self.left_out} left out" if self.left_out else ""))
        return 1 if self.failed or not self.held else 0
