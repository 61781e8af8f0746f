"""A Dask cluster on this machine, for as long as a context lasts."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

CLUSTER = """\
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    workers = {"n_workers": int(sys.argv[1]), "threads_per_worker": 1}
    with LocalCluster(**workers, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def local_cluster(
    folder: Path, workers: int, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a cluster of some worker processes, and its process, which leads a session of its own."""
    (folder / "cluster.py").write_text(CLUSTER, encoding="utf-8")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    command = [sys.executable, "cluster.py", str(workers)]
    with subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes) as process:
        try:
            yield process.stdout.readline().strip(), process
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a cluster with all of its workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
