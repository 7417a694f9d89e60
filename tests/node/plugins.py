"""NRI plugins and drivers that others wrote, on the cluster: each as a DaemonSet with the objects that its release deploys.

hack/node cluster --plugins. tests/go/plugins pins their versions. For each: it registers, a pod is adjusted as its documentation
says, it is rolled over while pods are created, its node is restarted.
"""
import contextlib
import json
import os
import pathlib
import signal
import time

from kubectl import applied, c, get, kubectl, pods_of, ready_of, workload
from node import FOREVER, Failed, Table, run, until
from plane import NODES

TABLE = Table("plugins")
# A DaemonSet's pod with it is created while the plugin that it has is absent.
EXEMPT = "plugins.test/exempt"
SYSTEM = "kube-system"
KUBELET = "/var/lib/kubelet"
# Whether this machine has only cgroup v2.
V2 = pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists()
RBAC = "rbac.authorization.k8s.io"


def rule(group, resources, verbs, *names):
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **({"resourceNames": list(names)} if names else {})}


def usual_directory(node):
    """Gives the kubelet's directory its usual name: a driver's socket below a longer one has no address."""
    own = node.work / "kubelet"
    own.mkdir()
    os.makedirs(KUBELET)
    run("mount", "--bind", str(own), KUBELET)
    node.plain = [KUBELET if argument == str(own) else argument for argument in node.plain]
    node.flags([])


class Plugin:
    """What its chart deploys. A subclass says what is special about it."""

    # Of the image, and of all its objects.
    program = ""
    # As `cairn plugins` lists it; None for a driver that is not a plugin of NRI.
    nri = None
    cluster_rules, rules = [], []
    # What a pod asks for it by.
    annotations, pod = {}, {}
    # How many pods may be adjusted at once.
    at_once = 12
    # Whether pods that had been adjusted before their node was restarted are adjusted afterwards.
    restores = True

    def __init__(self):
        self.node = NODES[0]

    def __str__(self):
        return self.program

    # ---- its objects ----

    def mounts(self):
        """Directories of the host by the name of their volume: where they are in the container, and how they are mounted."""
        return {}

    def container(self):
        return {}

    def spec(self):
        return {}

    def more(self):
        return []

    def named(self, api, kind, name=None, namespace=None, **more):
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name or self.program, **({"namespace": namespace} if namespace else {})}, **more}

    def access(self):
        subjects = [{"kind": "ServiceAccount", "name": self.program, "namespace": SYSTEM}]
        objects = [self.named("v1", "ServiceAccount", namespace=SYSTEM)]
        for kind, rules, where in (("ClusterRole", self.cluster_rules, None), ("Role", self.rules, SYSTEM)):
            if rules:
                to = {"apiGroup": RBAC, "kind": kind, "name": self.program}
                objects += [self.named(f"{RBAC}/v1", kind, namespace=where, rules=rules),
                            self.named(f"{RBAC}/v1", f"{kind}Binding", namespace=where, subjects=subjects, roleRef=to)]
        return objects

    def daemons(self):
        volumes = [{"name": name, "hostPath": {"path": path}} for name, (path, *_) in self.mounts().items()]
        mounts = [{"name": name, "mountPath": (more[0:1] or [path])[0], **(more[1] if len(more) > 1 else {})}
                  for name, (path, *more) in self.mounts().items()]
        # Their images have one.
        volumes.append({"name": "tmp", "emptyDir": {}})
        mounts.append({"name": "tmp", "mountPath": "/tmp"})
        node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        container = self.container()
        container = {"name": "c", "image": f"plugins.test/{self.program}:v1", **container, "env": [node, *container.get("env", [])],
                     "volumeMounts": [*mounts, *container.get("volumeMounts", [])]}
        pod = {"serviceAccountName": self.program, "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 30, **self.spec()}
        pod["volumes"] = [*volumes, *pod.get("volumes", [])]
        daemons = workload("DaemonSet", self.program, container, annotations={EXEMPT: "true"}, pod=pod, **self.update())
        daemons["metadata"]["namespace"] = SYSTEM
        return daemons

    def update(self):
        return {}

    def objects(self):
        return [*self.access(), *self.more(), self.daemons()]

    # ---- what is seen ----

    def crds(self):
        path = pathlib.Path(os.environ["CAIRN_PEERS"], "share/plugins", self.program)
        return str(path) if path.is_dir() else None

    def prepare(self):
        """What the node has before the plugin runs; again when it was restarted."""

    def registered(self):
        for seen in json.loads(self.node.run(f"{os.environ['CAIRN_BIN_DIR']}/cairn", "plugins", "-o", "json", "--connect",
                                             f"unix://{self.node.socket}"))["plugins"]:
            if seen["id"] == self.nri and seen["state"] == "active":
                return True
        return False

    def asking(self, name):
        """A pod that is to be adjusted; it first writes what it has."""
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}, "annotations": self.annotations},
                "spec": {"terminationGracePeriodSeconds": 2, "enableServiceLinks": False, **self.pod,
                         "containers": [c(f"{self.shows}; {FOREVER}", **self.asks())]}}

    def asks(self):
        return {}

    # A command that prints it, and whether that is as the documentation says.
    shows = ""

    def adjusted(self, shown):
        raise NotImplementedError

    def check(self, name, seconds=60):
        """Waits for the pod; its newest container wrote first what the plugin made of it."""
        until(seconds, f"{name} runs", lambda: ready_of(name) or reasons(name))
        shown = kubectl("logs", name)
        if not self.adjusted(shown):
            raise Failed(f"{name} runs without its adjustment: {shown!r}")


# ---- drivers -----------------------------------------------------------------------------------------


CLAIM = {"resourceClaims": [{"name": "device", "resourceClaimTemplateName": "single"}]}


def template(device_class, **spec):
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "single"},
            "spec": {"spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": device_class, **spec.pop("exactly", {})}}], **spec}}}}


def device_class(name):
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{name}'"}}]}}


def devices_of(driver):
    return [d["name"] for s in get("resourceslices")["items"] if s["spec"]["driver"] == driver for d in s["spec"].get("devices", [])]


class DraExample(Plugin):
    """kubernetes-sigs/dra-example-driver: devices that are variables, by CDI."""
    program, driver = "dra-example-kubeletplugin", "gpu.example.com"
    cluster_rules = [rule("resource.k8s.io", "resourceclaims", "get list watch"), rule("resource.k8s.io", "resourceclaims/status", "update"),
                     rule("resource.k8s.io", "resourceclaims/driver", "associated-node:update associated-node:patch", driver),
                     rule("", "nodes", "get"), rule("resource.k8s.io", "resourceslices", "get list watch create update patch delete")]
    pod = CLAIM
    shows = "env"
    # What it prepared before a reboot is in its checkpoint, so that it does not write the CDI file again, which was in /run.
    restores = False

    def update(self):
        return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}

    def mounts(self):
        return {"registry": [f"{KUBELET}/plugins_registry"], "plugins": [f"{KUBELET}/plugins"], "cdi": ["/var/run/cdi"]}

    def container(self):
        env = {"DRIVER_NAME": self.driver, "DEVICE_PROFILE": "gpu", "CDI_ROOT": "/var/run/cdi", "NAMESPACE": SYSTEM, "NUM_DEVICES": "16",
               "KUBELET_REGISTRAR_DIRECTORY_PATH": f"{KUBELET}/plugins_registry", "KUBELET_PLUGINS_DIRECTORY_PATH": f"{KUBELET}/plugins",
               "HEALTHCHECK_PORT": "51515", "METRICS_PORT": "8080"}
        return {"command": [f"/{self.program}"], "env": [*({"name": name, "value": value} for name, value in env.items()),
                        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
                "livenessProbe": {"grpc": {"port": 51515, "service": "liveness"}, "failureThreshold": 3, "periodSeconds": 10},
                "securityContext": {"privileged": True}}

    def more(self):
        return [device_class(self.driver), template(self.driver)]

    def registered(self):
        return len(devices_of(self.driver)) == 16

    def asks(self):
        return {"resources": {"claims": [{"name": "device"}]}}

    def adjusted(self, shown):
        return "DRA_RESOURCE_DRIVER_NAME=gpu.example.com" in shown and "KUBERNETES_NODE_NAME=node" in shown and "_RESOURCE_CLAIM=" in shown


class Dranet(Plugin):
    """kubernetes-sigs/dranet: network devices, moved into the pod by NRI. Links of type ifb stand for the machine's."""
    program, driver = "dranet", "dra.net"
    nri = "00-dra.net"
    cluster_rules = [rule("", "nodes", "get"), rule("", "events", "create patch update"),
                     rule("resource.k8s.io", "resourceslices", "list watch create update delete"),
                     rule("resource.k8s.io", "resourceclaims deviceclasses", "get"), rule("resource.k8s.io", "resourceclaims/status", "patch update"),
                     rule("resource.k8s.io", "resourceclaims/driver", "associated-node:patch associated-node:update", driver)]
    pod = CLAIM
    shows = "ip address show"

    def prepare(self):
        for n in range(self.at_once):
            if self.node.run("ip", "link", "show", f"nic{n}", check=False) == "":
                self.node.run("ip", "link", "add", f"nic{n}", "type", "ifb")
                self.node.run("ip", "address", "add", f"169.254.169.{n + 1}/32", "dev", f"nic{n}")
            self.node.run("ip", "link", "set", f"nic{n}", "up")

    def mounts(self):
        along = {"mountPropagation": "HostToContainer"}
        return {"plugins": [f"{KUBELET}/plugins"], "registry": [f"{KUBELET}/plugins_registry"], "nri": ["/var/run/nri"],
                # /var/run/netns where the state directory is the usual one.
                "netns": [str(self.node.netns), str(self.node.netns), along], "bpf": ["/sys/fs/bpf", "/sys/fs/bpf", along], "run": ["/var/run/dranet"]}

    def container(self):
        health = {"httpGet": {"path": "/healthz", "port": 9177}}
        return {"args": ["--v=4", "--hostname-override=$(NODE_NAME)", f"--kubelet-root-dir={KUBELET}", "--cloud-provider-hint=NONE"],
                "resources": {"requests": {"cpu": "100m", "memory": "50Mi"}}, "securityContext": {"privileged": True},
                "startupProbe": {**health, "failureThreshold": 12, "periodSeconds": 5}, "readinessProbe": health}

    def spec(self):
        return {"hostNetwork": True, "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}

    def more(self):
        stand_in = 'has(device.attributes["dra.net"].type) && device.attributes["dra.net"].type == "ifb"'
        parameters = {"interface": {"name": "eth99", "addresses": ["169.254.200.13/24"]}}
        return [device_class(self.driver), template(self.driver, exactly={"selectors": [{"cel": {"expression": stand_in}}]},
                                                    config=[{"opaque": {"driver": self.driver, "parameters": parameters}}])]

    def registered(self):
        return super().registered() and devices_of(self.driver)

    def adjusted(self, shown):
        return "eth99" in shown and "169.254.200.13/24" in shown


# ---- containers/nri-plugins --------------------------------------------------------------------------


class Policy(Plugin):
    """A resource policy of containers/nri-plugins: it reads its configuration from the API server."""
    kind, plural = "", ""
    nri = "90-resource-manager"
    config = {}
    cluster_rules = [rule("", "nodes", "get watch"), rule("", "nodes/status", "get patch update"),
                     rule("topology.node.k8s.io", "noderesourcetopologies", "create get list update delete")]
    shows = "grep Cpus_allowed_list /proc/self/status"

    def __init__(self):
        super().__init__()
        self.rules = [rule("config.nri", self.plural, "get list watch"), rule("config.nri", f"{self.plural}/status", "get update patch")]

    def mounts(self):
        own = "nri-resource-policy"
        return {"data": [f"/var/lib/{own}"], "sys": ["/sys", "/host/sys"], "proc": ["/proc", "/host/proc"], "sockets": [f"/var/run/{own}"],
                "nri": ["/var/run/nri", "/var/run/nri", {"readOnly": True}],
                "resources": ["/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources", {"readOnly": True}]}

    def container(self):
        return {"args": ["--host-root", "/host", "--config-namespace", SYSTEM, "--pid-file", "/tmp/nri-resource-policy.pid",
                         "--nri-plugin-index", "90"],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                # Less CPU than the chart's: this machine has two.
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}}}

    def more(self):
        return [self.named("config.nri/v1alpha1", self.kind, "default", SYSTEM, spec=self.config)]

    def adjusted(self, shown):
        """One of two CPUs: the other one is reserved for the system's pods."""
        return shown.split()[-1].isdigit()


class Balloons(Policy):
    program, kind, plural = "balloons", "BalloonsPolicy", "balloonspolicies"
    annotations = {"balloon.balloons.resource-policy.nri.io": "one"}
    config = {"reservedResources": {"cpu": "100m"}, "agent": {"nodeResourceTopology": True, "podResourceAPI": False},
              "allocatorTopologyBalancing": True, "reservedPoolNamespaces": [SYSTEM], "instrumentation": {"httpEndpoint": ":8891"},
              "balloonTypes": [{"name": "one", "minCPUs": 1, "maxCPUs": 1, "maxBalloons": 1}]}


class TopologyAware(Policy):
    program, kind, plural = "topology-aware", "TopologyAwarePolicy", "topologyawarepolicies"
    config = {"reservedResources": {"cpu": "750m"}, "agent": {"nodeResourceTopology": True, "podResourceAPI": False},
              "instrumentation": {"httpEndpoint": ":8891"}}


class MemoryQos(Plugin):
    """Files of cgroup v2, computed from the class of a pod."""
    program, nri = "memory-qos", "90-memory-qos"
    annotations = {"class.memory-qos.nri.io": "bronze"}
    shows = "cat /sys/fs/cgroup/memory.high"
    restores = V2

    def mounts(self):
        return {"nri": ["/var/run/nri", "/var/run/nri", {"readOnly": True}]}

    def container(self):
        return {"args": ["--idx", "90", "--config", "/etc/nri/memory-qos/config.yaml", "-v"], "resources": {"requests": {"cpu": "10m", "memory": "100Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/nri/memory-qos"}]}

    def spec(self):
        return {"volumes": [{"name": "config", "configMap": {"name": "nri-memory-qos-config.default"}}]}

    def more(self):
        config = ("classes:\n- name: bronze\n  swaplimitratio: 0.5\n- name: silver\n  swaplimitratio: 0.2\n"
                  "unifiedannotations:\n- memory.swap.max\n- memory.high\n")
        return [self.named("v1", "ConfigMap", "nri-memory-qos-config.default", SYSTEM, data={"config.yaml": config})]

    def asks(self):
        return {"resources": {"limits": {"memory": "64Mi"}}}

    def adjusted(self, shown):
        return shown == str(32 << 20)

    def check(self, name, seconds=60):
        if V2:
            super().check(name, seconds)
            return
        # Such a host has no such files: the container is rejected.
        refused = f'unified["memory.high"] (set by {self.nri}): requires cgroup v2'
        until(seconds, f"{name} is rejected by the field's name", lambda: refused in
              pods_of(name)[0]["status"]["containerStatuses"][0]["state"]["waiting"]["message"])


# ---- what is asked of each ---------------------------------------------------------------------------


class Deployed:
    """The plugin that runs, and the pods that stay for its next test."""
    plugin, stack, broken = None, None, ""


def deploy(kind):
    """Deploys it, unless it is deployed; the one before it is removed."""
    if isinstance(Deployed.plugin, kind):
        if Deployed.broken:
            raise Failed(f"it was not deployed: {Deployed.broken}")
        return Deployed.plugin
    remove()
    plugin = Deployed.plugin = kind()
    stack = Deployed.stack = contextlib.ExitStack()
    try:
        plugin.prepare()
        if plugin.crds():
            kubectl("apply", "-f", plugin.crds())
            stack.callback(kubectl, "delete", "-f", plugin.crds(), "--ignore-not-found", "--wait=false", check=False)
            kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        stack.enter_context(applied(*plugin.objects()))
        runs(plugin)
        until(60, f"{plugin} is registered", plugin.registered)
        if plugin.nri:
            requires(plugin)
    except Exception as error:
        Deployed.broken = str(error)
        raise
    return plugin


def runs(plugin):
    until(60, f"a pod of {plugin} is ready", lambda: ready_of(plugin.program) or reasons(plugin.program))


def reasons(app):
    """Why its pods are not ready."""
    seen = [status["state"].get("waiting") or status.get("lastState") for pod in pods_of(app) for status in pod["status"].get("containerStatuses", [])]
    raise Failed(f"{seen}; {kubectl('logs', '-n', SYSTEM, '-l', f'app={app}', '--tail=3', check=False)[-500:]}")


def remove():
    stack, Deployed.stack, Deployed.plugin, Deployed.broken = Deployed.stack, None, None, ""
    if stack:
        requires(None)
        stack.close()


def requires(plugin):
    """From now on no container is created without its answer, so that none misses it while it is rolled over."""
    node = NODES[0]
    path = node.work / "cairn.toml"
    plain = path.read_text().split("# required\n")[0]
    path.write_text(plain + (f'# required\n[nri]\ntolerate_missing_annotation = "{EXEMPT}"\n[nri.plugin."{plugin.nri}"]\nrequired = true\n' if plugin else ""))
    node.runtime.stop()
    node.serve()


def registers(kind):
    plugin = deploy(kind)
    until(30, f"{plugin} is registered", plugin.registered)


def adjusts(kind):
    plugin = deploy(kind)
    with applied(plugin.asking("asking")):
        plugin.check("asking")


def rolls_over(kind):
    """Pods are created all the time while another version takes over."""
    plugin = deploy(kind)
    old = {p["metadata"]["uid"] for p in pods_of(plugin.program)}
    with contextlib.ExitStack() as stack:
        kubectl("set", "image", f"daemonset/{plugin.program}", f"c=plugins.test/{plugin.program}:v2", "-n", SYSTEM)
        names = []

        def taken_over():
            pods = ready_of(plugin.program)
            return len(pods_of(plugin.program)) == 1 and len(pods) == 1 and pods[0]["metadata"]["uid"] not in old

        def more_load():
            over = taken_over()
            if len(names) < plugin.at_once:
                names.append(f"load-{len(names)}")
                stack.enter_context(applied(plugin.asking(names[-1])))
                return False
            return over
        until(150, f"another pod of {plugin} has taken over", more_load)
        until(60, f"{plugin} is registered", plugin.registered)
        for name in names:
            plugin.check(name, 90)


def is_restarted(kind):
    plugin = deploy(kind)
    with applied(plugin.asking("before")):
        plugin.check("before")
        restart(plugin)
        until(120, f"{plugin} is registered", plugin.registered)
        with applied(plugin.asking("after")):
            plugin.check("after", 120)
        if plugin.restores:
            # It has another container, with a log of its own.
            until(120, "the pod of before has been started again", lambda: ready_of("before")[0]["status"]["containerStatuses"][0]["restartCount"] > 0)
            plugin.check("before")


def restart(plugin):
    """What a power cut makes of a node: no process of a pod and nothing in a tmpfs is left, and it is another boot."""
    node = plugin.node
    node.kubelet.crash()
    node.runtime.crash()
    for procs in pathlib.Path("/sys/fs/cgroup").glob(f"*/{node.cgroup}/kubepods/**/cgroup.procs"):
        for pid in procs.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    monitors = [launch.parent for launch in pathlib.Path(node.state).rglob("launch")]
    until(30, "every monitor has recorded the end of its container", lambda: all((monitor / "exit").exists() for monitor in monitors))
    for at in reversed([line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]):
        if at.startswith((f"{node.state}/", f"{node.netns}/", f"{node.root}/", f"{node.work}/kubelet/")):
            run("umount", "-l", at, check=False)
    for path in (node.state, node.netns, "/run/nri", "/run/cdi", "/run/dranet", "/run/nri-resource-policy"):
        run("rm", "-rf", str(path))
    boot = node.work / "boot-id"
    boot.write_text(f"{time.time_ns():032x}\n")
    run("mount", "--bind", str(boot), "/proc/sys/kernel/random/boot_id")
    plugin.prepare()
    node.serve()
    node.kubelet.start()
    node.healthy()


ASKED = {"registers": registers, "adjusts a pod as its documentation says": adjusts,
         "is rolled over under load, and no container misses it": rolls_over, "is there again when its node was restarted": is_restarted}
for kind in (DraExample, Dranet, Balloons, TopologyAware, MemoryQos):
    for what, function in ASKED.items():
        def test(function=function, kind=kind):
            function(kind)
        test.__name__ = f"{kind.program} {what}"
        TABLE.test(plugins=True)(test)


@TABLE.test(plugins=True)
def the_last_plugin_is_removed():
    remove()
