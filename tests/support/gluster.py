"""GlusterFS of Debian, as a real distributed file system: its servers, with two bricks, in
namespaces of their own for network, mounts and processes, which end with them; clients mount it by
FUSE through a pair of virtual interfaces. Needs root.

Only processes in that namespace are signalled.
"""

import os
import pathlib
import re
import shutil
import subprocess

from real_node import PATIENCE_S, wait

VOLUME = "kv"
NEEDS = ("glusterd", "gluster", "glusterfs", "unshare", "nsenter", "ip", "setpriv")
# In the namespaces: what GlusterFS keeps on the machine is the test's own.
SERVER = """set -e
mount --make-rprivate /
for place in run var/lib/glusterd var/log; do
  mkdir -p {folder}/$place /$place
  mount --bind {folder}/$place /$place
done
mkdir -p /run/gluster /var/log/glusterfs/bricks
ip link set lo up
# Not as the first process there, which has to bury bricks that die.
glusterd -N &
wait
"""


class Gluster:
    """A volume that spreads files over two bricks, without copies: one that dies takes its files
    along until it is back."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        number = os.getpid() & 0x3fff
        # Four addresses for each process that may test here.
        base = 0x0ad50000 + 4 * number
        self.client_address, self.address = (
            ".".join(str((base + host) >> shift & 255) for shift in (24, 16, 8, 0))
            for host in (1, 2))
        self.links = (f"kvs{number}", f"kvc{number}")
        self.server = None
        self.mounts = {}
        for brick in "ab":
            (self.folder / brick).mkdir(parents=True)

    @staticmethod
    def missing():
        """Why this machine cannot have one; empty when it can."""
        if os.geteuid() != 0:
            return "needs root"
        lacking = [name for name in NEEDS if shutil.which(name) is None]
        if lacking:
            return f"needs {', '.join(lacking)} (deploy/install-deps.sh --pfs)"
        return "" if os.path.exists("/dev/fuse") else "needs /dev/fuse"

    def start(self):
        script = SERVER.format(folder=self.folder)
        with open(self.folder / "log", "ab") as log:
            self.server = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--pid",
                 "--mount-proc", "--fork", "--kill-child=KILL", "sh", "-c", script],
                stdout=log, stderr=log)
        # The first process of the namespace: unshare's only child.
        children = f"/proc/{self.server.pid}/task/{self.server.pid}/children"
        self.first = wait(lambda: pathlib.Path(children).read_text(encoding="ascii").strip(),
                          "the namespaces are made")
        ours, theirs = self.links
        run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs)
        run("ip", "link", "set", theirs, "netns", self.first)
        run("ip", "address", "add", f"{self.client_address}/30", "dev", ours)
        run("ip", "link", "set", ours, "up")
        self.inside("ip", "address", "add", f"{self.address}/30", "dev", theirs)
        self.inside("ip", "link", "set", theirs, "up")
        wait(lambda: self.gluster("volume", "list", check=False).returncode == 0,
             "glusterd answers")
        bricks = [f"{self.address}:{self.folder}/{brick}/brick" for brick in "ab"]
        self.gluster("volume", "create", VOLUME, *bricks, "force")
        self.gluster("volume", "start", VOLUME)
        wait(lambda: len(self.bricks()) == 2, "both bricks are up")

    def inside(self, *command, check=True):
        return subprocess.run(
            ["nsenter", "-t", self.first, "--net", "--mount", "--pid", *command], check=check,
            capture_output=True, text=True, timeout=PATIENCE_S)

    def gluster(self, *words, check=True):
        return self.inside("gluster", "--mode=script", *words, check=check)

    def bricks(self):
        """{brick: its process, in the namespace} of those that are up."""
        status = self.gluster("volume", "status", VOLUME, check=False).stdout
        # A path that has no room in a line is broken.
        brick = r"^Brick\s+(\S+(?:\n\S+)*)\s+\d+\s+\d+\s+Y\s+(\d+)"
        found = re.findall(brick, status, re.MULTILINE)
        return {path.replace("\n", "").split("/")[-2]: pid for path, pid in found}

    def kill_brick(self, brick):
        self.inside("kill", "-KILL", self.bricks()[brick])
        wait(lambda: brick not in self.bricks(), "the brick is down")

    def restart_bricks(self):
        self.gluster("volume", "start", VOLUME, "force")
        wait(lambda: len(self.bricks()) == 2, "both bricks are up")

    def files(self, pattern):
        """What the bricks have, without the volume's own notes of where files lie."""
        found = (path for brick in "ab"
                 for path in (self.folder / brick / "brick").glob(pattern))
        return [path for path in found if path.stat().st_size > 0]

    def mount(self, root):
        """A client of its own, as each node has one."""
        root = pathlib.Path(root)
        root.mkdir(exist_ok=True)
        client = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "glusterfs", "--no-daemon",
             f"--volfile-server={self.address}", f"--volfile-id={VOLUME}",
             f"--log-file={self.folder}/client-{len(self.mounts)}.log", str(root)])
        self.mounts[root] = client
        wait(lambda: os.path.ismount(root) or client.poll() is not None, "the volume is mounted")
        if client.poll() is not None:
            raise AssertionError(f"glusterfs ended with {client.returncode}")

    def kill_mount(self, root):
        """The client dies; its place stays a dead mount until it is unmounted."""
        client = self.mounts.pop(pathlib.Path(root))
        client.kill()
        client.wait(timeout=PATIENCE_S)
        run("umount", "--lazy", str(root))

    def end(self):
        """For the clean-up."""
        for root in list(self.mounts):
            self.kill_mount(root)
        if self.server is None:
            return
        self.server.kill()  # And with it all that is in the namespaces.
        self.server.wait(timeout=PATIENCE_S)
        subprocess.run(["ip", "link", "delete", self.links[0]], check=False, capture_output=True,
                       timeout=PATIENCE_S)


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
