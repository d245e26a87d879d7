"""The model and the prompts that every peer is run on. Run by the python of an environment with pandas.

    PEERS/trl/bin/python peers_model.py OUT

A Qwen2 of 4 layers of 256, random weights, one token a character; 2,048 additions as train.jsonl and, for verl, as
train.parquet. Byte-level BPE without merges: transformers turns any other tokenizer beside a qwen2 config into its own.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

ROWS = 2048
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
CHARACTERS = [*"0123456789+-*/=", "\u0120", *"abcdefghijklmnopqrstuvwxyz?.", "\u010a"]
"""Space and newline as byte-level BPE writes them."""


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {character: place for place, character in enumerate(SPECIAL + CHARACTERS)}
    core = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"  # verl only chats
    return made


def main() -> None:
    out = Path(sys.argv[1])
    torch.manual_seed(0)
    random.seed(0)
    words = tokenizer()
    words.save_pretrained(str(out))
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(str(out))
    pairs = [(random.randint(0, 99), random.randint(0, 99)) for _ in range(ROWS)]
    rows = [{"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b)} for a, b in pairs]
    (out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame([_verl_row(place, row) for place, row in enumerate(rows)]).to_parquet(out / "train.parquet")


def _verl_row(place: int, row: dict[str, str]) -> dict[str, object]:
    return {
        "data_source": "flowrl/add",
        "prompt": [{"role": "user", "content": row["prompt"]}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": row["answer"]},
        "extra_info": {"index": place, "split": "train"},
    }


if __name__ == "__main__":
    main()
