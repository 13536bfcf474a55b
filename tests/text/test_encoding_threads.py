"""Long texts are encoded without the interpreter lock, so that a server's event loop goes on."""

from __future__ import annotations

import threading
import time

import pytest

from slipstream.text.from_gguf import tokenizer_from_gguf

from .tiny_tokenizers import smollm

pytestmark = pytest.mark.fast


def test_other_threads_run_while_a_text_is_encoded() -> None:
    tokenizer = tokenizer_from_gguf(smollm().metadata())
    turns, over = 0, threading.Event()

    def turn() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        before = turns
        ids = tokenizer.encode("some words and more of them " * 20_000)
        during = turns - before
    finally:
        over.set()
        thread.join()
    assert len(ids) > 100_000
    assert during > 20
