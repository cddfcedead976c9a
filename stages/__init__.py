"""The stages of the pipeline, one click script each.

Importing a stage first checks that the interpreter is the project's: a `dvc` that was started by
its path would run the stages with the system's Python and other package versions. Then the import
prepares the process:

- A stage ends when the `dvc` that runs it ends. SIGTERM leaves no file half written.
- An uncaught error prints one line; its traceback goes to a file.
- Libraries do not import TensorFlow, let waiting threads sleep and send no telemetry; `datasets`
  draws no progress bars.
  Under `dvc`, they do not ask the Hub. Environment variables that the user has set take precedence.
"""

import os
import sys

try:
    from lib.core.process import (
        DVC_STAGE,
        check_environment,
        end_in_good_order,
        end_with_dvc,
        report_crashes,
        set_library_variables,
    )
except ModuleNotFoundError as error:
    # A `dvc` started by its path finds the system's `python`, which lacks even click.
    sys.exit(
        f"Error: {sys.executable} lacks {error.name}, so it is not the project's Python: run "
        "`make setup`, then `make repro` or `PATH=.venv/bin:$PATH dvc repro`"
    )

# Checked before any heavy import, which may fail with another version for no clear reason. Two
# commands need no torch (docs/compare_logs.md).
if {"compare-logs", "grade"}.isdisjoint(sys.argv[1:2]):
    check_environment()
# Killing `dvc` (3.67) leaves its stage running, which would go on writing outputs.
end_with_dvc()
# Also turns the SIGTERM of end_with_dvc into KeyboardInterrupt.
end_in_good_order()
report_crashes()
set_library_variables()
# A variable that the user has set stays.
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
# `make fetch` downloaded the models and sets in params, and `check` verified that.
if DVC_STAGE in os.environ:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
