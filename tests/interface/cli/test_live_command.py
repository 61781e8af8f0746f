"""`hybrid-des live` refuses in one line what it cannot serve."""

import socket
import sys

from hybrid_des.errors import installing


def test_without_its_extra_the_command_names_it(run, scenarios, monkeypatch):
    monkeypatch.delitem(sys.modules, "hybrid_des.interface.live.server", raising=False)
    monkeypatch.setitem(sys.modules, "tornado.httpserver", None)
    code, out, err = run("live", scenarios / "a100_8x.yaml")
    assert (code, out, len(err)) == (2, "", 1)
    assert err == [f"live needs the live extra: {installing('live')}"]


def test_a_file_that_is_no_scenario_is_not_served(run, tmp_path):
    assert run("live", tmp_path / "none.yaml") == (2, "", [f"{tmp_path / 'none.yaml'}: no such file"])
    assert run("live", "--set", "schedule", "--json")[0] == 2


def test_a_port_that_is_taken_is_refused(run, scenarios):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("live", scenarios / "a100_8x.yaml", "--port", port)
    assert (code, out, len(err)) == (2, "", 1)
    assert f"--port {port}: " in err[0]
    assert run("live", scenarios / "a100_8x.yaml", "--port", "99999", "--json")[0] == 2
