"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from slipstream.errors import InvalidParamsError
from slipstream.server.context import Context
from slipstream.server.errors import BadRequestError
from slipstream.server.prompts import encode_text, render_chat
from slipstream.server.routes.bodies import body_of, documented
from slipstream.server.schema.base import Items, RequestModel
from slipstream.server.schema.chat import Message
from slipstream.server.schema.common import TokenId

router = APIRouter()


class TokenizeRequest(RequestModel):
    """One of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Items[Message] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Items[dict[str, Any]] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(RequestModel):
    model: str | None = None
    tokens: Items[TokenId]
    skip_special_tokens: bool = False


@router.post("/tokenize", openapi_extra=documented(TokenizeRequest))
async def tokenize(
    context: Context, body: Annotated[TokenizeRequest, Depends(body_of(TokenizeRequest))]
) -> dict[str, Any]:
    """Token ids of a text, or of a conversation as /v1/chat/completions would feed it."""
    model = context.model
    model.require(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise BadRequestError("exactly one of prompt and messages is needed.", param="prompt")
    if body.prompt is not None:
        ids = await encode_text(model, body.prompt, add_special_tokens=body.add_special_tokens)
    else:
        ids = await render_chat(
            model,
            [message.plain() for message in body.messages or ()],
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            extra=body.chat_template_kwargs,
        )
    if not body.return_token_strs:
        return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
    strings = await model.threads.run(len(ids), lambda: [model.tokenizer.id_to_token(each) for each in ids])
    return {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": strings}


@router.post("/detokenize", openapi_extra=documented(DetokenizeRequest))
async def detokenize(
    context: Context, body: Annotated[DetokenizeRequest, Depends(body_of(DetokenizeRequest))]
) -> dict[str, Any]:
    """Text of token ids."""
    model = context.model
    model.require(body.model)
    largest = max(body.tokens, default=0)
    if largest >= model.vocab_size:
        raise InvalidParamsError(
            f"must be below the vocabulary size {model.vocab_size}, got {largest}.", where="tokens"
        )
    text = await model.threads.run(
        len(body.tokens), lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
    )
    return {"prompt": text}
