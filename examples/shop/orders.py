"""The worker of the shop. The order leaves its queue and the parcel enters "shipped" in one commit."""

import spool


def ship(message: spool.Message) -> spool.Translated:
    parcel = {"order": message.id, "item": message.body["item"]}
    return spool.Translated([spool.NewMessage("shipped", parcel)])
