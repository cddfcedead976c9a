"""A server of vLLM's answers programs, and no web page."""

import asyncio
from types import SimpleNamespace

import pytest

from lib.engines.serve import OwnRequests


@pytest.mark.parametrize(
    ("server", "headers", "status"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:8000"}, 200),
        ("127.0.0.1", {"host": "localhost:8000"}, 200),
        ("127.0.0.1", {"host": "rebound.example:8000"}, 403),
        ("127.0.0.1", {}, 403),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "https://page.example"}, 403),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "null"}, 403),
        ("127.0.0.1", {"host": "127.0.0.1:8000", "origin": "http://mine"}, 200),
        ("10.0.0.7", {"host": "node7:8000"}, 200),
        ("10.0.0.7", {"host": "node7:8000", "origin": "https://page.example"}, 403),
    ],
)
def test_a_page_in_a_browser_reaches_no_server(server, headers, status):
    sent = []

    async def app(scope, receive, send):
        await send({"status": 200})

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "server": (server, 8000),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "app": SimpleNamespace(
            state=SimpleNamespace(args=SimpleNamespace(allowed_origins=["http://mine"]))
        ),
    }
    asyncio.run(OwnRequests(app)(scope, None, send))
    assert sent[0]["status"] == status
