"""An export behind vLLM's OpenAI-compatible server has its training's prompt and stop strings."""

import httpx
import pytest

from lib.models.pretrained import load_tokenizer
from lib.prompts import Generation, save_prompt
from lib.prompts.formats import conversation
from lib.rewards.rollout import Rollout
from tests.conftest import ROOT
from tests.lib.inference.conftest import ENDLESS, QUESTION, R1, rendering_of
from tests.vllm_server import free_port, server_process

pytestmark = pytest.mark.vllm

MESSAGES = conversation(QUESTION, system="")


@pytest.fixture(scope="module")
def model(teach, smoke):
    """Overfit on an answer with endless text after it; the heads are wide enough for vLLM."""
    wide = smoke.model.tiny.model_copy(update={"head_dim": 32})
    folder = teach(R1, ENDLESS, model=smoke.model.model_copy(update={"tiny": wide}))
    generation = Generation(R1.stop_strings, max_new_tokens=100)
    save_prompt(folder, system="", rendering=rendering_of(R1), generation=generation)
    return folder


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    """Start a server with the command of `./reckon serve-model`; return its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ("-m", "commands", "serve-model", f"--model={model}", f"--port={port}")
    log = tmp_path_factory.mktemp("serving") / "log"
    with server_process(*command, address=url, log=log, cwd=ROOT):
        yield url


def ask(address: str, **settings: object):
    from openai import OpenAI

    client = OpenAI(
        base_url=f"{address}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    )
    return client.chat.completions.create(
        model="reckon", messages=MESSAGES, temperature=0, **settings
    )


def test_template_and_stop_strings_apply_and_the_answer_is_right(address, model):
    answer = ask(address)
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content.endswith("</answer>")
    rollout = Rollout(completion=choice.message.content, reference="345", prompt_format=R1)
    assert rollout.answer_ok
    prompt = load_tokenizer(model).apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert answer.usage.prompt_tokens == len(prompt["input_ids"])


def test_a_client_that_names_its_own_stop_strings_gets_those(address):
    content = ask(address, stop=["and then"]).choices[0].message.content
    assert "</answer>" in content
    assert not content.endswith("</answer>")
