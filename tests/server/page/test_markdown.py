"""What becomes of Markdown, piece by piece of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.server.page.conftest import serving
from tests.server.serving import echo_app

RENDER = """async (pieces) => {
  const { Answer } = await import("/page/answer.js");
  const root = document.createElement("div");
  const answer = new Answer(root);
  for (const [text, origin] of pieces) { answer.add(text, origin); answer.draw(); }
  const html = root.cloneNode(true);
  for (const caption of html.querySelectorAll("figcaption")) caption.remove();
  for (const span of html.querySelectorAll("span:not([data-origin='draft'])")) span.replaceWith(...span.childNodes);
  html.normalize();
  return { html: html.innerHTML, text: root.textContent };
}"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with serving(echo_app()) as url:
        opened = browser.new_page()
        opened.goto(url)
        yield opened
        opened.close()


def html(page: Page, *pieces: Any) -> str:
    given = [piece if isinstance(piece, tuple) else (piece, "target") for piece in pieces]
    rendered: dict[str, str] = page.evaluate(RENDER, given)
    return rendered["html"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("plain", "<p>plain</p>"),
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# Title\ntext", "<h3>Title</h3><p>text</p>"),
        ("###### deep", "<h6>deep</h6>"),
        (
            "a **b** *c* __d__ _e_ ~~f~~",
            "<p>a <strong>b</strong> <em>c</em> <strong>d</strong> <em>e</em> <s>f</s></p>",
        ),
        ("**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"),
        ("snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"),
        ("an **open mark", "<p>an **open mark</p>"),
        ("use `a*b*` and ``c`d``", "<p>use <code>a*b*</code> and <code>c`d</code></p>"),
        (r"\*not\* a mark", "<p>*not* a mark</p>"),
        ("- a\n- b\n  - c\n  - d\n- e", "<ul><li>a</li><li><p>b</p><ul><li>c</li><li>d</li></ul></li><li>e</li></ul>"),
        ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
        ("3. c\n4. d", '<ol start="3"><li>c</li><li>d</li></ol>'),
        ("- a\n\n- b\n\nafter", "<ul><li>a</li><li>b</li></ul><p>after</p>"),
        ("> quoted\n> **still**", "<blockquote>quoted\n<strong>still</strong></blockquote>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("```py\nx = 1\n\n# *no*\n```\nafter", "CODE(x = 1\n\n# *no*)<p>after</p>"),
        ("```\nnever closed", "CODE(never closed)"),
        (
            "|a|b|\n|-|:-:|\n| 1 | `2` |",
            "TABLE(<thead><tr><th>a</th><th>b</th></tr></thead>"
            "<tbody><tr><td>1</td><td><code>2</code></td></tr></tbody>)",
        ),
        ("[a](https://example.org/x)", "<p>LINK(https://example.org/x|a)</p>"),
        ("see https://example.org/y.", "<p>see LINK(https://example.org/y|https://example.org/y).</p>"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("[a](data:text/html,x) [b](//evil)", "<p>[a](data:text/html,x) [b](//evil)</p>"),
        ("![alt](https://example.org/i.png)", "<p>!LINK(https://example.org/i.png|alt)</p>"),
        ("<b onclick=x>&amp;", "<p>&lt;b onclick=x&gt;&amp;amp;</p>"),
        ("", ""),
    ],
)
def test_markdown(source: str, expected: str, page: Page) -> None:
    for name, start, end in (
        ("CODE", '<figure class="code"><pre tabindex="0"><code>', "</code></pre></figure>"),
        ("TABLE", '<div class="table" tabindex="0"><table>', "</table></div>"),
    ):
        if f"{name}(" in expected:
            before, rest = expected.split(f"{name}(", 1)
            inside, after = rest.rsplit(")", 1)
            expected = before + start + inside + end + after
    while "LINK(" in expected:
        before, rest = expected.split("LINK(", 1)
        inside, after = rest.split(")", 1)
        target, text = inside.split("|")
        tag = f'<a href="{target}" target="_blank" rel="noopener noreferrer nofollow">{text}</a>'
        expected = before + tag + after
    assert html(page, source) == expected


SAMPLE = """# Head

Some *text* with `code` and **bold _both_**.

- one
- two
  1. inner
  2. more

| a | b |
|---|---|
| 1 | 2 |

```python
print("x")  # *
```

> wise words
"""


def test_arriving_in_pieces_gives_what_the_whole_gives(page: Page) -> None:
    whole = html(page, SAMPLE)
    assert html(page, *SAMPLE) == whole
    for size in (3, 7):
        assert html(page, *(SAMPLE[at : at + size] for at in range(0, len(SAMPLE), size))) == whole


def test_drafted_pieces_are_marked_whatever_they_run_through(page: Page) -> None:
    assert html(page, "a ", ("b **c", "draft"), "d** e") == (
        '<p>a <span data-origin="draft">b </span><strong><span data-origin="draft">c</span>d</strong> e</p>'
    )
    assert html(page, ("x", "draft"), ("y", "draft")) == '<p><span data-origin="draft">xy</span></p>'


def test_every_character_of_plain_text_is_kept(page: Page) -> None:
    text = "Zeilen, Ümläute, 漢字, 👩‍🚀, <tag>, a & b, 3 < 4 > 2."
    assert page.evaluate(RENDER, [[text, "target"]])["text"] == text


@pytest.mark.parametrize("source", ["*" * 20000, "[" * 20000, "> " * 5000, "- " * 5000, "`" * 9999, "**a " * 5000])
def test_nesting_is_bounded(source: str, page: Page) -> None:
    depth = page.evaluate(
        """async (source) => {
          const { Answer } = await import("/page/answer.js");
          const root = document.createElement("div");
          const answer = new Answer(root);
          answer.add(source);
          answer.draw();
          let deepest = 0;
          for (const node of root.querySelectorAll("*")) {
            let depth = 0;
            for (let at = node; at !== root; at = at.parentElement) depth += 1;
            deepest = Math.max(deepest, depth);
          }
          return deepest;
        }""",
        source,
    )
    assert depth < 40
