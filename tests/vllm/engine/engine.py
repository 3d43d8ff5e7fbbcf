"""One run of a real vLLM on the CPU, in a process of its own: what a test asks for comes as JSON on
stdin, line by line, answers go out on the descriptor that --answers names.

Everything is in this process, so that a test sees the KV's bytes. Asked for are:

  an engine, first       -> {"up": its release}
  {"generate": [[token, ...], ...], "tokens": n}    -> {"outputs": [...], "cached": [...]}
  {"forget": false}      empties the engine's own prefix cache; true: the connector's, too
  {"kv": [token, ...], "file": path} -> {"kv": hex digests of the blocks that the engine has of this
                            prompt}, and their values in a file of numpy's, shape (blocks, values)
  {"metrics": null}      -> {"metrics": {name: value}} of the connector
  {"preemptions": null}  -> {"preemptions": how many there were}
  {"settle": steps}      steps the engine until nothing of finished requests is left, at most
                         so often -> {"settled": whether, "free": whether all blocks are free}
"""

import argparse
import hashlib
import json
import os
import sys

import numpy as np

os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_KVCACHE_SPACE="1",
                  VLLM_LOGGING_LEVEL="INFO", VLLM_NO_USAGE_STATS="1")

# pylint: disable=wrong-import-position
import vllm
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig


def make_engine(options):
    """The engine that a test describes."""
    transfer = None
    if options.get("connector") is not None:
        transfer = KVTransferConfig(
            kv_connector="KVStreamConnector", kv_connector_module_path="kvstreamd.vllm",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config=options["connector"])
    return LLM(options["model"], skip_tokenizer_init=True, enforce_eager=True, dtype="bfloat16",
               block_size=options.get("block_size", 32), max_model_len=1536,
               max_num_batched_tokens=options.get("batched_tokens", 512),
               max_num_seqs=options.get("sequences", 16), disable_log_stats=False,
               kv_transfer_config=transfer, num_gpu_blocks_override=options.get("blocks"),
               distributed_executor_backend=options.get("executor", "uni"),
               tensor_parallel_size=options.get("ranks", 1),
               **options.get("more", {}))


def generate(llm, prompts, tokens):
    """Greedy outputs, and how many tokens of each prompt were not computed."""
    parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True,
                                detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": each} for each in prompts], parameters,
                           use_tqdm=False)
    return {"outputs": [list(each.outputs[0].token_ids) for each in outputs],
            "cached": [each.num_cached_tokens for each in outputs]}


def kv_of(llm, prompt, file):
    """The digest of each whole block of the prompt in the engine, all layers; stops at the first
    that is not there. The values go to the file, if there is one."""
    from vllm.sampling_params import SamplingParams as Parameters
    from vllm.v1.engine import EngineCoreRequest
    core = llm.llm_engine.engine_core.engine_core
    manager = core.scheduler.kv_cache_manager
    runner = core.model_executor.driver_worker.worker.model_runner
    fields = {"request_id": "kv", "prompt_token_ids": prompt, "mm_features": None,
              "sampling_params": Parameters(max_tokens=1), "pooling_params": None,
              "arrival_time": 0.0, "lora_request": None, "cache_salt": None,
              "data_parallel_rank": None}
    fields = {name: value for name, value in fields.items()
              if name in EngineCoreRequest.__struct_fields__}
    request, _ = core.preprocess_add_request(EngineCoreRequest(**fields))
    rows = []
    for block_hash in request.block_hashes:
        found = manager.block_pool.get_cached_block(block_hash, [0])
        if not found:
            break
        number = found[0].block_id
        blocks = core.scheduler.kv_cache_config.num_blocks
        rows.append(np.concatenate(
            [layer.select(0 if layer.shape[0] == blocks else 1, number).float().numpy().ravel()
             for layer in runner.kv_caches]))
    if file is not None:
        np.save(file, np.stack(rows))
    return {"kv": [hashlib.sha256(row.tobytes()).hexdigest() for row in rows]}


def settle(llm, steps):
    """Steps as a server does while the scheduler has requests that are not over."""
    core = llm.llm_engine.engine_core
    scheduler = core.engine_core.scheduler
    for _ in range(steps):
        if not scheduler.has_requests():
            break
        core.get_output()
    pool = scheduler.kv_cache_manager.block_pool
    return {"settled": not scheduler.has_finished_requests() and not scheduler.has_requests(),
            # One is never given to anybody.
            "free": pool.get_num_free_blocks() == pool.num_gpu_blocks - 1}


def connector_metrics(llm):
    """The connector's counters."""
    return {"metrics": {metric.name.removeprefix("vllm:kvstreamd_"): metric.value
                        for metric in llm.get_metrics() if "kvstreamd" in metric.name}}


def answer(llm, asked):
    """The answer to one line."""
    if "generate" in asked:
        return generate(llm, asked["generate"], asked["tokens"])
    if "forget" in asked:
        return {"forgot": llm.reset_prefix_cache(reset_connector=asked["forget"])}
    if "kv" in asked:
        return kv_of(llm, asked["kv"], asked.get("file"))
    if "settle" in asked:
        return settle(llm, asked["settle"])
    if "preemptions" in asked:
        return {"preemptions": sum(metric.value for metric in llm.get_metrics()
                                   if metric.name == "vllm:num_preemptions")}
    return connector_metrics(llm)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, required=True)
    arguments = parser.parse_args()
    with os.fdopen(arguments.answers, "w", buffering=1) as answers:
        llm = None
        for line in sys.stdin:
            asked = json.loads(line)
            if llm is None:
                llm = make_engine(asked)
                said = {"up": vllm.__version__}
            else:
                said = answer(llm, asked)
            answers.write(json.dumps(said) + "\n")
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
