"""TRL's `GRPOTrainer` with rollouts from our engines, and with what its objectives lack.

What TRL has is TRL's: losses, clipping, KL, GSPO, the baselines mean, group and batch. Added here:

    rollouts            an `Engine` generates (`lib.trainers.rollouts`), with stop strings
    advantage           by `lib.objectives.group_advantages`, none and rloo among them
    reinforce           −A·log π: TRL's loss with the log-probs of the old policy left out, so that
                        the ratio is 1 with the gradient of log π, and never clipped
    truncation masking  by the engine's finish reason; TRL goes by the last token, and takes every
                        completion that a stop string ended for a truncated one
    dynamic sampling    `lib.trainers.dynamic_sampling`
    sampler check       the sampler's log-probs against the trainer's, in every step
    less arithmetic     `lib.trainers.batching`

Names of TRL that this relies on are listed in `lib.trainers.seams`.

Shapes: P problems per rank and G completions of each (a group), B = P·G, T tokens, F reward
functions.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput
from trl import GRPOConfig
from trl.models import prepare_deepspeed, prepare_fsdp, unwrap_model_for_generation

from lib.engines.base import Engine, Sampling
from lib.engines.unsloth import is_unsloth
from lib.errors import UserError
from lib.objectives import Baseline, group_advantages, has_signal
from lib.trainers.batching import PackingTrainer
from lib.trainers.dynamic_sampling import draw_places, refill
from lib.trainers.ranks import whole_on_every_rank
from lib.trainers.rollouts import Rollout, Rollouts, keyed_seed, length_metrics

GAP = "sampling/sampling_logp_difference"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What TRL's arguments have no field for; names and meanings are those of `Grpo` in params."""

    advantage: Baseline
    reinforce: bool
    mask_truncated: bool
    dynamic_sampling: int
    max_logp_difference: float


class PolicyGradientTrainer(PackingTrainer):
    """See the module; ready to train after `roll_out_with`."""

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        *,
        args: GRPOConfig,
        objective: Objective,
        **kwargs: Any,
    ) -> None:
        beta, copied = args.beta, None
        if beta and not isinstance(model, PeftModel):
            # TRL would load it by the name in the config: without revision, added tokens or dtype.
            copied, args.beta = copy.deepcopy(model).eval().requires_grad_(False), 0.0
        super().__init__(model=model, args=args, **kwargs)
        args.beta = self.beta = beta
        if copied is not None:
            self.ref_model = self._prepare_reference(copied)
        self.objective = objective
        self._problems: list[dict[str, Any]] = []
        self._scored: Tensor | None = None
        self._all_rewards = torch.empty(0)
        self._compared: dict[str, Tensor] | None = None

    def _prepare_reference(self, reference: PreTrainedModel) -> PreTrainedModel:
        if self.is_deepspeed_enabled:
            return prepare_deepspeed(reference, self.accelerator)
        if self.is_fsdp_enabled:
            return prepare_fsdp(reference, self.accelerator)
        return self.accelerator.prepare_model(reference, evaluation_mode=True)

    def roll_out_with(self, engine: Engine, sampling: Sampling, *, live: bool) -> None:
        """Generate with `engine` from now on; it is closed when training ends, however it ends.

        Args:
            live: see `Rollouts`. TRL then needs no correction for what a copy of the policy, in
                other kernels, would sample differently, nor the forward pass that measures it.
        """
        self.rollouts = Rollouts(engine, sampling, policy=self._whole_policy, live=live)
        self.use_vllm, self.vllm_generation, self._last_loaded_step = True, self.rollouts, -1
        self.vllm_importance_sampling_correction = not live

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """See `Trainer`."""
        with contextlib.closing(self.rollouts.engine):
            return super().train(*args, **kwargs)

    @contextlib.contextmanager
    def _whole_policy(self) -> Iterator[PreTrainedModel]:
        if is_unsloth(self.model):
            # In one piece; TRL's way out would turn transformers' checkpointing on.
            yield self.accelerator.unwrap_model(self.model_wrapped)
            return
        with (
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
            ) as policy,
            whole_on_every_rank(self),
        ):
            yield policy

    # From problems to a batch for the loss

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._problems, self._scored = inputs, None
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        credit = self._our_advantages()
        start = self.accelerator.process_index * len(inputs)
        batch["advantages"] = credit[start : start + len(inputs)]
        # TRL shuffles the rows among the micro-batches; this is where each stood.
        batch["row"] = torch.arange(len(inputs), device=credit.device)
        if not self.rollouts.live:
            self._check_sampler(self._recorded[f"{GAP}/mean"][-1])
        return batch

    def _our_advantages(self) -> Tensor:
        """[ranks · B]."""
        totals = self._totals(self._all_rewards)
        return group_advantages(totals, baseline=self.objective.advantage).flatten()

    def _totals(self, rewards: Tensor) -> Tensor:
        """[groups, G] weighted rewards of [groups · G, F]."""
        weighted: Tensor = (rewards * self.reward_weights.to(rewards.device)).nansum(1)
        return weighted.view(-1, self._group_size)

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        recorded = {name: list(values) for name, values in self._recorded.items()}
        rows = self._draw(self._problems, round_=0)
        if self.objective.dynamic_sampling and self.model.training:
            rows = self._refill(rows)
            self._scored = torch.stack([row.rewards for row in rows])
            # The caller goes on with these two lists.
            self._problems[:] = [row.problem for row in rows]
            prompts[:] = [row.problem["prompt"] for row in rows]
        for name, value in self._length_metrics(rows).items():
            self._recorded[name] = [*recorded.get(name, ()), value]
        return (
            [row.prompt_ids for row in rows],
            [row.token_ids for row in rows],
            self._loss_masks(rows),
            [row.message for row in rows],
            [row.log_probs for row in rows],
            {},
            None,
            [],
        )

    def _draw(self, problems: Sequence[dict[str, Any]], *, round_: int) -> list[Rollout]:
        """A completion for each of the problems, which stand there G times each."""
        rank = self.accelerator.process_index
        self.rollouts.seed = keyed_seed(
            self.args.seed, "rollout", self.state.global_step, round_, rank
        )
        asked = [problem["prompt"] for problem in problems]
        prompt_ids, token_ids, _, messages, log_probs, *_ = super()._generate(asked)
        return [
            Rollout(
                problem=problem,
                prompt_ids=prompt,
                token_ids=tokens,
                message=message,
                log_probs=values,
                finish=finish,
            )
            for problem, prompt, tokens, message, values, finish in zip(
                problems,
                prompt_ids,
                token_ids,
                messages,
                log_probs,
                self.rollouts.finishes,
                strict=True,
            )
        ]

    def _loss_masks(self, rows: Sequence[Rollout]) -> list[list[int]] | None:
        """Per token, what the loss counts; TRL's name for it is the tool mask."""
        if not self.objective.mask_truncated:
            return None
        return [[0 if row.truncated else 1] * len(row.token_ids) for row in rows]

    def _length_metrics(self, rows: Sequence[Rollout]) -> dict[str, float]:
        local = torch.tensor(
            [[len(row.token_ids), row.truncated] for row in rows], device=self.accelerator.device
        )
        lengths, truncated = self.accelerator.gather(local).T
        return length_metrics(lengths, truncated.bool())

    # Rewards and dynamic sampling

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Tensor:
        rewards: Tensor
        if self._scored is None:
            rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        else:
            rewards = self.accelerator.gather(self._scored)
        self._all_rewards = rewards
        return rewards

    def _refill(self, rows: Sequence[Rollout]) -> list[Rollout]:
        drawn: list[bool] = []

        def signals(groups: Sequence[list[Rollout]]) -> list[bool]:
            found = self._with_signal(groups)
            drawn.extend(found)
            return found

        groups, rounds = refill(
            self._score(rows),
            rounds=self.objective.dynamic_sampling,
            step=self.state.global_step,
            has_signal=signals,
            draw=self._draw_others,
            most=self._most,
        )
        self._recorded["dynamic_sampling/rounds"].append(float(rounds))
        kept = self.accelerator.reduce(
            torch.tensor([sum(drawn) / len(drawn)], device=self.accelerator.device), "mean"
        )
        self._recorded["dynamic_sampling/frac_without_signal"].append(1 - kept.item())
        return [row for group in groups for row in group]

    def _score(self, rows: Sequence[Rollout]) -> list[list[Rollout]]:
        """The rows in groups, with their rewards."""
        rewards = super()._calculate_rewards(
            [row.problem for row in rows],
            [row.problem["prompt"] for row in rows],
            [row.message for row in rows],
            [row.token_ids for row in rows],
        )
        local = rewards[self.accelerator.process_index * len(rows) :][: len(rows)]
        scored = [
            dataclasses.replace(row, rewards=earned)
            for row, earned in zip(rows, local, strict=True)
        ]
        size = self._group_size
        return [scored[start : start + size] for start in range(0, len(scored), size)]

    def _with_signal(self, groups: Sequence[list[Rollout]]) -> list[bool]:
        """Which groups move the policy: rewards differ, and not all rows are masked."""
        rewards = torch.stack([row.rewards for group in groups for row in group])
        masked = self.objective.mask_truncated
        return [
            differ and not (masked and all(row.truncated for row in group))
            for group, differ in zip(
                groups, has_signal(self._totals(rewards)).tolist(), strict=True
            )
        ]

    def _draw_others(self, count: int, round_: int) -> list[list[Rollout]]:
        places = draw_places(
            count,
            num_problems=len(self.train_dataset),
            seed=self.args.seed,
            step=self.state.global_step,
            round_=round_,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
        )
        others = [self.train_dataset[place] for place in places for _ in range(self._group_size)]
        return self._score(self._draw(others, round_=round_))

    def _most(self, count: int) -> int:
        counts = self.accelerator.gather(torch.tensor([count], device=self.accelerator.device))
        return int(counts.max())

    # The loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self.objective.reinforce:
            inputs = {
                name: value for name, value in inputs.items() if name != "old_per_token_logps"
            }
        fresh = self.state.global_step == self._last_loaded_step
        self._compared = inputs if self.rollouts.live and fresh else None
        loss: Tensor = super()._compute_loss(model, inputs)
        self._compared = None
        return loss

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        scores = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if self._compared is not None:
            self._compare_with_sampler(scores[0].detach(), self._compared)
        return scores

    def _compare_with_sampler(self, log_probs: Tensor, inputs: dict[str, Tensor]) -> None:
        """Before the first update on a batch, the trainer's log-probs are the sampler's."""
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        gaps = (log_probs - inputs["sampling_per_token_logps"]).abs() * mask
        sums = self.accelerator.reduce(torch.stack([gaps.sum(), mask.sum()]), "sum")
        mean = (sums[0] / sums[1].clamp(min=1)).item()
        self._recorded[f"{GAP}/mean"].append(mean)
        self._recorded[f"{GAP}/max"].append(self.accelerator.gather(gaps.max()).max().item())
        self._check_sampler(mean)

    def _check_sampler(self, gap: float) -> None:
        """Refuse to learn from a sampler that is not the policy.

        Raises:
            UserError: the mean gap per token is beyond `rollout.max_logp_difference`, or no number.
        """
        if not gap <= self.objective.max_logp_difference:
            raise UserError(
                f"step {self.state.global_step + 1}: the sampler's log-probs differ from the "
                f"trainer's by {gap:.3g} nats per token on average, more than "
                f"rollout.max_logp_difference={self.objective.max_logp_difference:g}; it samples "
                "from other weights than those in training. Where the gap is the precision of "
                "another engine, raise that limit or use rollout.engine=transformers"
            )

    @property
    def _recorded(self) -> dict[str, list[float]]:
        """TRL's metrics, averaged at the next log."""
        metrics: dict[str, list[float]] = self._metrics["train" if self.model.training else "eval"]
        return metrics

    @property
    def _group_size(self) -> int:
        size: int = self.num_generations if self.model.training else self.num_generations_eval
        return size
