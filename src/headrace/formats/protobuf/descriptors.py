"""Builds message classes of Google's Protobuf library from descriptors of protoc."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.support.optional_imports import require

if TYPE_CHECKING:
    from collections.abc import Mapping

_BUILT: dict[tuple[str, bytes], tuple[Any, Any]] = {}


def build_descriptors(name: str, descriptor: bytes) -> tuple[Any, Any]:
    """The descriptor of a message, and its class."""
    if (name, descriptor) not in _BUILT:
        pool, open_pool = (library("descriptor_pool").DescriptorPool() for _ in range(2))
        try:
            described = library("descriptor_pb2").FileDescriptorSet.FromString(descriptor)
            files = {file.name: file for file in described.file}
            for file in files.values():
                _add(pool, file, files)
            found = pool.FindMessageTypeByName(name)
            opened = {file.name: _open_file(file, pool) for file in files.values()}
            for file in opened.values():
                _add(open_pool, file, opened)
        except (library("message").DecodeError, TypeError) as error:
            raise ConfigError(
                f"cannot use the descriptor of {name}: {error}",
                hint="protoc --include_imports --descriptor_set_out=<file> <name>.proto",
            ) from error
        except KeyError as error:
            names = [f"{f.package}.{m.name}".lstrip(".") for f in files.values() for m in f.message_type]
            raise ConfigError(
                f"the descriptor has no message {name}", hint=f"it has: {', '.join(sorted(names)) or 'none'}"
            ) from error
        message_class = library("message_factory").GetMessageClass(open_pool.FindMessageTypeByName(name))
        _BUILT[name, descriptor] = found, message_class
    return _BUILT[name, descriptor]


def _open_file(file: Any, pool: Any) -> Any:
    """The same file with integers for closed enums, such as those of proto2.

    Google's library drops a number that a closed enum does not have, also from a list.
    """
    opened = type(file).FromString(file.SerializeToString())
    enum = library("descriptor_pb2").FieldDescriptorProto.TYPE_ENUM
    pending = list(opened.message_type)
    while pending:
        message = pending.pop()
        pending += message.nested_type
        for field in message.field:
            if field.type == enum and pool.FindEnumTypeByName(field.type_name.lstrip(".")).is_closed:
                field.type = library("descriptor_pb2").FieldDescriptorProto.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")
    return opened


def _add(pool: Any, file: Any, files: Mapping[str, Any]) -> None:
    """Add a file, after those that it imports. Protobuf's own files need not be in the set."""
    try:
        pool.FindFileByName(file.name)
        return
    except KeyError:
        pass
    for needed in file.dependency:
        if needed not in files and needed.startswith("google/protobuf/"):
            files = {**files, needed: _library_file(needed)}
        if needed in files:
            _add(pool, files[needed], files)
    pool.AddSerializedFile(file.SerializeToString())


def _library_file(name: str) -> Any:
    module = library(name.removeprefix("google/protobuf/").removesuffix(".proto").replace("/", ".") + "_pb2")
    return library("descriptor_pb2").FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def library(module: str) -> Any:
    return require(f"google.protobuf.{module}", extra="protobuf")
