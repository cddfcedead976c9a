"""Load what was written again, in a process of its own, and compare it with what was trained.

`python -m lib.export.verify REQUEST REPORT` reads a JSON request (`Request`) and writes a JSON
report (`Found`): a `Difference` for each form of the model, and what vLLM says where it is
installed. A fresh process has nothing of the exporting one in memory, so that it sees what another
machine would see.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lib
from lib.environment import installed_version
from lib.errors import UserError
from lib.export.compare import Difference
from lib.export.on_vllm import Deviation, deviation
from lib.prompts import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """One form in which the model was written.

    Attributes:
        kind: merged, adapter or gguf.
        dtype: type that it is run in.
        expected: file of a `Said`, what it has to say.
        tolerance: largest relative error of its logits.
        same_tokens: whether greedy completions must be the same; quantised weights may differ.
    """

    kind: str
    dtype: str
    expected: str
    tolerance: float
    same_tokens: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What is verified, and on what.

    Attributes:
        folder: what was written.
        base: the weights below an adapter.
        forms: of the model in `folder`.
        conversations: chat messages of the held-out prompts.
        max_new_tokens: longest completion.
        stop_strings: of the prompt format.
        threads: CPU threads; another number rounds differently.
        attention: attention implementation.
    """

    folder: str
    base: str
    forms: tuple[Form, ...]
    conversations: Sequence[list[Message]]
    max_new_tokens: int
    stop_strings: Sequence[str]
    threads: int
    attention: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What a verification found.

    Attributes:
        forms: difference of each form, by kind.
        vllm: of the merged model on vLLM; None where that is not installed, or cannot run it.
        vllm_refusal: why vLLM, which is installed, cannot run the model here.
    """

    forms: dict[str, Difference]
    vllm: Deviation | None = None
    vllm_refusal: str = ""


def verify_afresh(request: Request) -> Found:
    """Verify each form in a new Python process.

    Raises:
        UserError: a form cannot be loaded, or does not say what was trained.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder) / "request.json", Path(folder) / "report.json"
        asked.write_text(json.dumps(dataclasses.asdict(request)), encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, "-m", "lib.export.verify", str(asked), str(report)],
            cwd=Path(lib.__file__ or "").parents[1],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            said = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
            raise UserError(
                f"export: what was written cannot be loaded again ({said[-1].strip()}); "
                "nothing was exported"
            )
        found = _read(report)
    require(request.forms, found)
    return found


def _read(report: Path) -> Found:
    content = json.loads(report.read_text(encoding="utf-8"))
    forms = {kind: Difference(**each) for kind, each in content.pop("forms").items()}
    vllm = content.pop("vllm")
    return Found(forms=forms, vllm=Deviation(**vllm) if vllm else None, **content)


def require(forms: Sequence[Form], found: Found) -> None:
    """Refuse a form that differs.

    Raises:
        UserError: says which form and how.
    """
    for form in forms:
        differs = found.forms[form.kind]
        if fault := differs.fault(tolerance=form.tolerance, same_tokens=form.same_tokens):
            raise UserError(f"export: {form.kind}: {fault}; nothing was exported")
        if found.vllm and form.kind == "merged" and (fault := found.vllm.fault(dtype=form.dtype)):
            raise UserError(f"export: vllm: {fault}; nothing was exported")


def verify(request: Request) -> Found:
    """Load each form and compare what it says with what is expected of it."""
    import torch

    from lib.engines.policy import load_tokenizer

    torch.set_num_threads(request.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    tokenizer = load_tokenizer(Path(request.folder))
    forms = {form.kind: _compare(form, request, tokenizer) for form in request.forms}
    if not installed_version("vllm"):
        return Found(forms=forms)
    try:
        return Found(forms=forms, vllm=_on_vllm(request))
    except UserError as error:
        return Found(forms=forms, vllm_refusal=error.message)


def _compare(form: Form, request: Request, tokenizer: "PreTrainedTokenizerBase") -> Difference:
    from lib.export.compare import Said, difference, listen
    from lib.export.forms import device_here, load_form

    settings = {"dtype": form.dtype, "attention": request.attention}
    model = load_form(form.kind, Path(request.folder), base=Path(request.base), **settings)
    expected = Said.load(Path(form.expected))
    said = listen(
        model.to(device_here()),
        tokenizer,
        request.conversations,
        max_new_tokens=request.max_new_tokens,
        stop_strings=request.stop_strings,
        along=expected.read,
    )
    return difference(said, expected)


def _on_vllm(request: Request) -> Deviation:
    from lib.export.compare import Said

    (merged,) = [form for form in request.forms if form.kind == "merged"]
    return deviation(
        Path(request.folder),
        Said.load(Path(merged.expected)),
        dtype=merged.dtype,
        attention=request.attention,
        max_new_tokens=request.max_new_tokens,
        stop_strings=request.stop_strings,
    )


def main(asked: Path, report: Path) -> None:
    """Answer the request in the file `asked`."""
    content = json.loads(asked.read_text(encoding="utf-8"))
    forms = tuple(Form(**form) for form in content.pop("forms"))
    found = verify(Request(forms=forms, **content))
    report.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    from transformers import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
