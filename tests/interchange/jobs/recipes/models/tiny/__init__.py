from absent.models import Spec, parallelize

configs = {"8B": 1, "70B": 2}


def model_registry(flavor, backend="flex", converters=None):
    config = configs[flavor]
    for converter in converters or []:
        config = converter.build().convert(config)
    return Spec(name="llama3", flavor=flavor, model=config, parallelize_fn=parallelize)
