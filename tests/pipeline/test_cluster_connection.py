"""The way to a server: every form of being let in, and one clear error for each way of being kept out."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import DefaultCredentialsError
from kfp.client import auth as kfp_auth

from components.errors import ConfigError
from pipeline.cli import main
from pipeline.connection import Auth, Connection, ServerError, connect, parse_auth, read_connection
from tests.pipeline.kfp_server import KfpServer


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer().serve() as running:
        yield running


def connection(server: KfpServer, **changes: Any) -> Connection:
    return Connection(host=server.url, **changes)


def test_a_port_forward_needs_nothing_and_nothing_is_shown(server: KfpServer) -> None:
    connect(connection(server))
    assert [call.path.rpartition("/")[2] for call in server.calls][-1] == "experiments"
    assert all(call.method == "GET" for call in server.calls)


def test_a_token_comes_from_a_file_that_is_read_for_every_request(server: KfpServer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    server.token = "first"
    client = connect(connection(server, auth=Auth(token_file=str(path))))
    path.write_text("second")
    server.token = "second"
    before = len(server.admitted)
    client.list_runs()
    assert {token for token, _ in server.admitted[:before]} == {"Bearer first"}
    assert {token for token, _ in server.admitted[before:]} == {"Bearer second"}


def test_a_token_comes_from_a_command_that_is_asked_once(server: KfpServer, tmp_path: Path) -> None:
    counter = tmp_path / "asked"
    program = f"open({str(counter)!r}, 'a').write('x'); print('hello'); print('tok')"
    (tmp_path / "program.py").write_text(program)
    server.token = "tok"
    client = connect(connection(server, auth=Auth(token_command=f"{sys.executable} {tmp_path / 'program.py'}")))
    client.list_runs()
    assert counter.read_text() == "x"


def test_cookies_are_sent_as_they_are(server: KfpServer, tmp_path: Path) -> None:
    (tmp_path / "cookies").write_text("session=abc; other=1\n")
    server.cookie = "session=abc; other=1"
    connect(connection(server, auth=Auth(cookies_file=str(tmp_path / "cookies"))))
    assert {cookie for _, cookie in server.admitted} == {"session=abc; other=1"}


def test_a_proxy_gets_the_token_that_google_gives_for_it(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfp_auth, "get_auth_token", lambda client, *rest: (f"for {client}", False))
    server.token = "for 42.apps"
    connect(connection(server, auth=Auth(iap_client_id="42.apps")))
    assert {token for token, _ in server.admitted} == {"Bearer for 42.apps"}


@pytest.mark.parametrize(
    ("given", "message"), [(None, "are a person's"), (DefaultCredentialsError("none found"), "Google gives no token")]
)
def test_a_proxy_without_a_service_account_is_told(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, given: Any, message: str
) -> None:
    def get(*arguments: object) -> tuple[None, bool]:
        if given:
            raise given
        return None, False

    monkeypatch.setattr(kfp_auth, "get_auth_token", get)
    with pytest.raises(ConfigError, match=message):
        connect(connection(server, auth=Auth(iap_client_id="42.apps")))
    assert server.calls == []


@pytest.mark.parametrize(
    ("auth", "message"),
    [
        ({"token_file": "nowhere"}, "auth.token_file: cannot be read: No such file"),
        ({"token_command": "no-such-program"}, "auth.token_command: cannot be run"),
        ({"token_command": f"{sys.executable} -c 'import sys; sys.exit(\"log in first\")'"}, "it said: log in first"),
        ({"cookies_file": "nowhere"}, "auth.cookies_file: cannot be read"),
    ],
)
def test_a_token_that_cannot_be_had_is_told_without_asking_the_server(
    server: KfpServer, auth: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        connect(connection(server, auth=Auth(**auth)))
    assert server.calls == []


def test_a_token_is_in_no_message(server: KfpServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    server.token = "another"
    with pytest.raises(ServerError) as caught:
        connect(connection(server, auth=Auth(token_file=str(tmp_path / "token"))))
    assert "does not let us in (401)" in str(caught.value)
    assert "auth token_file" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert len(server.calls) == 1, "asked once, not five times"


def test_a_namespace_that_is_not_ours_is_told(server: KfpServer) -> None:
    server.multi_user, server.denied = True, "/experiments"
    with pytest.raises(
        ServerError, match=r"knows us \(auth none\) but does not permit it in the namespace team-b \(403\)"
    ):
        connect(connection(server, namespace="team-b"))


def test_a_server_with_several_users_asks_for_a_namespace(server: KfpServer) -> None:
    server.multi_user = True
    with pytest.raises(ConfigError, match="this server has several users: name your namespace"):
        connect(connection(server))
    connect(connection(server, namespace="team-a"))
    assert server.calls[-1].query["namespace"] == "team-a"


def test_a_login_page_is_no_answer(server: KfpServer) -> None:
    server.login_page = True
    with pytest.raises(ServerError, match="answers with a page, not with the API"):
        connect(connection(server))


def test_a_wrong_path_has_no_api(server: KfpServer) -> None:
    with pytest.raises(ServerError, match=r"has no API of Kubeflow Pipelines 2 \(404\)"):
        connect(Connection(host=f"{server.url}/wrong"))


def test_a_broken_proxy_is_told_with_what_it_says(server: KfpServer) -> None:
    server.failures = [503]
    with pytest.raises(ServerError, match=r"refuses \(503\)"):
        connect(connection(server))


def test_a_server_that_is_not_there_is_told_with_the_port_forward(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(
        ServerError, match=r"cannot be reached: \[Errno 111\] Connection refused\. .*kubectl port-forward"
    ):
        connect(Connection(host=host))
    assert capsys.readouterr().out == ""


def test_a_file_holds_the_connection_and_flags_replace_keys_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text("host: http://a\nexperiment: mine\nauth: {token_file: t}\n")
    found = read_connection(None, {"host": "http://b", "namespace": None, "auth": {}})
    assert (found.host, found.experiment, found.auth.kind) == ("http://b", "mine", "none")
    assert read_connection(Path("cluster.yaml"), {}).auth.token_file == "t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots: http://a\nhost: http://b", "unknown key; did you mean host"),
        ("host: localhost:8080", "host"),
        ("host: http://a\npipeline_root: /tmp/x", "pipeline_root"),
        ("host: http://a\nauth: {token_file: a, cookies_file: b}", "only one way to be let in"),
        ("host: http://a\nserver_timezone: Mars", "is no time zone"),
        ("experiment: a", "which server"),
    ],
)
def test_a_connection_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_connection(tmp_path / "c.yaml", {})


def test_the_flag_for_being_let_in() -> None:
    assert parse_auth("token_command=gcloud auth print-identity-token") == {
        "token_command": "gcloud auth print-identity-token"
    }
    assert parse_auth("none") == {}
    with pytest.raises(ConfigError, match="write none, or token_command="):
        parse_auth("password=1")


def test_a_command_that_is_kept_out_ends_with_1_and_one_line(
    server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.token = "x"
    run = "00000000-0000-0000-0000-000000000000"
    assert main(["watch", run, "--host", server.url, "--auth", "none"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith(f"headrace: {server.url} does not let us in (401)")
