"""Places on this machine for nodes to live in: namespaces and cgroups of their own, of which nothing is left.

The tests run in the place of the first node, see outside(); a second node's is made beside it, see Place. All places end with
the program that made the first, however it ends.

  place.py keep HOSTNAME       process 1 of a Place, until its input ends
  place.py clean DIRECTORY     waits for its input's end, and removes what a run had on this machine
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

UNSHARE = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "--kill-child", "--propagation", "private", "--mount-proc", "--"]
# What a kubelet and containerd make for themselves, whatever directories they are given.
OWN = {"/var/lib": {"kubelet", "cni"}, "/var/log": {"containers"}, "/usr/libexec": {"kubernetes"}, "/opt": {"containerd"}}
# What a kubelet sets in the kernel, which is not ours alone.
TUNED = ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"]


def outside(name):
    """Runs this program again, in namespaces whose process 1 ends all that is left inside; ends with its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    before = {}
    for key in TUNED:
        with contextlib.suppress(OSError):
            before[key] = pathlib.Path("/proc/sys", key).read_text()
    work = tempfile.mkdtemp(prefix=f"cairn-{name}-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    # It outlives us where we are killed, and is not told when the terminal's other processes are.
    cleaner = subprocess.Popen([sys.executable, __file__, "clean", work], stdin=subprocess.PIPE, start_new_session=True, text=True)
    cleaner.stdin.write(json.dumps(before) + "\n")
    cleaner.stdin.flush()
    child = None
    try:
        os.chmod(work, 0o755)
        # It ends with us, and process 1 with it, however we end; also where we had ended before it asked for that.
        with_us = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" = "$0" ] && exec "$@"', str(os.getpid())]
        child = subprocess.Popen([*with_us, *UNSHARE, sys.executable, *sys.argv],
                                 env={**os.environ, "CAIRN_NODE_INSIDE": work})
        code = child.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if child:
            child.kill()
            child.wait()
        cleaner.communicate()
    sys.exit(code or cleaner.returncode)


def clean(work):
    """Removes what a run had on this machine, once its last process is gone; says what stays."""
    before = json.loads(sys.stdin.readline() or "{}")
    sys.stdin.read()
    for key, value in before.items():
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/sys", key).write_text(value)
    end = time.monotonic() + 30
    while True:
        shutil.rmtree(work, ignore_errors=True)
        left = subprocess.run(["find", "/sys/fs/cgroup", work, "-maxdepth", "2", "-name", pathlib.Path(work).name + "*"],
                              capture_output=True, text=True).stdout.split()
        if not left:
            return
        if time.monotonic() > end:
            sys.exit(f"node: cannot be removed: {' '.join(left)}")
        for group in left:
            subprocess.run(["find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"], capture_output=True)
        time.sleep(0.1)


def make_cgroups(name):
    """Cgroups of our own, on a machine that others use; clean() knows them by the name of the directory that theirs begins with."""
    top = pathlib.Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        wanted = [c for c in (top / "cgroup.controllers").read_text().split() if c in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")]
        (top / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in wanted))
        (top / name).mkdir()
        return
    for group in top.iterdir():
        if (group / "cgroup.procs").exists() and not (group / name).exists():
            (group / name).mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (group / file).exists():
                    (group / name / file).write_text((group / file).read_text())


def inside():
    """What a node has, in namespaces that were just made; nothing of it leaves them."""
    call("ip", "link", "set", "lo", "up")
    call("mount", "-t", "tmpfs", "tmpfs", "/run")
    os.makedirs("/run/lock")
    for place, own in OWN.items():
        hide(place, own)
    # As systemd has it: plugins and volumes ask for mounts that propagate.
    call("mount", "--make-rshared", "/")


def hide(place, names):
    """Puts a directory of our own over one of the machine's, with the same entries but for these."""
    over = pathlib.Path("/run/over")
    over.mkdir(exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(over))
    for entry in os.scandir(place):
        there = over / entry.name
        if entry.name in names:
            continue
        if entry.is_symlink():
            there.symlink_to(os.readlink(entry.path))
            continue
        there.mkdir() if entry.is_dir() else there.touch()
        call("mount", "--rbind", entry.path, str(there))
    call("mount", "--move", str(over), place)


def call(*argv):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)


class Place:
    """Namespaces of a second node. To be made before the first one has pods: their mounts would be held in here, too."""

    def __init__(self, hostname):
        self.name = hostname
        self.keeper = subprocess.Popen([*UNSHARE, sys.executable, __file__, "keep", hostname], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.keeper.stdout.readline() != b"kept\n":
            raise OSError(f"no place could be made for {hostname}")
        self.pid = child_of(self.keeper.pid)
        # What a program is called with to run in it.
        self.enter = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--uts", "--"]

    def end(self):
        """Ends all that runs in it."""
        self.keeper.communicate()


def child_of(pid):
    """The only child of a program that waits for it; 0 if it has none yet, or no longer."""
    with contextlib.suppress(OSError):
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text() or 0)
    return 0


def keep(hostname):
    socket.sethostname(hostname)
    inside()
    # Process 1 has other people's children to bury.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("kept", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {"keep": keep, "clean": clean}[sys.argv[1]](sys.argv[2])
