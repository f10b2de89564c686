"""The gateway's parts, for those who serve one."""

from penstock.async_sink._gateway._credits import CreditWindow
from penstock.async_sink._gateway._destinations import SharedDestinations
from penstock.async_sink._gateway._journal import Journal
from penstock.async_sink._gateway._servicer import SERVICE_NAME, SinkGatewayServicer

__all__ = ["SERVICE_NAME", "CreditWindow", "Journal", "SharedDestinations", "SinkGatewayServicer"]
