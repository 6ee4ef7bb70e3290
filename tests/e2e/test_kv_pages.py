"""What can be seen of the cache: the block map, and the events a router follows it by."""

import pytest

from rig import TINY, Events

pytestmark = pytest.mark.sanitizer

BLOCK = 16
IDS = [(11 * i) % 900 + 3 for i in range(70)]  # four full blocks and six ids


@pytest.fixture
def server(start):
    return start(TINY, "--kv-pool", "2MiB", "--block-tokens", str(BLOCK))


class Follower:
    """A router's view of the cache, from events alone."""

    def __init__(self, server):
        self.server, self.seen, self.removed, self.blocks = server, 0, 0, {}

    def follow(self):
        while True:
            page = self.server.get(f"/v1/kv_events?since={self.seen}").json
            assert not page["dropped"] and page["block_size"] == BLOCK
            for event in page["events"]:
                assert event["sequence"] == self.seen + 1
                self.seen += 1
                self.apply(event)
            if self.seen == page["last_sequence"]:
                return self

    def apply(self, event):
        if event["type"] == "AllBlocksCleared":
            self.blocks.clear()
            return
        (name,) = event["block_hashes"]
        if event["type"] == "BlockRemoved":
            del self.blocks[name]
            self.removed += 1
            return
        assert event["type"] == "BlockStored" and event["block_size"] == len(event["token_ids"]) == BLOCK
        assert name not in self.blocks and event["parent_block_hash"] in {None, *self.blocks}
        self.blocks[name] = event

    def path(self, name):
        """The ids of a prompt up to the end of a block."""
        event = self.blocks[name]
        parent = event["parent_block_hash"]
        return (self.path(parent) if parent else []) + event["token_ids"]


def blocks(server):
    """The block map, with its sums counted again."""
    page = server.get("/v1/blocks").json
    all_blocks = page["blocks"]
    assert [b["id"] for b in all_blocks] == list(range(page["total"]))
    for state in ("free", "held", "cached"):
        assert page[state] == sum(b["state"] == state for b in all_blocks)
    assert page["shared"] == sum(b["owners"] > 1 for b in all_blocks)
    assert page["registered"] == sum(b["registered"] for b in all_blocks)
    held = [b for b in all_blocks if b["state"] == "held"]
    assert page["internal_waste_tokens"] == sum(page["block_tokens"] - b["tokens"] for b in held)
    for b in all_blocks:
        assert (b["state"] == "held") == (b["owners"] > 0) and b["age_steps"] >= 0
        assert b["state"] != "free" or (b["tokens"] == 0 and not b["registered"])
        assert not b["registered"] or b["tokens"] == page["block_tokens"]
    assert page["fragmentation"]["longest_free_extent"] <= page["free"]
    return page


def test_an_idle_pool(server):
    page = blocks(server)
    assert page["block_tokens"] == BLOCK and page["total"] == page["free"] == server.pool_blocks()
    assert page["fragmentation"]["longest_free_extent"] == page["total"]
    assert page["fragmentation"]["longest_used_extent"] == page["internal_waste_tokens"] == 0
    events = server.get("/v1/kv_events").json
    assert (events["first_sequence"], events["last_sequence"], events["dropped"], events["events"]) == (1, 0, False, [])


def test_events_follow_the_cache(server):
    router = Follower(server)
    server.complete(IDS, max_tokens=1)
    router.follow()
    paths = sorted((router.path(name) for name in router.blocks), key=len)
    assert paths == [IDS[: BLOCK * n] for n in (1, 2, 3, 4)]
    assert len({e["namespace"] for e in router.blocks.values()}) == 1
    page = blocks(server)
    assert page["registered"] == page["cached"] == 4 and page["free"] == page["total"] - 4
    assert {b["id"] for b in page["blocks"] if b["registered"]} == {e["block_id"] for e in router.blocks.values()}

    seen = router.seen
    server.complete(IDS, max_tokens=1)
    assert router.follow().seen == seen, "a hit changes nothing"
    server.complete([5] + IDS, max_tokens=1)
    assert len(router.follow().blocks) == 8

    assert server.post("/reset_prefix_cache", {}).json == {"freed_blocks": 8}
    assert router.follow().blocks == {} and router.seen == seen + 5
    assert blocks(server)["free"] == page["total"]


def test_evictions_are_told(start):
    server = start(TINY, "--kv-pool", "256KiB", "--block-tokens", str(BLOCK))
    router = Follower(server)
    total = server.pool_blocks()
    for i in range(total // 4 + 8):
        server.complete([3 + i % 900] + IDS, max_tokens=1)
        router.follow()
        assert len(router.blocks) == blocks(server)["registered"] <= total
    assert server.metrics()["tally_kv_evictions_total"] == router.removed > 0


def test_what_is_held_while_it_runs(server):
    with server.wire() as wire:
        body = {"model": server.model, "prompt": IDS, "max_tokens": 50, "stream": True, "ignore_eos": True}
        events = iter(Events(wire.request("POST", "/v1/completions", body)))
        next(events)
        page = blocks(server)
        if page["held"]:  # else it has ended already
            assert page["held"] >= 5 and page["fragmentation"]["longest_used_extent"] >= 5
        for _ in events:
            pass
    server.at_rest()
    page = blocks(server)
    assert page["held"] == 0 and page["internal_waste_tokens"] == 0
    ages = [b["age_steps"] for b in page["blocks"] if b["state"] == "cached"]
    assert ages and max(ages) <= 60


@pytest.mark.parametrize("since", ["", "-1", "x", "1.5", "18446744073709551616", "1&since=2"])
def test_since_is_a_number(server, since):
    reply = server.get(f"/v1/kv_events?since={since}")
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_value", "since")


def test_a_number_of_another_server_starts_over(server):
    server.complete(IDS, max_tokens=1)
    page = server.get("/v1/kv_events?since=1000000").json
    assert page["dropped"] and page["first_sequence"] == 1 and len(page["events"]) == 4


def test_a_reader_that_comes_late(start):
    server = start(TINY, "--kv-pool", "256KiB", "--block-tokens", str(BLOCK))
    early = server.get("/v1/kv_events").json
    sent = 0
    while (page := server.get("/v1/kv_events?since=0").json)["last_sequence"] < 4200:
        assert page["dropped"] == (page["last_sequence"] > 4096)
        for _ in range(50):
            server.complete([3 + sent % 900, 3 + sent // 900] + IDS, max_tokens=1)
            sent += 1
    assert not early["dropped"] and page["dropped"]
    assert page["first_sequence"] == page["last_sequence"] - 4095 == page["events"][0]["sequence"]
    assert len(page["events"]) == 1000
    since = page["first_sequence"] - 1
    assert not server.get(f"/v1/kv_events?since={since}").json["dropped"]
    assert server.get(f"/v1/kv_events?since={since - 1}").json["dropped"]
    end = server.get(f"/v1/kv_events?since={page['last_sequence']}").json
    assert end["events"] == [] and not end["dropped"]


def test_tenants_are_told_apart_and_only_administrators_may_look(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("admin:a\nbob:b\n")
    keys.chmod(0o600)
    server = start(TINY, "--kv-pool", "2MiB", "--block-tokens", str(BLOCK), "--api-key-file", keys)
    admin, bob = ([("Authorization", f"Bearer {key}")] for key in "ab")
    for key in (admin, bob):
        body = {"model": server.model, "prompt": IDS, "max_tokens": 1}
        assert server.post("/v1/completions", body, key).status == 200
    page = server.get("/v1/kv_events", admin).json
    assert len(page["events"]) == 8 and len({e["namespace"] for e in page["events"]}) == 2
    assert len({h for e in page["events"] for h in e["block_hashes"]}) == 8
    for path in ("/v1/blocks", "/v1/kv_events"):
        assert server.get(path, bob).status == 403 and server.get(path).status == 401
        assert server.get(path, admin).status == 200


def test_a_salt_keeps_prefixes_apart(server):
    def cached(**options):
        return server.complete(IDS, max_tokens=1, **options)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached(), cached(), cached(cache_salt="a"), cached(cache_salt="b"), cached(cache_salt="a")] == [0, 64, 0, 0, 64]
    router = Follower(server).follow()
    assert len(router.blocks) == 12 and len({e["namespace"] for e in router.blocks.values()}) == 3


def test_without_a_prefix_cache_nothing_is_told(start):
    server = start(TINY, "--kv-pool", "2MiB", "--block-tokens", str(BLOCK), "--prefix-cache", "off")
    server.complete(IDS, max_tokens=1)
    assert server.post("/reset_prefix_cache", {}).status == 200
    page = server.get("/v1/kv_events").json
    assert (page["last_sequence"], page["dropped"], page["events"]) == (0, False, [])
    assert blocks(server)["registered"] == 0
