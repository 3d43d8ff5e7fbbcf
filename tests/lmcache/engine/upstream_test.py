#!/usr/bin/env python3
"""Runs LMCache's own unit tests of its second level with KVStreamConnector in them.

  tests/lmcache/engine/upstream_test.py KVSTREAMD KVSTREAMCTL LMCACHE.tar.gz

LMCACHE.tar.gz is the source distribution of the installed release; nothing of it is kept. Prints
what passed, failed and was skipped, by file, and ends with 1 where a test fails that applies.
"""

import collections
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "support"))
# pylint: disable=wrong-import-position
import real_node

# Those that take a native connector, and how it is loaded.
FILES = ("tests/v1/distributed/test_native_connector_l2_adapter.py",
         "tests/v1/distributed/test_l2_adapter_factory.py")
# Those among them that do not apply; client/python/README.md says why.
NOT_APPLICABLE = ()
PATIENCE_S = 900


def extract(archive, folder):
    """The tests' sources, without the package, which is installed."""
    with tarfile.open(archive) as opened:
        for member in opened:
            name = pathlib.PurePosixPath(member.name)
            inner = pathlib.PurePosixPath(*name.parts[1:])
            if member.isfile() and name.suffix == ".py" and inner.parts[:1] == ("tests",):
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(opened.extractfile(member).read())


def run(node, folder):
    """Runs the tests; the outcomes of all, by their names."""
    report = folder / "report.xml"
    paths = [str(HERE), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "KVSTREAMD_SOCKET": node.socket, "LMCACHE_TRACK_USAGE": "false",
                   "PYTHONPATH": os.pathsep.join(paths)}
    with open(folder / "log", "w", encoding="utf-8") as log:
        subprocess.run([*real_node.DIE_WITH_PARENT, sys.executable, "-m", "pytest", "-q",
                        "-p", "upstream_plugin", "-p", "no:cacheprovider",
                        f"--confcutdir={folder / 'tests/v1'}",
                        f"--junitxml={report}", "-W", "ignore", *FILES], cwd=folder,
                       env=environment, stdout=log, stderr=subprocess.STDOUT, check=False,
                       timeout=PATIENCE_S)
    if not report.exists():
        sys.exit((folder / "log").read_text(encoding="utf-8")[-4000:])
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = ("failed" if kinds & {"failure", "error"} else
                   "skipped" if "skipped" in kinds else "passed")
        text = next((child.get("message") or "" for child in case
                     if child.tag in ("failure", "error", "skipped")), "")
        name = case.get("classname").removeprefix("tests.v1.distributed.").replace(".", "::", 1)
        outcomes[f"{name}::{case.get('name')}"] = (outcome, text.splitlines()[:1])
    return outcomes


def main():
    daemon, ctl, archive = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        extract(archive, folder)
        (folder / "node").mkdir()
        node = real_node.Node(daemon, ctl, folder / "node")
        node.start()
        try:
            outcomes = run(node, folder)
            stored = node.status()["operations"]
        finally:
            node.end()
    counts = collections.defaultdict(collections.Counter)
    for name, (outcome, _) in outcomes.items():
        counts[name.split("::")[0]][outcome] += 1
    for name, (outcome, text) in outcomes.items():
        if outcome != "passed":
            applies = "" if name not in NOT_APPLICABLE else ", does not apply"
            print(f"{outcome}{applies}: {name}: {' '.join(text)[:160]}")
    for file, count in counts.items():
        print(f"| {file} | {count['passed']} | {count['failed']} | {count['skipped']} |")
    print(f"the daemon has stored {stored['chunks_stored']} chunks for them and delivered "
          f"{stored['chunks_delivered']}")
    failed = {name for name, (outcome, _) in outcomes.items() if outcome == "failed"}
    # Tests that never met the daemon would prove nothing.
    met = int(stored["chunks_stored"]) and int(stored["chunks_delivered"])
    return 1 if failed - set(NOT_APPLICABLE) or not met else 0


if __name__ == "__main__":
    sys.exit(main())
