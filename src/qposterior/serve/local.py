"""Who may speak to the local page: browsers on this machine that show it, and nobody else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # without a referrer forms would be sent with the origin "null"
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer: no other site may frame, embed or keep it, and it loads nothing."""


TOO_LARGE = 413


class LocalOnly:
    """Refuses requests under another name (a site whose name leads here), from another origin, or that are too large.

    A page of another site can make a browser send requests to this machine. It cannot choose the headers Host, Origin
    and Sec-Fetch-Site, by which such requests are known.
    """

    def __init__(self, app: App, *, port: int, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", [])}
        reason = None if scope["type"] == "http" else (403, "only plain requests are answered")
        reason = reason or self._reason(scope["method"], headers)
        if reason is not None:
            if reason[0] == TOO_LARGE:  # a browser that is still sending would not hear why
                while (await receive()).get("more_body"):
                    pass
            return await _refuse(send, *reason)
        return await self.app(scope, self._counted(receive), _with_headers(send))

    def _reason(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return why a request is refused, or None."""
        if headers.get("host") not in self.hosts:
            return 403, "this page is served to this machine only, as localhost or 127.0.0.1"
        origin = headers.get("origin")
        if origin not in self.origins and (origin is not None or method not in ("GET", "HEAD")):
            return 403, "requests from other pages are refused"
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return 403, "requests from other pages are refused"
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > self.most_bytes:
            return TOO_LARGE, f"a file may have {self.most_bytes // 2**20} MB; fit a larger one on the command line"
        return None

    def _counted(self, receive: Receive) -> Receive:
        """Return what receives no more than may be uploaded, whatever the length was said to be."""
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            return {"type": "http.disconnect"} if total > self.most_bytes else message

        return counted


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_encoded(HEADERS)]
        await send(message)

    return sending


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = _encoded({"content-type": "text/plain; charset=utf-8"} | HEADERS)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
