#!/usr/bin/env python3
"""How far above the bound steps end, by routing policy and by what happens to the tiers meanwhile.

Makes two ext4 file systems on loop devices whose reads the block layer throttles to set rates
(root, fio, e2fsprogs, cgroup v1), starts kvstreamd on them with each policy in turn, stores a step
and reads it back under each scenario, in interleaved rounds. The bound of a read is the first time
at which the integral of the set rates reaches its bytes; a result more than 0.5 % below it (1 %
for pfs-dies, where what was in flight still arrives) fails the run. With --dirs A,B it measures
directories of your own instead, unthrottled and quiet, against what fio gets from both at once.
Output: one JSON object a line, a table, and with --plot an SVG.
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time

import route_plot
from bench_daemon import BUILD, MIB, Daemon
from emulated_tiers import EmulatedTiers, StoppableMount, bytes_read, fio_read, fio_reader
from route_scenarios import FAILING, FAILS_AT, SCENARIOS, bound_seconds, changes_of

DEFAULT_SCENARIOS = "quiet,pfs-periodic,pfs-bursty,pfs-steady,nvme-writes"
POLICIES = "completion,published:2,fixed:65,fixed:70,fixed:75,fixed:80,fixed:85,single:fast"
ABLATIONS = {"no-narrowing": "narrowing: false", "no-hedging": "hedging: false",
             "no-tail-rules": "narrowing: false hedging: false", "no-ahead": "ahead_ms: 0"}
# Policies that never read a segment again, not even one that is late.
UNHEDGED = ("single", "fixed", "published", "no-hedging", "no-tail-rules")
EPILOG = ("scenarios:\n" + "\n".join(f"  {k:14} {v}" for k, v in SCENARIOS.items())
          + "\n\npolicies: completion, request-at-a-time, single:TIER, fixed:PERCENT, "
          "published:CHUNKS,\nand completion with a part off: " + ", ".join(ABLATIONS))


def routing(policy):
    """The config of a policy."""
    name, _, value = policy.partition(":")
    fields = {"single": f'single_tier: "{value}"', "fixed": f"fixed_percent: {value or 50}",
              "published": f"published_chunks: {value or 8}"}.get(name, ABLATIONS.get(name, ""))
    kind = "COMPLETION" if name in ABLATIONS else name.upper().replace("-", "_")
    hedge = "reads { hedge_after_ms: 60000 }" if name in UNHEDGED else ""
    return f"routing {{ policy: {kind} {fields} }}\n{hedge}"


class Rig:
    """The tiers, and a daemon with each policy in turn."""

    def __init__(self, stack, args):
        self.args = args
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvstream-bench-", dir=args.dir))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.emulated = None
        self.stoppable = None
        self.roots = args.dirs
        self.step_bytes = (args.gib * 1024 * MIB if args.dirs else
                           int(args.seconds * sum(args.rates)) // 16 * 16 * MIB)
        if not args.dirs:
            size = (self.step_bytes // MIB * 9 // 8 // 4 * 4 + 256) * MIB
            self.emulated = EmulatedTiers(stack, self.folder, size, args.sparse)
            self.roots = self.emulated.roots

    def daemon(self, stack, policy):
        args = self.args
        tier = (f"io_kib: {args.io_kib} window_mib: {args.window_mib} open_files: 4096 "
                "required: false")
        config = f"pool {{ mib: {args.pool_mib} }}\n{self.limits()}\n{routing(policy)}"
        daemon = Daemon(stack, args.build, self.folder, list(zip(("fast", "slow"), self.roots)),
                        tier, config)
        if self.emulated:
            self.emulated.join(daemon.process.pid)
        return daemon

    @contextlib.contextmanager
    def over_stoppable(self, stack):
        """Within it the second tier is a FUSE over what it is otherwise."""
        roots = self.roots
        self.stoppable = StoppableMount(stack, self.folder, roots[1], self.emulated.group)
        self.roots = [roots[0], self.stoppable.root]
        try:
            yield
        finally:
            self.roots, self.stoppable = roots, None

    def limits(self):
        # The whole step lies in one host buffer.
        buffer_mib = max(16384, self.step_bytes * 2 // MIB)
        return f"limits {{ host_buffer_mib_per_session_max: {buffer_mib} }}"

    def step_options(self):
        return ("--bytes", str(self.step_bytes), "--chunk-bytes", self.args.chunk_bytes,
                "--segment-bytes", self.args.segment_bytes, "--requests", str(self.args.requests))


class Weather:
    """Changes the rates of a scenario from the begin of a step on, and remembers when."""

    def __init__(self, rig, scenario, seed):
        self.rig, self.scenario = rig, scenario
        self.rates = list(rig.args.rates)
        self.tier, changes = changes_of(scenario, seed, rig.args.seconds)
        self.changes = [(at, factor * self.rates[self.tier]) for at, factor in changes]
        self.made = []
        self._over = threading.Event()
        self._thread = None

    def prepare(self):
        for tier, rate in enumerate(self.rates):
            self.rig.emulated.set_rate(tier, rate)
        for at, rate in self.changes:
            if at <= 0:
                self.rig.emulated.set_rate(self.tier, rate)
                self.made.append((0.0, rate))

    def begin(self, began):
        self._thread = threading.Thread(target=self._run, args=(began,))
        self._thread.start()

    def _run(self, began):
        for at, rate in [c for c in self.changes if c[0] > 0]:
            if self._over.wait(max(0.0, began + at - time.time())):
                return
            self.rig.emulated.set_rate(self.tier, rate)
            self.made.append((time.time() - began, rate))
        if self.scenario in FAILING:
            at = FAILS_AT * self.rig.args.seconds
            if not self._over.wait(max(0.0, began + at - time.time())):
                if self.scenario == "pfs-dies":
                    self.rig.emulated.kill(1)
                else:
                    self.rig.stoppable.stop()
                self.made.append((time.time() - began, 0.0))

    def end(self):
        self._over.set()
        self._thread.join()
        if self.rig.stoppable:
            self.rig.stoppable.go_on()

    def bound(self, total, lost=0.0):
        """`lost`: MiB/s of the second tier that a competitor took."""
        rates = [r * MIB for r in self.rates]
        rates[1] -= lost * MIB
        return bound_seconds(rates, [(at, self.tier, max(rate * MIB, 1)) for at, rate in self.made],
                             total)


class Competitor:
    """A second reader on the second tier, and what it read while the step ran."""

    def __init__(self, rig):
        self._fio = fio_reader(rig.roots[1], rig.emulated.group, rig.args.io_kib, 8, 600)
        self._marks = []

    def mark(self):
        self._marks.append((time.time(), bytes_read(self._fio.pid)))

    def end(self):
        self._fio.terminate()
        self._fio.communicate()
        (began, first), (ended, last) = self._marks
        return (last - first) / MIB / (ended - began)


def measure_emulated(rig, policy, number, steps, current, scenario):
    weather = Weather(rig, scenario, number)
    weather.prepare()
    other = Competitor(rig) if scenario == "competitor" else None
    current.update(weather=weather, other=other)
    row = next(steps)
    lost = other.end() if other else 0.0
    rig.emulated.lift()
    bound = weather.bound(row["bytes"], lost)
    row.update(bench="route", policy=policy, scenario=scenario, round=number,
               bound_seconds=round(bound, 4),
               above_bound_pct=round((row["seconds"] / bound - 1) * 100, 3))
    if other:
        row["competitor_mib_s"] = round(lost, 1)
    return row


def measure_real(rig, policy, number, steps):
    args = rig.args
    raw = fio_read(rig.roots, None, args.io_kib, args.window_mib * 1024 // args.io_kib,
                   args.raw_seconds)
    row = next(steps)
    bound = row["bytes"] / MIB / sum(raw)
    row.update(bench="route", policy=policy, scenario="quiet", round=number, raw_mib_s=raw,
               bound_seconds=round(bound, 4),
               above_bound_pct=round((row["seconds"] / bound - 1) * 100, 3))
    return row


def run_scenarios(rig, policy, number, scenarios):
    """The rows of one daemon."""
    rows, current = [], {}

    def begin(began):
        if current:
            current["weather"].begin(began)
            if current["other"]:
                current["other"].mark()

    def end():
        if current:
            current["weather"].end()
            if current["other"]:
                current["other"].mark()

    with contextlib.ExitStack() as stack:
        daemon = rig.daemon(stack, policy)
        daemon.step(*rig.step_options(), "--store")
        steps = daemon.paced(*rig.step_options(), on_begin=begin, on_end=end)
        next(steps)
        for scenario in scenarios:
            if rig.emulated:
                row = measure_emulated(rig, policy, number, steps, current, scenario)
            else:
                row = measure_real(rig, policy, number, steps)
            row.pop("began", None)
            print(json.dumps(row), flush=True)
            rows.append(row)
        steps.close()
    return rows


def run_policy(rig, policy, number):
    """The rows of one policy in one round."""
    if not rig.emulated:
        return run_scenarios(rig, policy, number, ["quiet"])
    scenarios = rig.args.scenarios
    rows = run_scenarios(rig, policy, number, [s for s in scenarios if s != "pfs-hangs"])
    if "pfs-dies" in scenarios:
        rig.emulated.revive(1)
    # A policy that never reads elsewhere what is late would wait for ever.
    if "pfs-hangs" in scenarios and policy.partition(":")[0] not in UNHEDGED:
        with contextlib.ExitStack() as stack, rig.over_stoppable(stack):
            rows += run_scenarios(rig, policy, number, ["pfs-hangs"])
    return rows


def raw_row(rig, number):
    """What the machine delivers of the set rates, each tier alone and both at once."""
    args = rig.args
    depth = args.window_mib * 1024 // args.io_kib
    for tier, rate in enumerate(args.rates):
        rig.emulated.set_rate(tier, rate)
    alone = [fio_read([root], rig.emulated.group, args.io_kib, depth, args.raw_seconds)[0]
             for root in rig.roots]
    both = fio_read(rig.roots, rig.emulated.group, args.io_kib, depth, args.raw_seconds)
    rig.emulated.lift()
    row = {"bench": "route", "case": "raw", "round": number, "alone_mib_s": alone,
           "both_mib_s": both}
    print(json.dumps(row), flush=True)


def print_table(rows):
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    print(f"\n{'% above the bound':>20}  " + "  ".join(f"{s:>24}" for s in scenarios))
    for policy in dict.fromkeys(row["policy"] for row in rows):
        cells = []
        for scenario in scenarios:
            values = [r["above_bound_pct"] for r in rows
                      if (r["policy"], r["scenario"]) == (policy, scenario)]
            cells.append(f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"
                         if values else "")
        print(f"{policy:>20}  " + "  ".join(f"{c:>24}" for c in cells))


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the lines of descriptions, and says defaults."""


def parse(program, description, whole=False):
    """`whole`: with what only route itself understands."""
    words = lambda text: text.split(",")
    parser = argparse.ArgumentParser(
        prog=program, description=description,
        formatter_class=HelpFormatter, epilog=EPILOG if whole else None)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    if whole:
        parser.add_argument("--policies", type=words, default=POLICIES.split(","))
        parser.add_argument("--scenarios", type=words,
                            default=DEFAULT_SCENARIOS.split(","))
        parser.add_argument("--plot", type=pathlib.Path, help="an SVG of time over bound by split")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved")
    parser.add_argument("--seconds", type=float, default=20, help="bound of a quiet step")
    parser.add_argument("--rates", type=lambda t: tuple(int(r) for r in t.split(",")),
                        default=(300, 100), help="MiB/s of the fast and the slow tier")
    parser.add_argument("--dir", default="/var/tmp", help="where the images go")
    parser.add_argument("--sparse", action="store_true",
                        help="do not allocate the images beforehand; for --dir on a tmpfs")
    parser.add_argument("--dirs", type=words, help="measure these two directories instead; the "
                        "step's files stay there, below v1/")
    parser.add_argument("--gib", type=int, default=8, help="bytes of the step with --dirs, GiB; "
                        "it lies in host memory")
    parser.add_argument("--requests", type=int, default=1,
                        help="number of requests that the step is made of")
    parser.add_argument("--chunk-bytes", default="16MiB", help="whole MiB")
    parser.add_argument("--segment-bytes", default="4MiB", help="KiB or MiB")
    parser.add_argument("--io-kib", type=int, default=512, help="of a device request")
    parser.add_argument("--window-mib", type=int, default=32, help="the tiers' window_mib")
    parser.add_argument("--pool-mib", type=int, default=1024, help="pool.mib")
    parser.add_argument("--raw-seconds", type=int, default=4, help="of each fio run")
    args = parser.parse_args()
    if not whole:
        return args
    unknown = [s for s in args.scenarios if s not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]}")
    if "pfs-dies" in [s for s in args.scenarios if s != "pfs-hangs"][:-1]:
        parser.error("nothing comes after pfs-dies but pfs-hangs")
    return args


def main():
    args = parse("kvstream-bench route", __doc__, whole=True)
    rows = []
    with contextlib.ExitStack() as stack:
        rig = Rig(stack, args)
        for number in range(args.rounds):
            for policy in args.policies:
                rows += run_policy(rig, policy, number)
            if rig.emulated:
                raw_row(rig, number)
    print_table(rows)
    if args.plot:
        args.plot.write_text(route_plot.svg(rows))
    # A throttle's first slice, and of a tier that dies what it had in flight.
    if any(row["above_bound_pct"] < (-1 if row["scenario"] == "pfs-dies" else -0.5)
           for row in rows):
        sys.exit("a step faster than the bound by more than 0.5 %: the measurement is wrong"
                 + (". The rates changed meanwhile, or something was cached" if args.dirs else ""))


if __name__ == "__main__":
    main()
