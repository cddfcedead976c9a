"""The interface of all engines: token ids of P prompts in, G completions of each out.

`open_engine` opens one by its name in params. Callers need no knowledge of its library.
"""

import abc
import dataclasses
import hashlib
import importlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lib.artifacts.completions import Finish as Finish
from lib.artifacts.completions import GeneratedCompletion as GeneratedCompletion
from lib.core.errors import UserError
from lib.core.process import require
from lib.params.engines import ENGINES, VLLM_SHARE, EngineFacts
from lib.prompts.template import bounded_rendering
from lib.prompts.tools import find_tool

if TYPE_CHECKING:
    # `lib.inference` reads this module, and is imported without anything heavy.
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampling settings of a request.

    Attributes:
        num_completions: completions per prompt (G).
        max_new_tokens: longest completion, in tokens.
        temperature: softmax temperature; 0 is greedy decoding.
        top_p: probability of the nucleus that is sampled from, 1 for the whole distribution.
        top_k: number of most probable tokens that are sampled from, 0 for all.
        min_p: least probability relative to the most probable token, 0 for none.
        stop_strings: a completion ends after the first of these, which stays in its text.
        ignore_eos: sample past end tokens up to `max_new_tokens`, for measurements at full length.
        seed: the same seed, prompts and other settings give the same completions.
        log_probs: True to return the log-prob of each token.
        tool: `prompt.tool`: after each call, its result is forced into the completion.
    """

    num_completions: int
    max_new_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int = 0
    log_probs: bool = False
    tool: str = ""

    @property
    def truncates(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


class NotFiniteError(UserError):
    """The model's logits are NaN or infinite, so that no token can be sampled."""


class Engine(abc.ABC):
    """Turns prompts into completions.

    Implementations differ only in speed, rounding and the random numbers that a seed gives.
    """

    facts: EngineFacts
    """The engine's entry in `lib.params.engines.ENGINES`."""
    tokenizer: "PreTrainedTokenizerBase"
    """The checkpoint's tokenizer."""
    positions: int | None
    """Most tokens of prompt and completion together, None for no limit: the model's positions, or
    the length that vLLM has memory for."""

    @classmethod
    def check(cls, checkpoint: Path, *, base: Path) -> None:
        """Check what `open` needs besides the library, such as a server; by default nothing.

        Raises:
            UserError: names what is missing.
        """
        return

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        *,
        base: Path,
        dtype: str,
        attention: str,
        max_seq_length: int,
        batch_size: int,
        label: str = "",
        policy: "PreTrainedModel | None" = None,
        memory_share: float = VLLM_SHARE,
        device: str = "",
    ) -> "Engine":
        """Return an engine for `checkpoint`; `open_engine` calls this on the named class.

        Args:
            checkpoint: folder of a full model, or of an adapter on the model in `base`.
            dtype: the weights' dtype, as torch names it ("bfloat16").
            attention: the attention implementation, as transformers names it.
            max_seq_length: tokens of prompt and completion together that memory is allocated for.
            batch_size: completions generated at a time; vLLM takes at least 512.
            label: name of the progress bar; '' shows none.
            policy: the checkpoint's model if it is in memory already; `sync` later passes its
                current weights.
            memory_share: share of a GPU's memory, for an engine with a copy of the weights.
            device: a GPU such as `cuda:1` for such an engine; '' for the first one.

        Raises:
            UserError: the engine cannot run this checkpoint here.
        """
        raise NotImplementedError

    heartbeat: Callable[[int, int, int], None] | None = None
    """Callback during `generate`, with three numbers: completions that have ended, completions in
    all, and tokens so far. Only the transformers engine calls it."""

    @abc.abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[GeneratedCompletion]]:
        """Return `sampling.num_completions` completions for each of the `prompts` (token ids).

        A completion ends after the first stop string, even if that ends within a token: its text
        ends with the string, its token ids with the token that completed it. It is truncated at
        `sampling.max_new_tokens`, or where the model has no position, or vLLM no memory. With a
        tool, it is also truncated after a call whose result does not fit, without a part of that.

        Raises:
            UserError: a prompt leaves no position for a completion.
        """

    def rest(self) -> None:  # noqa: B027, most engines have no memory of their own
        """Free what memory can be spared until the next `sync`, while the policy trains."""

    def stream(
        self, prompt: Sequence[int], sampling: Sampling, show: Callable[[str], None]
    ) -> GeneratedCompletion:
        """Generate one completion; at its end, pass its whole text to `show`, and return it.

        The transformers engine overrides this and passes pieces while it generates.
        """
        ((completion,),) = self.generate([prompt], sampling)
        show(completion.text)
        return completion

    @abc.abstractmethod
    def sync(self, policy: "PreTrainedModel") -> str:
        """Load the current weights of `policy` into the engine, for all later completions.

        Returns:
            The version of the weights, as the engine reports it after the sync. Each sync has a new
            version, so that training can stop if the version is missing or old.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Free memory and processes; the engine cannot be used afterwards."""


def check_engine(name: str, checkpoint: Path, *, base: Path) -> None:
    """Check the engine's library, or its servers, before a model is loaded or trained.

    Raises:
        UserError: the engine is not installed, or a server is down, serves a model of another shape
            or cannot serve this one.
    """
    _implementation(name).check(checkpoint, base=base)


def open_engine(name: str, checkpoint: Path, **settings: Any) -> Engine:
    """Open the named engine on a checkpoint; the caller closes it.

    Args:
        name: a key of `ENGINES`, such as `evaluate.engine` of params.
        settings: the arguments of `Engine.open`. In a stage, `dtype`, `attention` and
            `max_seq_length` come from `model.loading` of params.

    Raises:
        UserError: the engine is not installed, or cannot run this checkpoint here.
    """
    return _implementation(name).open(checkpoint, **settings)


def _implementation(name: str) -> type[Engine]:
    facts = ENGINES[name]
    if facts.extra:
        require(facts.library, extra=facts.extra, why=f"engine: {name}")
    module, _, implementation = facts.implementation.partition(":")
    return cast(type[Engine], getattr(importlib.import_module(module), implementation))


def encode(
    tokenizer: "PreTrainedTokenizerBase", conversations: Sequence[Sequence[dict[str, str]]]
) -> list[list[int]]:
    """Apply the chat template to each conversation; return the token ids of the prompts.

    A control token in a question is encoded as its letters: only the template ends a turn.
    """
    tokens = tokenizer.added_tokens_decoder.values()
    # Added tokens of spaces or words are text; `<think>` is a control token that is not special.
    controls = {each.content for each in tokens if each.special or each.content[:1] == "<"}
    with bounded_rendering(tokenizer.name_or_path, len(conversations)):
        return [_prompt_ids(tokenizer, list(messages), controls) for messages in conversations]


def _prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", messages: list[dict[str, str]], controls: Collection[str]
) -> list[int]:
    """Return the token ids of one prompt, with the texts of control tokens as letters."""
    options: dict[str, Any] = {"add_generation_prompt": True}
    question = messages[-1]["content"].strip()
    held = [token for token in controls if token in question]
    if not held:
        rendered = tokenizer.apply_chat_template(messages, return_dict=True, **options)
        return list(rendered["input_ids"])
    text = str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    # The question's place; templates strip it, but change it no further.
    start = text.rindex(question)
    # Cut inside every control token: no piece holds one. A lookahead finds overlapping ones too.
    inside = re.compile("|".join(f"(?={re.escape(token)})." for token in held), re.DOTALL)
    cuts = [start + match.end() for match in inside.finditer(question)]
    pieces = itertools.pairwise([0, *cuts, len(text)])
    encoded = [
        tokenizer(text[begin:end], add_special_tokens=False)["input_ids"] for begin, end in pieces
    ]
    return list(itertools.chain.from_iterable(encoded))


def room_for_completions(prompts: Sequence[Sequence[int]], *, max_seq_length: int) -> int:
    """Return the number of tokens that the longest prompt leaves for a completion in training.

    One token stays unused: the source of preset S0 reserves longest + 1 tokens for the prompt.

    Raises:
        UserError: no token is left.
    """
    longest = max(map(len, prompts), default=0)
    if longest + 1 >= max_seq_length:
        raise UserError(
            f"model.max_seq_length={max_seq_length}: the longest prompt has {longest} tokens, "
            f"which leaves none for a completion; raise it above {longest + 1}, or lower "
            "prepare.lengths.prompt_percentile"
        )
    return max_seq_length - longest - 1


def longest_completions(
    prompts: Sequence[Sequence[int]], sampling: Sampling, *, positions: int | None
) -> list[int]:
    """Return the maximum number of new tokens for each prompt.

    It is `max_new_tokens`, or the `positions` that the prompt leaves (None: unlimited).

    Raises:
        UserError: a prompt leaves no position.
    """
    if positions is None:
        return [sampling.max_new_tokens] * len(prompts)
    longest = max(map(len, prompts), default=0)
    if longest >= positions:
        raise UserError(
            f"a prompt has {longest} tokens, and there are {positions} positions for prompt and "
            "completion together; shorten it, or let `prepare.lengths` drop it"
        )
    return [min(sampling.max_new_tokens, positions - len(prompt)) for prompt in prompts]


def prompt_keys(prompts: Sequence[Sequence[int]], *, seed: int) -> list[int]:
    """Return a 128-bit key per prompt, the seed of its completions' random numbers.

    A key depends on the seed, the prompt and the number of equal prompts before it, so that equal
    prompts in a request get different completions. Other prompts do not change it: a request in two
    parts gives the same completions if no prompt is in both parts.
    """
    repeats: Counter[tuple[int, ...]] = Counter()
    keys = []
    for prompt in map(tuple, prompts):
        digest = hashlib.sha256(f"{seed}/{repeats[prompt]}/{prompt}".encode()).digest()
        keys.append(int.from_bytes(digest[:16], "big"))
        repeats[prompt] += 1
    return keys


def result_tokens(tokenizer: "PreTrainedTokenizerBase", text: str, tool: str) -> list[int]:
    """Return the tokens of the result of the call that ends `text`, [] without a tool."""
    definition = find_tool(tool)
    result = definition.result(text, name=tool) if definition else ""
    return list(tokenizer(result, add_special_tokens=False)["input_ids"])


def text_until(stop_strings: Sequence[str], text: str) -> str:
    """Cut `text` after its first stop string; return all of it if there is none.

    Example with "</answer>": "<answer>72</answer> So" -> "<answer>72</answer>".
    """
    ends = [text.find(stop) + len(stop) for stop in stop_strings if stop in text]
    return text[: min(ends)] if ends else text
