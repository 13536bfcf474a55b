"""Tokenizers from folders give what `transformers` gives for the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from slipstream.errors import TokenizerError
from slipstream.text.from_folder import tokenizer_from_folder

from .corpus import corpus
from .tiny_tokenizers import STYLES, Tiny, glm4, gpt2, llama2, llama3, qwen2, unigram

pytestmark = pytest.mark.fast


def change(folder: Path, name: str, **fields: object) -> None:
    path = folder / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | fields))


@pytest.mark.parametrize("style", STYLES)
def test_ids_equal_those_of_transformers(style: str, tmp_path: Path) -> None:
    tiny: Tiny = STYLES[style]()
    folder = tiny.save(tmp_path)
    ours = tokenizer_from_folder(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in corpus(tiny.specials + tiny.users):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text
        begins_special = text.startswith(tuple(tiny.specials))
        ends_special = text.endswith(tuple(tiny.specials))
        if not begins_special and not ends_special:
            assert ours.encode(text) == theirs.encode(text), text
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids[0] == theirs.eos_token_id
    assert ours.special_ids == set(theirs.all_special_ids) | {
        token_id for token_id, token in theirs.added_tokens_decoder.items() if token.special
    }


@pytest.mark.parametrize("style", STYLES)
def test_decoded_text_equals_that_of_transformers(style: str, tmp_path: Path) -> None:
    tiny: Tiny = STYLES[style]()
    folder = tiny.save(tmp_path)
    ours = tokenizer_from_folder(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, clean_up_tokenization_spaces=False)
    for text in corpus(tiny.specials + tiny.users):
        if style == "unigram" and text.startswith((" ", "▁")):
            continue  # There Metaspace eats every leading space; ours drops the one that encoding added.
        ids = ours.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        if style == "unigram":
            continue
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids), text


@pytest.mark.parametrize("style", ["gpt2", "smollm", "llama3", "qwen2", "tekken", "gemma"])
def test_decoding_gives_the_text_back(style: str, tmp_path: Path) -> None:
    tiny: Tiny = STYLES[style]()
    ours = tokenizer_from_folder(tiny.save(tmp_path))
    for text in corpus(()):
        if style == "gemma":
            text = text.replace("▁", " ")
        assert ours.decode(ours.encode(text)) == text


def test_literal_text_cannot_make_special_tokens(tmp_path: Path) -> None:
    folder = qwen2().save(tmp_path)
    ours = tokenizer_from_folder(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    text = "<|im_start|>user\n<think>hi<|im_end|>"
    ids = ours.encode(text, parse_special=False)
    assert ids == theirs.encode(text, split_special_tokens=True)
    assert not any(ours.is_special(token_id) for token_id in ids)
    assert ours.token_to_id("<think>") in ids
    assert ours.decode(ids) == text


def test_all_ends_of_an_answer_are_known(tmp_path: Path) -> None:
    ours = tokenizer_from_folder(glm4().save(tmp_path / "glm4"))
    names = [ours.id_to_token(token_id) for token_id in ours.eos_token_ids]
    assert names == ["<|endoftext|>", "<|user|>", "<|observation|>"]
    ours = tokenizer_from_folder(llama3().save(tmp_path / "llama3"))
    assert [ours.id_to_token(i) for i in ours.eos_token_ids] == ["<|end_of_text|>", "<|eot_id|>"]


def test_prefix_of_several_tokens(tmp_path: Path) -> None:
    ours = tokenizer_from_folder(glm4().save(tmp_path))
    prefix = [ours.token_to_id("[gMASK]"), ours.token_to_id("<sop>")]
    plain = ours.encode("hello", add_special_tokens=False)
    assert ours.encode("hello") == prefix + plain
    assert ours.encode("[gMASK]<sop>hello") == prefix + plain
    assert ours.bos_token_id is None
    assert ours.bos_token == ""


def test_exactly_one_bos(tmp_path: Path) -> None:
    ours = tokenizer_from_folder(llama3().save(tmp_path))
    bos = ours.bos_token
    plain = ours.encode("hi", add_special_tokens=False)
    assert ours.adds_bos
    for count in range(2):
        assert ours.encode(bos * count + "hi") == [ours.bos_token_id, *plain]
    for count in range(4):
        assert ours.encode_chat(bos * count + "hi") == [ours.bos_token_id, *plain]
    assert ours.encode("hi", add_special_tokens=False) == plain
    no_bos = tokenizer_from_folder(gpt2().save(tmp_path / "gpt2"))
    assert not no_bos.adds_bos
    assert no_bos.encode_chat("hi") == no_bos.encode("hi") == no_bos.encode("hi", add_special_tokens=False)


def test_suffix_only_outside_chats(tmp_path: Path) -> None:
    ours = tokenizer_from_folder(unigram().save(tmp_path))
    plain = ours.encode("hi there", add_special_tokens=False)
    assert ours.encode("hi there") == [*plain, 2]
    assert ours.encode("hi there</s>") == [*plain, 2]
    assert ours.encode("</s>") == [2]
    assert ours.encode("") == [2]
    assert ours.encode_chat("hi there") == plain


def test_flags_of_the_configuration_without_a_post_processor(tmp_path: Path) -> None:
    folder = llama2().save(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert tokenizer_from_folder(folder).encode("hi")[0] != 1
    change(folder, "tokenizer_config.json", add_bos_token=True, add_eos_token=True)
    ids = tokenizer_from_folder(folder).encode("hi")
    assert (ids[0], ids[-1]) == (1, 2)


def test_tokens_added_by_the_configuration(tmp_path: Path) -> None:
    folder = gpt2().save(tmp_path)
    size = tokenizer_from_folder(folder).vocab_size
    entry = {"content": "<|tool|>", "special": True, "normalized": False, "lstrip": False, "rstrip": False}
    change(folder, "tokenizer_config.json", added_tokens_decoder={str(size): entry | {"single_word": False}})
    ours = tokenizer_from_folder(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    assert ours.vocab_size == size + 1
    assert ours.is_special(size)
    for text in ("<|tool|>", "a<|tool|>b", "a <|tool|> b"):
        assert ours.encode(text) == theirs.encode(text)
    change(folder, "tokenizer_config.json", added_tokens_decoder={str(size + 5): entry})
    with pytest.raises(TokenizerError, match=rf"'<\|tool\|>' has id {size + 5} here, but {size} in tokenizer.json"):
        tokenizer_from_folder(folder)


def test_named_tokens_as_objects_and_from_the_map(tmp_path: Path) -> None:
    folder = llama3().save(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|eot_id|>"}}))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"})
    )
    ours = tokenizer_from_folder(folder)
    assert (ours.bos_token, ours.eos_token) == ("<|begin_of_text|>", "<|eot_id|>")


def test_truncation_and_padding_are_off(tmp_path: Path) -> None:
    tiny = gpt2()
    folder = tiny.save(tmp_path)
    limited = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    limited.enable_truncation(3)
    limited.enable_padding(length=100)
    limited.save(str(folder / "tokenizer.json"))
    text = "one two three four five six"
    assert tokenizer_from_folder(folder).encode(text) == tiny.backend.encode(text).ids


def test_chat_templates_by_name_and_precedence(tmp_path: Path) -> None:
    folder = gpt2().save(tmp_path)
    assert tokenizer_from_folder(folder).chat_template is None
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    change(folder, "tokenizer_config.json", chat_template=named)
    assert tokenizer_from_folder(folder).chat_templates == {"default": "D", "tool_use": "T"}
    (folder / "chat_template.json").write_text('{"chat_template": "J"}')
    assert tokenizer_from_folder(folder).chat_templates == {"default": "J", "tool_use": "T"}
    (folder / "chat_template.jinja").write_text("F")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert tokenizer_from_folder(folder).chat_templates == {"default": "F", "tool_use": "T", "rag": "R"}


def test_fingerprint_tells_tokenizers_apart(tmp_path: Path) -> None:
    one = tokenizer_from_folder(gpt2().save(tmp_path / "a"))
    same = tokenizer_from_folder(gpt2().save(tmp_path / "b"))
    other = tokenizer_from_folder(qwen2().save(tmp_path / "c"))
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint
    folder = gpt2().save(tmp_path / "d")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"].reverse()
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert tokenizer_from_folder(folder).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json: cannot be loaded"),
        ("tokenizer.json", '{"model": {"type": "Alien"}}', "tokenizer.json: cannot be loaded"),
        ("tokenizer_config.json", "{\n,}", r"tokenizer_config.json: is not valid JSON: .* \(line 2\)"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: must hold an object, not list"),
        ("tokenizer_config.json", '{"bos_token": 3}', "bos_token: must be a token, not 3"),
        ("tokenizer_config.json", '{"bos_token": "<nope>"}', "bos_token '<nope>' is not in the vocabulary"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "must map token ids to tokens"),
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template must be a string or a list"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "a"}]}', "chat_template must be a string or a list"),
        ("generation_config.json", '{"eos_token_id": "2"}', "generation_config.json: must be a token id or a list"),
        ("generation_config.json", '{"eos_token_id": 999999}', "special token id 999999 is not in the vocabulary"),
    ],
)
def test_wrong_files_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    folder = gpt2().save(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_folder(folder)


def test_file_that_is_not_utf8(tmp_path: Path) -> None:
    folder = gpt2().save(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(TokenizerError, match=r"chat_template.jinja: is not UTF-8 \(byte 2\)"):
        tokenizer_from_folder(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"eos_token": ' + "1" * 5000 + "}"])
def test_json_that_nobody_can_read(text: str, tmp_path: Path) -> None:
    folder = gpt2().save(tmp_path)
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: is not JSON that anything can read"):
        tokenizer_from_folder(folder)


def test_folder_without_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"there is no tokenizer\.json"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"only tokenizer\.model, not tokenizer\.json.*save_pretrained"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (None, "there is none"),
        (decoders.WordPiece(), "WordPiece is not supported"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), "neither byte-level nor SentencePiece"),
        (decoders.Metaspace("_"), "spaces are written '_'"),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 2, 0)]), "one leading space only"),
    ],
)
def test_decoders_that_are_refused(decoder: decoders.Decoder | None, message: str, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=message):
        tokenizer_from_folder(tmp_path)
