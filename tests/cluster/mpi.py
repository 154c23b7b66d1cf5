"""MPI over the hosts of a laboratory: compiling, starting."""
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"openmpi": ("mpicc.openmpi", "mpirun.openmpi"), "mpich": ("mpicc.mpich", "mpirun.mpich")}


def compiled(lab, kind):
    target = lab.stage.flavours / f"reduce-{kind}"
    if not target.exists():
        subprocess.run([KINDS[kind][0], "-O2", HERE / "programs" / "reduce.c", "-o", target], check=True)
    return target


def command(lab, kind, shells, rounds, hosts=None):
    rank = [compiled(lab, kind), str(rounds)]
    where = [host.ip for host in hosts or lab.hosts]
    if kind == "openmpi":
        return ["mpirun.openmpi", "--mca", "plm_rsh_agent", shells.path, "--host", ",".join(f"{ip}:1" for ip in where), "--mca", "btl", "tcp,self",
                "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0", "-n", str(len(where)), *rank]
    return ["mpirun.mpich", "-launcher", "rsh", "-launcher-exec", shells.path, "-iface", "eth0", "-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0", "-hosts", ",".join(where), "-n", str(len(where)), *rank]
