"""ASGI middleware: adds an exported model's stop strings and length limit to vLLM's requests.

vLLM's OpenAI-compatible server takes sampling and end tokens from `generation_config.json`, but no
stop strings: a model that should stop at `</answer>` would continue. Both ends come from
`prompt_format.json` (`vllm serve --middleware lib.inference.stop_strings.StopStrings`).
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from lib.artifacts import parse_json
from lib.prompts import Generation, saved_generation

AsgiMessage = dict[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
App = Callable[[AsgiMessage, Receive, Any], Awaitable[None]]
"""ASGI application: (scope of a request, receive its body, send the answer)."""

PATHS = ("/v1/completions", "/v1/chat/completions")
"""Paths of the requests that are changed: completions and chat completions."""

LENGTHS = ("max_tokens", "max_completion_tokens")
"""Names of the longest length in a request; the second exists for chats only."""


class StopStrings:
    """ASGI middleware: adds the served model's stop strings and length limit to requests."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        # The arguments of `vllm serve`. The folder `model` is read at each request, so that a new
        # export to it needs no restart.
        arguments = scope["app"].state.args
        saved = saved_generation(Path(arguments.model))
        body = with_ends(await _body(receive), saved, longest=arguments.max_model_len)
        length = (b"content-length", str(len(body)).encode())
        headers = [header for header in scope["headers"] if header[0] != b"content-length"]
        unread: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> AsgiMessage:
            """Return the new body first, then later messages, such as a disconnect."""
            return unread.pop() if unread else await receive()

        await self.app({**scope, "headers": [*headers, length]}, replay, send)


def with_ends(body: bytes, saved: Generation, *, longest: int | None) -> bytes:
    """Add the model's stop strings and length limit to a request's JSON, each if it has none.

    `{"prompt": "…"}` becomes `{"prompt": "…", "stop": ["</answer>"], "include_stop_str_in_output":
    true, "max_tokens": 512}`. A body that is not a JSON object is returned unchanged; vLLM reports
    the error.

    Args:
        longest: the server's limit of prompt and completion together; None for the model's own.
    """
    try:
        request = parse_json(body)
    except ValueError:
        return body
    if not isinstance(request, dict):
        return body
    ends: dict[str, Any] = {}
    if saved.stop_strings and not request.get("stop"):
        # Kept in the text, as in training: the answer's closing tag is a stop string.
        ends |= {"include_stop_str_in_output": True, **request, "stop": saved.stop_strings}
    if saved.max_new_tokens and all(request.get(name) is None for name in LENGTHS):
        # vLLM refuses more than `longest`; null is what the prompt leaves of it.
        is_allowed = longest is None or saved.max_new_tokens < longest
        ends["max_tokens"] = saved.max_new_tokens if is_allowed else None
    return json.dumps(request | ends).encode() if ends else body


async def _body(receive: Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
