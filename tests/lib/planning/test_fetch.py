"""`make fetch` from a folder in the Hub's layout instead of the Hub."""

import fnmatch
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from datasets import Dataset
from huggingface_hub import DryRunFileInfo
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from ruamel.yaml import YAML
from torch import __version__ as torch_version

from commands.fetch import main as fetch_params
from lib.core.errors import UserError
from lib.models.hub import fetched_model, find, kernel_repository, model_repository
from lib.models.load import with_kernel
from lib.params import compose_preset, load_params
from lib.params.data import hub_splits
from lib.planning.inputs import input_problems
from lib.problems.sources import read_source
from stages.prepare import main as prepare
from tests.lib.models.hub_models import COMMIT, write_snapshot
from tests.pipeline.source_rows import row_of

KERNEL_COMMIT = "456789abcdef0123456789abcdef0123456789ab"
SET_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"

SIZES = ("num_sft", "num_grpo", "num_held_out", "num_harder")

HTTP_404 = httpx.Response(404, request=httpx.Request("GET", "https://hub"))


def git_hash(file: Path) -> str:
    done = subprocess.run(["git", "hash-object", str(file)], capture_output=True, text=True)
    return done.stdout.strip()


class Hub:
    """`snapshot_download` over folders; the connection breaks after `lost` files."""

    def __init__(self, root: Path) -> None:
        self.root, self.online, self.lost, self.copied, self.damaged = root, True, 99, [], ""

    def snapshot_download(self, repo_id: str, **request: Any) -> Any:
        if not self.online or request.get("local_files_only"):
            raise LocalEntryNotFoundError("no network")
        repository = self.root / f"{request['repo_type']}s--{repo_id.replace('/', '--')}"
        if not repository.is_dir():
            raise RepositoryNotFoundError("404", response=HTTP_404)
        revision = request["revision"] or "main"
        branch = repository / "refs" / revision
        commit = branch.read_text() if branch.is_file() else revision
        folder = repository / "snapshots" / commit
        globs = request["allow_patterns"] or ["*"]
        files = [
            path.relative_to(folder)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and any(fnmatch.fnmatch(str(path.relative_to(folder)), glob) for glob in globs)
        ]
        target = request["local_dir"]
        missing = [file for file in files if not (target / file).is_file()]
        if request.get("dry_run"):
            return [
                DryRunFileInfo(
                    commit_hash=commit,
                    file_size=(folder / file).stat().st_size,
                    filename=str(file),
                    local_path="",
                    is_cached=file not in missing,
                    will_download=file in missing,
                )
                for file in files
            ]
        for number, file in enumerate(missing):
            if number == self.lost:
                raise ConnectionError("reset by peer")
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / file, target / file)
            self.copied.append(str(file))
            # As the Hub's client: the commit, the ETag and the time of each file.
            kept = target / ".cache/huggingface/download" / f"{file}.metadata"
            kept.parent.mkdir(parents=True, exist_ok=True)
            is_large = file.suffix in (".safetensors", ".parquet")
            etag = hashlib.sha256((folder / file).read_bytes()).hexdigest() if is_large else ""
            kept.write_text(f"{commit}\n{etag or git_hash(folder / file)}\n0\n")
            if self.damaged == str(file):
                (target / file).write_bytes(b"damaged")
        return str(target)


@pytest.fixture
def hub(tmp_path, monkeypatch, sets):
    """Put s0's model and SFT set on a Hub; write params without their commits."""
    worked = [problem for problem in sets.sft if problem.solution][:40]
    stand_in = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in.snapshot_download)
    write_snapshot(
        stand_in.root,
        name="unsloth/Qwen3-4B-Base",
        architecture="qwen3",
        texts=[problem.problem for problem in worked],
    )
    repository = stand_in.root / "datasets--unsloth--OpenMathReasoning-mini"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(SET_COMMIT)
    file = repository / "snapshots" / SET_COMMIT / "data/cot-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    rows = [row_of("open_math_reasoning", problem) for problem in worked]
    Dataset.from_list(rows).to_parquet(file)
    (file.parent.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n"
        "  - split: cot\n    path: data/cot-*\n---\n"
    )
    checkout = tmp_path / "checkout"
    (checkout / "data/raw").mkdir(parents=True)
    monkeypatch.chdir(checkout)
    content = YAML().load(compose_preset("s0-qwen3-4b"))
    content["prepare"]["grpo"]["sources"][0]["source"] = {"generator": "grpo"}
    content["prepare"]["benchmarks"] = [{"name": "math500", "source": {"generator": "held_out"}}]
    content["prepare"]["synthetic"] |= dict.fromkeys(SIZES, 64)
    YAML().dump(content, Path("params.yaml"))
    yield stand_in


def fetch() -> None:
    fetch_params([], standalone_mode=False)


def test_commits_are_looked_up_once_and_written_down(hub):
    fetch()
    params = load_params()
    (split,) = hub_splits(params.prepare.sft.sources[0].source)
    assert params.model.revision == COMMIT
    assert (split.hub, split.revision) == ("unsloth/OpenMathReasoning-mini", SET_COMMIT)
    written = Path("params.yaml").read_text()
    assert "# Every knob that changes a result" in written
    # After it nothing needs the network.
    hub.online = False
    fetch()
    assert Path("params.yaml").read_text() == written
    prepare(["--code=params.yaml"], standalone_mode=False)
    assert Path("data/models/base/tokenizer.json").is_file()
    assert Path("data/problems/sft.jsonl").read_text().count("\n") > 0


def test_an_interrupted_fetch_is_not_whole_and_resumes(hub, capsys):
    hub.lost = 1
    with pytest.raises(UserError, match="the Hub cannot be reached"):
        fetch()
    # Sizes are printed before anything is fetched.
    assert f"model unsloth/Qwen3-4B-Base@{COMMIT[:12]}: 0 MB" in capsys.readouterr().out
    hub.online = False
    with pytest.raises(UserError, match="run `make fetch`"):
        list(read_source(load_params().prepare.sft.sources[0].source))
    hub.online, hub.lost = True, 99
    fetch()
    assert len(hub.copied) == len(set(hub.copied)) > 2


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_of_another_hash_is_not_taken(hub, file):
    hub.damaged = file
    with pytest.raises(UserError, match=f"model.revision: {file} of"):
        fetch()
    assert not fetched_model("unsloth/Qwen3-4B-Base")


def test_a_fetched_file_that_changes_is_refused_a_copied_one_is_not(hub):
    fetch()
    model = load_params().model
    repository = model_repository(model.name, model.revision)
    config = repository.folder / "config.json"
    os.utime(config, (0, 0))
    assert find(repository) == repository.folder
    text = config.read_text("utf-8")
    config.write_text(text.replace("qwen3", "qwen4"), "utf-8")
    with pytest.raises(UserError, match="not the file that was fetched"):
        find(repository)


def test_a_missing_set_is_one_line_and_changes_no_params(hub):
    shutil.rmtree(hub.root / "datasets--unsloth--OpenMathReasoning-mini")
    before = Path("params.yaml").read_text()
    with pytest.raises(UserError, match="no such repository or revision") as raised:
        fetch()
    assert "\n" not in raised.value.message
    assert Path("params.yaml").read_text() == before


def test_the_flash_kernel_comes_in_the_builds_for_this_torch(hub):
    repository = hub.root / "kernels--kernels-community--flash-attn2"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/v3").write_text(KERNEL_COMMIT)
    torch, here = "".join(torch_version.split(".")[:2]), f"{platform.machine()}-linux"
    fitting = {f"torch{torch}-cxx11-cu130-{here}", f"torch-stable-abi211-cu130-{here}"}
    # kernels 0.16.2 refuses another torch, a newer ABI and another CUDA.
    others = ("torch26-cxx11-cu130", f"torch{torch}-cxx11-rocm63", "torch-stable-abi299-cu130",
              f"torch{torch}-cxx11-cu128", "torch-stable-abi211-cu128")  # fmt: skip
    for build in (*fitting, *(f"{other}-{here}" for other in others)):
        folder = repository / "snapshots" / KERNEL_COMMIT / "build" / build
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    content = YAML().load(Path("params.yaml"))
    content["model"] |= {"backend": "transformers", "attention": "flash_attention_2"}
    content["rollout"]["engine"] = "transformers"
    YAML().dump(content, Path("params.yaml"))
    fetch()
    pinned = load_params().model.attention
    assert pinned == f"kernels-community/flash-attn2@{KERNEL_COMMIT}"
    hub.online = False
    assert {path.name for path in (find(kernel_repository(KERNEL_COMMIT)) / "build").iterdir()} == (
        fitting
    )
    assert with_kernel(pinned) == "kernels-community/flash-attn2"
    hub.online = True
    for build in fitting:
        shutil.rmtree(repository / "snapshots" / KERNEL_COMMIT / "build" / build)
    content["model"]["attention"] = "flash_attention_2"
    YAML().dump(content, Path("params.yaml"))
    before = len(hub.copied)
    with pytest.raises(UserError, match=r"no build for this torch on cu130.*attention: sdpa"):
        fetch()
    assert len(hub.copied) == before


def test_what_is_absent_and_out_of_reach_is_named(hub):
    fetch()
    params = load_params()
    hub.online = False
    assert list(input_problems(params, asks_hub=True)) == []
    assert "Qwen3-4B-Base" in str(fetched_model("unsloth/Qwen3-4B-Base"))
    shutil.rmtree("data/hub")
    assert fetched_model("unsloth/Qwen3-4B-Base") is None
    assert any(problem.startswith("model.revision: ") for problem in input_problems(params))
    model, data = sorted(input_problems(params, asks_hub=True))
    assert "cannot be reached" in model and "Qwen3-4B-Base" in model
    assert "OpenMathReasoning-mini" in data
    hub.online = True
    missing = sorted(input_problems(params, asks_hub=True))
    assert len(missing) == 2 and all("run `make fetch`" in problem for problem in missing)
