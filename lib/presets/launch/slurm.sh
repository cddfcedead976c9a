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
#SBATCH --job-name=reckon
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"

gpus=${SLURM_GPUS_ON_NODE:-1}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PATH="$PWD/.venv/bin:$PATH"
export LAUNCH="srun --nodes=$SLURM_JOB_NUM_NODES --ntasks-per-node=1 torchrun \
--nnodes $SLURM_JOB_NUM_NODES --nproc_per_node $gpus \
--rdzv_backend c10d --rdzv_endpoint $first:29500 --rdzv_id $SLURM_JOB_ID"

make fetch
make repro
