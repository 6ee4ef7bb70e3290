import sys

import pytest

sys.dont_write_bytecode = True

import rig


def pytest_sessionstart(session):
    for path in (rig.BINARY, rig.TINY) + (() if rig.SHORT else (rig.SMOL,)):
        if not path.is_file():
            pytest.exit(f"{path} is missing", returncode=2)


class Servers:
    """Starts servers and ends every one of them; each must exit with 0."""

    def __init__(self):
        self.started = []

    def __call__(self, model, *flags, **options):
        server = rig.Server(model, *flags, **options)
        self.started.append(server)
        return server

    def end(self):
        failures = []
        for server in self.started:
            try:
                server.stop()
            except BaseException as failure:  # every other one is still to be ended
                server.kill()
                failures.append(f"{failure!r}\n{server.stderr}")
        assert not failures, "\n".join(failures)


@pytest.fixture
def start():
    """Starts servers that live as long as one test."""
    servers = Servers()
    yield servers
    servers.end()


@pytest.fixture(scope="module")
def start_shared():
    """Starts servers that live as long as the tests of one file."""
    servers = Servers()
    yield servers
    servers.end()
