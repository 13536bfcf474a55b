"""What a tokenizer says about its tokens, and what it refuses."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models

from slipstream.errors import InvalidParamsError, TokenizerError
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.text.pieces import BYTE_ALPHABET, PieceScheme, Spelling, byte_level_bytes, fallback_byte
from slipstream.text.tokenizer import Tokenizer

from .tiny_tokenizers import gemma, llama2, qwen2, smollm

pytestmark = pytest.mark.fast


def test_byte_alphabet_is_that_of_byte_level_models() -> None:
    assert set(BYTE_ALPHABET) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    spelled = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for code in range(0x80):
        assert spelled.pre_tokenize_str(chr(code))[0][0] == BYTE_ALPHABET[code]
    for byte, mark in enumerate(BYTE_ALPHABET):
        assert byte_level_bytes(mark) == bytes([byte])
    assert byte_level_bytes("".join(BYTE_ALPHABET)) == bytes(range(256))


@pytest.mark.parametrize("piece", ["a b", "x\u00a0", "你好", "\n", "\u00ad"])
def test_a_piece_outside_the_alphabet_is_literal(piece: str) -> None:
    assert byte_level_bytes(piece) == piece.encode()


@pytest.mark.parametrize(
    ("piece", "byte"),
    [("<0x00>", 0), ("<0xFF>", 255), ("<0xaB>", 171), ("<0x0>", None), ("<0xG0>", None), ("<0x+1>", None)],
)
def test_byte_tokens(piece: str, byte: int | None) -> None:
    assert fallback_byte(piece) == byte


def test_token_bytes() -> None:
    byte_level = tokenizer_from_gguf(qwen2().metadata())
    assert byte_level.token_bytes(byte_level.token_to_id("Ġthe") or 0) == b" the"
    assert byte_level.token_bytes(byte_level.token_to_id("<|im_end|>") or 0) == b"<|im_end|>"
    pieces = tokenizer_from_gguf(gemma().metadata())
    assert pieces.token_bytes(pieces.token_to_id("▁the") or 0) == b" the"
    assert pieces.token_bytes(pieces.token_to_id("<0x0A>") or 0) == b"\n"
    assert pieces.token_bytes(pieces.vocab_size + 7) == b""


def test_every_byte_can_be_spelled() -> None:
    for tiny in (qwen2(), gemma(), llama2()):
        ours = tokenizer_from_gguf(tiny.metadata())
        single = {ours.token_bytes(token_id) for token_id in range(ours.vocab_size)}
        assert {bytes([byte]) for byte in range(256)} <= single


def test_ids_and_tokens() -> None:
    ours = tokenizer_from_gguf(smollm().metadata())
    assert ours.vocab_size == smollm().backend.get_vocab_size()
    for token_id in range(ours.vocab_size):
        token = ours.id_to_token(token_id)
        assert token is not None
        assert ours.token_to_id(token) == token_id
    assert ours.token_to_id("no such token") is None
    assert ours.id_to_token(ours.vocab_size) is None
    assert ours.is_special(ours.token_to_id("<|im_end|>") or 0)
    assert not ours.is_special(ours.token_to_id("a") or 0)
    assert repr(ours) == f"Tokenizer(vocab_size={ours.vocab_size}, spelling='byte-level')"


def test_ill_formed_bytes_become_one_mark_each() -> None:
    ours = tokenizer_from_gguf(llama2().metadata())
    byte = [ours.token_to_id(f"<0x{value:02X}>") or 0 for value in range(256)]
    word = ours.token_to_id("the") or 0
    assert ours.decode([byte[0xC3], byte[0xA9], byte[0xFF], word]) == "é\ufffdthe"
    assert ours.decode([byte[0xF0], byte[0x9F], word]) == "\ufffdthe"
    assert ours.decode([byte[0xF0], byte[0x9F], 1, byte[0x91], byte[0x8D]]) == "👍"
    assert ours.decode([byte[0xF0], byte[0x9F], 1], skip_special_tokens=False) == "\ufffd<s>"


def test_the_leading_space_that_encoding_adds_is_dropped() -> None:
    ours = tokenizer_from_gguf(llama2().metadata())
    assert ours.strips_leading_space
    for text in ("the fox", " the fox", "  the", "", " "):
        assert ours.decode(ours.encode(text)) == text
    assert ours.decode(ours.encode("the"), skip_special_tokens=False) == "<s> the"
    assert not tokenizer_from_gguf(gemma().metadata()).strips_leading_space


@pytest.mark.parametrize("text", ["ab\ud800", "\udcff", "x\ud83dy"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    ours = tokenizer_from_gguf(qwen2().metadata())
    with pytest.raises(InvalidParamsError, match=r"half a surrogate pair .* at character [012]"):
        ours.encode(text)
    with pytest.raises(InvalidParamsError, match="half a surrogate pair"):
        ours.encode_chat(text)


def test_what_is_no_text_is_refused() -> None:
    ours = tokenizer_from_gguf(qwen2().metadata())
    with pytest.raises(InvalidParamsError, match="must be a string, not bytes"):
        ours.encode(b"abc")  # type: ignore[arg-type]
    with pytest.raises(InvalidParamsError, match="token id -1 is negative"):
        ours.decode([-1])


def test_special_ids_must_exist() -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    scheme = PieceScheme(Spelling.BYTE_LEVEL)
    Tokenizer(backend, scheme=scheme, special_ids=(), bos_token_id=0)
    with pytest.raises(TokenizerError, match="special token id 1 is not in the vocabulary"):
        Tokenizer(backend, scheme=scheme, special_ids=(), eos_token_ids=[0, 1])


def test_templates_cannot_be_changed() -> None:
    ours = tokenizer_from_gguf(qwen2().metadata() | {"tokenizer.chat_template": "A"})
    with pytest.raises(TypeError):
        ours.chat_templates["default"] = "B"  # type: ignore[index]
