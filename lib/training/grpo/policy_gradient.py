"""GRPO and its kin on `transformers.Trainer`, in the order of a step.

    roll out    an `Engine` completes P problems G times, chosen and seeded by the step
    reward      each completion is judged once (`lib.rewards.rollout`), then scored by each reward
    refill      dynamic sampling replaces groups without signal (DAPO, arXiv:2503.14476)
    advantage   `lib.objectives.advantages`
    arrange     rows of like prompt and length share a micro-batch
    score       log-probs under the policy (`lib.training.grpo.scoring`)
    check       the sampler's log-probs against these, and the correction for what they differ by
                (that its weights are the policy's, their version says at each roll-out)
    loss        `lib.objectives.losses`; backward pass, clipping and optimiser are `Trainer`'s

Differs from the papers in: dynamic sampling draws as many new problems as are missing, not a whole
batch, for a bounded number of rounds. The old policy's log-probs are those of the first pass over
the rollouts, which saves a forward pass; a micro-batch whose advantages are all 0 is left out where
nothing else gives it a gradient (and so out of entropy and clip_ratio).

P problems of this process, G completions of each (a group), B = P·G; F reward functions; b rows of
a micro-batch, T tokens of its longest completion.
"""

import contextlib
import dataclasses
import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput

from lib.artifacts.completions import GeneratedCompletion
from lib.core.errors import UserError
from lib.core.plugins import is_plugin
from lib.engines.base import Engine, NotFiniteError, Sampling, encode
from lib.objectives.advantages import group_advantages, has_signal
from lib.objectives.entropy import EntropyCoefficient
from lib.objectives.losses import policy_loss
from lib.objectives.own import objective
from lib.objectives.sampler import compare_with_sampler
from lib.params.training import Grpo
from lib.rewards.functions import ANSWER_ACCURACY, Grading, accuracy, scores
from lib.training.grpo.curve import Curve
from lib.training.grpo.scoring import MicroBatch, ReferencePolicy, Scorer, padded
from lib.training.phase.ranks import whole_on_every_rank
from lib.training.phase.tracking import timed
from lib.training.phase.warning_signs import GAP


@dataclasses.dataclass(kw_only=True)
class Sample:
    """One completion of a problem.

    Attributes:
        problem: "prompt", chat messages, "problem", "reference", "tags", and columns that only
            reward functions read.
        rewards: [F]; empty before the functions were called.
        right: whether its answer is, whatever it earns; False before it was judged.
        metrics: the accuracy, and what reward functions logged, of all completions that were
            scored together.
    """

    problem: Mapping[str, Any]
    prompt_ids: list[int]
    completion: GeneratedCompletion
    rewards: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    right: bool = False
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)


Group = list[Sample]


class PolicyGradientTrainer(Trainer):
    """A `Trainer` whose data are its own rollouts and whose loss is a policy gradient.

    Args:
        problems: what `Sample.problem` holds.
        grading: rewards that are functions of a rollout, or have TRL's signature, and get
            `trainer_state`, `log_metric` and `log_extra` too.
        grpo: params' section.
        sampling: of rollouts; the seed is the step's.
    """

    def __init__(
        self,
        *,
        problems: Sequence[Mapping[str, Any]],
        grading: Grading,
        grpo: Grpo,
        sampling: Sampling,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.problems = problems
        self.grading = grading
        self.reward_funcs = list(grading.rewards)
        self.reward_weights = torch.tensor(grading.weights)
        self.grpo = grpo
        self.loss, self.advantage = objective(grpo.loss), objective(grpo.advantage)
        self.sampling = dataclasses.replace(sampling, log_probs=True)
        # Version of the weights that the engine generated from last, and the last gap in nats.
        self._synced, self._gap = "", math.nan
        self.engine: Engine | None = None
        self.live = False
        self.rollouts: list[Sample] = []
        """The B samples of the last roll-out, G in a row for each problem."""
        self.batches: list[MicroBatch] = []
        """The same rollouts in the order and grouping in which they are trained on."""
        self.extra_columns: dict[str, list[Any]] = {}
        """Columns that reward functions logged of those rollouts through `log_extra`."""
        self.curve = Curve(self.accelerator)
        self.bonus = EntropyCoefficient(grpo.entropy_coef, grpo.entropy_target)
        if self.bonus.is_used:
            self.add_callback(SavedCoefficient(self.bonus))
        # A prompt's forward pass and its completions' are two before one backward pass, more than
        # DDP and FSDP follow; under gradient checkpointing transformers keeps no cache.
        whole = self.accelerator.num_processes == 1
        self.scorer = Scorer(
            self.model,
            sampling=sampling,
            shares_prompts=whole and not self.args.gradient_checkpointing,
            entropy_grad=self.bonus.is_used,
            float32_head=grpo.cast_lm_head_to_fp32,
        )
        # Trainer then divides each micro-batch's loss by how many a step has; `num_tokens` is
        # scaled to match in `_arrange`.
        self.model_accepts_loss_kwargs = False
        self.reference = ReferencePolicy(self.model) if grpo.beta else None

    def roll_out_with(self, engine: Engine, *, live: bool) -> None:
        """Generate with `engine` from now on; it is closed when training ends, however it ends.

        Args:
            live: it computes with the policy's own weights, of which it holds no copy, so that its
                log-probs need no correction.
        """
        self.engine, self.live = engine, live

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train, and close the engine however training ends."""
        assert self.engine is not None
        with contextlib.closing(self.engine):
            return super().train(*args, **kwargs)

    # Roll out

    def get_train_dataloader(self) -> Iterator[dict[str, MicroBatch]]:
        """Micro-batches, rolled out when `Trainer` asks for a step's first one.

        A plain generator: a loader that accelerate prepares reads one batch ahead, and would roll
        out with the policy before the update.
        """
        # A run that is resumed at its end takes no further step.
        while self.state.global_step < self.state.max_steps:
            self.batches = self.roll_out()
            for _ in range(self.grpo.num_iterations):
                for batch in self.batches:
                    # Not bare: Trainer moves and counts what is in a mapping. The object goes
                    # through as it is, and keeps its old log-probs over the iterations.
                    yield {"batch": batch}

    def roll_out(self) -> list[MicroBatch]:
        """The micro-batches of this step's rollouts."""
        assert self.engine is not None
        with self._whole_policy() as policy:
            self._check_version(self.engine.sync(policy))
        groups = self._reward(self._complete(self._problems_of_step(), round_=0))
        if self.grpo.dynamic_sampling:
            groups = self._refill(groups)
        self.rollouts = [rollout for group in groups for rollout in group]
        completions = [rollout.completion for rollout in self.rollouts]
        self.curve.add_lengths(
            [len(one.token_ids) for one in completions], [one.truncated for one in completions]
        )
        # Of each completion that is trained on: a round that replaced a few groups weighs little.
        for rollout in self.rollouts:
            self.curve.add(rollout.metrics)
        batches = self._arrange(self._advantages())
        if self.reference:
            with self.reference.in_place_of(self.model), torch.no_grad():
                for batch in batches:
                    batch.reference_log_probs = self.scorer.score(self.model, batch).log_probs
        return batches

    def _problems_of_step(self) -> list[Mapping[str, Any]]:
        """P problems: this process's part of the step's, of an order that each epoch shuffles."""
        total = self.grpo.prompts_per_step
        generation = self.state.global_step // self.grpo.num_iterations
        epoch, place = divmod(generation, len(self.problems) // total)
        order = list(range(len(self.problems)))
        if self.grpo.shuffle:
            generator = torch.Generator().manual_seed(self.args.seed)
            # Drawn anew up to this epoch: a resumed run has the order of one that went through.
            for _ in range(epoch + 1):
                order = torch.randperm(len(self.problems), generator=generator).tolist()
        mine = self._part_of_rank(order[place * total : (place + 1) * total])
        return [self.problems[index] for index in mine]

    def _complete(self, problems: Sequence[Mapping[str, Any]], *, round_: int) -> list[Group]:
        """Groups of G completions for each of the problems."""
        assert self.engine is not None
        rank = self.accelerator.process_index
        seed = keyed_seed(self.args.seed, "rollout", self.state.global_step, round_, rank)
        prompts = encode(self.processing_class, [problem["prompt"] for problem in problems])
        # An engine on the policy's own weights generates while they are all at hand.
        whole = self._whole_policy() if self.live else contextlib.nullcontext()
        sampling = dataclasses.replace(self.sampling, seed=seed)
        try:
            with timed("generation"), whole:
                completions = self.engine.generate(prompts, sampling)
        except NotFiniteError as error:
            raise self._diverged("the policy's logits") from error
        groups = [
            [Sample(problem=problem, prompt_ids=ids, completion=one) for one in group]
            for problem, ids, group in zip(problems, prompts, completions, strict=True)
        ]
        # As TRL counts: each completion with its prompt, replaced groups included.
        rows = (row for group in groups for row in group)
        length = sum(len(row.prompt_ids) + len(row.completion.token_ids) for row in rows)
        self.state.num_input_tokens_seen += int(self.curve.gather([float(length)]).sum())
        self.curve.values["num_tokens"] = [self.state.num_input_tokens_seen]
        return groups

    @contextlib.contextmanager
    def _whole_policy(self) -> Iterator[PreTrainedModel]:
        with whole_on_every_rank(self):
            yield self.accelerator.unwrap_model(self.model_wrapped)

    # Reward

    def _reward(self, groups: list[Group]) -> list[Group]:
        rows = [rollout for group in groups for rollout in group]
        metrics: dict[str, list[float]] = defaultdict(list)
        self.extra_columns = {}
        judged = ("prompt", "problem", "reference", "tags")
        rollouts = [
            self.grading.rollout(
                row.completion.text,
                token_ids=row.completion.token_ids,
                **{name: row.problem[name] for name in judged},
            )
            for row in rows
        ]
        columns = {
            **{n: [row.problem[n] for row in rows] for n in rows[0].problem if n not in judged},
            "trainer_state": self.state,
            "log_metric": lambda name, value: metrics[name].append(value),
            "log_extra": lambda name, values: self.extra_columns.update({name: list(values)}),
        }
        with timed("rewards"):
            metrics[ANSWER_ACCURACY] = [accuracy(rollouts)]
            earned = scores(self.reward_funcs, rollouts, **columns)
        device = self.accelerator.device
        rewards = torch.tensor(earned, dtype=torch.float32, device=device).T  # [B, F]
        # A function may log a name several times; the point holds its mean.
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        for row, rollout, of_row in zip(rows, rollouts, rewards, strict=True):
            row.rewards, row.right, row.metrics = of_row, rollout.answer_ok, means
        return groups

    def _totals(self, rewards: Tensor) -> Tensor:
        """[groups, G] weighted sums of [groups · G, F]."""
        totals = (rewards * self.reward_weights.to(rewards)).sum(-1)  # [groups · G]
        return totals.view(-1, self.grpo.group_size)

    # Dynamic sampling

    def _refill(self, groups: list[Group]) -> list[Group]:
        """Groups that carry a signal: those of `groups` in their places, others for the rest.

        Every rank draws as many problems as the rank that misses most: generation on a policy cut
        across ranks, and logging, are collective. What a rank has too many of is dropped. A place
        that no round filled keeps its group where `grpo.dynamic_sampling_fallback` is `train`.

        Raises:
            UserError: after all rounds there is a rank with a group without signal, and the
                fallback is `error`.
        """
        rounds, signals = self.grpo.dynamic_sampling, self._with_signal(groups)
        missing = [place for place, signal in enumerate(signals) if not signal]
        round_ = 0
        while (wanted := int(self.curve.gather([float(len(missing))]).max())) and round_ < rounds:
            round_ += 1
            others = self._reward(self._complete(self._others(wanted, round_), round_=round_))
            good = self._with_signal(others)
            signals += good
            spare = [group for group, signal in zip(others, good, strict=True) if signal]
            # Not strict: this rank drew for the rank that misses most, so it may have more.
            for place, group in zip(missing, spare, strict=False):
                groups[place] = group
            missing = missing[len(spare) :]
        if wanted and self.grpo.dynamic_sampling_fallback == "error":
            raise UserError(
                f"grpo.dynamic_sampling={rounds}: at step {self.state.global_step + 1}, up to "
                f"{wanted} of {len(groups)} groups still have equal rewards when all rounds are "
                "used up. The problems are too easy or too hard for this policy, or its "
                "completions too alike: choose others (`make difficulty`) or a larger "
                "grpo.group_size, raise the rounds, or set grpo.dynamic_sampling_fallback: train"
            )
        self.curve.record("dynamic_sampling/rounds", float(round_))
        shares = {
            "frac_without_signal": 1 - sum(signals) / len(signals),
            "frac_unfilled": len(missing) / len(groups),
        }
        for name, share in shares.items():
            self.curve.record(f"dynamic_sampling/{name}", self.curve.gather([share]).mean().item())
        return groups

    def _with_signal(self, groups: Sequence[Group]) -> list[bool]:
        """Which groups move the policy: rewards differ, and not all rows are masked."""
        totals = self._totals(torch.stack([row.rewards for group in groups for row in group]))
        cut, signals = self.grpo.mask_truncated, has_signal(totals).tolist()
        return [
            differ and not (cut and all(row.completion.truncated for row in group))
            for group, differ in zip(groups, signals, strict=True)
        ]

    def _others(self, count: int, round_: int) -> list[Mapping[str, Any]]:
        """`count` problems for this process: no two ranks draw the same one."""
        key = keyed_seed(self.args.seed, "refill", self.state.global_step, round_)
        # All ranks draw the same places, and each takes its own stretch of them.
        total = count * self.accelerator.num_processes
        places = random.Random(key).sample(range(len(self.problems)), total)
        return [self.problems[place] for place in self._part_of_rank(places)]

    def _part_of_rank(self, rows: Any) -> Any:
        """The stretch that is this process's of rows that all processes hold."""
        size, rank = len(rows) // self.accelerator.num_processes, self.accelerator.process_index
        return rows[rank * size : (rank + 1) * size]

    # Advantages

    def _advantages(self) -> Tensor:
        """[B] advantages of this process's rollouts; `batch` and the curve need all processes'."""
        rewards = self.accelerator.gather(torch.stack([row.rewards for row in self.rollouts]))
        totals = self._totals(rewards)
        right = self.accelerator.gather(
            torch.tensor([row.right for row in self.rollouts], device=totals.device)
        )
        advantages = group_advantages(
            totals, baseline=self.advantage, right=right.view_as(totals)
        ).flatten()

        names = [function.__name__ for function in self.reward_funcs]
        self.curve.add_rewards(names, rewards, totals)
        flat = 1 - has_signal(totals).float().mean()
        self.curve.record("frac_reward_zero_std", flat.item())
        own: Tensor = self._part_of_rank(advantages)
        return own

    # Micro-batches

    def _arrange(self, advantages: Tensor) -> list[MicroBatch]:
        """Rows of one prompt, and prompts of like length, together; those without signal first."""
        rows, size = self.rollouts, self.args.per_device_train_batch_size
        order = list(range(len(rows)))
        if self._packs:
            by_group = advantages.view(-1, self.grpo.group_size).any(-1).tolist()

            def key(row: int) -> tuple[Any, ...]:
                prompt = rows[row].prompt_ids
                signal = by_group[row // self.grpo.group_size]
                # The prompt itself keeps its rows together among prompts of the same length, so
                # that the scorer computes it once.
                return signal, len(prompt), prompt, len(rows[row].completion.token_ids)

            order.sort(key=key)
        # By the engine's finish reason: the last token does not tell a completion that a stop
        # string ended from a truncated one.
        counted = [
            [not (self.grpo.mask_truncated and row.completion.truncated)]
            * len(row.completion.token_ids)
            for row in rows
        ]
        # At least 1 in all: a bound for each micro-batch would let few tokens count for less.
        total = max(self.curve.gather([float(sum(map(sum, counted)))]).sum().item(), 1.0)
        parts = [order[start : start + size] for start in range(0, len(order), size)]
        return [
            self._collate(
                [rows[row] for row in part],
                rows=part,
                counted=[counted[row] for row in part],
                advantages=advantages[torch.tensor(part, device=advantages.device)],
                # Trainer averages over micro-batches, DDP over ranks: both are undone here.
                num_tokens=total / (len(parts) * self.accelerator.num_processes),
                last=part is parts[-1],
            )
            for part in parts
        ]

    @property
    def _packs(self) -> bool:
        # bnpo divides by a micro-batch's own tokens, so it matters to it which rows share one.
        return self.grpo.loss != "bnpo"

    def _collate(self, rollouts: Sequence[Sample], *, counted: Any, **kwargs: Any) -> MicroBatch:
        pad, device = self.processing_class.pad_token_id, self.accelerator.device
        prompts = [rollout.prompt_ids for rollout in rollouts]
        completions = [rollout.completion for rollout in rollouts]
        ids = [completion.token_ids for completion in completions]
        log_probs = [completion.log_probs or () for completion in completions]
        return MicroBatch(
            prompt_ids=padded(prompts, value=pad, left=True).to(device),
            prompt_mask=padded([[1] * len(row) for row in prompts], value=0, left=True).to(device),
            completion_ids=padded(ids, value=pad).to(device),
            completion_mask=padded([[1] * len(row) for row in ids], value=0).to(device),
            loss_mask=padded(counted, value=False).to(device),
            sampler_log_probs=padded(log_probs, value=0.0).to(device),
            **kwargs,
        )

    # The loss

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """The loss of one micro-batch; `Trainer` averages over those of a step."""
        batch: MicroBatch = inputs["batch"]
        if self._without_gradient(batch):
            # `Trainer` calls `backward` on whatever comes back.
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        scores = self.scorer.score(model, batch)
        # The first of `num_iterations` passes: the policy is still the one that sampled.
        if batch.old_log_probs is None:
            batch.old_log_probs = scores.log_probs.detach()
            self._compare_with_sampler(batch)
        loss = policy_loss(
            scores.log_probs,
            batch.advantages,
            batch.loss_mask,
            loss_type=self.loss,
            old_log_probs=batch.old_log_probs,
            clip_low=self.grpo.epsilon,
            clip_high=self.grpo.epsilon_high or None,
            delta=self.grpo.delta or None,
            ratio_level=self.grpo.importance_level,
            correction=batch.correction,
            reference_log_probs=batch.reference_log_probs,
            kl_coef=self.grpo.beta,
            kl_weighted=self.grpo.kl_weighted,
            entropy=scores.entropy,
            entropy_coef=self.bonus.of_step,
            max_completion_length=self.sampling.max_new_tokens,
            num_tokens=batch.num_tokens,
        )
        self.curve.add_loss(
            loss,
            entropy=scores.entropy.detach(),
            advantages=batch.advantages,
            mask=batch.loss_mask,
            kl=self.grpo.beta > 0,
        )
        if batch.last:
            self._close_step()
        return loss.loss

    def _without_gradient(self, batch: MicroBatch) -> bool:
        # The last one of a step is real on every rank: AdamW takes no step without gradients, and
        # DDP averages them in its backward pass. Sharded policies need equally many passes.
        sharded = self.is_fsdp_enabled or self.is_deepspeed_enabled
        penalised = self.grpo.beta > 0 or self.bonus.is_used or is_plugin(self.grpo.loss)
        needed = batch.last or sharded or not self._packs or penalised
        return not (needed or batch.advantages.any())

    def _compare_with_sampler(self, batch: MicroBatch) -> None:
        """Before the first update on a batch, the trainer's log-probs should be the sampler's."""
        assert batch.old_log_probs is not None
        comparison = compare_with_sampler(
            batch.old_log_probs,
            batch.sampler_log_probs,
            batch.loss_mask,
            correction=self.grpo.sampler_correction,
            cap=self.grpo.correction_cap,
        )
        self.curve.add_comparison(comparison, batch.loss_mask)
        # A live engine samples with these very weights; what is left is rounding.
        if not self.live:
            batch.correction = comparison.weights

    def _close_step(self) -> None:
        means = self.curve.close_step()
        # Absent where no token counted, as when all completions are truncated and masked.
        if (gap := means.get(f"{GAP}/mean")) is not None:
            self._gap = gap
            if not math.isfinite(gap):
                raise self._diverged("log-probs of the sampler or the trainer")
        if self.bonus.is_used:
            # No token counted where there is none: nothing to steer by.
            if "entropy" in means:
                self.bonus.update(means["entropy"])
            self.curve.record("entropy_coef", self.bonus.coefficient)

    def _check_version(self, version: str | None) -> None:
        """Refuse to learn from a sampler that is not the policy.

        How far their log-probs are apart is no proof, since engines round apart: that is warned of
        (`lib.training.phase.warning_signs`).

        Raises:
            UserError: the engine has not taken the policy's weights.
        """
        if not version or version == self._synced:
            raise UserError(
                f"step {self.state.global_step + 1}: {type(self.engine).__name__} still generates "
                f"from weights of an earlier step (version {self._synced or 'of the start'}); "
                "nothing of it is learned. Use rollout.engine=transformers, and report this"
            )
        self._synced = version

    def _diverged(self, what: str) -> UserError:
        return UserError(
            f"step {self.state.global_step + 1}: {what} are no numbers (last gap between sampler "
            f"and trainer: {self._gap:.3g} nats per token); lower grpo.learning_rate or "
            "grpo.max_grad_norm, or set model.dtype=float32"
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the means of what was recorded since the last log."""
        super().log({**logs, **self.curve.take_point()}, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """0, since the model's estimate would read token ids, which stand in micro-batches."""
        return 0


class SavedCoefficient(TrainerCallback, ExportableState):
    """Keeps the entropy bonus's coefficient in a checkpoint's `trainer_state.json`."""

    def __init__(self, bonus: EntropyCoefficient) -> None:
        self.bonus = bonus

    def state(self) -> dict[str, Any]:
        """What `Trainer` writes into the checkpoint (`ExportableState`)."""
        return {"args": {}, "attributes": dataclasses.asdict(self.bonus)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the checkpoint's coefficient where a run is resumed; one that starts has its own."""
        vars(self.bonus).update(state.stateful_callbacks[type(self).__name__]["attributes"])


def keyed_seed(*parts: object) -> int:
    """A seed that shares nothing with those of neighbouring keys."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
