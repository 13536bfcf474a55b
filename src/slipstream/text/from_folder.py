"""A tokenizer from a folder in Hugging Face layout (https://huggingface.co/docs/tokenizers)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import tokenizers

from slipstream.errors import TokenizerError
from slipstream.text.folder_files import chat_templates, read_json, token_ids, token_text
from slipstream.text.pieces import SPACE_MARK, PieceScheme, Spelling
from slipstream.text.tokenizer import TURN_END_TOKENS, Tokenizer

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "a"


def tokenizer_from_folder(folder: str | Path) -> Tokenizer:
    """Build the tokenizer of `tokenizer.json`, with what `tokenizer_config.json`, `special_tokens_map.json`,
    `generation_config.json` and the chat template files beside it add.

    Raises `TokenizerError` if `tokenizer.json` is missing or unreadable, if the files contradict each other, or if the
    decoder spells pieces in a way that is not supported.
    """
    folder = Path(folder)
    backend = _load_backend(folder)
    config = read_json(folder / "tokenizer_config.json")
    named = _named_tokens(folder, config)
    _add_missing_tokens(backend, folder, config, named)
    added = backend.get_added_tokens_decoder()
    special = {token.content: token_id for token_id, token in added.items() if token.special}
    bos = backend.token_to_id(named["bos_token"]) if "bos_token" in named else None
    eos = backend.token_to_id(named["eos_token"]) if "eos_token" in named else None
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file)
    eos_ids = [] if eos is None else [eos]
    eos_ids += token_ids(generation.get("eos_token_id"), str(generation_file))
    eos_ids += [special[token] for token in TURN_END_TOKENS if token in special]
    prefix, suffix = _affixes(backend)
    if backend.post_processor is None:
        # No template in tokenizer.json: then the flags of the configuration say it.
        prefix = [bos] if config.get("add_bos_token") is True and bos is not None else []
        suffix = [eos] if config.get("add_eos_token") is True and eos is not None else []
    return Tokenizer(
        backend,
        scheme=_scheme(backend, folder / "tokenizer.json"),
        special_ids=special.values(),
        bos_token_id=bos,
        eos_token_ids=eos_ids,
        prefix_ids=prefix,
        suffix_ids=suffix,
        chat_templates=chat_templates(folder, config),
    )


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in ("tokenizer.model", "vocab.json", "spiece.model") if (folder / name).is_file()]
        what = f"there is only {others[0]}, not tokenizer.json." if others else "there is no tokenizer.json."
        raise TokenizerError(
            what,
            where=str(folder),
            fix="Write one with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception for whatever is wrong with the file.
        raise TokenizerError(f"cannot be loaded: {error}.", where=str(path)) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _named_tokens(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """`bos_token` and the like; `tokenizer_config.json` goes before `special_tokens_map.json`."""
    map_file = folder / "special_tokens_map.json"
    special_map = read_json(map_file)
    named: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        source = config if config.get(name) is not None else special_map
        token = token_text(source.get(name), f"{folder}: {name}")
        if token:
            named[name] = token
    return named


def _add_missing_tokens(
    backend: tokenizers.Tokenizer, folder: Path, config: Mapping[str, object], named: Mapping[str, str]
) -> None:
    """Tokens that the configuration knows and `tokenizer.json` does not list as added."""
    where = f"{folder / 'tokenizer_config.json'}: added_tokens_decoder"
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, Mapping) or not all(key.isdecimal() for key in listed):
        raise TokenizerError("must map token ids to tokens.", where=where)
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for key, entry in sorted(listed.items(), key=lambda item: int(item[0])):
        content = token_text(entry, where)
        if not content or not isinstance(entry, Mapping):
            raise TokenizerError(f"token {key} has no content.", where=where)
        if content not in present:
            flags = {
                name: bool(entry[name])
                for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
                if name in entry
            }
            backend.add_tokens([tokenizers.AddedToken(content, **flags)])
        if backend.token_to_id(content) != int(key):
            raise TokenizerError(
                f"{content!r} has id {key} here, but {backend.token_to_id(content)} in tokenizer.json.", where=where
            )
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for name, content in named.items():
        if content in present:
            continue
        if backend.token_to_id(content) is None:
            raise TokenizerError(f"{name} {content!r} is not in the vocabulary.", where=str(folder))
        backend.add_special_tokens([tokenizers.AddedToken(content, special=True, normalized=False)])


def _affixes(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after a text."""
    encoding = backend.encode(_PROBE, add_special_tokens=True)
    is_text = [not flag for flag in encoding.special_tokens_mask]
    first = is_text.index(True) if any(is_text) else len(is_text)
    last = len(is_text) - is_text[::-1].index(True) if any(is_text) else len(is_text)
    return encoding.ids[:first], encoding.ids[last:]


def _scheme(backend: tokenizers.Tokenizer, path: Path) -> PieceScheme:
    """How the decoder of `tokenizer.json` reads pieces."""
    where = f"{path}: decoder"
    if backend.decoder is None:
        raise TokenizerError("there is none, so tokens cannot be turned into text.", where=where)
    state = json.loads(backend.decoder.__getstate__())
    steps = {step["type"]: step for step in (state["decoders"] if state["type"] == "Sequence" else [state])}
    unknown = steps.keys() - {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}
    if unknown:
        raise TokenizerError(f"{', '.join(sorted(unknown))} is not supported.", where=where)
    if "ByteLevel" in steps:
        return PieceScheme(Spelling.BYTE_LEVEL)
    byte_fallback = "ByteFallback" in steps
    if "Metaspace" in steps:
        metaspace = steps["Metaspace"]
        if metaspace["replacement"] != SPACE_MARK:
            raise TokenizerError(f"spaces are written {metaspace['replacement']!r}, not U+2581.", where=where)
        strip = metaspace["prepend_scheme"] != "never"
        return PieceScheme(Spelling.SENTENCEPIECE, byte_fallback=byte_fallback, strip_leading_space=strip)
    replace = steps.get("Replace")
    if replace is None or replace["pattern"] != {"String": SPACE_MARK} or replace["content"] != " ":
        raise TokenizerError("it is neither byte-level nor SentencePiece.", where=where)
    strip_step = steps.get("Strip")
    if strip_step is not None and (strip_step["content"], strip_step["start"], strip_step["stop"]) != (" ", 1, 0):
        raise TokenizerError("Strip is supported for one leading space only.", where=where)
    return PieceScheme(Spelling.SENTENCEPIECE, byte_fallback=byte_fallback, strip_leading_space=strip_step is not None)
