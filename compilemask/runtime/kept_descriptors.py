"""Descriptors that are kept for the next call with the same mask and lengths."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from compilemask.runtime.descriptor import Descriptor


class Kept:
    """A descriptor for as long as it is kept: who remembers this object holds no memory that others need."""

    __slots__ = ("_is_used", "_pairs", "_parts", "descriptor")

    def __init__(self, descriptor: Descriptor, parts: tuple[Kept, ...] = ()) -> None:
        self.descriptor: Descriptor | None = descriptor
        """None once it is no longer kept."""
        self._parts = parts
        """Of a descriptor with its transpose: what the two are kept by."""
        self._pairs: list[Kept] = []
        """Those that this is a part of."""
        self._is_used = False
        """Whether it was asked for since it was last considered for being dropped."""

    def use(self) -> Descriptor | None:
        """The descriptor, which thereby is kept longer than others."""
        self._is_used = True
        for part in self._parts:
            part._is_used = True
        return self.descriptor


class KeptDescriptors:
    """Up to so many descriptors by what decides them. Where there are more, those go that were long not asked for.

    Those asked for are marked, not moved: the oldest goes that was not marked since it was last found to be the oldest.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[object, ...], Kept] = OrderedDict()
        self._lock = Lock()

    def find(self, key: tuple[object, ...]) -> Descriptor | None:
        """The descriptor of a key, if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            return None if found is None else found.use()

    def keep(self, key: tuple[object, ...], descriptor: Descriptor) -> None:
        """Keep the descriptor of a key, in place of the one that was."""
        with self._lock:
            if (old := self._kept.pop(key, None)) is not None:
                _drop(old)
            while len(self._kept) >= self._limit:
                self._drop_oldest()
            self._kept[key] = Kept(descriptor)

    def _drop_oldest(self) -> None:
        for _ in range(len(self._kept)):
            key, oldest = next(iter(self._kept.items()))
            if not oldest._is_used:
                break
            oldest._is_used = False
            self._kept.move_to_end(key)
        _drop(self._kept.popitem(last=False)[1])

    def with_transpose(self, descriptor: Descriptor, transposed: Descriptor) -> Descriptor:
        """A descriptor with its transpose: the same one as long as both are kept."""
        with self._lock:
            parts = (self._entry_of(descriptor), self._entry_of(transposed))
            if parts[0] is None or parts[1] is None:
                return replace(descriptor, transposed=transposed)
            known = (*parts[0]._pairs, *parts[1]._pairs)
            for pair in known:
                if pair._parts == parts and pair.descriptor is not None:
                    return pair.descriptor
            made = Kept(replace(descriptor, transposed=transposed), (parts[0], parts[1]))
            for part in made._parts:
                part._pairs = [pair for pair in part._pairs if pair.descriptor is not None] + [made]
            assert made.descriptor is not None
            return made.descriptor

    def entry_of(self, descriptor: Descriptor) -> Kept | None:
        """What keeps a descriptor; None if nothing does."""
        with self._lock:
            return self._entry_of(descriptor)

    def _entry_of(self, descriptor: Descriptor) -> Kept | None:
        for entry in self._kept.values():
            for found in (entry, *entry._pairs):
                if found.descriptor is descriptor:
                    return found
        return None


def _drop(entry: Kept) -> None:
    for each in (entry, *entry._pairs):
        each.descriptor = None
    entry._pairs = []
