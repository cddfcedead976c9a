"""Headless Chromium, driven over a pipe with the DevTools protocol; no driver, no open port."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-pipe", "--window-size=1280,900",
)  # fmt: skip
PATIENCE_S = 60
"""Seconds, far above a page's needs: only a hanging browser exceeds it."""


def executable() -> str | None:
    """Find Chromium's path, or None (Debian: `apt-get install chromium`)."""
    return next(
        (path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None
    )


class Chromium:
    """One page in one browser; errors and warnings of its console go to `complaints`."""

    def __init__(self, profile: Path) -> None:
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{commands} 4>&{answers}', executable(), *FLAGS,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(PATIENCE_S)
        os.close(self._send)
        os.close(self._receive)

    def call(self, method: str, **params):
        """Send one command and return its result; events on the way are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            received = self._read()
            if received.get("id") == self._number:
                if "error" in received:
                    raise RuntimeError(f"{method}: {received['error']['message']}")
                return received["result"]
            self._note(received)

    def _read(self) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], PATIENCE_S)
            chunk = os.read(self._receive, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("Chromium does not answer")
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str([argument.get("value") for argument in params["args"]]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def evaluate(self, script: str):
        """Evaluate an expression to its JSON value; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Poll until the expression is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(script):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {script}")
            time.sleep(0.05)

    def open(self, address: str) -> None:
        """Load a page and wait until the rollout browser is ready."""
        self.call("Page.navigate", url=address)
        self.wait_for("document.querySelector('#browser')?.getAttribute('aria-busy') === 'false'")

    def press(self, key: str, *, code: int = 0) -> None:
        """Press and release one key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
