import absent.lightning as nl
import nemo_run as run
from absent.callbacks import MegatronCommOverlapCallback
from absent.models import Llama3Config8B, LlamaModel


def trainer(tensor=1, nodes=1, callbacks=None):
    return run.Config(
        nl.Trainer,
        devices=8,
        num_nodes=nodes,
        plugins=run.Config(nl.MegatronMixedPrecision, precision="bf16-mixed"),
        strategy=run.Config(
            nl.MegatronStrategy,
            tensor_model_parallel_size=tensor,
            sequence_parallel=tensor > 1,
            ddp=run.Config(nl.DistributedDataParallelConfig, grad_reduce_in_fp32=False, overlap_grad_reduce=True),
        ),
        callbacks=callbacks,
    )


def pretrain_recipe(nodes: int = 1, fast: bool = False, fn=nl.pretrain):
    recipe = run.Partial(
        fn,
        model=run.Config(LlamaModel, config=run.Config(Llama3Config8B)),
        trainer=trainer(2, nodes, callbacks=[run.Config(nl.TimingCallback)]),
        data=run.Config(nl.MockDataModule, seq_length=8192, global_batch_size=128, micro_batch_size=1),
    )
    if fast:
        recipe.trainer.callbacks.append(run.Config(MegatronCommOverlapCallback, tp_comm_overlap=True))
    return recipe
