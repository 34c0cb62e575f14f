import uuid

import pytest

from headrace.dev.kafka import new_id
from headrace.dev.ports import free
from headrace.dev.running_servers import SERVERS


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    assert new_id(uuid.UUID(bytes=b"\xf8" + bytes(15))) == "A" + "A" * 21
    assert new_id(uuid.UUID(bytes=b"\x04" + bytes(15))).startswith("B")


@pytest.mark.parametrize(("name", "nodes"), [*((name, 1) for name in SERVERS), ("kafka", 3)])
def test_a_server_has_the_same_address_when_it_is_started_again(name, nodes, tmp_path, monkeypatch):
    """Any port but the usual one, which every server would have again by itself."""
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "state"))
    (port,) = free(1)
    server = SERVERS[name].for_cli(tmp_path / name, port=port, nodes=nodes, progress=lambda _: None)
    assert str(port) in server.address
    again = SERVERS[name].from_record(tmp_path / name, server.settings())
    assert (again.address, again.environment) == (server.address, server.environment)
