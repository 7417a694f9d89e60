#!/usr/bin/env python3
"""docs.py FILE...: types what documents say, word for word: their blocks marked `sh`, each document's in one shell, in order.

Run on a fresh node, in a directory with the packages and the examples. A block that fails ends its document.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LOAD = pathlib.Path("/opt/node")


def blocks(text):
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


def follow(document, directory):
    text = document.read_text()
    # Each block says its first line, so that a failure has a place.
    script = "set -e\n"
    for n, block in enumerate(blocks(text)):
        script += f"printf '%s\\n' {n} >blocks\n{block}"
    if not blocks(text):
        print(f"FAILED   {document.name} has no block to type")
        return False
    (directory / "script").write_text(script)
    ran = subprocess.run(["timeout", "600", "bash", "script"], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                         env={**os.environ, "HOME": "/root"})
    done = int((directory / "blocks").read_text())
    if ran.returncode == 0:
        print(f"ok       {document.name}: {len(blocks(text))} blocks, word for word")
        return True
    print(f"FAILED   {document.name}, block {done + 1} of {len(blocks(text))}, exit code {ran.returncode}\n{blocks(text)[done]}")
    print("---\n" + (ran.stdout + ran.stderr)[-1500:])
    return False


def main():
    documents = [pathlib.Path(name) for name in sys.argv[1:]]
    if not documents:
        print(__doc__, file=sys.stderr)
        return 2
    directory = pathlib.Path(tempfile.mkdtemp())
    try:
        version = subprocess.check_output(["dpkg-deb", "--field", LOAD / "cairn.deb", "Version"], text=True).strip()
        shutil.copy(LOAD / "cairn.deb", directory / f"cairn_{version}_amd64.deb")
        shutil.copy(LOAD / "cairn-next.deb", directory)
        shutil.copytree("/usr/share/doc/cairn/examples", directory / "examples")
        return 0 if all([follow(document, directory) for document in documents]) else 1
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.exit(main())
