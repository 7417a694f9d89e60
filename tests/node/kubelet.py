#!/usr/bin/env python3
"""What a kubelet expects of its runtime, as a table: a real kubelet, standalone, whose pods come from files.

  kubelet.py --node [--results DIR] [NAME...]       on a node: cairn.service, a unit for the kubelet, the images' registry
  kubelet.py --here [--results DIR] [NAME...]       on this machine, in namespaces of its own: needs CAIRN_BIN_DIR,
                                                    CAIRN_PEERS, and REGISTRY (the data of a registry, hack/node build)
    --kubelet RELEASE                               an older kubelet (1.30, 1.34), on this machine
    --all-alpha                                     all of the table with the kubelet's feature gate AllAlpha
  kubelet.py --list

A test may need a newer kubelet, cgroup v2, or the node's own kernel; the reason is printed where it is left out. Tests of alpha features run with
the gate AllAlpha, after the others.

Tests that disturb nobody run at the same time; those that end daemons or fill the node run after them, alone. Each is judged
by what the kubelet says of its pods, not by what cairn says. Exits 0 if all of it held.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

from api import Api
from node import FOREVER, IMAGE, PORT, READ_ONLY, Failed, Table, expect, http, nothing_is_left, read, run, until
from websocket import Channels

VOLUME = "gcr.io/k8s-staging-cri-tools/test-image-tag:test"
UNUSED = "gcr.io/k8s-staging-cri-tools/test-image-1:latest"
TABLE = Table("kubelet")
V2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
# Of a test of alpha features, as a default of the node: a sysctl of the pod's network namespace.
SYSCTL, VALUE = "net.ipv4.tcp_keepalive_time", "1234"
# Alpha features of the scheduler depend on a beta one that is off.
ALPHA = {"featureGates": {"AllAlpha": True, "GenericWorkload": True}, "defaultPodSysctls": {SYSCTL: VALUE}}
test = TABLE.test


# ---- pods --------------------------------------------------------------------------------------


def sh(script, name="c", **more):
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script], **more}


class Pod:
    """A static pod; its file is removed at the end of the test, and the test sees the pod go."""

    count = 0
    lock = threading.Lock()

    def __init__(self, *containers, grace=2, name=None, **spec):
        with Pod.lock:
            Pod.count += 1
            self.short = name or f"t{Pod.count}"
        self.uid = str(uuid.uuid4())
        self.dir = NODE.shared / self.short
        self.dir.mkdir(exist_ok=True)
        self.dir.chmod(0o777)
        self.spec = {"terminationGracePeriodSeconds": grace, "containers": list(containers), **spec}
        for c in self.spec["containers"] + self.spec.get("initContainers", []):
            c.setdefault("imagePullPolicy", "IfNotPresent")
            c.setdefault("volumeMounts", []).append({"name": "shared", "mountPath": "/shared"})
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if probe in c:
                    # A second is short for an emulated node.
                    c[probe].setdefault("timeoutSeconds", 10 if NODE.on_node else 1)
        self.spec.setdefault("volumes", []).append({"name": "shared", "hostPath": {"path": str(self.dir)}})
        self.file = NODE.manifests / f"{self.short}.json"
        self.write()

    def write(self):
        pod = {"apiVersion": "v1", "kind": "Pod",
               "metadata": {"name": self.short, "namespace": "default", "uid": self.uid, "labels": {"app": self.short}},
               "spec": self.spec}
        beside = NODE.manifests / f".{self.short}.new"
        beside.write_text(json.dumps(pod))
        beside.rename(self.file)

    def seen(self):
        for pod in NODE.pods():
            if pod["metadata"]["name"].startswith(self.short + "-"):
                return pod
        return None

    def status(self, name="c", kind="containerStatuses"):
        pod = self.seen()
        for status in (pod or {}).get("status", {}).get(kind, []):
            if status["name"] == name:
                return status
        return {}

    def phase(self):
        return (self.seen() or {}).get("status", {}).get("phase")

    def ready(self, name="c"):
        return self.status(name).get("ready", False)

    def restarts(self, name="c"):
        return self.status(name).get("restartCount", 0)

    def id(self, name="c"):
        return self.status(name)["containerID"].split("//")[1]

    def ip(self):
        return self.seen()["status"]["podIP"]

    def running(self, name="c"):
        until(60, f"{self.short}/{name} runs", lambda: "running" in self.status(name).get("state", {}))

    def exec(self, script, name="c"):
        return NODE.crictl("exec", "-s", self.id(name), "sh", "-c", script)

    def kubelets_name(self):
        return self.seen()["metadata"]["name"]

    def cgroup(self):
        """The directory of the pod's cgroup, as the kubelet named it."""
        meta = self.seen()["metadata"]
        uid = meta.get("annotations", {}).get("kubernetes.io/config.hash", meta["uid"])
        for base, dirs, _ in os.walk("/sys/fs/cgroup"):
            for each in dirs:
                if uid in each or uid.replace("-", "_") in each:
                    return pathlib.Path(base) / each
        return None

    def remove(self):
        self.file.unlink(missing_ok=True)

    def gone(self):
        names = NODE.crictl("pods", "-q", "--namespace", "default", "--state", "ready", "--label", f"app={self.short}")
        return not names and self.seen() is None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.remove()
        if kind is None:
            until(40, f"{self.short} is gone after its file", self.gone)


# ---- what is expected, beside each other ----------------------------------------------------------


@test()
def init_containers_run_in_order_and_before_the_rest():
    with Pod(sh(f"echo app >>/shared/order; {FOREVER}"),
             initContainers=[sh("echo one >>/shared/order", "i1"), sh("sleep 1; echo two >>/shared/order", "i2")]) as pod:
        pod.running()
        until(20, "all have written", lambda: read(pod.dir / "order") == "one\ntwo\napp\n")
        ends = [pod.status(n, "initContainerStatuses")["state"]["terminated"] for n in ("i1", "i2")]
        expect("exit codes", [0, 0], [e["exitCode"] for e in ends])
        expect("the second began after the end of the first", True, ends[0]["finishedAt"] <= ends[1]["startedAt"])


@test()
def a_failing_init_container_is_tried_again_and_holds_the_rest():
    with Pod(sh(FOREVER), initContainers=[sh("n=$(cat /shared/n 2>/dev/null || echo 0); echo $((n+1)) >/shared/n; [ $n -ge 1 ]", "i")]) as pod:
        pod.running()
        expect("restarts of the init container", 1, pod.status("i", "initContainerStatuses")["restartCount"])


@test()
def a_sidecar_runs_before_and_ends_after_the_rest():
    side = sh("echo side up >>/shared/order; trap 'echo side down >>/shared/order; exit 0' TERM; while :; do sleep 0.1; done",
              "side", restartPolicy="Always", startupProbe={"exec": {"command": ["grep", "-q", "side up", "/shared/order"]}, "periodSeconds": 1})
    with Pod(sh("echo app up >>/shared/order; trap 'sleep 1; echo app down >>/shared/order; exit 0' TERM; while :; do sleep 0.1; done"),
             initContainers=[side], grace=20) as pod:
        pod.running()
        pod.remove()
        until(60, "both have ended in order", lambda: read(pod.dir / "order") == "side up\napp up\napp down\nside down\n")


@test()
def a_sidecar_that_ends_is_started_again_alone():
    with Pod(sh(FOREVER), initContainers=[sh(f"[ -e /shared/once ] || {{ touch /shared/once; sleep 1; exit 3; }}; {FOREVER}", "side", restartPolicy="Always")]) as pod:
        pod.running()
        until(60, "the sidecar came back", lambda: pod.status("side", "initContainerStatuses")["restartCount"] == 1)
        expect("restarts of the app", 0, pod.restarts())


@test()
def a_startup_probe_holds_readiness_and_liveness_back():
    probe = {"exec": {"command": ["test", "-e", "/shared/started"]}, "periodSeconds": 1, "failureThreshold": 200}
    live = {"exec": {"command": ["test", "-e", "/shared/started"]}, "periodSeconds": 1, "failureThreshold": 1}
    with Pod(sh(FOREVER, startupProbe=probe, livenessProbe=live)) as pod:
        pod.running()
        time.sleep(3)
        expect("ready before the probe holds", (False, 0), (pod.ready(), pod.restarts()))
        (pod.dir / "started").touch()
        until(30, "ready once it holds", pod.ready)


@test()
def readiness_by_exec_follows_the_container():
    probe = {"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    with Pod(sh(FOREVER, readinessProbe=probe)) as pod:
        pod.running()
        expect("ready without the file", False, pod.ready())
        (pod.dir / "ready").touch()
        until(30, "ready with it", pod.ready)
        (pod.dir / "ready").unlink()
        until(30, "not ready without it", lambda: not pod.ready())
        expect("restarts", 0, pod.restarts())


@test()
def an_exec_probe_that_hangs_fails_by_its_timeout_and_leaves_no_process():
    probe = {"exec": {"command": ["sh", "-c", "exec sleep 7777"]}, "periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 1}
    with Pod(sh(FOREVER, readinessProbe=probe)) as pod:
        pod.running()
        time.sleep(5)
        expect("ready", False, pod.ready())
        expect("no more than the probe that is under way", lambda n: int(n) <= 1,
               pod.exec("ps -o args | grep -c '^sleep 7777' || true"))


@test()
def liveness_by_http_restarts_the_container():
    script = "mkdir -p /tmp/www; echo ok >/tmp/www/live; httpd -f -p 8080 -h /tmp/www & sleep 6; [ -e /shared/once ] || { touch /shared/once; rm /tmp/www/live; }; wait"
    probe = {"httpGet": {"path": "/live", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2, "initialDelaySeconds": 2}
    with Pod(sh(script, livenessProbe=probe)) as pod:
        until(90, "it was restarted", lambda: pod.restarts() == 1 and "running" in pod.status()["state"])
        expect("how the first ended", 137, pod.status()["lastState"]["terminated"]["exitCode"])


@test()
def readiness_by_tcp_follows_the_port():
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 1}
    with Pod(sh("while [ ! -e /shared/go ]; do sleep 0.2; done; exec httpd -f -p 8080 -h /tmp", readinessProbe=probe)) as pod:
        pod.running()
        expect("ready before the port is open", False, pod.ready())
        (pod.dir / "go").touch()
        until(30, "ready when it is", pod.ready)


@test()
def liveness_by_grpc_restarts_the_container():
    tools = {"name": "tools", "hostPath": {"path": NODE.programs}}
    health = {"name": "c", "image": IMAGE, "command": ["/tools/grpc-health", "9090", "/tmp/sick"],
              "livenessProbe": {"grpc": {"port": 9090}, "periodSeconds": 1, "failureThreshold": 2, "initialDelaySeconds": 2},
              "readinessProbe": {"grpc": {"port": 9090}, "periodSeconds": 1},
              "volumeMounts": [{"name": "tools", "mountPath": "/tools", "readOnly": True}]}
    with Pod(health, volumes=[tools]) as pod:
        until(60, "ready by grpc", pod.ready)
        pod.exec("touch /tmp/sick")
        until(60, "restarted, with a root of its own", lambda: pod.restarts() == 1 and pod.ready())


@test()
def host_ports_lead_to_the_pod():
    page = sh("mkdir /tmp/www; echo here >/tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www",
              ports=[{"containerPort": 80, "hostPort": 18080}])
    with Pod(page) as pod:
        pod.running()
        until(20, "the node's port answers", lambda: http("127.0.0.1", 18080) == "here\n")
        expect("so does the pod's address", "here\n", http(pod.ip(), 80))


@test()
def logs_are_rotated_and_none_is_lost_to_readers():
    with Pod(sh("i=0; while :; do i=$((i+1)); echo line $i of a log that grows and grows and grows and grows; [ $((i % 50)) != 0 ] || sleep 0.1; done")) as pod:
        pod.running()
        logs = NODE.work / "podlogs"
        def files():
            return sorted(p.name for p in logs.glob(f"default_{pod.short}-*/c/*"))
        until(120, "rotated, and the oldest compressed", lambda: len(files()) >= 3 and any(f.endswith(".gz") for f in files()))
        # Between the kubelet's rename and its word to the runtime there is none.
        until(20, "a file that is written to", lambda: "0.log" in files())
        tail = read_logs(pod, "tailLines=3")
        expect("three lines by the kubelet", 3, len(tail.splitlines()))
        until(30, "no more files than are allowed", lambda: len(files()) <= 3)


def read_logs(pod, query=""):
    return NODE.secure("GET", f"/containerLogs/default/{pod.kubelets_name()}/c?{query}")


@test()
def a_crash_loop_backs_off_and_keeps_the_previous_log():
    with Pod(sh("echo try $(date +%s); exit 4")) as pod:
        until(90, "two restarts", lambda: pod.restarts() >= 2)
        until(60, "the reason is CrashLoopBackOff", lambda: pod.status()["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")
        last = pod.status()["lastState"]["terminated"]
        expect("exit code and reason", (4, "Error"), (last["exitCode"], last["reason"]))
        expect("the previous log", lambda text: text.startswith("try "), read_logs(pod, "previous=true"))


@test()
def post_start_runs_before_the_next_container_and_pre_stop_before_the_signal():
    hooks = {"postStart": {"exec": {"command": ["sh", "-c", "sleep 1; echo post >>/shared/order"]}},
             "preStop": {"exec": {"command": ["sh", "-c", "echo pre >>/shared/order; sleep 1"]}}}
    with Pod(sh("trap 'echo term >>/shared/order; exit 0' TERM; while :; do sleep 0.1; done", lifecycle=hooks),
             sh(f"echo second >>/shared/order; {FOREVER}", "second"), grace=30) as pod:
        pod.running("second")
        expect("until here", "post\nsecond\n", read(pod.dir / "order"))
        pod.remove()
        until(60, "all four in order", lambda: read(pod.dir / "order") == "post\nsecond\npre\nterm\n")


@test()
def a_failing_post_start_kills_and_restarts_the_container():
    hooks = {"postStart": {"exec": {"command": ["sh", "-c", "[ -e /shared/once ] || { touch /shared/once; exit 1; }"]}}}
    with Pod(sh(FOREVER, lifecycle=hooks)) as pod:
        until(90, "restarted once, then running", lambda: pod.restarts() == 1 and "running" in pod.status()["state"])


@test()
def the_grace_period_is_given_and_not_more():
    with Pod(sh("trap 'date +%s >/shared/term' TERM; while :; do date +%s >/shared/last; sleep 0.2; done"), grace=6) as pod:
        pod.running()
        until(10, "it writes", lambda: read(pod.dir / "last"))
        pod.remove()
        until(60, "it is gone", pod.gone)
        term, last = (int(read(pod.dir / f)) for f in ("term", "last"))
        expect("seconds between the signal and the end", lambda s: 4 <= s <= 8, last - term)


@test()
def a_pod_that_obeys_ends_at_once():
    with Pod(sh("trap 'exit 0' TERM; while :; do sleep 0.1; done"), grace=600) as pod:
        pod.running()
        pod.remove()
        until(30, "it is gone long before its grace ends", pod.gone)


@test()
def a_termination_message_is_read_from_its_file_and_from_the_log():
    with Pod(sh("echo said at the end >/dev/termination-log; exit 7", "file"),
             sh("echo last words; exit 8", "log", terminationMessagePolicy="FallbackToLogsOnError"), restartPolicy="Never") as pod:
        until(60, "both ended", lambda: pod.phase() == "Failed")
        ends = [pod.status(n)["state"]["terminated"] for n in ("file", "log")]
        expect("codes and messages", [(7, "said at the end\n"), (8, "last words\n")], [(e["exitCode"], e["message"]) for e in ends])


@test()
def a_pod_that_succeeds_is_not_started_again():
    with Pod(sh("sleep 1; exit 0"), restartPolicy="OnFailure") as pod:
        until(60, "succeeded", lambda: pod.phase() == "Succeeded")
        time.sleep(3)
        expect("restarts", 0, pod.restarts())


@test()
def out_of_memory_is_reported_by_its_name():
    with Pod(sh("sleep 1; exec tail /dev/zero", resources={"limits": {"memory": "32Mi"}}), restartPolicy="Never") as pod:
        until(90, "it ended", lambda: "terminated" in pod.status().get("state", {}))
        end = pod.status()["state"]["terminated"]
        expect("reason and code", ("OOMKilled", 137), (end["reason"], end["exitCode"]))


def in_cgroups(group, v2, v1):
    """What the kernel has in a file of a cgroup that the kubelet made, by the names that cgroup v2 and v1 have for it."""
    if V2:
        return read(group / v2).strip()
    controller, file = v1.split("/")
    return read(pathlib.Path("/sys/fs/cgroup", controller, *group.parts[5:], file)).strip()


@test()
def limits_and_requests_are_in_the_cgroups():
    resources = {"limits": {"memory": "64Mi", "cpu": "500m"}, "requests": {"memory": "64Mi", "cpu": "500m"}}
    with Pod(sh(FOREVER, resources=resources)) as pod:
        pod.running()
        group = pod.cgroup()
        expect("the kubelet's cgroup of the pod", True, group is not None)
        if V2:
            expect("the pod's memory.max", "67108864", read(group / "memory.max").strip())
            expect("the container's, from inside", "67108864\n50000 100000", pod.exec("cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max"))
            own = run("sh", "-c", f"find {group} -mindepth 1 -type d | wc -l")
            expect("the container's cgroup lies in the pod's", lambda n: int(n) >= 1, own)
        else:
            expect("from inside", "67108864", pod.exec("cat /sys/fs/cgroup/memory/memory.limit_in_bytes"))


@test(since=(1, 35))
def limits_of_the_pod_hold_for_all_of_its_containers():
    with Pod(sh(FOREVER, "one"), sh(FOREVER, "two"), resources={"limits": {"memory": "96Mi", "cpu": "300m"}, "requests": {"memory": "96Mi", "cpu": "300m"}}) as pod:
        pod.running("one"), pod.running("two")
        group = pod.cgroup()
        expect("the pod's memory", str(96 << 20), in_cgroups(group, "memory.max", "memory/memory.limit_in_bytes"))
        expect("the pod's cpu", lambda value: value in ("30000 100000", "30000"), in_cgroups(group, "cpu.max", "cpu/cpu.cfs_quota_us"))
        expect("the class", "Guaranteed", pod.seen()["status"]["qosClass"])


@test(since=(1, 33))
def a_user_namespace_of_the_pod_maps_root_to_nobody():
    with Pod(sh("cat /proc/self/uid_map >/tmp/map; touch /data/file; " + FOREVER, volumeMounts=[{"name": "data", "mountPath": "/data"}]),
             hostUsers=False, volumes=[{"name": "data", "emptyDir": {}}]) as pod:
        pod.running()
        inside, outside, length = until(10, "the map", lambda: pod.exec("cat /tmp/map")).split()
        expect("the map", ("0", True, "65536"), (inside, int(outside) >= 65536, length))
        expect("a volume's file is root's inside", "0", pod.exec("stat -c %u /data/file"))


@test(since=(1, 33))
def proc_is_unmasked_in_a_user_namespace_on_request():
    count = "grep -c ' /proc/' /proc/self/mounts || true"
    with Pod(sh(FOREVER), sh(FOREVER, "bare", securityContext={"procMount": "Unmasked"}), hostUsers=False) as pod:
        pod.running(), pod.running("bare")
        expect("mounts over /proc by default", lambda n: int(n) > 0, pod.exec(count))
        expect("mounts over /proc without masks", "0", pod.exec(count, "bare"))


@test(since=(1, 33))
def groups_of_the_image_are_left_out_by_the_strict_policy():
    # User 1000 is in group 50000 by the image's /etc/group.
    for policy, groups in (("Merge", [1000, 4000, 50000]), ("Strict", [1000, 4000])):
        with Pod(sh(FOREVER), securityContext={"runAsUser": 1000, "supplementalGroups": [4000],
                                               "supplementalGroupsPolicy": policy}) as pod:
            pod.running()
            expect(f"the groups by {policy}", groups, sorted(map(int, pod.exec("id -G").split())))
            expect(f"the status by {policy}", groups, sorted(pod.status()["user"]["linux"]["supplementalGroups"]))


@test(since=(1, 35))
def an_image_volume_shows_the_image_read_only():
    with Pod(sh(FOREVER, volumeMounts=[{"name": "image", "mountPath": "/image"}]),
             volumes=[{"name": "image", "image": {"reference": VOLUME, "pullPolicy": "IfNotPresent"}}]) as pod:
        pod.running()
        expect("a file of the image", "test-image-tag", pod.exec("cat /image/marker"))
        expect("writing", "refused", pod.exec("touch /image/x 2>/dev/null || echo refused"))


@test(since=(1, 35))
def an_image_volume_is_in_the_status_of_the_runtime_with_its_image():
    # Of the runtime, as no kubelet up to v1.37.2 finds it there: it compares the volume's name, which CRI does not have.
    with Pod(sh(FOREVER, volumeMounts=[{"name": "image", "mountPath": "/image"}]),
             volumes=[{"name": "image", "image": {"reference": VOLUME, "pullPolicy": "IfNotPresent"}}]) as pod:
        pod.running()
        status = json.loads(NODE.crictl("inspect", "-o", "json", pod.id()))["status"]
        mount = next(m for m in status["mounts"] if m["containerPath"] == "/image")
        image = json.loads(NODE.crictl("inspecti", "-o", "json", VOLUME))["status"]["id"]
        expect("the image of the volume", image, mount["image"]["imageRef"])


@test(alpha=True, since=(1, 37))
def options_of_a_volumes_mount_hold():
    options = ["noexec", "nodev", "nosuid"]
    with Pod(sh(FOREVER, volumeMounts=[{"name": "data", "mountPath": "/data", "bindMountOptions": options}, {"name": "data", "mountPath": "/plain"}]),
             volumes=[{"name": "data", "emptyDir": {}}]) as pod:
        pod.running()
        seen = pod.exec("awk '$2 == \"/data\" {print $4}' /proc/self/mounts").split(",")
        expect("the mount's options", [], [option for option in options if option not in seen])
        pod.exec("cp /bin/busybox /data/true")
        expect("execution", "refused", pod.exec("/data/true 2>/dev/null || echo refused"))
        expect("execution by the mount without options", "", pod.exec("/plain/true"))


@test(alpha=True, since=(1, 35))
def a_user_namespace_goes_with_the_hosts_network():
    with Pod(sh(FOREVER), hostNetwork=True, hostUsers=False) as pod:
        pod.running()
        inside, outside, _ = pod.exec("cat /proc/self/uid_map").split()
        expect("the map", ("0", True), (inside, int(outside) >= 65536))
        expect("the network", os.readlink("/proc/self/ns/net"), pod.exec("readlink /proc/self/ns/net"))


@test(alpha=True, since=(1, 33))
def a_stop_signal_of_the_pod_is_sent_and_reported():
    script = "trap '' TERM; trap 'echo usr1 >/shared/end; exit 0' USR1; touch /shared/up; while :; do sleep 0.1; done"
    with Pod(sh(script, lifecycle={"stopSignal": "SIGUSR1"}), grace=30, os={"name": "linux"}) as pod:
        pod.running()
        until(10, "it waits for the signal", lambda: (pod.dir / "up").exists())
        expect("the reported signal", "SIGUSR1", pod.status()["stopSignal"])
        pod.remove()
        until(60, "it got the signal", lambda: read(pod.dir / "end") == "usr1\n")


@test(alpha=True, since=(1, 37))
def sysctls_of_the_node_are_the_pods_unless_it_has_its_own():
    for value, context in ((VALUE, {}), ("4321", {"sysctls": [{"name": SYSCTL, "value": "4321"}]})):
        with Pod(sh(FOREVER), securityContext=context) as pod:
            pod.running()
            expect("the sysctl", value, pod.exec(f"cat /proc/sys/{SYSCTL.replace('.', '/')}"))


@test(alpha=True, api=True, since=(1, 37))
def the_node_declares_what_its_runtime_makes_possible():
    node = until(90, "the node has its features", lambda: (seen := NODE.api.get("nodes", "", "node")) and seen["status"].get("declaredFeatures") and seen)
    for feature in ("UserNamespacesHostNetworkSupport", "VolumeBindMountOptions"):
        expect(f"{feature} among the declared features", True, feature in node["status"]["declaredFeatures"])


@test(alpha=True, api=True, since=(1, 33))
def a_log_is_read_by_its_streams():
    with ApiPod(sh(f"echo out; echo bad >&2; {FOREVER}")) as pod:
        pod.running()
        for name, line in (("Stdout", "out\n"), ("Stderr", "bad\n")):
            until(20, f"the line of {name} alone", lambda: read_logs(pod, f"stream={name}") == line)


@test(alpha=True, since=(1, 33))
def the_kubelet_watches_events_of_the_runtime():
    with Pod(sh("exit 0"), initContainers=[sh("echo once >>/shared/init", "i")], restartPolicy="Never") as pod:
        until(60, "succeeded", lambda: pod.phase() == "Succeeded")
        expect("runs of the init container", "once\n", read(pod.dir / "init"))
        counts = dict(re.findall(r"^kubelet_evented_pleg_connection_(success|error)_count (\S+)$", NODE.secure("GET", "/metrics"), re.M))
        expect("connections", lambda n: float(n) >= 1, counts.get("success", "0"))
        expect("errors", 0, float(counts.get("error", "0")))


@test(since=(1, 36))
def all_containers_of_a_pod_are_restarted_by_a_rule():
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
    with Pod(sh("[ -e /shared/once ] && trap 'exit 0' TERM && while :; do sleep 0.2; done; touch /shared/once; sleep 1; exit 42", "one",
                restartPolicy="Never", restartPolicyRules=rules),
             sh(FOREVER, "two"), initContainers=[sh("echo init >>/shared/order", "i")]) as pod:
        until(90, "the init container ran again", lambda: read(pod.dir / "order") == "init\ninit\n")
        pod.running("one"), pod.running("two")
        expect("restarts", (1, 1), (pod.restarts("one"), pod.restarts("two")))


@test(since=(1, 30))
def a_checkpoint_is_refused_by_name():
    with Pod(sh(FOREVER)) as pod:
        pod.running()
        try:
            answer = NODE.secure("POST", f"/checkpoint/default/{pod.kubelets_name()}/c")
        except urllib.error.HTTPError as error:
            answer = error.read().decode()
        expect("the answer", lambda text: "Unimplemented" in text, answer)


@test()
def containers_share_the_pods_processes_when_asked():
    with Pod(sh(FOREVER, "one"), sh("sleep 7778", "two"), shareProcessNamespace=True) as pod:
        pod.running("one"), pod.running("two")
        expect("the other's process", "1", pod.exec("ps -o args | grep -c '^sleep 7778'", "one"))
        expect("process 1 is the pause", "pause", pod.exec("cat /proc/1/comm", "one"))


@test()
def host_namespaces_are_the_hosts():
    with Pod(sh(FOREVER), hostNetwork=True, hostPID=True, hostIPC=True) as pod:
        pod.running()
        for kind in ("net", "pid", "ipc", "uts"):
            expect(kind, os.readlink(f"/proc/self/ns/{kind}"), pod.exec(f"readlink /proc/self/ns/{kind}"))


@test()
def names_and_addresses_are_in_etc_hosts_and_resolv_conf():
    with Pod(sh(FOREVER), hostAliases=[{"ip": "192.0.2.7", "hostnames": ["other"]}], hostname="called",
             dnsPolicy="None", dnsConfig={"nameservers": ["192.0.2.53"], "searches": ["example.test"]}) as pod:
        pod.running()
        expect("hostname", "called", pod.exec("hostname"))
        hosts = pod.exec("cat /etc/hosts")
        expect("hosts", True, f"{pod.ip()}\tcalled" in hosts and "192.0.2.7\tother" in hosts)
        expect("resolv.conf", True, "192.0.2.53" in pod.exec("cat /etc/resolv.conf"))


@test(since=(1, 35))
def any_name_of_a_host_or_a_variable_reaches_the_container():
    with Pod(sh(FOREVER, env=[{"name": "1.odd name/of:it", "value": "here"}]), hostnameOverride="odd.name.example.test") as pod:
        pod.running()
        expect("the hostname", "odd.name.example.test", pod.exec("hostname"))
        expect("the variable", "1", pod.exec("tr '\\0' '\\n' </proc/1/environ | grep -cx '1.odd name/of:it=here'"))


@test()
def a_security_context_holds_for_init_exec_and_volumes():
    context = {"runAsUser": 1000, "runAsGroup": 2000, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False,
               "readOnlyRootFilesystem": True, "seccompProfile": {"type": "RuntimeDefault"}}
    with Pod(sh("id >/data/id; grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status >>/data/id; touch /x 2>>/data/id; " + FOREVER,
                securityContext=context, volumeMounts=[{"name": "data", "mountPath": "/data"}]),
             securityContext={"fsGroup": 3000, "supplementalGroups": [4000], "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}]},
             volumes=[{"name": "data", "emptyDir": {}}]) as pod:
        pod.running()
        seen = until(10, "it wrote", lambda: "Read-only" in pod.exec("cat /data/id") and pod.exec("cat /data/id"))
        for part in ("uid=1000", "gid=2000", "3000", "4000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
            expect(f"{part} in what the container saw", True, part in seen)
        expect("the same for exec", True, "CapEff:\t0000000000000000" in pod.exec("grep CapEff /proc/self/status"))
        expect("the sysctl", "80", pod.exec("cat /proc/sys/net/ipv4/ip_unprivileged_port_start"))


@test()
def fields_of_the_pod_reach_the_environment_and_volumes():
    env = [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
           {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
           {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}]
    down = {"name": "down", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
    with Pod(sh(FOREVER, env=env, resources={"limits": {"memory": "64Mi"}}, volumeMounts=[
            {"name": "down", "mountPath": "/down"}, {"name": "sub", "mountPath": "/sub", "subPath": "a/b"}, {"name": "mem", "mountPath": "/mem"}]),
             volumes=[down, {"name": "sub", "emptyDir": {}}, {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}]) as pod:
        pod.running()
        expect("the environment", f"{pod.kubelets_name()} {pod.ip()} 67108864", pod.exec("echo $NAME $IP $LIMIT"))
        expect("labels as a file", f'app="{pod.short}"', pod.exec("cat /down/labels"))
        expect("a part of a volume", "/sub", pod.exec("touch /sub/x && mount | awk '$3 == \"/sub\" {print $3}'"))
        expect("memory as a volume", "8192", pod.exec("df -k /mem | awk 'NR == 2 {print $2}'"))


@test()
def commands_by_the_kubelet_run_in_the_container():
    with Pod(sh(FOREVER)) as pod:
        pod.running()
        expect("/run", "hello", NODE.secure("POST", f"/run/default/{pod.kubelets_name()}/c?cmd=echo%20hello").strip())


def stream(pod, verb, container="", query="", protocol="v5.channel.k8s.io"):
    """What kubectl asks an API server for, asked of the kubelet: it hands the upgraded connection on to the runtime."""
    path = f"/{verb}/default/{pod.kubelets_name()}{container and '/' + container}?{query}"
    return Channels(PORT, path, protocol, 60)


def collected(channels):
    seen = {}
    for channel, data in channels.messages():
        seen[channel] = seen.get(channel, b"") + data
    return seen


@test()
def exec_by_the_kubelet_carries_three_streams_and_the_exit_code():
    with Pod(sh(FOREVER)) as pod:
        pod.running()
        command = urllib.parse.urlencode([("command", word) for word in ("sh", "-c", "cat; echo bad >&2; exit 7")])
        text = b"".join(b"line %d\n" % n for n in range(3000))
        with stream(pod, "exec", "c", f"{command}&input=1&output=1&error=1") as channels:
            for at in range(0, len(text), 9000):
                channels.send(0, text[at:at + 9000])
            channels.end(0)
            seen = collected(channels)
        expect("the answer's protocol", "v5.channel.k8s.io", channels.protocol)
        expect("its output is its input", True, seen.get(1) == text)
        expect("its errors", b"bad\n", seen.get(2))
        status = json.loads(seen[3])
        expect("its end", ("Failure", [{"reason": "ExitCode", "message": "7"}]), (status["status"], status["details"]["causes"]))
        # A terminal: one stream, and the size that the client has.
        command = urllib.parse.urlencode([("command", word) for word in ("sh", "-c", "until [ \"$(stty size 2>/dev/null)\" = '33 99' ]; do sleep 0.1; done; stty size")])
        with stream(pod, "exec", "c", f"{command}&input=1&output=1&tty=1") as channels:
            channels.send(4, json.dumps({"Width": 99, "Height": 33}).encode())
            seen = collected(channels)
        expect("the terminal's size", b"33 99\r\n", seen.get(1))
        expect("its end", "Success", json.loads(seen[3])["status"])


@test()
def attach_by_the_kubelet_reaches_the_program_that_runs():
    with Pod(sh("while read line; do echo got $line; done; echo end of input; " + FOREVER, stdin=True, stdinOnce=True)) as pod:
        pod.running()
        with stream(pod, "attach", "c", "input=1&output=1") as channels:
            channels.send(0, b"one\ntwo\n")
            seen = b""
            for channel, data in channels.messages():
                seen += data if channel == 1 else b""
                if seen.endswith(b"got two\n"):
                    break
        expect("what it says to whom is attached", b"got one\ngot two\n", seen)
        # stdinOnce: the first who leaves takes the input along.
        until(30, "the log has it too, and the end of the input", lambda: read_logs(pod).split("\n")[:3] == ["got one", "got two", "end of input"])


@test()
def ports_are_forwarded_by_the_kubelet():
    page = sh("mkdir /tmp/www; echo here >/tmp/www/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp/www")
    with Pod(page) as pod:
        pod.running()

        def fetched():
            with stream(pod, "portForward", query="port=8080", protocol="v4.channel.k8s.io") as channels:
                channels.send(0, b"GET / HTTP/1.0\r\n\r\n")
                seen = b""
                for channel, data in channels.messages():
                    seen += data if channel == 0 else b""
                    if seen.endswith(b"here\n"):
                        break
                return seen
        answer = until(30, "the page of a port that is open to the pod alone", lambda: (seen := fetched()).endswith(b"here\n") and seen)
        expect("each direction begins with the port's number", (8080).to_bytes(2, "little"), answer[:2])


def summary_of(pod):
    summary = json.loads(NODE.get(READ_ONLY, "/stats/summary"))
    name = pod.kubelets_name()
    return summary, next(p for p in summary["pods"] if p["podRef"]["name"] == name)


@test()
def summary_has_the_numbers_of_pod_container_and_images():
    with Pod(sh("head -c 1m /dev/urandom >/tmp/f; while :; do :; done", resources={"limits": {"cpu": "100m"}})) as pod:
        pod.running()

        def there():
            summary, seen = summary_of(pod)
            container = seen["containers"][0]
            return (container["cpu"]["usageCoreNanoSeconds"] > 0 and container["memory"]["workingSetBytes"] > 0
                    and container["rootfs"]["usedBytes"] >= 1 << 20 and container["logs"]["usedBytes"] >= 0
                    and seen["cpu"]["usageCoreNanoSeconds"] > 0 and seen["memory"]["workingSetBytes"] > 0
                    and summary["node"]["runtime"]["imageFs"]["usedBytes"] > 0)
        until(90, "cpu, memory, root, logs of the container; cpu and memory of the pod; the image file system", there)


@test()
def resource_metrics_have_the_container_and_the_pod():
    with Pod(sh(FOREVER)) as pod:
        pod.running()
        def there():
            text = NODE.get(READ_ONLY, "/metrics/resource")
            name = re.escape(pod.kubelets_name())
            return (re.search(rf'container_cpu_usage_seconds_total\{{container="c",[^}}]*pod="{name}"', text)
                    and re.search(rf'container_memory_working_set_bytes\{{container="c",[^}}]*pod="{name}"', text)
                    and re.search(rf'pod_memory_working_set_bytes\{{[^}}]*pod="{name}"', text))
        until(90, "both in /metrics/resource", there)


@test()
def dead_containers_and_their_logs_are_collected():
    with Pod(sh("echo x; exit 1")) as pod:
        until(150, "three restarts", lambda: pod.restarts() >= 3)
        def dead():
            return [c for c in json.loads(NODE.crictl("ps", "-a", "-o", "json"))["containers"]
                    if c["labels"].get("io.kubernetes.pod.name") == pod.kubelets_name() and c["state"] == "CONTAINER_EXITED"]
        until(120, "one dead container at most is kept", lambda: len(dead()) <= 1)


@test()
def a_missing_image_is_reported_as_such():
    with Pod({"name": "c", "image": "registry.k8s.io/e2e-test-images/none:1", "command": ["true"]}) as pod:
        until(60, "ErrImagePull or its back-off", lambda: pod.status()["state"].get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff"))
        expect("the message names the image", True, "none:1" in pod.status()["state"]["waiting"]["message"])


@test()
def a_missing_program_is_reported_as_such():
    with Pod({"name": "c", "image": IMAGE, "command": ["/no/such/program"]}) as pod:
        def told():
            state = pod.status()
            text = json.dumps([state["state"], state.get("lastState")])
            return "/no/such/program" in text and ("StartError" in text or "RunContainerError" in text or "CrashLoopBackOff" in text)
        until(60, "the kubelet names the program", told)


# ---- what is expected, alone ------------------------------------------------------------------


@test(alone=True)
def kill_9_of_cairn_restarts_no_pod_and_loses_no_line():
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 5}
    with Pod(sh("i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done", livenessProbe=probe)) as pod:
        pod.running()
        before = pod.id()
        for _ in range(3):
            NODE.runtime.kill()
            until(30, "cairn serves", lambda: NODE.crictl("version"))
        time.sleep(3)
        until(30, "the pod is ready", pod.ready)
        expect("container and restarts", (before, 0), (pod.id(), pod.restarts()))
        lines = [int(line) for line in read_logs(pod).split()]
        expect("the log's numbers", list(range(1, len(lines) + 1)), lines)


@test(alone=True)
def kill_9_of_the_kubelet_restarts_no_pod():
    with Pod(sh(FOREVER)) as pod:
        pod.running()
        before = pod.id()
        NODE.kubelet.kill()
        NODE.healthy()
        until(60, "the pod is ready", pod.ready)
        expect("container and restarts", (before, 0), (pod.id(), pod.restarts()))


@test(alone=True)
def a_container_that_ends_while_cairn_is_down_is_restarted_with_its_exit_code():
    with Pod(sh("while [ ! -e /shared/end ]; do sleep 0.1; done; rm /shared/end; exit 42")) as pod:
        pod.running()
        NODE.runtime.stop()
        (pod.dir / "end").touch()
        until(20, "it ended", lambda: not (pod.dir / "end").exists())
        NODE.runtime.start()
        until(60, "it was restarted", lambda: pod.restarts() == 1)
        expect("the exit code", 42, pod.status()["lastState"]["terminated"]["exitCode"])


@test(alone=True)
def with_its_feature_gate_the_summary_has_the_networks_numbers_from_cri():
    # Without it the kubelet takes them from cAdvisor, which has them for the runtimes that it knows by name.
    NODE.configure({"featureGates": {"PodAndContainerStatsFromCRI": True}})
    try:
        with Pod(sh(FOREVER)) as pod:
            pod.running()

            def there():
                _, seen = summary_of(pod)
                return seen["network"]["rxBytes"] >= 0 and seen["network"]["name"] == "eth0" and seen["memory"]["workingSetBytes"] > 0
            until(90, "network and memory of the pod", there)
    finally:
        NODE.configure({})


@test(alone=True, v2=True, since=(1, 34))
def with_its_feature_gate_the_summary_has_pressure_from_cri():
    NODE.configure({"featureGates": {"PodAndContainerStatsFromCRI": True}})
    try:
        with Pod(sh("while :; do :; done", resources={"limits": {"cpu": "100m"}})) as pod:
            pod.running()

            def there():
                _, seen = summary_of(pod)
                each = [seen, seen["containers"][0]]
                return (all(one[kind]["psi"]["full"]["total"] >= 0 for one in each for kind in ("cpu", "memory", "io"))
                        and seen["containers"][0]["cpu"]["psi"]["some"]["total"] > 0)
            until(90, "pressure of cpu, memory and io, of the pod and the container", there)
    finally:
        NODE.configure({})


@test(alone=True, v2=True, since=(1, 37))
def memory_qos_is_in_the_cgroups():
    # Neither is set by default.
    NODE.configure({"memoryThrottlingFactor": 0.8, "memoryReservationPolicy": "TieredReservation"})
    try:
        with Pod(sh(FOREVER, resources={"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}})) as pod:
            pod.running()
            low, high = map(int, pod.exec("cat /sys/fs/cgroup/memory.low /sys/fs/cgroup/memory.high").split())
            expect("what is kept for the container", 32 << 20, low)
            expect("where it is throttled, between request and limit", lambda value: 32 << 20 < value < 64 << 20, high)
    finally:
        NODE.configure({})


@test(alone=True, v2=True, own_kernel=True, since=(1, 34))
def swap_is_given_by_share_and_is_in_the_summary():
    file = "/var/lib/node-swap"
    run("dd", "if=/dev/zero", f"of={file}", "bs=1M", "count=256")
    os.chmod(file, 0o600)
    run("mkswap", file)
    run("swapon", file)
    try:
        burstable = sh(FOREVER, resources={"requests": {"memory": "64Mi"}, "limits": {"memory": "128Mi"}})
        guaranteed = sh(FOREVER, resources={"requests": {"memory": "64Mi", "cpu": "100m"}, "limits": {"memory": "64Mi", "cpu": "100m"}})
        # Static pods are critical, and get none.
        with api_server(memorySwap={"swapBehavior": "LimitedSwap"}), ApiPod(burstable) as some, ApiPod(guaranteed) as none:
            some.running(), none.running()
            expect("what a burstable one has", lambda n: n != "max" and 0 < int(n) < 256 << 20, some.exec("cat /sys/fs/cgroup/memory.swap.max"))
            expect("what a guaranteed one has", "0", none.exec("cat /sys/fs/cgroup/memory.swap.max"))
            until(90, "swap in the summary", lambda: summary_of(some)[1]["containers"][0]["swap"]["swapUsageBytes"] >= 0)
    finally:
        run("swapoff", file)
        os.unlink(file)


@test(alone=True)
def ten_pods_come_and_go():
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        pods = [stack.enter_context(Pod(sh(FOREVER))) for _ in range(10)]
        for pod in pods:
            until(90, "all run", lambda p=pod: "running" in p.status().get("state", {}))
    print(f"         ten pods up and gone in {time.monotonic() - began:.1f} s")


# ---- what a kubelet does for the pods of an API server only -----------------------------------------


class ApiPod(Pod):
    """A pod that was asked for at the API server."""

    @property
    def key(self):
        return ("pods", "default", self.short)

    def write(self):
        NODE.api.put(self.key, {"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": self.short, "namespace": "default", "uid": self.uid, "labels": {"app": self.short}},
            "spec": {**self.spec, "nodeName": "node", "enableServiceLinks": False}})

    def seen(self):
        return NODE.api.get(*self.key)

    def remove(self):
        with contextlib.suppress(KeyError):
            NODE.api.delete_pod(self.short, self.spec["terminationGracePeriodSeconds"])


@contextlib.contextmanager
def api_server(**more):
    """An API server, and the kubelet with these settings at it."""
    NODE.api = Api()
    file = NODE.work / "kubeconfig"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c",
                                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{NODE.api.port}"}}],
                                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}]}))
    try:
        NODE.configure({"contentType": "application/json", "nodeStatusUpdateFrequency": "2s", **more},
                       "--kubeconfig", str(file), "--hostname-override", "node")
        yield
    finally:
        NODE.configure({})
        NODE.api.end()


@test(api=True, since=(1, 33))
def the_node_is_ready_and_says_what_its_runtime_can_do():
    def condition():
        node = NODE.api.get("nodes", "", "node")
        return next(c for c in node["status"]["conditions"] if c["type"] == "Ready")["status"] == "True" and node
    node = until(90, "the node is ready", condition)
    expect("the runtime", True, node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("cairn://"))
    features = node["status"]["runtimeHandlers"][0]["features"]
    expect("its features", {"recursiveReadOnlyMounts": True, "userNamespaces": True}, features)


@test(api=True, since=(1, 33))
def a_volume_is_recursively_read_only_on_request():
    # A kubelet without an API server knows no handler, and so none of its features.
    mount = {"name": "host", "mountPath": "/host", "readOnly": True, "recursiveReadOnly": "Enabled"}
    with ApiPod(sh(FOREVER, volumeMounts=[mount]), volumes=[{"name": "host", "hostPath": {"path": "/dev"}}]) as pod:
        pod.running()
        status = next(m for m in pod.status()["volumeMounts"] if m["name"] == "host")
        expect("the status", "Enabled", status["recursiveReadOnly"])
        expect("a mount below it", "refused", pod.exec("touch /host/shm/cairn-x 2>/dev/null || echo refused"))


@test(api=True, since=(1, 33))
def resizing_in_place_changes_the_limits_and_restarts_nothing():
    old, new = ({"limits": {"memory": m, "cpu": c}, "requests": {"memory": m, "cpu": c}} for m, c in (("64Mi", "200m"), ("96Mi", "400m")))
    with ApiPod(sh(FOREVER, resources=old)) as pod:
        pod.running()
        before = pod.id()
        NODE.api.change(pod.key, {"spec": {"containers": [{"name": "c", "resources": new}]}})
        until(90, "the status has the new limits", lambda: pod.status()["resources"] == new)
        expect("container and restarts", (before, 0), (pod.id(), pod.restarts()))
        files = "memory.max cpu.max" if V2 else "memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us"
        seen = pod.exec(f"cd /sys/fs/cgroup; cat {files}").split()
        expect("the container's cgroup", ["100663296", "40000"], seen[:2])


@test(api=True, since=(1, 36))
def resizing_the_pod_in_place_changes_its_limits_and_restarts_nothing():
    old, new = ({"limits": {"memory": m, "cpu": c}, "requests": {"memory": m, "cpu": c}} for m, c in (("96Mi", "300m"), ("128Mi", "400m")))
    with ApiPod(sh(FOREVER), resources=old) as pod:
        pod.running()
        before = pod.id()
        NODE.api.change(pod.key, {"spec": {"resources": new}})
        until(90, "the pod's cgroup has the new limit", lambda: in_cgroups(pod.cgroup(), "memory.max", "memory/memory.limit_in_bytes") == str(128 << 20))
        until(90, "the status has the new limits", lambda: pod.seen()["status"]["resources"]["limits"] == new["limits"])
        expect("container and restarts", (before, 0), (pod.id(), pod.restarts()))


@test(api=True)
def ephemeral_containers_join_a_running_pod_and_see_its_processes():
    with ApiPod(sh("trap 'exit 0' TERM; while :; do sleep 7779 & wait; done")) as pod:
        pod.running()
        extra = sh("ps -o args | grep -c '^sleep 7779'; trap 'exit 0' TERM; while :; do sleep 0.2; done", "debug", targetContainerName="c")
        NODE.api.change(pod.key, {"spec": {"ephemeralContainers": [extra]}})
        until(90, "it runs", lambda: "running" in pod.status("debug", "ephemeralContainerStatuses")["state"])
        seen = until(10, "it wrote", lambda: NODE.secure("GET", f"/containerLogs/default/{pod.short}/debug").strip())
        expect("the target's process, seen by it", "1", seen)
        expect("restarts of the target", 0, pod.restarts())


@test(api=True)
def a_runtime_class_that_is_not_served_is_refused_by_its_handlers_name():
    NODE.api.put(("runtimeclasses", "", "other"), {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "other"}, "handler": "no-such-handler"})
    with ApiPod(sh(FOREVER), runtimeClassName="other") as pod:
        until(60, "the kubelet has the runtime's answer", lambda: "no-such-handler" in NODE.kubelet.log().split(pod.short, 1)[1])
        until(30, "the container waits", lambda: "waiting" in pod.status()["state"])


@test(api=True)
def a_pod_that_is_deleted_ends_and_its_object_goes():
    pod = ApiPod(sh("trap 'echo end >/shared/end; exit 0' TERM; while :; do sleep 0.1; done"), grace=30)
    pod.running()
    pod.remove()
    until(60, "the kubelet has removed the object", lambda: pod.seen() is None)
    expect("the container was told", "end\n", read(pod.dir / "end"))


@contextlib.contextmanager
def evicted_for(resource, *signals, free, take, used, **more):
    """A pod that takes too much of a resource: the kubelet evicts it by its threshold, and not the one beside it. (Static pods
    are critical: no kubelet evicts them.) `take(name, n)` is a script that takes
    n bytes; `used` are those that a pod's figures show."""
    # A kubelet that was just started has none yet.
    before = until(60, "the node's figures", free)
    # For what others on the machine do meanwhile.
    margin = min(1 << 30, before // 4)
    wait = "until [ -e /shared/%s ]; do sleep 0.2; done"
    script = f"{wait % 'some'}; {take('some', margin // 2)}; {wait % 'more'}; {take('more', 2 * margin)}; {FOREVER}"
    with api_server(evictionHard={name: str(before - margin) for name in signals}, imageMinimumGCAge="1s"):
        quiet, greedy = ApiPod(sh(FOREVER)), ApiPod(sh(script, **more.pop("container", {})), **more)
        try:
            for pod in (quiet, greedy):
                pod.running()
            # The kubelet ranks them by figures of up to a quarter of a minute ago.
            (greedy.dir / "some").touch()
            until(60, "the figures show who takes more", lambda: used(greedy) > margin // 4 > used(quiet))
            (greedy.dir / "more").touch()
            # Whether it then counts as failed or succeeded is by its exit code.
            why = until(60, "the pod that took it is evicted", lambda: next(
                c["message"] for c in greedy.seen()["status"]["conditions"] if c.get("reason") == "TerminationByKubelet"))
            expect("what ran short", lambda message: f"low on resource: {resource}" in message, why)
            yield
            until(90, "there is room again", lambda: free() > before - margin // 2)
            expect("the other pod's phase and restarts", ("Running", 0), (quiet.phase(), quiet.restarts()))
        finally:
            quiet.remove()
            greedy.remove()
        until(60, "both are gone", lambda: quiet.gone() and greedy.gone())


@test(alone=True)
def a_full_disk_takes_unused_images_and_the_pod_that_fills_it():
    NODE.crictl("pull", UNUSED)
    with evicted_for("ephemeral-storage", "nodefs.available", "imagefs.available",
                     free=lambda: shutil.disk_usage(NODE.root).free, take=lambda name, size: f"fallocate -l {size} /{name}",
                     used=lambda pod: summary_of(pod)[1]["ephemeral-storage"]["usedBytes"]):
        until(60, "the unused image is gone", lambda: UNUSED not in NODE.crictl("images", "-o", "json"))


@test(alone=True)
def memory_that_runs_short_evicts_the_pod_that_takes_it():
    # In a volume the kernel's killer cannot take it: the kubelet has to see it.
    volume = {"volumes": [{"name": "mem", "emptyDir": {"medium": "Memory"}}],
              "container": {"volumeMounts": [{"name": "mem", "mountPath": "/mem"}]}}
    with evicted_for("memory", "memory.available", free=lambda: json.loads(NODE.get(READ_ONLY, "/stats/summary"))["node"]["memory"]["availableBytes"],
                     take=lambda name, size: f"dd if=/dev/zero of=/mem/{name} bs=1M count={size >> 20} 2>/dev/null",
                     used=lambda pod: summary_of(pod)[1]["memory"]["workingSetBytes"], **volume):
        pass


@test(alone=True)
def nothing_is_left_when_all_pods_are_gone():
    nothing_is_left(NODE)


# ---- the run -------------------------------------------------------------------------------------


NODE = None


def main():
    global NODE
    args = TABLE.arguments(__doc__, ("--jobs", {"type": int, "default": 4}), ("--kubelet", {}), ("--all-alpha", {"action": "store_true"}))
    NODE = TABLE.node(args, kubelet=args.kubelet)
    if NODE.release < (1, 37):
        # An older kubelet does not know them.
        del ALPHA["featureGates"]["GenericWorkload"], ALPHA["defaultPodSysctls"]
    if args.all_alpha:
        NODE.gates = ALPHA["featureGates"]
        NODE.own.update({name: value for name, value in ALPHA.items() if name != "featureGates"})
        NODE.config(NODE.own)

    def why_not(marks):
        if NODE.release < (since := marks.get("since", (0, 0))):
            return "a feature of Kubernetes %d.%d" % since
        if marks.get("v2") and not V2:
            return "the host has cgroup v1"
        if marks.get("own_kernel") and not NODE.on_node:
            return "changes the kernel's settings: on a node of its own"
        return None
    try:
        TABLE.leave_out(why_not)
        NODE.start()
        NODE.crictl("pull", IMAGE)

        def group(*named):
            return [t for t in TABLE.wanted if [m for m in ("alone", "api", "alpha") if t.marks.get(m)] == list(named)]
        TABLE.hold(group(), args.jobs)
        if alpha := group("alpha"):
            NODE.configure(ALPHA)
            TABLE.hold(alpha, args.jobs)
            NODE.configure({})
        for wanted, settings in ((group("api"), {}), (group("api", "alpha"), ALPHA)):
            if wanted:
                with api_server(**settings):
                    TABLE.hold(wanted, args.jobs)
        TABLE.hold(group("alone"))
    except Failed as error:
        TABLE.broken("the kubelet", error, (NODE.runtime, NODE.kubelet))
    finally:
        NODE.end()
    return TABLE.end(args, (NODE.kubelet, NODE.runtime))


if __name__ == "__main__":
    sys.exit(main())
