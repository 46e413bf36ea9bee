"""`AddressTable`: which address inside the cage stands for which name outside."""

from __future__ import annotations

from collections import OrderedDict

from kaged.kernel.hosts import LOCALHOST

SYNTHETIC_PREFIX = bytes([127, 77])
# .0.0 and everything from .255.0 on are left out; the gate's own second address lives up there.
_FIRST = 1
_CAPACITY = 254 * 256


def synthetic_address(place: int) -> str:
    """Return the address of the name at this place; places count from 0."""
    if not 0 <= place < _CAPACITY:
        raise ValueError(f"there are {_CAPACITY} synthetic addresses, not {place + 1}")
    number = place + _FIRST
    return f"127.77.{number >> 8}.{number & 0xFF}"


def is_synthetic(address: str) -> bool:
    """Return whether an address stands for a name, known or not."""
    return address.startswith("127.77.")


class AddressTable:
    """Names and the addresses that stand for them in one cage.

    Granted names keep their address for good. Where every name is granted, a name gets an address
    when it is first looked up (but not `localhost`, which "every name" does not cover); beyond
    `limit` such names the one not used for longest gives its address back.
    """

    def __init__(
        self, granted: tuple[tuple[str, str], ...], *, open_names: bool, limit: int
    ) -> None:
        self._granted = dict(granted)
        self._names = {address: name for name, address in granted}
        self._open = open_names
        self._claimed: OrderedDict[str, str] = OrderedDict()
        self._limit = max(1, min(limit, _CAPACITY - len(granted) - 1))
        self._next = len(granted)

    def address_of(self, name: str) -> str | None:
        """Return the address for a normalised name, or None if the cage may not know it."""
        address = self._granted.get(name)
        if address is not None or not self._open or name == LOCALHOST:
            return address
        address = self._claimed.get(name)
        if address is not None:
            self._claimed.move_to_end(name)
            return address
        if len(self._claimed) >= self._limit:
            _, address = self._claimed.popitem(last=False)
            del self._names[address]
        else:
            address = synthetic_address(self._next)
            self._next += 1
        self._claimed[name] = address
        self._names[address] = name
        return address

    def name_of(self, address: str) -> str | None:
        """Return the name that an address stands for, or None."""
        name = self._names.get(address)
        if name is not None and name in self._claimed:
            self._claimed.move_to_end(name)
        return name
