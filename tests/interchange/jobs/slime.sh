PERF_ARGS=(
   --tensor-model-parallel-size 4
   --sequence-parallel
   --expert-model-parallel-size 8
   --expert-tensor-parallel-size 1
   --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
   --micro-batch-size 2
)
ray job submit --address="http://127.0.0.1:8265" -- python3 train.py \
   --actor-num-nodes 2 --actor-num-gpus-per-node 8 \
   --hf-checkpoint /root/Qwen3-30B-A3B --rollout-batch-size 16 --rollout-max-response-len 8192 \
   --global-batch-size 64 --moe-token-dispatcher-type alltoall --attention-backend flash ${PERF_ARGS[@]}
