"""Stop strings of an exported model on vLLM's OpenAI-compatible server.

vLLM takes sampling and end tokens from `generation_config.json`, and not its `stop_strings`: a
model that should end at `</answer>` would continue. This ASGI middleware gives them to every
request that names none (`vllm serve --middleware lib.inference.stop_strings.StopStrings`).
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lib.artifacts import read_json

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
App = Callable[[Message, Receive, Any], Awaitable[None]]
"""ASGI: of a request's scope, what receives its body, and what sends the answer."""

PATHS = ("/v1/completions", "/v1/chat/completions")
"""Requests that generate."""


class StopStrings:
    """Middleware around the server's application, which knows the folder of its model."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Any) -> None:
        """Pass a request on, with stop strings where it generates and names none."""
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = with_stops(await _body(receive), saved_stops(Path(scope["app"].state.args.model)))
        length = (b"content-length", str(len(body)).encode())
        headers = [header for header in scope["headers"] if header[0] != b"content-length"]
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self.app({**scope, "headers": [*headers, length]}, replay, send)


def with_stops(body: bytes, stops: list[str]) -> bytes:
    """A request's body with `stops` where it has none; what is no JSON object stays as it is."""
    try:
        request = json.loads(body)
    except ValueError:
        return body
    if not stops or not isinstance(request, dict) or request.get("stop"):
        return body
    request |= {"stop": stops, "include_stop_str_in_output": True}
    return json.dumps(request).encode()


def saved_stops(folder: Path) -> list[str]:
    """Stop strings of the model in `folder`."""
    path = folder / "generation_config.json"
    return list(read_json(path).get("stop_strings") or []) if path.is_file() else []


async def _body(receive: Receive) -> bytes:
    """The whole body of a request."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
