"""A vLLM server: the contract over HTTP, adapters, and errors in one line."""

import functools
import json
import os
import random
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import torch
from safetensors.torch import load_file

from lib.artifacts import hash_path, read_json, write_json
from lib.core.errors import UserError
from lib.engines.base import open_engine
from lib.engines.serve import weights_layout
from lib.engines.server import ServerEngine
from lib.models.load import add_adapter, load_policy
from lib.models.pretrained import load_tokenizer
from lib.models.save import save_policy
from lib.params import compose_preset
from tests.conftest import ROOT
from tests.lib.engines.contract import EngineContract, random_sampling
from tests.lib.models.log_prob_gap import assert_follows, gap, moved
from tests.vllm_server import free_port, served, vllm_server


@pytest.mark.vllm
class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, vllm_url, base):
        opened = engine_at(base, vllm_url)
        yield opened
        opened.close()


@pytest.fixture
def open_on_server(vllm_url, base, smoke, monkeypatch):
    """Open a checkpoint on the server."""
    monkeypatch.setenv("RECKON_VLLM_URL", vllm_url)
    settings = {"base": base, **smoke.model.loading, "batch_size": 8}
    return functools.partial(open_engine, "vllm-server", **settings)


@pytest.mark.vllm
def test_an_adapter_comes_and_leaves_with_the_engine(
    vllm_url, open_on_server, prompts, adapter_checkpoint
):
    checkpoint, policy = adapter_checkpoint
    opened = open_on_server(checkpoint, policy=policy)
    assert gap(opened, policy, prompts) < 1e-4
    assert_follows(opened, policy, prompts)
    assert len(served(vllm_url)) == 2
    opened.close()
    assert len(served(vllm_url)) == 1


@pytest.mark.vllm
def test_full_weights_are_the_checkpoints_then_the_policys(
    open_on_server, base, full, prompts, tmp_path
):
    """Weights sent to the server before leave no trace; the smoke model's head is tied."""
    start, policy = (load_policy(base, base=base, settings=full).eval() for _ in range(2))
    moved(policy)
    save_policy(policy, load_tokenizer(base), tmp_path / "sft")

    engine = open_on_server(tmp_path / "sft")
    assert gap(engine, policy, prompts) < 1e-4
    assert_follows(engine, policy, prompts)
    again = open_on_server(base)
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

    def breaks_off(self):
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
    files = {"params": tmp_path / "params.yaml", "log": tmp_path / "log"}
    start = functools.partial(vllm_server, ROOT, model=base, port=port, **files)
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


def choice(*versions: str) -> dict[str, object]:
    """Make a completion of three tokens, one each by the weights of `versions`."""
    spans = [{"version": v, "start": i, "end": i + 1} for i, v in enumerate(versions)]
    common = {"finish_reason": "stop", "stop_reason": None, "logprobs": None}
    return {"token_ids": [5, 6, 7], **common, "weight_versions": spans}


class QueueingServer(ThreadingHTTPServer):
    request_queue_size = 128  # of 5, a loaded machine resets the connections of an engine's threads


@pytest.fixture
def serve(base):
    """Start a server of a model with scripted answers; return its URL.

    `scripted`, by the last part of a path: answers, or functions from posted content to answers.
    """
    servers = []

    def start(model=base, *, name="", **scripted):
        own = name or f"served@{weights_layout(model)}-{hash_path(model)}"
        listed = {"id": own, "root": str(model), "max_model_len": 256, "parent": None}
        answers = {
            "models": (200, {"data": [listed]}),
            "weight_info": (200, {"weight_version": "default"}),
            "update_weight_version": (200, {}),
            **scripted,
        }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                posted = self.rfile.read(int(self.headers.get("content-length") or 0))
                answer = answers[self.path.rpartition("/")[2]]
                status, body = answer(json.loads(posted)) if callable(answer) else answer
                if not status:  # as a process that was killed
                    self.connection.close()
                    return
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_POST = do_GET

            def log_message(self, *args):
                pass

        servers.append(QueueingServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


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
    with pytest.raises(UserError, match=r"ConnectError.*./reckon vllm-server"):
        connect(base, f"http://127.0.0.1:{free_port()}")


def test_a_server_that_never_answers_is_given_up(base, monkeypatch):
    monkeypatch.setenv("RECKON_VLLM_TIMEOUT_S", "0.1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UserError, match="ReadTimeout"):
            connect(base, f"http://127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("changes", [{"hidden_size": 7}, {"rms_norm_eps": 0.5}], ids=str)
def test_a_server_of_another_shape_is_refused(base, serve, tmp_path, changes):
    write_json(tmp_path / "config.json", read_json(base / "config.json") | changes)
    with pytest.raises(UserError, match=f"shape.* --model {base}"):
        connect(base, serve(tmp_path))


@pytest.mark.parametrize(
    "models",
    [
        {"data": [{"id": "base", "max_model_len": 256, "root": "base"}]},
        {"data": [{"id": "base"}]},
        {"data": []},
        {},
        "<html>",
    ],
)
def test_a_server_that_reports_no_weights_is_refused(base, serve, models):
    """Plain `vllm serve` has log-probs of another temperature, too; Ollama lists names only."""
    with pytest.raises(UserError, match=f"not started by .* --model {base}"):
        connect(base, serve(models=(200, models)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("TIMEOUT_S", text) for text in ("10m", "nan", "-1")),
        ("SHARED", "/nowhere"),
        ("URL", "http://127.0.0.1:80a"),
    ],
)
def test_a_bad_value_in_the_environment_is_named(base, serve, monkeypatch, name, text):
    connect(base, url := serve()).close()
    monkeypatch.setenv(f"RECKON_VLLM_{name}", text)
    with pytest.raises(UserError, match=f"RECKON_VLLM_{name}={text}"):
        connect(base, text if name == "URL" else url)


def test_training_and_saving_change_no_shape(base, full, tmp_path):
    policy = load_policy(base, base=base, settings=full).bfloat16()
    policy.config.eos_token_id = 7
    save_policy(policy, load_tokenizer(base), tmp_path)
    assert hash_path(tmp_path / "config.json") != hash_path(base / "config.json")
    assert weights_layout(tmp_path) == weights_layout(base)


@pytest.mark.parametrize(
    ("versions", "happened"),
    [
        (["default"], "started anew"),
        (["another run's-1"], "other weights"),
        (["unfinished"], "other weights"),
        (["own", "another run's-1"], "other weights"),
    ],
)
def test_answers_of_other_weights_are_not_used(base, serve, prompts, versions, happened):
    made = [version.replace("own", hash_path(base)) for version in versions]
    engine = engine_at(base, serve(generate=(200, {"choices": [choice(*made)]})))
    with pytest.raises(UserError, match=happened):
        tokens(engine, prompts, 1)


@pytest.mark.parametrize(
    ("status", "fault", "is_own", "words"),
    [(404, "The model `x` does not exist", False, "started anew"), (400, "no", True, "400.*no")],
)
def test_a_refusal_is_explained_or_passed_on(base, serve, prompts, status, fault, is_own, words):
    now = (200, {"weight_version": hash_path(base) if is_own else "default"})
    engine = engine_at(base, serve(generate=(status, {"error": fault}), weight_info=now))
    with pytest.raises(UserError, match=words):
        tokens(engine, prompts, 4)


@pytest.fixture
def echo(base):
    """Answer `n` completions, their tokens counted up from the seed as vLLM counts seeds."""
    own = choice(hash_path(base))

    def answer(request):
        seed, number = (request["sampling_params"][name] for name in ("seed", "n"))
        first = seed or 0  # None for greedy decoding
        return 200, {"choices": [{**own, "token_ids": [(first + i) % 500]} for i in range(number)]}

    return answer


def tokens(engine: ServerEngine, prompts: list[list[int]], number: int) -> list[list[int]]:
    groups = engine.generate(prompts, random_sampling(num_completions=number))
    return [[one.token_ids[0] for one in group] for group in groups]


def test_many_completions_are_seeded_as_one_request_would_be(base, serve, prompts, echo):
    answer = Mock(wraps=echo)
    for group in tokens(engine_at(base, serve(generate=answer)), prompts, 1100):
        assert group == [(group[0] + i) % 500 for i in range(1100)]
    assert max(call.args[0]["sampling_params"]["n"] for call in answer.mock_calls) == 512


@pytest.mark.parametrize("ending", [KeyboardInterrupt, UserError])
def test_after_an_end_no_further_request_is_sent(ending, base, serve, prompts, echo):
    """512 completions fill a server: one request is under way at a time."""
    sent = []

    def answer(request):
        sent.append(request)
        if len(sent) == 2 and ending is KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return (400, {"error": "no"}) if len(sent) == 2 else echo(request)

    now = (200, {"weight_version": hash_path(base)})
    engine = engine_at(base, serve(generate=answer, weight_info=now))
    with pytest.raises(ending):
        tokens(engine, prompts * 4, 512)
    assert len(sent) == 2 < len(prompts * 4)


def test_two_servers_give_the_completions_of_one(base, serve, prompts, echo):
    reached = [threading.Event(), threading.Event()]

    def answer(own, request):
        reached[own].set()
        assert reached[1 - own].wait(60)  # both servers must get a request
        return echo(request)

    alone = engine_at(base, serve(generate=echo))
    answers = (functools.partial(answer, own) for own in range(2))
    shared = engine_at(base, ",".join(serve(generate=each) for each in answers))
    assert tokens(shared, prompts, 4) == tokens(alone, prompts, 4)


def test_answers_in_any_order_are_those_of_their_prompts(base, serve, prompts, echo):
    random_ = random.Random(0)

    def answer(request):
        time.sleep(random_.random() / 20)
        return echo(request)

    at_once = engine_at(base, serve(generate=echo))
    late = engine_at(base, serve(generate=answer))
    assert tokens(late, prompts * 3, 4) == tokens(at_once, prompts * 3, 4)


def test_greedy_requests_are_sent_together_whatever_the_group(base, serve, prompts, echo):
    both = threading.Barrier(2)

    def answer(request):
        both.wait(10)
        return echo(request)

    engine = engine_at(base, serve(generate=answer))
    greedy = random_sampling(num_completions=512, temperature=0)
    groups = engine.generate(prompts[:2], greedy)
    assert [len(group) for group in groups] == [512, 512]


def test_a_server_that_falls_out_ends_the_run(base, serve, prompts, echo):
    urls = ",".join([serve(generate=(0, None)), serve(generate=echo)])
    with pytest.raises(UserError, match="no answer"):
        tokens(engine_at(base, urls), prompts, 4)


def test_adapters_go_to_all_servers(base, serve, tmp_path):
    take = Mock(return_value=(200, {}))
    # A restarted server has no adapter.
    anew = serve(load_lora_adapter=take, unload_lora_adapter=(404, {}))
    alive = serve(load_lora_adapter=take, unload_lora_adapter=take)
    engine = connect(base, f"{anew},{alive}")
    engine.use_adapter(tmp_path)
    engine.close()
    posted = [call.args[0]["lora_name"] for call in take.mock_calls]
    assert len(posted) == 3 and len(set(posted)) == 1
    dead = serve(load_lora_adapter=(0, None), unload_lora_adapter=(0, None))
    with pytest.raises(UserError, match="no answer"):
        connect(base, dead).use_adapter(tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_travels_in_the_dtype_of_the_weights_below(dtype, base, smoke, serve):
    kinds = set()

    def take(request):
        weights = load_file(Path(request["lora_path"]) / "adapter_model.safetensors")
        kinds.update(weight.dtype for weight in weights.values())
        return 200, {}

    engine = connect(base, serve(load_lora_adapter=take))
    settings = smoke.model.model_copy(update={"dtype": dtype})
    policy = add_adapter(load_policy(base, base=base, settings=settings), smoke.model.lora)
    trained = {weight.dtype for weight in policy.parameters() if weight.requires_grad}
    assert trained == {torch.float32}
    engine.sync(policy)
    assert kinds == {getattr(torch, dtype)}
