#!/bin/bash
# Train on several machines under SLURM, whatever the time limit of a job:
#
#     sbatch examples/slurm.sh k400-slowfast-r50 --data /shared/k400
#
# Each task is a process with a GPU. Three minutes before the time limit SLURM sends SIGUSR1: the
# run finishes its step, writes a checkpoint and exits with 130. The job then goes back into the
# queue, where the same command goes on from the checkpoint.
#SBATCH --job-name=vcycle
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# A task that is killed would leave the others waiting for it: end them.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
    vcycle train "$@" --folder "runs/$SLURM_JOB_NAME-$SLURM_JOB_ID" --resume auto
code=$?

# 138 is SIGUSR1 before the first step or after the last. No other end begins again by itself.
if [[ $code == 130 || $code == 138 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
