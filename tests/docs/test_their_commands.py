"""The commands and values of docs/from_their_commands.md hold on their section's preset.

`key: value` is in the preset; DVC takes `-S key=value`, params accept it and the plan can print it;
`make evaluate` comes to its first token; a dotted name of `lib` can be imported. The verbs
of make are checked on every page by test_links.py.
"""

import functools
import pkgutil
import re
import shlex
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from click.testing import CliRunner
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from lib.artifacts import read_json, read_jsonl, write_json, write_jsonl
from lib.artifacts.hub import model_repository
from lib.evaluation.models import apply_settings
from lib.params import compose_preset, load_params, preset_names, preset_params
from lib.params.data import known_sets
from lib.planning.plan import plan_lines
from lib.prompts import save_prompt
from stages.evaluate_model import main as evaluate_model
from tests.conftest import ROOT, run_command
from tests.lib.params.test_idle import idle
from tests.pipeline.source_rows import ROWS

PAGE = (ROOT / "docs/from_their_commands.md").read_text(encoding="utf-8")
SECTIONS = {
    preset: section
    for section in PAGE.split("\n## ")[1:]
    for preset in re.findall(r"`([^`]+)`", section.splitlines()[0])
}
OURS = [
    (preset, span)
    for preset, section in SECTIONS.items()
    for row in re.findall(r"^\| .*", section, re.MULTILINE)
    for span in re.findall(r"`([^`]+)`", re.split(r" \| ", row)[1])
]
params_of = functools.cache(preset_params)


def variables_of(span: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(span) if "=" in word)


def spans(pattern: str) -> list[object]:
    return [
        pytest.param(preset, span, id=f"{preset.split('-')[0]}-{number}")
        for number, (preset, span) in enumerate(OURS)
        if re.match(pattern, span)
    ]


def test_every_system_has_its_section():
    assert set(SECTIONS) == {name for name in preset_names() if re.match(r"s\d-", name)}


@pytest.mark.parametrize(("preset", "span"), spans(r"[a-z_]+(\.[a-z_]+)+: "))
def test_a_value_named_as_the_presets_is_in_it(preset, span):
    key, _, value = span.partition(": ")
    section, *names = key.split(".")
    content = params_of(preset).model_dump(mode="json")[section]
    for name in names:
        content = content[name]
    assert content == YAML(typ="safe").load(value)


@pytest.mark.parametrize(("preset", "span"), spans("-S "))
def test_an_override_is_taken_and_can_be_planned(preset, span, tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text(compose_preset(preset), encoding="utf-8")
    apply_overrides(str(file), [word for word in shlex.split(span) if word != "-S"])
    changed = load_params(file)
    assert changed != params_of(preset)
    assert idle(changed) == []
    assert list(plan_lines(changed))


@pytest.mark.parametrize(("preset", "span"), spans(".*BENCHMARKS="))
def test_benchmarks_and_settings_are_taken(preset, span):
    variables = variables_of(span)
    benchmarks = variables["BENCHMARKS"].split(",")
    assert {*benchmarks} <= {*known_sets()}
    section = params_of(preset).evaluate.model_dump(mode="json")
    assert apply_settings(section, variables.get("SET", ""), benchmarks=benchmarks)


@pytest.mark.parametrize(("preset", "span"), spans("make evaluate "))
def test_an_evaluation_comes_to_its_first_token(preset, span, base, sets, tmp_path, monkeypatch):
    """It runs on tiny weights in the folder of `make fetch`, without the Hub."""
    planned = run_command("make", "--dry-run", "--old-file=setup", *shlex.split(span)[1:]).stdout
    (recipe,) = re.findall(r"python -m stages.evaluate_model (.*)", planned.replace("\\\n", " "))
    content = params_of(preset).model_dump(mode="json")
    content["model"]["attention"] = "sdpa"
    content["evaluate"] |= {"engine": "transformers", "max_new_tokens": 1, "overrides": []}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    write_json(Path("params.yaml"), content)
    variables = variables_of(span)
    for name in variables["MODEL"].split(","):
        fetched = model_repository(name, content["model"]["revision"] or "0" * 40).folder
        folder = Path(name) if name.startswith("data/") else fetched
        shutil.copytree(base, folder)
        config = read_json(folder / "config.json")
        # The longest prompt is beyond the smoke preset's positions.
        write_json(folder / "config.json", {**config, "max_position_embeddings": 4096})
        if folder == Path(name):
            rendering = {key: content["prompt"][key] for key in ("tags", "layout")}
            save_prompt(
                folder, system="", rendering={"name": content["prompt"]["format"], **rendering}
            )
    Path("data/raw").mkdir()
    benchmarks = variables.get("BENCHMARKS", ",".join(content["evaluate"]["benchmarks"])).split(",")
    for name in benchmarks:
        row = ROWS[name.removeprefix("competition_")](sets.benchmarks["held_out"][0])
        write_jsonl(Path(f"data/raw/{name}.jsonl"), [row])
    ran = CliRunner().invoke(evaluate_model, shlex.split(recipe))
    assert ran.exit_code == 0, ran.output
    own_format = content["prompt"]["format"]
    assert variables.get("PROMPT_FORMAT", own_format) == own_format
    files = Path(variables.get("OUT", "data/evaluations"), "completions").iterdir()
    rows = [row for file in files for row in read_jsonl(file)]
    assert {row["benchmark"] for row in rows} == set(benchmarks)
    assert {row["num_tokens"] for row in rows} == {1}


@pytest.mark.parametrize(("preset", "span"), spans("make preset PRESET=s"))
def test_the_preset_of_a_section_is_written(preset, span):
    assert span.partition("=")[2] in {name for name in SECTIONS if name[:2] == preset[:2]}


@pytest.mark.parametrize(("preset", "span"), spans(r"lib\.[\w.]+$"))
def test_a_function_of_the_library_is_there(preset, span):
    assert callable(pkgutil.resolve_name(span))
