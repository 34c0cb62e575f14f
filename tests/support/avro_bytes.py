"""Encodes Avro by its specification, for the few types that tests write."""

import json
import struct
import urllib.request


def long(number):
    left = (number << 1) ^ (number >> 63)
    made = b""
    while left >= 0x80:
        made += bytes([left & 0x7F | 0x80])
        left >>= 7
    return made + bytes([left])


def encoded(schema, value):
    """Encode a value. A union uses its first branch that is not null, unless the value is None."""
    if isinstance(schema, list):
        at = schema.index("null") if value is None else next(n for n, kind in enumerate(schema) if kind != "null")
        return long(at) + encoded(schema[at], value)
    match schema["type"] if isinstance(schema, dict) else schema:
        case "null":
            return b""
        case "boolean":
            return bytes([value])
        case "int" | "long":
            return long(value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return long(len(value.encode())) + value.encode()
        case "bytes":
            return long(len(value)) + value
        case "enum":
            return long(schema["symbols"].index(value))
        case "array":
            return (
                long(len(value)) + b"".join(encoded(schema["items"], one) for one in value) if value else b""
            ) + b"\0"
        case "record":
            return b"".join(encoded(field["type"], value[field["name"]]) for field in schema["fields"])


def framed(number, schema, value):
    """The same in Confluent's wire format."""
    return struct.pack(">bI", 0, number) + encoded(schema, value)


def registered(url, subject, schema, **more):
    """Register a schema as a version of a subject, and return its id."""
    body = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions",
        json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)["id"]
