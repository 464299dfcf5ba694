"""A TCP proxy that delays what passes, and can cut it: a slow or broken way to the coordinator.

    with Proxy("127.0.0.1:4020", delay=0.2) as proxy:
        ... proxy.address ...
        proxy.cut()     every connection ends, and new ones are refused
        proxy.mend()
"""

import asyncio
import threading


class Proxy:
    def __init__(self, target, delay=0.0):
        self._host, port = target.rsplit(":", 1)
        self._port = int(port)
        self._delay = delay  # seconds, each way
        self._writers = set()
        self._is_cut = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.connections = 0
        self.address = ""

    def __enter__(self):
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self):
        self._is_cut = True
        self._call(self._drop_all())

    def mend(self):
        self._is_cut = False

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _stop(self):
        self._server.close()
        await self._drop_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _drop_all(self):
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader, writer):
        if self._is_cut:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            there = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        self._writers -= {writer, there[1]}

    async def _pass(self, reader, writer):
        """Everything as it came, `delay` later; a later piece does not wait for an earlier one."""
        queue = asyncio.Queue()
        sender = asyncio.ensure_future(self._send(queue, writer))
        try:
            while data := await reader.read(1 << 16):
                queue.put_nowait((self._loop.time() + self._delay, data))
        except OSError:
            pass
        queue.put_nowait((self._loop.time() + self._delay, b""))
        await sender

    async def _send(self, queue, writer):
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()
