"""The conversation in a real browser, against an engine that repeats the question."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from slipstream.engine.echo import EchoEngine
from slipstream.engine.outputs import OutputDelta
from slipstream.engine.protocol import GenerationRequest
from slipstream.errors import OverloadedError
from tests.server.page.conftest import OpenPage, serving
from tests.server.serving import byte_tokenizer, echo_app


class Moody(EchoEngine):
    """Refuses as many requests as it is told to, then echoes."""

    refusals = 0

    def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        if self.refusals:
            self.refusals -= 1
            return self._refuse()
        return super().generate(request)

    async def _refuse(self) -> AsyncIterator[OutputDelta]:
        raise OverloadedError("the queue is full.", retry_after=3.0)
        yield  # a generator


@pytest.fixture(scope="module")
def engine() -> Moody:
    return Moody(byte_tokenizer().decode, delay=0.002)


@pytest.fixture(scope="module")
def url(engine: Moody) -> Iterator[str]:
    with serving(echo_app(engine)) as address:
        yield address


def ask(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def finished(page: Page, answers: int = 1) -> None:
    expect(page.locator(".assistant:not([aria-busy])")).to_have_count(answers)


def test_an_answer_streams_with_its_numbers_and_its_autopsy(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    expect(page.locator("#model")).to_have_text("tiny")
    expect(page.locator("#welcome")).to_be_visible()
    ask(page, "What is rain?")
    expect(page.locator(".user")).to_contain_text("What is rain?")
    finished(page)
    expect(page.locator("#welcome")).to_be_hidden()
    expect(page.locator(".assistant .text")).to_contain_text("What is rain?")
    expect(page.locator(".assistant .meta")).to_contain_text("tokens/s · first after")
    page.get_by_text("Where did the time go?").click()
    expect(page.locator(".why p")).to_contain_text("%)")
    expect(page.locator("#requests li")).to_have_count(1)
    page.locator("#requests summary").click()
    expect(page.locator("#requests .cause")).to_contain_text("%)")
    expect(page.locator("#requests .parts [data-part=generation]")).to_have_count(1)


def test_the_conversation_and_the_settings_are_sent(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda asked: bodies.append(json.loads(asked.post_data)) if asked.method == "POST" else None)
    page.click("#open-settings")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Longest answer").fill("20")
    page.get_by_role("button", name="Done").click()
    ask(page, "One")
    finished(page)
    expect(page.locator(".assistant .meta")).to_contain_text("20 tokens")
    expect(page.locator(".assistant .meta")).to_contain_text("longest answer reached")
    ask(page, "Two")
    finished(page, 2)
    first, second = bodies
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One"}]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"].startswith("system\nBe brief.")
    assert (first["temperature"], first["seed"], first["max_tokens"], first["top_k"]) == (0, 7, 20, 40)
    page.reload()
    page.click("#open-settings")
    expect(page.get_by_label("Seed")).to_have_value("7")
    page.get_by_role("button", name="Back to the defaults").click()
    expect(page.get_by_label("Seed")).to_have_value("")
    expect(page.get_by_label("Temperature")).to_have_value("0.7")
    expect(page.get_by_label("System prompt")).to_have_value("")


class Drafting(EchoEngine):
    """Says three letters beyond ASCII in one step, the first two of them drafted, and then a fourth."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputDelta]:
        yield OutputDelta(request.request_id, 0, "𝔸β𝔠", (1, 2, 3), num_accepted=2, accepted_characters=2)
        yield OutputDelta(request.request_id, 0, "δ", (4,), finish_reason="stop")


def test_what_was_drafted_has_a_colour_of_its_own(open_page: OpenPage) -> None:
    with serving(echo_app(Drafting())) as address:
        page = open_page(address)
        ask(page, "Go on.")
        finished(page)
        expect(page.locator(".assistant .text")).to_have_text("𝔸β𝔠δ")
        expect(page.locator(".assistant [data-origin=draft]")).to_have_text("𝔸β")
        colours = page.locator(".assistant [data-origin]").evaluate_all(
            "all => all.map(e => getComputedStyle(e).color)"
        )
        assert len(colours) == len(set(colours)) == 2


def test_a_setting_out_of_range_is_marked_and_not_sent(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    page.click("#open-settings")
    page.get_by_label("Top p").fill("7")
    expect(page.get_by_label("Top p")).to_have_attribute("aria-invalid", "")
    page.get_by_label("Top p").fill("0.5")
    expect(page.get_by_label("Top p")).not_to_have_attribute("aria-invalid", "")


@pytest.mark.parametrize("how", ["button", "key"])
def test_stopping_keeps_what_has_come_and_frees_the_engine(
    how: str, url: str, engine: Moody, open_page: OpenPage
) -> None:
    engine._delay = 0.05
    try:
        page = open_page(url)
        ask(page, "a b c d e f g h i j k l m n o p q r s t u v w x y z")
        expect(page.locator(".assistant .text")).to_contain_text("a b")
        page.click("#stop") if how == "button" else page.press("#prompt", "Escape")
        finished(page)
        expect(page.locator(".assistant .meta")).to_contain_text("stopped")
        expect(page.locator("#send")).to_be_visible()
        expect(page.locator("#g-running")).to_have_text("0")
        assert engine.stats().num_running == 0
        expect(page.locator("#requests .outcome").first).to_have_text("left")
        assert "z" not in (page.locator(".assistant .text").text_content() or "")
    finally:
        engine._delay = 0.002


def test_a_refusal_is_shown_and_can_be_tried_again(url: str, engine: Moody, open_page: OpenPage) -> None:
    page = open_page(url, expected_errors=("429",))
    engine.refusals = 1
    ask(page, "Are you there?")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The queue is full.")
    expect(alert).to_contain_text("Try again in 3 seconds.")
    expect(page.locator("#requests .outcome").first).to_have_text("refused")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".assistant .text")).to_contain_text("Are you there?")
    expect(page.locator(".messages > li")).to_have_count(2)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_server_that_is_away_is_said_to_be(open_page: OpenPage) -> None:
    with serving(echo_app()) as address:
        page = open_page(address, expected_errors=("ERR_CONNECTION_REFUSED",))
        expect(page.locator("#dot")).to_have_attribute("data-state", "ready")
    ask(page, "Hello?")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached.")
    expect(page.locator("#dot")).to_have_attribute("data-state", "away")
    expect(page.locator("#panel-notice")).to_be_visible()


def test_a_crash_in_the_middle_keeps_what_has_come(open_page: OpenPage) -> None:
    with serving(echo_app(EchoEngine(byte_tokenizer().decode, delay=0.002, fail_after=12))) as address:
        page = open_page(address)
        ask(page, "A longer question.")
        expect(page.get_by_role("alert")).to_contain_text("crashed on purpose")
        expect(page.locator(".assistant .text")).to_contain_text("A long")
        page.close()


def test_an_api_key_is_asked_for_and_used(open_page: OpenPage) -> None:
    from slipstream.server.keys import ApiKey

    app = echo_app(api_keys=(ApiKey.of("one", "first-secret"), ApiKey.of("two", "second-secret")))
    with serving(app) as address:
        page = open_page(address, expected_errors=("401",))
        expect(page.locator("#model")).to_have_text("API key needed")
        ask(page, "Hello")
        page.get_by_role("button", name="Enter an API key").click()
        expect(page.locator("#api-key")).to_be_focused()
        page.fill("#api-key", "first-secret")
        page.get_by_role("button", name="Done").click()
        expect(page.locator("#model")).to_have_text("tiny")
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".assistant .text")).to_contain_text("Hello")
        expect(page.locator("#requests li")).to_have_count(1)
        assert page.evaluate("() => Object.values(localStorage).join().includes('secret')") is False
        page.click("#open-settings")
        page.fill("#api-key", "second-secret")
        page.keyboard.press("Escape")
        expect(page.locator("#requests li")).to_have_count(0)  # another key's requests are not shown
        page.close()


def test_hostile_text_stays_text(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    hostile = (
        "<img src=x onerror=\"document.title='x'\"><script>document.title='x'</script> "
        "[click](javascript:document.title='x') ![i](https://example.org/i.png) <b>bold</b> &lt;"
    )
    ask(page, hostile)
    finished(page)
    answer = page.locator(".assistant .text")
    expect(answer).to_contain_text("<script>document.title='x'</script>")
    expect(answer).to_contain_text("[click](javascript:document.title='x')")
    expect(answer).to_contain_text("<b>bold</b> &lt;")
    assert answer.locator("img, script, b, iframe, style").count() == 0
    links = answer.locator("a")
    assert [links.nth(at).get_attribute("href") for at in range(links.count())] == ["https://example.org/i.png"]
    assert page.title() == "Slipstream"


def test_what_screen_readers_are_told(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    ask(page, "Say it")
    expect(page.locator("#announce")).to_contain_text("Say it")
    expect(page.locator("#announce")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#state")).to_have_text("ready")


def test_a_new_chat_forgets(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    ask(page, "Remember me")
    finished(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#messages li")).to_have_count(0)
    expect(page.locator("#welcome")).to_be_visible()
    expect(page.locator("#prompt")).to_be_focused()
    page.get_by_role("button", name="Why is the sky blue?").click()
    finished(page)
    assert "Remember me" not in (page.locator("#messages").text_content() or "")
