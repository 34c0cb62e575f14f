"""Descriptors of Protobuf messages, as protoc would write them."""

from google.protobuf import descriptor_pb2

FIELD = descriptor_pb2.FieldDescriptorProto
ORDER = {
    "id": ("INT32", 1),
    "name": ("STRING", 2),
    "large": ("UINT64", 3),
    "ratio": ("DOUBLE", 4),
    "raw": ("BYTES", 5),
    "at": (".google.protobuf.Timestamp", 6),
    "note": (".google.protobuf.StringValue", 7),
    "kind": (".shop.Kind", 8),
    "line": (".shop.Line", 9),
    "tags": ("STRING*", 10),
    "lines": (".shop.Line*", 11),
    "counts": (".shop.Order.CountsEntry*", 12),
    "seen": ("BOOL?", 13),
}


def add(message, fields):
    """`*`: repeated; `?`: optional, so that one can tell whether it is there."""
    for name, (kind, number) in fields.items():
        field = message.field.add(name=name, number=number, label=FIELD.LABEL_REPEATED if kind[-1] == "*" else 1)
        bare = kind.rstrip("*?")
        if bare.startswith("."):
            field.type_name = bare
            field.type = FIELD.TYPE_ENUM if bare == ".shop.Kind" else FIELD.TYPE_MESSAGE
        else:
            field.type = FIELD.Type.Value(f"TYPE_{bare}")
        if kind[-1] == "?":
            message.oneof_decl.add(name=f"_{name}")
            field.oneof_index, field.proto3_optional = len(message.oneof_decl) - 1, True


def described(fields=None):
    """The output of `protoc --descriptor_set_out`, without the files that Protobuf ships."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="GIFT", number=1)
    add(file.message_type.add(name="Line"), {"sku": ("STRING", 1), "count": ("INT64", 2)})
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add(entry, {"key": ("STRING", 1), "value": ("INT32", 2)})
    add(order, fields or ORDER)
    loop = file.message_type.add(name="Loop")
    add(loop, {"next": (".shop.Loop", 1)})
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
