"""Administration: queues made and changed, messages moved in bulk, export and import, counts, and what is wrong."""
