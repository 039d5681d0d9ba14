"""The worker of the shop. One commit removes the order from its queue and puts the parcel into "shipped"."""

import spool


def ship(message: spool.Message) -> spool.Translated:
    parcel = {"order": message.id, "item": message.body["item"]}
    return spool.Translated([spool.NewMessage("shipped", parcel)])
