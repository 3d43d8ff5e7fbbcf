#!/usr/bin/env python3
"""Builds the Python package's wheel, installs it in a virtual environment of the build folder, and
runs a folder of tests with it.

  run_tests.py BUILD_FOLDER KVSTREAMD KVSTREAMCTL [TESTS_FOLDER]

The environment stays, BUILD_FOLDER/python/venv, and is made anew when the package's sources have
changed. Exits 77, which ctest calls skipped, when the package index cannot be reached.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv

TESTS = pathlib.Path(__file__).resolve().parent
ROOT = TESTS.parent.parent
SKIPPED = 77
# The releases that the tests run with.
CONSTRAINTS = TESTS / "constraints.txt"
# What a wheel is made of. Built in a copy: the build leaves files beside its sources.
SOURCES = ("client/python", "proto")
# Small, needs nothing, and is needed.
PROBE = "setuptools>=77"
UNREACHABLE = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError",
               "ReadTimeoutError", "ProxyError", "ConnectionResetError", "RemoteDisconnected")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--retries", "1", "--timeout", "30")


def source_files():
    """Those of the package, without what builds leave."""
    return sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*")
                  if path.suffix in (".py", ".toml", ".in", ".typed", ".proto", ".md")
                  and not {"build", "__pycache__"} & set(path.relative_to(ROOT).parts))


def digest(files):
    """Of names and contents, and of the Python that runs."""
    total = hashlib.sha256(sys.version.encode())
    for path in [*files, CONSTRAINTS]:
        data = path.read_bytes()
        total.update(f"{path.relative_to(ROOT)}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def index_answers(python):
    """Whether there is an index to have packages from. What else is wrong fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run([python, *PIP, "download", "--no-deps", "--dest", folder, PROBE],
                               stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode == 0:
        return True
    print(tried.stderr, file=sys.stderr)
    # pip has no exit status of its own for it. It says that it retries, and why.
    if any(words in tried.stderr for words in UNREACHABLE):
        return False
    raise SystemExit("the package index answers, and has not what is asked of it")


def make_environment(folder):
    """The Python of an up-to-date environment; None when there is no index to make one from."""
    python, stamp = folder / "venv/bin/python", folder / "stamp"
    files = source_files()
    wanted = digest(files)
    if stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return python
    stamp.unlink(missing_ok=True)
    if not python.exists():
        venv.create(folder / "venv", with_pip=True, clear=True)
    if not index_answers(python):
        return None
    for name in ("source", "wheels"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in files:
        copy = folder / "source" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    # The command of client/python/README.md.
    subprocess.run([python, *PIP, "wheel", "--no-deps", "-w", folder / "wheels",
                    folder / "source/client/python"], check=True)
    wheel, = (folder / "wheels").glob("kvstreamd-*.whl")
    subprocess.run([python, *PIP, "install", "--constraint", CONSTRAINTS, wheel], check=True)
    subprocess.run([python, *PIP, "install", "--force-reinstall", "--no-deps", wheel], check=True)
    stamp.write_text(wanted, encoding="ascii")
    return python


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve() / "python"
    daemon, ctl = (str(pathlib.Path(program).resolve()) for program in sys.argv[2:4])
    tests = pathlib.Path(sys.argv[4]).resolve() if len(sys.argv) == 5 else TESTS
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="ascii") as lock:
        # Tests of one build folder share the environment, and ctest runs them at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = make_environment(folder)
    if python is None:
        print("SKIPPED: the package index cannot be reached, so there is nothing to install the "
              "Python client's dependencies from")
        return SKIPPED
    environment = {**os.environ, "KVSTREAMD_PROGRAM": daemon, "KVSTREAMCTL_PROGRAM": ctl,
                   "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": os.pathsep.join(map(str, {tests: None, TESTS: None}))}
    return subprocess.run([python, "-m", "unittest", "discover", "-s", tests, "-p", "*_test.py"],
                          env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
