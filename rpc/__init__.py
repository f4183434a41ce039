"""Framed msgpack calls over TCP, authenticated by the cluster's secret, in both directions of a connection."""

from raylog.rpc.client import connect
from raylog.rpc.connection import Connection
from raylog.rpc.credentials import Credentials, Role, Secret
from raylog.rpc.errors import FrameTooLarge, TooManyPendingCalls
from raylog.rpc.framing import Buffer, Buffers
from raylog.rpc.limits import Limits
from raylog.rpc.machine import machine_number
from raylog.rpc.permissions import Permissions
from raylog.rpc.reply import Reply
from raylog.rpc.request import Handler, Request, RequestConnection
from raylog.rpc.sending import Together
from raylog.rpc.server import RpcServer
from raylog.rpc.tls import client_context, server_context, tls_is_on
from raylog.rpc.tokens import ReadGrant, ReadToken, TopicGrant, mint

__all__ = [
    "Buffer",
    "Buffers",
    "Connection",
    "Credentials",
    "FrameTooLarge",
    "Handler",
    "Limits",
    "Permissions",
    "ReadGrant",
    "ReadToken",
    "Reply",
    "Request",
    "RequestConnection",
    "Role",
    "RpcServer",
    "Secret",
    "Together",
    "TooManyPendingCalls",
    "TopicGrant",
    "client_context",
    "connect",
    "machine_number",
    "mint",
    "server_context",
    "tls_is_on",
]
