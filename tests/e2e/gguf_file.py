"""A GGUF file taken apart, changed and put together again: how the tests make files that no tool would write."""

import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
# id: (elements, bytes) of a block, of the types the tests meet.
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
    13: (256, 176), 14: (256, 210), 16: (256, 66), 20: (32, 18), 23: (256, 136), 24: (1, 1), 30: (1, 2), 39: (32, 17),
}  # fmt: skip


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def unpack(self, code):
        value = struct.unpack_from("<" + code, self.data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        size = self.unpack("Q")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, count = self.unpack("I"), self.unpack("Q")
            return inner, [self.value(inner) for _ in range(count)]
        return self.unpack(SCALARS[kind])


def packed(kind, value):
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(packed(inner, v) for v in values)
    return struct.pack("<" + SCALARS[kind], value)


def tensor_bytes(dims, kind):
    elements, size = BLOCKS[kind]
    count = 1
    for dim in dims:
        count *= dim
    return count // elements * size


class GgufFile:
    """meta: key -> (type, value), a string as bytes. tensors: [name, dims, type, data]."""

    def __init__(self, path=None):
        self.version, self.meta, self.tensors = 3, {}, []
        if path is None:
            return
        reader = Reader(path.read_bytes())
        assert reader.data[:4] == b"GGUF"
        reader.at = 4
        self.version = reader.unpack("I")
        tensors, keys = reader.unpack("Q"), reader.unpack("Q")
        for _ in range(keys):
            key, kind = reader.string().decode(), reader.unpack("I")
            self.meta[key] = (kind, reader.value(kind))
        records = []
        for _ in range(tensors):
            name = reader.string().decode()
            dims = [reader.unpack("Q") for _ in range(reader.unpack("I"))]
            records.append((name, dims, reader.unpack("I"), reader.unpack("Q")))
        begin = -(-reader.at // self.alignment) * self.alignment
        for name, dims, kind, offset in records:
            self.tensors.append([name, dims, kind, reader.data[begin + offset : begin + offset + tensor_bytes(dims, kind)]])

    @property
    def alignment(self):
        return self.meta.get("general.alignment", (U32, 32))[1]

    def set(self, key, kind, value):
        self.meta[key] = (kind, value.encode() if isinstance(value, str) else value)
        return self

    def drop(self, *keys):
        for key in keys:
            del self.meta[key]
        return self

    def tensor(self, name):
        return next(t for t in self.tensors if t[0] == name)

    def add(self, name, dims, kind=0):
        self.tensors.append([name, dims, kind, bytes(tensor_bytes(dims, kind))])
        return self

    def write(self, path):
        out = bytearray(b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.meta)))
        for key, (kind, value) in self.meta.items():
            out += text(key) + struct.pack("<I", kind) + packed(kind, value)
        data = bytearray()
        for name, dims, kind, content in self.tensors:
            out += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, len(data))
            data += content + bytes(-len(content) % self.alignment)
        path.write_bytes(bytes(out) + bytes(-len(out) % self.alignment) + bytes(data))
        return path
