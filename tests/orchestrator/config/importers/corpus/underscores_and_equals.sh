torchrun --nproc-per-node=4 --nnodes=1 pretrain_gpt.py \
  --num_layers=24 --hidden_size=1024 --num_attention_heads=16 --seq_length=512 --max_position_embeddings=512 \
  --tensor_model_parallel_size=2 --pipeline_model_parallel_size=2 \
  --micro_batch_size=4 --global_batch_size=32 --attention_dropout=0.0 --hidden_dropout=0.0 --bf16
