"""Events that commit with a user's database transaction, and handlers that run once: `raylog[outbox]`.

    outbox.init(engine)                                      # once: makes the tables
    with engine.begin() as db:
        db.execute(debit)
        outbox.add(db, "transfers", value, key=b"zhangsan", txid="t-42")
    outbox.OutboxRelay(engine, "bank").run()                 # a process of its own, or `raylog outbox run URL`
    with outbox.Inbox(engine, "fund").transaction(record) as db:
        if db is not None:                                   # None: it was handled before
            db.execute(credit)

SQLite, PostgreSQL, MySQL and MariaDB, through SQLAlchemy Core. The relay stores each committed event once in its topic,
over crashes of itself, of the database and of the leaders.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("sqlalchemy") is None:
    raise ModuleNotFoundError("raylog.outbox needs SQLAlchemy: run `pip install 'raylog[outbox]'`.", name="sqlalchemy")

from raylog.outbox.adding import add
from raylog.outbox.administration import OutboxStatus, discard, retry, status
from raylog.outbox.encoding import TXID_HEADER
from raylog.outbox.engines import make_engine
from raylog.outbox.inbox import Inbox
from raylog.outbox.model import Limits
from raylog.outbox.relay import OutboxRelay
from raylog.outbox.tables import init, metadata

__all__ = [
    "TXID_HEADER",
    "Inbox",
    "Limits",
    "OutboxRelay",
    "OutboxStatus",
    "add",
    "discard",
    "init",
    "make_engine",
    "metadata",
    "retry",
    "status",
]
