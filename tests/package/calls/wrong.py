"""Calls that a type checker finds: each line that ends with the word error, and no other."""

import forwarder
import spool

HIGH: spool.PutOptions = {"priorty": 90}  # error
FOR_EVER: spool.QueueOptions = {"retries": "for ever"}  # error


def administer(space: spool.Space) -> None:
    spool.create("shop", sync_method="never")  # error
    spool.create("shop", max_body_byte=5)  # error
    spool.create("shop", exists_ok=True)  # error
    space.create_queue("orders", retires=3)  # error
    space.create_queue("orders", on_expiry="lose")  # error
    space.create_queue("orders", drop_types={".csv": 3})  # error
    space.create_queue("orders", retry_delay="5m")  # error
    space.change_queue("orders", max_messages="9")  # error
    space.change_queue("orders", out_of_ordr=("top",))  # error
    space.purge("orders", older_than="7d")  # error
    space.purge("orders", older=7)  # error
    space.redrive("errors", to=3)  # error
    space.redrive("errors", header={"tenant": "acme"})  # error
    space.browse("orders", priority=3)  # error
    space.recovery = None  # error
    space.change("id", priority="high")  # error


def work(space: spool.Space, message: spool.Message) -> None:
    space.put("orders", b"x", priorty=5)  # error
    space.put("orders", b"x", priority="high")  # error
    space.put("orders", b"x", transaction="mine")  # error
    space.put_many("orders", [b"x"], delay="5")  # error
    space.put_many("orders", [b"x"], top="yes")  # error
    space.submit("orders", b"x", headers={"tenant": 3})  # error
    space.submit("orders", b"x", queue_reply="replies")  # error
    space.get("orders", timout=3)  # error
    space.request("orders", b"x", timeout="3")  # error
    space.request("orders", b"x", transaction=None)  # error
    space.transaction(timeout="30")  # error
    with space.transaction() as tx:
        tx.put("orders", b"x", contenttype="text/plain")  # error
        tx.put_many("orders", [b"x"], user_code="1")  # error
        tx.submit("orders", b"x", groups="acme")  # error
        tx.abandn()  # error
    space.work("orders", lambda message: message.bod)  # error
    space.work("orders", print, thread=4)  # error
    message.priority = 5  # error
    print(message.prioriti)  # error


async def tasks(space: spool.aio.Space) -> None:
    spool.aio.create("shop", mirrors="/mnt")  # error
    await space.put("orders", b"x", priorty=5)  # error
    await space.put("orders", b"x", priority="high")  # error
    await space.put_many("orders", [b"x"], delay="5")  # error
    await space.get("orders", timout=3)  # error
    await space.get_many("orders", "9")  # error
    await space.create_queue("orders", retires=3)  # error
    await space.change_queue("orders", max_messages="9")  # error
    await space.purge("orders", older="7d")  # error
    await space.redrive("errors", older_than="7d")  # error
    await space.change("id", priority="high")  # error
    await space.work("orders", print, threads=4)  # error
    space.browse("orders", priority=3)  # error
    print((await space.stats("orders")).redy)  # error
    async with space.transaction() as tx:
        await tx.put("orders", b"x", priorty=5)  # error
        await tx.put_many("orders", [b"x"], headers=[])  # error
        await tx.get("orders", timout=3)  # error


class Unopened:
    threads = 1
    watched = None

    def check(self) -> None:
        pass


class Unanswered(Unopened):
    def open(self) -> "Silent":
        return Silent()


class Silent:
    def __call__(self, request: forwarder.Request) -> str:
        return request.message.id

    def close(self) -> None:
        pass


def forward(path: str) -> None:
    forwarder.Forwarder(path, {"orders": Unopened()})  # error
    unopened: forwarder.Service = Unopened()  # error
    unanswered: forwarder.Service = Unanswered()  # error
    caller: forwarder.Caller = Silent()  # error
    forwarder.Retried("later", dely=5)  # error
    forwarder.Forwarder(path, {"orders": "exec:lp"}, threads="4")  # error
    print(unopened, unanswered, caller)
