"""Generated data sets: teacher and student, and two spirals."""

import numpy as np

from hybrid_des.numerics.datasets import Drawn, dataset

# Normally distributed inputs, classified by a small random network (teacher and student).


@dataset("teacher-student", features=8, classes=2, held_out=1024)
def teacher_student(generator: np.random.Generator) -> Drawn:
    """5120 samples; the class says whether the teacher's output (8-4-1, tanh) is above its median."""
    inputs = generator.normal(size=(5120, 8))
    hidden = np.tanh(inputs @ generator.normal(size=(8, 4)) / np.sqrt(8))
    output = hidden @ generator.normal(size=4)
    return inputs, (output > np.median(output)).astype(np.int64)


# Two interleaved spirals of one and a quarter turns with a little noise (after Lang & Witbrock, 1988).


@dataset("two-spirals", features=2, classes=2, held_out=512)
def two_spirals(generator: np.random.Generator) -> Drawn:
    """2560 points in the plane, coordinates up to 2.5; the arms are 1 apart, the noise is 0.05."""
    labels = generator.permutation(2560) % 2
    turn = np.sqrt(generator.uniform(0.02, 1, labels.size)) * 2.5 * np.pi
    angle = turn + np.pi * labels
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / np.pi
    return points + generator.normal(scale=0.05, size=points.shape), labels
