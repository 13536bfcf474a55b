"""A browser, a server to look at, and a page that must not complain."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LEFT_OUT = "the tests of the web page (no Chromium on PATH, none of Playwright's)"


def find_browser() -> str | None:
    """Path of a Chromium: one on PATH, or the one that `playwright install chromium` brings."""
    on_path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if on_path is not None:
        return on_path
    cache = Path.home() / ".cache" / "ms-playwright"
    return next((str(path) for path in sorted(cache.glob("chromium-*/chrome-linux*/chrome"))), None)


BROWSER = find_browser()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if BROWSER is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="no browser"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if BROWSER is None:
        terminalreporter.write_line(f"LEFT OUT: {LEFT_OUT}", yellow=True, bold=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it is open, no other event loop can run in this thread."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The application under a real server in a thread; its URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """open_page(url, **context options). Whatever the page logs as an error, throws, or asks of another host fails the
    test, unless the error is one of `expected_errors`."""
    contexts, complaints = [], []

    def open_it(url: str, *, expected_errors: tuple[str, ...] = (), **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)

        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error" and not any(part in message.text for part in expected_errors):
                complaints.append(message.text)

        page.on("console", on_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(url) else complaints.append(asked.url))
        page.goto(url)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []
