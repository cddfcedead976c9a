"""Two Slurm nodes on this host: the smoke preset over both, undisturbed and disturbed four times.

GRPO loses a rank, is queued again as before a time limit, loses a node, and is cancelled and
submitted anew. All models and metrics have to equal the undisturbed run's, to the byte. Munge
and Slurm (Debian: munge, slurm-wlm) run in a folder of their own, as the current user, and end with
this command.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psutil

from lib.artifacts import hash_path
from tests.conftest import ROOT
from tests.pipeline.test_end_to_end import Clone, clone_with_smoke
from tests.pipeline.test_interruption import training_in

NODES = (socket.gethostname(), f"{socket.gethostname()}-second")
"""Names of the nodes; the first has to resolve: the ranks rendezvous there."""

CONFIG = """\
ClusterName=reckon
SlurmctldHost={nodes[0]}(127.0.0.1)
SlurmctldPort=17000
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.sock
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName={nodes[0]} NodeHostname={nodes[0]} NodeAddr=127.0.0.1 Port=17001 CPUs=8
NodeName={nodes[1]} NodeHostname={nodes[0]} NodeAddr=127.0.0.1 Port=17002 CPUs=8
PartitionName=all Nodes=ALL Default=YES
"""

STEPS, APART = 100, 20
"""GRPO's steps in total, and from one disturbance to the next."""

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

COMPARED = ("data/models/sft", "data/models/grpo", "data/models/export", "reports/metrics")

LIMIT_S = 3600


def run(*command: str, folder: Path = ROOT) -> str:
    """Run a command; return its output."""
    ran = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout.strip()


def wait(event: str, happened: Callable[..., bool], *arguments: object) -> None:
    """Poll until `happened` returns true; fail after LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not happened(*arguments):
        if time.monotonic() > end:
            raise click.ClickException(f"no {event} within {LIMIT_S} s")
        time.sleep(0.2)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Start munge, Slurm's controller and two nodes, all with their files in `folder`."""
    user = psutil.Process().username()
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, nodes=NODES, user=user))
    (folder / "state").mkdir()
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(os.urandom(128))
    os.environ |= {
        "SLURM_CONF": f"{folder}/slurm.conf",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        "SAVE_SECONDS": "10",
        "OMP_NUM_THREADS": "1",
    }
    files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid"}
    files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    try:
        run("munged", "--force", *(f"--{name}={folder / file}" for name, file in files.items()))
        run("slurmctld")
        for node in NODES:
            run("slurmd", "-N", node)
        wait("two idle nodes", lambda: states() == ["idle", "idle"])
        yield
    finally:
        # Jobs outlive Slurm's daemons.
        with contextlib.suppress(subprocess.CalledProcessError):
            run("scancel", f"--user={user}")
            wait("end of all jobs", lambda: not run("squeue", "--noheader"))
        for name in (*NODES, "slurmctld", "munged"):
            with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
                daemon_of(folder, name).terminate()


def states(*options: str) -> list[str]:
    """Return the states of the nodes."""
    return run("sinfo", "--Node", "--noheader", "-o%T", *options).split()


def daemon_of(folder: Path, name: str) -> psutil.Process:
    """Return the daemon of a node, or `slurmctld` or `munged`."""
    return psutil.Process(int((folder / f"{name}.pid").read_text()))


def submit(clone: Clone) -> str:
    """Submit a clone's pipeline; return the job's number."""
    options = ("--parsable", "--nodes=2", "--gpus-per-node=0")
    return run("sbatch", *options, "lib/presets/launch/slurm.sh", folder=clone.folder)


def state(job: str) -> str:
    """Return a job's state, like RUNNING."""
    return run("squeue", "--noheader", "--states=all", f"--jobs={job}", "-o%T")


def last_step(clone: Clone) -> int:
    """Return the step of GRPO's newest checkpoint; 0 without one."""
    checkpoints = (clone.folder / "data/scratch/grpo").glob("*/checkpoint-*")
    return max((int(path.name.rpartition("-")[2]) for path in checkpoints), default=0)


def ranks_on(clone: Clone, node: str) -> list[psutil.Process]:
    """Return the processes of a clone's GRPO on a node, the launcher first."""
    return [
        process
        for process in training_in(clone.folder)
        if process.environ().get("SLURMD_NODENAME") == node
        and "stages.grpo" in process.cmdline()
        and "srun" not in process.name()
    ]


def lose_rank(clone: Clone, job: str, folder: Path) -> None:
    """Kill a rank; its launcher starts it again."""
    ranks_on(clone, NODES[1])[-1].kill()


def reach_time_limit(clone: Clone, job: str, folder: Path) -> None:
    """Send Slurm's signal of five minutes before the time limit."""
    run("scancel", "--batch", "--signal=USR1", job)


def lose_node(clone: Clone, job: str, folder: Path) -> None:
    """Kill a node's daemon and its processes; restart the daemon once Slurm calls it down."""
    on_node = ranks_on(clone, NODES[1])
    for process in (daemon_of(folder, NODES[1]), on_node[0].parent(), *on_node):
        process.kill()
    wait("lost node", lambda: states(f"--nodes={NODES[1]}")[0].startswith("down"))
    run("slurmd", "-N", NODES[1])


def cancel(clone: Clone, job: str, folder: Path) -> None:
    """Cancel the job; the caller submits it anew."""
    run("scancel", job)
    wait("end of the cancelled job", lambda: state(job) == "CANCELLED")


DISTURBANCES = (lose_rank, reach_time_limit, lose_node, cancel)


def reproduce(
    clone: Clone, folder: Path, *disturbances: Callable[[Clone, str, Path], None]
) -> None:
    """Run a clone's pipeline on the cluster in `folder`, and disturb its GRPO."""
    job, begin = submit(clone), time.monotonic()
    for number, disturb in enumerate(disturbances, 1):
        wait("next step", lambda least: last_step(clone) >= least, number * APART)
        click.echo(f"{disturb.__name__} after step {last_step(clone)}")
        disturb(clone, job, folder)
        job = submit(clone) if disturb is cancel else job
    wait("end of the job", lambda: state(job) in ENDED)
    click.echo(f"{clone.folder.name}: {state(job)}, {time.monotonic() - begin:.0f} s")
    for log in sorted(clone.folder.glob("slurm-*.log")):
        resumed = [line for line in log.read_text().splitlines() if "resumes from" in line]
        click.echo("\n".join(resumed))


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), help="A new folder, which is kept.")
def main(out: Path | None) -> None:
    """Compare the disturbed run with the undisturbed one."""
    for tool in ("munged", "slurmd"):
        if not shutil.which(tool, path="/usr/sbin"):
            raise click.ClickException(f"no {tool} here; apt-get install slurm-wlm munge")
    with contextlib.ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        daemons = folder.resolve() / "slurm"
        daemons.mkdir(parents=True, mode=0o700)
        clones = [clone_with_smoke(daemons.with_name(name)) for name in ("whole", "disturbed")]
        for clone in clones:
            (clone.folder / ".venv").symlink_to(sys.prefix)
            clone.change(grpo={"max_steps": STEPS, "save_steps": 5, "eval_steps": STEPS})
        stack.enter_context(cluster(daemons))
        reproduce(clones[0], daemons)
        reproduce(clones[1], daemons, *DISTURBANCES)
        contents = [[hash_path(clone.folder / path) for path in COMPARED] for clone in clones]
    if contents[0] != contents[1]:
        raise click.ClickException(f"{', '.join(COMPARED)}: not all as undisturbed")
    click.echo(f"as undisturbed, to the byte: {', '.join(COMPARED)}")


if __name__ == "__main__":
    main()
