from absent.checkpointing import FullAC, SelectiveAC
from absent.config import CompileConfig, ParallelismConfig, TrainingConfig
from absent.quantization import Float8LinearConverter
from absent.trainer import Trainer

from . import model_registry

LENGTH = 2 * 2048


def small() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=2, seq_len=LENGTH, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=SelectiveAC.Config(),
    )


def large(eight_bits: bool = True) -> Trainer.Config:
    config = small()
    if eight_bits:
        config.model_spec = model_registry("70B", converters=[Float8LinearConverter.Config(recipe_name="rowwise")])
    config.parallelism.tensor_parallel_degree *= 4
    config.activation_checkpoint = FullAC.Config()
    config.compile = CompileConfig(enable=True)
    return config
