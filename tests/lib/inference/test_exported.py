"""What stands in a model's folder decides how it is asked."""

from pathlib import Path
from typing import Any

import pytest

from lib.errors import UserError
from lib.inference.exported import DEFAULT_MODEL, find_format, find_model, find_system
from lib.prompts import PROMPT_FORMATS, prompt_format, save_prompt, save_system

PLAIN = {"name": "xml", "tags": (), "layout": "plain"}


def test_the_format_is_read_from_the_model_or_from_the_base_beside_it(tmp_path: Path) -> None:
    for name in ("base", "export/adapter"):
        (tmp_path / name).mkdir(parents=True)
    adapter = tmp_path / "export/adapter"
    assert find_format(adapter) is None
    save_prompt(tmp_path / "base", system="of the base", rendering=PLAIN)
    assert find_format(adapter) == prompt_format("xml")
    assert find_system(adapter) == "of the base"
    rendering = {"name": "r1_zero", "tags": ("<a>", "</a>", "<b>", "</b>"), "layout": "plain"}
    save_prompt(adapter, system="", rendering=rendering)
    assert find_format(adapter) == prompt_format(**rendering)
    assert find_format(adapter).stop_strings == ("</b>",)
    assert find_system(adapter) == ""


@pytest.mark.parametrize("layout", ["plain", "chatml", "llama3"])
@pytest.mark.parametrize("name", PROMPT_FORMATS)
def test_every_format_is_read_back(name: str, layout: str, tmp_path: Path) -> None:
    rendering = {"name": name, "tags": (), "layout": layout}
    if layout != "plain" and name in {"r1_zero", "alpaca"}:
        with pytest.raises(UserError, match=r"prompt\.layout"):
            save_prompt(tmp_path, system="", rendering=rendering)
        return
    save_prompt(tmp_path, system="", rendering=rendering)
    assert find_format(tmp_path) == prompt_format(**rendering)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is damaged"),
        ('{"name": "xml"}', "is damaged"),
        ('["xml"]', "is damaged"),
        ('{"name": "yml", "tags": [], "layout": "plain"}', "no format `yml`"),
    ],
)
def test_a_damaged_format_is_one_line_that_names_the_file(
    content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "prompt_format.json").write_text(content)
    with pytest.raises(UserError, match=rf"prompt_format\.json.*{said}"):
        find_format(tmp_path)


def test_the_models_own_system_prompt_comes_before_the_bases(tmp_path: Path) -> None:
    for name in ("base", "export"):
        (tmp_path / name).mkdir()
    assert find_system(tmp_path / "export") == ""
    save_system(tmp_path / "base", "of the base")
    assert find_system(tmp_path / "export") == "of the base"
    save_system(tmp_path / "export", "of the export")
    assert find_system(tmp_path / "export") == "of the export"


def test_no_export_yet_says_what_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="nothing is exported yet; run `dvc repro export`"):
        find_model(str(DEFAULT_MODEL))


def test_a_path_that_is_none_is_not_asked_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no model at .*nowhere; expected a folder"):
        find_model(tmp_path / "nowhere")


def test_a_folder_without_a_model_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no model: expected a config\.json"):
        find_model(tmp_path)


def test_a_hub_id_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no route to the Hub\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(UserError, match=r"`org/name`: not \(all\) on this machine.*be reached$"):
        find_model("org/name")


def test_a_hub_id_gives_the_folder_that_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = {}

    def fetch(**request: Any) -> str:
        asked[request["repo_id"]] = request["allow_patterns"]
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert find_model("org/name") == tmp_path
    assert "*.bin" not in asked["org/name"]
