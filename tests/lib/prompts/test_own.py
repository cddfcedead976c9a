"""Layout `own`: training, generation and export render as the model's own chat template does.

Three templates are the models' own, as TRL has them; the others have their families' structure: the
turns, where a system message goes, what a generation prompt adds.
"""

# ruff: noqa: E501

from pathlib import Path

import pytest
import trl

from lib.artifacts.problems import Problem
from lib.core.errors import UserError
from lib.engines.base import encode
from lib.models.save import keep_own_template
from lib.prompts import prompt_format, template, with_default_system
from lib.prompts.formats import conversation
from lib.training.sft import sft_dataset

TRLS = Path(trl.__file__).parent / "chat_templates"
TURNS = "{%- for m in messages -%}"
CHATML = "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}"
FAMILIES = {
    **{name: (TRLS / f"{name}.jinja").read_text() for name in ("qwen3", "llama3_2", "gemma3")},
    "phi4": (
        TURNS + "{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' -}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}"
        "{{- '<|im_start|>assistant<|im_sep|>' -}}{%- endif -%}"
    ),
    "smollm2": (
        TURNS + "{%- if loop.first and m.role != 'system' -%}"
        "{{- '<|im_start|>system\\nYou are helpful<|im_end|>\\n' -}}{%- endif -%}" + CHATML +
        "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
    ),
    "mistral": (
        "{{- bos_token -}}" + TURNS + "{%- if m.role == 'system' -%}"
        "{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}{%- elif m.role == 'user' -%}"
        "{{- '[INST]' + m.content + '[/INST]' -}}{%- else -%}{{- m.content + eos_token -}}"
        "{%- endif -%}{%- endfor -%}"
    ),
}  # fmt: skip
TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"),
    "[/SYSTEM_PROMPT]",
]
ARGUMENTS = {"qwen3": {"enable_thinking": False}, "llama3_2": {"date_string": "26 Jul 2024"}}
ENDS = {"llama3_2": "<|eot_id|>", "gemma3": "<end_of_turn>", "mistral": "<eos>"}
LOOP = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
PROBLEM = Problem.create(problem="What is 6 · 12?", reference="72", solution="6 · 12 = 72")


@pytest.fixture
def tokenizer_of(build_tokenizer):
    def build(name):
        tokenizer = build_tokenizer(FAMILIES[name])
        tokenizer.add_special_tokens({"additional_special_tokens": TOKENS, "eos_token": "<eos>"})
        return tokenizer

    return build


@pytest.mark.parametrize("system", ["", "Be brief."])
@pytest.mark.parametrize("form", ["xml", "boxed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_all_tokens_are_those_of_the_models_own_template(tokenizer_of, name, form, system):
    tokenizer, own = tokenizer_of(name), prompt_format(form, layout="own")
    keep_own_template(tokenizer, own, system, ARGUMENTS.get(name, {}))
    assert tokenizer.eos_token == ENDS.get(name, "<|im_end|>")
    prompt = conversation(PROBLEM.problem, system=system)
    answer = own.target(solution=PROBLEM.solution, reference=PROBLEM.reference)
    # The model's template as it is, with its arguments passed as arguments.
    theirs = tokenizer_of(name)
    options = {"tokenize": False, **ARGUMENTS.get(name, {})}
    whole = theirs.apply_chat_template(
        [*prompt, {"role": "assistant", "content": answer}], **options
    ).removesuffix("\n")
    asked = theirs.apply_chat_template(prompt, add_generation_prompt=True, **options)
    (row,) = sft_dataset([PROBLEM], tokenizer, prompt_format=own, system=system)
    (generated,) = encode(tokenizer, [prompt])
    start = row["completion_mask"].index(1)
    assert row["input_ids"] == theirs(whole, add_special_tokens=False)["input_ids"]
    assert row["input_ids"][:start] == generated
    assert generated == theirs(asked, add_special_tokens=False)["input_ids"]
    # As an export has it, for `solve`: the system prompt is in the template.
    tokenizer.chat_template = with_default_system(tokenizer.chat_template, system)
    assert encode(tokenizer, [conversation(PROBLEM.problem, system="")]) == [generated]


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("qwen3", {}, "enable_thinking: false"),
        ("llama3_2", {}, "prints the day"),
        ("gemma3", {"template": "{{- raise_exception('no system role') -}}"}, "no system role"),
        ("phi4", {"template": None}, "has no chat template"),
        ("phi4", {"template": "{{- messages[-1].content -}}"}, "no token of"),
        ("phi4", {"template": "{{- messages[0].content -}}"}, "changes an answer"),
        ("phi4", {"template": LOOP}, "takes more than 1.2 s"),
        ("mistral", {"template": FAMILIES["mistral"].replace("eos_token", "''")}, "no token of"),
    ],
)
def test_what_training_could_not_repeat_is_one_line(tokenizer_of, monkeypatch, name, change, fault):
    monkeypatch.setattr(template, "RENDERING_S", 1)
    tokenizer = tokenizer_of(name)
    if change:
        tokenizer.chat_template = change["template"]
    own = prompt_format("xml", layout="own")
    with pytest.raises(UserError, match=fault):
        keep_own_template(tokenizer, own, "Be brief.", {})
        # By SFT only: reinforcement needs the prompt alone.
        sft_dataset([PROBLEM], tokenizer, prompt_format=own, system="Be brief.")


def test_a_format_that_begins_in_the_prompt_is_refused():
    with pytest.raises(UserError, match="begins in the prompt"):
        prompt_format("working_out", layout="own")
