"""Initial weights: a model of the flow becomes a Hugging Face folder (config.json, *.safetensors, tokenizer).

Takes a Model and the flow's folder; gives a folder. An inline shape is made here from a seed; a folder is used as it
lies; anything else is a hub id, read from the local cache or fetched. Must not know roles, ranks or plans.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging as hf_logging

from flowrl.backends.seeds import sample_seed
from flowrl.diag.diagnostic import FlowError, InternalError, diagnose
from flowrl.graph.graph import Model
from flowrl.machine.tokenizers import EOS, PAD, TOKENIZERS, UNKNOWN

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
INDEX = ("config.json", "model_index.json")
"""What a folder with a model has: of a language model, of a pipeline with a denoiser."""
_HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "tokenizer.model"]


def materialise(model: Model, folder: Path, out: Path, seed: int) -> Path:
    """The folder with the initial weights of `model`.

    `folder` is where the flow's relative paths start, `out` where an inline model is made (reused if complete), `seed`
    the run's. Raises FlowError FR0803 if the source is neither a folder with a config.json nor a hub id to be had.
    """
    if model.inline is not None:
        return _make_inline(model, model.inline, out, seed)
    local = folder / model.source
    if any((local / name).is_file() for name in INDEX):
        return local
    return _from_hub(model, local)


def load_lm(folder: Path, **arguments: Any) -> Any:
    """The language model of a folder, with its encoder of images if it has one."""
    config: Any = AutoConfig.from_pretrained(str(folder))
    sees = getattr(config, "vision_config", None) is not None
    kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    return kind.from_pretrained(str(folder), **arguments)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that a Model names: float32, bfloat16 or float16."""
    if name not in DTYPES:
        raise InternalError(f"dtype {name} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _from_hub(model: Model, local: Path) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    reason = f"{local} has no config.json"
    if local.exists() or model.source.startswith((".", "/", "~")):
        raise FlowError(diagnose("FR0803", model.span, model=model.name, source=model.source, reason=reason))
    try:
        return Path(snapshot_download(model.source, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as failure:
        last = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
        reason = f"{reason}, and the hub says: {last}"
        fault = diagnose("FR0803", model.span, model=model.name, source=model.source, reason=reason)
        raise FlowError(fault) from failure


def _make_inline(model: Model, shape: dict[str, Any], out: Path, seed: int) -> Path:
    if (out / "config.json").is_file():
        return out
    hf_logging.disable_progress_bar()
    tokens = TOKENIZERS[shape["tokenizer"]]
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _tokenizer(tokens).save_pretrained(str(part))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sample_seed(seed, f"model.{model.name}", 0))
        made: Any = Qwen2ForCausalLM(_qwen2_config(shape, tokens))
    made.to(torch_dtype(model.dtype)).save_pretrained(str(part))
    part.rename(out)
    return out


def _qwen2_config(shape: dict[str, Any], tokens: tuple[str, ...]) -> Qwen2Config:
    if shape.get("architecture", "qwen2") != "qwen2":
        raise InternalError(f"no inline architecture {shape['architecture']}")
    heads = shape["heads"]
    return Qwen2Config(
        vocab_size=len(tokens),
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["ffn_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=heads,
        num_key_value_heads=shape.get("kv_heads", heads),
        max_position_embeddings=shape["max_positions"],
        tie_word_embeddings=shape.get("tie_embeddings", False),
        pad_token_id=tokens.index(PAD),
        eos_token_id=tokens.index(EOS),
        bos_token_id=None,
        # transformers' own 0.02 is for hidden sizes of thousands; a small model that starts there learns slowly.
        initializer_range=shape["hidden_size"] ** -0.5,
    )


def byte_tokenizer(more: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """One token a byte, and `more` special ones behind them."""
    made = _tokenizer(TOKENIZERS["bytes"])
    made.add_special_tokens({"additional_special_tokens": list(more)})
    return made


def _tokenizer(tokens: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges: one token a byte. transformers 5 turns any tokenizer beside a qwen2 config into
    its own byte-level one, which a word-level vocabulary would not survive (space and newline are dropped)."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    core = Tokenizer(BPE(vocabulary, merges=[], unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
