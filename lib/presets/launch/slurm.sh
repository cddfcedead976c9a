#!/usr/bin/env bash
# The pipeline on a Slurm cluster, on several nodes. From the checkout, with .venv already made:
#
#   make preset PRESET=s3-cs336
#   sbatch --nodes=2 lib/presets/launch/slurm.sh
#
# `dvc repro` runs on the first node. Where training goes through $LAUNCH, srun starts torchrun once
# on each node, and the nodes meet at the first one's address. All nodes have to see the checkout.
#SBATCH --job-name=reckon
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --output=data/scratch/slurm-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

gpus=${SLURM_GPUS_ON_NODE:-8}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PATH="$PWD/.venv/bin:$PATH"
export LAUNCH="srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 torchrun \
--nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $gpus \
--rdzv_backend c10d --rdzv_endpoint $first:29500 --rdzv_id $SLURM_JOB_ID"

make repro
