"""Prompts that need no file and no network: what the model itself asks, tasks about its own texts and about Python's
standard library, and everyday ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from slipstream.training import topics
from slipstream.training.own_texts import OwnTexts
from slipstream.training.prompts import Prompt
from slipstream.training.stdlib_sources import Function, Library

Maker = Callable[[Library, random.Random], str]

NONE = OwnTexts()


QUESTIONS, ABOUT_TEXTS = 0.45, 0.25  # shares of the model's own questions and of tasks about its own texts


def default_prompts(library: Library, seed: int, own: OwnTexts = NONE) -> Iterator[Prompt]:
    """Prompts without end, a function of the arguments alone; a kind is each one's domain. Those that would repeat an
    earlier one are left out, until hardly anything else is found. What is the model's own is taken once, in order, as
    long as there is some."""
    rng = random.Random(seed)
    kinds = [kind for kind, (_, share) in _KINDS.items() for _ in range(share)]
    questions, texts = iter(own.questions), iter(own.texts)
    seen: set[str] = set()
    repeats = 0
    while True:
        domain = rng.choice(kinds)
        text = _KINDS[domain][0](library, rng)
        if own.questions:
            share, form = rng.random(), rng.choice(list(_ABOUT_TEXTS))
            if share < QUESTIONS and (question := next(questions, None)) is not None:
                domain, text = "own question", question
            elif QUESTIONS <= share < QUESTIONS + ABOUT_TEXTS and (matter := next(texts, None)) is not None:
                domain, text = f"own {form}", _ABOUT_TEXTS[form](matter, rng)
        if text in seen and repeats < 1000:
            repeats += 1
            continue
        repeats = 0
        seen.add(text)
        yield Prompt.of(text, domain)


def _code(function: Function) -> str:
    return f"```python\n{function.source}\n```"


def _question(library: Library, rng: random.Random) -> str:
    name = rng.choice(library.functions).name
    form = rng.choice(
        (
            "What does {} do in Python, and when would I use it?",
            "How do I use {} in Python? Show a short example.",
            "What are the arguments of {} in Python?",
            "I get an error when I call {} in Python. What could be wrong?",
            "Which alternatives to {} are there in Python?",
        )
    )
    return form.format(f"`{name}`")


def _explain(library: Library, rng: random.Random) -> str:
    form = rng.choice(("Explain this code.", "What does this code do, step by step?", "Explain this to a beginner."))
    return f"{form}\n\n{_code(rng.choice(library.functions))}"


def _docstring(library: Library, rng: random.Random) -> str:
    form = rng.choice(
        ("Write a docstring for this function.", "Add a docstring and return the whole function.", "Add comments.")
    )
    return f"{form}\n\n{_code(rng.choice(library.functions))}"


def _edit(library: Library, rng: random.Random) -> str:
    function = rng.choice(library.functions)
    changes = [
        "add type hints",
        "print its name when it is called",
        f"rename it to new_{function.name.rpartition('.')[2].strip('_')}",
        "return None where it fails",
    ]
    for argument in function.arguments[:2]:
        changes += [f"rename the argument {argument} to {argument}_value", f"raise ValueError if {argument} is None"]
    return f"Return this function with one change: {rng.choice(changes)}.\n\n{_code(function)}"


def _write_code(library: Library, rng: random.Random) -> str:
    function = rng.choice(library.functions)
    task = function.doc.partition("\n")[0].rstrip(".")
    arguments = f" Its arguments are {', '.join(function.arguments)}." if function.arguments else ""
    return f"Write a Python function for this: {task}.{arguments}"


def _summary_of(text: str, rng: random.Random) -> str:
    form = rng.choice(
        (
            "Summarise this text in one or two sentences:",
            "What are the main points of this text?",
            "Summarize:",
            "Write a short summary of the following article.",
        )
    )
    return f"{form}\n\n{text}"


def _summarise(library: Library, rng: random.Random) -> str:
    return _summary_of(_text(library, rng, 2), rng)


def _rewriting_of(text: str, rng: random.Random) -> str:
    form = rng.choice(("Say this in simpler words:", "Rewrite this text in a formal tone:", "Correct and improve:"))
    return f"{form}\n\n{text}"


def _rewrite(library: Library, rng: random.Random) -> str:
    return _rewriting_of(_text(library, rng, 1), rng)


def _answer_from_text(library: Library, rng: random.Random) -> str:
    return _answer_from(_text(library, rng, 2), rng)


def _answer_from(text: str, rng: random.Random) -> str:
    words = sorted({word.strip(".,;:()") for word in text.split() if len(word) > 6 and word.strip(".,;:()").isalpha()})
    subject = rng.choice(words) if words else "the subject"
    return f"Answer by this text alone.\n\n{text}\n\nQuestion: what does the text say about {subject}?"


def _translation_of(text: str, rng: random.Random) -> str:
    sentences = " ".join(text.split()).split(". ")
    start = rng.randrange(max(1, len(sentences) - 1))
    return f"Translate into {rng.choice(topics.LANGUAGES)}: {'. '.join(sentences[start : start + 2]).rstrip('.')}."


def _translate(library: Library, rng: random.Random) -> str:
    sentences = list(topics.SENTENCES)
    sentences += [paragraph.partition(". ")[0].rstrip(".") + "." for _, paragraph in rng.sample(library.paragraphs, 3)]
    return f"Translate into {rng.choice(topics.LANGUAGES)}: {' '.join(rng.sample(sentences, rng.randint(1, 2)))}"


def _write(library: Library, rng: random.Random) -> str:
    return rng.choice(topics.FORMS).format(rng.choice(topics.TOPICS))


def _ask(library: Library, rng: random.Random) -> str:
    return rng.choice(topics.QUESTIONS).format(rng.choice(topics.TOPICS))


def _math(library: Library, rng: random.Random) -> str:
    name, other = rng.sample(topics.NAMES, 2)
    numbers = {"a": rng.randint(20, 400), "b": rng.randint(3, 90), "c": rng.randint(2, 15)}
    return rng.choice(topics.PROBLEMS).format(name=name, other=other, good=rng.choice(topics.GOODS), **numbers)


def _text(library: Library, rng: random.Random, at_most: int) -> str:
    """One paragraph or several, of one module where it has them."""
    start = rng.randrange(len(library.paragraphs))
    module = library.paragraphs[start][0]
    following = library.paragraphs[start : start + rng.randint(1, at_most)]
    return "\n\n".join(paragraph for each, paragraph in following if each == module)


_KINDS: dict[str, tuple[Maker, int]] = {  # and its share
    "question": (_question, 2),
    "explain": (_explain, 2),
    "docstring": (_docstring, 1),
    "edit": (_edit, 1),
    "code": (_write_code, 2),
    "summarise": (_summarise, 2),
    "rewrite": (_rewrite, 1),
    "context": (_answer_from_text, 2),
    "translate": (_translate, 1),
    "write": (_write, 2),
    "ask": (_ask, 2),
    "math": (_math, 3),
}

_ABOUT_TEXTS: dict[str, Callable[[str, random.Random], str]] = {
    "summarise": _summary_of,
    "rewrite": _rewriting_of,
    "context": _answer_from,
    "translate": _translation_of,
}
