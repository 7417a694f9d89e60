"""A cluster's control plane beside its first node, nodes that join it, and the network between them."""
import contextlib
import hashlib
import json
import os

from kubectl import ask_with, condition, get, kubectl
from node import Program, run, until

ADDRESS, SECURE, OUTSIDER = "192.168.88.1", 6443, "192.168.88.254"
# Of the DNS server that pods ask, where there is one.
DNS = "10.96.0.10"
# Every pod's address is in it; each node has a part of its own.
PODS = "10.88.0.0/16"
# What is to leave the cluster does so under the node's address, and nothing else: for a runtime whose bridge cannot tell them apart.
LEAVING = """table ip leaving {{
  chain postrouting {{
    type nat hook postrouting priority srcnat
    ip saddr {subnet} ip daddr != {pods} masquerade
  }}
}}
"""
# Those that were made, the first first.
NODES = []


class Plane:
    """The control plane, as children of this program."""

    USERS = {"admin": "system:masters", "system:node:node": "system:nodes", "system:node:node2": "system:nodes",
             "system:kube-controller-manager": "", "system:kube-scheduler": "", "system:kube-proxy": ""}

    def __init__(self, node):
        self.node, self.work = node, node.work / "plane"
        self.work.mkdir()
        # What nodes are joined by; it is no node itself, and where all goes that is for none.
        # Of a plane whose making failed, on the same node.
        run("ip", "netns", "del", "switch", check=False)
        run("ip", "netns", "add", "switch")
        run("ip", "-n", "switch", "link", "add", "ports", "type", "bridge")
        run("ip", "-n", "switch", "address", "add", f"{OUTSIDER}/24", "dev", "ports")
        run("ip", "-n", "switch", "link", "set", "ports", "up")
        connect(node, os.getpid(), ADDRESS)
        tokens = {user: hashlib.sha256(os.urandom(32)).hexdigest() for user in self.USERS}
        (self.work / "tokens.csv").write_text("".join(f'{token},{user},{user},"{self.USERS[user]}"\n' for user, token in tokens.items()))
        key = self.work / "accounts.key"
        run("openssl", "genrsa", "-out", str(key), "2048")
        # Which requests came by this API server, for one that it hands them to.
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=front", "-keyout", str(self.work / "front.key"),
            "-out", str(self.work / "front.crt"))
        self.config = {user: self.kubeconfig(user, token) for user, token in tokens.items()}
        ask_with(f"{node.programs}/kubectl", "--kubeconfig", self.config["admin"], "--cache-dir", str(self.work / "cache"))
        self.daemons = []
        self.add("etcd", "--data-dir", "etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
                 "--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level", "warn")
        self.add("kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--cert-dir", "api", "--secure-port", str(SECURE),
                 "--advertise-address", ADDRESS, "--token-auth-file", "tokens.csv", "--authorization-mode", "Node,RBAC",
                 "--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://kubernetes.default.svc",
                 "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
                 "--requestheader-client-ca-file", "front.crt", "--proxy-client-cert-file", "front.crt", "--proxy-client-key-file", "front.key",
                 "--requestheader-username-headers", "X-Remote-User", "--requestheader-group-headers", "X-Remote-Group",
                 "--requestheader-extra-headers-prefix", "X-Remote-Extra-", "--kubelet-preferred-address-types", "InternalIP", "--allow-privileged")
        # A node that is emulated chooses its pods' addresses itself, and may be slow to say that it lives.
        subnets = ["--allocate-node-cidrs", "--cluster-cidr", PODS, "--node-cidr-mask-size", "24",
                   "--node-monitor-grace-period", "30s"] if node.gets_subnet else []
        self.add("kube-controller-manager", "--kubeconfig", self.config["system:kube-controller-manager"], "--leader-elect=false",
                 "--use-service-account-credentials", "--service-account-private-key-file", str(key), "--root-ca-file", "api/apiserver.crt", *subnets)
        self.add("kube-scheduler", "--kubeconfig", self.config["system:kube-scheduler"], "--leader-elect=false")

    def add(self, name, *flags, place=None):
        daemon = Program(name, [f"{self.node.programs}/{name}", *flags], "", cwd=str(self.work), place=place)
        daemon.path = str(self.work / f"{daemon.title}.log")
        self.daemons.append(daemon)
        return daemon

    def kubeconfig(self, user, token):
        path = self.work / f"{user.replace(':', '.')}.json"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"https://{ADDRESS}:{SECURE}", "insecure-skip-tls-verify": True}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {"token": token}}]}))
        return str(path)

    def start(self):
        for daemon in self.daemons:
            daemon.start()
            if daemon.name == "kube-apiserver":
                until(120, "the API server is ready", lambda: kubectl("get", "--raw", "/readyz") == "ok")
        self.join(self.node, ADDRESS)
        until(60, "pods may have an account", lambda: get("serviceaccount", "default"))

    def join(self, node, address):
        """A node that runs becomes one of the cluster, under its address on the uplink."""
        # Pods of one bridge answer each other directly: without a masquerade a service's answer would miss its way back. Cairn's
        # bridge has one for them, and leaves those of other nodes their addresses.
        hide = [] if node.runtime.name == "cairn" else ["--masquerade-all"]
        self.add("kube-proxy", "--kubeconfig", self.config["system:kube-proxy"], "--proxy-mode", "nftables", *hide,
                 "--hostname-override", node.name, "--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0",
                 "--conntrack-tcp-timeout-close-wait", "0", place=node.place).start()
        # The usual two minutes are too few for a runtime under many pods on an emulated node: it is asked again, without end.
        patient = {"runtimeRequestTimeout": "15m"} if node.on_node else {}
        node.configure({"address": "0.0.0.0", "registerNode": True, "clusterDNS": [DNS], **patient}, "--kubeconfig", self.config[f"system:node:{node.name}"],
                       "--hostname-override", node.name, "--node-ip", address)
        if node.gets_subnet:
            node.take_subnet(until(120, f"{node.name} has a subnet for its pods", lambda: get("node", node.name)["spec"]["podCIDR"]), PODS)
            if node.runtime.name != "cairn":
                node.run("nft", "-f", "-", text=LEAVING.format(subnet=node.subnet, pods=PODS))
        until(120, f"{node.name} is ready", lambda: condition(get("node", node.name), "Ready"))
        for other in NODES:
            if other is not node:
                route(node, other)
                route(other, node)

    def end(self):
        for daemon in reversed(self.daemons):
            daemon.stop()
        run(f"{self.node.programs}/kube-proxy", "--cleanup", check=False)
        run("ip", "netns", "del", "switch", check=False)


def connect(node, pid, address):
    """Plugs a node into the switch, or a place for one that a process is in; its port there has its name."""
    # Of a switch that is gone; the kernel takes its time for such links.
    run(*node.enter, "ip", "link", "del", "uplink", check=False)
    run("ip", "-n", "switch", "link", "add", node.name, "type", "veth", "peer", "name", "uplink", "netns", str(pid))
    run("ip", "-n", "switch", "link", "set", node.name, "master", "ports", "up")
    run(*node.enter, "ip", "address", "add", f"{address}/24", "dev", "uplink")
    run(*node.enter, "ip", "link", "set", "uplink", "up")
    run(*node.enter, "ip", "route", "add", "default", "via", OUTSIDER, "dev", "uplink")


@contextlib.contextmanager
def cut_off(node):
    run("ip", "-n", "switch", "link", "set", node.name, "down")
    try:
        yield
    finally:
        run("ip", "-n", "switch", "link", "set", node.name, "up")


def route(node, other):
    """Leads to another node's pods as host-gw does it: by its own address, as the API server knows both."""
    node.run("ip", "route", "replace", get("node", other.name)["spec"]["podCIDR"], "via", address_of(other))


def address_of(node):
    """By which the cluster knows it."""
    return next(a["address"] for a in get("node", node.name)["status"]["addresses"] if a["type"] == "InternalIP")
