"""The 1797 handwritten digits of 8 × 8 pixels that scikit-learn ships (UCI optical recognition, its test set)."""

import numpy as np

from hybrid_des.errors import UsageError, installing
from hybrid_des.numerics.datasets import Drawn, dataset


@dataset("digits", features=64, classes=10, held_out=360)
def digits(generator: np.random.Generator) -> Drawn:
    """All digits in random order, pixels from −1 to 1; needs the extra `digits`."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError(f"numerics.task: digits needs scikit-learn: {installing('digits')}") from None
    data = load_digits()
    order = generator.permutation(len(data.target))
    return data.data[order] / 8 - 1, data.target[order].astype("int64")
