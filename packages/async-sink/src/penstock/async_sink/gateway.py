"""The gateway's parts, for those who serve one."""

from penstock.async_sink._gateway.destinations import SharedDestinations
from penstock.async_sink._gateway.servicer import SERVICE_NAME, SinkGatewayServicer
from penstock.async_sink._gateway.session import CreditWindow

__all__ = [
    "SERVICE_NAME",
    "CreditWindow",
    "SharedDestinations",
    "SinkGatewayServicer",
]
