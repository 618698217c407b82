"""A TCP proxy that loses replies or refuses, for tests of what a caller then believes."""

import asyncio
from urllib.parse import urlsplit


class Proxy:
    """TCP to a server; on demand it passes a request on and drops its reply with the connection."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 6379)
        self._server: asyncio.Server | None = None
        self._path = parts.path
        self._user = parts.netloc.rpartition("@")[0]
        self.lose_next_reply_to = b""
        self.refuse = False
        self.lost = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._user}@" if self._user else ""
        return f"redis://{user}127.0.0.1:{port}{self._path}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.close()
            return
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        losing = asyncio.Event()

        async def up() -> None:
            while data := await reader.read(65536):
                if self.refuse:
                    break
                if self.lose_next_reply_to and self.lose_next_reply_to in data:
                    self.lose_next_reply_to = b""
                    losing.set()
                up_writer.write(data)
                await up_writer.drain()

        async def down() -> None:
            while data := await up_reader.read(65536):
                if losing.is_set():
                    self.lost += 1
                    break
                writer.write(data)
                await writer.drain()

        tasks = {asyncio.ensure_future(up()), asyncio.ensure_future(down())}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        writer.close()
        up_writer.close()
