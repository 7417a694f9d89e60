#!/usr/bin/env python3
"""reboot.py before | after: what becomes of a kubelet's pods when a node's power is cut and comes back.

The host cuts the power between the two, and powers the node off after the second; see hack/node.
"""
import json
import pathlib
import sys

import kubelet as k
from node import Failed, RealNode, expect, http, read, run, until

WORK = "/var/lib/node-reboot"


def before():
    run("systemctl", "enable", "kubelet")
    k.NODE.start()
    said = "cat /proc/sys/kernel/random/boot_id >>/shared/boots; echo up"
    stays = k.Pod(k.sh(f"{said}; trap 'sleep 1; echo told to end >>/shared/end; exit 0' TERM; while :; do sleep 0.2; done"), name="stays", grace=10)
    # It never ends by itself: a power-off must not wait for its ten minutes.
    stubborn = k.Pod(k.sh(f"{said}; trap '' TERM; while :; do sleep 0.2; done"), name="stubborn", grace=600)
    network = k.Pod(k.sh("mkdir /tmp/www; echo here >/tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www",
                         ports=[{"containerPort": 80, "hostPort": 18081}]), name="web")
    for pod in (stays, stubborn, network):
        pod.running()
    until(30, "the web pod answers", lambda: http("127.0.0.1", 18081) == "here\n")


def known(name):
    """A pod that was made before the reset."""
    pod = k.Pod.__new__(k.Pod)
    pod.short, pod.dir, pod.file = name, k.NODE.shared / name, k.NODE.manifests / f"{name}.json"
    return pod


def after():
    until(120, "cairn serves", lambda: k.NODE.crictl("version"))
    k.NODE.healthy()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    for name in ("stays", "stubborn"):
        until(120, f"{name} runs in this boot", lambda n=name: read(k.NODE.shared / n / "boots").endswith(boot))
        boots = read(k.NODE.shared / name / "boots").split()
        expect(f"{name}: starts, one in each boot", 2, len(set(boots)))
    until(60, "the web pod answers", lambda: http("127.0.0.1", 18081) == "here\n")
    for name in ("stays", "stubborn", "web"):
        # The kubelet numbers a container by the dead one that cairn still knows.
        until(60, f"{name} counts its restart", lambda n=name: known(n).restarts() == 1)
        last = known(name).status()["lastState"]["terminated"]
        expect(f"{name}: the container of the first boot", 255, last["exitCode"])

    def ready():
        return [p["metadata"]["name"] for p in json.loads(k.NODE.crictl("pods", "-o", "json"))["items"] if p["state"] == "SANDBOX_READY"]
    expect("sandboxes that are ready", 3, len(ready()))


def main():
    step = {"before": before, "after": after}.get((sys.argv[1:] or [""])[0])
    if not step:
        print(__doc__, file=sys.stderr)
        return 2
    pathlib.Path("/var/lib/node/reboot").mkdir(exist_ok=True)
    k.NODE = RealNode(WORK)
    k.NODE.shared = pathlib.Path("/var/lib/node/reboot")
    try:
        step()
        print(f"ok       {step.__name__} the reset")
        return 0
    except Failed as why:
        print(f"FAILED   {step.__name__} the reset\n         {why}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
