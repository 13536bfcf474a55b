"""Tokenizers from GGUF metadata: the same ids as the tokenizer that the metadata was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import pre_tokenizers

from slipstream.errors import TokenizerError
from slipstream.text.from_folder import tokenizer_from_folder
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.text.pre_tokenizers import GPT2, PRE_TOKENIZERS, build_pre_tokenizer

from .corpus import PIECES, corpus
from .tiny_tokenizers import STYLES, Tiny, gemma, glm4, gpt2, llama2, llama3, qwen2, smollm, unigram

pytestmark = pytest.mark.fast


def changed(tiny: Tiny, **fields: Any) -> dict[str, object]:
    """Metadata with some `tokenizer.ggml.` keys set, or left out where the value is None."""
    metadata = tiny.metadata() | {f"tokenizer.ggml.{key}": value for key, value in fields.items()}
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.mark.parametrize("style", STYLES)
def test_ids_equal_those_of_the_original(style: str) -> None:
    tiny: Tiny = STYLES[style]()
    ours = tokenizer_from_gguf(tiny.metadata())
    for text in corpus(tiny.specials + tiny.users):
        assert ours.encode(text, add_special_tokens=False) == tiny.backend.encode(text, add_special_tokens=False).ids
        if style != "glm4" and not text.startswith(tiny.specials) and not text.endswith(tiny.specials):
            assert ours.encode(text) == tiny.backend.encode(text).ids
    assert ours.vocab_size == tiny.backend.get_vocab_size()
    assert ours.special_ids == {tiny.backend.token_to_id(token) for token in tiny.specials}


@pytest.mark.parametrize("style", STYLES)
def test_numpy_values_do_as_well(style: str) -> None:
    tiny: Tiny = STYLES[style]()
    arrays = {key: np.array(value) if isinstance(value, list) else value for key, value in tiny.metadata().items()}
    arrays = {key: np.int32(value) if key.endswith("_id") else value for key, value in arrays.items()}
    ours = tokenizer_from_gguf(arrays)
    assert ours.fingerprint == tokenizer_from_gguf(tiny.metadata()).fingerprint
    assert (ours.bos_token, ours.eos_token) == (tiny.config.get("bos_token", ""), tiny.config["eos_token"])


@pytest.mark.parametrize("style", STYLES)
def test_fingerprint_equals_that_of_the_folder(style: str, tmp_path: Path) -> None:
    tiny: Tiny = STYLES[style]()
    ours = tokenizer_from_gguf(tiny.metadata() | {"tokenizer.chat_template": "x"})
    assert ours.fingerprint == tokenizer_from_folder(tiny.save(tmp_path)).fingerprint


def test_runs_of_spaces_written_as_spaces() -> None:
    """Converters of Gemma models write the user-defined `▁▁` as two spaces; ids must not change."""
    tiny = gemma()
    metadata = tiny.metadata()
    tokens = list(metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    types = list(metadata["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    for token_id, token in enumerate(tokens):
        if len(token) > 1 and not token.strip("▁"):
            tokens[token_id], types[token_id] = " " * len(token), 4
    assert "  " in tokens
    ours = tokenizer_from_gguf(changed(tiny, tokens=tokens, token_type=types))
    for text in corpus(tiny.specials):
        if "▁" not in text:
            assert ours.encode(text) == tiny.backend.encode(text).ids or text.startswith(tiny.specials)


def test_merges_follow_scores_not_ids() -> None:
    tokens = ["<unk>", "a", "b", "c", "bc", "ab"]
    metadata: dict[str, object] = {"model": "llama", "tokens": tokens, "token_type": [2, 1, 1, 1, 1, 1]}
    metadata |= {"add_space_prefix": False, "unknown_token_id": 0, "add_bos_token": False}
    for scores, pieces in (([0, 0, 0, 0, -1.0, -2.0], ["a", "bc"]), ([0, 0, 0, 0, -2.0, -1.0], ["ab", "c"])):
        named = {f"tokenizer.ggml.{key}": value for key, value in (metadata | {"scores": scores}).items()}
        ours = tokenizer_from_gguf(named)
        assert [ours.id_to_token(token_id) for token_id in ours.encode("abc")] == pieces


def test_control_tokens_are_no_part_of_merges() -> None:
    tokens = ["<unk>", "<", "s", ">", "<s>", "<s"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 1, 1, 1, 3, 1],
        "tokenizer.ggml.scores": [0.0, -5.0, -5.0, -5.0, 0.0, -1.0],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    ours = tokenizer_from_gguf(metadata)
    assert ours.encode("<s>") == [4]
    assert ours.encode("<s>", parse_special=False) == [5, 3]


def test_bos_and_eos_rules() -> None:
    plain = tokenizer_from_gguf(changed(smollm(), add_bos_token=False))
    assert plain.encode("hi") == plain.encode("hi", add_special_tokens=False)
    both = tokenizer_from_gguf(changed(smollm(), add_bos_token=True, add_eos_token=True))
    assert both.encode("hi") == [both.bos_token_id, *plain.encode("hi"), both.eos_token_ids[0]]
    assert both.encode_chat("hi") == [both.bos_token_id, *plain.encode("hi")]
    # Without the flag it is the family's habit that counts.
    assert tokenizer_from_gguf(changed(llama3(), add_bos_token=None)).adds_bos
    assert tokenizer_from_gguf(changed(llama2(), add_bos_token=None)).adds_bos
    assert not tokenizer_from_gguf(changed(gpt2(), add_bos_token=None)).adds_bos
    assert tokenizer_from_gguf(changed(unigram(), add_eos_token=None)).encode("x")[-1] == 2
    assert tokenizer_from_gguf(changed(unigram(), add_eos_token=False)).encode("x")[-1] != 2


def test_all_ends_of_an_answer_are_known() -> None:
    ours = tokenizer_from_gguf(changed(gemma(), eot_token_id=None))
    assert [ours.id_to_token(i) for i in ours.eos_token_ids] == ["<eos>", "<end_of_turn>"]
    tiny = glm4()
    ids = {name: tiny.backend.token_to_id(name) for name in ("<|user|>", "<|observation|>", "<sop>")}
    ours = tokenizer_from_gguf(
        changed(tiny, eot_token_id=ids["<|user|>"], eom_token_id=ids["<|observation|>"], eos_token_ids=[ids["<sop>"]])
    )
    names = [ours.id_to_token(token_id) for token_id in ours.eos_token_ids]
    assert names == ["<|endoftext|>", "<|user|>", "<|observation|>", "<sop>"]


def test_a_turn_end_that_is_plain_text_is_none() -> None:
    tiny = smollm()
    types = [1] * tiny.backend.get_vocab_size()
    ours = tokenizer_from_gguf(changed(tiny, token_type=types))
    assert [ours.id_to_token(i) for i in ours.eos_token_ids] == ["<|im_end|>"]
    assert ours.special_ids == frozenset()


def test_padding_of_the_vocabulary_is_no_token() -> None:
    tiny = qwen2()
    size = tiny.backend.get_vocab_size()
    metadata = tiny.metadata()
    padded = changed(
        tiny,
        tokens=[*metadata["tokenizer.ggml.tokens"], f"[PAD{size}]", f"[PAD{size + 1}]"],  # type: ignore[misc]
        token_type=[*metadata["tokenizer.ggml.token_type"], 5, 5],  # type: ignore[misc]
    )
    ours = tokenizer_from_gguf(padded)
    assert ours.vocab_size == size
    assert ours.id_to_token(size) is None
    assert ours.decode([size]) == ""
    assert ours.fingerprint == tokenizer_from_gguf(metadata).fingerprint


def test_chat_templates_by_name() -> None:
    metadata = smollm().metadata() | {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert tokenizer_from_gguf(metadata).chat_templates == {"default": "A", "tool_use": "B"}
    assert tokenizer_from_gguf(metadata).chat_template == "A"
    with pytest.raises(TokenizerError, match=r"tokenizer\.chat_template: must be a string, not int"):
        tokenizer_from_gguf(metadata | {"tokenizer.chat_template": 3})


def _with(values: object, position: int, value: object) -> list[object]:
    changed_values = list(values)  # type: ignore[call-overload]
    changed_values[position] = value
    return changed_values


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "the file names no tokenizer. Supported: gpt2, llama, t5"),
        ({"model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"model": 5}, "tokenizer.ggml.model: must be a string, not int"),
        ({"pre": None}, "does not name its pre-tokenizer"),
        ({"pre": "martian"}, "pre-tokenizer 'martian' is unknown. Known ones: .*gpt-2.*smollm"),
        ({"tokens": None}, "the file has no vocabulary"),
        ({"tokens": []}, "the file has no vocabulary"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens: must be a list, not str"),
        ({"merges": None}, "a BPE vocabulary needs merges"),
        ({"merges": ["a"]}, "merge 0 \\('a'\\) is not two tokens"),
        ({"merges": ["a b", "a b c"]}, "is not two tokens|not in the vocabulary"),
        ({"merges": ["t h", "zq@ a"]}, "merge 1 \\('zq@' \\+ 'a'\\) needs token 'zq@', which is not in the vocabulary"),
        ({"token_type": [1, 1]}, "tokenizer.ggml.token_type: 2 entries for"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id: id 1000000 is outside the vocabulary of"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id: id -1 is outside"),
        ({"eos_token_id": "2"}, "tokenizer.ggml.eos_token_id: must be an integer, not str"),
        ({"eos_token_ids": [0, 10**6]}, "tokenizer.ggml.eos_token_ids: id 1000000 is outside"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token: must be true or false, not int"),
        ({"add_bos_token": True, "bos_token_id": None}, "add_bos_token is set, but no such token is"),
        ({"add_eos_token": True, "eos_token_id": None}, "add_eos_token is set, but no such token is"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_gguf(changed(smollm(), **fields))


def test_contradictions_within_the_vocabulary() -> None:
    metadata = smollm().metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    first = tokens[4]  # type: ignore[index]
    cases: list[tuple[dict[str, object], str]] = [
        ({"tokens": _with(tokens, 9, first)}, r"appears 2 times \(ids 4, 9\)"),
        ({"tokens": _with(tokens, 9, 7)}, r"entry 9 is no string \(7\)"),
        ({"token_type": _with(types, 9, 17)}, "token 9 has unknown type 17"),
    ]
    for fields, message in cases:
        with pytest.raises(TokenizerError, match=message):
            tokenizer_from_gguf(changed(smollm(), **fields))


def test_contradictions_within_a_sentencepiece_vocabulary() -> None:
    metadata = llama2().metadata()
    types, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    tokens = metadata["tokenizer.ggml.tokens"]
    byte = tokens.index("<0x41>")  # type: ignore[attr-defined]
    cases: list[tuple[dict[str, object], str]] = [
        ({"scores": None}, "needs scores"),
        ({"scores": [1.0]}, "tokenizer.ggml.scores: 1 entries for"),
        ({"scores": _with(scores, 3, float("nan"))}, "entry 3 is not finite"),
        ({"token_type": _with(types, byte, 1)}, "has 255 of 256 byte tokens"),
        ({"tokens": _with(tokens, byte, "<0xZZ>")}, "is spelled '<0xZZ>', not <0xNN>"),
    ]
    for fields, message in cases:
        with pytest.raises(TokenizerError, match=message):
            tokenizer_from_gguf(changed(llama2(), **fields))
    with pytest.raises(TokenizerError, match="a Unigram vocabulary needs scores"):
        tokenizer_from_gguf(changed(unigram(), scores=None))


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_all_text(name: str) -> None:
    built = build_pre_tokenizer(PRE_TOKENIZERS[name].patterns)
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in PIECES:
        parts = "".join(piece for piece, _ in built.pre_tokenize_str(text))
        assert parts == "".join(piece for piece, _ in spelled.pre_tokenize_str(text)), text


def test_gpt2_pattern_equals_the_built_in_one() -> None:
    ours = pre_tokenizers.Split(tokenizers.Regex(GPT2), behavior="isolated")
    built_in = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    for text in corpus(()):
        assert [at for _, at in ours.pre_tokenize_str(text)] == [at for _, at in built_in.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "It's 1234  ok", ["It", "'s", " 1234", " ", " ok"]),
        ("gpt-2", "IT'S", ["IT", "'", "S"]),
        ("smollm", "a 1234b", ["a", " ", "1", "2", "3", "4", "b"]),
        ("llama-bpe", "IT'S 12345", ["IT", "'S", " ", "123", "45"]),
        ("llama-bpe", "(word\n\n x", ["(word", "\n\n", " x"]),
        ("qwen2", "IT'S 123", ["IT", "'S", " ", "1", "2", "3"]),
        ("qwen2", "हिन्दी", ["ह", "िन", "्द", "ी"]),
        ("qwen35", "हिन्दी", ["हिन्दी"]),
        ("glm4", "a 12345", ["a", " ", "123", "45"]),
        ("tekken", "camelCaseHTTP 12", ["camel", "Case", "HTTP", " ", "1", "2"]),
        ("gpt-4o", "camelCase'S 1234", ["camel", "Case'S", " ", "123", "4"]),
        ("deepseek-v3", "漢字かな 1234 a", ["漢字かな", " ", "123", "4", " a"]),
        ("deepseek-v3", "x.word", ["x", ".word"]),
        ("deepseek-llm", "Word 汉字 12\n", ["Word", " ", "汉字", " ", "1", "2", "\n"]),
        ("deepseek-coder", "x += 12;\n", ["x", " += ", "1", "2", ";", "\n"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("bloom", "a, b c", ["a", ",", " b", " c"]),
        ("viking", "a 12", ["a", " ", "1", "2"]),
        ("seed-coder", "x;\n\ny 12", ["x", ";", "\n\n", "y", " ", "1", "2"]),
        ("bailingmoe", "I'M\n\nx12", ["I", "'M", "\n\n", "x", "1", "2"]),
    ],
)
def test_where_texts_are_cut(name: str, text: str, pieces: list[str]) -> None:
    built = build_pre_tokenizer(PRE_TOKENIZERS[name].patterns)
    assert [text[start:end] for _, (start, end) in built.pre_tokenize_str(text)] == pieces


def test_whole_pieces_go_before_merges_only_where_the_family_does_so() -> None:
    tokens = ["a", "b", "c", "bc", "abc"]
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["b c"]}
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "llama-bpe"}).encode("abc") == [4]
    assert tokenizer_from_gguf(metadata | {"tokenizer.ggml.pre": "glm4"}).encode("abc") == [0, 3]
