import nemo_run as run
from absent.tuning import tune
from nemo import pretrain_recipe


def configure(nodes: int = 1, tensor: int = 2):
    recipe = pretrain_recipe(nodes)
    recipe.trainer.strategy.tensor_model_parallel_size = tensor
    return recipe


def main():
    job = configure(4, tensor=4)
    tune(job)
    run.run(job)


if __name__ == "__main__":
    main()
