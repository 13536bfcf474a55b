"""Text that comes in pieces equals text decoded at once."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.text.detokenize import IncrementalDetokenizer
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.text.tokenizer import Tokenizer

from .corpus import PIECES
from .tiny_tokenizers import STYLES


@cache
def built(style: str) -> Tokenizer:
    return tokenizer_from_gguf(STYLES[style]().metadata())


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    return [token_id for token_id in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(token_id)) == 1]


def stream(tokenizer: Tokenizer, ids: list[int], prompt: list[int], skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@pytest.mark.parametrize("style", ["qwen2", "llama2", "gemma", "unigram"])
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_pieces_joined_equal_the_whole(style: str, data: st.DataObject) -> None:
    ours = built(style)
    single = byte_ids(ours)
    ids = data.draw(
        st.lists(
            st.integers(0, ours.vocab_size + 3) | st.sampled_from(single) | st.sampled_from(sorted(ours.special_ids)),
            max_size=30,
        )
    )
    skip = data.draw(st.booleans())
    assert "".join(stream(ours, ids, [], skip)) == ours.decode(ids, skip_special_tokens=skip)
    # With a prompt that ends where a character does: what the ids add to its text.
    prompt = ours.encode(data.draw(st.sampled_from(["", "the", "你好 👍", " "])))
    whole = ours.decode(prompt + ids, skip_special_tokens=skip)
    before = ours.decode(prompt, skip_special_tokens=skip)
    assert "".join(stream(ours, ids, prompt, skip)) == whole[len(before) :]


@pytest.mark.parametrize("style", ["qwen2", "llama2", "gemma"])
@given(text=st.text(max_size=40) | st.sampled_from(PIECES))
@settings(max_examples=40, deadline=None)
def test_no_piece_holds_half_a_character(style: str, text: str) -> None:
    ours = built(style)
    text = text.replace("\ufffd", "")
    pieces = stream(ours, ours.encode(text), [])
    assert not any("\ufffd" in piece for piece in pieces)


def test_characters_wait_for_their_last_byte() -> None:
    ours = built("llama2")
    byte = {ours.token_bytes(token_id)[0]: token_id for token_id in byte_ids(ours)}
    ids = [byte[value] for value in "👍é".encode()]
    assert stream(ours, ids, []) == ["", "", "", "👍", "", "é", ""]


def test_ill_formed_bytes_show_as_soon_as_they_are_certain() -> None:
    ours = built("llama2")
    byte = {ours.token_bytes(token_id)[0]: token_id for token_id in byte_ids(ours)}
    assert stream(ours, [byte[0xFF], byte[0xF0], byte[0x9F], byte[0x41]], []) == ["\ufffd", "", "", "\ufffdA", ""]
    assert stream(ours, [byte[0xF0], byte[0x9F]], []) == ["", "", "\ufffd"]


def test_a_character_begun_in_the_prompt_is_completed() -> None:
    ours = built("qwen2")
    ids = ours.encode("héllo 👍")
    pieces = [len(ours.token_bytes(token_id)) for token_id in ids]
    assert 1 in pieces
    split = len(ids) - 1
    assert stream(ours, ids[split:], ids[:split])[0].endswith("👍")


def test_a_leading_space_is_text_after_a_prompt() -> None:
    ours = built("llama2")
    the = ours.encode("the", add_special_tokens=False)
    assert "".join(stream(ours, the, [])) == "the"
    assert "".join(stream(ours, the, [1])) == "the"
    assert "".join(stream(ours, the, ours.encode("fox"))) == " the"


def test_special_tokens() -> None:
    ours = built("qwen2")
    end = ours.token_to_id("<|im_end|>") or 0
    think = ours.token_to_id("<think>") or 0
    assert "".join(stream(ours, [think, end], [])) == "<think>"
    assert "".join(stream(ours, [think, end], [], skip=False)) == "<think><|im_end|>"


def test_the_prompt_is_read_from_its_end_only() -> None:
    ours = built("qwen2")

    class Counting(list[int]):
        reads = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def, override]
            Counting.reads += 1
            return super().__getitem__(index)

        def __reversed__(self):  # type: ignore[no-untyped-def]
            return (self[position] for position in range(len(self) - 1, -1, -1))

    IncrementalDetokenizer(ours, Counting(ours.encode("the fox " * 500)))
    assert 0 < Counting.reads < 20
