"""A vLLM server: the contract over HTTP, adapters, and errors in one line."""

import functools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from lib.artifacts import hash_path
from lib.core.errors import UserError
from lib.engines.base import open_engine
from lib.engines.policy import add_adapter, load_policy, load_tokenizer, save_policy
from lib.engines.serve import weights_layout
from lib.engines.server import ServerEngine
from lib.params import compose_preset
from tests.conftest import ROOT
from tests.lib.engines.contract import EngineContract, random_sampling
from tests.lib.engines.log_prob_gap import assert_follows, gap, moved
from tests.vllm_server import free_port, served, vllm_server


@pytest.mark.vllm
class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, vllm_url, base):
        opened = engine_at(base, vllm_url)
        yield opened
        opened.close()


@pytest.mark.vllm
def test_an_adapter_comes_and_leaves_with_the_engine(
    vllm_url,
    base,
    smoke,
    prompts,
    tmp_path,
    monkeypatch,
):
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
    vllm_url,
    base,
    full,
    prompts,
    tmp_path,
    monkeypatch,
):
    """Weights sent to the server before leave no trace; the smoke model's head is tied."""
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
def test_weights_that_broke_off_are_used_by_nobody(vllm_url, base, full, prompts):
    """Only the first of a layer's matrices has come; the next update must not count it."""
    from lib.engines.transfer import PolicyWeights

    policy = moved(load_policy(base, base=base, settings=full))
    engine, other = (engine_at(base, vllm_url) for _ in range(2))
    plain = PolicyWeights.__iter__

    def breaks_off(self: PolicyWeights) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in plain(self):
            yield name, weight
            if name.endswith("q_proj.weight"):
                raise RuntimeError("broke off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyWeights, "__iter__", breaks_off)
        with pytest.raises(RuntimeError, match="broke off"):
            engine.sync(policy)
    assert httpx.get(f"{vllm_url}/weight_info").json()["weight_version"] == "unfinished"
    again = connect(base, vllm_url)
    again.sync(moved(policy))
    assert gap(again, policy, prompts) < 1e-4
    for each in (engine, other):
        with pytest.raises(UserError, match="other weights"):
            each.generate(prompts, random_sampling())


@pytest.mark.vllm
def test_a_restarted_server_is_noticed(base, full, prompts, tmp_path):
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
        engine.generate(prompts, random_sampling())
    with start():
        with pytest.raises(UserError, match="anew"):
            engine.generate(prompts, random_sampling())
        engine.sync(policy)
        assert gap(engine, policy, prompts) < 1e-4


Answer = Callable[[str, dict[str, Any]], tuple[int, Any]]


@pytest.fixture
def stand_in(base):
    """Start a server with scripted answers; return its URL."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                sent = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, body = answer(self.path, json.loads(sent or "{}"))
                if not status:  # as a process that was killed
                    self.connection.close()
                    return
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


def serving(model: Path, *, name: str = "", **others: Any) -> Answer:
    """Script the answers of a server started with `model`.

    `others`, by the last part of a path: answers, or functions from posted content to answers.
    """
    served = name or f"served@{weights_layout(model)}-{hash_path(model)}"
    models = {"data": [{"id": served, "root": str(model), "max_model_len": 256, "parent": None}]}
    answers = {
        "weight_info": (200, {"weight_version": "default"}),
        "get_world_size": (200, {"world_size": 1}),
        **others,
    }

    def answer(path: str, posted: dict[str, Any]) -> tuple[int, Any]:
        other = answers.get(path.partition("?")[0].rpartition("/")[2], (200, models))
        return other(posted) if callable(other) else other

    return answer


def connect(base: Path, url: str) -> ServerEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECKON_VLLM_URL", url)
        return ServerEngine(base, load_tokenizer(base))


def engine_at(base: Path, url: str) -> ServerEngine:
    """Connect, and generate with the server's own weights."""
    engine = connect(base, url)
    engine.use_weights()
    return engine


def test_a_server_that_is_down_is_refused_with_the_remedy(base):
    with pytest.raises(UserError, match=r"ConnectError.*make vllm-server"):
        connect(base, f"http://127.0.0.1:{free_port()}")


def test_a_server_that_never_answers_is_given_up(base, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_TIMEOUT_S", "0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match="ReadTimeout"):
            connect(base, f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_server_of_another_shape_is_refused(base, stand_in, tmp_path):
    config = json.loads((base / "config.json").read_text())
    for changes in ({"hidden_size": 7}, {"rms_norm_eps": 0.5}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(UserError, match=f"shape.* MODEL={base}"):
            connect(base, stand_in(serving(tmp_path)))


def test_a_server_that_reports_no_weights_is_refused(base, stand_in):
    """Plain `vllm serve` has log-probs of another temperature, too."""
    with pytest.raises(UserError, match=f"not started by .* MODEL={base}"):
        connect(base, stand_in(serving(base, name="base")))


def test_training_and_saving_change_no_shape(base, full, tmp_path):
    policy = load_policy(base, base=base, settings=full).bfloat16()
    policy.config.eos_token_id = 7
    save_policy(policy, load_tokenizer(base), tmp_path)
    assert hash_path(tmp_path / "config.json") != hash_path(base / "config.json")
    assert weights_layout(tmp_path) == weights_layout(base)


def choice(*versions: str) -> dict[str, object]:
    """Make a completion of three tokens, one each by the weights of `versions`."""
    spans = [{"version": v, "start": i, "end": i + 1} for i, v in enumerate(versions)]
    common = {"finish_reason": "stop", "stop_reason": None, "logprobs": None}
    return {"token_ids": [5, 6, 7], **common, "weight_versions": spans}


@pytest.mark.parametrize(
    ("versions", "happened"),
    [
        (["default"], "started anew"),
        (["another run's-1"], "other weights"),
        (["unfinished"], "other weights"),
        (["own", "another run's-1"], "other weights"),
    ],
)
def test_answers_of_other_weights_are_not_used(base, stand_in, prompts, versions, happened):
    own = hash_path(base)
    made = [version.replace("own", own) for version in versions]
    answer = 200, {"choices": [choice(*made)]}
    engine = engine_at(base, stand_in(serving(base, generate=answer)))
    with pytest.raises(UserError, match=happened):
        engine.generate(prompts, random_sampling(num_completions=1))


@pytest.mark.parametrize(
    ("status", "fault", "is_own", "words"),
    [(404, "The model `x` does not exist", False, "started anew"), (400, "no", True, "400.*no")],
)
def test_a_refusal_is_explained_or_passed_on(base, stand_in, prompts, status, fault, is_own, words):
    now = (200, {"weight_version": hash_path(base) if is_own else "default"})
    refusing = serving(base, generate=(status, {"error": fault}), weight_info=now)
    engine = engine_at(base, stand_in(refusing))
    with pytest.raises(UserError, match=words):
        engine.generate(prompts, random_sampling())


def test_a_shared_folder_that_is_not_there_is_refused(base, stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_SHARED", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="RECKON_VLLM_SHARED"):
        connect(base, stand_in(serving(base)))


def echo(request: dict[str, Any]) -> tuple[int, Any]:
    """Answer `n` completions, their tokens counted up from the seed as vLLM counts seeds."""
    seed, number = (request["sampling_params"][name] for name in ("seed", "n"))
    return 200, {"choices": [{**choice(), "token_ids": [(seed + i) % 500]} for i in range(number)]}


def tokens(engine: ServerEngine, prompts: list[list[int]], number: int) -> list[list[int]]:
    groups = engine.generate(prompts, random_sampling(num_completions=number))
    return [[one.token_ids[0] for one in group] for group in groups]


@pytest.fixture
def any_version(monkeypatch, base):
    monkeypatch.setattr(
        "tests.lib.engines.test_server.choice", functools.partial(choice, hash_path(base))
    )


def test_many_completions_are_seeded_as_one_request_would_be(base, stand_in, prompts, any_version):
    most = []

    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        most.append(request["sampling_params"]["n"])
        return echo(request)

    engine = engine_at(base, stand_in(serving(base, generate=answer)))
    for group in tokens(engine, prompts, 1100):
        assert group == [(group[0] + i) % 500 for i in range(1100)]
    assert max(most) == 512


def test_two_servers_give_the_completions_of_one(base, stand_in, prompts, any_version):
    both = threading.Barrier(2)
    met = []

    def answer(request: dict[str, Any]) -> tuple[int, Any]:
        if len(met) < 2:  # both servers must get a request
            met.append(both.wait(60))
        return echo(request)

    alone = engine_at(base, stand_in(serving(base, generate=echo)))
    urls = [stand_in(serving(base, generate=answer)) for _ in range(2)]
    shared = engine_at(base, ",".join(urls))
    assert tokens(shared, prompts, 4) == tokens(alone, prompts, 4)


def test_a_server_that_falls_out_leaves_its_prompts_to_the_others(
    base, stand_in, prompts, any_version, capsys
):
    dead = stand_in(serving(base, generate=(0, None)))
    alive = stand_in(serving(base, generate=echo))
    engine, alone = (engine_at(base, urls) for urls in (f"{dead},{alive}", alive))
    assert tokens(engine, prompts, 4) == tokens(alone, prompts, 4)
    assert f"no answer from a vLLM server at {dead}" in capsys.readouterr().err
    assert [server.url for server in engine.servers] == [alive]
    alone = engine_at(base, dead)
    with pytest.raises(UserError, match="no answer"):
        tokens(alone, prompts, 4)


def test_adapters_go_to_the_servers_that_are_left(base, stand_in, tmp_path, capsys):
    posted: list[str] = []

    def take(request: dict[str, Any]) -> tuple[int, Any]:
        posted.append(request["lora_name"])
        return 200, {}

    dead = stand_in(serving(base, load_lora_adapter=(0, None), unload_lora_adapter=(0, None)))
    # A restarted server has no adapter.
    anew = stand_in(serving(base, load_lora_adapter=take, unload_lora_adapter=(404, {})))
    alive = stand_in(serving(base, load_lora_adapter=take, unload_lora_adapter=take))
    engine = connect(base, f"{dead},{anew},{alive}")
    engine.use_adapter(tmp_path)
    assert [server.url for server in engine.servers] == [anew, alive]
    assert f"no answer from a vLLM server at {dead}" in capsys.readouterr().err
    engine.close()
    assert len(posted) == 3 and len(set(posted)) == 1
    alone = connect(base, dead)
    with pytest.raises(UserError, match="no answer"):
        alone.use_adapter(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_travels_in_the_dtype_of_the_weights_below(dtype, base, smoke, stand_in):
    kinds: set[torch.dtype] = set()

    def take(request: dict[str, Any]) -> tuple[int, Any]:
        weights = load_file(Path(request["lora_path"]) / "adapter_model.safetensors")
        kinds.update(weight.dtype for weight in weights.values())
        return 200, {}

    engine = connect(base, stand_in(serving(base, load_lora_adapter=take)))
    settings = smoke.model.model_copy(update={"dtype": dtype})
    policy = add_adapter(load_policy(base, base=base, settings=settings), smoke.model.lora)
    assert {weight.dtype for weight in policy.parameters() if weight.requires_grad} == {
        torch.float32
    }
    engine.sync(policy)
    assert kinds == {getattr(torch, dtype)}
