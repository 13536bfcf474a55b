"""What a chat request asks of the engine, and how the model's text becomes parts of a message.

This is the seam for tools and structured output: they change the sampling parameters, the messages' rendering and the
parser, and the routes do not know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.sampling.grammar.spec import GrammarSpec
from slipstream.sampling.params import SamplingParams
from slipstream.server.chat_parts import OutputParser, PlainText
from slipstream.server.generate import Prompt
from slipstream.server.model import ServedModel
from slipstream.server.options import ServerOptions
from slipstream.server.prompts import chat_prompt, require_few_values, size_of
from slipstream.server.schema.chat import ChatRequest, chat_params
from slipstream.server.tools.definitions import ToolChoice, read_choice, read_tools
from slipstream.server.tools.plan import plan_tools


@dataclass(frozen=True, slots=True)
class ChatPlan:
    prompt: Prompt
    params: SamplingParams
    parser: Callable[[], OutputParser] = field(default=PlainText)


async def plan_chat(body: ChatRequest, model: ServedModel, options: ServerOptions) -> ChatPlan:
    """Raises a RequestError, or ChatTemplateError where the template refuses the messages."""
    choice = read_choice(body.tool_choice, read_tools(body.tools), parallel=body.parallel_tool_calls is not False)
    params = chat_params(body, options)
    messages = [message.plain() for message in body.messages]
    return await plan_messages(
        messages,
        params,
        choice,
        params.grammar,
        model=model,
        options=options,
        add_generation_prompt=body.add_generation_prompt,
        extra=body.chat_template_kwargs,
    )


async def plan_messages(
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    choice: ToolChoice,
    grammar: GrammarSpec | None,
    *,
    model: ServedModel,
    options: ServerOptions,
    add_generation_prompt: bool = True,
    extra: Mapping[str, Any] | None = None,
) -> ChatPlan:
    """The plan for messages in the form of chat completions, for whatever API they came in by."""
    tools = [tool.as_json() for tool in choice.tools]
    require_few_values(model, messages=list(messages), tools=tools, chat_template_kwargs=extra)
    plan = await model.threads.run(
        size_of(messages),
        lambda: plan_tools(messages, params, choice, grammar, model=model, tool_parser=options.tool_parser),
    )
    prompt = await chat_prompt(
        model, plan.messages, tools=plan.tools, add_generation_prompt=add_generation_prompt, extra=extra
    )
    return ChatPlan(prompt, plan.params, plan.parser)
