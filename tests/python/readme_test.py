"""The example of client/python/README.md runs as it stands there."""

import pathlib
import re
import subprocess
import sys

from daemon_case import PATIENCE_S, DaemonCase

README = pathlib.Path(__file__).resolve().parents[2] / "client/python/README.md"
SOCKET = "/tmp/kvstream-dev/kvstreamd.sock"


class ReadmeTest(DaemonCase):
    """On a daemon of the test's own."""

    def test_the_example_prints_what_the_page_says(self):
        text = README.read_text(encoding="utf-8")
        examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        self.assertEqual(len(examples), 1)
        self.assertIn(SOCKET, examples[0])
        ran = subprocess.run([sys.executable, "-c", examples[0].replace(SOCKET, self.node.socket)],
                             capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        self.assertEqual(ran.stderr, "")
        self.assertIn(f"It prints `{ran.stdout.strip()}`", text)
