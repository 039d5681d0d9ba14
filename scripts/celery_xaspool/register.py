"""Registers ``xaspool`` as a name of a transport.

kombu has no entry points for transports. kombu loads the entry points for serializers in the middle of its own
import, and one of them names this module. So this module imports nothing but the table of the transports.
"""

import json

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("xaspool", "celery_xaspool.transport:Transport")

# The entry point has to register a serializer: plain JSON, under a name that nobody else uses.
serializer = (json.dumps, json.loads, "application/x-xaspool+json", "utf-8")
