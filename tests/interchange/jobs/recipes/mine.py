import argparse

import nemo_run as run
from nemo import pretrain_recipe

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int)
    args = parser.parse_args()
    recipe = pretrain_recipe(nodes=4, fast=True)
    recipe.data.global_batch_size = 64
    recipe.data.seq_length = args.length
    run.run(recipe)
