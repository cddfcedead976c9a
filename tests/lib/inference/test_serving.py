"""An export behind vLLM's OpenAI-compatible server is asked and stops as it was trained to."""

import socket
import subprocess
import sys

import httpx
import pytest

from lib.engines.policy import load_tokenizer
from lib.prompts import Generation, prompt_format, save_prompt
from lib.verifier import is_equivalent
from lib.verifier.extract import extract_answer
from tests.conftest import ROOT
from tests.lib.inference.conftest import QUESTION, WORKING

pytestmark = pytest.mark.vllm

R1 = prompt_format("r1_zero")


@pytest.fixture(scope="module")
def model(teach, smoke):
    """Taught to answer, and then to talk on for ever; its heads are wide enough for vLLM."""
    wide = smoke.model.tiny.model_copy(update={"head_dim": 32})
    folder = teach(
        R1,
        R1.target(solution=WORKING, reference="345") + " and then more " * 8,
        model=smoke.model.model_copy(update={"tiny": wide}),
    )
    rendering = {"name": R1.name, "tags": R1.marks, "layout": "plain"}
    generation = Generation(R1.stop_strings, max_new_tokens=100)
    save_prompt(folder, system="", rendering=rendering, generation=generation)
    return folder


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    """Of a server, started as `make serve-model` does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("serving") / "log"
    planned = subprocess.run(
        ["make", "--dry-run", "serve-model", f"MODEL={model}", f"PORT={port}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (command,) = [line for line in planned.splitlines() if line.startswith("python -m stages.")]
    with log.open("wb") as said:
        server = subprocess.Popen(
            [sys.executable, *command.replace("'", "").split()[1:]],
            cwd=ROOT,
            stdout=said,
            stderr=said,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        while not healthy(url):
            assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        yield url
    finally:
        server.terminate()
        server.wait()


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False


def ask(address: str, **settings: object):
    from openai import OpenAI

    client = OpenAI(
        base_url=f"{address}/v1", api_key="none", http_client=httpx.Client(trust_env=False)
    )
    messages = [{"role": "user", "content": QUESTION}]
    return client.chat.completions.create(
        model="reckon", messages=messages, temperature=0, **settings
    )


def test_template_and_stop_strings_apply_and_the_answer_is_right(address, model):
    answer = ask(address)
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content.endswith("</answer>")
    found = extract_answer(choice.message.content, prompt_format=R1)
    assert found is not None
    assert is_equivalent(reference="345", answer=found)
    prompt = load_tokenizer(model).apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True
    )
    assert answer.usage.prompt_tokens == len(prompt["input_ids"])


def test_a_client_that_names_its_own_stop_strings_gets_those(address):
    said = ask(address, stop=["and then"]).choices[0].message.content
    assert "</answer>" in said
    assert not said.endswith("</answer>")
