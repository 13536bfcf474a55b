"""Small tokenizers of every style, trained in moments, as `tokenizers` objects with what a model's files would say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TRAINING_TEXT = [
    "The quick brown fox jumps over the lazy dog. It's what they've said, isn't it? I'll say WE'LL go.",
    "def main(args):\n    for i in range(100):\n        print(f'{i:03d}')\n\treturn None\n\n\n",
    "numbers 1 22 333 4444 55555 3.14159 2024-01-02 ½ ² ٣٤ and HTTPResponseCode camelCase snake_case",
    "Grüße aus Köln, naïve café, Ελληνικά κείμενα, русский текст, українська мова",
    "你好，世界。日本語のテキスト、漢字とかな。한국어 문장입니다. العربية نص قصير. हिन्दी पाठ",
    "emoji 👍🏽 👩‍👩‍👧 🇩🇪 ❤️ and  double   triple    spaces\r\nwindows\r\n\r\nlines",
    "the the the and and of of to in is that it was for on are as with his they at be this have from",
] * 3

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Tiny:
    """`config` is `tokenizer_config.json`; `gguf` are the metadata keys (without the common prefix) that say the same
    as the backend; `specials` are its control tokens, `users` its added tokens that are not special."""

    backend: tokenizers.Tokenizer
    config: dict[str, object]
    gguf: dict[str, object] | None
    specials: tuple[str, ...]
    users: tuple[str, ...] = ()
    generation: dict[str, object] = field(default_factory=dict)

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.config), encoding="utf-8")
        if self.generation:
            (folder / "generation_config.json").write_text(json.dumps(self.generation), encoding="utf-8")
        return folder

    def metadata(self) -> dict[str, object]:
        """The same tokenizer as a GGUF file would describe it."""
        assert self.gguf is not None
        state = json.loads(self.backend.to_str())
        vocab = self.backend.get_vocab(with_added_tokens=True)
        tokens = [token for token, _ in sorted(vocab.items(), key=lambda item: item[1])]
        kinds = dict.fromkeys(self.specials, 3) | dict.fromkeys(self.users, 4)
        sentencepiece = self.gguf["model"] != "gpt2"
        types = [kinds.get(token, 6 if sentencepiece and token.startswith("<0x") else 1) for token in tokens]
        result: dict[str, object] = {"tokens": tokens, "token_type": types, **self.gguf}
        if self.gguf["model"] == "gpt2":
            result["merges"] = [" ".join(pair) for pair in state["model"]["merges"]]
        elif self.gguf["model"] == "t5":
            scores = dict(state["model"]["vocab"])
            result["scores"] = [scores.get(token, -1000.0) for token in tokens]
        else:
            result["scores"] = [-float(position) for position in range(len(tokens))]
        for name in ("bos", "eos"):
            token = self.config.get(f"{name}_token")
            if token is not None:
                result[f"{name}_token_id"] = vocab[str(token)]
        return {f"tokenizer.ggml.{key}": value for key, value in result.items()}


def _byte_level(
    steps: list[pre_tokenizers.PreTokenizer],
    pre: str,
    specials: tuple[str, ...],
    *,
    users: tuple[str, ...] = (),
    ignore_merges: bool = False,
    bos: str | None = None,
    prefix: tuple[str, ...] = (),
    eos: str,
    use_regex: bool = False,
) -> Tiny:
    backend = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=sorted(alphabet), show_progress=False)
    backend.train_from_iterator(TRAINING_TEXT, trainer)
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in specials])
    backend.add_tokens([tokenizers.AddedToken(token, special=False, normalized=False) for token in users])
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos}
    if bos is not None:
        config["bos_token"] = bos
    steps_after: list[processors.PostProcessor] = [processors.ByteLevel(trim_offsets=False)]
    if prefix:
        steps_after.append(
            processors.TemplateProcessing(
                single=" ".join([*prefix, "$A"]),
                special_tokens=[(token, backend.token_to_id(token)) for token in prefix],
            )
        )
    backend.post_processor = processors.Sequence(steps_after)
    gguf: dict[str, object] = {"model": "gpt2", "pre": pre, "add_bos_token": bos is not None and prefix == (bos,)}
    return Tiny(backend, config, gguf, specials, users)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")


def _sentencepiece(
    *, style: str, specials: tuple[str, ...], users: tuple[str, ...] = (), bos: str, eos: str, unk: str
) -> Tiny:
    """Pieces as SentencePiece BPE would find them: merges that cross no word, byte tokens, `▁` for a space."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    trained.train_from_iterator(TRAINING_TEXT, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    results = ["".join(pair) for pair in learned["merges"]]
    single = [token for token in sorted(learned["vocab"]) if len(token) == 1]
    runs = ["▁" * count for count in range(2, 9)] if style == "gemma" else []
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), *users, *runs, *results, *single]
    vocab = {piece: position for position, piece in enumerate(dict.fromkeys(pieces))}
    usable = {piece for piece in vocab if piece not in specials and not piece.startswith("<0x")}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in vocab
        if piece in usable
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in usable and piece[cut:] in usable
    ]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token=unk, fuse_unk=True)
    )
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in specials])
    backend.add_tokens([tokenizers.AddedToken(token, special=False, normalized=False) for token in users])
    replace = normalizers.Replace(" ", "▁")
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "gemma":
        backend.normalizer = replace
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, vocab[bos])])
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos}
    config["unk_token"] = unk
    gguf: dict[str, object] = {
        "model": "llama",
        "pre": "default",
        "unknown_token_id": vocab[unk],
        "add_space_prefix": style != "gemma",
    }
    return Tiny(backend, config, gguf, specials, users)


@cache
def gpt2() -> Tiny:
    return _byte_level([], "gpt-2", ("<|endoftext|>",), eos="<|endoftext|>", bos="<|endoftext|>", use_regex=True)


@cache
def smollm() -> Tiny:
    digits = [pre_tokenizers.Digits(individual_digits=True)]
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return _byte_level(digits, "smollm", specials, bos="<|im_start|>", eos="<|im_end|>", use_regex=True)


@cache
def llama3() -> Tiny:
    specials = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    return _byte_level(
        [_split(LLAMA3_SPLIT)],
        "llama-bpe",
        specials,
        ignore_merges=True,
        bos="<|begin_of_text|>",
        prefix=("<|begin_of_text|>",),
        eos="<|end_of_text|>",
    )


@cache
def qwen2() -> Tiny:
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    users = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    return _byte_level([_split(QWEN2_SPLIT)], "qwen2", specials, users=users, eos="<|im_end|>")


@cache
def tekken() -> Tiny:
    return _byte_level(
        [_split(TEKKEN_SPLIT)],
        "tekken",
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]"),
        ignore_merges=True,
        bos="<s>",
        prefix=("<s>",),
        eos="</s>",
    )


@cache
def glm4() -> Tiny:
    """Two tokens before every text, which a GGUF file cannot say: its template writes them."""
    specials = ("<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>")
    tiny = _byte_level([_split(LLAMA3_SPLIT)], "glm4", specials, prefix=("[gMASK]", "<sop>"), eos="<|endoftext|>")
    ids = [tiny.backend.token_to_id(token) for token in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    return Tiny(tiny.backend, tiny.config, tiny.gguf, specials, generation={"eos_token_id": ids})


@cache
def llama2() -> Tiny:
    return _sentencepiece(style="llama", specials=("<unk>", "<s>", "</s>"), bos="<s>", eos="</s>", unk="<unk>")


@cache
def gemma() -> Tiny:
    return _sentencepiece(
        style="gemma",
        specials=("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"),
        users=("\n", "\n\n", "\n\n\n", "\t", "\t\t", "<table>", "</table>"),
        bos="<bos>",
        eos="<eos>",
        unk="<unk>",
    )


@cache
def unigram() -> Tiny:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    specials = ("<unk>", "<s>", "</s>")
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=[*specials, *(f"<0x{byte:02X}>" for byte in range(256))],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING_TEXT, trainer)
    scored = [(token, score) for token, score in json.loads(backend.to_str())["model"]["vocab"]]
    fresh = tokenizers.Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    fresh.pre_tokenizer = backend.pre_tokenizer
    fresh.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", prepend_scheme="always")])
    fresh.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in specials])
    fresh.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    config["unk_token"] = "<unk>"
    return Tiny(fresh, config, {"model": "t5", "unknown_token_id": 0}, specials)


STYLES = {
    "gpt2": gpt2,
    "smollm": smollm,
    "llama3": llama3,
    "qwen2": qwen2,
    "tekken": tekken,
    "glm4": glm4,
    "llama2": llama2,
    "gemma": gemma,
    "unigram": unigram,
}
