"""Contract of every engine; an engine's test file subclasses `EngineContract`.

The subclass gives the fixture `engine`: an engine in float32 on the checkpoint `base` (the smoke
preset's random weights, whose completions vary, and repeat no pattern).
"""

import dataclasses
import itertools
import math
from collections import Counter
from itertools import chain

import pytest
import torch

from lib.core.errors import UserError
from lib.engines.base import GeneratedCompletion, Sampling
from lib.prompts.tools import TOOLS, Tool


def greedy(**changes) -> Sampling:
    return Sampling(**{"num_completions": 1, "max_new_tokens": 12, "temperature": 0.0} | changes)


def random_sampling(**changes) -> Sampling:
    return Sampling(**{"num_completions": 4, "max_new_tokens": 12, "temperature": 1.0} | changes)


def logits_of(plain, prompt: list[int], token_ids: tuple[int, ...]) -> torch.Tensor:
    """Compute the [T, V] logits that the completion's tokens were sampled from."""
    with torch.no_grad():
        logits = plain(torch.tensor([[*prompt, *token_ids]])).logits[0].double()
    return logits[len(prompt) - 1 : -1]


def cut_text(tokenizer, token_ids: tuple[int, ...], at: int) -> str:
    """Join the last character of a token and the first of the next: a string across tokens."""
    before, after = (tokenizer.decode([token_ids[i]]) for i in (at, at + 1))
    return before[-1] + after[0]


def left_after_cuts(probs: list[float], sampling: Sampling) -> list[int]:
    """List the tokens left by min-p, then top-k, then top-p, by their definitions."""
    tokens = sorted(range(len(probs)), key=lambda token: -probs[token])
    if sampling.temperature == 0:
        return tokens
    tokens = [token for token in tokens if probs[token] >= sampling.min_p * probs[tokens[0]]]
    tokens = tokens[: sampling.top_k or None]
    mass = sampling.top_p * sum(probs[token] for token in tokens)
    above = itertools.accumulate((probs[token] for token in tokens), initial=0.0)
    # A token is left while the tokens above it have not reached the share.
    return [token for token, reached in zip(tokens, above, strict=False) if reached < mass]


def reversed_call(text: str) -> str:
    """Run a toy tool: refuse an empty call."""
    if not text:
        raise ValueError(text)
    return f"={text[::-1][:9]}"


TOY = Tool(open="e", close="t", run=reversed_call)
"""A tool whose calls an untrained model writes often."""


def sampled_mask(tokenizer, one: GeneratedCompletion, *, limit: int) -> list[bool]:
    """Return which tokens the policy sampled, from the tokens only; check each result."""
    mask: list[bool] = []
    since = 0
    while (at := len(mask)) < len(one.token_ids):
        mask.append(True)
        written, part = (
            tokenizer.decode(one.token_ids[start : at + 1], skip_special_tokens=True)
            for start in (0, since)
        )
        if TOY.close not in part:
            continue
        result = TOY.result(written, name="toy")
        forced = tuple(tokenizer(result)["input_ids"])
        if at + 1 + len(forced) > limit:
            assert (len(one.token_ids), one.finish) == (at + 1, "length")
            break
        since = at + 1 + len(forced)
        assert one.token_ids[at + 1 : since] == forced
        mask += [False] * len(forced)
    return mask


class EngineContract:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_calls_result_is_forced_whole_or_not_at_all(
        self, engine, plain, prompts, temperature, monkeypatch
    ):
        monkeypatch.setitem(TOOLS, "toy", TOY)
        sampling = random_sampling(
            num_completions=16 if temperature else 1,
            max_new_tokens=24,
            temperature=temperature,
            tool="toy",
            log_probs=True,
        )
        groups = engine.generate(prompts, sampling)
        for prompt, group in zip(prompts, groups, strict=True):
            for one in group:
                mask = sampled_mask(engine.tokenizer, one, limit=24)
                assert one.sampled == (None if all(mask) else tuple(mask))
                # Sampled tokens are those of a model that has read the forced ones too.
                scores = logits_of(plain, prompt, one.token_ids).log_softmax(-1)
                for step, token, log_prob, is_sampled in zip(
                    scores, one.token_ids, one.log_probs, mask, strict=True
                ):
                    expected = step[token].item() if is_sampled else 0.0
                    assert log_prob == pytest.approx(expected, abs=1e-4)
                    assert temperature or not is_sampled or token == step.argmax()
        ends = {(len(one.token_ids), *one.sampled[-1:]) for one in chain(*groups) if one.sampled}
        # Of a result that fits exactly, and of one that does not fit at all.
        assert temperature == 0 or {(24, False), (23, True)} <= ends
        alone = [engine.generate([prompt], sampling)[0] for prompt in prompts]
        # Log-probs are rounded by the batch.
        rounded = [[dataclasses.replace(one, log_probs=()) for one in each] for each in groups]
        assert rounded == [
            [dataclasses.replace(one, log_probs=()) for one in each] for each in alone
        ]

    def test_greedy_tokens_are_the_argmax_of_a_plain_forward_pass(self, engine, plain, prompts):
        completions = engine.generate(prompts, greedy())
        for prompt, (completion,) in zip(prompts, completions, strict=True):
            expected = logits_of(plain, prompt, completion.token_ids).argmax(-1)
            assert completion.token_ids == tuple(expected.tolist())

    def test_company_does_not_change_a_prompts_greedy_tokens(self, engine, prompts):
        together = engine.generate(prompts, greedy())
        assert together == [engine.generate([prompt], greedy())[0] for prompt in prompts]

    def test_each_prompt_gets_its_completions_and_they_differ(self, engine, prompts):
        completions = engine.generate(prompts, random_sampling(num_completions=4))
        assert [len(group) for group in completions] == [4] * len(prompts)
        assert all(len({c.token_ids for c in group}) > 1 for group in completions)

    def test_the_seed_decides_the_completions(self, engine, prompts):
        first = engine.generate(prompts, random_sampling(seed=1))
        assert first == engine.generate(prompts, random_sampling(seed=1))
        assert first != engine.generate(prompts, random_sampling(seed=2))

    def test_tokens_are_sampled_as_often_as_they_are_probable(self, engine, plain, prompts):
        (group,) = engine.generate(
            prompts[:1], random_sampling(num_completions=2000, max_new_tokens=1, temperature=0.7)
        )
        probs = (logits_of(plain, prompts[0], group[0].token_ids)[0] / 0.7).softmax(-1)
        counts = Counter(completion.token_ids[0] for completion in group)
        for token in probs.topk(12).indices.tolist():
            p = probs[token].item()
            assert abs(counts[token] / 2000 - p) < 5 * math.sqrt(p * (1 - p) / 2000)

    def test_a_completion_ends_after_a_stop_string_across_tokens(self, engine, prompts):
        ((free,),) = engine.generate(prompts[:1], greedy())
        stop = cut_text(engine.tokenizer, free.token_ids, at=5)
        ((stopped,),) = engine.generate(prompts[:1], greedy(stop_strings=("never", stop)))
        starts = [free.token_ids[:length] for length in range(len(free.token_ids))]
        first = next(start for start in starts if stop in engine.tokenizer.decode(start))
        assert (stopped.finish, stopped.token_ids) == ("stop", first)
        before, _, _ = engine.tokenizer.decode(first).partition(stop)
        assert stopped.text == before + stop

    def test_completions_of_one_batch_stop_each_at_its_own_place(self, engine, prompts):
        free = engine.generate(prompts, random_sampling(max_new_tokens=24))
        common = Counter(character for group in free for c in group for character in c.text)
        stop = common.most_common(1)[0][0]
        stopped = engine.generate(prompts, random_sampling(max_new_tokens=24, stop_strings=(stop,)))
        lengths = set()
        for before, after in zip(chain(*free), chain(*stopped), strict=True):
            assert before.token_ids[: len(after.token_ids)] == after.token_ids
            if after.finish == "stop":
                assert after.text.endswith(stop)
                assert stop not in after.text[:-1]
                lengths.add(len(after.token_ids))
            else:
                assert stop not in after.text
        assert len(lengths) > 2

    def test_an_end_token_ends_a_completion_or_its_length_does(self, engine, prompts):
        tokenizer = engine.tokenizer
        many = random_sampling(num_completions=16, max_new_tokens=48, temperature=2.0)
        completions = list(chain(*engine.generate(prompts, many)))
        for completion in completions:
            *before, last = completion.token_ids
            assert (completion.finish == "eos") == (last == tokenizer.eos_token_id)
            assert tokenizer.eos_token_id not in before
            assert completion.finish == "eos" or len(completion.token_ids) == 48
            text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            assert completion.text == text
        assert {completion.finish for completion in completions} == {"eos", "length"}
        past = chain(*engine.generate(prompts, dataclasses.replace(many, ignore_eos=True)))
        assert {(c.finish, len(c.token_ids)) for c in past} == {("length", 48)}

    @pytest.mark.parametrize(
        "requested",
        [
            {"temperature": 0.0, "top_p": 0.5},
            {"temperature": 0.6},
            {"temperature": 1.0, "top_p": 0.7},
            {"temperature": 1.0, "top_k": 7},
            {"temperature": 1.0, "min_p": 0.1},
            {"temperature": 1.3, "top_p": 0.6, "top_k": 9, "min_p": 0.2},
        ],
        ids=str,
    )
    def test_samples_and_log_probs_are_those_of_the_cut_softmax(
        self, engine, plain, prompts, requested
    ):
        sampling = random_sampling(num_completions=2, log_probs=True, **requested)
        greedy = []
        for prompt, group in zip(prompts, engine.generate(prompts, sampling), strict=True):
            for completion in group:
                logits = logits_of(plain, prompt, completion.token_ids)
                probs = (logits / (sampling.temperature or 1.0)).softmax(-1).tolist()
                for p, token, log_prob in zip(
                    probs, completion.token_ids, completion.log_probs, strict=True
                ):
                    # A sampled token outside the cuts would have -inf.
                    left = left_after_cuts(p, sampling)
                    expected = math.log(p[token] / sum(p[other] for other in left))
                    assert log_prob == pytest.approx(expected, abs=1e-4)
                    greedy.append(token == left[0])
        assert all(greedy) == (sampling.temperature == 0)
        assert engine.generate(prompts[:1], random_sampling())[0][0].log_probs is None

    def test_a_prompt_that_leaves_one_position_gets_one_token(self, engine, plain, prompts):
        positions = plain.config.max_position_embeddings
        assert engine.positions == positions
        longest = (prompts[0] * positions)[: positions - 1]
        (full,), (short,) = engine.generate([longest, prompts[1]], greedy())
        expected = logits_of(plain, longest, full.token_ids).argmax(-1)
        assert full.token_ids == tuple(expected.tolist())
        assert len(full.token_ids) == 1
        assert full.finish == "length"
        assert [short] == engine.generate([prompts[1]], greedy())[0]

    def test_a_prompt_that_leaves_no_position_is_refused(self, engine, plain, prompts):
        positions = plain.config.max_position_embeddings
        with pytest.raises(UserError, match=f"{positions} tokens"):
            engine.generate([(prompts[0] * positions)[:positions]], greedy())

    def test_no_prompts_give_no_completions(self, engine):
        assert engine.generate([], random_sampling()) == []
