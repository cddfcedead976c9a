"""A model's own chat template is a program: it is tried once, in a process with limits."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from lib.core.errors import UserError
from lib.prompts.formats import conversation

SECONDS, MEMORY_BYTES, CHARACTERS = 3, 2 * 1024**3, 10**6
"""Of the CPU and of the address space, for one short question; and the longest prompt of it."""

# Jinja's sandbox bounds neither nested loops nor the length of a text.
_TRIAL = f"""
import json, resource, sys
from transformers.utils.chat_template_utils import render_jinja_template
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
spent = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
resource.setrlimit(resource.RLIMIT_CPU, (spent + {SECONDS}, spent + {SECONDS}))
print(len(render_jinja_template(add_generation_prompt=True, **json.load(sys.stdin))[0][0]))
"""


def try_template(tokenizer: PreTrainedTokenizerBase, *, system: str, folder: Path) -> None:
    """Render one question by the tokenizer's chat template, under limits.

    Raises:
        UserError: it fails, as where it knows no system role, takes too long or too much memory,
            or makes an endless prompt.
    """
    request = {
        "conversations": [conversation("What is 2 + 3?", system=system)],
        # Of several named ones, that of a plain conversation.
        "chat_template": tokenizer.get_chat_template(),
        **tokenizer.special_tokens_map,
    }
    command = [sys.executable, "-c", _TRIAL]
    tried = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if tried.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        fault = f"takes more than {SECONDS} s"
    elif tried.returncode:
        # One that was aborted may have said nothing.
        words = tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"]
        fault = f"fails: {words[-1][:200]}"
    elif int(tried.stdout) > CHARACTERS:
        fault = f"makes {int(tried.stdout):,} characters of a short question"
    else:
        return
    role = ", SYSTEM= asks without a system prompt" if system else ""
    raise UserError(
        f"{folder}: its chat template {fault}; PROMPT_FORMAT=boxed/chatml takes another{role}"
    )
