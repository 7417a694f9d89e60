#!/usr/bin/env python3
"""What a cluster's users expect of nodes with cairn: a cluster of one, and of two, with a real API server, asked by kubectl.

  cluster.py --node [--results DIR] [NAME...]       on a node: cairn.service, a unit for the kubelet, the images' registry
  cluster.py --here [--results DIR] [NAME...]       on this machine, in namespaces of its own: needs CAIRN_BIN_DIR,
                                                    CAIRN_PEERS, and REGISTRY (the data of a registry, hack/node build)
    --runtime containerd                            to compare: the same with containerd; on a node it is in cairn's place (part rollout)
    --pods N                                        of the roll-over: 50, and 20 on a node, which is emulated, if it is not said
    --storm MINUTES                                 instead of the tests: cairn, the kubelet and a plugin are killed at
                                                    random; no pod may be restarted that was not killed
    --seed N                                        the storm's
    --shell                                         instead of the tests: a shell with kubectl, crictl and cairn; with it, all ends
    --nodes N                                       the shell's: 1 (the default) or 2
    --conformance                                   the shell's: what Kubernetes' own tests need, a DNS server and images;
                                                    afterwards nothing may be left on the nodes
    --plugins                                       instead of the tests: NRI plugins and drivers that others wrote, plugins.py;
                                                    on this machine only

  cluster.py --list

etcd, the API server, its controllers, the scheduler and the service proxy are those of the kubelet's release. Judged by what
the API server says of the pods, and by what is left on the node. Tests that take two nodes (two.py; their names have "two" in
them) come after the others, when a second node has joined: on this machine only. Exits 0 if all of it held.
"""
import argparse
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shlex
import subprocess
import sys
import time

import plugins
import two
from kubectl import KUBECTL, LIMITED, PLUGIN, applied, asked_for, c, condition, dns, get, is_ready, kubectl, limits, one_of, plugin, pods_of, ready_of
from kubectl import rolled_out, single, workload
from node import FOREVER, IMAGE, PAUSE, Failed, Here, Table, expect, http, nothing_is_left, run, until
from place import Place
from plane import ADDRESS, DNS, NODES, Plane, connect

TABLE = Table("cluster")
test = TABLE.test


# ---- what is expected ------------------------------------------------------------------------------


@test()
def the_node_is_ready_and_names_its_runtime():
    info = get("node", "node")["status"]["nodeInfo"]
    expect("the runtime", True, info["containerRuntimeVersion"].startswith(f"{NODE.runtime.name}://"))
    seen = kubectl("get", "nodes", "-o", "wide", "--no-headers").split()
    expect("name, status and address", ("node", "Ready", ADDRESS), (seen[0], seen[1], seen[5]))


@test()
def exec_logs_cp_attach_and_debug_by_kubectl():
    with applied(single("tools", c(f"echo first line; echo second line; {FOREVER}"))):
        is_ready("tools")
        expect("what a command prints", "42", kubectl("exec", "tools", "--", "sh", "-c", "echo $((6 * 7))"))
        ran = kubectl("exec", "tools", "--", "sh", "-c", "echo wrong >&2; exit 7", raw=True)
        expect("the exit code, and the error's words", (7, True), (ran.returncode, "wrong" in ran.stderr))
        much = base64.b64encode(os.urandom(3 << 20)).decode()
        expect("standard input, all of it", hashlib.sha256(much.encode()).hexdigest(),
               kubectl("exec", "-i", "tools", "--", "sha256sum", text=much).split()[0])
        expect("logs", "first line\nsecond line", kubectl("logs", "tools"))
        expect("the last of them", "second line", kubectl("logs", "--tail=1", "tools"))
        there, back = NODE.work / "there", NODE.work / "back"
        there.write_text(much)
        kubectl("cp", str(there), "tools:/tmp/file")
        kubectl("cp", "tools:/tmp/file", str(back))
        expect("a file, there and back", True, there.read_text() == back.read_text())
        # It begins when it is spoken to: what it said before one is attached would be lost.
        seen = kubectl("debug", "tools", "--image", IMAGE, "--target", "c", "-i", "--quiet", "--", "sh", "-c", "read word; ps -o args", text="go\n")
        expect("the target's processes, seen by a debugging container", True, "sleep 0.2" in seen or "while :" in seen)
    seen = kubectl("run", "once", "--rm", "-i", "--quiet", "--restart=Never", "--image", IMAGE, "--pod-running-timeout=5m",
                   "--command", "--", "sh", "-c", "read word; echo got $word", text="it\n")
    expect("a pod by kubectl run, attached to", "got it", seen.splitlines()[0])


@test()
def a_port_is_forwarded_by_kubectl():
    with applied(single("web", c("mkdir /tmp/www; echo here >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"))):
        is_ready("web")
        with subprocess.Popen([*KUBECTL, "port-forward", "pod/web", "18081:8080"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as forward:
            try:
                until(30, "the page, through the forwarded port", lambda: http("127.0.0.1", 18081) == "here\n")
            finally:
                forward.terminate()


@test()
def a_service_leads_to_each_of_its_pods():
    page = "mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"
    probe = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pages"},
               "spec": {"selector": {"app": "pages"}, "ports": [{"port": 80, "targetPort": 8080}]}}
    with applied(service, workload("Deployment", "pages", c(page, readinessProbe=probe), replicas=2)):
        rolled_out("deployment", "pages")
        address = get("service", "pages")["spec"]["clusterIP"]
        names = {p["metadata"]["name"] for p in ready_of("pages")}
        seen = set()
        def all_seen():
            seen.add(http(address, 80).strip())
            return seen == names
        until(30, f"both pods answer at {address} on the node", all_seen)
        one = one_of("pages")
        until(30, "so they do in a pod", lambda: kubectl("exec", one, "--", "wget", "-q", "-T", "5", "-O", "-", f"http://{address}/") in names)


@test()
def a_job_runs_to_its_end_and_a_stateful_set_in_its_order():
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sums"}, "spec": {
        "completions": 3, "parallelism": 2, "completionMode": "Indexed", "template": {
            "metadata": {"labels": {"app": "sums"}},
            "spec": {"restartPolicy": "Never", "containers": [c("echo sum of $JOB_COMPLETION_INDEX is $((JOB_COMPLETION_INDEX * 2))")]}}}}
    # Not ready for two seconds, so that one that does not wait for the one before it is made sooner.
    probe = {"exec": {"command": ["true"]}, "initialDelaySeconds": 2, "periodSeconds": 1, "timeoutSeconds": 10}
    states = workload("StatefulSet", "states", c(FOREVER, readinessProbe=probe), replicas=3, serviceName="states")
    with applied(job, states):
        until(120, "the job is complete", lambda: condition(get("job", "sums"), "Complete"))
        lines = sorted(kubectl("logs", p["metadata"]["name"]) for p in pods_of("sums"))
        expect("what its pods wrote", [f"sum of {n} is {n * 2}" for n in range(3)], lines)
        rolled_out("statefulset", "states")
        pods = sorted(pods_of("states"), key=lambda p: p["metadata"]["name"])
        for one, following in zip(pods, pods[1:]):
            ready = next(c["lastTransitionTime"] for c in one["status"]["conditions"] if c["type"] == "Ready")
            made = following["metadata"]["creationTimestamp"]
            expect(f"{following['metadata']['name']} is made once the one before it is ready, at {ready}", lambda at, r=ready: at >= r, made)


@test()
def a_plugin_in_a_daemon_set_adjusts_pods_and_outlives_its_upgrade():
    before = asked_for("unplugged")
    expect("limits without the plugin", True, before != "234 345")
    with applied(plugin("v1"), workload("Deployment", "limited", c(FOREVER), annotations=LIMITED, replicas=2)):
        rolled_out("daemonset", "plugin")
        # It runs before it is connected: the first pods may come too early.
        until(60, "limits with the plugin", lambda: asked_for("first") == "234 345")
        running = {p["metadata"]["uid"] for p in until(60, "both run", lambda: len(ready_of("limited")) == 2 and ready_of("limited"))}
        old = pods_of("plugin")[0]["metadata"]["uid"]
        kubectl("set", "image", "daemonset/plugin", f"c={PLUGIN}:v2")
        rolled_out("daemonset", "plugin")
        new = until(60, "one plugin is left", lambda: len(pods_of("plugin")) == 1 and pods_of("plugin"))[0]
        expect("another pod, with the other image", (True, f"{PLUGIN}:v2"), (new["metadata"]["uid"] != old, new["spec"]["containers"][0]["image"]))
        until(60, "limits after its upgrade", lambda: asked_for("second") == "234 345")
        kubectl("rollout", "restart", "deployment/limited")
        rolled_out("deployment", "limited")
        expect("limits of a Deployment made anew", {"234 345"}, {limits(p["metadata"]["name"]) for p in ready_of("limited")})
        expect("the old ones are gone", True, running.isdisjoint(p["metadata"]["uid"] for p in ready_of("limited")))
    until(30, "without it pods are not adjusted", lambda: asked_for("last") == before)


@test()
def many_pods_are_rolled_over_and_go():
    many = MANY or (20 if NODE.on_node else 50)
    # `until` gives an emulated node four times this: 80 s a pod, of which the slower runtime took 24 to roll twenty over, and
    # more than 60 for fifty.
    long = max(300, many * 20)
    began = time.monotonic()
    def passed():
        nonlocal began
        began, last = time.monotonic(), began
        return began - last
    with applied(workload("Deployment", "many", c(FOREVER), replicas=many), gone_in=long):
        rolled_out("deployment", "many", seconds=long)
        up = passed()
        kubectl("set", "env", "deployment/many", "ROUND=2")
        rolled_out("deployment", "many", seconds=long)
        until(long, "only the new ones are left", lambda: len(pods_of("many")) == many)
        over = passed()
        restarts = sum(s["restartCount"] for p in pods_of("many") for s in p["status"]["containerStatuses"])
        expect("restarts", 0, restarts)
        passed()
    # Their sandboxes go by the kubelet's next round, a minute at most.
    expect("sandboxes that are ready", "", NODE.crictl("pods", "-q", "--label", "app=many", "--state", "ready"))
    print(f"         {many} pods available after {up:.1f} s, rolled over in {over:.1f} s, gone in {passed():.1f} s ({NODE.runtime.name})")


@test(last=True)
def nothing_is_left_when_all_is_deleted():
    for node in NODES:
        nothing_is_left(node)


TABLE.tests += two.TABLE.tests + plugins.TABLE.tests


# ---- the storm -------------------------------------------------------------------------------------


def storm(minutes, seed):
    """Pods live and come and go while cairn, the kubelet and the plugin are killed: none is restarted that was not killed."""
    dice = random.Random(seed)
    daemons = {daemon.name: daemon for daemon in (NODE.runtime, NODE.kubelet)}
    killed = {name: 0 for name in (*daemons, "plugin")}
    print(f"cluster: a storm of {minutes} minutes, seed {seed}", flush=True)

    def restarts(app):
        return {p["metadata"]["name"]: sum(s["restartCount"] for s in p["status"].get("containerStatuses", [])) for p in pods_of(app)}

    def plugins_process():
        container = ready_of("plugin")[0]["status"]["containerStatuses"][0]["containerID"].split("//")[1]
        seen = json.loads(NODE.crictl("inspect", container))
        # Of a container that has ended the pid is 0, which is a whole group for kill.
        if seen["status"]["state"] != "CONTAINER_RUNNING" or seen["info"]["pid"] <= 1:
            raise Failed("the plugin does not run")
        return seen["info"]["pid"]

    with applied(plugin("v1"), workload("Deployment", "steady", c(FOREVER), replicas=20), workload("Deployment", "moving", c(FOREVER), replicas=5)):
        for name in ("steady", "moving"):
            rolled_out("deployment", name)
        rolled_out("daemonset", "plugin")
        steady = {p["metadata"]["uid"] for p in ready_of("steady")}
        end = time.monotonic() + minutes * 60
        told = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(dice.uniform(1, 10) * NODE.patience / 2)
            kubectl("scale", "deployment/moving", f"--replicas={dice.randrange(12)}")
            victim = dice.choice(sorted(killed))
            if victim == "plugin":
                # It may be on its way back from the last time.
                with contextlib.suppress(Failed, LookupError, ValueError, OSError):
                    os.kill(plugins_process(), 9)
                    killed[victim] += 1
            else:
                daemons[victim].kill()
                killed[victim] += 1
            if time.monotonic() > told:
                told += 60
                print(f"  {(minutes * 60 - end + time.monotonic()):5.0f} s  killed: {killed}", flush=True)
                expect("restarts of pods that were not killed", 0, sum(restarts("steady").values()) + sum(restarts("moving").values()))
        kubectl("scale", "deployment/moving", "--replicas=7")
        NODE.healthy()
        for name in ("steady", "moving"):
            rolled_out("deployment", name)
        until(120, "the plugin is back", lambda: ready_of("plugin"))
        until(60, "the moving ones are seven", lambda: len(pods_of("moving")) == 7)
        expect("the steady pods are the same", steady, {p["metadata"]["uid"] for p in ready_of("steady")})
        expect("restarts of pods that were not killed", 0, sum(restarts("steady").values()) + sum(restarts("moving").values()))
        # Deletion is as hard for a node as running.
    print(f"cluster: killed {killed}; no pod was restarted that was not killed", flush=True)


def shell():
    """Kubectl and the rest for a person, or for the lines that standard input has."""
    def talks_to(node):
        return {name: f"unix://{node.socket}" for name in ("CONTAINER_RUNTIME_ENDPOINT", "IMAGE_SERVICE_ENDPOINT")}
    path = [os.environ["CAIRN_BIN_DIR"], NODE.programs, os.environ["PATH"]]
    print(f"cluster: one node, {NODE.runtime.name}; kubectl, crictl and cairn talk to it; plugins connect to /var/run/nri/nri.sock")
    for node in NODES[1:]:
        # Its name is a program that runs another there.
        there = node.work / "bin" / node.name
        there.parent.mkdir()
        there.write_text(f"#!/bin/sh\nexec {shlex.join(node.enter)} env -C \"$PWD\" {shlex.join(f'{k}={v}' for k, v in talks_to(node).items())} \"$@\"\n")
        there.chmod(0o755)
        path.insert(0, str(there.parent))
        print(f"cluster: and another, {node.name}; to do things on it: {node.name} crictl pods, {node.name} sh")
    print("cluster: an image from elsewhere: cairn image import FILE; with the end of this shell all of it ends", flush=True)
    return subprocess.call([os.environ.get("SHELL") or "sh"], cwd=os.environ.get("CALLER_DIR"), env={
        **os.environ, **talks_to(NODE), "PATH": ":".join(path), "KUBECONFIG": PLANE.config["admin"], "KUBECACHEDIR": str(PLANE.work / "cache")})


def conform():
    """A shell in which Kubernetes' conformance tests run. Each image is there before: they wait for its start only."""
    lines = pathlib.Path(os.environ["REGISTRY"], "images.tsv").read_text().splitlines()
    for node in NODES:
        for image in (line.split("\t")[0] for line in lines if line.startswith("registry.k8s.io/")):
            node.crictl("pull", image)
    with applied(*dns(DNS)):
        rolled_out("deployment", "coredns", "-n", "kube-system")
        TABLE.failed += shell() != 0


def minutes(text):
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("a storm takes more than no time")
    return value


def how_many(text):
    value = int(text)
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError("a node has room for 1 to 100")
    return value


NODE = PLANE = PLACE = MANY = None


def join_a_second(runtime):
    """Makes another node, in the place that was made for it."""
    address = "192.168.88.2"
    connect(PLACE, PLACE.pid, address)
    node = Here(NODE.work / PLACE.name, runtime, gets_subnet=True, name=PLACE.name, place=PLACE, address=address)
    NODES.append(node)
    node.start()
    node.crictl("pull", IMAGE)
    PLANE.join(node, address)


def why_left_out(entry, nodes):
    if entry.marks.get("nodes", 1) > nodes:
        return "there is no second node" if PLACE else "it needs a second node, which can be made beside one in namespaces only"
    return None


def hold(runtime):
    """The tests that are wanted: those of two nodes after those of one."""
    nodes, tried = 1, PLACE is None
    for entry in sorted(TABLE.wanted, key=lambda t: (t.marks.get("last", False), t.marks.get("nodes", 1))):
        if entry.marks.get("nodes") == 2 and not tried:
            tried = True
            nodes += TABLE.one(TABLE.made("a second node joins", lambda: join_a_second(runtime)))
        why = why_left_out(entry, nodes)
        if why:
            print(f"left out {entry.name}: {why}")
        else:
            TABLE.one(entry)


def all_daemons():
    return [daemon for node in NODES for daemon in (node.runtime, node.kubelet)] + (PLANE.daemons if PLANE else [])


def check(args):
    if args.node and args.shell:
        TABLE.refuse("--shell is for --here")
    if args.plugins and (args.node or args.storm or args.runtime != "cairn"):
        TABLE.refuse("--plugins is for --here, for its tests, and for cairn")
    if (args.nodes != 1 or args.conformance) and not args.shell:
        TABLE.refuse("--nodes and --conformance are for --shell: tests say themselves what they need")


def main():
    global NODE, PLANE, PLACE, MANY
    args = TABLE.arguments(__doc__, ("--runtime", {"choices": ["cairn", "containerd"], "default": "cairn"}), ("--shell", {"action": "store_true"}),
                           ("--pods", {"type": how_many, "metavar": "N"}),
                           ("--nodes", {"type": int, "choices": [1, 2], "default": 1}),
                           ("--conformance", {"action": "store_true"}), ("--plugins", {"action": "store_true"}),
                           ("--storm", {"type": minutes, "metavar": "MINUTES"}), ("--seed", {"type": int, "default": 1}), check=check)
    MANY = args.pods
    TABLE.wanted = [t for t in TABLE.wanted if t.marks.get("last") or t.marks.get("plugins", False) == args.plugins]
    NODE = TABLE.node(args, runtime=args.runtime, gets_subnet=True)
    NODES.append(NODE)
    try:
        if args.conformance and os.path.ismount("/sys/fs/cgroup/unified"):
            # The tests take any mount of cgroup2 for a host with cgroup v2.
            run("umount", "/sys/fs/cgroup/unified")
        if args.here:
            PLACE = Place("node2")
        if args.plugins:
            plugins.usual_directory(NODE)
        NODE.start()
        PLANE = Plane(NODE)
        PLANE.start()
        if args.shell:
            if args.nodes == 2:
                join_a_second(args.runtime)
            if not args.conformance:
                return shell()
            conform()
            TABLE.wanted = [t for t in TABLE.tests if t.marks.get("last")]
            hold(args.runtime)
            return TABLE.end(args, all_daemons())
        NODE.crictl("pull", IMAGE)
        if args.runtime == "containerd":
            NODE.crictl("pull", PAUSE)
        if args.storm:
            TABLE.wanted = [t for t in TABLE.tests if t.marks.get("last")]
            TABLE.one(TABLE.made("pods outlive a storm", lambda: storm(args.storm, args.seed)))
        hold(args.runtime)
    except (Failed, OSError) as error:
        TABLE.broken("the cluster", error, all_daemons())
    finally:
        for node in NODES[1:]:
            node.end()
        if PLANE:
            PLANE.end()
        NODE.end()
        if PLACE:
            PLACE.end()
    return TABLE.end(args, all_daemons())


if __name__ == "__main__":
    sys.exit(main())
