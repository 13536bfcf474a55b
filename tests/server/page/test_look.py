"""Colours, sizes, keyboard, names of controls, and the headers that keep the page to itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from slipstream.engine.echo import EchoEngine
from tests.server.page.conftest import OpenPage, serving
from tests.server.serving import byte_tokenizer, echo_app, served

UNNAMED = """() => [...document.querySelectorAll("button, input, textarea, meter, dialog")].filter((node) => {
  const label = node.labels?.length || node.getAttribute("aria-label") || node.getAttribute("aria-labelledby");
  return !label && !node.textContent.trim();
}).map((node) => node.outerHTML)"""

# WCAG 2.2, 1.4.3: relative luminance, and the contrast of a text with what lies behind it.
LOW_CONTRAST = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const paint = (...colours) => {
    pen.clearRect(0, 0, 1, 1);
    for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
  };
  const light = (rgb) => rgb.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest(".hidden, .skip, noscript")) continue;
    const behind = [];
    for (let at = node; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const [a, b] = [light(paint(...behind, getComputedStyle(node).color)), light(paint(...behind))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([node.textContent.trim().slice(0, 30), ratio.toFixed(2)]);
  }
  return low;
}"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(echo_app(EchoEngine(byte_tokenizer().decode), model=served(max_model_len=4096))) as address:
        yield address


def background(page: Page) -> str:
    found: str = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return found


def answered(page: Page, text: str = "A question with `code` and a [link](https://example.org)") -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    expect(page.locator(".why summary")).to_be_visible()


LIGHT, DARK = "rgb(246, 246, 243)", "rgb(18, 23, 26)"


def test_colours_follow_the_system_until_chosen(url: str, open_page: OpenPage) -> None:
    page = open_page(url, color_scheme="dark")
    button = page.locator("#theme")
    assert background(page) == DARK
    expect(button).to_have_attribute("aria-label", "Colours: as the system")
    button.click()
    expect(button).to_have_attribute("aria-label", "Colours: light")
    assert background(page) == LIGHT
    page.reload()
    assert background(page) == LIGHT
    button.click()
    assert background(page) == DARK
    button.click()
    page.emulate_media(color_scheme="light")
    assert background(page) == LIGHT


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme: str, url: str, open_page: OpenPage) -> None:
    page = open_page(url, color_scheme=scheme)
    expect(page.locator("#model")).to_have_text("tiny")
    assert page.evaluate(LOW_CONTRAST) == []
    answered(page)
    page.locator("#requests summary").first.click()
    page.locator(".why summary").click()
    assert page.evaluate(LOW_CONTRAST) == []
    page.click("#open-settings")
    assert page.evaluate(LOW_CONTRAST) == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_runs_out_of_a_small_screen(width: int, url: str, open_page: OpenPage) -> None:
    page = open_page(url, viewport={"width": width, "height": 700}, has_touch=True)
    answered(page, "W" * 300 + "\n```\n" + "long line " * 40 + "\n```")
    overflow = "() => document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(overflow) <= 0
    panel, button = page.locator("#panel"), page.locator("#toggle-panel")
    expect(panel).to_be_hidden()
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    expect(panel).to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "true")
    assert page.evaluate(overflow) <= 0
    button.click()
    page.click("#open-settings")
    box = page.locator("#settings").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_everything_works_from_the_keyboard(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("first")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second")
    expect(page.locator("#prompt")).to_have_value("first\nsecond")
    page.keyboard.press("Enter")
    expect(page.locator(".user > div")).to_have_text("first\nsecond")
    expect(page.locator("#prompt")).to_have_value("")
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.press("Enter")  # nothing to send
    expect(page.locator(".user")).to_have_count(1)
    expect(page.locator(".why summary")).to_be_visible()
    page.reload()
    page.locator("a.skip").focus()
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.evaluate("() => document.activeElement.id || document.activeElement.textContent"))
    examples = ["Why is the sky blue?", "Write a haiku about rain.", "Explain a hash table to a ten-year-old."]
    assert order == ["new-chat", "open-settings", "theme", *examples, "prompt", "send"]
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#open-settings")).to_be_focused()


def test_every_control_has_a_name(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    answered(page)
    assert page.evaluate(UNNAMED) == []
    page.click("#open-settings")
    assert page.evaluate(UNNAMED) == []
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.locator("h1").count() == 1


def test_no_inline_script_or_style_would_run(url: str, open_page: OpenPage) -> None:
    page = open_page(url, expected_errors=("Content Security Policy", "violates", "Trusted"))
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          try { script.textContent = "document.title = 'ran'"; document.body.append(script); } catch {}
        }"""
    )
    refused = page.evaluate(
        "() => { try { document.body.innerHTML = '<p>x</p>'; return false; } catch { return true; } }"
    )
    assert refused
    assert page.title() == "Slipstream"


def test_an_opened_request_stays_open_while_the_list_is_refreshed(url: str, open_page: OpenPage) -> None:
    page = open_page(url)
    answered(page)
    row = page.locator("#requests li").first
    name = row.get_attribute("data-id")
    row.locator("summary").click()
    answered_before = page.locator("#requests li").count()
    page.fill("#prompt", "again")
    page.press("#prompt", "Enter")
    expect(page.locator("#requests li")).to_have_count(min(answered_before + 1, 12))
    expect(page.locator(f"#requests li[data-id='{name}'] .cause")).to_be_visible()
