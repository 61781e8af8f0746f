"""Networks that a user brings: a table of layers, and a kind in a file of its own."""

import pytest

from hybrid_des import load
from hybrid_des.errors import ScenarioError, UsageError
from hybrid_des.options import attribute_docstrings
from hybrid_des.registry import import_file
from hybrid_des.workload.models import kinds
from hybrid_des.workload.models.catalogue import model
from hybrid_des.workload.models.kinds.registration import make_model
from hybrid_des.workload.models.operations import Kernel

HEAD = "name,flop,bytes,parameters,output_bytes,kept_bytes\n"
TABLE = f"""# measured by me
{HEAD}
conv1, 236027904, 7.5 MB, 9408, 1605632, 1907328
"pool, max",0,2 MB,0,401408,1605632
fc,4.096e6,4106000,2049000,0,4096
"""
MINE = """
from hybrid_des.workload.models import Gemm, Kept, Layer, Model, Parameters
from hybrid_des.workload.models.kinds import kind
from hybrid_des.options import Count, Options

class Square(Options):
    width: Count
    layers: Count = 2

@kind("square-of-a-test", summary="square products", options=Square)
def square(options):
    width = options.width
    product = Gemm("product", width, width, "none")
    return Model(1, tuple(
        Layer((product,), Parameters(replicated=width**2), Kept(sequence=2 * width), name=f"{i}", output=2 * width)
        for i in range(options.layers)
    ))
"""


@pytest.fixture
def table(tmp_path):
    def write(text):
        file = tmp_path / "layers.csv"
        file.write_text(text)
        return file

    return write


def test_a_table_of_layers_is_a_model(table):
    own = make_model("layers", {"file": str(table(TABLE))})
    assert [layer.name for layer in own.layers] == ["conv1", "pool, max", "fc"]
    assert own.parameters == 9408 + 2049000
    assert own.flop == 236027904 + 4096000
    first, pool, _ = own.layers
    assert first.operations == (Kernel("conv1", 236027904, 7500000, weights=True),)
    assert not pool.operations[0].weights
    assert (first.output, first.kept.total) == (1605632, 1907328)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ": expected the columns name,flop,bytes,parameters,output_bytes,kept_bytes"),
        ("# mine\nname,flop\n", ":2: expected the columns name,flop,bytes,parameters,output_bytes,kept_bytes"),
        (HEAD, ": a table without layers"),
        (f"{HEAD}a,1,2,3,4\n", ":2: expected 6 values, found 5"),
        (f"{HEAD}\n,1,2,3,4,5\n", ":3: name: expected the name of a layer"),
        (f"{HEAD}a,x,2,3,4,5\n", ':2: flop: "x" is not a quantity; expected a plain number such as 125e6'),
        (f"{HEAD}a,1,2 s,3,4,5\n", ':2: bytes: "2 s" is a time; expected a size such as 64 MiB'),
        (f"{HEAD}a,1,2,-3,4,5\n", ":2: parameters: -3 is negative; expected a plain number such as 125e6"),
        (f"{HEAD}a,1,2,3,4,0.5\n", ':2: kept_bytes: expected a whole number up to 1e18, found "0.5"'),
        (f"{HEAD}a,1e19,2,3,4,5\n", ':2: flop: expected a whole number up to 1e18, found "1e19"'),
        (f'{HEAD}"a,1,2,3,4,5\n', ":2: not a line of a CSV file: unexpected end of data"),
    ],
)
def test_a_wrong_table_is_answered_with_file_and_line(table, text, said):
    file = table(text)
    with pytest.raises(UsageError) as error:
        make_model("layers", {"file": str(file)})
    assert str(error.value) == f"layers: file: {file}{said}"


def test_a_missing_table_is_answered_with_its_name(tmp_path):
    with pytest.raises(UsageError, match=r"layers: file: .*none.csv: No such file or directory"):
        make_model("layers", {"file": str(tmp_path / "none.csv")})
    with pytest.raises(UsageError, match="layers: file: expected the path of a CSV file, found 7"):
        make_model("layers", {"file": 7})


def test_a_users_file_adds_a_kind(tmp_path, scratch):
    file = tmp_path / "square.py"
    file.write_text(MINE)
    import_file(file)
    own = model({"kind": "square-of-a-test", "width": 10})
    assert (own.parameters, own.flop, len(own.layers)) == (200, 400, 2)


def test_every_kind_explains_itself_and_its_options():
    for name in kinds.names():
        entry = kinds.find(name)
        assert entry.facts["summary"]
        assert entry.options.model_fields.keys() <= attribute_docstrings(entry.options).keys()


def test_keys_of_experts_count_where_a_kind_sends_tokens(tmp_path):
    """Of its layers no routing is known: how tokens travel is read, how many want each expert is not."""
    file = tmp_path / "sending.py"
    sending = MINE.replace("square-of-a-test", "sending-of-a-test").replace(
        "output=2", "dispatched=4 * width, output=2"
    )
    file.write_text(sending)
    import_file(file)
    values = {
        "model": {"kind": "sending-of-a-test", "width": 64}, "cluster": {"gpu": "h100"},
        "parallel": {"data": 2}, "schedule": {"kind": "1f1b", "microbatches": 1},
    }  # fmt: skip
    assert load({**values, "experts": {"dispatch": "fp8"}}).experts.dispatch == "fp8"
    with pytest.raises(ScenarioError, match=r"experts\.power_law: this model has no experts whose routing is known"):
        load({**values, "experts": {"power_law": 1}})
