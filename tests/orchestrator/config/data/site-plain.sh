#!/bin/bash
#SBATCH --job-name=small-abcdef.t0001.a1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --time=00:10:00
#SBATCH --distribution=block
#SBATCH --no-requeue
#SBATCH --output=job.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --account=project1
#SBATCH --gpus-per-node=8

if [ -n "${SLURM_RESTART_COUNT:-}" ]; then
  for log in job.log rank-*.log; do [ ! -e "$log" ] || echo "--- restart $SLURM_RESTART_COUNT" >> "$log"; done
fi

unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID

exec srun --export=ALL --kill-on-bad-exit=1 --nodes=2 --ntasks=16 --output=rank-%5t.log --open-mode=append --cpu-bind=cores /opt/python3 -m trials.train spec.json
