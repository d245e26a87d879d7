"""Text to tokens and back, for every backend that holds a model.

Takes a Hugging Face folder; `Codec` gives token ids of prompts and text of responses. Must not know batches, samples
or weights. A prompt is a string or a list of messages ({role, content}). A string goes to a tokenizer with a chat
template as one user message, to one without as plain text. Messages need a template. `Written` text is neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer
from transformers.utils import logging as hf_logging

from flowrl.backends import images as pictures
from flowrl.diag.diagnostic import FlowError, diagnose
from flowrl.diag.span import Span
from flowrl.machine.tokenizers import SPECIAL, TOKENIZERS

Ids = npt.NDArray[np.int32]
_TURN = "what-the-model-said"
"""Stands for a turn in a chat template; the text behind it is the same for any."""


class Written(str):
    """A prompt that is written as the model shall read it: no chat template is put around it."""

    __slots__ = ()


class Codec:
    """The tokenizer of one model folder. `span` is the model's, for FlowError FR0804: no end token."""

    def __init__(self, folder: Path, span: Span | None = None) -> None:
        hf_logging.disable_progress_bar()
        self._folder, self._span = folder, span
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        self.has_template: bool = bool(self._tokenizer.chat_template)
        eos = self._tokenizer.eos_token_id
        pad = self._tokenizer.pad_token_id
        if eos is None:
            raise FlowError(diagnose("FR0804", span, folder=folder))
        self.eos_id: int = int(eos)
        self.pad_id: int = self.eos_id if pad is None else int(pad)
        self.vocab_size: int = len(self._tokenizer)
        self._alphabet = _alphabet(self._tokenizer.get_vocab())

    def encode_prompts(
        self,
        prompts: Sequence[object],
        ids: Sequence[int] | npt.NDArray[np.int64] | None = None,
        *,
        images: Sequence[Sequence[bytes]] | None = None,
        max_tokens: int | None = None,
        on_long: str = "error",
        span: Span | None = None,
    ) -> list[Ids]:
        """int32 ids of each prompt, with as many image tokens as its `images` take. Beyond `max_tokens`: `error` raises
        FR0806, `truncate` keeps the last ones (the end of a prompt is where it asks). `ids` and `span` (the role's)
        name the prompt in an error: FR0805 for what is no prompt, FR0807 for one without tokens, FR0808 for messages
        without a template, FR0809; FR0865 to FR0868 of images."""
        names = range(len(prompts)) if ids is None else ids
        shown = [()] * len(prompts) if images is None else images
        places = [_Place(int(name), span) for name in names]
        texts = [self._written(*each) for each in zip(prompts, places, map(len, shown), strict=True)]
        # A template writes its own special tokens; the tokenizer must not add them a second time.
        encoded = self._encode(texts, add_special_tokens=not self.has_template)
        if any(shown):
            encoded = [self._with_images(*each) for each in zip(encoded, shown, places, strict=True)]
        for tokens, place in zip(encoded, places, strict=True):
            if not len(tokens):
                raise FlowError(diagnose("FR0807", span, prompt=place.prompt))
            if on_long != "truncate":
                _check_length(tokens, place, max_tokens)
            elif any(shown):
                self._check_whole(tokens, place, max_tokens)
        return [tokens if max_tokens is None else tokens[-max_tokens:] for tokens in encoded]

    def encode_increment(self, observation: object, *, closed: bool, span: Span | None = None) -> Ids:
        """int32 ids of what stands between a turn of the model and its next one: the end of its turn (unless `closed`,
        where it wrote its end token itself), new messages, the start of the next turn. They are what the chat template
        puts behind any turn, tokenised alone: what the model wrote stays as it is. Without a template a text stands for
        itself. Raises FR0805, FR0808, FR0809."""
        place = _Place(0, span)
        messages = _messages(observation, place)
        for message in messages:
            self._check_alphabet(str(message["content"]), span)
        if not self.has_template:
            if not isinstance(observation, str):
                raise FlowError(diagnose("FR0808", span, prompt="of a later turn"))
            return self._encode([observation], add_special_tokens=False)[0]
        before = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _TURN}]
        written = str(
            self._tokenizer.apply_chat_template([*before, *messages], tokenize=False, add_generation_prompt=True)
        )
        increment = written.partition(_TURN)[2]
        if closed:
            increment = increment.removeprefix(str(self._tokenizer.eos_token))
        return self._encode([increment], add_special_tokens=False)[0]

    def encode_texts(self, texts: Sequence[str], span: Span | None = None) -> list[Ids]:
        """int32 ids of plain texts, without any special token of the tokenizer's own. Raises FR0809."""
        for text in texts:
            self._check_alphabet(text, span)
        return self._encode(texts, add_special_tokens=False)

    def decode(self, ids: Ids) -> str:
        """The text of a response; special tokens (eos, pad) are left out."""
        return cast("str", self._tokenizer.decode(ids.tolist(), skip_special_tokens=True))

    def decode_all(self, rows: Sequence[Ids]) -> list[str]:
        """`decode` of each row."""
        lists = [row.tolist() for row in rows]
        return cast("list[str]", self._tokenizer.batch_decode(lists, skip_special_tokens=True)) if lists else []

    def save(self, folder: Path) -> None:
        """Write the tokenizer, its template included, into a Hugging Face folder."""
        self._tokenizer.save_pretrained(str(folder))

    @cached_property
    def vision(self) -> pictures.Vision:
        """How the folder's model takes images. Raises FlowError FR0867 where it takes none."""
        return pictures.Vision(self._folder, self._span)

    def _with_images(self, tokens: Ids, images: Sequence[bytes], place: _Place) -> Ids:
        """With the tokens of each image where one token stands for it."""
        if not images:
            return tokens
        found = int((tokens == self.vision.token_id).sum())
        _check_places(found, len(images), place)
        pixels = self.vision.pixels(images, f"prompt {place.prompt}", place.span)
        counts = [count for each in pixels for count in self.vision.tokens(each.grid)]
        return pictures.expanded(tokens, self.vision.token_id, counts)

    def _check_whole(self, tokens: Ids, place: _Place, max_tokens: int | None) -> None:
        """What is cut off must hold no part of an image."""
        over = 0 if max_tokens is None else len(tokens) - max_tokens
        if over > 0 and bool((tokens[:over] == self.vision.token_id).any()):
            facts = {"prompt": place.prompt, "tokens": len(tokens), "max_tokens": max_tokens}
            raise FlowError(diagnose("FR0868", place.span, **facts))

    def _written(self, prompt: object, place: _Place, images: int = 0) -> str:
        """The prompt as the text that is tokenised."""
        messages = _messages(prompt, place)
        for message in messages:
            self._check_alphabet(str(message["content"]), place.span)
        if images:
            if not self.has_template:
                raise FlowError(diagnose("FR0808", place.span, prompt=place.prompt))
            messages, places = pictures.placed(messages, images)
            _check_places(places, images, place)
        if isinstance(prompt, Written):
            return str(prompt)
        if self.has_template:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        if isinstance(prompt, str):
            return prompt
        raise FlowError(diagnose("FR0808", place.span, prompt=place.prompt))

    def _encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[Ids]:
        if not texts:
            return []
        lists = self._tokenizer(list(texts), add_special_tokens=add_special_tokens)["input_ids"]
        return [np.asarray(ids, dtype=np.int32) for ids in lists]

    def _check_alphabet(self, text: str, span: Span | None) -> None:
        missing = [] if self._alphabet is None else sorted(set(text) - self._alphabet)
        if missing:
            raise FlowError(diagnose("FR0809", span, character=repr(missing[0]), text=repr(text[:60])))


@dataclass(frozen=True, slots=True)
class _Place:
    """What an error about a prompt names."""

    prompt: int
    span: Span | None


def _messages(prompt: object, place: _Place) -> list[Mapping[str, object]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, Sequence) and prompt and all(_is_message(item) for item in cast("Sequence[object]", prompt)):
        return list(cast("Sequence[Mapping[str, object]]", prompt))
    raise FlowError(diagnose("FR0805", place.span, prompt=place.prompt, found=_found(prompt)))


def _found(prompt: object) -> str:
    if not isinstance(prompt, list | tuple):
        return f"of type `{type(prompt).__name__}`"
    return "a list of something else than messages" if prompt else "an empty list"


def _is_message(item: object) -> bool:
    return isinstance(item, Mapping) and "role" in item and "content" in item


def _check_length(tokens: Ids, place: _Place, max_tokens: int | None) -> None:
    if max_tokens is None or len(tokens) <= max_tokens:
        return
    count = len(tokens)
    fault = diagnose(
        "FR0806", place.span, prompt=place.prompt, tokens=count, max_tokens=max_tokens, over=count - max_tokens
    )
    raise FlowError(fault)


def _check_places(places: int, images: int, place: _Place) -> None:
    if places != images:
        raise FlowError(diagnose("FR0866", place.span, prompt=place.prompt, images=images, places=places))


def _alphabet(vocabulary: Mapping[str, int]) -> frozenset[str] | None:
    """The characters that FlowRL's own `characters` tokenizer can write; it would drop others without a word. None for
    every other tokenizer."""
    own = TOKENIZERS["characters"]
    if set(vocabulary) != set(own):
        return None
    return frozenset("\n" + "".join(chr(code) for code in range(32, 127))) | frozenset(SPECIAL)
