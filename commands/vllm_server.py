"""Serve a model with vLLM, for training and evaluation.

For `rollout`, `validation` or `evaluate.engine: vllm-server`. Options after `--` go to `vllm
serve`.
"""

from pathlib import Path

import click

from lib.params import load_params
from stages.options import reads, reads_params

port_option = click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on."
)
# Options are passed to vLLM as they are typed.
vllm_options = click.argument("options", nargs=-1, type=click.UNPROCESSED)


@click.command(help=__doc__)
@reads_params
@reads("--model", "data/models/base", "a complete model; adapters are sent over HTTP")
@port_option
@vllm_options
def main(params_file: Path, model: Path, port: int, options: tuple[str, ...]) -> None:
    """Start `vllm serve`, whose clients may replace the weights, and serve until Ctrl-C."""
    params = load_params(params_file)
    from lib.engines.serve import serve, server_command
    from lib.params.engines import VLLM_SHARE

    # The policy may be on the same GPU. The largest share: one server may serve rollouts and
    # validation.
    samplers = (params.rollout, params.validation)
    shares = [each.gpu_memory_utilization for each in samplers if each.engine == "vllm-server"]
    share = max(shares, default=VLLM_SHARE)
    command = server_command(
        model, port=port, model=params.model, memory_share=share, options=options
    )
    serve(command, fixed=False)
