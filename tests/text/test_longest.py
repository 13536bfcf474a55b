"""How many characters a token stands for at most, and where nothing can be said."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers

from slipstream.text.longest import TextBound, text_bound
from slipstream.text.pieces import BYTE_ALPHABET

pytestmark = pytest.mark.fast

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGED = {**{piece: index for index, piece in enumerate(ALPHABET)}, "aa": 256, "aaaa": 257, "aaaab": 258}
MERGES = [("a", "a"), ("aa", "aa"), ("aaaa", "b")]


def byte_level(**parts: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(vocab=MERGED, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for name, value in parts.items():
        setattr(backend, name, value)
    return backend


def sentencepiece(*, num_bytes: int = 256, byte_fallback: bool = True) -> tokenizers.Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(num_bytes)), "▁", "a", "▁a", "漢", "漢漢", "<middling>"]
    model = models.BPE(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=[("▁", "a"), ("漢", "漢")],
        byte_fallback=byte_fallback,
        unk_token="<unk>",
        fuse_unk=True,
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


def test_the_longest_piece() -> None:
    assert text_bound(byte_level()) == TextBound(5)
    assert text_bound(sentencepiece()) == TextBound(len("<middling>"))


def test_added_tokens_count() -> None:
    backend = byte_level()
    backend.add_special_tokens(["<|im_start|>"])
    assert text_bound(backend) == TextBound(len("<|im_start|>"))


def test_composition_joins_four_at_most() -> None:
    assert text_bound(byte_level(normalizer=normalizers.NFC())) == TextBound(4 * 5)


@pytest.mark.parametrize(
    "backend",
    [
        sentencepiece(num_bytes=255),
        sentencepiece(byte_fallback=False),
        byte_level(normalizer=normalizers.Strip()),
        byte_level(normalizer=normalizers.Replace("ab", "a")),
        byte_level(normalizer=normalizers.Replace(tokenizers.Regex(" +"), " ")),
        byte_level(normalizer=normalizers.NFKC()),
        byte_level(pre_tokenizer=pre_tokenizers.Whitespace()),
        byte_level(
            pre_tokenizer=pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        ),
        byte_level(pre_tokenizer=None),
        tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0)),
        tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[])),
    ],
)
def test_where_a_token_may_stand_for_any_number(backend: tokenizers.Tokenizer) -> None:
    assert text_bound(backend) is None


def lacking(*missing: int) -> tokenizers.Tokenizer:
    vocab = [piece for byte, piece in enumerate(BYTE_ALPHABET) if byte not in missing]
    backend = tokenizers.Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(vocab)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return backend


def test_control_characters_without_a_piece_do_not_count() -> None:
    backend = lacking(0x04, 0x1D, 0xC0, 0xF1)
    bound = text_bound(backend)
    assert bound == TextBound(1, "\x04\x1d")
    text = "a\x04" * 3 + "\x1d"
    assert backend.encode(text).tokens == ["a"] * 3
    assert bound.counted(text) == 3
    assert len(backend.encode("\U00040000").ids) == 3 >= bound.counted("\U00040000")
    assert text_bound(lacking(0x80)) is None


def test_a_token_that_takes_the_white_space_beside_it() -> None:
    backend = byte_level()
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    assert text_bound(backend) is None


@settings(max_examples=100, deadline=None)
@given(
    text=st.text(st.sampled_from("ab ▁漢e\u0301ᾂα\u0313\u0300\u0345\u1fbe\u2126각\u1100\u1161\u11a8"), min_size=1),
    kind=st.sampled_from(["bytes", "nfc", "sentencepiece"]),
)
def test_no_text_has_fewer_tokens(text: str, kind: str) -> None:
    backend = sentencepiece() if kind == "sentencepiece" else byte_level()
    if kind == "nfc":
        backend.normalizer = normalizers.NFC()
    bound = text_bound(backend)
    assert bound is not None
    tokens = backend.encode(text, add_special_tokens=False).ids
    assert len(tokens) * bound.longest >= bound.counted(text)
