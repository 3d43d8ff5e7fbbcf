#!/usr/bin/env python3
"""Makes the environments with the peers that compare.py measures, from a package index.

  bench/peers/install.py [BUILD_FOLDER]

By default in build/release: those of `tests/run.sh --engines`, 8 GiB each, without running a test,
and Mooncake's. Prints the Python of each.
"""

import importlib.util
import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MOONCAKE = "mooncake-transfer-engine-non-cuda==0.3.13.post1"


def engines(name):
    """The program that installs an engine for its tests."""
    path = ROOT / "tests" / name / "engine/run_engines.py"
    spec = importlib.util.spec_from_file_location(f"{name}_engines", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/release"
    for name, prefix in (("lmcache", "lmcache-"), ("vllm", "")):
        program = engines(name)
        version = next(iter(program.VERSIONS))
        folder = build.resolve() / "engines" / f"{prefix}{version}"
        folder.mkdir(parents=True, exist_ok=True)
        python = program.make_environment(folder, version)
        if python is None:
            sys.exit(f"the package index does not have {name} {version}")
        program.install_client(python, folder / "source")
        print(python, flush=True)
    folder = build.resolve() / "engines/mooncake"
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", MOONCAKE], check=True)
    print(folder / "bin/python")


if __name__ == "__main__":
    main()
