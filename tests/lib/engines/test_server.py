"""A vLLM server: the contract over HTTP, adapters, and what is said when something is amiss."""

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lib.engines.open import open_engine
from lib.engines.policy import add_adapter, load_policy, load_tokenizer, save_policy
from lib.engines.server import ServerEngine, server_command
from lib.errors import UserError
from lib.params import Params
from lib.params.model import Model
from tests.lib.engines.contract import EngineContract, drawn
from tests.lib.engines.log_prob_gap import gap, moved
from tests.vllm_server import free_port, served


@pytest.mark.vllm
class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, vllm_url: str, base: Path) -> Iterator[ServerEngine]:
        opened = ServerEngine(base, load_tokenizer(base), batch_size=16, url=vllm_url)
        yield opened
        opened.close()


@pytest.mark.vllm
def test_an_adapter_goes_to_the_server_and_leaves_with_the_engine(
    vllm_url: str,
    base: Path,
    smoke: Params,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RECKON_VLLM_URL", vllm_url)
    policy = moved(
        add_adapter(load_policy(base, base=base, settings=smoke.model), smoke.model.lora)
    )
    save_policy(policy, load_tokenizer(base), tmp_path / "sft")
    opened = open_engine(
        "vllm-server", tmp_path / "sft", base=base, model=smoke.model, batch_size=8, policy=policy
    )
    assert gap(opened, policy, prompts) < 1e-4
    for _ in range(2):
        moved(policy)
        assert gap(opened, policy, prompts) > 0.1
        opened.sync(policy)
        assert gap(opened, policy, prompts) < 1e-4
    assert len(served(vllm_url)) == 2
    opened.close()
    assert len(served(vllm_url)) == 1


Answer = Callable[[str], tuple[int, object]]


@pytest.fixture
def stand_in(base: Path) -> Iterator[Callable[[Answer], str]]:
    """Starts a server that answers each path as it is told to, and says where."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(self.path)
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, *args: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def serving(root: Path, *, name: str = "served", **others: tuple[int, object]) -> Answer:
    models = {"data": [{"id": name, "root": str(root), "max_model_len": 256, "parent": None}]}
    return lambda path: others.get(path.rpartition("/")[2], (200, models))


def connect(base: Path, url: str, **changes) -> ServerEngine:
    return ServerEngine(base, load_tokenizer(base), batch_size=8, url=url, **changes)


def test_a_server_that_is_down_is_one_line_that_says_how_to_start_one(base: Path) -> None:
    with pytest.raises(UserError, match=r"no answer .* \(ConnectError\); start one with `make"):
        connect(base, f"http://127.0.0.1:{free_port()}")


def test_a_server_that_never_answers_is_given_up(base: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match=r"no answer .* \(ReadTimeout\)"):
            connect(base, f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)


def test_a_server_that_dies_between_two_requests_is_one_line_too(
    base: Path, stand_in, prompts
) -> None:
    engine = connect(base, stand_in(serving(base)))
    engine._client.base_url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match="no answer from a vLLM server"):
        engine.generate(prompts, drawn())


def test_a_server_of_another_model_is_refused(base: Path, stand_in, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"serves {tmp_path}, expected {base}; .* MODEL={base}"):
        connect(base, stand_in(serving(tmp_path)))


def test_a_server_of_weights_that_were_written_anew_is_refused(
    base: Path, smoke: Params, stand_in, tmp_path: Path
) -> None:
    """Under the same path: it would go on generating from the old ones."""
    weights = tmp_path / "base"
    shutil.copytree(base, weights)
    command = server_command(weights, host="", port=0, model=smoke.model, options=[])
    name = command[command.index("--served-model-name") + 1]
    url = stand_in(serving(weights, name=name))
    assert connect(weights, url).model == name
    (weights / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match=r"as it was before .*; start it again: make vllm-server"):
        connect(weights, url)


def test_what_the_server_objects_to_is_passed_on(base: Path, stand_in, prompts) -> None:
    full = stand_in(serving(base, completions=(400, {"error": "no room"})))
    with pytest.raises(UserError, match=r"refused /v1/completions \(400\): .*no room"):
        connect(base, full).generate(prompts, drawn())


def test_full_weights_are_refused_in_one_line(base: Path, full: Model, stand_in) -> None:
    engine = connect(base, stand_in(serving(base)))
    with pytest.raises(UserError, match=r"takes only an adapter .* needs CUDA") as refused:
        engine.sync(load_policy(base, base=base, settings=full))
    assert "\n" not in refused.value.message


def test_the_address_is_environment(base: Path, stand_in, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECKON_VLLM_URL", stand_in(serving(base)) + "/")
    assert connect(base, "").model == "served"
    assert os.environ["RECKON_VLLM_URL"].startswith(connect(base, "").url)
