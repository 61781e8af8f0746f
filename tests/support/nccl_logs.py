"""The output of nccl-tests, line by line."""

from hybrid_des.measured.calibration.runs import parse_runs

STARTING = "# nccl-tests version 2.18.0 nccl-headers=22907 nccl-library=22907\n# Collective test starting: {}\n"
SETTINGS = (
    "# nThread 1 nGpus {} minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
)
NAMES = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
TIMES = {1048576: 50.0, 2097152: 70.0, 4194304: 110.0}  # microseconds
FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n, "broadcast": lambda n: 1}


def group(size, time, wrong="0", test="all_reduce", ranks=8):
    """Time, both bandwidths and wrong elements as the programs print them."""
    rate = size / time / 1000
    printed = f"{time:7.2f}" if time < 1e4 else f"{time:7.0f}" if time < 1e7 else f"{time:7.1e}"
    return f"  {printed}  {rate:6.2f}  {rate * FACTORS[test](ranks):6.2f}  {wrong:>6}"


def row(size, time, kind="float     sum      -1", wrong="0", **of):
    return (
        f"{size:12}  {size // 4:12}     {kind}{group(size, time, wrong, **of)}{group(size, time * 0.99, wrong, **of)}\n"
    )


def rank_list(
    ranks, of="#  Rank {0:2} Group  0 Pid   3713 on   node0001 device {0:2} [0000:07:00] NVIDIA A100-SXM4-40GB\n"
):
    return "# Using devices\n" + "".join(of.format(rank) for rank in ranks)


def rows(times=TIMES, **of):
    return "".join(row(size, time, **of) for size, time in times.items())


def log(test="all_reduce", program="{}_perf", ranks=range(8), **of):
    """The output of one run on 8 GPUs."""
    head = STARTING.format(program.format(test)) + SETTINGS.format(8) + rank_list(ranks) + NAMES
    tail = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 50.1\n#\n"
    return f"{head}{rows(test=test, **of)}{tail}# Collective test concluded: {program.format(test)}\n"


def parsed(text, name, collective=None):
    """The only run of a text."""
    (run,) = parse_runs(text, name, collective)
    return run
