from lib.prompts import PromptFormat
from lib.prompts.formats import conversation
from lib.prompts.template import render


def prompt_text(prompt_format: PromptFormat, problem: str, *, system="", bos_token="") -> str:
    """Render a problem's prompt without a tokenizer, up to the start of the completion."""
    return render(
        conversation(problem, system=system),
        template=prompt_format.chat_template,
        bos_token=bos_token,
        eos_token="",
        add_generation_prompt=True,
    )
