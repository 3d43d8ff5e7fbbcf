#!/usr/bin/env python3
"""What the connector costs a vLLM on the CPU when nothing hits: throughput with it over without.

  bench/vllm_throughput.py KVSTREAMD KVSTREAMCTL [--rounds 12] [--layers 8] [--hidden 512]

Runs in a Python that has vllm and kvstreamd: `tests/run.sh --engines` makes it. Two engines live at
once and take turns, so that a busy machine slows both. Every prompt is new: all is computed, and
with the connector all is stored.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/vllm/engine")]
# pylint: disable=wrong-import-position
import real_node
from engine_test import Engine
from tiny_model import make, prompt

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 500, 32


def seconds(engine, number):
    """Of one round with prompts of its own."""
    prompts = [prompt(number * PROMPTS + i, PROMPT_TOKENS) for i in range(PROMPTS)]
    began = time.perf_counter()
    answer = engine.generate(prompts, OUTPUT_TOKENS)
    took = time.perf_counter() - began
    assert answer["cached"] == [0] * PROMPTS, answer["cached"]
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("daemon")
    parser.add_argument("ctl")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = real_node.Node(arguments.daemon, arguments.ctl, folder, config="pool { mib: 512 }")
        node.start()
        try:
            model = make(f"{folder}/model", layers=arguments.layers, hidden=arguments.hidden)
            engines = [Engine(None, model), Engine(node.socket, model)]
            ratios = []
            for number in range(arguments.rounds + 1):
                order = engines if number % 2 else engines[::-1]
                times = {engine: seconds(engine, number) for engine in order}
                without, connected = (times[engine] for engine in engines)
                # The first warms both up.
                if number:
                    ratios.append(without / connected)
                    print(f"round {number}: {without:.2f} s without, {connected:.2f} s with: "
                          f"{ratios[-1]:.3f}", flush=True)
            stored = engines[1].metrics()
            print(f"throughput with the connector over without: median "
                  f"{statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}; "
                  f"{stored['stored_chunks']:.0f} chunks stored, "
                  f"{stored['dropped_chunks']:.0f} dropped")
            for engine in engines:
                engine.close()
        finally:
            node.end()


if __name__ == "__main__":
    main()
