#!/bin/bash
#SBATCH --job-name=small-abcdef.t0001.a1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --time=00:10:00
#SBATCH --distribution=block
#SBATCH --no-requeue
#SBATCH --output=job.log
#SBATCH --open-mode=append
#SBATCH --account=project1
#SBATCH --partition=standard-g
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=7

if [ -n "${SLURM_RESTART_COUNT:-}" ]; then
  for log in job.log rank-*.log; do [ ! -e "$log" ] || echo "--- restart $SLURM_RESTART_COUNT" >> "$log"; done
fi

export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export SRUN_CPUS_PER_TASK=7
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID

exec srun --export=ALL --kill-on-bad-exit=1 --nodes=2 --ntasks=16 --output=rank-%5t.log --open-mode=append --cpu-bind=mask_cpu:fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000 /bin/sh -c 'd="/tmp/parlay-$SLURM_JOB_ID.$SLURM_STEP_ID"; mkdir -m 700 "$d" 2>/dev/null; [ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ] || { echo "$d belongs to another user" >&2; exit 1; }; mkdir -p "$d/MIOPEN_USER_DB_PATH"; export MIOPEN_USER_DB_PATH="$d/MIOPEN_USER_DB_PATH"; mkdir -p "$d/MIOPEN_CUSTOM_CACHE_DIR"; export MIOPEN_CUSTOM_CACHE_DIR="$d/MIOPEN_CUSTOM_CACHE_DIR"; export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID; exec "$@"' sh /opt/python3 -m trials.train spec.json
