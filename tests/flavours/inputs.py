"""The inputs of the flavours, the same each time."""
import random
import re
import shutil
import subprocess

BIG = 200 * 1000 * 1000


def big_file(host):
    """200 MB, half of it compressible, in "big"."""
    path = host.file("big")
    generator = random.Random(1998)
    blocks = [generator.randbytes(64 * 1024) for _ in range(16)] + [bytes([n]) * 64 * 1024 for n in range(16)]
    with open(path, "wb") as out:
        while out.tell() < BIG:
            block = generator.choice(blocks)
            at = generator.randrange(len(block))
            out.write(block[at:] + block[:at])
        out.truncate(BIG)
    for made in ("big.xz", "big.avi"):
        (host.home / made).unlink(missing_ok=True)


def redis(host):
    """Debian's configuration, with our paths and port, in the foreground; a client that counts."""
    try:
        debian = open("/etc/redis/redis.conf", encoding="utf-8").read()
    except PermissionError:
        debian = subprocess.run(["sudo", "-n", "cat", "/etc/redis/redis.conf"], capture_output=True, text=True, check=True).stdout
    port = 20000 + random.Random(str(host.top)).randrange(10000)
    ours = {"dir": host.home, "pidfile": host.home / "redis.pid", "logfile": host.home / "redis.log", "port": port, "daemonize": "no"}
    host.file("redis.conf", re.sub(r"(?m)^(dir|pidfile|logfile|port|daemonize) .*", lambda match: f"{match[1]} {ours[match[1]]}", debian))
    host.file("redis.sh", f"""
redis-server ./redis.conf &
server=$!
until redis-cli -p {port} ping >/dev/null 2>&1; do sleep 0.05; done
redis-cli -p {port} -r -1 -i 0.002 incr counter >counted &
client=$!
while [ ! -e go ]; do
	sleep 0.1
	echo tick
done
kill $client
wait $client
last=$(tail -n 1 counted)
value=$(redis-cli -p {port} get counter)
lines=$(wc -l <counted)
[ "$lines" = "$(sort -nu counted | wc -l)" ] && [ "$last" = "$lines" ] && [ "$value" -ge "$last" ] && [ "$value" -le $((last + 1)) ] &&
	echo "result ok" || echo "result wrong: $lines lines, last $last, value $value"
redis-cli -p {port} shutdown nosave
wait $server
""")


def project(host):
    """A C project that takes some seconds to build."""
    folder = host.home / "project"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    names = [f"part{n}" for n in range(36)]
    for n, name in enumerate(names):
        functions = "".join(
            f"long {name}_{k}(long x)\n{{\n\tlong s = {n};\n\tfor (long i = 0; i < x; i++)\n\t\ts = s * {2 * k + 3} + (i ^ s >> {k % 7 + 1});\n\treturn s;\n}}\n"
            for k in range(60))
        (folder / f"{name}.c").write_text(f"#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n{functions}")
    (folder / "main.c").write_text("#include <stdio.h>\n" + "".join(f"long {name}_1(long x);\n" for name in names) + "int main(void)\n{\n\tlong s = 0;\n"
                                   + "".join(f"\ts ^= {name}_1(1000);\n" for name in names) + '\tprintf("%ld\\n", s);\n\treturn 0;\n}\n')
    objects = " ".join(f"{name}.o" for name in ["main"] + names)
    (folder / "Makefile").write_text(f"CFLAGS = -O2\nprogram: {objects}\n\t$(CC) -o $@ {objects}\n")
    for path in [folder, *folder.iterdir()]:
        host.own(path)


def project_result(host):
    """The objects, byte for byte, and the program's output."""
    folder = host.home / "project"
    printed = host.run([folder / "program"]).stdout
    return [printed] + [(path.name, path.read_bytes()) for path in sorted(folder.glob("*.o"))]


def openssl_result(host):
    """The algorithms that have a figure; the figures differ from run to run."""
    text = "".join((host.home / name).read_text() for name in ("flavour.out", "native.out", "native.err") if (host.home / name).exists())
    return sorted({match.lower() for match in re.findall(r"^(sha256|sha512|aes-128-cbc|md5) +[0-9.]+k", text, re.M | re.I)})
