"""A cluster over TLS, with certificates that are valid for a host name and for no IP address."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
from redis_handles import ALGORITHMS, PATIENT, hit, limit_of, ways, ways_of
from redis_topology import Topology
from servers import HOST, STEADY, certificates, cluster_running, tls_options, wait_for

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores import RedisStore

pytestmark = pytest.mark.thorough

NAME = "cluster-announce-hostname"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("cluster"), "DNS:localhost")


@pytest.fixture(scope="module")
def topology(folder: Path) -> Iterator[Topology]:
    login = {"ssl": True, "ssl_ca_certs": str(folder / "cert.pem"), "ssl_check_hostname": False}
    options = (*STEADY, *tls_options(folder), "--tls-cluster", "yes")
    with cluster_running(folder, *options, tls=True, **login) as nodes, ExitStack() as stack:
        clients = [redis.Redis(host=HOST, port=node.port, **login) for node in nodes]  # type: ignore[arg-type]
        yield Topology(nodes, [stack.enter_context(each) for each in clients])


def announce(topology: Topology, kind: str, name: str = "") -> None:
    """Make each server announce its IP address (``ip``) or a name (``hostname``)."""
    for each in topology.clients:
        each.config_set(NAME, name)
        each.config_set("cluster-preferred-endpoint-type", kind)
    expected = {name.encode() if kind == "hostname" else HOST.encode()}

    def announced(server: redis.Redis) -> set[bytes]:
        return {node[0] for _, _, *nodes in server.execute_command("CLUSTER SLOTS") for node in nodes}

    wait_for(lambda: all(announced(each) == expected for each in topology.clients), "the names")


def url(topology: Topology, folder: Path, more: str = "") -> str:
    return f"rediss+cluster://localhost:{topology.nodes[0].port}?ssl_ca_certs={folder}/cert.pem{more}"


def check(address: str) -> None:
    """Use keys of all servers, blocking and on an event loop."""
    limits = [limit_of("9/hour", spec) for spec in ALGORITHMS * 2]
    with ways(address) as sends:
        for number, send in enumerate(sends):
            assert [send(hit(limit))[0].remaining for limit in limits] == [8 - number] * len(limits)


def test_announced_names_are_verified_also_after_a_failover(topology: Topology, folder: Path) -> None:
    """The certificate of the new primary is valid for the name that it announces."""
    announce(topology, "hostname", "localhost")
    limits = [limit_of("90/hour", spec) for spec in ALGORITHMS * 2]
    with ways(url(topology, folder)) as sends:
        for send in sends:
            assert all(send(hit(limit))[0].allowed for limit in limits)
        topology.fail_over(1, 4)
        for number, send in enumerate(sends):
            assert [send(hit(limit))[0].remaining for limit in limits] == [87 - number] * len(limits)
    check(url(topology, folder))


def test_an_announced_ip_address_is_not_the_name_of_the_certificate(topology: Topology, folder: Path) -> None:
    """The error names the IP address. Keys elsewhere are on no server with a valid certificate either."""
    announce(topology, "ip")
    with ways(url(topology, folder)) as sends:
        for send in sends:
            with pytest.raises(StoreError, match=r"not valid for '127\.0\.0\.1'"):
                send(hit(limit_of("9/hour")))
    check(url(topology, folder, "&ssl_check_hostname=false"))


@pytest.mark.parametrize("kind", ["ip", "hostname"])
def test_the_name_of_a_remap_is_verified(topology: Topology, folder: Path, kind: str) -> None:
    """The name to use must be that of the certificate, whatever the servers announce."""
    announce(topology, kind, "redis.invalid")
    limits = [limit_of("9/hour", spec) for spec in ALGORITHMS * 2]
    with closing(
        RedisStore(url(topology, folder), remap=lambda announced: ("localhost", announced[1]), timeout_us=PATIENT)
    ) as store:
        for number, send in enumerate(ways_of(store).values()):
            assert [send(hit(limit))[0].remaining for limit in limits] == [8 - number] * len(limits)
    with closing(
        RedisStore(url(topology, folder), remap=lambda announced: (HOST, announced[1]), timeout_us=PATIENT)
    ) as store:
        for send in ways_of(store).values():
            with pytest.raises(StoreError, match=r"not valid for '127\.0\.0\.1'"):
                send(hit(limit_of("9/hour")))
