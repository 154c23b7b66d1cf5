"""The laboratory: N hosts in one cluster on this machine, and a shell on the first (`make lab`).

The commands a, b, c ... run their arguments on the host of that name.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from lab import host, network

CLIENT = """#!/usr/bin/python3
import json, os, signal, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({path!r})
signal.signal(signal.SIGINT, lambda *_: s.send(b"i"))
socket.send_fds(s, [json.dumps([{name!r}, os.getcwd(), sys.argv[1:] or ["bash", "--norc"]]).encode()], [0, 1, 2])
sys.exit(int(s.recv(16) or b"255"))
"""


class Elsewhere:
    """Runs commands on the other hosts for the shell on the first, which has no privilege to enter them."""

    def __init__(self, lab, tools):
        self.lab = lab
        path = str(tools / "socket")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        os.chmod(path, 0o777)
        for other in lab.hosts:
            script = tools / other.name
            script.write_text(CLIENT.format(path=path, name=other.name))
            script.chmod(0o755)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve_one, args=(connection,), daemon=True).start()

    def serve_one(self, connection):
        text, fds, _, _ = socket.recv_fds(connection, 65536, 3)
        name, folder, words = json.loads(text)
        target = self.lab.hosts[network.NAMES.index(name)]
        child = subprocess.Popen(target.as_user(words), cwd=folder, env=target.env, stdin=fds[0], stdout=fds[1], stderr=fds[2])
        for fd in fds:
            os.close(fd)

        def interrupt():
            while connection.recv(1):
                child.send_signal(signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        status = child.wait()
        connection.send(str(128 - status if status < 0 else status).encode())
        connection.shutdown(socket.SHUT_RDWR)


def main():
    parser = argparse.ArgumentParser(prog="make lab", description="Hosts for trying a cluster: network namespaces joined by a bridge, a pbeamd in each.")
    parser.add_argument("--hosts", type=int, default=3, choices=range(1, len(network.NAMES) + 1), metavar=f"1..{len(network.NAMES)}")
    parser.add_argument("--command", help="run this command with sh on the first host instead of a shell")
    options = parser.parse_args()
    stage = host.Stage()
    lab = network.Lab(stage, options.hosts)
    tools = pathlib.Path(tempfile.mkdtemp(prefix="pbeam-lab-"))
    tools.chmod(0o755)
    try:
        lab.start()
        Elsewhere(lab, tools)
        first = lab.hosts[0]
        for each in lab.hosts:
            each.env |= {"PATH": f"{tools}:{each.env['PATH']}", "PS1": f"{each.name} \\w\\$ "}
        last = lab.hosts[-1].name
        print("hosts: " + ", ".join(f"{each.name} ({each.ip})" for each in lab.hosts) + f"\n`{last} CMD...` runs CMD on host {last}; "
              "`pbeamctl hosts` lists the hosts; exit this shell to remove them", file=sys.stderr)
        words = ["sh", "-c", options.command] if options.command else ["bash", "--norc"]
        return subprocess.call(first.as_user(words), cwd=first.home, env=first.env)
    finally:
        lab.close(strict=False)
        stage.close()
        shutil.rmtree(tools, ignore_errors=True)


if __name__ == "__main__":
    host.become_subreaper()
    sys.exit(main())
