"""Vocabularies of the tokenizers that an inline model may name: `characters` and `bytes`.

Takes a name, gives its tokens in the order of their ids. Both are byte-level: a token stands for one byte, written in
the alphabet of GPT-2 (Radford et al. 2019), where every byte has a printable character: `Ġ` is the space, `Ċ` the
newline. Must not know the library that makes a tokenizer of them (backends/models.py does).
"""

from __future__ import annotations

PAD = "<pad>"
EOS = "<eos>"
UNKNOWN = "<unk>"
SPECIAL = (PAD, EOS, UNKNOWN)

_SHIFT = 256
"""Bytes without a printable character of their own get one from here on, in ascending order."""


def byte_symbol(byte: int) -> str:
    """The character that stands for `byte` in a byte-level vocabulary."""
    if _is_printable(byte):
        return chr(byte)
    return chr(_SHIFT + sum(not _is_printable(lower) for lower in range(byte)))


def _is_printable(byte: int) -> bool:
    return 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255


TOKENIZERS: dict[str, tuple[str, ...]] = {
    # Newline and the printable half of ASCII: enough for arithmetic and plain English, small enough to learn fast.
    "characters": SPECIAL + tuple(byte_symbol(byte) for byte in (10, *range(32, 127))),
    "bytes": SPECIAL + tuple(byte_symbol(byte) for byte in range(256)),
}


def vocab_size(name: str) -> int:
    """Tokens of the tokenizer `name`, special ones included. KeyError if there is none of that name."""
    return len(TOKENIZERS[name])
