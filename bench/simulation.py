#!/usr/bin/env python3
"""The experiments of the publication of completion routing, and some past them, on kvstream-sim.

Each experiment runs kvstream-sim with options that vary, and prints a table in Markdown; with
--json FILE also what each run said, one JSON object a line, its options with it. Nothing is random
but by --seed. bench/SIMULATION.md explains the tables.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

import route_plot
from bench_daemon import BUILD

# A node: 4 GPUs of 40 GB, its own tier and its part of the shared one, each with its latencies.
NODE = "--gpu a100-40 --gpus-per-node 4 --nvme-gb-s 3 --pfs-gb-s 1 --pool-gib 64"
# Questions about long documents, of which host memory holds about a fifth.
DOCUMENTS = (f"{NODE} --model 32b --gpus-per-instance 2 --host-gb-per-gpu 20 --workload documents "
             "--documents 128 --document-tokens 12288 --questions 8 --output-tokens 16")
OFFLINE = f"{DOCUMENTS} --arrival offline"
# Steps of 12 GB, one at a time, all of it on both tiers.
STEPS = (f"{NODE} --gpus-per-node 1 --gpu h100 --running-max 1 --workload documents "
         "--documents 60 --questions 1 --document-tokens 61440 --arrival offline --placed")
LOADS = {"quiet": "", "periodic": "--pfs-load periodic --pfs-low 0.4 --pfs-period-s 1",
         "bursty": "--pfs-load bursty --pfs-low 0.1 --pfs-high 0.6 --pfs-period-s 0.5",
         "drifting": "--pfs-load drifting --pfs-low 0.2 --pfs-period-s 0.5"}
MODELS = {"14b": "--model 14b --gpus-per-instance 1", "32b": "--model 32b --gpus-per-instance 2",
          "70b": "--model 70b --gpu h100 --gpus-per-instance 4",
          "110b": "--model 110b --gpu h100 --gpus-per-instance 4"}


class Lab:
    """Runs simulations, each once, several at a time."""

    def __init__(self, args):
        self.args = args
        self.pool = concurrent.futures.ThreadPoolExecutor(args.jobs)
        self.runs = {}
        self.plotted = []

    def run(self, *options):
        words = " ".join(options).split()
        key = " ".join(words)
        if key not in self.runs:
            command = [str(self.args.build / "bench/kvstream-sim"), "--seed",
                       str(self.args.seed), *words]
            self.runs[key] = self.pool.submit(self._run, key, command)
        return self.runs[key]

    @staticmethod
    def _run(key, command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"kvstream-sim {key}: {done.stderr}")
        return {"options": key, **json.loads(done.stdout)}


def table(title, head, rows):
    """Prints rows of futures, numbers and texts."""
    print(f"\n## {title}\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def of(future, field, digits=2):
    return round(future.result()[field], digits)


def ratio(better, base, field="requests_per_s", digits=2):
    """How many times more of `field` the first has."""
    return round(better.result()[field] / base.result()[field], digits)


def splits(lab):
    policies = ["completion", "published:8", *(f"fixed:{s}" for s in range(55, 96, 5)),
                "fixed:75 --copies one"]
    runs = {(p, l): lab.run(STEPS, o, f"--policy {p}") for p in policies for l, o in LOADS.items()}
    table("Distance from the bound, by policy and load of the shared tier (percent)",
          ["policy", *LOADS],
          [[p, *(of(runs[p, l], "above_bound_pct", 1) for l in LOADS)] for p in policies])
    lab.plotted = [{"scenario": l, "policy": p, "above_bound_pct": of(run, "above_bound_pct")}
                   for (p, l), run in runs.items() if "copies" not in p]


def models(lab):
    policies = ("memory", "single", "fixed:75", "completion")
    runs = {(m, p): lab.run(OFFLINE, o, f"--policy {p}") for m, o in MODELS.items()
            for p in policies}
    table("Offline throughput by model (requests a second)",
          ["model", *policies, "completion / single", "completion / memory"],
          [[m, *(of(runs[m, p], "requests_per_s", 3) for p in policies),
            ratio(runs[m, "completion"], runs[m, "single"]),
            ratio(runs[m, "completion"], runs[m, "memory"])] for m in MODELS])
    outputs = (16, 32, 64, 128, 256)
    runs = {(n, p): lab.run(OFFLINE, f"--output-tokens {n} --policy {p}") for n in outputs
            for p in policies}
    table("Offline throughput by output tokens (requests a second, 32b)",
          ["output tokens", *policies, "completion / single"],
          [[n, *(of(runs[n, p], "requests_per_s", 3) for p in policies),
            ratio(runs[n, "completion"], runs[n, "single"])] for n in outputs])


def arrivals(lab):
    policies = ("memory", "single", "fixed:75", "completion")
    rates = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1)
    runs = {(r, p): lab.run(DOCUMENTS, f"--spread --arrival poisson --rate {r} --policy {p}")
            for r in rates for p in policies}
    table("Mean time to first token by arrival rate (s; 32b)",
          ["requests/s", *policies, "single / completion"],
          [[r, *(of(runs[r, p], "ttft_mean_s") for p in policies),
            ratio(runs[r, "single"], runs[r, "completion"], "ttft_mean_s")] for r in rates])
    table("Requests whose first token comes within 1 s (percent)", ["requests/s", *policies],
          [[r, *(round(100 * of(runs[r, p], "ttft_within_1s", 4)) for p in policies)]
           for r in rates])
    variations = (0.5, 1, 2, 4, 8)
    runs = {(c, p): lab.run(DOCUMENTS, f"--spread --arrival gamma --rate 0.6 --cv {c} --policy {p}")
            for c in variations for p in policies}
    table("Mean time to first token by burstiness (s; 0.6 requests/s)",
          ["coefficient of variation", *policies, "single / completion"],
          [[c, *(of(runs[c, p], "ttft_mean_s") for p in policies),
            ratio(runs[c, "single"], runs[c, "completion"], "ttft_mean_s")] for c in variations])


def cluster(nodes, documents_a_node=32):
    return f"--nodes {nodes} --documents {nodes * documents_a_node} --host-gb-per-gpu 5"


def nodes(lab):
    sizes = (4, 8, 16, 32)
    totals = {"as much as all can take": "", "8 GB/s in all": "--pfs-total-gb-s 8"}
    runs = {(n, t, p): lab.run(OFFLINE, cluster(n), o, f"--policy {p}") for n in sizes
            for t, o in totals.items() for p in ("single", "completion")}
    table("Nodes on one shared file system: completion / single, requests a second",
          ["nodes", *totals],
          [[n, *(ratio(runs[n, t, "completion"], runs[n, t, "single"]) for t in totals)]
           for n in sizes])


def memory(lab):
    sizes = (0, 10, 20, 40, 80)
    runs = {(s, p): lab.run(OFFLINE, f"--spread --host-gb-per-gpu {s} --policy {p}")
            for s in sizes for p in ("memory", "single", "completion")}
    table("Host memory (32b, 128 documents of 3.2 GB, offline)",
          ["GB per GPU", "completion / memory", "completion / single"],
          [[s, ratio(runs[s, "completion"], runs[s, "memory"]),
            ratio(runs[s, "completion"], runs[s, "single"])] for s in sizes])


# Share of the prompts' chunks that an earlier prompt had: questions about a document, or else a
# system prompt before 12 thousand tokens that come once.
REUSE = {"88 %": "--questions 8", "75 %": "--questions 4 --documents 256",
         "4 %": "--workload agents --turns 1 --sessions 1024 --system-tokens 512 "
                "--user-tokens 11776 --user-spread 0"}


def reuse(lab):
    copies = ("all", "one", "adaptive")
    runs = {(r, c): lab.run(OFFLINE, o, f"--policy completion --copies {c}")
            for r, o in REUSE.items() for c in copies}
    single = {r: lab.run(OFFLINE, o, "--policy single") for r, o in REUSE.items()}
    none = {r: lab.run(OFFLINE, o, "--policy memory") for r, o in REUSE.items()}
    table("Reuse: completion routing over one tier alone, by copies (requests a second)",
          ["reused", *(f"{c} / single" for c in copies), *(f"{c} / memory" for c in copies),
           *(f"amplification, {c}" for c in copies)],
          [[r, *(ratio(runs[r, c], single[r]) for c in copies),
            *(ratio(runs[r, c], none[r]) for c in copies),
            *(of(runs[r, c], "amplification") for c in copies)] for r in REUSE])


def replication(lab):
    copies = ("one", "reactive", "fraction:0.2", "fraction:0.4", "adaptive", "all")
    placed = {(c, l): lab.run(STEPS, o, f"--questions 4 --documents 30 --spread --copies {c}")
              for c in copies for l, o in LOADS.items()}
    written = {c: lab.run(OFFLINE, f"--copies {c}") for c in copies}
    table("Copies: what they cost in writes, and how near to the bound reads come (percent)",
          ["copies", "amplification", *LOADS, "offline requests/s"],
          [[c, of(written[c], "amplification"),
            *(of(placed[c, l], "above_bound_pct", 1) for l in LOADS),
            of(written[c], "requests_per_s", 3)] for c in copies])


def deferral(lab):
    loads = {"one tier": "--policy single", "both": ""}
    runs = {(l, d): lab.run(OFFLINE, o, f"--max-defer-ms {d}") for l, o in loads.items()
            for d in (0, 2000, 20000)}
    table("Writes that wait for reads (offline, requests a second)",
          ["tiers", "at once", "2 s at most", "20 s at most"],
          [[l, *(of(runs[l, d], "requests_per_s", 3) for d in (0, 2000, 20000))] for l in loads])


def preload(lab):
    long = f"{NODE} --model 14b --workload documents --documents 64 --questions 1 --placed " \
           "--document-tokens 30000 --output-tokens 64 --arrival offline"
    runs = {(p, x): lab.run(long, f"--policy {p}", x) for p in ("single", "completion")
            for x in ("", "--preload")}
    table("Preload: a queue of 30,000-token requests (14b)",
          ["policy", "mean first token, s", "with preload", "ratio", "requests/s, ratio"],
          [[p, of(runs[p, ""], "ttft_mean_s"), of(runs[p, "--preload"], "ttft_mean_s"),
            ratio(runs[p, ""], runs[p, "--preload"], "ttft_mean_s"),
            ratio(runs[p, "--preload"], runs[p, ""])] for p in ("single", "completion")])
    lengths = (256, 512, 1024, 4096, 16384)
    short = f"{NODE} --model 8b --gpu h100 --workload documents --documents 256 --questions 1 " \
            "--placed --output-tokens 16 --arrival poisson --rate 2 --chunk-tokens 128"
    runs = {(n, x): lab.run(short, f"--document-tokens {n}", x) for n in lengths
            for x in ("", "--break-even", "--policy memory")}
    table("Break-even: mean first token by prompt length (ms; 8b on H100)",
          ["tokens", "load always", "break-even", "compute always", "declined, percent"],
          [[n, *(round(1000 * of(runs[n, x], "ttft_mean_s", 5), 1)
                 for x in ("", "--break-even", "--policy memory")),
            round(100 * runs[n, "--break-even"].result()["declined_chunks"]
                  / (256 * (n // 128)))] for n in lengths])


def sharing(lab):
    # 2 of 5 tokens are those of one of 16 prompts that all nodes meet.
    agents = (f"{NODE} --model 32b --gpus-per-instance 2 --host-gb-per-gpu 5 --nodes 32 "
              "--workload agents --sessions 2048 --turns 1 --system-prompts 16 "
              "--system-tokens 8192 --user-tokens 12288 --user-spread 0 --output-tokens 16 "
              "--arrival poisson --rate 16")
    runs = {(s, x): lab.run(agents, f"--shared {s}", x) for s in (0, 0.4, 1)
            for x in ("", "--share", "--share --break-even")}
    table("32 nodes with and without finding each other's chunks",
          ["sessions with one of 16 common system prompts", "written to the shared tier, GB",
           "with sharing", "files there", "with sharing", "computed tokens, ratio",
           "mean first token, s", "with sharing", "and break-even"],
          [[s, *(round(runs[s, x].result()["written_gb"][1]) for x in ("", "--share")),
            *(runs[s, x].result()["pfs_chunks"] for x in ("", "--share")),
            ratio(runs[s, "--share"], runs[s, ""], "computed_tokens"),
            *(of(runs[s, x], "ttft_mean_s")
              for x in ("", "--share", "--share --break-even"))] for s in (0, 0.4, 1)])


EXPERIMENTS = {f.__name__: f for f in (splits, models, arrivals, nodes, memory, reuse, replication,
                                       deferral, preload, sharing)}


def main():
    parser = argparse.ArgumentParser(
        prog="kvstream-bench simulation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    parser.add_argument("--only", type=lambda t: t.split(","), default=list(EXPERIMENTS),
                        help="some of " + ",".join(EXPERIMENTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--json", type=pathlib.Path, help="where the runs' lines go")
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG of the first experiment")
    args = parser.parse_args()
    unknown = [name for name in args.only if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"no experiment {unknown[0]}")
    lab = Lab(args)
    for name in args.only:
        EXPERIMENTS[name](lab)
    if args.plot and not lab.plotted:
        parser.error("--plot draws the experiment splits")
    if args.plot:
        args.plot.write_text(route_plot.svg(lab.plotted), encoding="utf-8")
    if args.json:
        lines = (json.dumps(run.result()) + "\n" for run in lab.runs.values())
        args.json.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
