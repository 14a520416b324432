"""Responses in Avro and in Protobuf. Both schemas are generated from the model `Response`.

An object without a fixed set of fields is encoded as JSON text. Every field may be absent, so that added fields are
compatible. The number of a Protobuf field is computed from its name: the order of the model's fields has no effect."""

import base64
import zlib
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any

import orjson
from pydantic import TypeAdapter

from recallflow.responses import AVRO, JSON_SCHEMA, RESPONSE_NAME, Response

_SCALARS = {"string": "string", "integer": "long", "number": "double", "boolean": "boolean"}  # in Avro
_FIRST_NUMBER, _NUMBERS = 20_000, 240_000  # numbers of three bytes, above Protobuf's reserved range
_OPTIONAL, _REPEATED = 1, 3
_WIRE_TYPES = {"double": 1, "long": 3, "boolean": 8, "string": 9, "opaque": 9, "record": 11}
_EMPTY = "empty_fields"  # Protobuf field: the names of lists and maps that are empty, not absent
_FILE, _PACKAGE = "recallflow/response.proto", RESPONSE_NAME.partition(".")[0]


@dataclass
class _Type:
    """A type of the model: scalar of Avro, `opaque` (any JSON), `record` with `fields`, `array` or `map` of `item`s."""

    kind: str
    name: str = ""
    fields: dict[str, "_Type"] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    item: Any = None  # the `_Type` of each item of an array or a map

    def pack(self, value: Any, *, marks_empty: bool = False) -> Any:
        """Convert a JSON value to this type. `marks_empty`: records list their empty lists and maps in `_EMPTY`."""
        match self.kind:
            case "record":
                known = {name: one for name, one in value.items() if one is not None and name in self.fields}
                packed = {name: self.fields[name].pack(one, marks_empty=marks_empty) for name, one in known.items()}
                empty = [name for name, one in packed.items() if self.fields[name].kind in ("array", "map") and not one]
                return packed | {_EMPTY: empty} if marks_empty and empty else packed
            case "array":
                return [self.item.pack(one, marks_empty=marks_empty) for one in value]
            case "map":
                return {key: self.item.pack(one, marks_empty=marks_empty) for key, one in value.items()}
            case "opaque":
                return orjson.dumps(value).decode()
        return float(value) if self.kind == "double" else value

    def unpack(self, value: Any) -> Any:
        """Return the JSON value from which `pack` made `value`. A required field without a value is null."""
        match self.kind:
            case "record":
                packed = {name: one for name, one in value.items() if one is not None and name in self.fields}
                kinds = {name: self.fields[name].kind for name in value.get(_EMPTY, ())}
                empty: dict[str, Any] = {name: {} if kind == "map" else [] for name, kind in kinds.items()}
                found = {name: self.fields[name].unpack(one) for name, one in packed.items()}
                return dict.fromkeys(self.required) | empty | found
            case "array":
                return [self.item.unpack(one) for one in value]
            case "map":
                return {key: self.item.unpack(one) for key, one in value.items()}
            case "opaque":
                return orjson.loads(value)
        return value


@cache
def record_types() -> dict[str, _Type]:
    """Return the records of the model by name, `Response` first."""
    schema = TypeAdapter(Response).json_schema()
    known: dict[str, _Type] = {}

    def read(node: dict[str, Any], name: str = "") -> _Type:
        if (reference := node.get("$ref")) is not None:
            name = reference.rpartition("/")[2]
            return known[name] if name in known else read(schema["$defs"][name], name)
        choices = [one for one in node.get("anyOf", ()) if one.get("type") != "null"]
        if len(choices) == 1:
            return read(choices[0])
        kind = node.get("type")
        if kind in _SCALARS:
            return _Type(_SCALARS[kind])
        if kind == "array" and "items" in node:
            item = read(node["items"])
            return _Type("opaque") if item.kind in ("array", "map") else _Type("array", item=item)
        if "properties" in node:
            record = known[name] = _Type("record", name, required=tuple(node.get("required", ())))
            record.fields |= {key: read(one, key) for key, one in node["properties"].items()}
            return record
        if kind == "object" and isinstance(node.get("additionalProperties"), dict):
            item = read(node["additionalProperties"])
            return _Type("opaque") if item.kind in ("array", "map") else _Type("map", item=item)
        return _Type("opaque")

    read(schema, "Response")
    return known


def avro_schema() -> dict[str, Any]:
    defined: set[str] = set()

    def write(one: _Type) -> Any:
        if one.kind == "array":
            return {"type": "array", "items": write(one.item)}
        if one.kind == "map":
            return {"type": "map", "values": write(one.item)}
        if one.kind != "record":
            return "string" if one.kind == "opaque" else one.kind
        if one.name in defined:
            return one.name
        defined.add(one.name)
        fields = [{"name": name, "type": ["null", write(of)], "default": None} for name, of in one.fields.items()]
        return {"type": "record", "name": one.name, "fields": fields}

    return {"namespace": _PACKAGE, **write(record_types()["Response"])}


@cache
def _proto() -> tuple[Any, Any]:
    """Return the class of a Protobuf response, and the description of its file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name=_FILE, package=_PACKAGE, syntax="proto3")

    def add(message: Any, name: str, one: _Type, label: int = _OPTIONAL, number: int = 0) -> None:
        number = number or _FIRST_NUMBER + zlib.crc32(name.encode()) % _NUMBERS
        added = message.field.add(name=name, number=number, label=label, type=_WIRE_TYPES[one.kind])
        if one.kind == "record":
            added.type_name = f".{_PACKAGE}.{one.name}"
        elif label == _OPTIONAL and not message.options.map_entry:
            added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")

    for record in record_types().values():
        message = file.message_type.add(name=record.name)
        for name, one in record.fields.items():
            if one.kind == "map":
                entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                add(entry, "key", _Type("string"), number=1)
                add(entry, "value", one.item, number=2)
                add(message, name, _Type("record", f"{record.name}.{entry.name}"), _REPEATED)
            elif one.kind == "array":
                add(message, name, one.item, _REPEATED)
            else:
                add(message, name, one)
        add(message, _EMPTY, _Type("string"), _REPEATED)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(RESPONSE_NAME)), file


def schema_text(response_format: str) -> str:
    """Return the schema of responses in Avro or Protobuf, in the form for a schema registry."""
    if response_format == AVRO:
        return orjson.dumps(avro_schema()).decode()
    return base64.b64encode(_proto()[1].SerializeToString()).decode()


def encode(body: bytes, response_format: str, schema_id: int) -> bytes:
    """Return a response, given as JSON, as a registered record."""
    frame = b"\0" + schema_id.to_bytes(4, "big")
    if response_format == JSON_SCHEMA:
        return frame + body
    packed = record_types()["Response"].pack(orjson.loads(body), marks_empty=response_format != AVRO)
    if response_format == AVRO:
        import fastavro

        written = BytesIO()
        fastavro.schemaless_writer(written, _parsed_avro(), packed)
        return frame + written.getvalue()
    from google.protobuf.json_format import ParseDict

    content: bytes = ParseDict(packed, _proto()[0]()).SerializeToString()
    return frame + b"\0" + content  # the zero byte is the message's index in its file


@cache
def _parsed_avro() -> Any:
    import fastavro

    return fastavro.parse_schema(avro_schema())
