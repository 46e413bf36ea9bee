"""`NameServer`: the responder behind the cage's resolv.conf."""

from __future__ import annotations

import asyncio
import socket

from kaged.cage.net.address_table import AddressTable
from kaged.cage.net.dns import MAX_QUERY_BYTES, answer_query
from kaged.cage.net.events import ConnectVia, Recorder
from kaged.cage.net.limits import DNS_BATCH
from kaged.cage.net.plan import LOOPBACK
from kaged.kernel.addresses import canonical_address
from kaged.kernel.hosts import LOCALHOST, NetTargetInvalid, normalise_host


class NameServer:
    """Answers name questions of one cage from its address table, and asks no other server."""

    def __init__(self, addresses: AddressTable, recorder: Recorder) -> None:
        self._loop = asyncio.get_running_loop()
        self._addresses = addresses
        self._recorder = recorder

    def serve(self, sock: socket.socket) -> None:
        """Answer what arrives at this socket, until its reader is removed."""
        self._loop.add_reader(sock, self._on_packet, sock)

    def look_up(self, asked: str) -> str | None:
        """Return the address inside that stands for a name, or None, which is put on record."""
        try:
            name = normalise_host(asked)
        except NetTargetInvalid:
            name = ""
        address = None
        if name and canonical_address(name) is None:
            address = self._addresses.address_of(name)
            if address is None and name == LOCALHOST:
                return LOOPBACK
        if address is None:
            self._recorder.denied(ConnectVia.DNS, asked, 0, "net.name", "the name is not granted")
        return address

    def _on_packet(self, sock: socket.socket) -> None:
        for _ in range(DNS_BATCH):
            try:
                packet, asker = sock.recvfrom(MAX_QUERY_BYTES + 1)
                reply = answer_query(packet, self.look_up)
                if reply is not None:
                    sock.sendto(reply, asker)
            except OSError:
                # Nothing left to read, or the asker is gone; the next packet wakes us again.
                return
