"""Normally distributed inputs, classified by a small random network (teacher and student)."""

import numpy as np

from hybrid_des.numerics.datasets import Drawn, dataset


@dataset("teacher-student", features=8, classes=2, held_out=1024)
def teacher_student(generator: np.random.Generator) -> Drawn:
    """5120 samples; the class says whether the teacher's output (8-4-1, tanh) is above its median."""
    inputs = generator.normal(size=(5120, 8))
    hidden = np.tanh(inputs @ generator.normal(size=(8, 4)) / np.sqrt(8))
    output = hidden @ generator.normal(size=4)
    return inputs, (output > np.median(output)).astype(np.int64)
