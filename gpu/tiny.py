"""A Llama of random weights whose tokens are bytes, for the check's dry run: `python tiny.py OUT`."""

from __future__ import annotations

import sys
from pathlib import Path


def make(out: Path) -> None:
    """bf16, 0.3 million parameters; shapes that 4 bits in groups of 64 fit."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    words = Tokenizer(models.BPE(vocab={word: k for k, word in enumerate([*special.values(), *letters])}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(out)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 320}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = LlamaConfig(**sizes, **heads, **ids, max_position_embeddings=2048, tie_word_embeddings=True)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
