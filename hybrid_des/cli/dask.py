"""The executor of a Dask cluster, for sweeps with `--dask`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybrid_des.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor


@contextlib.contextmanager
def dask_executor(address: str | None) -> Iterator[Executor | None]:
    """Connect to the scheduler at an address; give None without one.

    Raises:
        UsageError: Dask is not installed, or no scheduler answers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--dask needs the dask extra: pip install 'hybrid-des[dask]'") from None
    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise UsageError(f"--dask {address}: no scheduler answers ({error})") from None
    with client, client.get_executor() as executor:
        yield executor
