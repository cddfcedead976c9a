"""The stages of the pipeline, one click script each.

Importing a stage first checks that the interpreter is the project's: a bare `dvc` that was started
by its path would quietly run the stages with the system's Python and other package versions.
"""

from lib.environment import check_environment

check_environment()
