#!/usr/bin/env bash
# The pipeline on a Slurm cluster, on several nodes. From the checkout, with .venv already made; what was
# fetched on a login node is not fetched again, so that compute nodes need no network:
#
#   make preset PRESET=s3-cs336 && make fetch
#   sbatch --nodes=2 lib/presets/launch/slurm.sh
#
# The GPUs of all nodes share a micro-batch, and s3's is 2: more of them need a multiple of their
# number in params.yaml, as sft.micro_batch_size and grpo.micro_batch_size.
#
# `dvc repro` runs on the first node. Where training goes through $LAUNCH, srun starts torchrun once
# on each node, and the nodes meet at the first one's address. All nodes have to see the checkout.
#
# A lost rank starts again from the last checkpoint, at most three times. After a lost node or a
# preemption Slurm queues the job again, and this script does before the time limit: the run resumes
# from a checkpoint of its last minutes.
#SBATCH --job-name=reckon
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

gpus=${SLURM_GPUS_ON_NODE:-1}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PATH="$PWD/.venv/bin:$PATH"
export LAUNCH="srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 python -m stages.ranks \
--nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $gpus --max-restarts 3 \
--rdzv_backend c10d --rdzv_endpoint $first:29500 --rdzv_id $SLURM_JOB_ID"

# Ranks save at the end of a step when they get it, and go on until the job is queued again.
save_and_requeue() {
    trap '' USR1
    scancel --signal=USR1 "$SLURM_JOB_ID"
    sleep "${SAVE_SECONDS:-240}"
    scontrol requeue "$SLURM_JOB_ID"
}
trap save_and_requeue USR1

make fetch
make repro &    # a trap waits for a command in the foreground
wait $!
