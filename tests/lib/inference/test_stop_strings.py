"""A server ends completions where the model was taught to, whoever asks it."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.inference.stop_strings import StopStrings

STOPS = ["</answer>"]


def served(folder: Path, body: bytes, *, path: str = "/v1/chat/completions") -> bytes:
    """The body that reaches the server, which comes in two parts."""
    reached = {}

    async def app(scope, receive, send) -> None:
        reached["body"] = (await receive())["body"]
        reached["length"] = int(dict(scope["headers"]).get(b"content-length", b"0"))
        reached["after"] = await receive()

    parts = [
        {"type": "http.request", "body": body[:5], "more_body": True},
        {"type": "http.request", "body": body[5:], "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive():
        return parts.pop(0)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-length", str(len(body)).encode())],
        "app": SimpleNamespace(state=SimpleNamespace(args=SimpleNamespace(model=str(folder)))),
    }
    asyncio.run(StopStrings(app)(scope, receive, None))
    if path.startswith("/v1/chat"):
        assert reached["length"] == len(reached["body"])
        assert reached["after"] == {"type": "http.disconnect"}
    return reached["body"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps({"stop_strings": STOPS}))
    return tmp_path


@pytest.mark.parametrize("fields", [{}, {"stop": None}, {"stop": []}])
def test_a_request_without_stop_strings_gets_the_models(fields: object, model: Path) -> None:
    body = json.dumps({"messages": [], **fields}).encode()
    assert json.loads(served(model, body)) == {
        "messages": [],
        "stop": STOPS,
        "include_stop_str_in_output": True,
    }


@pytest.mark.parametrize("body", [b'{"stop": ["\\n"], "n": 1}', b"[1, 2, 3]", b"no JSON at all"])
def test_what_names_its_own_or_is_no_request_passes_as_it_is(body: bytes, model: Path) -> None:
    assert served(model, body) == body


def test_a_model_without_stop_strings_changes_nothing(tmp_path: Path) -> None:
    assert served(tmp_path, b'{"messages": []}') == b'{"messages": []}'
    (tmp_path / "generation_config.json").write_text('{"stop_strings": null}')
    assert served(tmp_path, b'{"messages": []}') == b'{"messages": []}'


def test_other_requests_are_not_read(model: Path) -> None:
    assert served(model, b'{"text": "a"}', path="/tokenize") == b'{"tex'
