"""A small model with random weights, made on the spot, and prompts for it."""

import json
import pathlib

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
# Weights of another seed are another model of the same shape.
SEED = 7


def make(folder, seed=SEED, layers=2, hidden=128):
    """Writes the model to a folder; the same one for the same seed and sizes."""
    folder = pathlib.Path(folder)
    if not (folder / "config.json").exists():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden,
            num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=8192, bos_token_id=1, eos_token_id=2))
        model.to(torch.bfloat16).save_pretrained(folder)
        words = {f"w{number}": number for number in range(VOCABULARY)}
        PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), unk_token="w0",
            bos_token="w1", eos_token="w2").save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    return str(folder)


def prompt(number, tokens):
    """Token ids of one prompt; two share no block."""
    return [(number * 131 + i * (7 + number % 5)) % (VOCABULARY - 8) + 5 for i in range(tokens)]
