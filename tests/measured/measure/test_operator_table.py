"""Measured times of operators in place of the law: which a model asks for, and that it takes them."""

import pytest

from hybrid_des import load
from hybrid_des.cluster.operator_table import read_operator_table
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.measured.measure.needed import needed_by
from hybrid_des.planning.planner import parts_of

SIZES = {"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 2, "ffn": 256, "vocab": 1000, "sequence": 128}
HEAD = "operator,m,n,k,length,heads,kv_heads,head_size,causal,bytes,parameters,seconds,backward_s"


def scenario(**sections):
    return load({"model": SIZES, "schedule": {"microbatch_size": 2}, "parallel": {"tensor": 2}, **sections})


def test_a_model_asks_for_products_and_their_gradients():
    needed = needed_by(scenario())
    tokens, up = 256, 256  # two samples; gate and values of half of the MLP
    assert {(tokens, up, 64), (tokens, 64, up), (64, up, tokens)} <= needed.products
    assert {(tokens, 500, 64), (tokens, 64, 500), (64, 500, tokens)} <= needed.products  # half of the logits
    assert needed.cores == {(128, 4, 1, 8, 1)}
    assert dict(needed.passes)["loss"] == 10 * 500 * tokens
    assert needed.tokens == tokens
    block = 64 * (8 + 4) * 8 // 2 + 64 * 64 // 2 + 3 * 64 * 256 // 2 + 2 * 64
    assert needed.parameters == 2 * block + 2 * 1000 * 64 // 2 + 64


def measured(needed, factor=1.0):
    """A table in which a product takes a second per 10⁹ multiplications, and a pass one per 10⁹ bytes."""
    rows = [f"gemm,{m},{n},{k},,,,,,,,{factor * m * n * k / 1e9}," for m, n, k in needed.products]
    rows += [f"attention,,,,{','.join(map(str, shape))},,,{factor * 0.25},{factor * 0.5}" for shape in needed.cores]
    rows += [f"{name},,,,,,,,,{size},,{factor * size / 1e9},{factor * 2 * size / 1e9}" for name, size in needed.passes]
    return "\n".join([HEAD, *rows, f"optimizer,,,,,,,,,,{needed.parameters},{factor * 7},", "launch,,,,,,,,,,,1e-6,"])


def costs_of(scenario):
    """Seconds of forward, backward and optimizer of the only stage, without collectives."""
    parts = parts_of(scenario)
    (stage,) = parts.costs.stages.values()
    computed = (stage.time(kind) - stage.waits(kind) for kind in "FB")
    return [time / 1e12 for time in (*computed, stage.states.optimizer)]


def test_measured_operators_take_their_time(tmp_path):
    needed, table = needed_by(scenario()), tmp_path / "operators.csv"
    table.write_text(measured(needed) + "\n")
    forward, backward, optimizer = costs_of(scenario(efficiency={"table": str(table), "launch": 0}))
    m, h, f = 256, 64, 256
    products = [(m, 48, h), (m, h, 32), (m, f, h), (m, h, f // 2)]  # of a block: QKV, output, up, down
    multiplied = 2 * sum(x * y * z for x, y, z in products) + m * 500 * h
    passes = sum(size * (2 if name in ("norms and residuals", "activation", "head layout") else 1)
                 for name, size in needed.passes)  # fmt: skip
    attended = 2 * 2  # samples, blocks
    assert forward == pytest.approx(multiplied / 1e9 + passes / 1e9 + 0.25 * attended, rel=1e-6)
    assert backward == pytest.approx(2 * multiplied / 1e9 + 2 * passes / 1e9 + 0.5 * attended, rel=1e-6)
    assert optimizer == pytest.approx(7, rel=1e-6)


def test_other_shapes_follow_the_law(tmp_path):
    table = tmp_path / "operators.csv"
    table.write_text(f"{HEAD}\ngemm,1,2,3,,,,,,,,0.5,\n")
    assert costs_of(scenario(efficiency={"table": str(table)})) == costs_of(scenario())


def test_sizes_are_interpolated_and_scaled(tmp_path):
    table = tmp_path / "operators.csv"
    table.write_text(f"{HEAD}\nnorm,,,,,,,,,200,,4,8\nnorm,,,,,,,,,100,,1,2\n")
    times = read_operator_table(table)
    assert times.sized("norm", 150) == (2.5, 5)
    assert times.sized("norm", 50) == (0.5, 1)
    assert times.sized("norm", 400) == (8, 16)
    assert times.sized("other", 1) is None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("gemm,1,2,,,,,,,,,0.5,", "row 2: gemm: expected m, n, k and seconds"),
        ("gemm,1,2,3,,,,,,,,0,", "row 2: gemm: expected sizes of at least 1 and times above 0"),
        ("gemm,1,2,3,,,,,,,,1,\ngemm,1,2,3,,,,,,,,2,", "an operator has two times for one size"),
        ("attention,,,,1,2,3,4,1,,,nan,", "row 2: attention"),
        ("norm,,,,,,,,,1e400,,1,", "row 2: norm: expected bytes and seconds"),
    ],
)
def test_broken_tables_are_refused(tmp_path, row, said):
    (tmp_path / "t.csv").write_text(f"{HEAD}\n{row}\n")
    with pytest.raises(UsageError, match=said):
        read_operator_table(tmp_path / "t.csv")


def test_a_table_of_something_else_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("bytes,time_us\n1,2\n")
    with pytest.raises(ScenarioError, match=r"efficiency\.table: .*not a table of operators; expected the columns"):
        scenario(efficiency={"table": str(tmp_path / "t.csv")})
