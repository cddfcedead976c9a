"""The stages of the pipeline, one click script each.

Importing a stage first checks that the interpreter is the project's: a bare `dvc` that was started
by its path would quietly run the stages with the system's Python and other package versions. Then
it sees to it that a stage does not outlive the `dvc` that runs it, that SIGTERM leaves nothing half
written, that an error that nothing caught is one line with its traceback in a file, and that what
it imports leaves an installed TensorFlow alone, draws no bars, sends no telemetry and, run by
`dvc`, asks nothing of the Hub, unless the environment says otherwise.
"""

import os
import sys

try:
    from lib.core.process import (
        DVC_STAGE,
        check_environment,
        end_in_good_order,
        end_with_dvc,
        leave_tensorflow,
        report_crashes,
    )
except ModuleNotFoundError as error:
    # A `dvc` started by its path finds the system's `python`, which lacks even click.
    sys.exit(
        f"Error: {sys.executable} lacks {error.name}, so it is not the project's Python: run "
        "`make setup`, then `make repro` or `PATH=.venv/bin:$PATH dvc repro`"
    )

# Before any heavy import: another version may fail at import, without naming the cause.
check_environment()
# Killing `dvc` (3.67) leaves its stage running, which would go on writing outputs.
end_with_dvc()
# Also turns the SIGTERM of end_with_dvc into KeyboardInterrupt.
end_in_good_order()
report_crashes()
leave_tensorflow()
for _name, _value in {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "UNSLOTH_DISABLE_STATISTICS": "1",
    # `make fetch` downloaded the models and sets in params, and `check` verified that.
    **({"HF_HUB_OFFLINE": "1"} if DVC_STAGE in os.environ else {}),
}.items():
    # The user's own setting wins.
    os.environ.setdefault(_name, _value)
