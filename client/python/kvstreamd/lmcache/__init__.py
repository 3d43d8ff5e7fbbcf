"""LMCache's connector: kvstreamd as its second level. See the package's README."""

from kvstreamd.lmcache.connector import KVStreamConnector

__all__ = ["KVStreamConnector"]
