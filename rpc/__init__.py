"""Framed msgpack calls over TCP, authenticated by the cluster's secret, in both directions of a connection."""

from raylog.base.access import Role
from raylog.rpc.auth.credentials import Credentials, Secret
from raylog.rpc.auth.tls import client_context, server_context, tls_is_on
from raylog.rpc.auth.tokens import Grant, Token, TopicGrant, mint
from raylog.rpc.client import connect
from raylog.rpc.connection import Connection
from raylog.rpc.errors import FrameTooLarge, TooManyPendingCalls
from raylog.rpc.framing import Buffer, Buffers
from raylog.rpc.host import machine_number
from raylog.rpc.limits import Limits
from raylog.rpc.permissions import Permissions
from raylog.rpc.reply import Reply
from raylog.rpc.request import Handler, Request, RequestConnection
from raylog.rpc.sending import WriteCoalescer
from raylog.rpc.server import RpcServer

__all__ = [
    "Buffer",
    "Buffers",
    "Connection",
    "Credentials",
    "FrameTooLarge",
    "Grant",
    "Handler",
    "Limits",
    "Permissions",
    "Reply",
    "Request",
    "RequestConnection",
    "Role",
    "RpcServer",
    "Secret",
    "Token",
    "TooManyPendingCalls",
    "TopicGrant",
    "WriteCoalescer",
    "client_context",
    "connect",
    "machine_number",
    "mint",
    "server_context",
    "tls_is_on",
]
