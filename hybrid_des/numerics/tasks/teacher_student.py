"""What a small random network says of normal inputs, to be learnt from its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybrid_des.numerics.tasks import task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@task("teacher-student", features=8, classes=2, held_out=1024)
def teacher_student(generator: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """5120 samples; the class is the side of its median on which the teacher's output lies (8-4-1, tanh)."""
    import numpy

    inputs = generator.normal(size=(5120, 8))
    hidden = numpy.tanh(inputs @ generator.normal(size=(8, 4)) / numpy.sqrt(8))
    output = hidden @ generator.normal(size=4)
    return inputs, (output > numpy.median(output)).astype(numpy.int64)
