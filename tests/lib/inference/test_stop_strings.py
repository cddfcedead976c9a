"""A server ends completions at the model's stop strings, unless a request has its own."""

import asyncio
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from lib.core.errors import UserError
from lib.inference.stop_strings import StopStrings
from lib.prompts import saved_generation

STOPS = ["</answer>"]


def served(
    folder: Path, body: bytes, *, path: str = "/v1/chat/completions", longest: int | None = 65
) -> bytes:
    """Send a body in two parts; return the body after the middleware."""
    arguments = SimpleNamespace(model=str(folder), max_model_len=longest)
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

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": [(b"content-length", str(len(body)).encode())],
        "app": SimpleNamespace(state=SimpleNamespace(args=arguments)),
    }
    asyncio.run(StopStrings(app)(scope, AsyncMock(side_effect=parts), None))
    if path.startswith("/v1/chat"):
        assert reached["length"] == len(reached["body"])
        assert reached["after"] == {"type": "http.disconnect"}
    return reached["body"]


@pytest.fixture
def model(tmp_path):
    content = {"name": "r1_zero", "stop_strings": STOPS, "max_new_tokens": 64}
    (tmp_path / "prompt_format.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize("included", [{}, {"include_stop_str_in_output": False}])
@pytest.mark.parametrize("fields", [{}, {"stop": None}, {"stop": []}])
def test_a_request_without_stop_strings_gets_the_models(fields, included, model):
    body = json.dumps({"messages": [], **fields, **included}).encode()
    assert json.loads(served(model, body)) == {
        "messages": [],
        "stop": STOPS,
        "include_stop_str_in_output": not included,
        "max_tokens": 64,
    }


@pytest.mark.parametrize(("longest", "limit"), [(None, 64), (64, None), (32, None)])
def test_a_limit_that_the_server_refuses_is_not_sent(longest, limit, model):
    assert json.loads(served(model, b"{}", longest=longest))["max_tokens"] == limit


@pytest.mark.parametrize(
    ("stops", "length"), [("x", None), (["x"], 7), (5, None), (["x", 5], None), (None, "7")]
)
@pytest.mark.parametrize("name", ["prompt_format.json", "generation_config.json"])
def test_a_models_ends_are_read_or_refused(name, stops, length, tmp_path):
    content = {"name": "r1_zero", "stop_strings": stops, "max_new_tokens": length}
    (tmp_path / name).write_text(json.dumps(content))
    if stops in ("x", ["x"]):
        assert saved_generation(tmp_path) == (("x",), length)
    else:
        with pytest.raises(UserError, match=rf"{name}: stop_strings=.*max_new_tokens="):
            saved_generation(tmp_path)


@pytest.mark.parametrize("content", ["[1]", "null", "[" * 9000])
def test_a_file_that_holds_no_object_ends_nothing(content, tmp_path):
    (tmp_path / "generation_config.json").write_text(content)
    with nullcontext() if len(content) < 9 else pytest.raises(UserError, match="nested"):
        assert saved_generation(tmp_path) == ((), None)


@pytest.mark.parametrize("length", ["max_tokens", "max_completion_tokens"])
def test_a_request_that_names_its_own_length_keeps_it(length, model):
    reached = json.loads(served(model, json.dumps({length: 7}).encode()))
    assert (reached[length], len({"max_tokens", "max_completion_tokens"} & set(reached))) == (7, 1)


@pytest.mark.parametrize(
    "body", [b'{"stop": ["\\n"], "max_tokens": 1}', b"[1, 2, 3]", b"no JSON at all", b"[" * 9000]
)
def test_what_names_its_own_or_is_no_request_passes_as_it_is(body, model):
    assert served(model, body) == body
