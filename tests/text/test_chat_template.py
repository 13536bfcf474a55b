"""Templates render as `transformers` renders them, and fail with their own words."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from slipstream.errors import ChatTemplateError, InvalidParamsError
from slipstream.text.chat_template import ChatTemplate
from slipstream.text.from_gguf import tokenizer_from_gguf

from .tiny_tokenizers import llama3, smollm

pytestmark = pytest.mark.fast

CHATML = """{% for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

HEADERS = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- if system or tools is not none %}
    {{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system }}
    {%- if tools is not none %}
        {{- 'Tools:' }}
        {%- for tool in tools %}
            {{- '\\n' + tool | tojson(indent=2) }}
        {%- endfor %}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('one tool call at a time, not ' ~ message.tool_calls | length) }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + {'name': call.name, 'parameters': call.arguments} | tojson }}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""  # noqa: E501

TURNS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{% for message in messages %}
  {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{ raise_exception('roles must alternate') }}
  {% endif %}
  {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + (message['content'] | trim) + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

FEATURES = """{% macro shout(text) %}{{ text | upper }}!{% endmacro %}
{% set state = namespace(count=0) %}
{% for message in messages %}
{% if message.role == 'skip' %}{% continue %}{% endif %}
{% if message.role == 'stop' %}{% break %}{% endif %}
{% set state.count = state.count + 1 %}
{% if message.role == 'assistant' %}{% generation %}{{ shout(message.content) }}{% endgeneration %}{% else %}
{{ message.content }}{% endif %}
{% endfor %}
{{ state.count }} {{ messages[::-1][0].role }} {{ bos_token }}{{ eos_token }} {{ missing is defined }} {{ thinking }}
{{ {'ä<b>': [1, 2.5, none, true], "it's": '&'} | tojson }} {{ messages | map(attribute='role') | join(',') }}
{{ tools | tojson if tools else 'no tools' }}"""

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter für <b>Orte</b> & 'more'",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Köln"}}}

PLAIN: list[dict[str, Any]] = [{"role": "user", "content": " Hello <b>& 'you' </b> 👍\n"}]
LONG = [*PLAIN, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Bye"}]
WITH_SYSTEM = [{"role": "system", "content": "Be brief. "}, *LONG]
WITH_MARKS = [{"role": "skip", "content": ""}, *PLAIN, {"role": "stop", "content": ""}, *LONG]
WITH_TOOLS = [
    *PLAIN,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "12 °C", "name": "weather"},
]


def theirs(template: str, tiny: Any) -> PreTrainedTokenizerFast:
    named = {name: tiny.config[name] for name in ("bos_token", "eos_token")}
    return PreTrainedTokenizerFast(tokenizer_object=tiny.backend, chat_template=template, **named)


@pytest.mark.parametrize(
    ("template", "conversations"),
    [
        (CHATML, [PLAIN, LONG, WITH_SYSTEM]),
        (HEADERS, [PLAIN, LONG, WITH_SYSTEM, WITH_TOOLS]),
        (TURNS, [PLAIN, LONG]),
        (FEATURES, [PLAIN, LONG, WITH_SYSTEM, WITH_MARKS]),
    ],
)
@pytest.mark.parametrize("tools", [None, [TOOL], [TOOL, TOOL]])
@pytest.mark.parametrize("open_turn", [True, False])
def test_text_equals_that_of_transformers(
    template: str, conversations: list[list[dict[str, Any]]], tools: Any, open_turn: bool
) -> None:
    tiny = llama3()
    other = theirs(template, tiny)
    ours = ChatTemplate(template, str(tiny.config["bos_token"]), str(tiny.config["eos_token"]))
    for messages in conversations:
        expected = other.apply_chat_template(
            messages, tools=tools, add_generation_prompt=open_turn, tokenize=False, thinking="on"
        )
        assert ours.render(messages, tools=tools, add_generation_prompt=open_turn, thinking="on") == expected


def test_ids_of_a_conversation_equal_those_of_transformers() -> None:
    tiny = llama3()
    ours = tokenizer_from_gguf(tiny.metadata() | {"tokenizer.chat_template": HEADERS})
    rendered = ChatTemplate.of(ours).render(WITH_SYSTEM)
    expected = theirs(HEADERS, tiny).apply_chat_template(WITH_SYSTEM, add_generation_prompt=True, return_dict=False)
    assert rendered.startswith(ours.bos_token)
    assert ours.encode_chat(rendered) == ours.encode(rendered) == expected
    assert expected.count(ours.bos_token_id) == 1


def test_the_template_for_tools() -> None:
    metadata = smollm().metadata() | {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    ours = ChatTemplate.of(tokenizer_from_gguf(metadata))
    assert ours.render(PLAIN) == "plain"
    assert ours.render(PLAIN, tools=[]) == "plain"
    assert ours.render(PLAIN, tools=[TOOL]) == "tools"


def test_a_model_without_a_template() -> None:
    plain = tokenizer_from_gguf(smollm().metadata())
    with pytest.raises(ChatTemplateError, match=r"the model has no chat template.*plain prompt"):
        ChatTemplate.of(plain)
    named = tokenizer_from_gguf(smollm().metadata() | {"tokenizer.chat_template.rag": "x"})
    with pytest.raises(ChatTemplateError, match="no default chat template, only: rag"):
        ChatTemplate.of(named)


def test_time_comes_from_the_clock() -> None:
    ours = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2024, 7, 26))
    assert ours.render(PLAIN) == "26 Jul 2024"


def test_the_templates_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="refuses these messages: no system role"):
        ChatTemplate(TURNS).render(WITH_SYSTEM)
    with pytest.raises(ChatTemplateError, match="refuses these messages: roles must alternate"):
        ChatTemplate(TURNS).render([*PLAIN, *PLAIN])
    with pytest.raises(ChatTemplateError, match="one tool call at a time, not 2"):
        ChatTemplate(HEADERS).render([*PLAIN, {"role": "assistant", "tool_calls": [CALL, CALL]}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "default template, line 1: the chat template is not valid Jinja: Expected an expression"),
        ("a\n{{ x", "line 2: the chat template is not valid Jinja: unexpected end of template"),
        ("{% for a in b %}", "the chat template is not valid Jinja"),
        ("{{ x | no_such_filter }}", "the chat template is not valid Jinja: No filter named 'no_such_filter'"),
        ("{% generation %}x", "the chat template is not valid Jinja"),
    ],
)
def test_invalid_templates(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source)
    with pytest.raises(ChatTemplateError, match=r"tool_use template, line|not valid Jinja"):
        ChatTemplate("ok", tool_use=source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    before = [dict(message) for message in LONG]
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(LONG)
    assert before == LONG


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
        "{{ messages.__class__ }}",
        "{{ self.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
    ],
)
def test_private_attributes_are_not_there(source: str) -> None:
    assert ChatTemplate(source).render(LONG) == ""


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ nothing.field }}", "'nothing' is undefined"),
        ("{{ messages[0].content + 1 }}", "failed on these messages: TypeError"),
        ("{{ 1 // 0 }}", "failed on these messages: ZeroDivisionError"),
        ("{{ messages[0].content.index('zzz') }}", "failed on these messages: ValueError"),
        ("{{ range(999999999) | list }}", "failed on these messages: OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "failed on these messages: RecursionError"),
    ],
)
def test_failures_while_rendering(source: str, message: str) -> None:
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(source).render(PLAIN)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in messages %}{% for b in messages %}{% endfor %}{% endfor %}",
        "{% for a in messages %}{% for b in messages if not b.role %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    ],
)
def test_templates_that_loop_without_end(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr("slipstream.text.chat_template._MAX_ROUNDS", 5000)
    with pytest.raises(ChatTemplateError, match="loops more than 5000 times over these messages"):
        ChatTemplate(source).render(PLAIN * 100)


def test_loops_within_the_bound_are_counted_per_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.text.chat_template._MAX_ROUNDS", 2 * len(PLAIN))
    template = ChatTemplate("{% for m in messages if m %}{% for x in [0] %}{{ loop.index }}{% endfor %}{% endfor %}")
    for _ in range(2):
        assert template.render(PLAIN) == "1" * len(PLAIN)


def test_templates_that_write_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.text.chat_template._MAX_CHARACTERS", 50)
    written = 0

    class Counted(datetime):
        def strftime(self, format: str) -> str:
            nonlocal written
            written += 1
            return "x"

    source = "{% for i in range(99999) %}{{ strftime_now('') }}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="writes more than 50 characters"):
        ChatTemplate(source, clock=lambda: Counted(2025, 1, 1)).render(PLAIN)
    assert written == 51
    assert ChatTemplate("{{ 'x' * 50 }}").render(PLAIN) == "x" * 50
    with pytest.raises(ChatTemplateError, match="failed on these messages: MemoryError"):
        ChatTemplate("{{ 'x' * 2 ** 62 }}").render(PLAIN)


@pytest.mark.parametrize("source", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{% if 1 %}" * 3000])
def test_templates_nested_too_deeply(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="tool_use template: the chat template is nested too deeply"):
        ChatTemplate("ok", tool_use=source)


def test_wrong_input_is_the_callers_error() -> None:
    ours = ChatTemplate(CHATML)
    with pytest.raises(InvalidParamsError, match="messages: is empty"):
        ours.render([])
    with pytest.raises(InvalidParamsError, match="documents: must be JSON-like data, not set"):
        ours.render(PLAIN, documents={1})
    with pytest.raises(InvalidParamsError, match=r"tools\[0\].function: must be JSON-like data"):
        ours.render(PLAIN, tools=[{"function": len}])
