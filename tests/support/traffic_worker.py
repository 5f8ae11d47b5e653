"""A worker that records events and forks: `traffic_worker.py URL ENDING COUNT`. It ends without closing its log."""

import os
import signal
import sys

from ratelimit_mw.traffic import TrafficLog
from ratelimit_mw.traffic import log as traffic_log


def main(url: str, ending: str, count: str) -> None:
    traffic_log.INTERVAL = 0.05  # type: ignore[misc] # many writes at the same time
    log = TrafficLog(url)
    log.record("parent", "x")
    child = os.fork()
    event = "parent" if child else "child"
    for i in range(int(count) - (event == "parent")):
        log.record(event, f"client {i % 50}")
    if child:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    if ending == "is terminated":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        os.kill(os.getpid(), signal.SIGTERM)
    if ending == "exits":
        sys.exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
