"""Administration: queues, bulk changes of messages, export and import, counts, and findings of damage."""
