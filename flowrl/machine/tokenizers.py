"""Vocabularies of the tokenizers that an inline model shape may name: `characters` and `bytes`. No torch, no files.

Both are byte-level BPE without merges, so one token is one byte of UTF-8. The tokens are written in GPT-2's byte
alphabet (space is "Ġ", newline is "Ċ"): transformers reads any tokenizer beside a `qwen2` config as byte-level, and raw
space and newline entries would be lost. The plan needs only the size; backends/models.py makes the tokenizer files.
"""

from __future__ import annotations

SPECIAL_TOKENS: tuple[str, ...] = ("<pad>", "<eos>", "<bos>", "<unk>")
"""Ids 0 to 3 of both vocabularies, in this order."""

PAD_TOKEN_ID = 0
EOS_TOKEN_ID = 1
BOS_TOKEN_ID = 2
UNK_TOKEN_ID = 3

CHARACTERS: str = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
"""What `characters` can write: newline and the printable ASCII characters, in order of their code. 96 characters."""


def byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte (Radford et al. 2019, GPT-2 `encoder.py`, bytes_to_unicode).

    Bytes that are printable in Latin-1 stand for themselves; the rest take the code points from U+0100 upwards in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in alphabet]
    alphabet.update({byte: chr(0x100 + place) for place, byte in enumerate(hidden)})
    return alphabet


def vocabulary(tokenizer: str) -> tuple[str, ...]:
    """All tokens of `characters` or `bytes`; a token's place is its id. KeyError for another name."""
    alphabet = byte_alphabet()
    listed = {"characters": [ord(character) for character in CHARACTERS], "bytes": list(range(256))}
    return SPECIAL_TOKENS + tuple(alphabet[byte] for byte in listed[tokenizer])


def vocab_size(tokenizer: str) -> int:
    """Number of tokens, which is also the model's vocabulary: `characters` 100, `bytes` 260."""
    return len(vocabulary(tokenizer))


TOKENIZERS: tuple[str, ...] = ("characters", "bytes")
