import pytest

from lib.core.errors import UserError
from lib.prompts import prompt_format, saved_system, system_prompt, with_default_system

XML = prompt_format("xml")


@pytest.mark.parametrize(
    ("setting", "text"), [("Be brief.", "Be brief."), ("", ""), ("format", XML.instructions)]
)
def test_a_system_prompt_is_a_text_or_the_formats_instructions(setting, text):
    assert system_prompt(setting, prompt_format=XML) == text


def test_a_file_is_read_without_the_blank_lines_around_it(tmp_path):
    path = tmp_path / "system.txt"
    # Editors on Windows begin a file with a byte order mark.
    path.write_text("\nBe brief.\nAnd right.\n\n", encoding="utf-8-sig")
    assert system_prompt(f"file:{path}", prompt_format=XML) == "Be brief.\nAnd right."


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_that_gives_no_prompt_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "system.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"prompt\.system: .*system\.txt"):
        system_prompt(f"file:{path}", prompt_format=XML)


def test_a_missing_system_prompt_names_its_stage(tmp_path):
    with pytest.raises(UserError, match="dvc repro prepare"):
        saved_system(tmp_path)


def test_without_a_system_prompt_the_template_stays():
    assert with_default_system(XML.chat_template, "") == XML.chat_template
