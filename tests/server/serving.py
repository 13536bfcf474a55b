"""An application over EchoEngine and a byte tokenizer, and a client for it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from slipstream.engine.echo import EchoEngine
from slipstream.engine.protocol import Engine
from slipstream.server.app import create_app
from slipstream.server.context import ServerContext
from slipstream.server.model import ServedModel
from slipstream.server.options import ServerOptions
from slipstream.text.pieces import PieceScheme, Spelling
from slipstream.text.tokenizer import Tokenizer
from tests.tiny_folder import CHAT_TEMPLATE, SPECIAL


@cache
def byte_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> Tokenizer:
    """One token per byte, and the control tokens of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    special = [backend.token_to_id(token) for token in SPECIAL]
    return Tokenizer(
        backend,
        scheme=PieceScheme(Spelling.BYTE_LEVEL),
        special_ids=special,
        eos_token_ids=[special[0]],
        chat_templates={} if chat_template is None else {"default": chat_template},
    )


def served(tokenizer: Tokenizer | None = None, **values: Any) -> ServedModel:
    tokenizer = tokenizer or byte_tokenizer()
    settings: dict[str, Any] = {"max_model_len": 256, "vocab_size": tokenizer.vocab_size, "created": 1_700_000_000}
    return ServedModel(names=("tiny", "also-tiny"), tokenizer=tokenizer, **{**settings, **values})


def echo_app(
    engine: Engine | None = None, *, model: ServedModel | None = None, clock: Any = None, **options: Any
) -> FastAPI:
    """With the default engine an answer is the prompt again."""
    model = model or served()
    extra = {} if clock is None else {"clock": clock}
    context = ServerContext(
        engine or EchoEngine(model.tokenizer.decode), model, ServerOptions(**options), wall=lambda: 1.8e9, **extra
    )
    return create_app(context)


def client_for(app: FastAPI, **values: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tiny", **values)


async def post(
    body: Any, path: str = "/v1/completions", *, app: FastAPI | None = None, headers: Any = None
) -> httpx.Response:
    async with client_for(app or echo_app()) as client:
        if isinstance(body, bytes):
            return await client.post(path, content=body, headers=headers)
        return await client.post(path, json=body, headers=headers)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Data of the server-sent events; the last must be [DONE]."""
    data = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


def error_of(response: httpx.Response) -> dict[str, Any]:
    [(name, error)] = response.json().items()
    assert name == "error"
    assert set(error) == {"message", "type", "param", "code"}
    return error
