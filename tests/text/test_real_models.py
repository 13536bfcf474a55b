"""Tokenizers of real GGUF files."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import GemmaTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_utils_base import generate_merges

from slipstream.text.chat_template import ChatTemplate
from slipstream.text.detokenize import IncrementalDetokenizer
from slipstream.text.from_gguf import tokenizer_from_gguf
from slipstream.text.pieces import BYTE_ALPHABET
from slipstream.text.tokenizer import Tokenizer
from slipstream.weights.formats.gguf import open_gguf

from .corpus import corpus

pytestmark = pytest.mark.model


@cache
def metadata_of(path: Path) -> dict[str, object]:
    checkpoint = open_gguf(path)
    metadata = {key: value for key, value in checkpoint.metadata.items() if key.startswith("tokenizer.")}
    checkpoint.close()
    return metadata


@cache
def ours_of(path: Path) -> Tokenizer:
    return tokenizer_from_gguf(metadata_of(path))


@cache
def smollm2_reference(path: Path) -> PreTrainedTokenizerFast:
    """As the model's own `tokenizer.json` has it: single digits, then GPT-2's pattern. What `transformers` makes of the
    GGUF file leaves numbers whole, and so differs from the tokenizer that the model was trained with."""
    metadata = metadata_of(path)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    merges: list[str] = metadata["tokenizer.ggml.merges"]  # type: ignore[assignment]
    types: list[int] = metadata["tokenizer.ggml.token_type"]  # type: ignore[assignment]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=metadata["tokenizer.chat_template"],
    )


@cache
def gemma3_reference(path: Path) -> GemmaTokenizer:
    """The class that `transformers` has for Gemma, with merges in the order of ids, as the conversion to
    `tokenizer.json` makes them. Converters of GGUF files write the runs of spaces in the vocabulary as spaces; the
    model's have U+2581."""
    metadata = metadata_of(path)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    types: list[int] = metadata["tokenizer.ggml.token_type"]  # type: ignore[assignment]
    tokens = [token if token.strip(" ") else "▁" * len(token) for token in tokens]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    reference = GemmaTokenizer(vocab=vocab, merges=generate_merges(vocab))
    for kind, special in ((3, True), (4, False)):
        added = [token for token, other in zip(tokens, types, strict=True) if other == kind and token.strip("▁")]
        reference.add_tokens([tokenizers.AddedToken(token, special=special, normalized=False) for token in added])
    return reference


def test_smollm2_ids(smollm2_path: Path) -> None:
    ours, theirs = ours_of(smollm2_path), smollm2_reference(smollm2_path)
    # This vocabulary lacks some control characters: its own tokenizer drops them too.
    missing = [chr(code) for code in range(0x80) if theirs.convert_tokens_to_ids(BYTE_ALPHABET[code]) is None]
    assert all(ord(char) < 0x20 or ord(char) == 0x7F for char in missing)
    for text in corpus(("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"), rounds=1500):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        assert ours.decode(ids, skip_special_tokens=False) == "".join(char for char in text if char not in missing)
    assert len(ours.encode(" 12345")) == 6


def test_smollm2_tokens(smollm2_path: Path) -> None:
    ours = ours_of(smollm2_path)
    assert ours.vocab_size == 49152
    assert (ours.bos_token, ours.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert [ours.id_to_token(token_id) for token_id in ours.eos_token_ids] == ["<|im_end|>", "<|endoftext|>"]
    assert not ours.adds_bos
    bound = ours.text_bound
    assert bound is not None
    assert (bound.longest, len(bound.unread)) == (max(len(ours.token_bytes(each)) for each in range(49152)), 6)


def test_smollm2_conversation(smollm2_path: Path) -> None:
    ours, theirs = ours_of(smollm2_path), smollm2_reference(smollm2_path)
    messages = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And 👍 of Italy, in 1984?"},
    ]
    template = ChatTemplate.of(ours)
    for conversation in (messages[:1], messages, [{"role": "system", "content": "Be brief."}, *messages]):
        rendered = template.render(conversation)
        assert rendered == theirs.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        expected = theirs.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(rendered) == expected


def test_gemma3_ids(gemma3_path: Path) -> None:
    ours = ours_of(gemma3_path)
    theirs = gemma3_reference(gemma3_path)
    for text in corpus(("<bos>", "<start_of_turn>", "<end_of_turn>", "<table>", "\t\t\t"), rounds=1500):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.encode(text) == (ids if text.startswith("<bos>") else [2, *ids])
        assert ours.decode(ids, skip_special_tokens=False) == text.replace("▁", " ")


def test_gemma3_tokens(gemma3_path: Path) -> None:
    ours = ours_of(gemma3_path)
    assert ours.vocab_size == 262144
    assert (ours.bos_token, ours.eos_token, ours.adds_bos) == ("<bos>", "<eos>", True)
    assert [ours.id_to_token(token_id) for token_id in ours.eos_token_ids] == ["<eos>", "<end_of_turn>"]
    assert ours.encode("Hello") == ours.encode("<bos>Hello") == ours.encode_chat("<bos><bos>Hello")


@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_text_in_pieces_equals_the_whole(model: str, request: pytest.FixtureRequest) -> None:
    ours = ours_of(request.getfixturevalue(model))
    for text in corpus((), rounds=300):
        ids = ours.encode(text, add_special_tokens=False)
        detokenizer = IncrementalDetokenizer(ours)
        pieces = [detokenizer.push(token_id) for token_id in ids] + [detokenizer.flush()]
        assert "".join(pieces) == ours.decode(ids)
        assert "\ufffd" in text or "\ufffd" not in "".join(pieces)
