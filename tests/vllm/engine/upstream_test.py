#!/usr/bin/env python3
"""Runs vLLM's own unit tests of connectors with KVStreamConnector in them.

  tests/vllm/engine/upstream_test.py KVSTREAMD KVSTREAMCTL VLLM.tar.gz

VLLM.tar.gz is the source distribution of the installed release; nothing of it is kept. Prints what
passed, failed and was skipped, by file, and ends with 1 where a test fails that applies.
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
from tiny_model import make

UNIT = "tests/v1/kv_connector/unit"
# The tests that any connector may take part in.
FILES = ("test_cache_pollution_prevention.py", "test_error_propagation.py",
         "test_invalid_blocks_correctness.py", "test_kv_connector_lifecycle.py",
         "test_kv_load_failure_recovery.py", "test_multi_connector.py",
         "test_backwards_compatibility.py", "test_hma_auto_config.py")
# Those among them that do not apply; client/python/README.md says why.
NOT_APPLICABLE = (
    "test_kv_connector_lifecycle.py::test_kv_connector_mixin_clears_metadata",
    "test_kv_load_failure_recovery.py::"
    "test_block_level_load_failure_fails_closed_with_multiple_groups",
    "test_multi_connector.py::test_multi_example_connector_consistency")
PATIENCE_S = 1800


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


def run(node, folder, model):
    """Runs the tests; the outcomes of all, by their names."""
    report = folder / "report.xml"
    environment = {**os.environ, "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1",
                   "KVSTREAMD_SOCKET": node.socket, "KVSTREAM_UPSTREAM": str(folder),
                   "KVSTREAM_MODEL": model, "VLLM_CPU_KVCACHE_SPACE": "1",
                   "PYTHONPATH": os.pathsep.join(
                       [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    files = [f"{UNIT}/{name}" for name in FILES if (folder / UNIT / name).exists()]
    with open(folder / "log", "w", encoding="utf-8") as log:
        subprocess.run([*real_node.DIE_WITH_PARENT, sys.executable, "-m", "pytest", "-q",
                        "-p", "upstream_plugin",
                        f"--confcutdir={folder / UNIT}", "-p", "no:cacheprovider",
                        f"--junitxml={report}", "-W", "ignore", *files], cwd=folder,
                       env=environment, stdout=log, stderr=subprocess.STDOUT, check=False,
                       timeout=PATIENCE_S)
    if not report.exists():
        sys.exit((folder / "log").read_text(encoding="utf-8")[-4000:])
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        file = case.get("classname").split(".unit.")[-1].split(".")[0]
        kinds = {child.tag for child in case}
        outcome = ("failed" if kinds & {"failure", "error"} else
                   "skipped" if "skipped" in kinds else "passed")
        text = next((child.get("message") or "" for child in case
                     if child.tag in ("failure", "error", "skipped")), "")
        outcomes[f"{file}.py::{case.get('name')}"] = (outcome, text.splitlines()[:1])
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
            outcomes = run(node, folder, make(folder / "tiny"))
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
    total = sum(counts.values(), collections.Counter())
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    failed = {name for name, (outcome, _) in outcomes.items() if outcome == "failed"}
    return 1 if failed - set(NOT_APPLICABLE) or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
