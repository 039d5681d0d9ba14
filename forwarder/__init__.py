"""The Spark side: data source and sink, forwarding job, services, pipelines."""
