"""`Tokenizer`: text to token ids and back, whatever files it was built from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

import tokenizers
from tokenizers.models import WordLevel

from slipstream.errors import InvalidParamsError, TokenizerError
from slipstream.text.longest import TextBound, text_bound
from slipstream.text.pieces import PieceScheme

TURN_END_TOKENS: tuple[str, ...] = (
    "<|im_end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "[EOT]",
    "<eos>",
    "</s>",
)
"""Control tokens that end an answer in the families in use; files often name only one of a model's several."""

_PLACEHOLDER = "\ufdef"  # a noncharacter: it stands for nothing and occurs in no text


class Tokenizer:
    """A tokenizer with its special tokens and chat templates; immutable, so threads may share it.

    `backend` cuts text into ids and must have neither truncation nor padding; its own post-processor is not used:
    `prefix_ids` and `suffix_ids` are what encoding puts around a text. `special_ids` are left out of decoded text
    unless asked for. `eos_token_ids` are all ids that end an answer, the main one first. Build one with
    `tokenizer_from_gguf` or `tokenizer_from_folder`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        scheme: PieceScheme,
        special_ids: Iterable[int],
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        prefix_ids: Iterable[int] = (),
        suffix_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._scheme = scheme
        self._added = frozenset(backend.get_added_tokens_decoder())
        self._vocab_size = max((backend.get_vocab_size(with_added_tokens=False) - 1, *self._added)) + 1
        self._special_ids = frozenset(special_ids)
        self._bos_token_id = bos_token_id
        self._eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self._token_bytes: dict[int, bytes] = {}  # of those that were asked for
        self._prefix_ids = list(prefix_ids)
        self._suffix_ids = list(suffix_ids)
        self._chat_templates = MappingProxyType(dict(chat_templates or {}))
        for token_id in (bos_token_id, *self._eos_token_ids, *self._prefix_ids, *self._suffix_ids):
            if token_id is not None and backend.id_to_token(token_id) is None:
                raise TokenizerError(f"special token id {token_id} is not in the vocabulary.")

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, spelling={self._scheme.spelling.value!r})"

    @property
    def vocab_size(self) -> int:
        """Largest token id plus one, added tokens included. A model may pad its embedding beyond this."""
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, the main one first."""
        return self._eos_token_ids

    @property
    def bos_token(self) -> str:
        """Text of the BOS token, or "" if there is none; what chat templates call `bos_token`."""
        return self._text_of(self._bos_token_id)

    @property
    def eos_token(self) -> str:
        """Text of the main EOS token, or "" if there is none; what chat templates call `eos_token`."""
        return self._text_of(self._eos_token_ids[0] if self._eos_token_ids else None)

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` puts BOS before a text that does not begin with it."""
        return self._bos_token_id is not None and self._bos_token_id in self._prefix_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Template source by name; "default" is the plain one, "tool_use" the one for requests with tools."""
        return self._chat_templates

    @property
    def chat_template(self) -> str | None:
        return self._chat_templates.get("default")

    @property
    def strips_leading_space(self) -> bool:
        """Whether decoding drops the one space that encoding put before the text (SentencePiece's dummy prefix)."""
        return self._scheme.strip_leading_space

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of vocabulary and merges: equal if two models share a tokenizer, wherever each was loaded from.

        The token order within the file, special-token flags and chat templates do not enter. Takes a second for the
        largest vocabularies, so it is computed when first asked for.
        """
        model = json.loads(self._backend.to_str())["model"]
        vocab = self._backend.get_vocab(with_added_tokens=True)
        digest = hashlib.sha256()
        for token, token_id in sorted(vocab.items(), key=lambda item: (item[1], item[0])):
            digest.update(f"{token_id}\0{token}\n".encode())
        for merge in model.get("merges", ()):
            digest.update(f"{merge}\n".encode())
        return digest.hexdigest()

    @cached_property
    def text_bound(self) -> TextBound | None:
        """How much text a token stands for at most, None where there is no bound. Looks at the whole vocabulary when
        first asked for."""
        return text_bound(self._backend)

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens` puts the tokenizer's prefix (BOS, if it is configured to add one) before and its suffix
        after the text, except where the text already has them. `parse_special=False` reads the spelling of a special
        token in the text as ordinary characters: use it for text that must not be able to open a turn. Raises
        `InvalidParamsError` if `text` is not a string of valid Unicode.
        """
        ids = self._ids_of(text, parse_special)
        if not add_special_tokens:
            return ids
        prefix, suffix = self._prefix_ids, self._suffix_ids
        if not self._begins_with_prefix(ids):
            ids = prefix + ids
        if suffix and ids[len(ids) - len(suffix) :] != suffix:
            ids = ids + suffix
        return ids

    def encode_chat(self, rendered: str, *, mark: str | None = None) -> list[int]:
        """Token ids of a rendered chat template: one BOS, whether the template wrote none, one or two; no suffix.

        `mark`, a character that is dropped, breaks up spellings of special tokens that are to stay text.
        """
        ids = self._ids_of(rendered, True) if mark is None else self._ids_of_marked(rendered, mark)
        if not self.adds_bos:
            return ids
        bos = self._bos_token_id
        while len(ids) > 1 and ids[0] == bos and ids[1] == bos:
            del ids[0]
        return ids if self._begins_with_prefix(ids) else self._prefix_ids + ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`: their bytes joined and read as UTF-8, each ill-formed sequence as one U+FFFD (the Unicode
        standard's "maximal subpart" practice). Ids that a model pads its vocabulary with carry no text."""
        special = self._special_ids if skip_special_tokens else frozenset()
        data = b"".join([self.token_bytes(token_id) for token_id in ids if token_id not in special])
        if self._scheme.strip_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Raw bytes of one token; empty for an id without a token. They need not be whole characters."""
        known = self._token_bytes.get(token_id)
        if known is None:
            piece = self.id_to_token(token_id)
            known = b"" if piece is None else self._scheme.to_bytes(piece, added=token_id in self._added)
            self._token_bytes[token_id] = known
        return known

    def id_to_token(self, token_id: int) -> str | None:
        """The piece as the vocabulary spells it, or None if no token has this id."""
        if token_id < 0:
            raise InvalidParamsError(f"token id {token_id} is negative.")
        return self._backend.id_to_token(int(token_id))

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def _text_of(self, token_id: int | None) -> str:
        return "" if token_id is None else self.id_to_token(token_id) or ""

    def _begins_with_prefix(self, ids: list[int]) -> bool:
        begins_with_bos = self.adds_bos and ids[:1] == [self._bos_token_id]
        return begins_with_bos or ids[: len(self._prefix_ids)] == self._prefix_ids

    def _ids_of(self, text: str, parse_special: bool) -> list[int]:
        backend = self._backend if parse_special else self._literal_backend
        return list(_encoded(backend, text, offsets=False).ids)

    def _ids_of_marked(self, text: str, mark: str) -> list[int]:
        """Special tokens that are spelled out whole in the marked text stand in it as one placeholder each, so that
        one pass of the literal backend cuts the text between them exactly as it would be cut between the tokens."""
        if _PLACEHOLDER in text:
            raise InvalidParamsError(f"the text has the noncharacter U+{ord(_PLACEHOLDER):04X}.", fix="Leave it out.")
        found = _encoded(self._finding_backend, text, offsets=True)
        special: list[int] = []
        kept: list[str] = []
        done = 0
        for token, (start, end) in zip(found.tokens, found.offsets, strict=True):
            token_id = self.token_to_id(token)
            if token_id in self._special_ids and text[start:end].strip() == token:
                kept += [text[done:start], _PLACEHOLDER]
                special.append(token_id)
                done = end
        plain = "".join([*kept, text[done:]]).replace(mark, "")
        backend, placeholder = self._placeholder_backend
        rest = iter(special)
        literal = _encoded(backend, plain, offsets=False).ids
        for token_id in self._special_ids.intersection(literal):
            # A Unigram model has its control tokens among its pieces, so that it finds them in any text.
            if (spelling := self._text_of(token_id)) in plain:
                raise InvalidParamsError(
                    f"the text spells the control token {spelling!r}, which this tokenizer cannot read as text."
                )
        return [next(rest) if token_id == placeholder else token_id for token_id in literal]

    @cached_property
    def _literal_backend(self) -> tokenizers.Tokenizer:
        """The same model (shared, not copied) that does not look for special tokens in the text."""
        return self._literal()

    @cached_property
    def _finding_backend(self) -> tokenizers.Tokenizer:
        """Finds special tokens and takes whatever lies between two of them for one token, which costs a hundredth of
        cutting it. With special tokens that were not added only the whole tokenizer finds them."""
        if not self._special_ids <= self._added:
            return self._backend
        finding = tokenizers.Tokenizer(WordLevel({_PLACEHOLDER: 0}, unk_token=_PLACEHOLDER))
        if self._backend.normalizer is not None:
            finding.normalizer = self._backend.normalizer
        finding.add_tokens([token for _, token in sorted(self._backend.get_added_tokens_decoder().items())])
        return finding

    @cached_property
    def _placeholder_backend(self) -> tuple[tokenizers.Tokenizer, int]:
        """A literal backend with one more token, and that token's id."""
        backend = self._literal()
        backend.add_tokens([tokenizers.AddedToken(_PLACEHOLDER, normalized=False)])
        placeholder = backend.token_to_id(_PLACEHOLDER)
        assert placeholder is not None
        return backend, placeholder

    def _literal(self) -> tokenizers.Tokenizer:
        literal = tokenizers.Tokenizer(self._backend.model)
        if self._backend.normalizer is not None:
            literal.normalizer = self._backend.normalizer
        if self._backend.pre_tokenizer is not None:
            literal.pre_tokenizer = self._backend.pre_tokenizer
        added = self._backend.get_added_tokens_decoder()
        # Special ones too: ids beyond the model's vocabulary are given out in order.
        literal.add_tokens([token for _, token in sorted(added.items())])
        if literal.get_added_tokens_decoder().keys() != added.keys():
            raise TokenizerError("the ids of the added tokens have gaps, so they cannot be told from plain text.")
        literal.encode_special_tokens = True
        return literal


def _encoded(backend: tokenizers.Tokenizer, text: str, *, offsets: bool) -> tokenizers.Encoding:
    if not isinstance(text, str):
        raise InvalidParamsError(f"text to tokenize must be a string, not {type(text).__name__}.")
    try:
        # A batch of one, since `encode` holds the interpreter lock: a server would stand still for megabytes of text.
        encode = backend.encode_batch if offsets else backend.encode_batch_fast
        [encoding] = encode([text], add_special_tokens=False)
        return encoding
    except (UnicodeEncodeError, TypeError) as error:
        position = _lone_surrogate(text)
        if position is None:
            raise
        raise InvalidParamsError(
            f"the text has half a surrogate pair (U+{ord(text[position]):04X}) at character {position}, "
            "which is no valid Unicode text.",
            fix="Decode the input as UTF-8 with errors='strict' or 'replace'.",
        ) from error


def _lone_surrogate(text: str) -> int | None:
    return next((position for position, char in enumerate(text) if "\ud800" <= char <= "\udfff"), None)
