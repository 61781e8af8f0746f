"""Sums of times are exact, however large."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hybrid_des.analysis.times import total

TIMES = st.integers(-(2**63), 2**63 - 1)


@given(arrays(np.int64, st.tuples(st.integers(0, 3), st.integers(1, 4)), elements=TIMES))
def test_a_total_never_wraps(times):
    assert total(times) == sum(times.ravel().tolist())
