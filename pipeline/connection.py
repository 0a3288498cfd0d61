"""Where a Kubeflow Pipelines server is and how to be let in -> a `kfp.Client` that was heard, or one clear error.

    host: http://localhost:8080      # kubectl port-forward --namespace kubeflow service/ml-pipeline-ui 8080:80
    auth: {token_command: gcloud auth print-identity-token}
    pipeline_root: gs://my-bucket/headrace

A connection is a YAML file of the keys of `Connection`; flags of the command line replace single keys. Passwords and
tokens never stand in it: it says where they are read.
"""

import contextlib
import dataclasses
import io
import json
import logging
import shlex
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import kfp.client
import kfp_server_api
import urllib3
from google.auth.exceptions import GoogleAuthError
from kfp.client import auth as kfp_auth
from kfp.client.token_credentials_base import TokenCredentialsBase
from pydantic import Field

from components.config import config, load
from components.errors import ConfigError, HeadraceError, Problem
from pipeline.document import read_document

CONNECTION_FILES = (Path("cluster.yaml"), Path("~/.config/headrace/cluster.yaml"))
"""Where a connection is looked for when none is named: here first, then at home."""

_TIMEOUTS = (10, 30)  # seconds to connect, and to answer the first request
_COMMAND_SECONDS = 60.0
_GOOD_SECONDS = 600.0  # a token that a command or Google gave is asked for anew after so long; they last an hour


class ServerError(HeadraceError):
    """The server cannot be reached, does not let us in, or refuses what was asked. `status` is HTTP's, 0 for none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@config
class Auth:
    """What is shown at the door; at most one of them. None at all is right behind a port-forward."""

    token_command: Annotated[str, Field(min_length=1)] | None = None
    """Prints a bearer token, e.g. `gcloud auth print-identity-token`."""
    token_file: Annotated[str, Field(min_length=1)] | None = None
    """Holds a bearer token; a projected service-account token in a pod is such a file."""
    iap_client_id: Annotated[str, Field(min_length=1)] | None = None
    """OAuth client of an Identity-Aware Proxy; Google's credentials of this machine must be a service account's."""
    cookies_file: Annotated[str, Field(min_length=1)] | None = None
    """Holds the text of a Cookie header, e.g. `authservice_session=...`."""

    @property
    def kind(self) -> str:
        """The name of what is set, for messages."""
        return next((key for key, value in dataclasses.asdict(self).items() if value), "none")


@config
class Connection:
    """A server, and what runs on it are given when they do not say it themselves."""

    host: Annotated[str, Field(pattern=r"^https?://[^/]+")]
    namespace: str = ""
    """Yours, where the server has several users; empty where it has one."""
    auth: Auth = Auth()
    ca_certificate: str = ""
    pipeline_root: Annotated[str, Field(pattern=r"^(gs://.+)?$")] = ""
    """Where runs put their outputs; empty is the server's own default, which only the server knows."""
    experiment: Annotated[str, Field(min_length=1)] = "headrace"
    image: str = ""
    """What the steps run in, best by digest (`registry/headrace@sha256:...`); empty is the name that is compiled in."""
    service_account: str = ""
    """Kubernetes service account of the steps; empty is the server's default."""
    server_timezone: str = "UTC"
    """`cronScheduleTimezone` of the installation: one for all schedules, UTC where nobody changed it."""


def read_connection(path: Path | None, flags: Mapping[str, Any]) -> Connection:
    """A file, or the first of CONNECTION_FILES that exists, with the flags that were given put over it.

    Flags are keys of Connection; None is a flag that was not given. Raises ConfigError.
    """
    if path is not None and not path.is_file():
        raise ConfigError(Problem("--connection", str(path), "there is no such file"))
    found = path or next((each for known in CONNECTION_FILES if (each := known.expanduser()).is_file()), None)
    values = dict(read_document(found.read_text(encoding="utf-8"), str(found)).values) if found else {}
    values |= {key: value for key, value in flags.items() if value is not None}
    if "host" not in values:
        raise ConfigError("which server? Name it with --host, or write `host: http://...` into a file cluster.yaml")
    connection = load(Connection, values, where=str(found or ""))
    several = [key for key, value in dataclasses.asdict(connection.auth).items() if value]
    if len(several) > 1:
        raise ConfigError(Problem("auth", ", ".join(several), "only one way to be let in can be used at a time"))
    zone_of(connection.server_timezone, "server_timezone")
    return connection


def parse_auth(text: str) -> dict[str, str]:
    """`token_file=PATH`, as the flag --auth has it, as a mapping; `none` is an empty one. Raises ConfigError."""
    if text == "none":
        return {}
    kind, equals, value = text.partition("=")
    kinds = [field.name for field in dataclasses.fields(Auth)]
    if not equals or kind not in kinds:
        raise ConfigError(Problem("--auth", text, f"write none, or {', '.join(f'{each}=...' for each in kinds)}"))
    return {kind: value}


def zone_of(name: str, where: str) -> ZoneInfo:
    """A time zone by its name. Raises ConfigError for one that this machine does not know."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, IsADirectoryError):
        message = (
            "is no time zone of this machine; names are such as Europe/Berlin or UTC (the data: pip install tzdata)"
        )
        raise ConfigError(Problem(where, name, message)) from None


def connect(connection: Connection) -> "Client":
    """Open the connection and ask whether the server is there and lets us in, before anything is sent.

    Raises ServerError saying what to do, ConfigError for a token that cannot be read.
    """
    # urllib3 would tell of every try before the error that says it all.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    token, cookies = _token(connection.auth), _cookies(connection.auth)
    with server_errors(connection), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about servers older than version 2
        client = Client(
            host=connection.host,
            namespace=connection.namespace or "kubeflow",  # kfp's word for "none of mine"
            credentials=token,
            cookies=cookies,
            ssl_ca_cert=connection.ca_certificate or None,
        )
        answer = client.get_kfp_healthz()
        if answer.multi_user and not (connection.namespace or client.get_user_namespace()):
            raise ConfigError(Problem("namespace", "", "this server has several users: name your namespace"))
        client.list_experiments(page_size=1, namespace=connection.namespace or None)
    return client


class Client(kfp.client.Client):
    """kfp's client with a first question that fails at once, and sees a login page where an answer should be."""

    def get_kfp_healthz(self, sleep_duration: int = 0) -> kfp_server_api.V2beta1GetHealthzResponse:
        """Ask once. kfp's own asks five times, and takes any page for an answer."""
        answer, _, headers = self._healthz_api.healthz_service_get_healthz_with_http_info(_request_timeout=_TIMEOUTS)
        if "json" not in headers.get("content-type", "").lower():
            raise _PageError
        return answer


class _PageError(Exception):
    """The server answered with a page for people."""


@contextlib.contextmanager
def server_errors(connection: Connection, what: str = "") -> Iterator[None]:
    """Every way in which a request fails, as a ServerError. What kfp prints is dropped: links, to standard output.

    `what` is the thing that was asked for, for messages: "the run 1234".
    """
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except kfp_server_api.ApiException as error:
        raise ServerError(_explained(connection, error.status, error_text(error), what), error.status) from None
    except _PageError:
        raise ServerError(_explained(connection, 401, "it answers with a page, not with the API", what), 401) from None
    except urllib3.exceptions.HTTPError as error:
        cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
        # urllib3 puts the address of its own object before what happened.
        said = str(cause or error).rpartition("Failed to establish a new connection: ")[2]
        raise ServerError(
            f"{connection.host} cannot be reached: {said}. Is the address right, and does the port-forward "
            "run? (kubectl port-forward --namespace kubeflow service/ml-pipeline-ui 8080:80)"
        ) from None


def error_text(error: kfp_server_api.ApiException) -> str:
    """What the server said, in one line."""
    try:
        body = json.loads(error.body or "{}")
    except ValueError:
        body = {}
    said = (body.get("message") or body.get("error_message") or body.get("error")) if isinstance(body, dict) else None
    return " ".join(str(said or error.reason or error.body or "nothing").split())[:500].rstrip(".")


def _explained(connection: Connection, status: int, said: str, what: str) -> str:
    host, kind = connection.host, connection.auth.kind
    subject = f"{what}: " if what else ""
    if status == 401:
        return (
            f"{subject}{host} does not let us in (401): {said}. What was shown is auth {kind}; see `auth` of the "
            "connection: token_command, token_file, iap_client_id or cookies_file"
        )
    if status == 403:
        space = f" in the namespace {connection.namespace}" if connection.namespace else ""
        return f"{subject}{host} knows us (auth {kind}) but does not permit it{space} (403): {said}"
    if status == 404 and not what:
        return f"{host} has no API of Kubeflow Pipelines 2 (404): {said}. Is the path of the address right?"
    if status == 404:
        return f"{subject}{host} does not have it (404): {said}"
    if status == 409:
        return f"{subject}{host} has one already (409): {said}"
    return f"{subject}{host} refuses ({status}): {said}"


class _Token(TokenCredentialsBase):
    """A bearer token that is asked for again when it grows old, so that a long watch is not shut out."""

    def __init__(self, read: Callable[[], str], good_seconds: float) -> None:
        self._read = read
        self._good_seconds = good_seconds
        self._until = 0.0
        self._token = ""
        self.refresh()

    def refresh(self) -> None:
        """Read it anew where it is old. Raises ConfigError where there is none."""
        if time.monotonic() >= self._until:
            self._token = self._read()
            self._until = time.monotonic() + self._good_seconds

    def refresh_api_key_hook(self, configuration: Any) -> None:
        """kfp calls it before every request."""
        self.refresh()
        configuration.api_key["authorization"] = self._token


def _token(auth: Auth) -> _Token | None:
    if auth.token_file is not None:
        path = Path(auth.token_file)
        return _Token(lambda: _secret_in(path, "auth.token_file"), 0.0)
    if auth.token_command is not None:
        command = auth.token_command
        return _Token(lambda: _printed_by(command), _GOOD_SECONDS)
    if auth.iap_client_id is not None:
        client_id = auth.iap_client_id
        return _Token(lambda: _iap_token(client_id), _GOOD_SECONDS)
    return None


def _cookies(auth: Auth) -> str | None:
    return None if auth.cookies_file is None else _secret_in(Path(auth.cookies_file), "auth.cookies_file")


def _secret_in(path: Path, where: str) -> str:
    """The text of a file without its newline; never in a message."""
    try:
        text = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigError(Problem(where, str(path), f"cannot be read: {reason}")) from None
    if not text or "\n" in text:
        raise ConfigError(Problem(where, str(path), "must hold one line"))
    return text


def _printed_by(command: str) -> str:
    where = "auth.token_command"
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ConfigError(Problem(where, command, f"cannot be run: {error}")) from None
    if done.returncode or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ConfigError(Problem(where, command, f"gave no token (exit code {done.returncode}); it said: {said}"))
    return done.stdout.strip().splitlines()[-1]


def _iap_token(client_id: str) -> str:
    where = "auth.iap_client_id"
    try:
        token, _ = kfp_auth.get_auth_token(client_id, None, None)
    except GoogleAuthError as error:
        raise ConfigError(Problem(where, client_id, f"Google gives no token: {str(error).splitlines()[0]}")) from None
    if not token:
        message = "the Google credentials of this machine are a person's, and the proxy takes a service account's"
        raise ConfigError(Problem(where, client_id, message))
    return token
