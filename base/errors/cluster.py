"""Errors of the controller and of the brokers: topics, elections, configuration, membership and permissions. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, RetriableError, StaleMetadataError


class InvalidTopic(RaylogError):
    """The topic name is not legal."""

    code = 17


class ClusterAuthorizationFailed(RaylogError):
    """The secret or token that this client proved does not entitle it to this request."""

    code = 31


class UnsupportedVersion(RaylogError):
    """The other side's release does not know this method, record or feature."""

    code = 35


class TopicAlreadyExists(RaylogError):
    """A topic of this name exists."""

    code = 36


class InvalidPartitions(RaylogError):
    """The number of partitions is not legal."""

    code = 37


class InvalidReplicationFactor(RaylogError):
    """The replication factor is not legal for the brokers there are."""

    code = 38


class InvalidReplicaAssignment(RaylogError):
    """A partition cannot be moved to the brokers that were named."""

    code = 39


class InvalidConfig(RaylogError):
    """A configuration key or value is not legal."""

    code = 40


class NotController(StaleMetadataError):
    """The controller is not reachable, or not yet the controller."""

    code = 41


class InvalidRequest(RaylogError):
    """The request makes no sense to the server."""

    code = 42


class AuthenticationFailed(RaylogError):
    """The cluster's secret was not accepted."""

    code = 58


class StaleBrokerEpoch(RaylogError):
    """A newer life of this process is registered; this one has to end."""

    code = 77


class PreferredLeaderNotAvailable(RetriableError):
    """The partition's preferred leader does not run or is not in sync."""

    code = 80


class EligibleLeadersNotAvailable(RetriableError):
    """No replica that may lead the partition runs."""

    code = 83


class ElectionNotNeeded(RaylogError):
    """The partition has the leader that it should have."""

    code = 84


class NoReassignmentInProgress(RaylogError):
    """The partition is not being moved, so that there is nothing to cancel."""

    code = 85


class InvalidUpdateVersion(RaylogError):
    """The partition changed since the sender looked at it."""

    code = 95


class BrokerIdNotRegistered(RaylogError):
    """The controller has ended the session of this connection; open another one, and register again."""

    code = 102


class InconsistentClusterId(RaylogError):
    """The data directory or the request belongs to another cluster."""

    code = 104


class IneligibleReplica(RaylogError):
    """A replica in the proposed ISR may not be a member of it."""

    code = 107


class DataDirectoryError(RaylogError):
    """The data directory cannot be used."""

    code = 1008


class StartFailed(RaylogError):
    """The cluster did not start in time."""

    code = 1009


class TooManyAwake(RetriableError):
    """As many replicas are awake on a broker as it may have; try again when others have fallen asleep."""

    code = 1013


class ThrottlingQuotaExceeded(RetriableError):
    """The server holds as much as it may, and more of this client than its share: wait for answers, then try again."""

    code = 89


class LimitReached(RaylogError):
    """There are as many things that clients choose as a setting allows; the message names it, and what to do."""

    code = 1020


class StopRefused(RaylogError):
    """The broker cannot stop without partitions or the metadata becoming unavailable."""

    code = 1011
