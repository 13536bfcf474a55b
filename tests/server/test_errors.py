import pytest

from slipstream.engine.queue import QueueFullError
from slipstream.errors import (
    ChatTemplateError,
    ContextLengthError,
    DeadlineError,
    EngineError,
    EngineUnavailableError,
    GrammarError,
    InvalidParamsError,
    OverloadedError,
    SlipstreamError,
    TokenizerError,
)
from slipstream.server.errors import (
    AuthenticationError,
    BadRequestError,
    RateLimitError,
    error_body,
    error_headers,
    mapped,
)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidParamsError("x"), 400, None),
        (ContextLengthError(5, 4), 400, "context_length_exceeded"),
        (ChatTemplateError("x"), 400, "chat_template"),
        (AuthenticationError("x"), 401, "invalid_api_key"),
        (OverloadedError("x"), 429, "overloaded"),
        (QueueFullError("x"), 429, "overloaded"),
        (RateLimitError("x", retry_after=1), 429, "rate_limit_exceeded"),
        (DeadlineError("x"), 504, "deadline_exceeded"),
        (EngineUnavailableError("x"), 503, "engine_unavailable"),
        (GrammarError("x", where="guided_json"), 400, "grammar_failed"),
        (EngineError("x"), 500, "engine_error"),
        (TokenizerError("x"), 500, None),
        (SlipstreamError("x"), 500, None),
    ],
)
def test_status_and_code(error, status, code):
    found = mapped(error)
    assert (found.status, found.code) == (status, code)
    assert error_body(error)["error"]["code"] == code


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (OverloadedError("x", retry_after=2.01), "3"),
        (OverloadedError("x", retry_after=0.01), "1"),
        (OverloadedError("x"), "1"),
        (EngineUnavailableError("x", retry_after=7.0), "7"),
        (DeadlineError("x", retry_after=4.5), "5"),
        (DeadlineError("x"), None),
        (EngineError("x"), None),
        (InvalidParamsError("x"), None),
    ],
)
def test_when_to_come_again(error, seconds):
    assert error_headers(error).get("Retry-After") == seconds


def test_only_fields_are_params():
    assert error_body(BadRequestError("x", param="messages[0].role"))["error"]["param"] == "messages[0].role"
    assert error_body(InvalidParamsError("x", where="request abc"))["error"]["param"] is None
    assert error_body(EngineError("x", where="temperature"))["error"]["param"] is None
