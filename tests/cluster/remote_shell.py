#!/usr/bin/python3
"""What rsh is to a cluster of workstations: `remote_shell.py HOST COMMAND...` runs the command on HOST, where `remote_shell.py --serve PREFIX...` waits.

The server puts PREFIX (`scip run --`, say) in front of the command. Nothing but what MPI and PVM start their daemons with: standard input and output, the exit status.
For the laboratory only: there is no question of who is who.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

PORT = 514 + 5000


def pump(read, write, end):
    while data := read(65536):
        write(data)
    end()


def serve_one(connection, prefix):
    stream = connection.makefile("rb", buffering=0)
    words = json.loads(stream.readline())
    child = subprocess.Popen([*prefix, "sh", "-c", " ".join(words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    threading.Thread(target=pump, daemon=True, args=(stream.read, lambda data: (child.stdin.write(data), child.stdin.flush()), child.stdin.close)).start()
    pump(child.stdout.read1, connection.sendall, lambda: None)
    child.wait()
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def serve(prefix):
    listener = socket.create_server(("0.0.0.0", PORT))
    print("serving", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_one, args=(connection, prefix), daemon=True).start()


class Shells:
    """A server on each host of a laboratory; `path` is the client, which every user can execute."""

    def __init__(self, lab, prefix, env=None):
        self.path = lab.stage.flavours / "remote_shell.py"
        shutil.copy(__file__, self.path)
        self.path.chmod(0o755)
        self.jobs = [host.start(["python3", self.path, "--serve", *prefix], f"rsh-{host.name}", env=env(host, self.path) if env else None) for host in lab.hosts]
        for job in self.jobs:
            job.wait_for("serving")

    def end(self):
        for job in self.jobs:
            job.process.terminate()
            job.process.wait(10)


def run(host, words):
    connection = socket.create_connection((host, PORT))
    connection.sendall(json.dumps(words).encode() + b"\n")
    threading.Thread(target=pump, daemon=True, args=(lambda n: os.read(0, n), connection.sendall, lambda: connection.shutdown(socket.SHUT_WR))).start()
    pump(connection.recv, lambda data: os.write(1, data), lambda: None)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2:])
    else:
        run(sys.argv[1], sys.argv[2:])
