# What all trainings of the cluster have in common.
export GPUS_PER_NODE=4
export NUM_NODES=2
export TP_SIZE=4
PRECISION_ARGS="--bf16"
