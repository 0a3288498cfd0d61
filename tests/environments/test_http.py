"""GET from a list of places: the right text, and every way out of the list that ends in a short reason."""

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from components.environments.gate import ToolLimits
from components.environments.http import HttpConfig, _is_public, http_tool
from components.errors import ConfigError, ToolFailedError
from components.types import CallOutcome

PAGE = b"""<html><head><title>Rivers</title><style>p {}</style><script>alert(1)</script></head>
<body><h1>Rhine</h1><p>A river &amp;
more.</p></body></html>"""


class Site(BaseHTTPRequestHandler):
    """A few pages, some of which mean harm."""

    asked: list[str]
    busy: list[int]

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.asked.append(f"{self.headers['Host']} {self.path}")
        path, _, rest = self.path.partition("?")
        if path == "/docs/page":
            self.answer(200, PAGE, {"Content-Type": "text/html; charset=utf-8"})
        elif path == "/docs/json":
            self.answer(200, '{"ort": "Zürich"}'.encode(), {"Content-Type": "application/json"})
        elif path == "/docs/latin":
            self.answer(200, "Zürich".encode("latin-1"), {"Content-Type": "text/plain; charset=latin-1"})
        elif path == "/docs/odd":
            self.answer(200, b"\xff ok", {"Content-Type": "text/plain; charset=none-such"})
        elif path == "/docs/image":
            self.answer(200, b"\x89PNG", {"Content-Type": "image/png"})
        elif path == "/docs/packed":
            self.answer(200, b"\x1f\x8b", {"Content-Type": "text/plain", "Content-Encoding": "gzip"})
        elif path == "/docs/to":
            self.answer(302, b"", {"Location": rest})
        elif path == "/docs/long":
            self.answer(200, b"x" * 300_000, {"Content-Type": "text/plain"})
        elif path == "/docs/drip":
            self.drip()
        elif path == "/docs/busy" and self.busy:
            self.answer(self.busy.pop(), b"", {})
        elif path == "/docs/busy":
            self.answer(200, b"at last", {})
        else:
            self.answer(404, b"", {})

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(100):
            try:
                self.wfile.write(b"x")
                self.wfile.flush()
            except OSError:
                return
            time.sleep(0.05)


class Web:
    """The site, and a name server that knows it under several names."""

    def __init__(self, port, site):
        self.port = port
        self.site = site
        self.looked_up = []
        self.names = {"wiki.test": ["127.0.0.1"], "other.test": ["127.0.0.1"], "evil.test": ["10.0.0.8"]}

    async def resolve(self, host, port):
        self.looked_up.append(host)
        if host not in self.names:
            raise OSError("Name or service not known")
        found = self.names[host]
        return found.pop(0) if found and isinstance(found[0], list) else found

    def tool(self, *, private=("wiki.test", "other.test"), retries=0, **settings):
        allow = settings.pop("allow", (f"http://wiki.test:{self.port}/docs",))
        backoff = {"backoff_seconds": 0.001} if retries else {}
        made = HttpConfig(allow=allow, private_hosts=private, limits=ToolLimits(retries=retries, **backoff), **settings)
        return http_tool(made, resolve=self.resolve)

    def get(self, path, **settings):
        url = f"http://wiki.test:{self.port}{path}" if path.startswith("/docs") else path
        return asyncio.run(self.tool(**settings).call({"url": url}))


@pytest.fixture
def web():
    site = type("Handler", (Site,), {"asked": [], "busy": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), site)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Web(server.server_port, site)
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_is_read_as_text_and_the_server_is_asked_by_its_name(web):
    assert web.get("/docs/page").text == "Rivers\nRhine\nA river &\nmore."
    assert web.site.asked == [f"wiki.test:{web.port} /docs/page"]
    assert web.get("/docs/json?a=b").text == '{"ort": "Zürich"}'
    assert web.get("/docs/latin").text == "Zürich"
    assert web.get("/docs/odd").text == "\ufffd ok"


def test_redirects_are_followed_within_the_list_only(web):
    assert web.get("/docs/to?/docs/json").text == '{"ort": "Zürich"}'
    for target in (f"http://other.test:{web.port}/docs/json", "/secret", "http://127.0.0.1/", "file:///etc/passwd"):
        asked = len(web.site.asked)
        result = web.get(f"/docs/to?{target}")
        assert result.outcome is CallOutcome.REFUSED
        assert len(web.site.asked) == asked + 1
    assert web.get("/docs/to?/docs/to").text == "error: more than 5 redirects"
    assert web.get("/docs/to?/docs/to?/docs/json", max_redirects=1).text == "error: more than 1 redirects"


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test:{port}/docs/json",
        "http://wiki.test:{port}/secret",
        "http://wiki.test:{port}/docsecret",
        "http://wiki.test:{port}/docs/../secret",
        "http://wiki.test:{port}/docs/%2e%2e/secret",
        "http://wiki.test:{port}/docs/%252e%252e/secret",
        "http://wiki.test:{port}/docs/..\\secret",
        "http://wiki.test/docs/json",
        "https://wiki.test:{port}/docs/json",
        "http://wiki.test:{port}@other.test/docs/json",
        "http://user:word@wiki.test:{port}/docs/json",
        "http://127.0.0.1:{port}/docs/json",
        "http://2130706433:{port}/docs/json",
        "http://[::1]:{port}/docs/json",
        "http://wiki.test.evil.test:{port}/docs/json",
        "ftp://wiki.test/docs",
        "file:///etc/passwd",
        "gopher://wiki.test:{port}/docs",
        "//wiki.test/docs",
        "wiki.test/docs/json",
        "http://",
        "http://wiki.test:99999999/docs",
        "http://wiki.test:{port}/docs/\r\nHost: other.test",
        "http://[wiki.test]/",
        "",
        "\ud800",
    ],
)
def test_every_other_url_is_refused_without_asking_anybody(web, url):
    result = web.get(url.format(port=web.port))
    assert result.outcome in (CallOutcome.REFUSED, CallOutcome.RAISED)
    assert web.site.asked == []


def test_a_name_that_leads_into_a_private_network_is_refused(web):
    allow = (f"http://wiki.test:{web.port}/docs", "https://evil.test")
    assert "private network" in web.get("/docs/json", private=(), allow=allow).text
    assert "private network" in web.get("https://evil.test/docs", private=(), allow=allow).text
    web.names["wiki.test"] = ["93.184.216.34", "127.0.0.1"]
    assert "private network" in web.get("/docs/json", private=()).text
    assert web.site.asked == []


def test_a_name_is_resolved_once_and_that_address_is_used(web):
    web.names["wiki.test"] = [["127.0.0.1"], ["10.0.0.8"]]
    assert web.get("/docs/latin").text == "Zürich"
    assert web.looked_up == ["wiki.test"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_addresses_of_this_machine_and_of_private_networks_are_known(address, public):
    assert _is_public(address) is public


def test_size_kind_and_time_are_bounded(web):
    assert web.get("/docs/long", max_bytes=1000).text == "error: the page has more than 1000 bytes"
    assert web.get("/docs/long", max_characters=50).text.startswith("x" * 50 + "\n[cut: ")
    assert web.get("/docs/image").text == "error: no text: image/png"
    assert web.get("/docs/packed").text == "error: it holds no text: text/plain, gzip"
    late = web.get("/docs/drip", timeout_seconds=0.3)
    assert (late.text, late.outcome) == ("error: get took longer than 0.3 seconds", CallOutcome.TIMEOUT)
    assert web.get("/docs/none").text == "error: the server answered 404 Not Found"


def test_a_server_that_is_busy_is_asked_again_and_one_that_stays_so_is_no_fault_of_the_policys(web):
    web.site.busy += [503, 429]
    assert web.get("/docs/busy", retries=2).text == "at last"
    web.site.busy += [503] * 3
    with pytest.raises(ToolFailedError, match=r"tool get failed 3 times in a row: wiki\.test answered 503"):
        web.get("/docs/busy", retries=2)
    web.names.clear()
    with pytest.raises(ToolFailedError, match=r"wiki\.test cannot be resolved"):
        web.get("/docs/json")
    web.names["wiki.test"] = ["127.0.0.1"]
    with pytest.raises(ToolFailedError, match="ConnectError"):
        web.get("http://wiki.test:1/docs", allow=("http://wiki.test:1/docs",))


@pytest.mark.parametrize(
    ("allow", "message"),
    [
        ((), "name at least one host"),
        (("exa mple",), "is neither a host"),
        (("ftp://example.org",), "begins with https"),
        (("https://user@example.org",), "must not hold a user"),
        (("https://example.org/?q=",), "must not hold a query"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(allow, message):
    with pytest.raises(ConfigError, match=message):
        HttpConfig(allow=allow)


def test_the_model_is_told_where_it_may_go():
    made = http_tool(HttpConfig(allow=("docs.python.org", "https://en.wikipedia.org/wiki")))
    assert made.description.endswith("Allowed: docs.python.org, https://en.wikipedia.org/wiki.")
    assert made.text_argument == "url"
