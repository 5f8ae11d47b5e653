"""Real servers on free ports of this machine, in a temporary folder. They are stopped by process id.

A missing program is installed (Debian, as root). Without root, the tests end with the command that installs it.
"""

import contextlib
import fcntl
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

PATIENCE = 180.0  # seconds until a server must respond; an idle machine needs a few milliseconds
HOST = "127.0.0.1"
STEADY = ("--cluster-node-timeout", "15000")  # for a cluster that must not fail over on a busy machine


may_start = True
"""Whether a server may start now: in no test of `make test-fast`."""
_PORTS, _RANGES = 1_250, 16
_next_port = itertools.count(os.getpid())


def program(name: str, package: str) -> str:
    """Return the path of a server program, and install the program when it is missing."""
    found = shutil.which(name) or _install(name, package)
    if found is None:
        pytest.exit(f"the tests need {name}: sudo apt-get install {package}", returncode=3)
    return found


def _install(name: str, package: str) -> str | None:
    """Install a package, in one worker of pytest at a time: apt-get runs once on a machine."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    with Path(tempfile.gettempdir(), "ratelimit_mw-tests-install").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (["update"], ["install", "-y", package]) if shutil.which(name) is None else ():
            environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "-q", *command], check=False, stdout=subprocess.DEVNULL, env=environment)
        return shutil.which(name)


@functools.cache
def _first_port(pid: int) -> int:
    """Claim a range of ports that no other process on this machine has, even of another run.

    The file stays open. Its lock, and with it the claim, ends with the process.
    """
    for number in itertools.cycle(range(_RANGES)):
        path = Path(tempfile.gettempdir(), f"ratelimit_mw-tests-ports-{os.geteuid()}-{number}")
        claim = os.open(path, os.O_CREAT | os.O_RDWR)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 12_000 + _PORTS * number
        os.close(claim)
        if number == _RANGES - 1:
            time.sleep(1)
    raise AssertionError("a cycle ended")


@contextmanager
def unreachable(host: str = HOST, port: int = 0) -> Iterator[int]:
    """A port whose queue of new connections is full: a client that connects gets no reply."""
    with socket.socket() as listener, ExitStack() as stack:
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        time.sleep(0.05)
        yield listener.getsockname()[1]


def free_port() -> int:
    """Return a port without a listener, below the ports that the system gives to clients.

    Each process has its own range, so no other run of the tests takes the port before the server starts, and no
    client of another test writes into the server. Two calls return different ports, because a cluster needs all its
    ports before its first node starts.
    """
    first = _first_port(os.getpid())
    while True:
        port = first + next(_next_port) % _PORTS
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((HOST, port))
            return port


def wait_for(holds: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Repeat a check until it holds, because real servers take real time."""
    ends = time.monotonic() + patience
    while not holds():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {patience} s")
        time.sleep(0.01)


class Server:
    """One process of a server."""

    def __init__(self, command: Sequence[str], port: int, folder: Path) -> None:
        self.command = command
        self.port = port
        self.folder = folder
        self.start()

    def start(self) -> None:
        """Start the process, even after it was killed."""
        assert may_start, "mark a test with a server as slow"
        self.process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.DEVNULL)
        wait_for(lambda: self.ended() or self.listens(), f"{self.command[0]} on port {self.port}")
        if self.ended():
            raise ChildProcessError(f"{' '.join(self.command)} ended with {self.process.returncode}")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def listens(self) -> bool:
        with socket.socket() as client:
            client.settimeout(1)
            return client.connect_ex((HOST, self.port)) == 0

    def pause(self) -> None:
        """Stop the process: it keeps its connections and sends no replies.

        A signal takes its time: without a wait, a thread of the process may still reply.
        """
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # returns when all threads have stopped

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process without a shutdown, like a machine that fails."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running(command: Callable[[int], Sequence[str]], folder: Path, kind: type[Server] = Server) -> Iterator[Server]:
    """Run a server on a free port, or on another port when a process took the first one."""
    for attempt in range(5):
        port = free_port()
        try:
            server = kind(command(port), port, folder)
            break
        except ChildProcessError:
            if attempt == 4:
                raise
    try:
        yield server
    finally:
        server.kill()


def certificates(folder: Path, names: str = f"IP:{HOST},DNS:localhost") -> Path:
    """Write a self-signed certificate for this machine: ``cert.pem`` and ``key.pem`` in the folder."""
    subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName={names}"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem"]
    command = [program("openssl", "openssl"), "req", "-x509", *key, "-out", "cert.pem", "-days", "2", *subject]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def tls_options(folder: Path) -> list[str]:
    """Return the options of a Redis for TLS with the certificate in the folder, even between servers."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    options = ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert]
    return [*options, "--tls-auth-clients", "no", "--tls-replication", "yes"]


def ports_of(port: int, tls: bool) -> list[str]:
    return ["--port", "0", "--tls-port", str(port)] if tls else ["--port", str(port)]


def redis_command(port: int, *options: str, tls: bool = False) -> list[str]:
    """Run a Redis without persistence."""
    path = program("redis-server", "redis-server")
    quiet = ["--save", "", "--appendonly", "no", "--loglevel", "warning", "--bind", HOST]
    return [path, *ports_of(port, tls), *quiet, *options]


@contextmanager
def redis_running(folder: Path, *options: str, tls: bool = False) -> Iterator[Server]:
    with running(lambda port: redis_command(port, *options, tls=tls), folder) as server:
        yield server


def memcached_command(port: int, *options: str) -> list[str]:
    """Run a Memcached with two threads. As root, it needs the name of its user.

    It moves no memory between sizes: it would do so after a time, and drop values that are in use meanwhile.
    """
    whom = ["-u", "root"] if os.geteuid() == 0 else []
    path = program("memcached", "memcached")
    still = ["-U", "0", "-m", "64", "-t", "2", "-o", "slab_automove=0"]
    return [path, *whom, "-l", HOST, "-p", str(port), *still, *options]


@contextmanager
def memcached_running(folder: Path, *options: str) -> Iterator[Server]:
    with running(lambda port: memcached_command(port, *options), folder) as server:
        yield server


class PostgresServer(Server):
    """A PostgreSQL, which has a process for each connection."""

    def pause(self) -> None:
        for pid in [self.process.pid, *self._children()]:
            _signal(pid, signal.SIGSTOP)
            wait_for(lambda pid=pid: _state_of(pid) in "TZ", "a process to stop")

    def resume(self) -> None:
        for pid in [*self._children(), self.process.pid]:
            _signal(pid, signal.SIGCONT)

    def kill(self) -> None:
        """End all processes at once, as when the machine fails: the next start recovers, and empties unlogged tables.

        A killed main process would leave its children, and no start succeeds while one is left.
        """
        if not self.ended():
            self.resume()
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def listens(self) -> bool:
        """Return whether it accepts clients: it listens before it is ready."""
        ready = [str(postgres_program("pg_isready")), "-q", "-U", "postgres", "-h", HOST, "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def _children(self) -> list[int]:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # a connection that has ended
        os.kill(pid, number)


def _state_of(pid: int) -> str:
    """Return the letter of a process; the name before it may have any characters."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # a connection that has ended
        return "Z"


def postgres_program(name: str) -> Path:
    """Return a program of the newest PostgreSQL. Debian has them in a folder of the version, and not on the path."""

    def newest() -> list[Path]:
        return sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))

    if not newest():
        _install(name, "postgresql")
    found = [*map(Path, filter(None, [shutil.which(name)])), *newest()]
    if not found:
        pytest.exit(f"the tests need {name}: sudo apt-get install postgresql", returncode=3)
    return found[-1]


@contextmanager
def postgres_running(*options: str) -> Iterator[PostgresServer]:
    """Run a PostgreSQL with the user "postgres". It does not run as root: then it runs as "nobody"."""
    is_root = os.geteuid() == 0
    whom = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"] if is_root else []
    with tempfile.TemporaryDirectory(prefix="ratelimit_mw-postgres-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "data").mkdir(0o700)
        if is_root:
            shutil.chown(folder / "data", "nobody", "nogroup")
        create = ["-D", str(folder / "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        command = [*whom, str(postgres_program("initdb")), *create]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)

        def serve(port: int) -> list[str]:
            own = ["-c", f"listen_addresses={HOST}", "-c", f"unix_socket_directories={folder / 'data'}"]
            quiet = ["-c", "fsync=off", "-c", "log_min_messages=fatal", "-c", "max_connections=200"]
            program = str(postgres_program("postgres"))
            return [*whom, program, "-D", str(folder / "data"), "-p", str(port), *own, *quiet, *options]

        with running(serve, folder, PostgresServer) as server:
            yield server  # type: ignore[misc]


@contextmanager
def sentinel_running(
    folder: Path, service: str, primary: Server, *options: str, settings: Sequence[str] = (), tls: bool = False
) -> Iterator[Server]:
    """Run one sentinel that decides alone and soon. ``settings`` are further lines of its configuration."""

    def command(port: int) -> list[str]:
        file = folder / f"sentinel-{port}.conf"
        lines = [
            f"sentinel monitor {service} {HOST} {primary.port} 1",
            f"sentinel down-after-milliseconds {service} 300",
            f"sentinel failover-timeout {service} 2000",
            *settings,
        ]
        file.write_text("\n".join(lines) + "\n", "utf-8")
        path = program("redis-server", "redis-server")
        quiet = ["--sentinel", "--bind", HOST, "--loglevel", "warning"]
        return [path, str(file), *ports_of(port, tls), *quiet, *options]

    with running(command, folder) as sentinel:
        yield sentinel


@contextmanager
def node_running(folder: Path, *options: str, tls: bool = False) -> Iterator[Server]:
    """Run a server that can join a cluster."""

    def command(port: int) -> list[str]:
        files = ["--cluster-config-file", f"nodes-{port}.conf", "--dbfilename", f"dump-{port}.rdb"]
        own = ["--cluster-enabled", "yes", *files]
        quick = ["--cluster-node-timeout", "500", "--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
        return redis_command(port, *own, "--cluster-port", str(free_port()), *quick, *options, tls=tls)

    with running(command, folder) as node:
        yield node


def meet(client: redis.Redis, node: Server) -> None:
    """Make a server and the cluster of a client know each other."""
    bus = node.command[list(node.command).index("--cluster-port") + 1]
    client.execute_command("CLUSTER MEET", HOST, node.port, bus)


@contextmanager
def cluster_running(
    folder: Path, *options: str, primaries: int = 3, replicas: int = 1, tls: bool = False, **login: Any
) -> Iterator[list[Server]]:
    """Run a cluster of primaries and replicas of each. ``login`` is what redis-py needs to connect."""

    with ExitStack() as stack:
        count = primaries * (1 + replicas)
        nodes = [stack.enter_context(node_running(folder, *options, tls=tls)) for _ in range(count)]
        clients = [stack.enter_context(redis.Redis(host=HOST, port=node.port, **login)) for node in nodes]
        for i, client in enumerate(clients[:primaries]):
            first, last = 16384 * i // primaries, 16384 * (i + 1) // primaries - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
        for node in nodes[1:]:
            meet(clients[0], node)
        names = [client.execute_command("CLUSTER MYID").decode() for client in clients[:primaries]]
        for client, name in zip(clients[primaries:], names * replicas, strict=True):
            wait_for(lambda client=client, name=name: _replicates(client, name), "a replica to meet its primary")
        wait_for(lambda: all(map(_is_whole, clients)), "the cluster to be whole")
        yield nodes


def _replicates(client: redis.Redis, primary: str) -> bool:
    try:
        client.execute_command("CLUSTER REPLICATE", primary)
    except redis.ResponseError:  # they do not know each other yet
        return False
    return True


def _is_whole(client: redis.Redis) -> bool:
    """Return whether a node knows all slots, and a replica has its primary's data."""
    state, links = client.execute_command("CLUSTER INFO"), client.info("replication")
    return state["cluster_state"] == "ok" and links.get("master_link_status", "up") == "up"


def replicated(primary: redis.Redis, replica: redis.Redis) -> bool:
    """Return whether the replica has all writes of the primary. (WAIT covers only the writes of its own connection.)"""
    sent: Any = primary.info("replication")
    got: Any = replica.info("replication")
    return got.get("slave_repl_offset", -1) >= sent["master_repl_offset"]
