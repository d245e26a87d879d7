import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.backends.text import Codec
from flowrl.diag.diagnostic import FlowError
from flowrl.machine.tokenizers import TOKENIZERS, byte_symbol
from tests.backends.placed import INLINE, placed
from tests.backends.tiny import make_tiny
from tests.conftest import Told

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}> {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("text") / "characters")


@pytest.fixture(scope="module")
def codec(folder: Path) -> Codec:
    return Codec(folder)


@pytest.fixture(scope="module")
def bytes_codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return Codec(make_tiny(tmp_path_factory.mktemp("text") / "bytes", tokenizer="bytes"))


@pytest.fixture(scope="module")
def chat_codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    folder = make_tiny(tmp_path_factory.mktemp("text") / "chat")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    return Codec(folder)


@given(
    st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.just("\n"), min_size=1).filter(
        lambda t: "<" not in t
    )
)
def test_characters_round_trip_one_token_each(codec: Codec, text: str) -> None:
    ids = codec.encode_texts([text])[0]
    assert [TOKENIZERS["characters"][i] for i in ids] == [byte_symbol(b) for b in text.encode()]
    assert codec.decode(ids) == text


@given(st.text(min_size=1).filter(lambda t: "<" not in t))
def test_bytes_round_trip_any_text_one_token_a_byte(bytes_codec: Codec, text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    # Tokenizers of this family compose accents first (NFC); what is written is the composed text.
    ids = bytes_codec.encode_texts([text])[0]
    assert len(ids) <= len(raw) or not text.isascii()
    again = bytes_codec.encode_texts([bytes_codec.decode(ids)])[0]
    assert np.array_equal(again, ids)


def test_special_tokens_are_left_out_of_responses(codec: Codec) -> None:
    ids = np.append(codec.encode_texts(["42"])[0], [codec.eos_id, codec.pad_id]).astype(np.int32)
    assert codec.decode(ids) == "42"
    assert codec.decode_all([ids, ids[:1]]) == ["42", "4"]
    assert codec.decode_all([]) == []


def test_a_string_is_one_user_message_for_a_template(chat_codec: Codec) -> None:
    message = [{"role": "user", "content": "1+1="}]
    one, two, long = chat_codec.encode_prompts(["1+1=", message, [{"role": "system", "content": "add"}, *message]])
    assert chat_codec.decode(one) == "user: 1+1=\n> "
    assert np.array_equal(one, two)
    assert chat_codec.decode(long) == "system: add\nuser: 1+1=\n> "


def test_plain_text_without_a_template(codec: Codec) -> None:
    (ids,) = codec.encode_prompts(["1+1="])
    assert ids.dtype == np.int32
    assert codec.decode(ids) == "1+1="


def test_long_prompts(codec: Codec, tmp_path: Path, told: Told) -> None:
    short, cut = codec.encode_prompts(["ab", "abcdef"], max_tokens=4, on_long="truncate")
    assert (codec.decode(short), codec.decode(cut)) == ("ab", "cdef")
    span = placed(tmp_path, {"max_prompt_tokens: 80": "max_prompt_tokens: 4"}).op("actor_infer.generate").span
    with pytest.raises(FlowError) as caught:
        codec.encode_prompts(["ab", "abcdef"], [7, 9], max_tokens=4, span=span)
    told(caught.value, "FR0806")


@pytest.mark.parametrize(
    ("prompt", "code", "name"),
    [
        (7, "FR0805", "number"),
        ([], "FR0805", "empty"),
        ([{"role": "user"}], "FR0805", "message"),
        ("", "FR0807", ""),
        ([{"role": "user", "content": "a"}], "FR0808", ""),
        ("naïve", "FR0809", ""),
    ],
)
def test_what_is_no_prompt_is_refused(
    codec: Codec, tmp_path: Path, prompt: object, code: str, name: str, told: Told
) -> None:
    with pytest.raises(FlowError) as caught:
        codec.encode_prompts([prompt], [3], span=placed(tmp_path).op("actor_infer.generate").span)
    told(caught.value, code, name)


def test_template_travels_with_the_tokenizer(chat_codec: Codec, tmp_path: Path, folder: Path) -> None:
    chat_codec.save(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    again = Codec(tmp_path)
    assert np.array_equal(again.encode_prompts(["1+1="])[0], chat_codec.encode_prompts(["1+1="])[0])


def test_a_tokenizer_without_an_end_token_is_refused(folder: Path, tmp_path: Path, told: Told) -> None:
    endless = tmp_path / "model"
    shutil.copytree(folder, endless)
    settings = json.loads((endless / "tokenizer_config.json").read_text())
    (endless / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": None}))
    model = placed(tmp_path, {INLINE: "source: ./model"}).model("policy")
    with pytest.raises(FlowError) as caught:
        Codec(endless, model.span)
    told(caught.value, "FR0804")
