"""A URL that a policy wrote -> the text behind it, from the places on a list and from nowhere else.

What counts is the address that is connected to, not the name: a name is resolved once, the address is checked and then
used, so that no second answer of a name server leads elsewhere. Redirects are followed within the list only. No
cookies, no proxies, no compression, GET alone.
"""

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Annotated
from urllib.parse import unquote

import httpx2
from pydantic import Field

from components.config import config
from components.environments.gate import ToolLimits, TransientToolError
from components.environments.tools import Tool, ToolError, tool
from components.errors import ConfigError, Problem

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_REDIRECTS = {301, 302, 303, 307, 308}
_FOR_A_MOMENT = {429, 502, 503, 504}
_TEXT = re.compile(r"text/|application/(.+\+)?(json|xml|yaml|javascript|x-ndjson)$")
_PORTS = {"https": 443, "http": 80}
# What leads to IPv4 addresses inside of IPv6 ones.
_TUNNELS = [ipaddress.ip_network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")]


@config
class HttpConfig:
    """Where GET may go, and how much it may bring.

    An entry of `allow` is a host, `docs.python.org`, which means https on its usual port, or the beginning of a URL,
    `http://wiki.example.org:8080/pages`, which ends at a border of the path. Addresses of private networks and of this
    machine are refused, but for the hosts in `private_hosts`. `max_bytes` is of a page as it is sent, `max_characters`
    of its text; `timeout_seconds` covers names, connections and redirects together.
    """

    allow: tuple[str, ...]
    private_hosts: tuple[str, ...] = ()
    max_bytes: Annotated[int, Field(ge=1)] = 1_000_000
    max_characters: Annotated[int, Field(ge=1)] = 8000
    max_redirects: Annotated[int, Field(ge=0)] = 5
    timeout_seconds: Annotated[float, Field(gt=0)] = 15.0
    limits: ToolLimits = ToolLimits(concurrency=16, retries=2)

    def __post_init__(self) -> None:
        problems = [Problem("allow", each, problem) for each in self.allow if (problem := _entry_problem(each))]
        if not self.allow:
            problems.append(Problem("allow", self.allow, "name at least one host or beginning of a URL"))
        if problems:
            raise ConfigError(problems)


def http_tool(settings: HttpConfig, *, name: str = "get", resolve: Resolve | None = None) -> Tool:
    """A tool that reads pages. `resolve` (host, port -> addresses) stands in for the name server in tests."""
    reader = _Reader(settings, resolve or _resolved)

    async def get(url: str) -> str:
        return await reader.read(url)

    get.__doc__ = f"""Read a page or a file of text from the web. Allowed: {", ".join(settings.allow)}.

    Args:
        url: the whole address, https://...
    """
    return tool(
        get,
        name=name,
        timeout=settings.timeout_seconds,
        max_characters=settings.max_characters,
        limits=settings.limits,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    settings: HttpConfig
    resolve: Resolve

    async def read(self, text: str) -> str:
        """The text behind a URL. Raises ToolError for what the policy can help, TransientToolError for the rest."""
        url = _parsed(text)
        for _ in range(self.settings.max_redirects + 1):
            if not any(_covers(entry, url) for entry in self.settings.allow):
                raise ToolError(f"{_shown(url)} is not allowed; allowed are: {', '.join(self.settings.allow)}")
            target, found = await self._get(url)
            if target is None:
                return found
            url = target
        raise ToolError(f"more than {self.settings.max_redirects} redirects")

    async def _get(self, url: httpx2.URL) -> tuple[httpx2.URL | None, str]:
        """Where the URL is redirected to, or the text that it holds."""
        address = await self._address(url)
        headers = {"Host": url.netloc.decode(), "Accept-Encoding": "identity", "User-Agent": "headrace"}
        pinned = url.copy_with(host=address, fragment=None)
        try:
            async with httpx2.AsyncClient(verify=_trust(), trust_env=False, timeout=None) as client:
                request = client.build_request("GET", pinned, headers=headers, extensions={"sni_hostname": url.host})
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    if response.status_code in _REDIRECTS and "location" in response.headers:
                        return _joined(url, response.headers["location"]), ""
                    return None, await self._text(response, url)
                finally:
                    await response.aclose()
        except httpx2.TransportError as error:
            raise TransientToolError(f"{url.host}: {type(error).__name__}: {error}") from error

    async def _address(self, url: httpx2.URL) -> str:
        """The address to connect to. All that a name stands for must be allowed."""
        try:
            addresses = await self.resolve(url.host, url.port or _PORTS[url.scheme])
        except OSError as error:
            raise TransientToolError(f"{url.host} cannot be resolved: {error}") from error
        if not addresses:
            raise TransientToolError(f"{url.host} has no address")
        if url.host not in self.settings.private_hosts and not all(map(_is_public, addresses)):
            raise ToolError(f"{url.host} leads into a private network, which is not allowed")
        return addresses[0]

    async def _text(self, response: httpx2.Response, url: httpx2.URL) -> str:
        status = response.status_code
        if status in _FOR_A_MOMENT:
            raise TransientToolError(f"{url.host} answered {status} {response.reason_phrase}")
        if status != 200:
            raise ToolError(f"the server answered {status} {response.reason_phrase}")
        kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
        encoding = response.headers.get("content-encoding", "identity")
        if not _TEXT.match(kind) or encoding != "identity":
            raise ToolError(f"it holds no text: {kind}, {encoding}" if encoding != "identity" else f"no text: {kind}")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self.settings.max_bytes:
                raise ToolError(f"the page has more than {self.settings.max_bytes} bytes")
        text = _decoded(bytes(body), response.charset_encoding)
        return _text_of_html(text) if kind == "text/html" else text


def _parsed(text: str) -> httpx2.URL:
    try:
        url = httpx2.URL(text.strip())
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolError(f"this is no URL: {error}") from error
    if url.scheme not in _PORTS or not url.host:
        raise ToolError("a URL begins with https:// and a host")
    if url.userinfo:
        raise ToolError("a URL must not hold a user or a password")
    if ".." in unquote(unquote(url.path)).replace("\\", "/").split("/"):
        raise ToolError("a path must not hold ..")
    return url


def _joined(url: httpx2.URL, location: str) -> httpx2.URL:
    try:
        return _parsed(str(url.join(location)))
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolError(f"the server redirects to what is no URL: {error}") from error


def _covers(entry: str, url: httpx2.URL) -> bool:
    if "://" not in entry:
        return url.scheme == "https" and url.host == entry.lower() and url.port in (None, 443)
    allowed = httpx2.URL(entry)
    if (allowed.scheme, allowed.host, allowed.port) != (url.scheme, url.host, url.port):
        return False
    beginning = allowed.path.rstrip("/")
    return url.path == beginning or url.path.startswith(f"{beginning}/")


def _entry_problem(entry: str) -> str | None:
    if "://" not in entry:
        plain = re.fullmatch(r"[A-Za-z0-9.-]+", entry)
        return None if plain else "is neither a host nor the beginning of a URL"
    try:
        url = _parsed(entry)
    except ToolError as error:
        return str(error)
    return "must not hold a query" if url.query else None


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif any(found in network for network in _TUNNELS):
            return False
    return found.is_global and not found.is_multicast


async def _resolved(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


@functools.cache
def _trust() -> ssl.SSLContext:
    # Reading the certificates takes longer than most requests.
    return ssl.create_default_context()


def _shown(url: httpx2.URL) -> str:
    return str(url.copy_with(query=None, fragment=None))[:200]


def _decoded(body: bytes, charset: str | None) -> str:
    try:
        return body.decode(charset or "utf-8", errors="replace")
    except LookupError:
        return body.decode("utf-8", errors="replace")


def _text_of_html(html: str) -> str:
    parser = _Text()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).splitlines())
    return "\n".join(line for line in lines if line)


class _Text(HTMLParser):
    """What a page says, without what only a browser reads."""

    _hidden = frozenset({"script", "style", "noscript", "template", "svg"})
    _breaks = frozenset({"p", "br", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "title", "table", "section"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._inside = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside += tag in self._hidden
        if tag in self._breaks:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._inside = max(0, self._inside - (tag in self._hidden))
        if tag in self._breaks:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.parts.append(data)
