"""The ZooKeeper offset store, held to the contract suite."""

import pytest

from headrace import stores
from headrace.testing.stores import OffsetStoreContract


class TestZooKeeperStore(OffsetStoreContract):
    @pytest.fixture(autouse=True)
    def hosts(self, zookeeper):
        self._hosts = zookeeper.hosts

    def new_store(self):
        return stores.ZooKeeper(self._hosts)
