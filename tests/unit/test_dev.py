import uuid

from headrace.dev.kafka import new_id


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    assert new_id(uuid.UUID(bytes=b"\xf8" + bytes(15))) == "A" + "A" * 21
    assert new_id(uuid.UUID(bytes=b"\x04" + bytes(15))).startswith("B")
