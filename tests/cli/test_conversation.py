import json

import pytest

from slipstream.cli.conversation import Conversation, Reply, run_command
from slipstream.errors import InvalidParamsError
from slipstream.sampling.params import SamplingParams

pytestmark = pytest.mark.fast


@pytest.fixture
def conversation() -> Conversation:
    state = Conversation(SamplingParams(temperature=0.7))
    state.set_system("Be brief.")
    state.add_user("Hello")
    state.add_assistant("Hi")
    return state


def roles(conversation: Conversation) -> list[str]:
    return [message["role"] for message in conversation.messages]


def test_clear_keeps_the_system_message(conversation: Conversation):
    run_command(conversation, "/clear")
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]


def test_system_replaces_and_removes(conversation: Conversation):
    run_command(conversation, "/system Rhyme.")
    assert conversation.messages[0] == {"role": "system", "content": "Rhyme."}
    assert roles(conversation) == ["system", "user", "assistant"]
    run_command(conversation, "/system")
    assert roles(conversation) == ["user", "assistant"]


def test_retry_asks_the_last_question_again(conversation: Conversation):
    assert run_command(conversation, "/retry") == Reply(ask="Hello")
    assert roles(conversation) == ["system"]
    assert run_command(conversation, "/retry").ask is None


def test_undo_after_an_unanswered_question(conversation: Conversation):
    conversation.add_user("More?")
    run_command(conversation, "/undo")
    assert roles(conversation) == ["system", "user", "assistant"]


def test_set_changes_and_checks_the_parameters(conversation: Conversation):
    run_command(conversation, "/set temperature 0")
    assert conversation.params.temperature == 0
    run_command(conversation, "/set seed 7")
    assert conversation.params.seed == 7
    with pytest.raises(InvalidParamsError, match="temperature"):
        run_command(conversation, "/set temperature -1")
    with pytest.raises(InvalidParamsError, match="Did you mean 'temperature'"):
        run_command(conversation, "/set temprature 1")
    with pytest.raises(InvalidParamsError, match="not a number"):
        run_command(conversation, "/set top_p high")
    with pytest.raises(InvalidParamsError, match="not a number"):
        run_command(conversation, "/set top_p " + "[" * 100_000)
    assert conversation.params.temperature == 0


def test_save_writes_the_messages(conversation: Conversation, tmp_path):
    file = tmp_path / "chat.json"
    assert "3 messages" in run_command(conversation, f"/save {file}").text
    assert json.loads(file.read_text()) == conversation.messages
    assert "Cannot write" in run_command(conversation, f"/save {tmp_path}/no/file").text


def test_unknown_command_suggests_the_nearest(conversation: Conversation):
    assert "'clear'" in run_command(conversation, "/clera").text
    assert not conversation.ended
    run_command(conversation, "/quit")
    assert conversation.ended
    assert "/system TEXT" in run_command(conversation, "/help").text
