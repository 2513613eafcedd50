"""Object files that LLVM made for this computer, loaded without LLVM.

Code that is compiled to run where it lies refers to everything by whole addresses (x86-64's large code model), so that
loading is to copy the sections and to write those addresses. What refers to anything otherwise is not loaded.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

_MAGIC = b"\x7fELF\x02\x01"
"""64 bits, the lowest byte first."""
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BYTES = 2, 4, 8
"""Kinds of sections."""
_OF_MEMORY = 2
"""The flag of sections that are loaded."""
_WHOLE_ADDRESS = 1
"""R_X86_64_64: the address of a symbol, plus a number."""
_EXTERNAL = 0


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    """The section of names or symbols that belongs to this one."""
    target: int
    """The section that relocations are for."""
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int


class _Unknown(Exception):
    """The file needs what is not known here."""


class LoadedObject:
    """The code of an object file, in memory of its own."""

    def __init__(self, memory: mmap.mmap, addresses: dict[str, int]) -> None:
        self._memory, self._addresses = memory, addresses

    def address(self, name: str) -> int:
        """Where a function begins."""
        return self._addresses[name]

    @classmethod
    def of(cls, data: bytes) -> LoadedObject | None:
        """The object in a file; None if it is for other machines or refers to what is not here."""
        if platform.machine() not in ("x86_64", "AMD64") or not hasattr(mmap, "PROT_EXEC"):
            return None
        try:
            return _load(data)
        except (_Unknown, struct.error, ValueError, IndexError, OSError):
            return None


def _load(data: bytes) -> LoadedObject:
    sections = list(_sections(data))
    places, size = dict[int, int](), 0
    for number, section in enumerate(sections):
        if section.flags & _OF_MEMORY:
            size += -size % max(section.alignment, 1)
            places[number] = size
            size += section.size
    memory = mmap.mmap(-1, max(size, 1), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for number, place in places.items():
        if (section := sections[number]).kind != _NO_BYTES:
            memory[place : place + section.size] = data[section.offset : section.offset + section.size]
    symbols = [
        symbol for section in sections if section.kind == _SYMBOLS for symbol in _symbols(data, sections, section)
    ]
    for section in sections:
        if section.kind == _RELOCATIONS and section.target in places:
            for offset, symbol, number in _relocations(data, section):
                address = _address(symbols[symbol], places, base) + number
                struct.pack_into("<Q", memory, places[section.target] + offset, address % 2**64)
    if _libc().mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError("memory cannot be made executable")
    own = {symbol.name: base + places[symbol.section] + symbol.value for symbol in symbols if symbol.section in places}
    return LoadedObject(memory, own)


def _sections(data: bytes) -> Iterator[_Section]:
    kind, machine = struct.unpack_from("<HH", data, 16)
    if not data.startswith(_MAGIC) or (kind, machine) != (_RELOCATABLE, _X86_64):
        raise _Unknown
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for number in range(count):
        _, kind, flags, _, offset, length, link, target, alignment, _ = struct.unpack_from(
            "<IIQQQQIIQQ", data, start + number * size
        )
        yield _Section(kind, flags, offset, length, link, target, alignment)


def _symbols(data: bytes, sections: list[_Section], section: _Section) -> Iterator[_Symbol]:
    names = sections[section.link].offset
    for place in range(section.offset, section.offset + section.size, 24):
        name, _, _, of, value, _ = struct.unpack_from("<IBBHQQ", data, place)
        end = data.index(b"\0", names + name)
        yield _Symbol(data[names + name : end].decode(), of, value)


def _relocations(data: bytes, section: _Section) -> Iterator[tuple[int, int, int]]:
    """Where, of which symbol, plus which number."""
    for place in range(section.offset, section.offset + section.size, 24):
        offset, information, number = struct.unpack_from("<QQq", data, place)
        if information & 0xFFFFFFFF != _WHOLE_ADDRESS:
            raise _Unknown
        yield offset, information >> 32, number


def _address(symbol: _Symbol, places: dict[int, int], base: int) -> int:
    if symbol.section in places:
        return base + places[symbol.section] + symbol.value
    if symbol.section != _EXTERNAL:
        raise _Unknown
    for library in (_libc(), _libm()):
        if (function := getattr(library, symbol.name, None)) is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise _Unknown


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@cache
def _libm() -> ctypes.CDLL:
    return ctypes.CDLL("libm.so.6")
