"""Builds kvstreamd's Python package: compiles the protocol to the descriptor set it loads.

    pip wheel --no-deps -w DIR client/python

Generated Python code is bound to the protobuf release that made it. A descriptor set is not, so one
wheel serves every release that pyproject.toml allows.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "proto"
TARGET = HERE / "kvstreamd" / "kvstream_v1.binpb"


def compiler():
    """The command of protoc: grpcio-tools' own, or the system's."""
    try:
        import grpc_tools.protoc  # pylint: disable=unused-import
        return [sys.executable, "-m", "grpc_tools.protoc"]
    except ImportError:
        found = shutil.which("protoc")
        if found is None:
            raise SystemExit("setup.py: needs grpcio-tools, or protoc in the path") from None
        return [found]


def compile_protocol():
    """Writes the descriptor set, whole or not at all. A source distribution brings its own."""
    if not (PROTO / "kvstream/v1").is_dir():
        if not TARGET.exists():
            raise SystemExit(f"setup.py: neither {PROTO} nor {TARGET} is there")
        return
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("kvstream/v1/*.proto"))
    temporary = TARGET.with_suffix(f".{os.getpid()}")
    subprocess.run([*compiler(), f"--proto_path={PROTO}", "--include_imports",
                    f"--descriptor_set_out={temporary}", *sources], check=True)
    os.replace(temporary, TARGET)


class BuildPy(build_py):
    """The package's files, the descriptor set among them."""

    def run(self):
        compile_protocol()
        # What package data matches was looked up before it was there.
        self.__dict__.pop("data_files", None)
        super().run()


class Sdist(sdist):
    """A source distribution that builds without the rest of the repository."""

    def run(self):
        compile_protocol()
        super().run()


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
