"""A tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from slipstream._native import return_free_memory, split_merges
from slipstream.errors import TokenizerError
from slipstream.text.gguf_vocab import GgufMetadata, GgufVocab, TokenType
from slipstream.text.pieces import SPACE_MARK, PieceScheme, Spelling, fallback_byte
from slipstream.text.pre_tokenizers import build_pre_tokenizer, pre_tokenizer_named
from slipstream.text.spm_merges import merges_of
from slipstream.text.tokenizer import TURN_END_TOKENS, Tokenizer

_TEMPLATE = "tokenizer.chat_template"


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """Build the tokenizer that `metadata` (keys as in the file, values lists or numpy arrays) describes.

    Supported: byte-level BPE ("gpt2"), SentencePiece BPE ("llama") and SentencePiece Unigram ("t5"). Raises
    `TokenizerError` for anything else, an unknown pre-tokenizer, or a vocabulary that contradicts itself.
    """
    reader = GgufMetadata(metadata)
    model = reader.text("model")
    build = _BUILDERS.get(model or "")
    if build is not None:
        tokenizer = build(reader, _chat_templates(metadata))
        return_free_memory()  # lists and copies that building has left: a third of what it takes
        return tokenizer
    what = "the file names no tokenizer." if model is None else f"tokenizer model {model!r} is not supported."
    raise TokenizerError(what, where="tokenizer.ggml.model", fix=f"Supported: {', '.join(_BUILDERS)}.")


def _byte_level_bpe(reader: GgufMetadata, templates: dict[str, str]) -> Tokenizer:
    name = reader.text("pre")
    if name is None:
        raise TokenizerError(
            "the file does not name its pre-tokenizer, so its text cannot be cut as in training.",
            where="tokenizer.ggml.pre",
            fix="Convert the model again with a current converter.",
        )
    pre = pre_tokenizer_named(name)
    vocab = reader.vocab()
    listed = reader.strings("merges") or []
    ids = dict(zip(vocab.tokens, range(len(vocab.tokens)), strict=True))
    for token_id in vocab.ids_of_type(TokenType.UNUSED):
        # Converters fill the vocabulary up to the embedding's rows with these; no tokenizer knows them.
        ids.pop(f"[PAD{token_id}]", None)
    merges = _known_merges(listed, ids)
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre.ignore_merges))
    backend.pre_tokenizer = build_pre_tokenizer(pre.patterns)
    scheme = PieceScheme(Spelling.BYTE_LEVEL)
    return _finish(reader, vocab, backend, scheme, templates, adds_bos=pre.adds_bos)


def _sentencepiece_bpe(reader: GgufMetadata, templates: dict[str, str]) -> Tokenizer:
    vocab = _with_space_marks(reader.vocab())
    if vocab.scores is None:
        raise TokenizerError("a SentencePiece vocabulary needs scores.", where="tokenizer.ggml.scores")
    ids = dict(zip(vocab.tokens, range(len(vocab.tokens)), strict=True))
    listed = reader.strings("merges")
    merges = merges_of(vocab.tokens, _merge_order(vocab)) if listed is None else _known_merges(listed, ids)
    byte_fallback = _check_byte_tokens(vocab)
    unknown = reader.token_id("unknown_token_id", len(vocab.tokens))
    unknown_token = vocab.tokens[unknown if unknown is not None else 0]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, byte_fallback=byte_fallback, unk_token=unknown_token, fuse_unk=True)
    )
    prefix_space = reader.flag("add_space_prefix", True)
    to_mark = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), to_mark]) if prefix_space else to_mark
    scheme = PieceScheme(Spelling.SENTENCEPIECE, byte_fallback=byte_fallback, strip_leading_space=prefix_space)
    return _finish(reader, vocab, backend, scheme, templates, adds_bos=True)


def _unigram(reader: GgufMetadata, templates: dict[str, str]) -> Tokenizer:
    vocab = reader.vocab()
    if vocab.scores is None:
        raise TokenizerError("a Unigram vocabulary needs scores.", where="tokenizer.ggml.scores")
    byte_fallback = _check_byte_tokens(vocab)
    unknown = reader.token_id("unknown_token_id", len(vocab.tokens))
    scored = list(zip(vocab.tokens, vocab.scores.tolist(), strict=True))
    backend = tokenizers.Tokenizer(models.Unigram(scored, unk_id=unknown, byte_fallback=byte_fallback))
    steps: list[normalizers.Normalizer] = []
    charsmap = reader.octets("precompiled_charsmap")
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    if reader.flag("remove_extra_whitespaces", False):
        steps.extend((normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")))
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    prefix_space = reader.flag("add_space_prefix", True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme="always" if prefix_space else "never")
    scheme = PieceScheme(Spelling.SENTENCEPIECE, byte_fallback=byte_fallback, strip_leading_space=prefix_space)
    return _finish(reader, vocab, backend, scheme, templates, adds_bos=False, adds_eos=True)


def _finish(
    reader: GgufMetadata,
    vocab: GgufVocab,
    backend: tokenizers.Tokenizer,
    scheme: PieceScheme,
    templates: dict[str, str],
    *,
    adds_bos: bool,
    adds_eos: bool = False,
) -> Tokenizer:
    """Add what is matched before pre-tokenisation, then the rules for BOS and EOS."""
    count = len(vocab.tokens)
    special_ids = vocab.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    _add_tokens(backend, vocab, special_ids, special=True)
    user_defined = vocab.ids_of_type(TokenType.USER_DEFINED)
    if scheme.spelling is Spelling.SENTENCEPIECE:
        # Runs of spaces come out of merges: an added token would be looked for in the text before spaces are marked.
        user_defined = [token_id for token_id in user_defined if vocab.tokens[token_id].strip(SPACE_MARK)]
    _add_tokens(backend, vocab, user_defined, special=False)
    bos = reader.token_id("bos_token_id", count)
    ends = [reader.token_id(f"{name}_token_id", count) for name in ("eos", "eot", "eom")]
    special_tokens = {vocab.tokens[token_id]: token_id for token_id in special_ids}
    well_known = [special_tokens[token] for token in TURN_END_TOKENS if token in special_tokens]
    eos_ids = [token_id for token_id in ends if token_id is not None]
    eos_ids += reader.token_ids("eos_token_ids", count) + well_known
    prefix, suffix = [], []
    if reader.flag("add_bos_token", adds_bos and bos is not None):
        prefix = [_named(bos, "bos")]
    if reader.flag("add_eos_token", adds_eos and ends[0] is not None):
        suffix = [_named(ends[0], "eos")]
    return Tokenizer(
        backend,
        scheme=scheme,
        special_ids=special_ids,
        bos_token_id=bos,
        eos_token_ids=eos_ids,
        prefix_ids=prefix,
        suffix_ids=suffix,
        chat_templates=templates,
    )


def _named(token_id: int | None, name: str) -> int:
    if token_id is None:
        raise TokenizerError(f"add_{name}_token is set, but no such token is.", where=f"tokenizer.ggml.{name}_token_id")
    return token_id


def _add_tokens(backend: tokenizers.Tokenizer, vocab: GgufVocab, ids: Iterable[int], *, special: bool) -> None:
    contents = [vocab.tokens[token_id] for token_id in ids if vocab.tokens[token_id]]
    added = [tokenizers.AddedToken(content, normalized=False, special=special) for content in contents]
    if special:
        backend.add_special_tokens(added)
    else:
        backend.add_tokens(added)


def _known_merges(listed: list[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    """`"left right"` entries as pairs; every one joins two known tokens to a known token."""
    if not listed:
        raise TokenizerError("a BPE vocabulary needs merges.", where="tokenizer.ggml.merges")
    merges = split_merges(listed, ids)
    for rank, merge in enumerate(listed[len(merges) :], len(merges)):  # there is one only if it is wrong
        if merge.count(" ") != 1:
            raise TokenizerError(f"merge {rank} ({merge!r}) is not two tokens.", where="tokenizer.ggml.merges")
        left, _, right = merge.partition(" ")
        missing = [token for token in (left, right, left + right) if token not in ids]
        if missing:
            raise TokenizerError(
                f"merge {rank} ({left!r} + {right!r}) needs token {missing[0]!r}, which is not in the vocabulary.",
                where="tokenizer.ggml.merges",
            )
    return merges


def _with_space_marks(vocab: GgufVocab) -> GgufVocab:
    """Converters write user-defined runs of spaces as spaces; text reaches the model with U+2581 in their place, and
    the models' own tokenizers reach these tokens through merges."""
    tokens = list(vocab.tokens)
    for token_id in vocab.ids_of_type(TokenType.USER_DEFINED):
        if not tokens[token_id].strip(" "):
            tokens[token_id] = SPACE_MARK * len(tokens[token_id])
    if len(set(tokens)) != len(tokens):
        raise TokenizerError("a run of spaces is in the vocabulary twice.", where="tokenizer.ggml.tokens")
    return GgufVocab(tokens, vocab.types, vocab.scores)


def _merge_order(vocab: GgufVocab) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ids that take part in merges, best first: user-defined tokens, which SentencePiece matches before it merges at
    all, then by falling score. Control, unknown and byte tokens are never the result or part of a merge."""
    assert vocab.scores is not None
    taking_part = np.array(
        vocab.ids_of_type(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED)
    )
    scores = np.where(vocab.types == TokenType.USER_DEFINED, np.inf, vocab.scores)
    return taking_part[np.argsort(-scores[taking_part], kind="stable")]


def _check_byte_tokens(vocab: GgufVocab) -> bool:
    """True if all 256 byte tokens are there, False if none is; anything between is an error."""
    byte_ids = vocab.ids_of_type(TokenType.BYTE)
    found = {fallback_byte(vocab.tokens[token_id]) for token_id in byte_ids}
    if None in found:
        wrong = next(token_id for token_id in byte_ids if fallback_byte(vocab.tokens[token_id]) is None)
        raise TokenizerError(
            f"byte token {wrong} is spelled {vocab.tokens[wrong]!r}, not <0xNN>.", where="tokenizer.ggml.tokens"
        )
    if byte_ids and len(found) != 256:
        raise TokenizerError(f"the vocabulary has {len(found)} of 256 byte tokens.", where="tokenizer.ggml.token_type")
    return bool(byte_ids)


def _chat_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    """`tokenizer.chat_template` is the default; `tokenizer.chat_template.NAME` are named ones."""
    templates: dict[str, str] = {}
    for key, value in metadata.items():
        if key != _TEMPLATE and not key.startswith(_TEMPLATE + "."):
            continue
        if not isinstance(value, str):
            raise TokenizerError(f"must be a string, not {type(value).__name__}.", where=key)
        templates[key[len(_TEMPLATE) + 1 :] or "default"] = value
    return templates


_BUILDERS = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe, "t5": _unigram}
