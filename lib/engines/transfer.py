"""Send a policy's full weights to vLLM with vLLM's own weight transfer.

vLLM (vllm/distributed/weight_transfer) has a sender in the trainer and a receiver in each worker,
both of one backend. Importing this module registers the backend `host`, which passes the tensors
themselves to an engine in the trainer's process, on any device, and broadcasts them with gloo to
servers on CPUs. A server on a GPU uses vLLM's `nccl` or `ipc`. Read and run with vLLM 0.32.0.
"""

import dataclasses
import datetime
import re
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from transformers import PreTrainedModel
from vllm.distributed.weight_transfer import (
    ModuleSource,
    ParamMeta,
    TrainerWeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLWeightTransferEngine,
    NCCLWeightTransferUpdateInfo,
)
from vllm.utils.network_utils import get_ip, get_open_port

from lib.models import compat

HOST = "host"
"""Name of the backend defined here."""
GLOO_TIMEOUT = datetime.timedelta(minutes=10)

WRAPPERS = re.compile(r"^module\.|_orig_mod\.")
"""Parts that DDP ("module.lm_head.weight") and `torch.compile` ("_orig_mod.") add to the names of
weights."""


class PolicyWeights(ModuleSource):
    """Iterates over a model's weights as (checkpoint name, tensor), for vLLM's senders.

    A weight that FSDP2 shards is gathered, so every rank must iterate. Of tied weights, only the
    one in checkpoints is yielded.

    Args:
        dtype: the engine's dtype; matrices are cast to it before they are sent.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        super().__init__(model)
        self.dtype = dtype

    def metadata(self) -> list[ParamMeta]:
        # `WRAPPERS` matches parts of names such as DDP's "module.", which vLLM does not know.
        # Matrices are sent in the engine's dtype, vectors in their own (`_dtype_of`).
        return [
            ParamMeta(
                WRAPPERS.sub("", weight.name),
                self._dtype_of(len(weight.shape), weight.dtype),
                weight.shape,
            )
            for weight in super().metadata()
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in super().__iter__():
            # Cast before it is sent: bfloat16 has half the bytes of float32.
            cast = weight.detach().to(self._dtype_of(weight.ndim, weight.dtype))
            yield WRAPPERS.sub("", name), cast.contiguous()

    def _dtype_of(self, axes: int, dtype: torch.dtype) -> torch.dtype:
        # Vectors keep their dtype: the engine holds some of them in float32 (a router's bias).
        return self.dtype if axes > 1 else dtype


class HostInfo(NCCLTrainerInitInfo):
    """The arguments for setting up the backend `host` in the trainer.

    `world_size` counts the trainer and all workers; 1 is an engine in the trainer's process.
    """

    backend: ClassVar[str] = HOST


@dataclasses.dataclass
class HostUpdate(NCCLWeightTransferUpdateInfo):
    """The description of one update: names, dtypes and shapes of the weights to be received.

    Within a process, also the weights themselves.
    """

    weights: Iterable[tuple[str, Tensor]] | None = None


class HostReceiver(NCCLWeightTransferEngine):
    """The receiver of the backend `host`, in each of vLLM's workers."""

    update_info_cls = HostUpdate
    group: Any = None

    def init_transfer_engine(self, init_info: Any) -> None:
        """Join the process group with the trainer, if the trainer is another process.

        Args:
            init_info: has the group's address and port, `world_size` (trainer and all workers), and
                `rank_offset`, the rank of the server's first worker.
        """
        if init_info.world_size > 1:
            config = self.parallel_config
            # The rank among all workers of all data-parallel replicas.
            worker = config.data_parallel_index * config.world_size + config.rank
            self.group = _join(init_info, init_info.rank_offset + worker)

    def receive_weights(self, update_info: HostUpdate) -> None:
        try:
            self.model.load_weights(update_info.weights or self._received(update_info))
        except BaseException:
            self.group = None  # closes the connection, or the trainer would wait in its broadcast
            raise

    def finish_weight_update(self) -> None:
        """End an update: vLLM's own end, then pack output layers again on a CPU."""
        # On a CPU, vLLM packs linear weights for oneDNN here, but not an output layer that is tied
        # to the embeddings.
        super().finish_weight_update()
        compat.pack_heads(self.model)

    def _received(self, update: HostUpdate) -> Iterator[tuple[str, Tensor]]:
        for name, dtype, shape in zip(update.names, update.dtype_names, update.shapes, strict=True):
            # One parameter at a time: a worker has no memory for all of them twice.
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(weight, 0).wait()
            yield name, weight

    def shutdown(self) -> None:
        """Do nothing; vLLM calls this."""


class HostSender(TrainerWeightTransferEngine):
    """The sender of the backend `host`, in the trainer: one on each rank."""

    group: Any = None

    @classmethod
    def trainer_init(cls, init_info: HostInfo, *, client: Any, source: Any = None) -> "HostSender":
        """Return a sender; on the first rank it joins the process group with all workers.

        Args:
            init_info: `is_sender` on the first rank; `world_size` counts the trainer and all
                workers, 1 if vLLM is in this process.
            client: a `ServerEngine` or an `LLM`, whose methods make vLLM join and receive.
        """
        sender = cls(client=client, source=source, is_sender=init_info.is_sender)
        if init_info.is_sender and init_info.world_size > 1:
            # The trainer has rank 0 in the group. The workers get the same address, port and size,
            # and the rank of the first worker, 1, from which each computes its own.
            group_info = dataclasses.asdict(init_info)
            group_info.pop("rank")
            # In a thread, since workers and trainer wait for each other until all have joined.
            with ThreadPoolExecutor(1) as threads:
                joined = threads.submit(
                    client.init_weight_transfer_engine, {**group_info, "rank_offset": 1}
                )
                sender.group = _join(init_info, 0)
                joined.result()
        return sender

    def send_weights(self) -> None:
        if not self.is_sender:
            for _ in self.source:  # the first rank needs all ranks to gather each weight
                pass
            return
        metadata = self.source.metadata()
        update = {
            "names": [weight.name for weight in metadata],
            "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in metadata],
            "shapes": [list(weight.shape) for weight in metadata],
        }
        self.client.start_weight_update()
        # Without a group the engine is in this process: the client is an `LLM`, which gets the
        # iterator over the weights itself.
        if self.group is None:
            self.client.update_weights({"update_info": {**update, "weights": self.source}})
        else:
            # The call returns when the workers have received all weights, so it runs in a thread
            # while this one broadcasts.
            with ThreadPoolExecutor(1) as threads:
                received = threads.submit(self.client.update_weights, update)
                try:
                    for _, weight in self.source:
                        if received.done():
                            break  # the workers refused: they cannot have all weights yet
                        self.group.broadcast(weight, 0).wait()
                except BaseException:
                    # Closes the connection, or the workers would wait for the next broadcast. This
                    # sender is not used again.
                    self.group = None
                    raise
                received.result()
        self.client.finish_weight_update()


def _join(info: Any, rank: int) -> Any:
    """Join the gloo process group of the trainer (rank 0) and vLLM's workers as `rank`; return it.

    Args:
        info: has the address and port of the trainer's store, and the group's `world_size`.
    """
    # Not `init_process_group`: trainer and workers may have torch.distributed's one default group
    # already. The store need not wait for the others, since ProcessGroupGloo does. It would listen
    # on all interfaces; a socket of one's own listens on the address that the workers are told.
    address = (info.master_address, info.master_port)
    listener = socket.create_server(address).detach() if rank == 0 else None
    store = TCPStore(
        info.master_address,
        info.master_port,
        info.world_size,
        is_master=rank == 0,
        wait_for_workers=False,
        timeout=GLOO_TIMEOUT,
        master_listen_fd=listener,
    )
    return ProcessGroupGloo(store, rank, info.world_size, GLOO_TIMEOUT)


WeightTransferEngineFactory.register_engine(HOST, HostReceiver)
WeightTransferTrainerFactory.register_engine(HOST, HostSender)


def trainer_init(
    backend: str,
    *,
    client: Any,
    source: PolicyWeights,
    rank: int = 0,
    num_workers: int = 0,
) -> TrainerWeightTransferEngine:
    """Return the sender of the weights in `source`; each rank needs one, and the first sends.

    Args:
        backend: `host` for an engine in this process or a server on a CPU; for a server on a GPU
            `nccl`, or `ipc` if it is the trainer's own GPU.
        client: a `ServerEngine` or an `LLM`.
        num_workers: number of the servers' workers; 0 for an engine in this process.
    """
    info: Any
    if backend == IPCTrainerInitInfo.backend:
        # Passes handles of the GPU's memory; there is no process group.
        info = IPCTrainerInitInfo(packed=True, rank=rank)
    else:
        cls = HostInfo if backend == HOST else NCCLTrainerInitInfo
        info = cls(get_ip(), get_open_port(), 1 + num_workers, rank=rank)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


class Extension:
    """An empty `worker_extension_cls`: a server's worker imports this module to find it.

    The import registers the backend `host` in the worker.
    """
