"""The certified cache: a paged pool over the kernels' formats, with exact copies on the host and tags that find damage."""

from witcert.store import ops
from witcert.store.allocator import PageAllocator
from witcert.store.config import PoolConfig
from witcert.store.pool import CachePool
from witcert.store.seal import Damage

__all__ = ["CachePool", "Damage", "PageAllocator", "PoolConfig", "ops"]
