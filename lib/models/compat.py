"""Workarounds for faults of vLLM, TRL, Unsloth, transformers and torch.

Most name the faulty code, its version, and when they can be removed. Importing this module applies
none of them. Seen with vLLM 0.32.0, TRL 1.14.0 and Unsloth 2026.10.7.
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
    # The engine runs in this process, where weights can be passed to it; it starts in 2 s, not 18.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # vLLM keeps torch's threads, of which `torch_threads` sets the number.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment variables that vLLM reads at its import or later; the user's own values are kept."""


def prepare_vllm() -> None:
    """Set vLLM's environment variables and silence warnings, before its first import."""
    os.environ |= VLLM_ENVIRONMENT | os.environ
    # vllm/triton_utils/dispatcher.py, 0.32.0, reads all of torch's names, deprecated ones too.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\.reduce_op` is deprecated")
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)


def keep_trl() -> None:
    """Restore TRL's own trainers after `import unsloth`.

    unsloth/models/rl.py, `PatchFastRL`, 2026.10.7, replaces them by classes that it generates. In
    its `GRPOTrainer`, `compute_loss` never calls `_compute_loss`, log-probs may be None, and no
    `sampling_logp_difference` is logged. Its `SFTTrainer` prepares the data differently, and logs
    neither entropy nor token accuracy. The overrides in `lib.training` would have no effect on
    them. Unsloth's changes to models and to transformers' `Trainer` stay.

    TRL's own trainers need one of Unsloth's changes too: `disable_gradient_checkpointing` is
    switched off, since at its end it would turn on transformers' checkpointing instead of
    Unsloth's. Remove when Unsloth has a setting that leaves TRL as it is.
    """
    # Without TRL's modules in `sys.modules`, the next import runs TRL's own code again. The names
    # are listed first, since the loop changes the dictionary.
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        del sys.modules[name]
    from trl.models import utils

    utils.disable_gradient_checkpointing = lambda *_: contextlib.nullcontext()


def pack_heads(model: Any) -> None:
    """Pack vLLM's output layers again after their weights were replaced on a CPU.

    vllm/model_executor/model_loader/reload/layerwise.py, `finalize_layerwise_processing`, 0.32.0:
    a layer without new weights is left as it was, and an output layer (head) tied to the embeddings
    receives none. On a CPU it has a packed copy of its own
    (vllm/model_executor/layers/utils.py, `dispatch_cpu_unquantized_gemm`), and would silently
    compute with the old copy. Remove when vLLM packs a tied head again.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def forget_layers() -> None:
    """Release the memory of a vLLM model after its weights were replaced: drop vLLM's references.

    vllm/model_executor/model_loader/reload/meta.py, `restore_layer_on_meta`, 0.32.0: the dictionary
    LAYERWISE_INFO maps each layer, as a weak key, to a value with copies of the layer's tensors.
    `restore_layer_refs` binds methods of these copies to the layer, so that the value refers to its
    own key. No layer is then ever freed.
    Remove when `restore_layer_refs` takes a copy.
    """
    from vllm.model_executor.model_loader.reload.layerwise import LAYERWISE_INFO

    LAYERWISE_INFO.clear()


def executor_on(gpu: int) -> type:
    """Return an executor class that runs vLLM in this process on the GPU number `gpu`.

    vllm/v1/executor/uniproc_executor.py, `UniProcExecutor._distributed_args`, 0.32.0, takes the
    number from `DeviceConfig.device`, which keeps the kind of a device and drops its number. Remove
    when `LLM` takes a device.
    """
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    class OnGpu(UniProcExecutor):
        def _distributed_args(self) -> tuple[str, int, int]:
            # The init method, the rank and the local rank. vLLM takes the last as the GPU's number.
            method, rank, _ = super()._distributed_args()
            return method, rank, gpu

    return OnGpu


@functools.cache
def one_gpu_per_process() -> None:
    """Make a trainer use one GPU; the other visible GPUs belong to an engine or to other ranks.

    transformers/training_args.py, `TrainingArguments.n_gpu`, 5.17.0: without a launcher a trainer
    takes all GPUs that it sees, by `nn.DataParallel`, and multiplies its batch by their number.
    Remove when that can be turned off.
    """
    from transformers import TrainingArguments

    original: Any = TrainingArguments.n_gpu.fget
    TrainingArguments.n_gpu = property(lambda self: min(1, original(self)))


def name_cpu_build() -> None:
    """Make `vllm serve` find its version if the installed package is called `vllm-cpu`.

    vllm/entrypoints/cli/main.py, `main`, 0.32.0 asks for the metadata of `vllm` by name. This
    replaces `importlib.metadata.version` in the whole process. Remove when vLLM asks for `vllm-cpu`
    there too, as vllm/platforms does.
    """
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore all random states and torch's threads after a block that builds a vLLM engine.

    vLLM 0.32.0 seeds every generator (vllm/utils/torch_utils.py, `set_random_seed`) and disables
    `torch.set_num_threads` for good (vllm/v1/worker/cpu_worker.py, `init_device`). Remove when
    neither has an effect outside of the engine.
    """
    import torch

    from lib.models.runtime import random_states_kept

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

    vllm/distributed/parallel_state.py, `destroy_distributed_environment`, 0.32.0 destroys the
    default group even if training made it: training on several ranks would then fail at its end,
    before it writes anything. Remove when vLLM destroys only its own groups.
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


# Cached, to register once: torch sorts the entries, and fails on a second one of equal priority.
@functools.cache
def load_onto_numbered_cpu() -> None:
    """Make torch load onto `cpu:0`, accelerate's name for the device of a rank on a CPU.

    transformers/trainer.py, `_load_optimizer_and_scheduler`, 5.17.0 maps an optimiser's state onto
    the rank's device when a run of several ranks is resumed. torch/serialization.py, 2.13.0, knows
    no CPU with a number. Remove when torch knows it, or transformers maps onto `cpu`.
    """
    import torch

    def as_it_is(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    torch.serialization.register_package(5, lambda storage: None, as_it_is)


class EpochSampler:
    """Wraps a sampler: each epoch has the order of an uninterrupted run, also after a resume.

    Args:
        sampler: draws a new order of indices from its `generator` at each iteration.
        seed: of that generator at the start of the first epoch.
        epoch: returns the number of the current epoch. There is no `set_epoch` instead, because on
            several ranks accelerate does not pass that call on to a sampler when a resumed epoch
            skips batches (accelerate/data_loader.py, `DataLoaderShard.set_epoch`, 1.15.0).
    """

    def __init__(self, sampler: Any, *, seed: int, epoch: Callable[[], int]) -> None:
        import torch

        self.sampler = sampler
        self.seed = seed
        self.epoch = epoch
        # Without a generator of its own, a sampler draws from torch's global one, which training
        # uses too. `__iter__` seeds the sampler's own.
        if getattr(sampler, "generator", None) is None:
            sampler.generator = torch.Generator()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.seed)
        # Draw and drop the orders of earlier epochs, to bring the generator to the current one. A
        # deque of length 0 consumes an iterator and keeps nothing.
        for _ in range(self.epoch()):
            deque(self.sampler, maxlen=0)
        return iter(self.sampler)


def order_by_epoch(trainer: Any) -> None:
    """Make the order of a trainer's data depend only on the seed and the epoch.

    transformers/trainer_pt_utils.py, `LengthGroupedSampler`, 5.17.0 (SFT by length), and
    trl/trainer/utils.py, `RepeatSampler`, 1.14.0 (`grpo.trainer: trl`) draw each epoch's order from
    a generator that has drawn the orders before it: a run that is resumed in a later epoch would
    have the first epoch's order again. Remove when both take the epoch.
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
    Remove when TRL saves it.

    Args:
        state: the content of `trainer_state.json` in the checkpoint.
    """
    tokens = [entry["num_tokens"] for entry in state["log_history"] if "num_tokens" in entry]
    if tokens and hasattr(trainer, "_total_train_tokens"):
        trainer._total_train_tokens = int(tokens[-1])
