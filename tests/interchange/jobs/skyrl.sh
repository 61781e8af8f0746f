python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-8B \
    trainer.strategy=fsdp2 trainer.placement.policy_num_nodes=2 trainer.placement.policy_num_gpus_per_node=8 \
    trainer.policy.sequence_parallel_size=2 trainer.policy.fsdp_config.reshard_after_forward=false \
    trainer.train_batch_size=128 trainer.policy_mini_batch_size=64 trainer.micro_train_batch_size_per_gpu=2 \
    trainer.max_prompt_length=1024 generator.sampling_params.max_generate_length=3072 generator.n_samples_per_prompt=8
