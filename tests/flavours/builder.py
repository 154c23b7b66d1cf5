"""Builds the programs of the flavours into a directory; what is up to date is left alone."""
import os
import pathlib
import shutil
import subprocess

SOURCES = pathlib.Path(__file__).resolve().parent / "src"

# target: (command, its sources). OUT is the directory.
BUILDS = {
    "c-dynamic": (["gcc", "-O2", "work.c", "-o", "OUT/c-dynamic", "-lm"], ["work.c"]),
    "c-static": (["gcc", "-O2", "-static", "work.c", "-o", "OUT/c-static", "-lm"], ["work.c"]),
    "c-static-pie": (["gcc", "-O2", "-static-pie", "work.c", "-o", "OUT/c-static-pie", "-lm"], ["work.c"]),
    "musl-static": (["musl-gcc", "-O2", "-static", "work.c", "-o", "OUT/musl-static"], ["work.c"]),
    "musl-dynamic": (["musl-gcc", "-O2", "work.c", "-o", "OUT/musl-dynamic"], ["work.c"]),
    "threads": (["gcc", "-O2", "-pthread", "threads.c", "-o", "OUT/threads"], ["threads.c"]),
    "musl-threads": (["musl-gcc", "-O2", "-static", "-pthread", "threads.c", "-o", "OUT/musl-threads"], ["threads.c"]),
    "tree": (["gcc", "-O2", "tree.c", "-o", "OUT/tree"], ["tree.c"]),
    "go-pure": (["env", "CGO_ENABLED=0", "go", "build", "-C", "go", "-o", "OUT/go-pure", "."], ["go/main.go", "go/extra_pure.go"]),
    "go-cgo": (["env", "CGO_ENABLED=1", "go", "build", "-C", "go", "-o", "OUT/go-cgo", "."], ["go/main.go", "go/extra_cgo.go"]),
    "rust": (["rustc", "-O", "work.rs", "-o", "OUT/rust"], ["work.rs"]),
    "Work.class": (["javac", "-d", "OUT", "Work.java"], ["Work.java"]),
}


def build(target, out):
    """Builds one target; raises with the compiler's messages on failure."""
    command, sources = BUILDS[target]
    made = out / target
    newest = max((SOURCES / name).stat().st_mtime for name in sources)
    if made.exists() and made.stat().st_mtime > newest:
        return
    out.mkdir(parents=True, exist_ok=True)
    words = [word.replace("OUT", str(out)) for word in command]
    cwd = SOURCES
    if "-C" in words:  # older Go has no -C
        at = words.index("-C")
        cwd = SOURCES / words[at + 1]
        del words[at:at + 2]
    environment = {**os.environ, "GOCACHE": str(out / "gocache"), "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def copy(target, stage):
    """Copies a built target, or a script, where the user can read it."""
    source = SOURCES / target if (SOURCES / target).exists() else stage.build / target
    shutil.copy(source, stage.flavours)
    (stage.flavours / target).chmod(0o755)
