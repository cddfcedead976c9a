"""`dvc repro` that runs stages side by side where none waits for another; outside the DAG.

The same files and the same dvc.lock, in less time: a checkpoint is evaluated while the next trains.
"""

import logging
import os
import signal
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import click

LOCK = Path("dvc.lock")


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(min=1), default=2, help="Stages at a time.")
def main(jobs: int) -> None:
    """Run every stage that a change affects."""
    from dvc.repo import Repo
    from dvc.repo.reproduce import plan_repro

    with Repo() as repo:
        graph = repo.index.graph
        of_pipeline = set(plan_repro(graph, repo.stage.collect("dvc.yaml")))
        plan = [stage for stage in plan_repro(graph) if stage in of_pipeline]
        needs = {stage.addressing: {each.addressing for each in graph[stage]} for stage in plan}
        changed = set(repo.status(check_updates=False)) & needs.keys()
    for name, needed in needs.items():
        if needed & changed:
            changed.add(name)
    if not changed:
        click.echo("Data and pipelines are up to date.")
        return
    before = locked()
    failed = run({name: needs[name] & changed for name in needs if name in changed}, jobs=jobs)
    sort_lock([*before, *(name for name in needs if name not in before)])
    raise SystemExit(failed)


def run(needs: Mapping[str, Set[str]], *, jobs: int) -> int:
    """Reproduce each stage once those that it needs are up to date.

    Where one fails or is interrupted, none is started any more, and those that run end as usual.

    Returns:
        The exit code of the first stage that failed, else 0.
    """
    # Before the forks, which share it: each would take a second to import it.
    import dvc.cli  # noqa: F401

    waiting, done, failed = dict(needs), set[str](), 0
    running: dict[int, str] = {}
    # Ctrl-C reaches the stages by itself; they save, and this process waits for that.
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: pass_on(running))
    while running or (waiting and not failed):
        ready = [name for name, needed in waiting.items() if needed <= done]
        for name in ready[: 0 if failed else jobs - len(running)]:
            if not (pid := os.fork()):
                signal.signal(signal.SIGINT, interrupt)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os._exit(reproduce(name))
            running[pid] = name
            del waiting[name]
        pid, status = os.wait()
        done.add(running.pop(pid))
        failed = failed or os.waitstatus_to_exitcode(status)
    return failed


def pass_on(running: Iterable[int]) -> None:
    """End processes by SIGTERM, as this one was asked to."""
    for pid in running:
        os.kill(pid, signal.SIGTERM)


def reproduce(name: str) -> int:
    """Run one stage if it changed, without DVC's advice to add and to push after each.

    Returns:
        DVC's exit code.
    """
    from dvc.cli import main as dvc
    from dvc.ui import ui

    ui.write = lambda *_, **__: None
    logging.getLogger("dvc.repo.scm_context").setLevel(logging.WARNING)
    return int(dvc(["--wait-for-lock", "repro", "--single-item", name]))


def locked() -> list[str]:
    """The names of dvc.lock's stages, in its order."""
    from dvc.utils.serialize import load_yaml

    return list(load_yaml(LOCK)["stages"]) if LOCK.exists() else []


def sort_lock(names: list[str]) -> None:
    """Bring dvc.lock into the order of `names`: that of one `dvc repro`, whichever ended first."""
    from dvc.utils.serialize import modify_yaml

    if locked() != sorted(locked(), key=names.index):
        with modify_yaml(LOCK) as lock:
            stages = lock["stages"]
            lock["stages"] = {name: stages[name] for name in sorted(stages, key=names.index)}


if __name__ == "__main__":
    main()
