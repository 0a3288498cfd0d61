"""A user from a script, and one behind a real HTTP endpoint: what is said, when it ends, and what is trained on."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from components.config import load
from components.environments.chat_endpoint import ChatEndpoint, EndpointConfig
from components.environments.user_simulator import ModelUser, ScriptedUser, UserEnvironment
from components.errors import ConfigError, ToolFailedError
from components.rollout.episode import EpisodeLimits, run_episode
from components.training.packing import to_sample
from components.types import Message, Outcome, Role, SequenceId, Task
from tests.fakes import ByteRenderer, ScriptedPolicy


class Shop(UserEnvironment):
    """The user wants tea."""

    system_prompt = "S"

    def __init__(self, made=lambda: ScriptedUser("green", "thanks")) -> None:
        self.made = made

    def tasks(self, split):
        return [Task("0", "tea?")]

    def user(self, task):
        return self.made()

    def grade(self, task, answer):
        return {"sold": float(answer == "3 coins"), "turns": float(len(self.conversation))}


def play(environment, *lines, turns=8):
    episode = run_episode(
        ScriptedPolicy(*lines),
        environment,
        ByteRenderer(),
        Task("0", "tea?"),
        limits=EpisodeLimits(max_turns=turns),
        sequence=SequenceId("0"),
    )
    return asyncio.run(episode)


def test_a_scripted_user_answers_until_the_script_ends_and_the_last_text_is_graded():
    trajectory = play(Shop(), "which?", "now?", "3 coins")
    assert [(message.role, message.content) for message in trajectory.messages[1:]] == [
        (Role.USER, "tea?"),
        (Role.ASSISTANT, "which?"),
        (Role.USER, "green"),
        (Role.ASSISTANT, "now?"),
        (Role.USER, "thanks"),
        (Role.ASSISTANT, "3 coins"),
    ]
    assert (trajectory.outcome, trajectory.reward_parts) == (Outcome.FINISHED, {"sold": 1.0, "turns": 6.0})


def test_what_the_user_says_is_never_trained_on():
    sample = to_sample(play(Shop(lambda: ScriptedUser("green")), "a?", "3 coins"), advantage=1.0)
    trained = bytes(token for token, mine in zip(sample.token_ids, sample.completion_mask, strict=True) if mine)
    assert trained == b"a?3 coins"
    assert bytes(sample.token_ids) == b"Stea?a?green3 coins"


def test_a_conversation_without_end_is_cut_after_so_many_turns_of_the_user():
    class Talkative(Shop):
        max_user_turns = 3

    trajectory = play(Talkative(lambda: ScriptedUser(*"abcdefgh")), "x")
    assert [message.content for message in trajectory.messages if message.role is Role.USER] == ["tea?", "a", "b"]
    assert trajectory.outcome is Outcome.FINISHED


@pytest.fixture
def endpoint():
    """A server that answers what `replies` say: texts, or statuses; and what it was asked."""
    replies, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body))
            reply = replies.pop(0)
            status = reply if isinstance(reply, int) else 200
            content = {"choices": [{"message": {"content": reply}}]} if isinstance(reply, str) else {"odd": reply}
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", replies, asked
    server.shutdown()
    server.server_close()
    thread.join()


def configured(url, **settings):
    limits = {"retries": 2, "backoff_seconds": 0.001}
    return ChatEndpoint(load(EndpointConfig, {"url": url, "model": "m", "limits": limits, **settings}), name="user")


def test_a_model_plays_the_user_from_its_own_side_of_the_conversation(endpoint, tmp_path):
    url, replies, asked = endpoint
    (tmp_path / "token").write_text("secret\n")
    made = configured(url, token_file=str(tmp_path / "token"))
    replies += ["green, please", "Fine. [done]"]
    trajectory = play(Shop(lambda: ModelUser(made, "You want tea.", key="0")), "which?", "3 coins")
    assert (trajectory.outcome, trajectory.reward_parts["sold"]) == (Outcome.FINISHED, 1.0)
    path, token, body = asked[1]
    assert (path, token, body["model"]) == ("/v1/chat/completions", "Bearer secret", "m")
    assert body["messages"][0]["content"].startswith("You want tea.")
    assert [(each["role"], each["content"]) for each in body["messages"][1:]] == [
        ("assistant", "tea?"),
        ("user", "which?"),
        ("assistant", "green, please"),
        ("user", "3 coins"),
    ]
    assert asked[0][2]["seed"] != asked[1][2]["seed"]


def test_a_busy_endpoint_is_asked_again_and_one_that_is_down_fails_the_episode(endpoint):
    url, replies, asked = endpoint
    made = configured(url)
    replies += [503, 429, "green"]
    assert asyncio.run(made.answer([Message(Role.USER, "hi")])) == "green"
    replies += [503] * 3
    trajectory = play(Shop(lambda: ModelUser(made, "")), "which?")
    assert (trajectory.outcome, trajectory.reward) == (Outcome.FAILED, None)
    assert "tool user failed 3 times in a row" in trajectory.failure.message
    replies += [401]
    with pytest.raises(ToolFailedError, match="answered 401"):
        asyncio.run(made.answer([]))
    replies += [[]]
    with pytest.raises(ToolFailedError, match="answered what is no completion"):
        asyncio.run(made.answer([]))
    assert len(asked) == 8
    with pytest.raises(ConfigError, match="must begin with http"):
        configured("localhost:8000/v1")
