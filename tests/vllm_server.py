"""Start a vLLM server for tests, with `./reckon vllm-server`."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def server_process(*arguments: str, address: str, log: Path, cwd: Path) -> Iterator[int]:
    """Run a server with Python; yield its process id once it answers; stop it after the block."""
    with log.open("w") as written:
        server = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    pause = threading.Event()
    try:
        while not _answers(address):
            assert server.poll() is None, log.read_text(errors="replace")
            pause.wait(0.2)
        yield server.pid
    finally:
        server.terminate()
        server.wait()


@contextmanager
def vllm_server(
    checkout: Path, *, params: Path, model: Path, log: Path, port: int = 0
) -> Iterator[str]:
    """Yield the address of a server of `model`, run from `checkout`; stop it after the block."""
    port = port or free_port()
    options = [f"--params={params}", f"--model={model}", f"--port={port}"]
    address = f"http://127.0.0.1:{port}"
    command = ["-m", "commands", "vllm-server", *options]
    with server_process(*command, address=address, log=log, cwd=checkout) as process:
        others = psutil.Process(process).children(recursive=True)
        yield address
    _, left = psutil.wait_procs(others, timeout=300)
    assert not left


def served(address: str) -> list[str]:
    """List the names of a server's models: its own, then adapters."""
    return [model["id"] for model in httpx.get(f"{address}/v1/models").json()["data"]]


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", trust_env=False).is_success
    except httpx.TransportError:
        return False
