"""What stands in a model's folder decides how it is asked."""

from pathlib import Path

import pytest

from lib.errors import UserError
from lib.export.card import Recipe, model_card
from lib.inference.exported import DEFAULT_MODEL, find_format, find_model, find_system
from lib.params import Params
from lib.prompts import PROMPT_FORMATS, prompt_format, save_system

TAGS = ("<a>", "</a>", "<b>", "</b>")


def card(name: str, smoke: Params) -> str:
    """The card that `export` writes for a format."""
    return model_card(
        {},
        recipe=Recipe(seed=0, sft=smoke.sft, grpo=smoke.grpo),
        prompt=smoke.prompt.model_copy(update={"format": name}),
        evaluate=smoke.evaluate,
        export=smoke.export,
        inputs={},
    )


@pytest.mark.parametrize("layout", ["plain", "chatml", "llama3"])
@pytest.mark.parametrize("name", PROMPT_FORMATS)
def test_every_format_is_read_back_from_template_and_card(
    name: str, layout: str, smoke: Params
) -> None:
    if layout != "plain" and name in {"r1_zero", "alpaca"}:
        with pytest.raises(UserError, match=r"prompt\.layout"):
            prompt_format(name, layout=layout)
        return
    chosen = prompt_format(name, layout=layout)
    assert find_format(chosen.chat_template, added=[], card=card(name, smoke)) == chosen


@pytest.mark.parametrize("name", ["working_out", "xml", "r1_zero"])
def test_tags_of_ones_own_are_read_from_the_vocabulary(name: str, smoke: Params) -> None:
    chosen = prompt_format(name, tags=TAGS)
    found = find_format(chosen.chat_template, added=TAGS, card=card(name, smoke))
    assert found == chosen
    assert found is not None
    assert found.stop_strings == (("</b>",) if name == "r1_zero" else ())


def test_without_a_card_tokens_of_the_tags_tell_like_formats_apart() -> None:
    xml = prompt_format("xml")
    assert find_format(xml.chat_template, added=xml.marks, card="") == xml
    assert find_format(xml.chat_template, added=[], card="") is None


def test_an_unknown_template_is_no_format_whatever_the_card_says(smoke: Params) -> None:
    assert find_format("{{ messages }}", added=[], card=card("xml", smoke)) is None


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
    with pytest.raises(UserError, match=r"no model `org/name`: .*\(no route to the Hub\)"):
        find_model("org/name")


def test_a_hub_id_gives_the_folder_that_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked = {}

    def fetch(hub_id: str, *, allow_patterns: list[str]) -> str:
        asked[hub_id] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert find_model("org/name") == tmp_path
    assert "*.bin" not in asked["org/name"]
