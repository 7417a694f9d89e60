"""What users of a cluster expect of two nodes; cluster.py has these tests in its table, and makes the second node for them."""
import ipaddress

from kubectl import applied, asked_for, c, condition, get, is_ready, kubectl, plugin, ready_of, pods_of, rolled_out, single, workload
from node import FOREVER, Table, expect, nothing_is_left, run, until
from plane import NODES, address_of, cut_off

TABLE = Table("two")
test = TABLE.test
# Says who answers, and who it is for it that asks.
PAGE = ("mkdir -p /tmp/www/cgi-bin; printf '#!/bin/sh\\necho; echo $(hostname) $REMOTE_ADDR\\n' >/tmp/www/cgi-bin/me; "
        "chmod +x /tmp/www/cgi-bin/me; exec httpd -f -p 8080 -h /tmp/www")
PROBE = {"httpGet": {"port": 8080, "path": "/cgi-bin/me"}, "periodSeconds": 1, "timeoutSeconds": 5}


# ---- pods and where they are -----------------------------------------------------------------------


def spread(name, container, replicas, **pod):
    """A Deployment of as many pods on either node, but for one that takes none."""
    evenly = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
              "labelSelector": {"matchLabels": {"app": name}}, "matchLabelKeys": ["pod-template-hash"]}
    return workload("Deployment", name, container, replicas=replicas, pod={"topologySpreadConstraints": [evenly], **pod})


def on(node):
    return {"nodeSelector": {"kubernetes.io/hostname": node.name}}


def ready_on(node, app):
    return [p for p in ready_of(app) if p["spec"]["nodeName"] == node.name]


def are_placed(app, *counts):
    """Waits for so many ready pods on either node; answers their uids, a set for each node."""
    def placed():
        pods = [ready_on(node, app) for node in NODES]
        return [len(p) for p in pods] == list(counts) and [uids(p) for p in pods]
    return until(120, f"ready pods of {app} on either node: {counts}", placed)


def uids(pods):
    return {p["metadata"]["uid"] for p in pods}


def name_of(pod):
    return pod["metadata"]["name"]


def answer_to(pod, address, port=8080):
    """What a page says to a pod: who answers, and whom it sees."""
    who, sees = kubectl("exec", pod, "--", "wget", "-q", "-T", "5", "-O", "-", f"http://{address}:{port}/cgi-bin/me").split()
    # Seen by a socket of IPv6.
    return [who, sees.strip("[]").removeprefix("::ffff:")]


def is_ready_since(node):
    """Since when a node is ready; nothing if it is not."""
    return next((c["lastTransitionTime"] for c in get("node", node.name)["status"]["conditions"] if c["type"] == "Ready" and c["status"] == "True"), None)


# ---- what is expected ------------------------------------------------------------------------------


@test(nodes=2)
def pods_of_two_nodes_reach_each_other_under_their_own_addresses():
    outsider = single("outsider", c(PAGE, readinessProbe=PROBE), hostNetwork=True, **on(NODES[0]))
    with applied(outsider, spread("peers", c(PAGE, readinessProbe=PROBE), replicas=4)):
        are_placed("peers", 2, 2)
        pods = [(pod, node) for node in NODES for pod in ready_on(node, "peers")]
        for pod, node in pods:
            address = ipaddress.ip_address(pod["status"]["podIP"])
            expect(f"{address} lies in {node.subnet}, of {node.name}", True, address in ipaddress.ip_network(node.subnet))
            for other, there in pods:
                if other is not pod:
                    expect(f"who answers a pod of {node.name} on {there.name}, and sees whom", [name_of(other), str(address)],
                           answer_to(name_of(pod), other["status"]["podIP"]))
        is_ready("outsider")
        leaving = name_of(pods[-1][0])
        expect("whom one sees that is no pod", address_of(NODES[1]), answer_to(leaving, address_of(NODES[0]))[1])


@test(nodes=2)
def a_service_leads_to_pods_of_two_nodes_from_pods_and_ports_of_both():
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pages"},
               "spec": {"type": "NodePort", "selector": {"app": "pages"}, "ports": [{"port": 80, "targetPort": 8080}]}}
    with applied(service, spread("pages", c(PAGE, readinessProbe=PROBE), replicas=2)):
        are_placed("pages", 1, 1)
        addresses = {name_of(p): p["status"]["podIP"] for p in ready_of("pages")}
        pods = set(addresses)
        told = get("service", "pages")["spec"]
        def both_answer(whom, ask):
            seen = set()
            def all_seen():
                seen.add(ask())
                return seen == pods
            until(30, f"{whom} has an answer from each pod", all_seen)
            expect(f"who answers when {whom} asks ten times more", set(), {ask() for _ in range(10)} - pods)
        for pod in pods:
            both_answer(f"{pod}, by the service,", lambda: answer_to(pod, told["clusterIP"], 80)[0])
            (other,) = pods - {pod}
            def seen_by_the_other():
                who, sees = answer_to(pod, told["clusterIP"], 80)
                return who == other and sees
            seen = until(30, f"{other} answers {pod}", seen_by_the_other)
            # With the bridge of CNI a service hides who asks.
            if NODES[0].runtime.name == "cairn":
                expect("whom it sees, by the service", addresses[pod], seen)
        port = told["ports"][0]["nodePort"]
        for node in NODES:
            page = f"http://{address_of(node)}:{port}/cgi-bin/me"
            for who, enter in ("the first node", []), ("the second node", NODES[1].enter), ("one that is no node", ["ip", "netns", "exec", "switch"]):
                ask = [*enter, f"{node.programs}/busybox", "wget", "-q", "-T", "5", "-O", "-", page]
                both_answer(f"{who}, by the port of {node.name},", lambda: run(*ask).split()[0])


@test(nodes=2)
def a_drained_one_of_two_nodes_loses_its_pods_to_the_other():
    drained = NODES[1]
    with applied(spread("movers", c(FOREVER), replicas=4)):
        staying, leaving = are_placed("movers", 2, 2)
        try:
            kubectl("drain", drained.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=300s")
            now, _ = are_placed("movers", 4, 0)
            expect("the other's own are the same", True, staying < now and now.isdisjoint(leaving))
            nothing_is_left(drained)
        finally:
            kubectl("uncordon", drained.name)
        kubectl("rollout", "restart", "deployment/movers")
        are_placed("movers", 2, 2)


@test(nodes=2)
def one_of_two_nodes_keeps_its_pods_while_its_runtime_and_kubelet_are_killed():
    first, struck = NODES
    page = single("page", c(PAGE, readinessProbe=PROBE), **on(struck))
    with applied(page, spread("steady", c(FOREVER), replicas=4)):
        is_ready("page")
        address = get("pod", "page")["status"]["podIP"]
        # As little as tells it: a log that the kubelet rotates is told from the middle.
        ask = (f"n=0; while :; do wget -q -T 5 -O /dev/null http://{address}:8080/cgi-bin/me && n=$((n + 1)) || echo lost; "
               "[ $n -lt 10 ] || { n=0; echo ten; }; sleep 0.2; done")
        def tens():
            return kubectl("logs", "asker").split().count("ten")
        with applied(single("asker", c(ask), **on(first))):
            is_ready("asker")
            before, ready = are_placed("steady", 2, 2), [is_ready_since(node) for node in NODES]
            for victims in ([struck.runtime], [struck.kubelet], [struck.runtime, struck.kubelet]):
                for daemon in victims:
                    daemon.crash()
                try:
                    # Those that were under way end the first ten.
                    asked = tens()
                    until(30, "ten answers without it", lambda: tens() >= asked + 2)
                finally:
                    for daemon in victims:
                        daemon.start()
                        if daemon is struck.runtime:
                            until(60, f"{daemon.name} serves", lambda: struck.crictl("version"))
                struck.healthy()
                until(60, "a command on the node", lambda: kubectl("exec", "page", "--", "hostname") == "page")
            expect("the pods are the same", before, are_placed("steady", 2, 2))
            pods = [p for app in ("steady", "page", "asker") for p in pods_of(app)]
            expect("restarts", {0}, {s["restartCount"] for p in pods for s in p["status"]["containerStatuses"]})
            expect("questions without an answer", 0, kubectl("logs", "asker").split().count("lost"))
            expect("since when the nodes are ready", ready, [is_ready_since(node) for node in NODES])


@test(nodes=2)
def one_of_two_nodes_that_is_cut_off_loses_its_pods_and_comes_back_without_them():
    lost = NODES[1]
    tolerations = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}
                   for key in ("unreachable", "not-ready")]
    with applied(spread("movers", c(FOREVER), replicas=4, tolerations=tolerations)):
        staying, leaving = are_placed("movers", 2, 2)
        def still_there():
            return len(lost.crictl("pods", "-q", "--label", "app=movers", "--state", "ready").split())
        with cut_off(lost):
            until(120, "it is not ready", lambda: not condition(get("node", lost.name), "Ready"))
            now, _ = are_placed("movers", 4, 0)
            expect("the other's own are the same", True, staying < now)
            expect("those that nobody could end", 2, still_there())
        until(120, "it is ready", lambda: condition(get("node", lost.name), "Ready"))
        until(120, "they end", lambda: uids(pods_of("movers")).isdisjoint(leaving) and still_there() == 0)
        expect("the others stay", now, uids(ready_of("movers")))
        nothing_is_left(lost)
        kubectl("rollout", "restart", "deployment/movers")
        are_placed("movers", 2, 2)


@test(nodes=2)
def a_plugin_in_a_daemon_set_adjusts_pods_on_two_nodes():
    with applied(plugin("v1")):
        rolled_out("daemonset", "plugin")
        are_placed("plugin", 1, 1)
        for node in NODES:
            # It runs before it is connected: the first pods may come too early.
            until(60, f"limits on {node.name}", lambda: asked_for(f"limited-{node.name}", **on(node)) == "234 345")
