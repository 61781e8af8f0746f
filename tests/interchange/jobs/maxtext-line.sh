python3 -m MaxText.train MaxText/configs/base.yml model_name=llama2-7b per_device_batch_size=4 max_target_length=2048 \
    ici_fsdp_parallelism=8 dcn_data_parallelism=4 remat_policy=minimal attention=cudnn_flash_te quantization=fp8
