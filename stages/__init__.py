"""The stages of the pipeline, one click script each.

Importing a stage first checks that the interpreter is the project's: a bare `dvc` that was started
by its path would quietly run the stages with the system's Python and other package versions. Then
it sees to it that a stage does not outlive the `dvc` that runs it.
"""

from lib.environment import check_environment
from lib.lifetime import end_with_dvc

check_environment()
end_with_dvc()
