#!/usr/bin/env python3
"""Installs LMCache, for the CPU, in an environment of the build folder, and tests the connector
with it.

  run_engines.py BUILD_FOLDER KVSTREAMD KVSTREAMCTL [LMCACHE_VERSION...]

By default with the releases of VERSIONS, five minutes and 8 GiB of disk each. The environments
stay, BUILD_FOLDER/engines. Exits 77 when the package index cannot be reached.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
SKIPPED = 77
# LMCache's release, and the PyTorch to run it with.
VERSIONS = {"0.5.6": "2.13.0"}
# Of LMCache's requirements what is for GPUs alone, or for storage that is not tested here.
NOT_NEEDED = ("torch", "cupy", "cuda-python", "cufile", "google-cloud-bigtable")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--retries", "1", "--timeout", "60")


def requirements(wheel):
    """What the wheel of LMCache needs, but for NOT_NEEDED."""
    with zipfile.ZipFile(wheel) as opened:
        name, = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines
              if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    return [line for line in wanted if not line.startswith(NOT_NEEDED)]


def make_environment(folder, version):
    """The Python of an environment with LMCache; its tests' sources lie beside it. None when there
    is no index to make it from."""
    python = folder / "venv/bin/python"
    stamp = folder / "stamp"
    if stamp.exists():
        return python
    venv.create(folder / "venv", with_pip=True)
    if subprocess.run([python, *PIP, "download", "--no-deps", "-d", folder,
                       f"lmcache=={version}"], check=False).returncode:
        return None
    wheel, = folder.glob("lmcache-*.whl")
    (folder / "requirements.txt").write_text(
        "\n".join([f"torch=={VERSIONS[version]}", *requirements(wheel)]), encoding="utf-8")
    subprocess.run([python, *PIP, "install", "-r", folder / "requirements.txt", "wheel"],
                   check=True)
    subprocess.run([python, *PIP, "install", "--no-deps", wheel], check=True)
    subprocess.run([python, *PIP, "download", "--no-deps", "--no-binary", ":all:",
                    "--no-build-isolation", "-d", folder, f"lmcache=={version}"], check=True)
    stamp.touch()
    return python


def install_client(python, folder):
    """Installs the Python client from a copy of its sources: a build leaves files beside them."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("client/python", "proto"):
        shutil.copytree(ROOT / name, folder / name)
    subprocess.run([python, *PIP, "install", folder / "client/python"], check=True)
    subprocess.run([python, *PIP, "install", "--force-reinstall", "--no-deps",
                    folder / "client/python"], check=True)


def main():
    folder = pathlib.Path(sys.argv[1]).resolve() / "engines"
    programs = [str(pathlib.Path(program).resolve()) for program in sys.argv[2:4]]
    status = 0
    for version in sys.argv[4:] or VERSIONS:
        of_version = folder / f"lmcache-{version}"
        of_version.mkdir(parents=True, exist_ok=True)
        python = make_environment(of_version, version)
        if python is None:
            print(f"SKIPPED: the package index does not have lmcache {version}")
            return SKIPPED
        install_client(python, of_version / "source")
        print(f"LMCache {version}", flush=True)
        paths = map(str, (HERE, HERE.parent, ROOT / "tests/python"))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths),
                       "KVSTREAMD_PROGRAM": programs[0], "KVSTREAMCTL_PROGRAM": programs[1],
                       "LMCACHE_TRACK_USAGE": "false"}
        status |= subprocess.run([python, "-m", "unittest", "server_test", "backend_test"],
                                 env=environment, check=False).returncode
        status |= subprocess.run([python, HERE / "upstream_test.py", *programs,
                                  of_version / f"lmcache-{version}.tar.gz"],
                                 env=environment, check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
