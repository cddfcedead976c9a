"""Serve the exported model with an OpenAI-compatible API.

As the model `reckon`. Its weights are fixed. Options after `--` go to `vllm serve`.
"""

from pathlib import Path

import click

from commands.vllm_server import port_option, vllm_options
from lib.params import load_params
from stages.options import reads, reads_params


@click.command(help=__doc__)
@reads_params
@reads("--model", "data/models/export", "a complete model")
@port_option
@vllm_options
def main(params_file: Path, model: Path, port: int, options: tuple[str, ...]) -> None:
    """Start `vllm serve` with the model's own sampling and stop strings, until Ctrl-C."""
    params = load_params(params_file)
    from lib.engines.serve import serve, server_command
    from lib.params.engines import VLLM_SHARE

    own = [
        *("--served-model-name", "reckon", "--generation-config", "auto"),
        *("--middleware", "lib.inference.stop_strings.StopStrings"),
    ]
    command = server_command(
        model,
        port=port,
        model=params.model,
        # The server has the GPU to itself.
        memory_share=VLLM_SHARE,
        options=[*own, *options],
    )
    serve(command, fixed=True)
