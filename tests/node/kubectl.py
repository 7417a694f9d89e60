"""A cluster, asked as its users do: by kubectl; and the objects that tests give it."""
import contextlib
import json
import subprocess

from node import IMAGE, FOREVER, Failed, run, until

PLUGIN = "plugins.test/ulimit-adjuster"
# The program, and who asks where: see ask_with().
KUBECTL = []


def ask_with(*argv):
    KUBECTL[:] = argv


def condition(thing, name):
    return any(c["type"] == name and c["status"] == "True" for c in thing["status"].get("conditions", []))


def kubectl(*args, text="", check=True, raw=False):
    """What kubectl prints; with raw, how it ran."""
    argv = [*KUBECTL, *args]
    if raw:
        return subprocess.run(argv, input=text, capture_output=True, text=True)
    return run(*argv, text=text, check=check)


def get(kind, name="", *more):
    return json.loads(kubectl("get", kind, *([name] if name else []), "-o", "json", *more))


def pods_of(app):
    return get("pods", "", "--all-namespaces", "-l", f"app={app}")["items"]


def ready_of(app):
    return [p for p in pods_of(app) if condition(p, "Ready") and "deletionTimestamp" not in p["metadata"]]


def one_of(app):
    return until(60, f"a pod of {app} is ready", lambda: ready_of(app))[0]["metadata"]["name"]


# ---- objects -----------------------------------------------------------------------------------


def c(script, **more):
    return {"name": "c", "image": IMAGE, "command": ["sh", "-c", script], **more}


def workload(kind, name, *containers, annotations=None, **spec):
    pod = {"terminationGracePeriodSeconds": 2, "enableServiceLinks": False, "containers": list(containers), **spec.pop("pod", {})}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": {"app": name}}, **spec,
        "template": {"metadata": {"labels": {"app": name}, "annotations": annotations or {}}, "spec": pod}}}


def single(name, *containers, annotations=None, **spec):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations or {}},
            "spec": {"terminationGracePeriodSeconds": 2, "enableServiceLinks": False, "containers": list(containers), **spec}}


def plugin(version):
    """A plugin as its users deploy it."""
    mount = {"name": "nri", "mountPath": "/var/run/nri"}
    return workload("DaemonSet", "plugin", {
        "name": "c", "image": f"{PLUGIN}:{version}", "args": ["-idx", "20", "-name", "ulimits"], "volumeMounts": [mount],
    }, pod={"volumes": [{"name": "nri", "hostPath": {"path": "/var/run/nri", "type": "Directory"}}], "priorityClassName": "system-node-critical"})


def dns(address):
    """A cluster's DNS server, as kubeadm has it, but for names outside of the cluster."""
    names = "errors\nready\nkubernetes cluster.local in-addr.arpa ip6.arpa {\npods insecure\nfallthrough in-addr.arpa ip6.arpa\n}"
    read = {"verbs": ["list", "watch"]}
    ports = [{"name": protocol.lower(), "port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    server = workload("Deployment", "coredns", {
        "name": "c", "image": "registry.k8s.io/coredns/coredns:v1.14.3", "args": ["-conf", "/etc/coredns/Corefile"],
        "readinessProbe": {"httpGet": {"port": 8181, "path": "/ready"}, "timeoutSeconds": 10},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
    }, replicas=2, pod={"serviceAccountName": "coredns", "dnsPolicy": "Default", "priorityClassName": "system-cluster-critical",
                        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}]})
    things = [
        {"kind": "ConfigMap", "data": {"Corefile": f".:53 {{\n{names}\n}}\n"}},
        {"kind": "ServiceAccount"},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], **read},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], **read}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"},
         "subjects": [{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}]},
        {"kind": "Service", "spec": {"clusterIP": address, "selector": {"app": "coredns"}, "ports": ports}},
        server]
    return [{"apiVersion": "v1", **thing, "metadata": {"name": "coredns", "namespace": "kube-system"}} for thing in things]


LIMITED = {"ulimits.nri.containerd.io/container.c": "- type: nofile\n  hard: 345\n  soft: 234\n"}


# ---- what becomes of them ------------------------------------------------------------------------


@contextlib.contextmanager
def applied(*things, gone_in=90):
    """These objects, while the block runs; afterwards they are seen to go, with their pods."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(things)})

    def end():
        kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", text=text)
        for name in {t["metadata"]["name"] for t in things}:
            until(gone_in, f"the pods of {name} are gone", lambda n=name: not pods_of(n))

    try:
        # The API server judges them; to be asked for its schema first costs one that is emulated more than kubectl waits.
        kubectl("apply", "--validate=false", "-f", "-", text=text)
        yield
    except Exception:
        # What went wrong first is told; the next test still finds an empty node.
        with contextlib.suppress(Failed):
            end()
        raise
    end()


def rolled_out(kind, name, *more, seconds=300):
    # An emulated API server may keep a client waiting for longer than it does.
    until(seconds, f"{kind}/{name} is rolled out", lambda: kubectl("rollout", "status", f"{kind}/{name}", "--timeout=60s", *more))


def is_ready(name):
    until(60, f"{name} is ready", lambda: kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=30s"))


def limits(pod):
    return kubectl("exec", pod, "--", "sh", "-c", "echo $(ulimit -Sn) $(ulimit -Hn)")


def asked_for(name, **spec):
    """A pod that wants to be adjusted: the limits it got."""
    with applied(single(name, c(FOREVER), annotations=LIMITED, **spec)):
        is_ready(name)
        return limits(name)
