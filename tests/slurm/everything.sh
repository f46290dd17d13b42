#!/bin/bash
#SBATCH --job-name=gpt-abcdef.t0001.a1
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
#SBATCH --time=25:02:00
#SBATCH --distribution=block
#SBATCH --no-requeue
#SBATCH --output=job.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --account=project_465.x@y
#SBATCH --partition=boost_usr_prod,dev-g
#SBATCH --qos=boost_qos_dbg
#SBATCH --reservation=maint-1
#SBATCH --constraint=[rack1|rack2]&nvlink*2
#SBATCH --gpus-per-node=8
#SBATCH --gres=nvme:1,fs/scratch:2
#SBATCH --cpus-per-task=7
#SBATCH --threads-per-core=1
#SBATCH --mem=480G
#SBATCH --exclude=gpu001,n[1-4,7-11]
#SBATCH --nodelist=login,r1-ib[0-1],r2-ib[0-1]
#SBATCH --network=disable_rdzv_get,job_vni
#SBATCH --licenses=matlab@db:2,x
#SBATCH --comment=tuning,gpt=7b
#SBATCH --signal=B:USR1@60
#SBATCH --switches=1@00:10:00
#SBATCH --gpu-bind=closest
#SBATCH --container-image=docker://nvcr.io/nvidia/pytorch:24.01

if [ -n "${SLURM_RESTART_COUNT:-}" ]; then
  for log in job.log rank-*.log; do [ ! -e "$log" ] || echo "--- restart $SLURM_RESTART_COUNT" >> "$log"; done
fi

type module >/dev/null 2>&1 || . /etc/profile
module load PrgEnv-gnu || exit
module load rocm/6.0.2 || exit
module load gcc/12.2+cuda || exit
. ./setup.sh

export NCCL_SOCKET_IFNAME=hsn0,hsn1
export FREE_TEXT='a '"'"'b'"'"' "c" $d `e`; #f'
export PYTHONPATH=/shared/gpt-abcdef/code
export PYTHONSAFEPATH=1
export PARLAY_ADDRESS='{host}i'
export SRUN_CPUS_PER_TASK=7
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID

exec srun --export=ALL --kill-on-bad-exit=1 --nodes=64 --ntasks=512 --output=rank-%5t.log --open-mode=append --cpu-bind=mask_cpu:fe,fe00 --hint=nomultithread --unbuffered /bin/sh -c 'd="/tmp/parlay-$SLURM_JOB_ID.$SLURM_STEP_ID"; mkdir -m 700 "$d" 2>/dev/null; [ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ] || { echo "$d belongs to another user" >&2; exit 1; }; mkdir -p "$d/MIOPEN_USER_DB_PATH"; export MIOPEN_USER_DB_PATH="$d/MIOPEN_USER_DB_PATH"; export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID; exec "$@"' sh apptainer exec --nv --bind=/a:/b 'image with blank.sif' /opt/python3 -m trials.train /shared/gpt-abcdef/trials/t0001/a1/spec.json
