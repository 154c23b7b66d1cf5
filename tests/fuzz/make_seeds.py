"""Writes the seeds of the fuzzers whose inputs are messages: tests/fuzz/make_seeds.py [IMAGE...]

Messages are given as text and packed by protoc. A seed of manifest_fuzz is the manifest of an IMAGE, with what makes
it large or belongs to one host left out: run it again when the schema has changed.
"""
import pathlib
import re
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PROTO = HERE.parent.parent / "proto"
SEEDS = HERE / "seeds"
MEMORY = 0x10000000  # of pages_fuzz
DIGEST = r"\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017\020"
COOKIE = DIGEST
LOOPBACK = r"\002\000\037\220\177\000\000\001\000\000\000\000\000\000\000\000"  # struct sockaddr_in, 127.0.0.1:8080


def protoc(how, schema, message, data):
    command = ["protoc", f"--{how}=pbeam.{message}", "-I", PROTO, PROTO / f"{schema}.proto"]
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout


def pack(schema, message, text):
    return protoc("encode", schema, message, text.encode())


def record(kind, data):
    return struct.pack("<BH", kind, len(data)) + data


def write(fuzzer, name, data):
    (SEEDS / fuzzer).mkdir(parents=True, exist_ok=True)
    (SEEDS / fuzzer / name).write_bytes(data)


# ---- pages ----

def pages(text):
    return record(0, pack("cluster", "MigratePages", text))


def page_seeds():
    data = bytes(range(256)) * 16
    delta = struct.pack("<HH", 2, 1) + b"changed!"
    whole = pages(f"vpid: 100 bytes: 4096 raw: 4096 pages {{ address: {MEMORY} count: 1 }}") + record(1, data)
    end = record(2, pack("cluster", "MigrateRound", "round: 1"))
    write("pages", "whole", whole + end)
    write("pages", "delta", whole + pages(f"vpid: 100 bytes: {len(delta)} raw: {len(delta)} "
                                         f"deltas {{ address: {MEMORY} bytes: {len(delta)} }}") + record(1, delta))
    write("pages", "zeroes", pages(f"vpid: 100 zeroes {{ address: {MEMORY + 8192} count: 3 }}") + end)
    write("pages", "shared", pages("shared_id: 3 bytes: 4096 raw: 4096 pages { address: 4096 count: 1 }") + record(1, data))
    packed = subprocess.run(["zstd", "-1", "-q", "-c", "--no-check"], input=data, stdout=subprocess.PIPE, check=True).stdout
    write("pages", "compressed", pages(f"vpid: 100 compressed: true bytes: {len(packed)} raw: 4096 "
                                      f"pages {{ address: {MEMORY} count: 1 }}") + record(1, packed))
    write("delta", "one", delta)


# ---- files ----

def files(text):
    return record(0, pack("cluster", "MigrateFiles", text))


def file_seeds():
    here = 'files { path: "/here" name: "/here" use: 1 mode: 493 size: 8 who: "vpid 1: fd 3" }'
    asked = here.replace("size", f'digest: "{DIGEST}" size')
    part = record(1, pack("cluster", "MigrateFilePart", f'digest: "{DIGEST}" bytes: 8 size: 8 last: true')) + record(2, b"contents")
    manifest = record(3, pack("image", "Manifest", 'processes { vpid: 1 cwd: "/bin" exe { path: "/here" } } objects { id: 1 '
                              'regular { file { path: "/here" } } } files { file { path: "/here" } }'))
    write("files", "asked", files(here) + files(asked) + part + manifest)
    write("files", "again", files(asked) + files(here) + part)  # awaited, then announced without a digest
    write("files", "directory", files('files { path: "/bin" name: "/bin" use: 16 }') + manifest)
    write("files", "written", files('files { path: "/here" name: "/here" use: 8 size: 8 ino: 3 }') + manifest)
    write("files", "carried", files('files { path: "/new/x" name: "/new/x" use: 40 home: "source" links: "/link" }') + manifest)
    write("files", "mapped", files(f'files {{ path: "/from/x" name: "/from/x" use: 2 digest: "{DIGEST}" size: 8 }}') + part)
    write("files", "upwards", files('files { path: "/x" name: "/../x" use: 8 }'))


# ---- connections and bridges ----

def reconnect(text):
    return record(0, pack("reconnect", "ReconnectRequest", text))


def reconnect_seeds():
    hold = reconnect(f'operation: HOLD connections {{ own: "{LOOPBACK}" peer: "{LOOPBACK}" }}')
    ports = reconnect(f'operation: HOLD host: "{LOOPBACK}" ports {{ addresses: "{LOOPBACK}" peer: "{LOOPBACK}" }} group: 5')
    listen = reconnect(f'operation: LISTEN address: "{LOOPBACK}"')
    accept = reconnect(f'operation: ACCEPT connections {{ cookie: "{COOKIE}" }}')
    connect = reconnect(f'operation: CONNECT connections {{ address: "{LOOPBACK}" cookie: "{COOKIE}" }}')
    drain, commit = reconnect("operation: DRAIN"), reconnect("operation: COMMIT")
    lead = reconnect(f'operation: LEAD ports {{ address: "{LOOPBACK}" }}')
    write("reconnect", "accept", hold + drain + listen + accept + commit)
    write("reconnect", "connect", hold + drain + connect + commit)
    write("reconnect", "ports", ports + lead + commit)
    write("reconnect", "twice", hold + hold + listen + listen + commit + hold)
    queue = pack("reconnect", "ReconnectQueue", "unread: 4 room: 65536")
    write("reconnect", "queue", record(1, bytes([len(queue)]) + queue + b"byte"))


def link_seeds():
    links = ["HELLO", "STATUS", "DONE", "SIGNAL", "SIGNALLED", "CLOSE", "REFUSED", "PARENT"]
    consoles = ["HELLO", "START", "DATA", "TAKEN", "WRITTEN", "END", "FLUSH", "FLUSHED", "WINSIZE", "REFUSED"]

    def link(name, text=""):
        return record(links.index(name), pack("cluster", "StubLink", "vpid: 5 " + text))

    def console(name, text=""):
        return record(len(links) + consoles.index(name), pack("cluster", "RemoteConsole", text))

    size = struct.pack("<4H", 24, 80, 0, 0)
    octal = "".join(f"\\{byte:03o}" for byte in size)
    hello = console("HELLO", "vpid: 5 fresh: true instance: 7 written: 0 written: 0 written: 0")
    again = console("HELLO", "vpid: 5 given: 11 count: 4 instance: 7 written: 0 written: 6 written: 0")
    data = console("DATA", 'stream: 1 data: "output"')
    write("link", "home_link", b"\0" + link("HELLO", "stub: 7") + link("STATUS", "status: 4991") + link("SIGNALLED", "seq: 3") + link("HELLO") + link("CLOSE"))
    write("link", "home_console", b"\0" + hello + data + console("TAKEN", "count: 5") + console("FLUSH", "count: 1") + again + again)
    write("link", "home_beyond", b"\0" + again.replace(b"\x0b", b"\x7f") + console("TAKEN", "count: 100") + console("DATA", 'stream: 1 count: 9 data: "x"'))
    write("link", "guest_link", b"\1" + link("SIGNAL", "signal: 10 from: 3 seq: 1") + link("SIGNAL", "signal: 10 seq: 1") + link("PARENT", "parent: 1 stub: 7") + link("DONE") + link("CLOSE"))
    write("link", "guest_refused", b"\1" + link("REFUSED") + console("REFUSED"))
    write("link", "guest_console", b"\1" + console("START", "count: 0 written: 0 written: 0") + console("DATA", 'data: "typed"') + console("WRITTEN", "stream: 1 count: 6")
          + console("WINSIZE", f'data: "{octal}"') + console("FLUSHED", "count: 1") + console("END", "stream: 1") + console("END"))
    write("link", "guest_unsent", b"\1" + console("START", "written: 0 written: 1000000"))


def bridge_seeds():
    kinds = ["STREAM", "MESSAGES", "LISTENER", "PORT", "TERMINAL"]
    old = record(1, pack("cluster", "BridgeRecord", 'stream: 9 number: 0 data: "earlier"'))[3:]
    head = struct.pack("<IHHII", 0x4d454250, 1, 0, 51, len(old)) + old
    unacked = "".join(f"\\{byte:03o}" for byte in head)

    def attach(kind, text):
        return record(kind, pack("cluster", "BridgeAttach", text))

    def sent(stream, rest):
        return record(1, pack("cluster", "BridgeRecord", f"stream: {stream} {rest}"))

    for number, kind in enumerate(kinds, 1):
        float_of = record(0, pack("cluster", "BridgeStream", f'host: "a" id: {10 + number} kind: {kind} reads: true writes: true '
                                 f'family: 2 sent: 1 unacked: "{unacked}" local: "{LOOPBACK}" peer: "{LOOPBACK}" text: "x"'))
        talk = attach(2, f"stream: {number} generation: 1") + attach(3, f"stream: {10 + number}") + b"".join(
            sent(stream, rest) for stream in (number, 10 + number) for rest in (
                f'number: 0 data: "data" address: "{LOOPBACK}"', 'number: 1 kind: TERMIOS data: "01234567890123456789012345678901234567"',
                f'number: 2 kind: OPEN opened {{ id: 33 reads: true writes: true local: "{LOOPBACK}" peer: "{LOOPBACK}" }}',
                'number: 3 kind: WINSIZE data: "01234567"', "number: 4 kind: END", "number: 5 kind: CLOSE"))
        write("bridge", kind.lower(), float_of + talk + attach(4, f"stream: {number} received: 9"))
    write("bridge", "reset", sent(1, "number: 0 kind: RESET") + sent(99, "number: 7"))
    write("bridge", "empty", sent(1, "number: 0 address: 'x'"))
    deep = b""
    for _ in range(3000):  # a listener's connection, whose connection ...
        size = len(deep)
        deep = b"\x72" + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7]) if size < 16384 else
                          bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])) + deep
    write("bridge", "deep", record(1, b"\x08\x03\x32" + bytes([len(deep) & 127 | 128, len(deep) >> 7 & 127 | 128, len(deep) >> 14]) + deep))


def wire_seeds():
    def one(kind, message, text, schema="cluster"):
        return record(kind, pack(schema, message, text))

    write("wire", "hello", one(0, "ChannelHello", 'version: 4 kind: CHANNEL_PEER host: "b" program: "pbeam"'))
    write("wire", "refused", one(1, "Failed", 'code: -1 text: "no"', "rpc"))
    for name, text in {"lease": 'operation: LEASE key: "lease/numbers" count: 1024', "get": 'operation: GET key: "vpid/7"',
                       "list": 'operation: LIST key: "vpid/"',
                       "set": 'operation: SET all { operation: SET key: "k" value: "v" } all { operation: SET key: "k2" remove: true }'}.items():
        write("wire", name, one(2, "RegistryRequest", "id: 1 " + text))
    entry = 'entries { key: "vpid/7" value: "\\n\\001b" version: 3 host: "b" }'
    write("wire", "changes", one(3, "RegistryChanges", f"whole: true revision: 1 term: 1 {entry}") +
          one(3, "RegistryChanges", f"revision: 2 term: 1 {entry} " + entry.replace("version: 3", "removed: true version: 4")))
    log = pack("daemon", "CheckpointLog", 'store: "s" entries { number: 1 job: "j" copies { host: "a" path: "/p" } } entries { number: 1 job: "j" }')
    body = "".join(f"\\{byte:03o}" for byte in log)
    write("wire", "log", one(4, "PeerReply", f'id: 1 type: 1000 body: "{body}"') * 2)
    write("wire", "host", one(5, "HostInfo", 'name: "b" address: "10.0.0.1"'))


def cut_seeds():
    def one(message, text):
        return record(message == "CutReply", pack("cut", message, text))

    write("cut", "store", b"\x00" + b"".join(one("CutRequest", f'name: "job" number: 1 part: 1 operation: {name}') for name in ("LOOK", "PUT", "GET", "PRUNE", "SAVE")))
    reply = f'ends {{ own: "{LOOPBACK}" peer: "{LOOPBACK}" id: 1 }} bridges {{ cookie: "{COOKIE}" id: 3 anchor: true text: "x" ino: 5 peer: 6 }}'
    write("cut", "pair", b"\x01" + one("CutReply", reply) + one("CutReply", reply.replace("anchor: true", "reads: true")))
    write("cut", "connect", b"\x02" + pack("image", "Cut", 'name: "job" number: 1 parts { host: "a" } parts { host: "b" }'))


# ---- records, ELF ----

def frame_seeds():
    for number, (message, text) in enumerate({"Hello": 'version: 1 program: "pbeamctl" pid: 5', "Target": 'vpid: 7 name: "x"',
                                             "ProcessList": 'processes { vpid: 7 }', "Progress": 'phase: "x" total: 5'}.items()):
        body = pack("daemon", message, text)
        write("frame", message, struct.pack("<IHHII", 0x4d454250, 1, 0, number, len(body)) + body)


def record_file_seeds():
    write("record", "paths", b"\x00\x00" + b"m\0/from\0/to\0\0" + b"w\0/w\0/there\0" + b"1 2 3 host\0")
    write("record", "watches", b"\x01\x00" + b"8 1 /tmp/a\\nb\\\\\n" + b"8 2 /x\n")
    write("record", "filters", b"\x02\x00" + struct.pack("<Q", 8) + b"\x06\0\0\0\0\0\xff\x7f" + struct.pack("<Q", 16) + bytes(16))
    write("record", "terminals", b"\x03\x00" + struct.pack("<iiii", 3, 4, 7, 3))
    write("record", "ipc", b"\x04\x00" + struct.pack("<iiii", 0, 5, 0, 6))
    write("record", "peers", b"\x05\x00" + struct.pack("<Qii", 12, 7, 0))
    undo = pack("undo", "UndoJournal", 'keeper: 77 files { path: "/file" ino: 1 size: 3 mode: 420 copy: "/copy" ranges { start: 0 end: 3 } '
                'cut: true length: 1 new_mtime_ns: 5 } files { path: "/made" made: true ino: 2 copy: "/made.new" }')
    for state in b"PAHS":
        write("record", f"journal-{chr(state)}", b"\x06" + bytes([state * 2 & 255]) + undo)


def elf_seeds():
    names = b"\0main\0"
    symbol = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x400000, 64)
    interpreter = b"/lib64/ld.so\0"
    head_len, phdr_len, shdr_len = 64, 56, 64
    at = head_len + 2 * phdr_len
    sections = at + len(names) + len(symbol) * 2 + len(interpreter)
    elf = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400000, head_len, sections, 0, 64, phdr_len,
                                                        2, shdr_len, 3, 0)
    elf += struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, sections, sections, 4096)
    elf += struct.pack("<IIQQQQQQ", 3, 4, sections - len(interpreter), 0, 0, len(interpreter), len(interpreter), 1)
    elf += names + symbol * 2 + interpreter
    elf += bytes(shdr_len) + struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, at + len(names), len(symbol) * 2, 2, 0, 8, 24)
    elf += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at, len(names), 0, 0, 1, 0)
    write("elf", "symbols", elf)


# ---- manifests ----

def parse(lines):
    """The text of a message as a list of (name, value), a value being a list or text."""
    fields = []
    for line in lines:
        line = line.strip()
        if line == "}":
            return fields
        name, brace, _ = line.partition(" {")
        fields.append((name, parse(lines)) if brace else tuple(line.split(": ", 1)))
    return fields


def render(fields):
    return "".join(f"{name} {{\n{render(value)}}}\n" if isinstance(value, list) else f"{name}: {value}\n" for name, value in fields)


def smaller(name, value):
    """The field without what is of one host or large; None: leave it out."""
    if name in ("vdso", "cpu_flags", "auxv", "xsave") or (name == "mappings" and ("kind", "FILE_PRIVATE") in value):
        return None
    if not isinstance(value, list):
        return name, re.sub(r'"/(?:[^/"]*/)+', '"/', value)
    fields = [field for field in (smaller(*pair) for pair in value) if field]
    return name, fields


def manifest_seed(path):
    image = pathlib.Path(path).read_bytes()
    offset, length = struct.unpack_from("<QQ", image, len(image) - 96 + 16)
    text = protoc("decode", "image", "Manifest", image[offset:offset + length]).decode()
    name, fields = smaller("manifest", parse(iter(text.splitlines())))
    for fuzzer in (name, "image"):
        write(fuzzer, pathlib.Path(path).parent.name, pack("image", "Manifest", render(fields)))


def tracked_seed():
    """A manifest with files, and a tracked directory: packed messages that follow each other are merged."""
    entries = ['path: "a" mode: 33188 mtime_ns: 5 saved: 1', 'path: "b" mode: 33188 saved: 1', 'path: "d" mode: 16877', 'path: "d/l" mode: 41471 target: "../a"',
               'path: "d/m"', 'path: "../up" mode: 33188 saved: 9']
    for name, most in (("tracked", 5), ("tracked_upwards", 6)):
        tree = "".join(f"entries {{ {entry} }} " for entry in entries[:most])
        write("manifest", name, (SEEDS / "manifest" / "files").read_bytes() + pack("image", "Manifest", f'trees {{ path: "/in" ino: 3 {tree}}}'))


def main():
    page_seeds()
    file_seeds()
    reconnect_seeds()
    link_seeds()
    bridge_seeds()
    wire_seeds()
    cut_seeds()
    frame_seeds()
    record_file_seeds()
    elf_seeds()
    for path in sys.argv[1:]:
        manifest_seed(path)
    tracked_seed()


if __name__ == "__main__":
    main()
