"""Serve a checkpoint with vLLM, for `rollout`, `validation` or `evaluate.engine: vllm-server`.

Not a stage of the DAG. Options after `--` go to `vllm serve`.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params


@click.command(help=__doc__)
@reads_params
@reads("--model", "data/models/base", "a complete model; adapters are sent over HTTP")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on.")
@click.option("--fixed", is_flag=True, help="Refuse adapters and new weights.")
# Options are passed to vLLM as they are typed.
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(params_file: Path, model: Path, port: int, fixed: bool, options: tuple[str, ...]) -> None:
    """Start `vllm serve` on this machine only, and serve until Ctrl-C."""
    params = load_params(params_file)
    from lib.engines.serve import serve, server_command
    from lib.params.engines import VLLM_SHARE

    # Shares of a GPU's memory, from the sections that use a server. During training, the policy may
    # be on the same GPU; a fixed server has the GPU to itself and gets the usual share.
    samplers = (params.rollout, params.validation)
    shares = [each.gpu_memory_utilization for each in samplers if each.engine == "vllm-server"]
    command = server_command(
        model,
        # This machine only: anyone who reaches the port can replace the weights.
        host="127.0.0.1",
        port=port,
        model=params.model,
        # The largest share: one server may serve rollouts and validation.
        memory_share=VLLM_SHARE if fixed else max(shares, default=VLLM_SHARE),
        options=options,
    )
    serve(command, fixed=fixed)


if __name__ == "__main__":
    main()
