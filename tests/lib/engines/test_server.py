"""A vLLM server: the contract over HTTP, adapters, and what is said when something is amiss."""

import functools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lib.artifacts import hash_path
from lib.core.errors import UserError
from lib.engines.base import open_engine
from lib.engines.policy import add_adapter, load_policy, load_tokenizer, save_policy
from lib.engines.server import ServerEngine, shape_of
from lib.params import Params, compose_preset
from lib.params.model import Model
from tests.lib.engines.contract import EngineContract, drawn
from tests.lib.engines.log_prob_gap import assert_follows, gap, moved
from tests.vllm_server import free_port, served, vllm_server

ROOT = Path(__file__).parents[3]


@pytest.mark.vllm
class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, vllm_url: str, base: Path) -> Iterator[ServerEngine]:
        opened = connect(base, vllm_url)
        opened.use_weights()
        yield opened
        opened.close()


@pytest.mark.vllm
def test_an_adapter_comes_and_leaves_with_the_engine(
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
        "vllm-server",
        tmp_path / "sft",
        base=base,
        **smoke.model.loading,
        batch_size=8,
        policy=policy,
    )
    assert gap(opened, policy, prompts) < 1e-4
    assert_follows(opened, policy, prompts)
    assert len(served(vllm_url)) == 2
    opened.close()
    assert len(served(vllm_url)) == 1


@pytest.mark.vllm
def test_full_weights_are_the_checkpoints_then_the_policys(
    vllm_url: str,
    base: Path,
    full: Model,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the server has been sent before; the smoke model's head is tied."""
    monkeypatch.setenv("RECKON_VLLM_URL", vllm_url)
    start, policy = (load_policy(base, base=base, settings=full).eval() for _ in range(2))
    moved(policy)
    save_policy(policy, load_tokenizer(base), tmp_path / "sft")

    def opened(checkpoint: Path, policy: object = None) -> ServerEngine:
        return open_engine(
            "vllm-server", checkpoint, base=base, **full.loading, batch_size=8, policy=policy
        )

    engine = opened(tmp_path / "sft")
    assert gap(engine, policy, prompts) < 1e-4
    assert_follows(engine, policy, prompts)
    again = opened(base)
    assert gap(again, start, prompts) < 1e-4
    with pytest.raises(UserError, match="other weights"):
        gap(engine, policy, prompts)
    engine.close()
    again.close()


@pytest.mark.vllm
def test_a_server_that_was_started_anew_is_found_out(
    base: Path, full: Model, prompts: list[list[int]], tmp_path: Path
) -> None:
    (tmp_path / "params.yaml").write_text(compose_preset("smoke"))
    policy, port = moved(load_policy(base, base=base, settings=full)), free_port()
    start = functools.partial(
        vllm_server,
        ROOT,
        params=tmp_path / "params.yaml",
        model=base,
        log=tmp_path / "log",
        port=port,
    )
    with start() as url:
        engine = connect(base, url)
        engine.sync(policy)
        assert gap(engine, policy, prompts) < 1e-4
    with pytest.raises(UserError, match="no answer"):
        engine.generate(prompts, drawn())
    with start():
        with pytest.raises(UserError, match="anew"):
            engine.generate(prompts, drawn())
        engine.sync(policy)
        assert gap(engine, policy, prompts) < 1e-4


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


def serving(model: Path, *, name: str = "", **others: tuple[int, object]) -> Answer:
    """A server that `model` was the start of; `others` by the last part of their path."""
    served = name or f"served@{shape_of(model)}-{hash_path(model)}"
    models = {"data": [{"id": served, "root": str(model), "max_model_len": 256, "parent": None}]}
    answers = {"collective_rpc": (200, {"results": [["process", ""]]}), **others}
    return lambda path: answers.get(path.rpartition("/")[2], (200, models))


def connect(base: Path, url: str) -> ServerEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECKON_VLLM_URL", url)
        return ServerEngine(base, load_tokenizer(base), batch_size=8)


def test_a_server_that_is_down_is_refused_with_the_remedy(base: Path) -> None:
    with pytest.raises(UserError, match=r"ConnectError.*make vllm-server"):
        connect(base, f"http://127.0.0.1:{free_port()}")


def test_a_server_that_never_answers_is_given_up(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECKON_VLLM_TIMEOUT_S", "0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match="ReadTimeout"):
            connect(base, f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_server_of_another_shape_is_refused(base: Path, stand_in, tmp_path: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    for changes in ({"hidden_size": 7}, {"rms_norm_eps": 0.5}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(UserError, match=f"shape.* MODEL={base}"):
            connect(base, stand_in(serving(tmp_path)))


def test_a_server_that_reports_no_weights_is_refused(base: Path, stand_in) -> None:
    """`vllm serve` as it is has log-probs of another temperature, too."""
    with pytest.raises(UserError, match=f"not started by .* MODEL={base}"):
        connect(base, stand_in(serving(base, name="base")))


def test_training_and_saving_change_no_shape(base: Path, full: Model, tmp_path: Path) -> None:
    policy = load_policy(base, base=base, settings=full).bfloat16()
    policy.config.eos_token_id = 7
    save_policy(policy, load_tokenizer(base), tmp_path)
    assert hash_path(tmp_path / "config.json") != hash_path(base / "config.json")
    assert shape_of(tmp_path) == shape_of(base)


@pytest.mark.parametrize(
    ("state", "happened"),
    [
        (["another process", ""], "started anew"),
        (["process", "another run's"], "other weights"),
        (["process", "unfinished"], "other weights"),
    ],
)
@pytest.mark.parametrize("already", [False, True])
def test_answers_of_other_weights_are_not_used(
    base: Path, stand_in, prompts, state: list[str], happened: str, already: bool
) -> None:
    """Those that a server had before a batch, and those that it was sent while it answered."""
    now = ["process", ""]
    choice = {"token_ids": [5], "finish_reason": "stop", "stop_reason": None, "logprobs": None}

    def answer(path: str) -> tuple[int, object]:
        if path.endswith("completions"):
            now[:] = state
        changes = {
            "collective_rpc": (200, {"results": [list(now)]}),
            "completions": (200, {"choices": [choice] * 2}),
        }
        return serving(base, **changes)(path)

    engine = connect(base, stand_in(answer))
    engine.use_weights()
    now[:] = state if already else now
    with pytest.raises(UserError, match=happened):
        engine.generate(prompts, drawn(num_completions=2))


def test_what_the_server_objects_to_is_passed_on(base: Path, stand_in, prompts) -> None:
    full = stand_in(serving(base, completions=(400, {"error": "no room"})))
    with pytest.raises(UserError, match=r"400.*no room"):
        engine = connect(base, full)
        engine.use_weights()
        engine.generate(prompts, drawn())


def test_a_server_that_answers_others_takes_no_weights(base: Path, full: Model, stand_in) -> None:
    engine = connect(base, stand_in(serving(base, reset_prefix_cache=(200, {"success": False}))))
    with pytest.raises(UserError, match="requests"):
        engine.sync(load_policy(base, base=base, settings=full))


def test_weights_go_through_the_folder_that_both_sides_see(
    base: Path, full: Model, stand_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECKON_VLLM_SHARED", str(tmp_path))
    version = ""
    written = []

    def answer(path: str) -> tuple[int, object]:
        nonlocal version
        folders = list(tmp_path.glob("*/weights"))
        if folders and path.endswith("collective_rpc") and not version:
            written.append(sorted(file.name for file in folders[0].iterdir()))
            version = f"{folders[0].parent.name}-1"
        answers = {
            "collective_rpc": (200, {"results": [["process", version]]}),
            "reset_prefix_cache": (200, {"success": True}),
        }
        return serving(base, **answers)(path)

    engine = connect(base, stand_in(answer))
    engine.sync(load_policy(base, base=base, settings=full))
    assert "model.safetensors" in written[0]
    assert not list(tmp_path.glob("*/*"))
    engine.close()
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("RECKON_VLLM_SHARED", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="RECKON_VLLM_SHARED"):
        connect(base, engine.url)
