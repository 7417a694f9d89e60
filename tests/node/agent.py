#!/usr/bin/env python3
"""The way into a node that has no network: commands over a virtio serial port, one JSON line each way.

  agent.py serve PORT         in the node, by node-agent.service: runs what arrives, one command at a time
  agent.py call SOCKET CMD    on the host: runs CMD by bash in the node; its output and its exit code are this program's
  agent.py wait SOCKET SECS   on the host: waits until the node answers

A call that is given up (its client is gone) ends the command with it.
"""
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time


def serve(port):
    fd = os.open(port, os.O_RDWR)
    buffer = b""
    while True:
        line, _, rest = buffer.partition(b"\n")
        if not _:
            data = os.read(fd, 65536)
            if not data:  # nobody has the other end open
                time.sleep(0.1)
            buffer += data
            continue
        buffer = rest
        try:
            order = json.loads(line)
        except ValueError:  # what is left of a call that was given up
            continue
        run(fd, order)


def send(fd, message):
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(fd, data):]


def run(fd, order):
    """Runs one command to its end, or until its caller is gone."""
    child = subprocess.Popen(["bash", "-c", order["cmd"]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True, cwd="/root",
                             env={"HOME": "/root", "TERM": "dumb", "LANG": "C.UTF-8",
                                  "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    os.set_blocking(child.stdout.fileno(), False)
    events = select.poll()
    events.register(child.stdout, select.POLLIN)
    events.register(fd, 0)  # POLLHUP: the host's end was closed
    ended = None
    while True:
        if any(which == fd for which, _ in events.poll(200)):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return
        data = child.stdout.read()
        if data:
            send(fd, {"id": order["id"], "out": data.decode(errors="replace")})
        if data == b"":
            break
        # A daemon that the command left behind may hold the pipe: the command's end is what counts.
        if child.poll() is not None:
            if ended is None:
                ended = time.monotonic()
            elif not data and time.monotonic() - ended > 1:
                break
    send(fd, {"id": order["id"], "exit": child.wait()})


def connect(path):
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    return link


def lines(link, timeout=None):
    link.settimeout(timeout)
    buffer = b""
    while True:
        data = link.recv(65536)
        if not data:
            return
        buffer += data
        *whole, buffer = buffer.split(b"\n")
        for line in whole:
            try:
                yield json.loads(line)
            except ValueError:
                pass


def call(path, cmd, timeout=None, out=None):
    """The exit code of `cmd`, or None where the node goes away or does not answer."""
    ours = f"{os.getpid()}.{time.monotonic_ns()}"
    try:
        with connect(path) as link:
            # The empty line ends whatever half line an earlier caller left.
            link.sendall(b"\n" + json.dumps({"id": ours, "cmd": cmd}).encode() + b"\n")
            for message in lines(link, timeout):
                if message.get("id") != ours:
                    continue
                if "out" in message and out:
                    out.write(message["out"])
                    out.flush()
                if "exit" in message:
                    return message["exit"]
    except OSError:
        pass
    return None


def main(args):
    if args[:1] == ["serve"] and len(args) == 2:
        serve(args[1])
    if args[:1] == ["call"] and len(args) == 3:
        code = call(args[1], args[2], out=sys.stdout)
        if code is None:
            print("node: the node went away during the command", file=sys.stderr)
        return 255 if code is None else code if code >= 0 else 128 - code
    if args[:1] == ["wait"] and len(args) == 3:
        end = time.monotonic() + float(args[2])
        while time.monotonic() < end:
            if call(args[1], "true", timeout=5) == 0:
                return 0
            time.sleep(0.5)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
