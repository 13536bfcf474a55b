"""Pre-tokenizers of byte-level BPE vocabularies by the name that GGUF files give in `tokenizer.ggml.pre`.

A pre-tokenizer cuts the text before merges apply, so a wrong one yields ids the model was never trained on. Each entry
is what the models' own `tokenizer.json` does, as a list of patterns (Oniguruma syntax); every pattern cuts the pieces
that the one before left, at each match.
"""

from __future__ import annotations

import tokenizers
from tokenizers import pre_tokenizers

from slipstream.errors import TokenizerError
from slipstream.lean import dataclass

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|\s+(?!\S)|\s+"
LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}[\r\n]*|{_SPACES}"
QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
BAILING_MOE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_CASED_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
TEKKEN = rf"{_CASED_WORD.replace('{0}', '')}|\p{{N}}|{_SYMBOLS}[\r\n/]*|{_SPACES}"
GPT4O = rf"{_CASED_WORD.replace('{0}', _CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS}[\r\n/]*|{_SPACES}"

_CJK_OR_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
    r"\s+$",
    _CJK_OR_HANGUL,
    r"\p{N}",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_OR_HANGUL, r"\p{N}")
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """`patterns` cut the text one after the other. `ignore_merges`: a piece that is a token whole is that token,
    whatever the merges would build. `adds_bos`: what these models do if the file does not say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


def _table() -> dict[str, PreTokenizer]:
    entries: list[tuple[str, PreTokenizer]] = [
        (
            "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum modern-bert exaone4",
            PreTokenizer((GPT2,)),
        ),
        ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((r"\p{N}", GPT2))),
        (
            "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
            PreTokenizer((LLAMA3,), ignore_merges=True, adds_bos=True),
        ),
        ("dbrx smaug-bpe chatglm-bpe glm4", PreTokenizer((LLAMA3,))),
        (
            "qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open megrez grok-2 kormo f2llmv2",
            PreTokenizer((QWEN2,)),
        ),
        ("qwen35", PreTokenizer((QWEN35,))),
        ("seed-coder", PreTokenizer((SEED_CODER,))),
        ("bailingmoe bailingmoe2 llada-moe", PreTokenizer((BAILING_MOE,))),
        ("tekken", PreTokenizer((TEKKEN,), ignore_merges=True, adds_bos=True)),
        ("gpt-4o llama4 kanana2 minimax-m2", PreTokenizer((GPT4O,))),
        ("deepseek-llm", PreTokenizer(DEEPSEEK_LLM)),
        ("deepseek-coder", PreTokenizer(DEEPSEEK_CODER)),
        ("deepseek-v3 hunyuan-dense joyai-llm", PreTokenizer(DEEPSEEK_V3)),
        ("falcon", PreTokenizer(FALCON)),
        ("default", PreTokenizer(DEFAULT)),
        ("bloom poro-chat gpt3-finnish", PreTokenizer((BLOOM,))),
        ("viking", PreTokenizer((BLOOM, r"\p{N}"))),
    ]
    return {name: pre for names, pre in entries for name in names.split()}


PRE_TOKENIZERS: dict[str, PreTokenizer] = _table()


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """The pre-tokenizer `name`; an unknown one is refused with the list of those known."""
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise TokenizerError(
            f"pre-tokenizer {name!r} is unknown.",
            where="tokenizer.ggml.pre",
            fix=f"Known ones: {', '.join(sorted(PRE_TOKENIZERS))}.",
        )
    return found


def build_pre_tokenizer(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    """Cut at every pattern in turn, then spell each piece in the byte alphabet."""
    steps: list[pre_tokenizers.PreTokenizer] = []
    for pattern in patterns[:-1]:
        steps.append(_splitter(pattern))
    # The library has GPT-2's pattern built in, which is faster than a regular expression.
    if patterns[-1] == GPT2:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        steps.append(_splitter(patterns[-1]))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def _splitter(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == r"\p{N}":
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
