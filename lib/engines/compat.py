"""Repairs of libraries: for each, the place upstream, the versions, and when it can go.

Seen with vLLM 0.32.0, TRL 1.14.0 and Unsloth 2026.10.7. Nothing here is applied by being imported.
"""

import contextlib
import functools
import importlib.metadata
import logging
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

VLLM_ENVIRONMENT = {
    # The engine in this process: sync and sampler can be reached, and start-up is 2 s, not 18 s.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Threads are torch's own, as many as `torch_threads` says.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""What vLLM reads while it is imported; what the user has set stays."""


def prepare_vllm() -> None:
    """Set vLLM's environment before its first import."""
    os.environ |= VLLM_ENVIRONMENT | os.environ
    # vllm/triton_utils/dispatcher.py, 0.32.0, walks through all of torch's names.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.reduce_op` is deprecated")
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)


def keep_trl() -> None:
    """Restore TRL's own trainers after `import unsloth`.

    unsloth/models/rl.py, `PatchFastRL`, 2026.10.7, puts classes that it generates in their place:
    a `GRPOTrainer` whose `compute_loss` never calls `_compute_loss`, whose log-probs may be None
    and which logs no `sampling_logp_difference`, and an `SFTTrainer` that prepares the data in
    another way and logs neither entropy nor token accuracy. What ours override (`lib.training`)
    would be dead code there. What Unsloth does to models, and to transformers' `Trainer`, stays.

    One of its repairs is needed on TRL's own too: `disable_gradient_checkpointing` turns, when it
    ends, transformers' checkpointing on in place of Unsloth's. Can go when Unsloth can be told to
    leave TRL alone.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        del sys.modules[name]
    from trl.models import utils

    utils.disable_gradient_checkpointing = lambda *_: contextlib.nullcontext()


def pack_heads(model: Any) -> None:
    """Pack the output layers anew after their weights were replaced on a CPU.

    vllm/model_executor/model_loader/reload/layerwise.py, `finalize_layerwise_processing`, 0.32.0:
    a layer for which no weights came stays as it was, and a head that is tied to the embeddings
    gets none. On a CPU it has packed its own copy (vllm/model_executor/layers/utils.py,
    `dispatch_cpu_unquantized_gemm`) and would go on with the old one, silently. Can go when vLLM
    packs a tied head anew.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def forget_layers() -> None:
    """Let the model of a vLLM engine go whose weights were replaced.

    vllm/model_executor/model_loader/reload/meta.py, `restore_layer_on_meta`, 0.32.0, writes each
    layer into what a dictionary with weak keys has for it, which then never lets it go. Can go when
    `restore_layer_refs` takes a copy.
    """
    from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO

    LAYERWISE_INFO.clear()


def executor_on(gpu: int) -> type:
    """Return the executor of an in-process vLLM on the GPU of that number.

    vllm/v1/executor/uniproc_executor.py, `UniProcExecutor._distributed_args`, 0.32.0, takes the
    number from `DeviceConfig.device`, which keeps the kind of a device and drops its number. Can go
    when `LLM` takes a device.
    """
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    class OnGpu(UniProcExecutor):
        def _distributed_args(self) -> tuple[str, int, int]:
            method, rank, _ = super()._distributed_args()
            return method, rank, gpu

    return OnGpu


@functools.cache
def one_gpu_per_process() -> None:
    """Make a trainer use one GPU; the others that it sees are an engine's or other ranks'.

    transformers/training_args.py, `TrainingArguments.n_gpu`, 5.17.0: without a launcher a trainer
    takes all GPUs that it sees, by `nn.DataParallel`, and multiplies its batch by their number. Can
    go when that can be turned off.
    """
    from transformers import TrainingArguments

    plain: Any = TrainingArguments.n_gpu.fget
    TrainingArguments.n_gpu = property(lambda self: min(1, plain(self)))


def name_cpu_build() -> None:
    """Let `vllm serve` find its own version where the package is called `vllm-cpu`.

    vllm/entrypoints/cli/main.py, `main`, 0.32.0 asks for the metadata of `vllm` by name. Only for
    this process. Can go when vLLM asks for `vllm-cpu` there too, as vllm/platforms does.
    """
    plain = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return plain(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{plain('vllm-cpu')}+cpu"

    importlib.metadata.version = version


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Give back what building a vLLM engine in this process takes.

    It seeds every generator (vllm/utils/torch_utils.py, `set_random_seed`) and turns
    `torch.set_num_threads` off for good (vllm/v1/worker/cpu_worker.py, `init_device`), 0.32.0. Can
    go when neither reaches beyond the engine.
    """
    import torch

    from lib.engines.runtime import random_states_kept

    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    try:
        with random_states_kept():
            yield
    finally:
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def process_group_kept() -> Iterator[None]:
    """Protect torch's process group, which training uses, while an engine shuts down.

    vllm/distributed/parallel_state.py, `destroy_distributed_environment`, 0.32.0 ends the default
    group, whoever made it: training on several ranks would fail at its end, with nothing written.
    Can go when vLLM ends only its own groups.
    """
    import torch

    destroy = torch.distributed.destroy_process_group

    def destroy_named(group: Any = None) -> None:
        if group is not None:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_named
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy


# Once: torch sorts what is registered, and cannot sort a second one of the same rank.
@functools.cache
def load_onto_numbered_cpu() -> None:
    """Let torch load onto `cpu:0`, which accelerate calls the device of a rank on a CPU.

    transformers/trainer.py, `_load_optimizer_and_scheduler`, 5.17.0 maps an optimiser's state onto
    the rank's device when a run of several ranks is resumed; torch/serialization.py, 2.13.0, knows
    no CPU with a number. Can go when either does.
    """
    import torch

    def as_it_is(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    torch.serialization.register_package(5, lambda storage: None, as_it_is)


class EpochSampler:
    """The orders of `sampler`, one epoch after the other, starting at any epoch.

    Args:
        epoch: the one that begins. It is asked for, since accelerate's loaders pass a `set_epoch`
            on no further than to their own wrappers where a resumed epoch skips batches on several
            ranks (accelerate/data_loader.py, `DataLoaderShard.set_epoch`, 1.15.0).
    """

    def __init__(self, sampler: Any, *, seed: int, epoch: Callable[[], int]) -> None:
        import torch

        self.sampler = sampler
        self.seed = seed
        self.epoch = epoch
        if getattr(sampler, "generator", None) is None:
            sampler.generator = torch.Generator()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.seed)
        for _ in range(self.epoch()):
            deque(self.sampler, maxlen=0)
        return iter(self.sampler)


def order_by_epoch(trainer: Any) -> None:
    """Make the order of a trainer's data a function of the seed and the epoch alone.

    transformers/trainer_pt_utils.py, `LengthGroupedSampler`, 5.17.0 (SFT by length), and
    trl/trainer/utils.py, `RepeatSampler`, 1.14.0 (`grpo.trainer: trl`) draw each epoch's order from
    a generator that has drawn those before it: a run that is resumed in a later epoch would start
    over with the first epoch's order. Can go when both take the epoch.
    """
    from transformers.trainer_pt_utils import LengthGroupedSampler
    from trl.trainer.utils import RepeatSampler

    original = trainer._get_train_sampler

    def wrapped(*arguments: Any) -> Any:
        sampler = original(*arguments)
        shuffles = isinstance(sampler, LengthGroupedSampler) or (
            isinstance(sampler, RepeatSampler) and sampler.shuffle
        )
        if not shuffles:
            return sampler
        return EpochSampler(
            sampler, seed=trainer.args.seed, epoch=lambda: int(trainer.state.epoch or 0)
        )

    trainer._get_train_sampler = wrapped


def resume_token_count(trainer: Any, state: Mapping[str, Any]) -> None:
    """Restore SFT's and DPO's count of trained tokens, which TRL does not save.

    trl/trainer/sft_trainer.py, `SFTTrainer.__init__`, 1.14.0: `_total_train_tokens` starts at 0.
    Can go when TRL saves it.

    Args:
        state: of `trainer_state.json` in the checkpoint.
    """
    tokens = [entry["num_tokens"] for entry in state["log_history"] if "num_tokens" in entry]
    if tokens and hasattr(trainer, "_total_train_tokens"):
        trainer._total_train_tokens = int(tokens[-1])
