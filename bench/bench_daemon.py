"""What the benchmarks share: a kvstreamd of their own, and kvstream-bench run against it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

# Where this file was copied to by the build, or else the source beside it.
_PARENT = pathlib.Path(__file__).resolve().parent.parent
BUILD = _PARENT if (_PARENT / "server/kvstreamd").exists() else _PARENT / "build/release"
MIB = 1 << 20


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, capture_output=True, **options).stdout


def loop_tier(stack, folder, name, size, sparse):
    """A mounted ext4 of its own loop device; returns mount point and device number."""
    image = folder / f"{name}.img"
    with open(image, "wb") as file:
        if sparse:
            file.truncate(size)
        else:
            os.posix_fallocate(file.fileno(), 0, size)
    device = run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
    stack.callback(run, "losetup", "--detach", device)
    run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
    mount = folder / name
    mount.mkdir()
    run("mount", device, str(mount))
    stack.callback(run, "umount", "--lazy", str(mount))
    stat = os.stat(device)
    return mount, f"{os.major(stat.st_rdev)}:{os.minor(stat.st_rdev)}"


class Daemon:
    """kvstreamd on `tiers` (pairs of name and root), stopped when `stack` closes."""

    def __init__(self, stack, build, folder, tiers, tier_fields="", config="", prefix=(),
                 cache="NONE"):
        self.build = build
        self.socket = folder / "kvstreamd.sock"
        text = f'sockets {{ grpc: "{self.socket}" }}\nmetrics {{ listen: "" }}\n'
        # What is measured is the tiers, where nothing else is said.
        text += f'cache {{ policy: {cache} }}\n'
        text += 'logging { level: "warn" }\n' + config + "\n"
        for name, root in tiers:
            text += f'tiers {{ name: "{name}" root: "{root}" {tier_fields} }}\n'
        file = folder / "kvstream.textproto"
        file.write_text(text)
        log = stack.enter_context(open(folder / "daemon.log", "w+", encoding="utf-8"))
        self.process = subprocess.Popen(
            [*prefix, str(build / "server/kvstreamd"), "--config", str(file)], stderr=log)
        stack.callback(self._stop)
        for _ in range(400):
            if subprocess.run([str(build / "client/kvstreamctl"), "--socket", str(self.socket),
                               "status"], capture_output=True, check=False).returncode == 0:
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        log.seek(0)
        sys.exit(f"the daemon did not start:\n{log.read()}")

    def _stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)

    def paced(self, *options, prefix=(), on_begin=None, on_end=None):
        """kvstream-bench step --paced, warmed up: next(step) runs it once and returns its line.
        `on_begin` is called with the time, as time.time() tells it, at which a read begins, and
        `on_end` when it has ended."""
        command = [*prefix, str(self.build / "bench/kvstream-bench"), "step", "--paced", "--socket",
                   str(self.socket), *options]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as bench:
            assert bench.stdout.readline() == "{}\n", "kvstream-bench failed"
            yield
            while True:
                bench.stdin.write("\n")
                bench.stdin.flush()
                row = {}
                while "seconds" not in row:
                    line = bench.stdout.readline()
                    if not line:
                        raise RuntimeError("kvstream-bench failed")
                    row.update(json.loads(line))
                    if on_begin and list(row) == ["began"]:
                        on_begin(row["began"])
                if on_end:
                    on_end()
                bench.stdout.readline()
                yield row

    def step(self, *options, prefix=()):
        """Runs kvstream-bench step and returns its JSON line."""
        return json.loads(run(*prefix, str(self.build / "bench/kvstream-bench"), "step", "--socket",
                              str(self.socket), *options))
