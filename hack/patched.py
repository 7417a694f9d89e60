#!/usr/bin/env python3
"""Maintains a copy of the tracked files with one patch applied, for builds of a broken product.

    patched.py DIR [PATCH]

Writes only changed files, so that cargo rebuilds only the crates that this patch and the previous one change. A patch
must apply exactly.
"""
import os
import pathlib
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent


class DoesNotApply(Exception):
    pass


def differs(source, copy):
    if source.is_symlink() or copy.is_symlink():
        return not (source.is_symlink() and copy.is_symlink() and os.readlink(source) == os.readlink(copy))
    return not copy.is_file() or source.read_bytes() != copy.read_bytes()


def lay(tree, patch=None):
    """Copies the tracked files in their current state to `tree`, and applies `patch`."""
    tree.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, check=True, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name and os.path.lexists(REPO / name)]
    wanted = {tree / name for name in names}
    for path in [path for path in tree.rglob("*") if path.is_symlink() or path.is_file()]:
        if path not in wanted:
            path.unlink()
    for name in names:
        source, copy = REPO / name, tree / name
        if differs(source, copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.unlink(missing_ok=True)
            # Not the source's time: cargo must detect that the copy has changed.
            shutil.copyfile(source, copy, follow_symlinks=False)
            if not source.is_symlink():
                shutil.copymode(source, copy)
    if patch:
        # In a repository, git ignores paths outside the current directory.
        env = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
        command = ["git", "apply", str(pathlib.Path(patch).resolve())]
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
        if done.returncode:
            raise DoesNotApply(done.stderr.strip())


if __name__ == "__main__":
    match sys.argv[1:]:
        case [tree, *patch] if len(patch) < 2:
            try:
                lay(pathlib.Path(tree), *patch)
            except DoesNotApply as error:
                sys.exit(str(error))
        case _:
            sys.exit(__doc__)
