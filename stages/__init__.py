"""The stages of the pipeline, one click script each.

Importing a stage first checks that the interpreter is the project's: a bare `dvc` that was started
by its path would quietly run the stages with the system's Python and other package versions. Then
it sees to it that a stage does not outlive the `dvc` that runs it, that SIGTERM leaves nothing half
written, and that what it imports leaves an installed TensorFlow alone, draws no bars, sends no
telemetry and, run by `dvc`, asks nothing of the Hub, unless the environment says otherwise.
"""

import os
import sys

try:
    from lib.core.process import (
        DVC_STAGE,
        check_environment,
        end_in_good_order,
        end_with_dvc,
        explain_full_disk,
    )
except ModuleNotFoundError as error:
    # A `dvc` started by its path finds the system's `python`, which has not even click.
    sys.exit(
        f"Error: {sys.executable} has no {error.name}; it is not the project's Python: run "
        "`make setup`, then `make repro` or `PATH=.venv/bin:$PATH dvc repro`"
    )

check_environment()
end_with_dvc()
end_in_good_order()
explain_full_disk()
for _name, _value in {
    "TRANSFORMERS_NO_TF": "1",
    "TRANSFORMERS_NO_TENSORFLOW": "1",
    "USE_TF": "0",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    # `make fetch` has brought what params name, as `check` has seen.
    **({"HF_HUB_OFFLINE": "1"} if DVC_STAGE in os.environ else {}),
}.items():
    os.environ.setdefault(_name, _value)
