"""Policy-gradient training (GRPO and its variants) on `transformers.Trainer`, in a step's order.

    roll out    an `Engine` completes P problems G times, chosen and seeded by the step
    reward      each completion is judged once (`lib.rewards.rollout`), then scored by each reward
    refill      dynamic sampling replaces groups without signal (`lib.training.grpo.problems`)
    advantage   `lib.objectives.advantages`
    arrange     rows of like prompt and length share a micro-batch (`lib.training.grpo.batching`)
    score       log-probs under the policy (`lib.training.grpo.scoring`)
    check       the sampler's log-probs are compared with these, and the losses weighted for the
                difference (each roll-out checks by version that the sampler has the policy's
                weights)
    loss        `lib.objectives.losses`; backward pass, clipping and optimiser are `Trainer`'s

Differs from the papers in: the first pass over the rollouts gives the old policy's log-probs, which
saves a forward pass. A micro-batch with advantages of 0 only is skipped, except as in `_can_skip`;
entropy, clip_ratio and sampling/* then leave it out.

P problems of this process, G completions of each (a group), B = P·G; F reward functions; b rows of
a micro-batch, T tokens of its longest completion.
"""

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from lib.core.errors import UserError
from lib.core.plugins import is_plugin
from lib.engines.base import Engine, NotFiniteError, Sampling, encode
from lib.objectives.advantages import gdpo_advantages, group_advantages, has_signal
from lib.objectives.losses import EntropyCoefficient, Objective, policy_loss
from lib.objectives.own import objective
from lib.objectives.sampler import compare_with_sampler
from lib.params.training import Grpo
from lib.rewards.functions import RewardFn
from lib.rewards.grading import Grading
from lib.rewards.rollout import Rollout
from lib.training.grpo.batching import MicroBatch, collate, sorted_rows
from lib.training.grpo.curve import OWN_COLUMNS, Curve
from lib.training.grpo.problems import ProblemOrder, keyed_seed, refill
from lib.training.grpo.scoring import ReferencePolicy, Scorer
from lib.training.phase.checkpoints import SavedState
from lib.training.phase.console import timed
from lib.training.phase.ranks import whole_on_every_rank
from lib.training.phase.warning_signs import GAP

FIELDS = ("prompt", "problem", "reference", "tags")
"""Keys of a problem that a `Rollout` has; further ones are columns for reward functions."""


class PolicyGradientTrainer(Trainer):
    """A `Trainer` that trains on its own rollouts with a policy-gradient loss.

    Args:
        problems: mappings with the keys `FIELDS`, and columns for reward functions.
        grading: the rewards. A function with TRL's signature also gets `trainer_state`,
            `log_metric` and `log_extra`.
        grpo: the section `grpo` of params.
        sampling: settings of the rollouts; each step sets its own seed.
        teacher: a frozen model with the policy's tokenizer (`grpo.teacher`), or None.
    """

    def __init__(
        self,
        *,
        problems: Sequence[Mapping[str, Any]],
        grading: Grading,
        grpo: Grpo,
        sampling: Sampling,
        teacher: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.problems = problems
        self.order = ProblemOrder(grpo, num_problems=len(problems), seed=self.args.seed)
        if grpo.curriculum != "none":
            self.add_callback(self.order)
        self.grading = grading
        # [F]
        self.reward_weights = torch.tensor(grading.weights, device=self.accelerator.device)
        self.grpo = grpo
        # A built-in name as it is; a plugin's function.
        self.advantage = objective(grpo.advantage)
        self.objective = Objective(
            loss=objective(grpo.loss),
            clip_low=grpo.epsilon,
            # params.yaml has no nulls: an `epsilon_high` of 0 means the value of `epsilon`.
            clip_high=grpo.epsilon_high or grpo.epsilon,
            delta=grpo.delta or None,  # 0 means no bound
            ratio_level=grpo.importance_level,
            kl_coef=grpo.beta,
            kl_weighted=grpo.kl_weighted,
            teacher_coef=grpo.teacher_coef,
            max_completion_length=sampling.max_new_tokens,
        )
        # bnpo divides by the tokens of a micro-batch, so sorting rows would change its loss.
        self._sorts_rows = grpo.loss != "bnpo"
        self.sampling = dataclasses.replace(sampling, log_probs=True)
        # The engine's version of the weights at the last roll-out, and the last step's mean gap
        # between sampler and trainer in nats per token.
        self._synced, self._gap = "", math.nan
        # Set by `roll_out_with`, before training.
        self.engine: Engine
        self.live: bool
        self.rollouts: list[Rollout] = []
        """The B rollouts of the last roll-out, G consecutive ones for each problem."""
        self.batches: list[MicroBatch] = []
        """The same rollouts, arranged for the passes of a step."""
        self.extra_columns: dict[str, list[Any]] = {}
        """Columns of the rollouts from reward functions, logged through `log_extra`."""
        self.curve = Curve(self.accelerator)
        self.bonus = EntropyCoefficient(grpo.entropy_coef, grpo.entropy_target)
        if self.bonus.is_used:
            self.add_callback(SavedCoefficient(self.bonus))
        # A prompt computed once takes two forward passes before one backward pass, which DDP and
        # FSDP do not support, and a cache, which gradient checkpointing does not keep.
        one_process = self.accelerator.num_processes == 1
        self.scorer = Scorer(
            self.model,
            sampling=sampling,
            shares_prompts=one_process and not self.args.gradient_checkpointing,
            entropy_grad=self.bonus.is_used,
            float32_head=grpo.cast_lm_head_to_fp32,
        )
        self.teacher = teacher and Scorer(
            teacher.to(self.accelerator.device),
            sampling=sampling,
            shares_prompts=self.scorer.shares_prompts,
            float32_head=grpo.cast_lm_head_to_fp32,
        )
        # With False, Trainer divides each micro-batch's loss by the number of micro-batches in a
        # step, which the divisors of `_arrange` cancel.
        self.model_accepts_loss_kwargs = False
        self._num_weights = self.model.num_parameters(exclude_embeddings=True)
        self.reference = ReferencePolicy(self.model) if grpo.beta else None

    @property
    def reward_funcs(self) -> list[RewardFn]:
        """The F reward functions, under TRL's name. To replace a function, change this list."""
        return self.grading.rewards

    def roll_out_with(self, engine: Engine, *, live: bool) -> None:
        """Set the engine that samples all rollouts; `train` closes it.

        A live engine computes with the policy's own weights: its log-probs need no correction.
        """
        self.engine, self.live = engine, live

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        with contextlib.closing(self.engine):
            return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> Iterator[dict[str, MicroBatch]]:
        """Sample rollouts, and yield their micro-batches step by step as {"batch": MicroBatch}.

        A plain generator, because a loader that accelerate prepares reads one batch ahead: it would
        sample a step's rollouts before the update of the step before.
        """
        # False at once for a run that is resumed at its end.
        while self.state.global_step < self.state.max_steps:
            self.batches = self.roll_out()
            for _ in range(self.grpo.num_iterations):
                for batch in self.batches:
                    # Every iteration gets the same object, and with it the `old_log_probs` that the
                    # first one stored.
                    yield {"batch": batch}

    def roll_out(self) -> list[MicroBatch]:
        """Sample, score and arrange this step's rollouts, and return the micro-batches."""
        # A policy that FSDP2 shards is not gathered here: an engine with a copy of the weights
        # gathers one parameter at a time.
        version = self.engine.sync(self.accelerator.unwrap_model(self.model_wrapped))
        self._check_version(version)
        groups = self.sample(self.order.of_step(self.state.global_step), round_=0)
        if self.grpo.dynamic_sampling:
            groups = refill(self, groups)
        self.engine.rest()
        if self.grpo.curriculum != "none":
            for pool, size in self.order.pool_sizes().items():
                self.curve.record(f"curriculum/{pool}", size)
        self.rollouts = [rollout for group in groups for rollout in group]
        self.curve.add_rollouts(self.rollouts, judged=bool(self.reward_funcs))
        # Advantages decide which rows share a micro-batch.
        batches = self._arrange(self._advantages())
        if self.reference:
            # One swap for all micro-batches: it copies every trained weight twice.
            with self.reference.in_place_of(self.model), torch.no_grad():
                for batch in batches:
                    batch.reference_log_probs = self.scorer.score(self.model, batch).log_probs
        if self.teacher and self.grpo.teacher_kl == "sampled":
            with torch.no_grad(), self.accelerator.autocast():
                for batch in batches:
                    scores = self.teacher.score(self.teacher.policy, batch)
                    batch.teacher_log_probs = scores.log_probs
        return batches

    def sample(self, indices: Sequence[int], *, round_: int) -> list[list[Rollout]]:
        """Sample, judge and score G completions of each problem of this process, as groups.

        Args:
            indices: of all processes' problems; whole groups are sampled on one rank.
            round_: 0, or the number of the refill round; each round has other random numbers.

        Raises:
            UserError: the policy's logits are NaN or infinite.
        """
        # The key has the step, for a resumed run, and no rank: engines add the prompt, so that
        # several ranks sample what one would.
        seed = keyed_seed(self.args.seed, "rollout", self.state.global_step, round_)
        problems = [self.problems[index] for index in self._part_of_rank(indices)]
        prompts = encode(self.processing_class, [problem["prompt"] for problem in problems])
        # A live engine reads the policy's own parameters, all of them.
        whole = whole_on_every_rank(self) if self.live else contextlib.nullcontext()
        sampling = dataclasses.replace(self.sampling, seed=seed)
        try:
            with timed("generation"), whole:
                completions = self.engine.generate(prompts, sampling)
        except NotFiniteError as error:
            raise self._diverged("the policy's logits") from error
        groups = [
            self.grading.judge(group, prompt_ids=ids, **{name: problem[name] for name in FIELDS})
            for problem, ids, group in zip(problems, prompts, completions, strict=True)
        ]
        if self.grpo.curriculum != "none":
            rates = [[sum(one.answer_ok for one in group) / len(group)] for group in groups]
            self.order.observe(indices, self.curve.gather(rates).flatten().tolist())
        # As TRL counts: of every rollout so far on all ranks, with groups that a refill replaces.
        rollouts = [rollout for group in groups for rollout in group]
        length = sum(len(one.prompt_ids) + one.num_tokens for one in rollouts)
        self.state.num_input_tokens_seen += int(self.curve.gather([length]).sum())
        # Replaced, not added: the curve logs the mean of this list.
        self.curve.values["num_tokens"] = [self.state.num_input_tokens_seen]
        # Columns for reward functions: a problem's value G times, so B values in each.
        repeated = [problem for problem in problems for _ in range(self.grpo.group_size)]
        extra = [name for name in problems[0] if name not in FIELDS]
        self._score(rollouts, {name: [problem[name] for problem in repeated] for name in extra})
        return groups

    def _score(self, rollouts: Sequence[Rollout], columns: Mapping[str, Sequence[Any]]) -> None:
        """Set `rewards`, `reward` and `metrics` of the B rollouts; `columns` have B values each."""
        metrics: dict[str, list[float]] = defaultdict(list)
        self.extra_columns = {}
        with timed("rewards"):
            self.grading.score(
                rollouts,
                **columns,
                trainer_state=self.state,
                log_metric=lambda name, value: metrics[name].append(value),
                log_extra=lambda name, values: self.extra_columns.update({name: list(values)}),
            )
        if taken := [name for name in metrics if OWN_COLUMNS.fullmatch(name)]:
            raise UserError(f"log_metric: `{taken[0]}` is a column of the curve; use another name")
        means = {name: sum(logged) / len(logged) for name, logged in metrics.items()}
        for rollout in rollouts:
            rollout.metrics = means

    def rewards_of(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Return the rewards of B rollouts as a tensor [B, F]."""
        values = [rollout.rewards for rollout in rollouts]
        return torch.tensor(values, dtype=torch.float32, device=self.accelerator.device)

    def _totals(self, rewards: Tensor) -> Tensor:
        """Return the weighted sum over F of rewards [groups · G, F], as [groups, G]."""
        return (rewards * self.reward_weights).sum(-1).view(-1, self.grpo.group_size)

    def rewards_differ(self, rewards: Tensor) -> Tensor:
        """Return a mask [groups] of the rewards [groups · G, F]: True if a group's totals differ.

        With GDPO: if the rewards of any function of non-zero weight differ.
        """
        if self.grpo.reward_aggregation == "sum":
            return has_signal(self._totals(rewards))
        # [F, groups · G]; a weight of 0 makes a function's rewards equal, all 0.
        weighted = (rewards * self.reward_weights).T
        # [F, groups, G] -> [F, groups] -> [groups]
        return has_signal(weighted.reshape(len(weighted), -1, self.grpo.group_size)).any(0)

    def _part_of_rank(self, rows: Any) -> Any:
        """Return this process's part of all rows (a list or tensor): rank 0 has the first part."""
        size, rank = len(rows) // self.accelerator.num_processes, self.accelerator.process_index
        return rows[rank * size : (rank + 1) * size]

    def _advantages(self) -> Tensor:
        """Return the advantages [B] of this process's rollouts, and add the rewards to the curve.

        `grpo.advantage: batch` and GDPO need the completions of all ranks.
        """
        if not self.reward_funcs:
            return torch.zeros(len(self.rollouts), device=self.accelerator.device)
        # [B · ranks, F]
        rewards = self.accelerator.gather(self.rewards_of(self.rollouts))
        # [P · ranks, G] the weighted sums over F.
        totals = self._totals(rewards)
        # [B · ranks] True for a right answer.
        right = self.accelerator.gather(
            torch.tensor([one.answer_ok for one in self.rollouts], device=totals.device)
        )
        # [P · ranks, G, F]
        components = rewards.view(*totals.shape, -1)
        # A plugin's function replaces GDPO's too, since it gets `components`.
        if self.grpo.reward_aggregation == "gdpo" and not callable(self.advantage):
            advantages = gdpo_advantages(components, self.reward_weights)
        else:
            advantages = group_advantages(
                totals,
                baseline=self.advantage,
                right=right.view_as(totals),
                components=components,
            )
        self.curve.add_rewards([one.__name__ for one in self.reward_funcs], rewards, totals)
        # TRL's name, which tests the standard deviation; here, max − min is 0.
        share_equal = 1 - self.rewards_differ(rewards).float().mean()
        self.curve.record("frac_reward_zero_std", share_equal.item())
        own: Tensor = self._part_of_rank(advantages.flatten())
        return own

    def _arrange(self, advantages: Tensor) -> list[MicroBatch]:
        """Cut the step's B rollouts, with their advantages [B], into micro-batches."""
        rollouts, size = self.rollouts, self.args.per_device_train_batch_size
        group, by_signal = self.grpo.group_size, self.grpo.divide_by == "signal"
        # [B] True for an advantage other than 0; read once, because each read waits for the GPU.
        signals = advantages.bool().tolist()
        # [B] True for all completions of a group with an advantage other than 0.
        in_signal = [any(signals[row - row % group :][:group]) for row in range(len(rollouts))]
        # [B] True for a completion in the loss. `truncated` is the engine's finish reason, since a
        # missing end token would be no sign: a completion that a stop string ended has none either.
        counted = [
            not (self.grpo.mask_truncated and rollout.truncated) and (signal or not by_signal)
            for rollout, signal in zip(rollouts, in_signal, strict=True)
        ]
        # A row is an index into the rollouts; its position decides its micro-batch.
        order = sorted_rows(rollouts, in_signal) if self._sorts_rows else range(len(rollouts))
        row_lists = [list(order[start : start + size]) for start in range(0, len(order), size)]
        # Trainer averages the loss over micro-batches, and DDP over ranks. Divisors that are
        # smaller by this factor undo both.
        parts = len(row_lists) * self.accelerator.num_processes
        # [B] tokens in the loss.
        tokens = [one.num_sampled * is_in for one, is_in in zip(rollouts, counted, strict=True)]
        num_tokens: float | list[float] = self._at_least_1(sum(tokens)) / parts
        if self.grpo.average == "prompt":
            # [B / G], and then for each row the number of its prompt.
            of_prompt = [sum(tokens[start:][:group]) for start in range(0, len(tokens), group)]
            prompts = self._at_least_1(sum(map(bool, of_prompt))) / parts
            num_tokens = [max(of_prompt[row // group], 1) * prompts for row in range(len(rollouts))]
        num_completions = self._at_least_1(sum(in_signal)) / parts if by_signal else None
        # These, and perhaps a plugin's loss, give rows with zero advantage a gradient too.
        other_terms = (
            self.grpo.beta > 0
            or self.bonus.is_used
            or self.teacher is not None
            or is_plugin(self.grpo.loss)
        )
        return [
            collate(
                [rollouts[row] for row in rows],
                counted=[counted[row] for row in rows],
                pad=self.processing_class.pad_token_id,
                device=self.accelerator.device,
                rows=rows,
                advantages=advantages[torch.tensor(rows, device=advantages.device)],
                signal=any(signals[row] or (other_terms and counted[row]) for row in rows),
                num_tokens=(
                    num_tokens
                    if isinstance(num_tokens, float)
                    else advantages.new_tensor([num_tokens[row] for row in rows])
                ),
                num_completions=num_completions,
                last=rows is row_lists[-1],
            )
            for rows in row_lists
        ]

    def _at_least_1(self, count: int) -> float:
        """Sum a count over all ranks; 1 for a step whose completions are all masked."""
        return max(float(self.curve.gather([count]).sum()), 1.0)

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        """Return the scalar loss of `inputs["batch"]`; `Trainer` averages those of a step."""
        batch: MicroBatch = inputs["batch"]
        if self._can_skip(batch):
            # `Trainer` calls `backward` on the result, so it must require a gradient.
            return torch.zeros((), device=self.accelerator.device, requires_grad=True)
        teacher = None
        if self.teacher and self.grpo.teacher_kl == "full":
            # One micro-batch's at a time: those of a whole step may be gigabytes.
            with torch.no_grad(), self.accelerator.autocast():
                teacher = self.teacher.states(batch, top_k=self.grpo.teacher_top_k)
        # Log-probs and entropies of the completions' tokens, [b, T] each, with gradient.
        scores = self.scorer.score(model, batch, teacher=teacher)
        # In the first pass, the policy still has the weights that sampled.
        if batch.old_log_probs is None:
            batch.old_log_probs = scores.log_probs.detach()
            comparison = compare_with_sampler(
                batch.old_log_probs,
                batch.sampler_log_probs,
                batch.loss_mask,
                correction=self.grpo.sampler_correction,
                cap=self.grpo.correction_cap,
                floor=self.grpo.correction_floor,
            )
            self.curve.add_comparison(comparison, batch.loss_mask)
            # A live engine's gap is only rounding.
            if not self.live:
                batch.correction = comparison.weights
        loss = policy_loss(scores, batch, self.objective, entropy_coef=self.bonus.step_coefficient)
        self.curve.add_loss(loss, scores.entropy.detach(), batch)
        if batch.last:
            self._close_step()
        return loss.loss

    def _can_skip(self, batch: MicroBatch) -> bool:
        """Return True if the micro-batch has no gradient and no rank waits for its computation."""
        if batch.signal:
            return False
        # Every rank computes the last micro-batch of a step: AdamW skips parameters without a
        # gradient, and DDP averages gradients in its backward pass. A sharded policy gathers its
        # weights in each forward pass, so all ranks must make the same number of passes. Rows that
        # are not sorted by signal hardly ever make a micro-batch without it.
        return not batch.last and not self.is_fsdp_enabled and self._sorts_rows

    def _close_step(self) -> None:
        means = self.curve.close_step()
        # None in a later step on the same rollouts, or if no token counted.
        gap = means.get(f"{GAP}/mean")
        if gap is not None:
            self._gap = gap
            if not math.isfinite(gap):
                raise self._diverged("log-probs of the sampler or the trainer")
        if self.bonus.is_used:
            if "entropy" in means:
                self.bonus.update(means["entropy"])
            self.curve.record("entropy_coef", self.bonus.coefficient)

    def _check_version(self, version: str | None) -> None:
        """Refuse to train on completions sampled from stale weights.

        A gap between log-probs proves nothing, since engines round differently: it only gives a
        warning (`lib.training.phase.warning_signs`).
        """
        if not version or version == self._synced:
            raise UserError(
                f"step {self.state.global_step + 1}: {type(self.engine).__name__} still generates "
                f"with weights of an earlier step (version {self._synced or 'of the start'}), so "
                "training stops. Use rollout.engine=transformers, and report this"
            )
        self._synced = version

    def _diverged(self, what: str) -> UserError:
        return UserError(
            f"step {self.state.global_step + 1}: {what} are NaN or infinite (last gap of sampler "
            f"and trainer: {self._gap:.3g} nats per token); lower grpo.learning_rate or "
            "grpo.max_grad_norm, or set model.dtype=float32"
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # Trainer counts from the start of this process, so that a resumed run would end below 1.
        self.state.epoch = self.state.global_step / self.state.max_steps
        super().log({**logs, **self.curve.take_point()}, start_time)

    def floating_point_ops(self, inputs: Any) -> int:
        """Estimate a micro-batch's operations, as `Trainer` does, with generation and reference.

        N weights without embeddings take 2N per token for a forward pass, 6N with the backward one.
        """
        batch: MicroBatch = inputs["batch"]
        rollouts = [self.rollouts[row] for row in batch.rows]
        tokens = sum(len(one.prompt_ids) + one.num_tokens for one in rollouts)
        # Once for all steps on the same rollouts.
        sampled = (2 + 2 * bool(self.reference)) / self.grpo.num_iterations
        per_token = sampled + 6 * (not self._can_skip(batch))
        return round(per_token * tokens * float(self._num_weights))


class SavedCoefficient(SavedState):
    """Keeps the entropy bonus's coefficient in checkpoints."""

    def __init__(self, bonus: EntropyCoefficient) -> None:
        self.bonus = bonus

    def values(self) -> dict[str, Any]:
        return dataclasses.asdict(self.bonus)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore what steering has changed: the rest is the run's own params."""
        if self.bonus.target:
            self.bonus.coefficient, self.bonus.last = values["coefficient"], values["last"]
