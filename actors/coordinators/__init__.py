"""The common part of the shells of all kinds of coordinators: life cycle, log and runner."""
